//! CPU the broker uses per record, and what three plugins add to it: `cargo xtask guests && cargo build --release -p tidegate && cargo bench -p tidegate-bench
//! --bench broker_cpu`.
//!
//! A real broker (a child process, the CPU of all its threads as the scheduler counts it) takes batches of 100 x 1 KB over QUIC, 16 in flight, on
//! topics that differ in their chain alone: none, none again (A/A: the noise), three no-op plugins, three key filters that
//! let all pass. Each topic is loaded in turn, in an order that moves on each round; a ratio is of one round. What the broker does behind
//! the acks (segments) is waited for and counted. Once with the WAL on the disk of this repository, once with the WAL in
//! memory. Takes a minute for each run; noisy ones are repeated.
#![allow(clippy::print_stdout, reason = "a benchmark reports to the person who runs it")]

use std::{fmt::Write as _, time::Duration};

use anyhow::{Context as _, Result, ensure};
use tidegate_bench::{
    Samples,
    broker::{Broker, component, plugins},
    load::{self, Load, RECORDS},
    runs::{SPREAD_MAX, added, noise, of_median, quiet, ratios, rounds, verdict},
};
use tidegate_client::{BatchBody, Connection, Producer};

const ROUNDS: usize = 12;
/// What fills a WAL file of 64 MiB: each sample pays for one new file and one segment.
const BATCHES: u64 = 649;
/// Before a sample, until the thread that watches running guests sleeps: no sample may pay for the plugins of the one before.
const PAUSE: Duration = Duration::from_millis(280);
/// Until every plugin's calls are known to be short and every instance is warm.
const WARM_UP: u64 = 400;
const PLUGINS_PER_CHAIN: usize = 3;

/// Topic, what its chain is, and its plugins' names without their number.
const CHAINS: [(&str, &str, Option<&str>); 4] = [
    ("plain/a", "no chain (A)", None),
    ("plain/b", "no chain (A again)", None),
    ("noop/x", "3 x noop", Some("noop")),
    ("keys/x", "3 x keyfilter", Some("keyfilter")),
];

fn main() -> Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(all())
}

async fn all() -> Result<()> {
    println!(
        "broker CPU per record over QUIC: 100 x 1 KB per batch, 16 in flight, {BATCHES} batches per sample, {ROUNDS} rounds"
    );
    for (wal, arguments) in [("WAL on disk", &[] as &[&str]), ("WAL in memory", &["--memory"])] {
        let (noise, run) = quiet(async |number| {
            println!("\n{wal}, run {number}");
            let run = run(arguments).await?;
            run.print();
            Ok((run.noise(), run))
        })
        .await?;
        println!("{wal}, quoted: A/A {} (noise {noise:.2} %)", added(&run.over_plain(1)));
        for (chain, goal) in [(2, 3.0), (3, 6.0)] {
            let (_, what, _) = CHAINS[chain];
            let over = run.over_plain(chain);
            let percent = (over.median() - 1.0) * 100.0;
            let what = format!("{what}: broker CPU added, ±{:.2}", of_median(&over));
            verdict(&what, percent, " %", &format!("at most +{goal} %, A/A within {SPREAD_MAX} %"), percent <= goal);
        }
    }
    Ok(())
}

fn plugins_toml() -> Result<String> {
    let mut text = String::new();
    for (topic, _, plugin) in CHAINS {
        let Some(plugin) = plugin else { continue };
        let settings = if plugin == "keyfilter" { "{ prefix = \"user-\" }" } else { "{}" };
        let names: Vec<String> = (1..=PLUGINS_PER_CHAIN).map(|number| format!("{plugin}-{number}")).collect();
        for name in &names {
            writeln!(text, "[plugin.{name}]\nfrom = {:?}\nsettings = {settings}", component(plugin)?)?;
        }
        writeln!(text, "[[chain]]\ntopics = {topic:?}\nproduce = {names:?}")?;
    }
    Ok(text)
}

/// All samples of a run, by chain.
#[derive(Debug, Default)]
struct Run {
    /// Nanoseconds of broker CPU per record.
    cpu: [Vec<f64>; CHAINS.len()],
    /// MB of values per second.
    rate: [Vec<f64>; CHAINS.len()],
    /// Microseconds from batch to ack.
    acks: [Samples; CHAINS.len()],
}

