//! Durable produce against what disk and transport give bare, and follow against produce: `cargo build --release -p tidegate
//! && cargo bench -p tidegate-bench --bench durable`.
//!
//! A real broker (a child process, default settings, no plugins, its WAL on the disk of this repository); one connection, one
//! producer, batches of 100 x 1 KB, 16 in flight. Each round measures, one after the other, in MB of values per second:
//!
//! * produce, and produce again at the end of the round (A/A: the noise);
//! * (a) a bare loop that writes the bytes of the broker's WAL in the groups the broker made of them, with one `pwrite` and one
//!   `fdatasync` each, to a file of zeros made before;
//! * (b) a bare QUIC sink in a child process that throws the same batches away, same TLS, windows and batches in flight;
//! * follow: the live tail while it is produced; the same records after that, out of memory; the oldest ones, out of files.
//!
//! Before each measurement the broker is idle. Takes about a minute for each run; noisy ones are repeated.
#![allow(clippy::print_stdout, reason = "a benchmark reports to the person who runs it")]

use std::process::ExitCode;

use anyhow::Result;
use tidegate_bench::{
    Samples, broker,
    broker::Broker,
    follow,
    load::{self, rate},
    runs::{added, noise, of_median, quiet, ratios, rounds, verdict},
    sink::{self, Sink},
    wal::{Bare, groups_since},
};
use tidegate_client::{BatchBody, Connection, Producer, Start};

const ROUNDS: usize = 15;
/// Of a measurement: 40 MB, so that the tail in memory (64 MiB) holds them all.
const BATCHES: u64 = 400;
/// More than the tail holds: the oldest records are read out of files from the first round on.
const WARM_UP: u64 = 1_000;
const TOPIC: &str = "durable/x";
/// Length of the bare loop's file: that of a WAL file and more.
const BARE_MIB: u64 = 128;

