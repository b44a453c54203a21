//! The log alone, in this process: durable appends against a bare loop with checksums, their CPU, and what conditions cost.
//!
//! `cargo bench -p tidegate-bench --bench log [-- quick]`. A shard on the disk of this repository, default settings; one
//! topic with a million keys; 8 batches in flight, keys uniform over the million, distinct within a batch. Each round
//! measures, one after the other: appends; the bytes of their WAL groups written by a loop that computes a CRC-32C over each
//! group, with one `pwrite` and one `fdatasync` each; appends with a condition for every record; appends again (A/A).
//! CPU is that of the whole process, waited for until the segments of what was written are made. `quick` does little of it.
#![allow(clippy::print_stdout, reason = "a benchmark reports to the person who runs it")]

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use tidegate::{
    clock::SystemClock,
    record::{Batch, Content, Outcome},
    shard::{Append, Condition, Config, Expect, Shard, Ticket},
    storage::{self, RealDisk},
};
use tidegate_bench::{
    Samples, broker, process_cpu,
    runs::{added, noise, of_median, quiet, ratios, rounds, verdict},
    wal::{Bare, groups_since},
    wall,
};
use tidegate_protocol::{
    batch::{BatchBody, BatchBuilder},
    limits::Limits,
    record::RecordView,
    topic::TopicName,
};

/// As the broker.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TOPIC: &str = "log/x";
const KEYS: u64 = 1_000_000;
const IN_FLIGHT: usize = 8;
const BARE_MIB: u64 = 256;
/// The process has come to rest when it takes less than this of such a span.
const REST: Duration = Duration::from_millis(40);
const QUIET: Duration = Duration::from_millis(2);

/// Records of a batch, bytes of a value, batches of a sample, most milliseconds of CPU per MB of values.
const SHAPES: [(u32, usize, usize, f64); 2] = [(1_000, 100, 400, 12.0), (100, 1_000, 500, 6.0)];

fn main() -> Result<()> {
    let is_quick = std::env::args().any(|argument| argument == "quick");
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?.block_on(all(is_quick))
}