async fn run(arguments: &[&str]) -> Result<Run> {
    let mut broker = Broker::start(&plugins_toml()?, arguments)?;
    let connection = broker.connect().await?;
    let producer = load::producer(&connection).await?;
    let bodies = CHAINS.iter().map(|(topic, ..)| load::body(topic)).collect::<Result<Vec<_>>>()?;
    for body in &bodies {
        load::closed(&producer, body, WARM_UP).await?;
    }
    is_inline(&connection).await?;
    let mut batches = WARM_UP;
    let rounds = rounds(ROUNDS, async |round| {
        let before = broker.process.cpu()?;
        let mut samples = <[Sample; CHAINS.len()]>::default();
        for at in 0..CHAINS.len() {
            let chain = (at + round) % CHAINS.len();
            let sampled = sample(&mut broker, &producer, &bodies[chain]).await;
            samples[chain] = sampled.context(CHAINS[chain].0)?;
        }
        batches += BATCHES;
        Ok((broker.process.cpu()? - before, samples))
    })
    .await?;
    none_skipped(&connection, batches).await?;
    let mut run = Run::default();
    for (chain, sample) in rounds.into_iter().flat_map(|samples| samples.into_iter().enumerate()) {
        run.cpu[chain].push(sample.cpu);
        run.rate[chain].push(sample.load.rate());
        run.acks[chain].extend(sample.load.acks);
    }
    for complaint in broker.complaints() {
        println!("  broker: {complaint}");
    }
    Ok(run)
}

/// Every plugin runs where it will run for good.
async fn is_inline(connection: &Connection) -> Result<()> {
    let plugins = plugins(connection).await?;
    let elsewhere: Vec<_> = plugins.iter().filter(|plugin| plugin.placement != "inline").collect();
    if !elsewhere.is_empty() {
        println!("  not inline after the warm-up: {elsewhere:?}");
    }
    Ok(())
}

/// Each plugin saw each batch of its topic.
async fn none_skipped(connection: &Connection, batches: u64) -> Result<()> {
    let plugins = plugins(connection).await?;
    ensure!(plugins.len() == 2 * PLUGINS_PER_CHAIN, "{plugins:?}");
    for plugin in &plugins {
        let (calls, records) = (plugin.calls, plugin.records);
        ensure!(calls == batches && records == batches * u64::from(RECORDS), "{}: {calls} calls", plugin.name);
        ensure!(plugin.faults == 0 && plugin.dropped == 0, "{plugin:?}");
    }
    let placed: Vec<_> = plugins.iter().map(|plugin| plugin.placement.as_str()).collect();
    println!("  each of {} plugins was called {batches} times: no batch skipped; they run {placed:?}", plugins.len());
    Ok(())
}

/// One chain under load for a while.
#[derive(Debug, Default)]
struct Sample {
    /// Nanoseconds of broker CPU per record.
    cpu: f64,
    load: Load,
}

async fn sample(broker: &mut Broker, producer: &Producer, body: &BatchBody) -> Result<Sample> {
    tokio::time::sleep(PAUSE).await;
    let before = broker.process.cpu()?;
    let load = load::closed(producer, body, BATCHES).await?;
    broker.process.settle().await?;
    let cpu = broker.process.cpu()? - before;
    Ok(Sample { cpu: cpu.as_secs_f64() * 1e9 / (BATCHES * u64::from(RECORDS)) as f64, load })
}

impl Run {
    /// CPU of a chain over that of no chain, the two measurements of that in the same round taken together. The second of
    /// them is taken over the first.
    fn over_plain(&self, chain: usize) -> Samples {
        match chain {
            0 | 1 => ratios(&self.cpu[chain], &self.cpu[0]),
            _ => {
                let plain: Vec<f64> =
                    self.cpu[0].iter().zip(&self.cpu[1]).map(|(a, b)| f64::midpoint(*a, *b)).collect();
                ratios(&self.cpu[chain], &plain)
            }
        }
    }

    fn noise(&self) -> f64 {
        noise(&self.over_plain(1))
    }

    fn print(&self) {
        println!(
            "  {:<20} {:>16} {:>8} {:>26} {:>8} {:>10} {:>10}",
            "chain", "CPU ns/record", "spread", "over no chain", "MB/s", "ack p50", "ack p99"
        );
        for (at, (_, what, _)) in CHAINS.iter().enumerate() {
            let cpu: Samples = self.cpu[at].iter().copied().collect();
            let rate: Samples = self.rate[at].iter().copied().collect();
            let acks = &self.acks[at];
            println!(
                "  {what:<20} {:>16.1} {:>7.2}% {:>26} {:>8.1} {:>7.0} µs {:>7.0} µs",
                cpu.median(),
                cpu.spread(),
                added(&self.over_plain(at)),
                rate.median(),
                acks.median(),
                acks.quantile(0.99)
            );
        }
    }
}
