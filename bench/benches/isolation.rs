//! What plugins that spin on every call do to other topics: `cargo xtask guests && cargo build --release -p tidegate && cargo bench -p tidegate-bench --bench
//! isolation`.
//!
//! A real broker (a child process, its WAL in memory: the 99th percentile of a disk's syncs is many budgets) under a steady
//! load at 30 % of its capacity, which is measured first: batches of 100 x 1 KB on four topics, each with a client of its own, two without a chain and two with a
//! no-op and a key filter. Beside it, in turn: nobody, one client whose topic's plugin never returns (policy `closed`, budget
//! 7 ms of CPU), nobody, two of them. Such a client sends its next batch as soon as the last one was refused. The latency
//! of an ack counts from the moment the batch was due, so a client that is held up counts too. Takes about a minute for each
//! run; noisy ones are repeated.
//!
//! Broker, clients and spinners share the cores of this machine: with two cores, two spinners want all of it.
#![allow(clippy::print_stdout, reason = "a benchmark reports to the person who runs it")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use tidegate_bench::{
    Samples,
    broker::{Broker, component, plugins},
    load::{self, RECORDS},
    micros,
    runs::{quiet, rounds, verdict},
    wall,
};
use tidegate_client::{BatchBody, Code, Connection, Error, Producer, ProducerConfig};
use tokio::{sync::mpsc, task::JoinSet, time::sleep};

const CYCLES: usize = 5;
const PHASE: Duration = Duration::from_secs(2);
/// Share of the capacity that the steady load takes.
const SHARE: f64 = 0.3;
/// The default budget of a call that may reach such a batch: 5 ms, and 20 ms for each MiB.
const BUDGET_MS: f64 = 7.0;
const TOPICS: [&str; 4] = ["plain/a", "chained/a", "plain/b", "chained/b"];
const KINDS: [&str; 2] = ["no chain", "noop + keyfilter"];
/// Spinning clients of each phase of a cycle.
const PHASES: [usize; 4] = [0, 1, 0, 2];
/// Batches of one topic that may wait for their ack: far more than are due in the longest wait that is fine.
const AHEAD_MAX: usize = 512;

fn main() -> Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(all())
}

async fn all() -> Result<()> {
    println!(
        "isolation: 100 x 1 KB per batch on {} topics, {CYCLES} cycles of {PHASE:?} each of {PHASES:?} spinners",
        TOPICS.len()
    );
    let (noise, run) = quiet(async |number| {
        println!("\nrun {number}");
        let run = run().await?;
        run.print();
        Ok((run.noise(), run))
    })
    .await?;
    println!("\nquoted: the run in which p99 without spinners differed by {noise:.2} % of two budgets");
    for (kind, what) in KINDS.iter().enumerate() {
        for (spinners, phase) in [(1, 1), (2, 3)] {
            let goal = 2.0 * BUDGET_MS * f64::from(spinners);
            let (added, low, high) = run.added(kind, phase);
            let what = format!("p99 added by {spinners}, {what} ({low:.1} to {high:.1})");
            verdict(&what, added, " ms", &format!("at most {goal} ms"), added <= goal);
        }
    }
    Ok(())
}

fn plugins_toml() -> Result<String> {
    let spin = component("hostile")?;
    Ok(format!(
        "[plugin.noop]\nfrom = {:?}\n[plugin.keys]\nfrom = {:?}\nsettings = {{ prefix = \"user-\" }}\n\
         [plugin.spin-1]\nfrom = {spin:?}\ngrants = {GRANTS}\nsettings = {{ {SPIN} }}\n\
         [plugin.spin-2]\nfrom = {spin:?}\ngrants = {GRANTS}\nsettings = {{ {SPIN} }}\n\
         [[chain]]\ntopics = \"chained/*\"\nproduce = [\"noop\", \"keys\"]\n\
         [[chain]]\ntopics = \"spin/1\"\nproduce = [\"spin-1\"]\n[[chain]]\ntopics = \"spin/2\"\nproduce = [\"spin-2\"]\n",
        component("noop")?,
        component("keyfilter")?
    ))
}

