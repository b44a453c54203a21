//! Step 1: produces every event and compares the verdicts with those of a second validator, line by line.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Result, bail, ensure};
use tidegate_client::{Connection, Outcome, ProducerConfig, Record};

use crate::{
    input::Event,
    report::{Report, human},
};

/// Where an accepted event went.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    /// The event.
    pub(crate) event: Event,
    /// Its topic.
    pub(crate) topic: Arc<str>,
    /// Its offset there.
    pub(crate) offset: u64,
}

/// Where everything is sent; the chain routes it from there.
pub(crate) const RAW: &str = "github/raw";
/// Rejections shown unless all are asked for.
const SHOWN: usize = 8;

/// Produces the events in their order.
pub(crate) async fn produce(
    events: &[Event],
    connection: &Connection,
    show_all: bool,
    report: &mut Report,
) -> Result<Vec<Accepted>> {
    report.section(&format!("1. Produce {} real events to {RAW}; the chain routes and validates each", events.len()));
    let start = tokio::time::Instant::now();
    let producer = connection.producer(ProducerConfig::default()).await?;
    let mut deliveries = Vec::with_capacity(events.len());
    for event in events {
        let record = Record { value: Some(event.value.clone()), ..Record::default() };
        deliveries.push((event, producer.send(RAW, record).await?));
        report.progress(format_args!("{} sent", deliveries.len()));
    }
    producer.flush().await?;
    let mut accepted = Vec::new();
    let mut rejected = Vec::new();
    let mut wrong = Vec::new();
    for (event, delivery) in deliveries {
        match delivery.await? {
            Outcome::Appended { topic, offset, .. } => {
                if !event.valid {
                    wrong.push(format!(
                        "line {} ({}) was accepted, the second validator rejects it",
                        event.line, event.event
                    ));
                }
                accepted.push(Accepted { event: event.clone(), topic, offset });
            }
            Outcome::Rejected(rejection) => {
                if event.valid {
                    wrong.push(format!("line {} ({}) was rejected: {}", event.line, event.event, rejection.reason));
                }
                rejected.push((event, rejection));
            }
            other => bail!("line {} ({}) came to an end nobody expects: {other:?}", event.line, event.event),
        }
    }
    producer.close().await?;
    report.progress_done();
    report.fact(format_args!(
        "{} sent, {} accepted, {} rejected in {}",
        events.len(),
        accepted.len(),
        rejected.len(),
        human(start.elapsed())
    ));
    for (event, rejection) in rejected.iter().take(if show_all { usize::MAX } else { SHOWN }) {
        report.fact(format_args!("line {:>3}  {:<24} {}", event.line, event.event, rejection.reason));
    }
    if !show_all && rejected.len() > SHOWN {
        report.fact(format_args!("… and {} more rejections: cargo demo -- --all", rejected.len() - SHOWN));
    }
    ensure!(wrong.is_empty(), "{} verdicts differ from the second validator's:\n  {}", wrong.len(), wrong.join("\n  "));
    report.held("every verdict equals the second validator's, line by line");
    reasons(&rejected)?;
    if !rejected.is_empty() {
        report.held("every rejection names a JSON pointer into the payload and a reason");
    }
    routed(&accepted)?;
    report.held("every accepted event went to the topic of its kind");
    Ok(accepted)
}

fn reasons(rejected: &[(&Event, Arc<tidegate_client::Rejection>)]) -> Result<()> {
    for (event, rejection) in rejected {
        let pointer = rejection.reason.split_once(": ").map(|(pointer, _)| pointer);
        ensure!(
            pointer.is_some_and(|pointer| pointer.starts_with("/payload")),
            "line {}: the reason names no pointer into the payload: {}",
            event.line,
            rejection.reason
        );
    }
    Ok(())
}

fn routed(accepted: &[Accepted]) -> Result<()> {
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    for at in accepted {
        let expected = format!("github/{}", at.event.event);
        ensure!(*at.topic == *expected, "line {}: went to {}, not to {expected}", at.event.line, at.topic);
        let next = last.insert(&at.topic, at.offset).map_or(0, |offset| offset + 1);
        ensure!(at.offset == next, "line {}: got offset {} of {}, {next} was due", at.event.line, at.offset, at.topic);
    }
    Ok(())
}
