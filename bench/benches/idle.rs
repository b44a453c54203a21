//! Memory and start of a broker with the plugins this repository ships: `cargo xtask guests && cargo build --release -p
//! tidegate && cargo bench -p tidegate-bench --bench idle`.
//!
//! Starts the real `tidegate` binary (the one beside this benchmark, or that of `TIDEGATE_BIN`) on the repository's
//! `plugins.toml` and takes the time from the spawn to the line that says ready: in a new directory (credentials, a WAL
//! file of zeros, everything compiled), again in the same one (compiled code from the cache), and there without the cache. Of
//! each, the resident memory one second after, and the CPU an idle second costs. Takes about a minute.
#![allow(clippy::print_stdout, reason = "a benchmark reports to the person who runs it")]

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use tidegate_bench::{
    Samples,
    broker::{binary, directory, repository, serve},
    runs::verdict,
    wall,
};

const ROUNDS: usize = 4;
/// Starts with a warm cache in each round.
const WARM: usize = 4;
/// From ready to the look at memory, and then to the look at CPU.
const IDLE: Duration = Duration::from_secs(1);
const RESIDENT_MB_MAX: f64 = 150.0;
const START_MS_MAX: f64 = 1_000.0;

/// What starts of one kind took.
#[derive(Debug, Default)]
struct Starts {
    ready_ms: Samples,
    resident_mb: Samples,
    own_mb: Samples,
    cpu_ms_per_s: Samples,
}

fn main() -> Result<()> {
    let plugins = repository().join("plugins.toml").canonicalize()?;
    println!("idle broker: {} with {}", binary()?.display(), plugins.display());
    let (mut new, mut warm, mut cold) = (Starts::default(), Starts::default(), Starts::default());
    for _ in 0..ROUNDS {
        let directory = directory()?;
        let data = directory.path().join("data");
        new.start(&plugins, &data)?;
        for _ in 0..WARM {
            warm.start(&plugins, &data)?;
        }
        fs::remove_dir_all(data.join("cache")).context("the cache of compiled code")?;
        cold.start(&plugins, &data)?;
    }
    println!(
        "{:<34} {:>18} {:>16} {:>16} {:>16}",
        "start", "spawn to ready", "resident", "of that its own", "CPU when idle"
    );
    new.print("new directory");
    warm.print("same directory, warm cache");
    cold.print("same directory, cache removed");
    let (ready, resident) =
        (warm.ready_ms.quantile(1.0), new.resident_mb.quantile(1.0).max(warm.resident_mb.quantile(1.0)));
    verdict("slowest start with a warm cache", ready, " ms", "under 1 s", ready < START_MS_MAX);
    verdict("largest resident memory of any start", resident, " MB", "under 150 MB", resident < RESIDENT_MB_MAX);
    Ok(())
}

impl Starts {
    fn start(&mut self, plugins: &Path, data: &Path) -> Result<()> {
        let start = wall();
        let (mut process, _) = serve(data, plugins, &["--http", "127.0.0.1:0"])?;
        self.ready_ms.push((wall() - start).as_secs_f64() * 1e3);
        std::thread::sleep(IDLE);
        self.resident_mb.push(process.memory("VmRSS")?);
        self.own_mb.push(process.memory("RssAnon")?);
        let before = process.cpu()?;
        std::thread::sleep(IDLE);
        self.cpu_ms_per_s.push((process.cpu()? - before).as_secs_f64() * 1e3 / IDLE.as_secs_f64());
        process.drain()
    }

    fn print(&self, what: &str) {
        let cell = |samples: &Samples, unit: &str| format!("{:.1} {unit} ±{:.1}%", samples.median(), samples.spread());
        println!(
            "{what:<34} {:>18} {:>16} {:>16} {:>13.1} ms/s",
            cell(&self.ready_ms, "ms"),
            cell(&self.resident_mb, "MB"),
            cell(&self.own_mb, "MB"),
            self.cpu_ms_per_s.median()
        );
    }
}