/// Spins on every batch of the benchmark, whose first key this is, and not in the smoke run: a plugin that does is not loaded.
const SPIN: &str = r#"do = "spin", needs = ["key"], only-key = "item-00000000000""#;
/// What the hostile guest imports for its other behaviours.
const GRANTS: &str = r#"["log", "clock", "random", "counters", "batch"]"#;

/// Milliseconds from due to acked, by phase and kind of topic.
type Cycle = [[Samples; KINDS.len()]; PHASES.len()];

#[derive(Debug, Default)]
struct Run {
    cycles: Vec<Cycle>,
}

async fn run() -> Result<Run> {
    let mut broker = Broker::start(&plugins_toml()?, &["--memory"])?;
    let mut others = Vec::new();
    for topic in TOPICS {
        let connection = broker.connect().await?;
        let config = ProducerConfig { in_flight_max: AHEAD_MAX, ..ProducerConfig::default() };
        let producer = Arc::new(connection.producer(config).await?);
        others.push(Other { producer, closed: load::producer(&connection).await?, body: load::body(topic)? });
    }
    let spinners = [Spinner::new(&broker, "spin/1").await?, Spinner::new(&broker, "spin/2").await?];
    let capacity = capacity(&others).await?;
    broker.process.settle().await?;
    let every = Duration::from_secs_f64(TOPICS.len() as f64 / (capacity * SHARE));
    println!(
        "  capacity {capacity:.0} batches/s; steady load {:.0} batches/s, one on each topic every {:.2} ms",
        capacity * SHARE,
        every.as_secs_f64() * 1e3
    );
    let cycles = rounds(CYCLES, async |_| {
        let before = broker.process.cpu()?;
        let mut cycle = Cycle::default();
        for (acks, count) in cycle.iter_mut().zip(PHASES) {
            let spinning = spinners.iter().take(count).map(Spinner::start).collect::<Vec<_>>();
            *acks = steady(&others, every).await?;
            for spinning in spinning {
                spinning.stop().await?;
            }
            broker.process.settle().await?;
        }
        Ok((broker.process.cpu()? - before, cycle))
    })
    .await?;
    told(&spinners[0].connection).await?;
    Ok(Run { cycles })
}

/// Says what the plugins did.
async fn told(connection: &Connection) -> Result<()> {
    for plugin in plugins(connection).await? {
        let (calls, faults) = (plugin.calls, plugin.faults);
        ensure!(calls > 0, "{} was never called", plugin.name);
        ensure!(plugin.name.starts_with("spin") == (faults > 0), "{plugin:?}");
        let cpu_ms = plugin.cpu_ns as f64 / 1e6 / calls as f64;
        println!(
            "  {:<8} {calls:>7} calls, {faults:>5} stopped, {cpu_ms:>7.3} ms of CPU each, {}",
            plugin.name, plugin.placement
        );
    }
    Ok(())
}

/// A client of a topic that has nothing to do with spinners.
struct Other {
    producer: Arc<Producer>,
    closed: Producer,
    body: BatchBody,
}

/// Batches per second that the topics take together.
async fn capacity(others: &[Other]) -> Result<f64> {
    let all = async |batches| {
        try_join_all(others.iter().map(|other| load::closed(&other.closed, &other.body, batches))).await
    };
    all(200).await?;
    let start = wall();
    let loads = all(600).await?;
    Ok(loads.iter().map(load::Load::batches).sum::<u64>() as f64 / (wall() - start).as_secs_f64())
}

/// A batch on each topic every so often, for the time of a phase; gives the acks by kind of topic.
async fn steady(others: &[Other], every: Duration) -> Result<[Samples; KINDS.len()]> {
    let mut tasks = JoinSet::new();
    for (at, other) in (0..).zip(others) {
        let first = every / u32::try_from(others.len())? * at;
        let (producer, body) = (Arc::clone(&other.producer), other.body.clone());
        tasks.spawn(async move { anyhow::Ok((at as usize % KINDS.len(), due(&producer, &body, first, every).await?)) });
    }
    let mut acks = <[Samples; KINDS.len()]>::default();
    while let Some(done) = tasks.join_next().await {
        let (kind, taken) = done??;
        acks[kind].extend(taken);
    }
    Ok(acks)
}

