//! Step 2: reads everything back through the fetch chain.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tidegate_client::{Connection, ConsumerOptions};

use crate::{
    masks,
    report::{Report, human},
    verdicts::Accepted,
};

/// All topics that events are routed to.
pub(crate) const ALL: &str = "github/*";

/// What was read.
#[derive(Debug, Default)]
struct Tally {
    records: usize,
    masked: usize,
    cursor: String,
}

/// Reads `github/*` from the start and compares it with what was accepted. Gives the cursor behind it.
pub(crate) async fn consume(
    accepted: &[Accepted],
    masked: &[Vec<String>],
    connection: &Connection,
    report: &mut Report,
) -> Result<String> {
    report.section(&format!("2. Consume {ALL} from the start, through the fetch chain"));
    let start = tokio::time::Instant::now();
    let mut due: BTreeMap<&str, VecDeque<&Accepted>> = BTreeMap::new();
    for at in accepted {
        due.entry(&at.topic).or_default().push_back(at);
    }
    let topics = due.len();
    let tally = read(&mut due, masked, connection, report).await?;
    report.progress_done();
    let missing: Vec<String> =
        due.values().flatten().map(|at| format!("line {} ({}@{})", at.event.line, at.topic, at.offset)).collect();
    ensure!(missing.is_empty(), "accepted, but not read back: {}", missing.join(", "));
    report.fact(format_args!("{} records of {topics} topics in {}", tally.records, human(start.elapsed())));
    report.held("all accepted records came, per topic in the order they were produced, offsets dense from 0");
    let masked = match tally.masked {
        0 => "no field that the settings name was there to mask".to_owned(),
        count => format!("{count} fields that the settings name came masked"),
    };
    report.held(format_args!("{masked}, everything else as it was produced"));
    Ok(tally.cursor)
}

async fn read(
    due: &mut BTreeMap<&str, VecDeque<&Accepted>>,
    masked: &[Vec<String>],
    connection: &Connection,
    report: &mut Report,
) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut consumer = connection.consumer(ConsumerOptions::new(ALL))?;
    while let Some(batch) = consumer.next().await? {
        for record in batch.records() {
            let place = format!("{}@{}", record.topic, record.offset);
            let Some(at) = due.get_mut(record.topic).and_then(VecDeque::pop_front) else {
                bail!("{place} was read and never accepted");
            };
            ensure!(record.offset == at.offset, "{place} came where {}@{} was due", at.topic, at.offset);
            let value = record.value.with_context(|| format!("{place} has no value"))?;
            tally.masked +=
                compare(&at.event.value, value, masked).with_context(|| format!("{place}, line {}", at.event.line))?;
            tally.records += 1;
        }
        report.progress(format_args!("{} read", tally.records));
    }
    tally.cursor = consumer.cursor().context("the broker told no cursor")?.to_owned();
    Ok(tally)
}

fn compare(produced: &[u8], read: &[u8], masked: &[Vec<String>]) -> Result<usize> {
    let produced: Value = serde_json::from_slice(produced)?;
    let read: Value = serde_json::from_slice(read).context("what came is not JSON")?;
    let difference = masks::compare(&produced, &read, masked);
    ensure!(difference.naked.is_empty(), "not masked: {}", difference.naked.join(", "));
    ensure!(difference.altered.is_empty(), "changed, and no setting says so: {}", difference.altered.join(", "));
    Ok(difference.masked)
}
