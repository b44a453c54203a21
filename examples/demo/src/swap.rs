//! Step 3: replaces a plugin while a producer runs at full speed and a follower reads.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use tidegate_client::{Activated, Connection, PluginInfo};
use tokio::time::{Instant, sleep};

use crate::{
    follow::Follower,
    ledger,
    load::{Acks, Load},
    report::{Report, human},
};

/// What to swap.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    /// Name in `plugins.toml`.
    pub(crate) plugin: String,
    /// The new component.
    pub(crate) file: PathBuf,
    /// The header in which the versions differ.
    pub(crate) header: String,
}

/// Connections, one for each part that is watched.
#[derive(Debug)]
pub(crate) struct Clients {
    /// For the producer.
    pub(crate) producer: Connection,
    /// For the follower.
    pub(crate) follower: Connection,
    /// For the swap.
    pub(crate) admin: Connection,
}

/// What the swap showed.
#[derive(Debug)]
pub(crate) struct Swapped {
    /// What the producer saw.
    pub(crate) acks: Acks,
    /// Digest that runs now.
    pub(crate) digest: String,
    /// The stamp of the new version.
    pub(crate) stamp: Arc<str>,
    /// Behind everything that was produced.
    pub(crate) cursor: String,
    /// The first id that was not used.
    pub(crate) next_id: u64,
    /// What each plugin cost up to now.
    pub(crate) plugins: Vec<PluginInfo>,
}

/// The load runs at least so long before and after the swap.
const RUN: Duration = Duration::from_millis(1_500);
/// Rounds over all values before and after the swap: each topic gets records of both versions.
const ROUNDS: u64 = 2;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// Nothing takes longer, or something hangs.
const RUN_MAX: Duration = Duration::from_secs(120);

/// Runs load and follower, swaps in the middle, and compares what both saw.
pub(crate) async fn run(
    version: &Version,
    values: &[Bytes],
    cursor: &str,
    clients: &Clients,
    report: &mut Report,
) -> Result<Swapped> {
    report.section(&format!("3. Swap the plugin {} while a producer runs at full speed", version.plugin));
    let component = std::fs::read(&version.file).with_context(|| format!("cannot read {}", version.file.display()))?;
    let first = next_offsets(&clients.admin).await?;
    let follower = Follower::start(&clients.follower, cursor, &version.header)?;
    let load = Load::start(&clients.producer, values.to_vec(), 0).await?;
    let enough = ROUNDS * values.len() as u64;
    let acked_for = |load: &Load| load.acked();
    wait(&load, enough, acked_for, report).await?;

    let swapping = Instant::now();
    let activated = clients.admin.admin().swap(&version.plugin, component.into(), 0).await.context("swap")?;
    let swap_took = swapping.elapsed();
    ensure!(!activated.unchanged, "{} runs already: there is nothing to swap", version.file.display());
    // Records sent from here on, each topic's in full, are new ones.
    let new = load.sent() + enough;
    wait(&load, new, Load::sent, report).await?;
    let acks = load.stop().await?;
    let seen = follower.finish(acks.acked.len()).await?;
    report.progress_done();
    report.fact(format_args!(
        "{} records while {} became {} in {}: generation {}",
        acks.acked.len(),
        short(&activated.previous_digest),
        short(&activated.digest),
        human(swap_took),
        activated.generation
    ));

    undisturbed(clients)?;
    report.held(format_args!("no client was disconnected ({} connected)", activated.clients));
    ledger::agree(&acks.acked, &seen.read)?;
    report.held("no record was lost or doubled: each acked one was read once, at its place");
    ledger::dense(&seen.read, &first)?;
    report.held("offsets stayed dense, per topic in the order they were read");
    let activation = activation_of(&activated);
    let steps = ledger::one_step(&seen.read, &activation, activated.generation)?;
    report.held(format_args!(
        "one step per topic, at the durable activation offset: {} records old, {} new, {} topics with both",
        steps.old, steps.new, steps.both
    ));
    report.fact(format_args!("longest time between two acks: {}", human(acks.gap_max)));
    let stamp = seen.read.iter().rev().map(|read| Arc::clone(&read.stamp)).next().context("nothing was read")?;
    let next_id = acks.acked.len() as u64;
    let plugins = clients.admin.admin().plugins().await.context("plugins")?.plugins;
    Ok(Swapped { acks, digest: activated.digest, stamp, cursor: seen.cursor, next_id, plugins })
}

async fn wait(load: &Load, count: u64, of: impl Fn(&Load) -> u64, report: &mut Report) -> Result<()> {
    let start = Instant::now();
    while of(load) < count || start.elapsed() < RUN {
        ensure!(start.elapsed() < RUN_MAX, "only {} records were acked in {RUN_MAX:?}", load.acked());
        if load.is_over() {
            // It does not end by itself but for an error, which its end tells.
            return Ok(());
        }
        report.progress(format_args!("{} acked", load.acked()));
        sleep(LOOK).await;
    }
    Ok(())
}

/// The next offset of each topic.
async fn next_offsets(connection: &Connection) -> Result<BTreeMap<Arc<str>, u64>> {
    let topics = connection.admin().topics("").await.context("topics")?;
    Ok(topics.topics.into_iter().map(|topic| (topic.name.into(), topic.next_offset)).collect())
}

fn activation_of(activated: &Activated) -> BTreeMap<Arc<str>, u64> {
    activated.topics.iter().map(|topic| (topic.name.as_str().into(), topic.next_offset)).collect()
}

fn undisturbed(clients: &Clients) -> Result<()> {
    for (name, connection) in
        [("producer", &clients.producer), ("follower", &clients.follower), ("admin", &clients.admin)]
    {
        let stats = connection.stats();
        ensure!(stats.disconnects == 0 && stats.reconnects == 0, "the {name} was disconnected: {stats:?}");
        ensure!(stats.subscriptions_resumed == 0, "the {name}'s subscription was interrupted: {stats:?}");
    }
    Ok(())
}

/// Enough of a digest to tell versions apart.
pub(crate) fn short(digest: &str) -> &str {
    digest.get(..19).unwrap_or(digest)
}

/// The file as the settings name it, looked up from the working directory.
pub(crate) fn must_exist(path: &Path) -> Result<()> {
    ensure!(path.exists(), "{} is not there: `cargo xtask guests` builds it", path.display());
    Ok(())
}