/// Sends when a batch is due, whatever became of those before; gives milliseconds from then to the ack.
async fn due(producer: &Producer, body: &BatchBody, first: Duration, every: Duration) -> Result<Vec<f64>> {
    let (ahead, mut answers) = mpsc::channel(AHEAD_MAX);
    let start = wall();
    let send = async move {
        let mut at = first;
        while at < PHASE {
            let due = start + at;
            sleep(due.saturating_sub(wall())).await;
            let delivery = producer.submit(body.clone(), Vec::new()).await?;
            ahead.send((due, delivery)).await.ok().context("too far ahead")?;
            at += every;
        }
        anyhow::Ok(())
    };
    let collect = async {
        let mut acks = Vec::new();
        while let Some((due, delivery)) = answers.recv().await {
            ensure!(delivery.await?.len() == RECORDS, "a batch was not appended");
            acks.push(micros(wall() - due) / 1e3);
        }
        Ok(acks)
    };
    let ((), acks) = tokio::try_join!(send, collect)?;
    Ok(acks)
}

/// A client whose topic's plugin never returns.
struct Spinner {
    connection: Connection,
    producer: Arc<Producer>,
    body: BatchBody,
}

/// It is at it.
struct Spinning {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Spinner {
    async fn new(broker: &Broker, topic: &str) -> Result<Self> {
        let connection = broker.connect().await?;
        // Shorter than the broker's "come back later": a refusal comes out at once, and the next batch goes.
        let config = ProducerConfig { retry_for: Duration::from_millis(400), ..ProducerConfig::default() };
        let producer = Arc::new(connection.producer(config).await?);
        Ok(Self { connection, producer, body: load::body(topic)? })
    }

    fn start(&self) -> Spinning {
        let stop = Arc::new(AtomicBool::new(false));
        let (producer, body, stopped) = (Arc::clone(&self.producer), self.body.clone(), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                match producer.send_batch(body.clone(), Vec::new()).await {
                    Err(error) if is_deadline(&error) => {}
                    other => bail!("a batch of a spinning plugin came to another end: {other:?}"),
                }
            }
            Ok(())
        });
        Spinning { stop, task }
    }
}

fn is_deadline(error: &Error) -> bool {
    error.code() == Some(Code::PluginDeadline)
}

impl Spinning {
    async fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await?
    }
}

impl Run {
    fn p99(&self, kind: usize, phase: usize) -> f64 {
        self.all(kind, phase).quantile(0.99)
    }

    fn all(&self, kind: usize, phase: usize) -> Samples {
        let mut all = Samples::default();
        self.cycles.iter().for_each(|cycle| all.extend(cycle[phase][kind].iter()));
        all
    }

    /// What a phase adds to p99 over the quiet phase before it, and the least and most of a cycle.
    fn added(&self, kind: usize, phase: usize) -> (f64, f64, f64) {
        let p99 = |cycle: &Cycle, phase: usize| cycle[phase][kind].quantile(0.99);
        let each: Samples = self.cycles.iter().map(|cycle| p99(cycle, phase) - p99(cycle, phase - 1)).collect();
        (self.p99(kind, phase) - self.p99(kind, phase - 1), each.quantile(0.0), each.quantile(1.0))
    }

    /// Difference of p99 between the two quiet phases, in per cent of what one spinner may add.
    fn noise(&self) -> f64 {
        let differences = (0..KINDS.len()).map(|kind| (self.p99(kind, 0) - self.p99(kind, 2)).abs());
        differences.fold(0.0, f64::max) / (2.0 * BUDGET_MS) * 100.0
    }

    fn print(&self) {
        println!(
            "  {:<18} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9}",
            "topics", "spinners", "batches", "p50", "p99", "p99.9", "max"
        );
        for (kind, what) in KINDS.iter().enumerate() {
            for (phase, spinners) in PHASES.iter().enumerate() {
                let all = self.all(kind, phase);
                let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(|share| all.quantile(share));
                println!(
                    "  {what:<18} {spinners:>9} {:>8} {p50:>6.2} ms {p99:>6.2} ms {p999:>6.2} ms {max:>6.2} ms",
                    all.iter().count()
                );
            }
        }
    }
}
