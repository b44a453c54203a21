//! Step 5: what it cost, as far as a demo can tell.

use anyhow::{Context as _, Result};
use tidegate_client::PluginInfo;

use crate::{
    load::Acks,
    report::{Report, human, percentile},
};

/// Prints rate and latencies of a load, and the guest time of each plugin per record.
pub(crate) fn print(acks: &mut Acks, plugins: &[PluginInfo], report: &mut Report) -> Result<()> {
    report.section("5. Numbers of this run (no benchmark: one machine does everything at once, in a test build)");
    let rate = acks.acked.len() as f64 / acks.took.as_secs_f64();
    let half = percentile(&mut acks.latencies, 50).context("no acks")?;
    let most = percentile(&mut acks.latencies, 99).context("no acks")?;
    report.fact(format_args!(
        "{rate:.0} records/s · ack p50 {} · p99 {} (full speed, swap included)",
        human(half),
        human(most)
    ));
    for plugin in plugins.iter().filter(|plugin| plugin.records > 0) {
        let each = plugin.cpu_ns as f64 / plugin.records as f64 / 1e3;
        report.fact(format_args!(
            "{:<10} {each:>8.1} µs per record · {} records in {} calls · {} · {:.1} MiB",
            plugin.name,
            plugin.records,
            plugin.calls,
            plugin.placement,
            plugin.memory_bytes as f64 / f64::from(1 << 20)
        ));
    }
    Ok(())
}