fn main() -> ExitCode {
    if let Some(code) = sink::child() {
        return code;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(all())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

async fn all() -> Result<()> {
    println!("durable produce and follow: 100 x 1 KB per batch, 16 in flight, {BATCHES} batches, {ROUNDS} rounds");
    let (noise, run) = quiet(async |number| {
        println!("\nrun {number}");
        let run = run().await?;
        run.print();
        Ok((run.noise(), run))
    })
    .await?;
    println!("\nquoted: the run with an A/A spread of {noise:.2} %");
    let smaller: Vec<f64> = run.bare.iter().zip(&run.sink).map(|(bare, sink)| bare.min(*sink)).collect();
    let over = |what: &str, these: &[f64], those: &[f64], goal: f64| {
        let ratio = ratios(these, those);
        let what = format!("{what}, ±{:.1} %", of_median(&ratio));
        verdict(&what, ratio.median(), "", &format!("at least {goal}"), ratio.median() >= goal);
    };
    over("produce over the smaller of (a) and (b)", &run.produce, &smaller, 0.4);
    over("follow from memory over produce", &run.memory, &run.produce, 1.0);
    over("follow from earliest, files, over produce", &run.earliest, &run.produce, 1.0);
    over("live tail over the produce it follows", &run.live, &run.live_produce, 0.99);
    Ok(())
}

/// MB of values per second of each round.
#[derive(Debug, Default)]
struct Run {
    produce: Vec<f64>,
    again: Vec<f64>,
    bare: Vec<f64>,
    sink: Vec<f64>,
    live_produce: Vec<f64>,
    live: Vec<f64>,
    memory: Vec<f64>,
    earliest: Vec<f64>,
    /// Microseconds from batch to ack.
    acks: Samples,
    sink_acks: Samples,
    /// Frames and KB of a group, and microseconds of a bare write and sync of one.
    group_frames: Samples,
    group_kb: Samples,
    group_sync: Samples,
}

/// What a round works with.
struct Stage {
    broker: Broker,
    sink: Sink,
    bare: Bare,
    producer: Producer,
    /// The reader has a connection of its own, as another client would.
    reader: Connection,
    body: BatchBody,
    last_lsn: u64,
}

async fn run() -> Result<Run> {
    let broker = Broker::start("", &[])?;
    let connection = broker.connect().await?;
    let directory = broker::directory()?;
    let mut stage = Stage {
        sink: Sink::start(&broker).await?,
        bare: Bare::new(directory.path(), BARE_MIB)?,
        producer: load::producer(&connection).await?,
        reader: broker.connect().await?,
        body: load::body(TOPIC)?,
        last_lsn: 0,
        broker,
    };
    load::closed(&stage.producer, &stage.body, WARM_UP).await?;
    stage.sink.swallow(stage.body.bytes(), WARM_UP).await?;
    stage.broker.process.settle().await?;
    stage.last_lsn = groups_since(&stage.broker.data(), 0)?.last_lsn;
    let rounds = rounds(ROUNDS, async |_| {
        let before = stage.broker.process.cpu()? + stage.sink.process.cpu()?;
        let mut round = Run::default();
        round.measure(&mut stage).await?;
        Ok((stage.broker.process.cpu()? + stage.sink.process.cpu()? - before, round))
    })
    .await?;
    let mut run = Run::default();
    rounds.into_iter().for_each(|round| run.join(round));
    for complaint in stage.broker.complaints() {
        println!("  broker: {complaint}");
    }
    Ok(run)
}

impl Run {
    async fn measure(&mut self, stage: &mut Stage) -> Result<()> {
        let (tail, cursor) = follow::at_the_end(&stage.reader, TOPIC).await?;
        tail.close();
        stage.broker.process.settle().await?;
        let load = load::closed(&stage.producer, &stage.body, BATCHES).await?;
        self.produce.push(load.rate());
        self.acks.extend(load.acks);

        stage.broker.process.settle().await?;
        let mut same = follow::from(&stage.reader, TOPIC, Start::Cursor(cursor))?;
        self.memory.push(rate(BATCHES, follow::take(&mut same, BATCHES).await?));
        same.close();

        let groups = groups_since(&stage.broker.data(), stage.last_lsn)?;
        let took = tokio::task::block_in_place(|| stage.bare.write(&groups))?;
        stage.last_lsn = groups.last_lsn;
        self.bare.push(rate(BATCHES, took));
        let count = groups.groups.len() as f64;
        self.group_frames.push(groups.frames as f64 / count);
        self.group_kb.push(groups.bytes() as f64 / 1e3 / count);
        self.group_sync.push(tidegate_bench::micros(took) / count);

        let load = stage.sink.swallow(stage.body.bytes(), BATCHES).await?;
        self.sink.push(load.rate());
        self.sink_acks.extend(load.acks);

        let mut earliest = follow::from(&stage.reader, TOPIC, Start::Earliest)?;
        self.earliest.push(rate(BATCHES, follow::take(&mut earliest, BATCHES).await?));
        earliest.close();

        self.live(stage).await?;

        stage.broker.process.settle().await?;
        let load = load::closed(&stage.producer, &stage.body, BATCHES).await?;
        self.again.push(load.rate());
        self.acks.extend(load.acks);
        stage.broker.process.settle().await?;
        stage.last_lsn = groups_since(&stage.broker.data(), stage.last_lsn)?.last_lsn;
        Ok(())
    }

    /// A follower that is caught up, while records are produced.
    async fn live(&mut self, stage: &mut Stage) -> Result<()> {
        let (mut tail, _) = follow::at_the_end(&stage.reader, TOPIC).await?;
        stage.broker.process.settle().await?;
        let following = tokio::spawn(async move { follow::take(&mut tail, BATCHES).await });
        let load = load::closed(&stage.producer, &stage.body, BATCHES).await?;
        self.live_produce.push(load.rate());
        self.live.push(rate(BATCHES, following.await??));
        Ok(())
    }

    fn join(&mut self, other: Self) {
        self.produce.extend(other.produce);
        self.again.extend(other.again);
        self.bare.extend(other.bare);
        self.sink.extend(other.sink);
        self.live_produce.extend(other.live_produce);
        self.live.extend(other.live);
        self.memory.extend(other.memory);
        self.earliest.extend(other.earliest);
        self.acks.extend(other.acks.iter());
        self.sink_acks.extend(other.sink_acks.iter());
        self.group_frames.extend(other.group_frames.iter());
        self.group_kb.extend(other.group_kb.iter());
        self.group_sync.extend(other.group_sync.iter());
    }

    fn noise(&self) -> f64 {
        noise(&ratios(&self.again, &self.produce))
    }

    fn print(&self) {
        let line = |what: &str, samples: &[f64]| {
            let over = ratios(samples, &self.produce);
            let samples: Samples = samples.iter().copied().collect();
            let (median, spread) = (samples.median(), samples.spread());
            println!("  {what:<44} {median:>8.1} MB/s ±{spread:>4.1} % {:>8.2} x", over.median());
        };
        line("produce (A)", &self.produce);
        line("produce (A again)", &self.again);
        line("(a) bare pwrite + fdatasync, same groups", &self.bare);
        line("(b) bare QUIC sink", &self.sink);
        line("follow, the same records from memory", &self.memory);
        line("follow from earliest, out of files", &self.earliest);
        line("produce while it is followed", &self.live_produce);
        line("the follower of that, live tail", &self.live);
        println!("  A/A: {}", added(&ratios(&self.again, &self.produce)));
        println!(
            "  acks: produce p50 {:.0} µs, p99 {:.0} µs; sink p50 {:.0} µs, p99 {:.0} µs",
            self.acks.median(),
            self.acks.quantile(0.99),
            self.sink_acks.median(),
            self.sink_acks.quantile(0.99)
        );
        println!(
            "  a group: {:.2} batches, {:.0} KB; the bare loop takes {:.0} µs for one",
            self.group_frames.median(),
            self.group_kb.median(),
            self.group_sync.median()
        );
    }
}
