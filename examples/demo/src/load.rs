//! A producer at full speed, seen from outside: what it sent, what was acked, when.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use tidegate_client::{Connection, Delivery, Outcome, ProducerConfig, Record};
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

use crate::{ledger::Acked, verdicts::RAW};

/// A producer at full speed. It sends the given values over and over, each with a key of its own, until it is stopped.
#[derive(Debug)]
pub(crate) struct Load {
    counters: Arc<Counters>,
    writer: JoinHandle<Result<()>>,
    collector: JoinHandle<Result<Acks>>,
}

#[derive(Debug, Default)]
struct Counters {
    stop: AtomicBool,
    sent: AtomicU64,
    acked: AtomicU64,
}

/// What was acked, in the order it was sent.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    /// Every ack.
    pub(crate) acked: Vec<Acked>,
    /// From handing a record to the client library until its ack, of each.
    pub(crate) latencies: Vec<Duration>,
    /// The longest time without any ack.
    pub(crate) gap_max: Duration,
    /// From the first record sent to the last ack.
    pub(crate) took: Duration,
}

/// Records sent whose ack was not looked at yet.
const AHEAD_MAX: usize = 10_000;

impl Load {
    /// Starts; ids count up from `first_id`.
    pub(crate) async fn start(connection: &Connection, values: Vec<Bytes>, first_id: u64) -> Result<Self> {
        let producer = connection.producer(ProducerConfig::default()).await?;
        let counters = Arc::new(Counters::default());
        let (ahead, deliveries) = mpsc::channel(AHEAD_MAX);
        let writer = tokio::spawn({
            let counters = Arc::clone(&counters);
            async move {
                for (id, value) in (first_id..).zip(values.iter().cycle()) {
                    if counters.stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let record =
                        Record { key: Some(id.to_string().into()), value: Some(value.clone()), ..Record::default() };
                    let since = Instant::now();
                    let delivery = producer.send(RAW, record).await.context("send")?;
                    counters.sent.fetch_add(1, Ordering::Relaxed);
                    if ahead.send((id, since, delivery)).await.is_err() {
                        // The collector ended with an error of its own, which tells more.
                        return Ok(());
                    }
                }
                producer.close().await.context("close the producer")
            }
        });
        let collector = tokio::spawn(collect(deliveries, Arc::clone(&counters)));
        Ok(Self { counters, writer, collector })
    }

    /// Records handed to the client library so far.
    pub(crate) fn sent(&self) -> u64 {
        self.counters.sent.load(Ordering::Relaxed)
    }

    /// Acks so far.
    pub(crate) fn acked(&self) -> u64 {
        self.counters.acked.load(Ordering::Relaxed)
    }

    /// An error ended it before its time.
    pub(crate) fn is_over(&self) -> bool {
        self.collector.is_finished()
    }

    /// Sends no more, and waits for every answer.
    pub(crate) async fn stop(self) -> Result<Acks> {
        self.counters.stop.store(true, Ordering::Relaxed);
        let acks = self.collector.await.context("collector")?;
        self.writer.await.context("writer")??;
        acks
    }
}

async fn collect(mut deliveries: mpsc::Receiver<(u64, Instant, Delivery)>, counters: Arc<Counters>) -> Result<Acks> {
    let mut acks = Acks::default();
    let mut start = None;
    let mut last: Option<Instant> = None;
    while let Some((id, since, delivery)) = deliveries.recv().await {
        match delivery.await.with_context(|| format!("record {id}"))? {
            Outcome::Appended { topic, offset, .. } => acks.acked.push(Acked { id, topic, offset }),
            other => bail!("record {id}, accepted before, came to another end: {other:?}"),
        }
        let now = Instant::now();
        acks.latencies.push(now - since);
        acks.gap_max = acks.gap_max.max(now - last.unwrap_or(since));
        acks.took = now - *start.get_or_insert(since);
        last = Some(now);
        counters.acked.fetch_add(1, Ordering::Relaxed);
    }
    Ok(acks)
}
