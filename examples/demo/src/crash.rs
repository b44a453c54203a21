//! Step 4: kills the broker in the middle of producing, starts it again, and counts.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use tokio::time::{Instant, sleep};

use crate::{
    broker::{Broker, Program},
    connect, follow,
    ledger::{self, Acked},
    load::Load,
    report::{Report, human},
    swap::{Swapped, Version, short},
};

/// Acks before the kill and after the restart, in rounds over all values.
const ROUNDS: u64 = 2;
/// Between two looks: the kill hits wherever the broker is.
const LOOK: Duration = Duration::from_millis(3);
/// Nothing takes longer, or something hangs.
const RUN_MAX: Duration = Duration::from_secs(120);

/// Kills and restarts the broker under load; the broker that runs afterwards.
pub(crate) async fn run(
    program: &Program,
    broker: Broker,
    values: &[Bytes],
    swapped: &Swapped,
    version: &Version,
    report: &mut Report,
) -> Result<Broker> {
    report.section("4. Kill the broker (SIGKILL) in the middle of producing, and start it again");
    let addr = broker.addr.clone();
    let connection = connect::connect_watchful(&addr, &program.data_dir, "demo-producer-2").await?;
    let load = Load::start(&connection, values.to_vec(), swapped.next_id).await?;
    let enough = ROUNDS * values.len() as u64;
    wait(&load, enough, report).await?;
    broker.kill()?;
    // Answers that are still in the socket were given before the kill.
    let (acked, sent) = (load.acked(), load.sent());
    let start = Instant::now();
    let broker = program.start(&addr).await.context("restart")?;
    let restart_took = start.elapsed();
    wait(&load, acked + enough, report).await?;
    let acks = load.stop().await?;
    let stats = connection.stats();
    report.progress_done();
    report.fact(format_args!(
        "killed after {acked} acks with {} records in flight; ready again after {}",
        sent - acked,
        human(restart_took)
    ));
    ensure!(stats.disconnects > 0, "the producer did not notice the kill: it did not hit");
    report.fact(format_args!(
        "the producer connected again by itself and sent {} batches again; {} acks in all",
        stats.batches_resent,
        acks.acked.len()
    ));
    compare(&addr, &program.data_dir, &acks.acked, swapped, version, report).await?;
    Ok(broker)
}

async fn compare(
    addr: &str,
    data_dir: &Path,
    acked: &[Acked],
    swapped: &Swapped,
    version: &Version,
    report: &mut Report,
) -> Result<()> {
    let connection = connect::connect(addr, data_dir, "demo-reader").await?;
    let seen = follow::read_to_end(&connection, &swapped.cursor, &version.header).await?;
    ledger::agree(acked, &seen.read)?;
    report.held(format_args!("all {} acked records are there, each exactly once", acked.len()));
    if let Some(read) = seen.read.iter().find(|read| read.stamp != swapped.stamp) {
        anyhow::bail!("{}@{} carries {}, not {}", read.topic, read.offset, read.stamp, swapped.stamp);
    }
    let admin = connect::connect_as_admin(addr, data_dir).await?;
    let plugins = admin.admin().plugins().await.context("plugins")?;
    let plugin = plugins.plugins.iter().find(|plugin| plugin.name == version.plugin);
    let digest = plugin.map(|plugin| plugin.digest.as_str()).unwrap_or_default();
    ensure!(digest == swapped.digest, "{} runs as {digest}, not as {}", version.plugin, swapped.digest);
    report.held(format_args!("the swapped version {} still runs, in every record before and after", short(digest)));
    connection.close().await;
    admin.close().await;
    Ok(())
}

async fn wait(load: &Load, acks: u64, report: &mut Report) -> Result<()> {
    let start = Instant::now();
    while load.acked() < acks && !load.is_over() {
        ensure!(start.elapsed() < RUN_MAX, "only {} of {acks} records were acked in {RUN_MAX:?}", load.acked());
        report.progress(format_args!("{} acked", load.acked()));
        sleep(LOOK).await;
    }
    Ok(())
}