async fn all(is_quick: bool) -> Result<()> {
    for (records, value_bytes, batches, cpu_max) in SHAPES {
        let (batches, count) = if is_quick { (batches / 10, 2) } else { (batches, 10) };
        println!(
            "{value_bytes} B x {records} per batch, {IN_FLIGHT} in flight, {batches} batches, {count} rounds, {KEYS} keys"
        );
        let (noise, run) = quiet(async |number| {
            println!("\nrun {number}");
            let run = run(Shape { records, value_bytes, batches }, count).await?;
            run.print();
            Ok((run.noise(), run))
        })
        .await?;
        println!("\nquoted: the run with an A/A spread of {noise:.2} %");
        let over = |what: &str, these: &[f64], those: &[f64], goal: f64| {
            let ratio = ratios(these, those);
            let what = format!("{what}, ±{:.1} %", of_median(&ratio));
            verdict(&what, ratio.median(), "", &format!("at least {goal}"), ratio.median() >= goal);
        };
        over("appends over the bare loop with checksums", &run.plain, &run.bare, 0.4);
        over("appends with conditions over those without", &run.conditional, &run.plain, 0.7);
        let cpu = run.cpu.as_secs_f64() * 1e3 / run.mb;
        verdict("CPU, segments included, ms per MB of values", cpu, "", &format!("at most {cpu_max}"), cpu <= cpu_max);
        println!();
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    records: u32,
    value_bytes: usize,
    batches: usize,
}

impl Shape {
    fn mb(self) -> f64 {
        self.batches as f64 * f64::from(self.records) * self.value_bytes as f64 / 1e6
    }
}

/// MB of values per second of each round, and CPU of the appends without conditions.
#[derive(Debug, Default)]
struct Run {
    plain: Vec<f64>,
    again: Vec<f64>,
    bare: Vec<f64>,
    conditional: Vec<f64>,
    cpu: Duration,
    mb: f64,
    group_kb: Samples,
}

/// The shard, and what its only client knows.
struct Stage {
    shard: Shard,
    tenant: u32,
    topic: TopicName,
    bare: Bare,
    data: tempfile::TempDir,
    last_lsn: u64,
    /// By number of the key.
    versions: Vec<u32>,
    random: u64,
}

/// A batch that is ready to go.
struct Ready {
    body: Bytes,
    conditions: Vec<Condition>,
}

async fn run(shape: Shape, count: usize) -> Result<Run> {
    let data = broker::directory()?;
    let spare = broker::directory()?;
    let clock = Arc::new(SystemClock::default());
    let shard = Shard::open(Config::default(), storage::Config::new(data.path()), Arc::new(RealDisk), clock)?;
    let tenant = shard.tenant("default")?;
    let mut stage = Stage {
        shard,
        tenant,
        topic: TopicName::parse(TOPIC)?,
        bare: Bare::new(spare.path(), BARE_MIB)?,
        data,
        last_lsn: 0,
        versions: vec![0; usize::try_from(KEYS)?],
        random: 0x9e37_79b9_7f4a_7c15,
    };
    for first in (0..KEYS).step_by(1_000) {
        let body = body((first..first + 1_000).map(|key| (key, &b"first"[..])))?;
        stage.versions[usize::try_from(first)?..usize::try_from(first + 1_000)?].fill(1);
        stage.append(vec![Ready { body, conditions: Vec::new() }]).await?;
    }
    settle().await;
    let rounds = rounds(count, async |_| {
        let mut round = Run::default();
        round.measure(&mut stage, shape).await?;
        Ok((Duration::ZERO, round))
    })
    .await?;
    stage.shard.close().await;
    let mut run = Run::default();
    rounds.into_iter().for_each(|round| run.join(round));
    Ok(run)
}

impl Run {
    async fn measure(&mut self, stage: &mut Stage, shape: Shape) -> Result<()> {
        let ready = stage.ready(shape, false)?;
        let (took, cpu) = stage.sample(ready).await?;
        self.plain.push(shape.mb() / took.as_secs_f64());
        self.cpu += cpu;
        self.mb += shape.mb();

        let groups = groups_since(stage.data.path(), stage.last_lsn)?;
        let took = tokio::task::block_in_place(|| stage.bare.write_checked(&groups))?;
        self.bare.push(shape.mb() / took.as_secs_f64());
        self.group_kb.push(groups.bytes() as f64 / 1e3 / groups.groups.len() as f64);

        let ready = stage.ready(shape, true)?;
        let (took, _) = stage.sample(ready).await?;
        self.conditional.push(shape.mb() / took.as_secs_f64());

        let ready = stage.ready(shape, false)?;
        let (took, cpu) = stage.sample(ready).await?;
        self.again.push(shape.mb() / took.as_secs_f64());
        self.cpu += cpu;
        self.mb += shape.mb();
        stage.last_lsn = groups_since(stage.data.path(), groups.last_lsn)?.last_lsn;
        Ok(())
    }

    fn join(&mut self, other: Self) {
        self.plain.extend(other.plain);
        self.again.extend(other.again);
        self.bare.extend(other.bare);
        self.conditional.extend(other.conditional);
        self.cpu += other.cpu;
        self.mb += other.mb;
        self.group_kb.extend(other.group_kb.iter());
    }

    fn noise(&self) -> f64 {
        noise(&ratios(&self.again, &self.plain))
    }

    fn print(&self) {
        for (what, rates) in [
            ("appends", &self.plain),
            ("appends again", &self.again),
            ("bare loop with checksums", &self.bare),
            ("appends, a condition each", &self.conditional),
        ] {
            let rates: Samples = rates.iter().copied().collect();
            println!("  {what:<28} {:>8.1} MB/s ±{:.1} %", rates.median(), rates.spread());
        }
        println!(
            "  groups of {:.0} KB; again over first {}",
            self.group_kb.median(),
            added(&ratios(&self.again, &self.plain))
        );
    }
}

impl Stage {
    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// The batches of a sample, and the versions their keys will stand at.
    fn ready(&mut self, shape: Shape, conditional: bool) -> Result<Vec<Ready>> {
        let mut value = vec![0; shape.value_bytes];
        for word in value.chunks_mut(8) {
            let bytes = self.random().to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
        let mut ready = Vec::with_capacity(shape.batches);
        for _ in 0..shape.batches {
            let (mut keys, mut conditions) = (HashSet::new(), Vec::new());
            while keys.len() < shape.records as usize {
                keys.insert(self.random() % KEYS);
            }
            for &key in &keys {
                let version = &mut self.versions[usize::try_from(key)?];
                if conditional {
                    let expect = Expect::Version(u64::from(*version));
                    conditions.push(Condition { topic: self.topic.clone(), key: name(key).into(), expect });
                }
                *version += 1;
            }
            ready.push(Ready { body: body(keys.iter().map(|key| (*key, &value[..])))?, conditions });
        }
        Ok(ready)
    }

    /// Wall time to the last ack, and CPU until everything is done.
    async fn sample(&mut self, ready: Vec<Ready>) -> Result<(Duration, Duration)> {
        let (start, before) = (wall(), process_cpu());
        self.append(ready).await?;
        let took = wall() - start;
        settle().await;
        Ok((took, process_cpu() - before))
    }

    async fn append(&self, ready: Vec<Ready>) -> Result<()> {
        let mut tickets: VecDeque<Ticket> = VecDeque::with_capacity(IN_FLIGHT);
        for Ready { body, conditions } in ready {
            if tickets.len() == IN_FLIGHT
                && let Some(oldest) = tickets.pop_front()
            {
                oldest.durable().await?;
            }
            let body = BatchBody::parse(body, &Limits::default())?;
            let append = Append {
                batch: Batch { tenant: self.tenant, principal: "bench".into(), body },
                outcome: Outcome { generation: 0, content: Content::Verbatim, refused: Vec::new(), moved: Vec::new() },
                producer: None,
                conditions,
                create_topics: true,
            };
            tickets.push_back(self.shard.append(append).map_err(|refusal| anyhow!("{refusal:?}"))?);
        }
        for ticket in tickets {
            ticket.durable().await?;
        }
        Ok(())
    }
}

fn name(key: u64) -> String {
    format!("key-{key:012}")
}

fn body<'a>(records: impl Iterator<Item = (u64, &'a [u8])>) -> Result<Bytes> {
    let mut builder = BatchBuilder::new();
    for (key, value) in records {
        let key = name(key);
        builder
            .push(TOPIC, RecordView { key: Some(key.as_bytes()), value: Some(value), headers: &[], timestamp_ms: 0 });
    }
    Some(builder.finish()).filter(|body| !body.is_empty()).context("an empty batch")
}

/// Waits until this process does nothing: WAL files are in segments, new ones are made.
async fn settle() {
    loop {
        let before = process_cpu();
        tokio::time::sleep(REST).await;
        if process_cpu() - before < QUIET {
            return;
        }
    }
}
