//! Producing: bodies, and a closed loop with so many batches in flight.

use std::time::Duration;

use anyhow::{Result, ensure};
use tidegate_client::{BatchBody, BatchBuilder, Connection, Outcome, Producer, ProducerConfig, RecordView};
use tidegate_protocol::limits::Limits;
use tokio::sync::mpsc;

use crate::{micros, wall};

/// Records of a batch.
pub const RECORDS: u32 = 100;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 1_000;
/// Batches without an answer, of one producer.
pub const IN_FLIGHT: usize = 16;

/// A batch of [`RECORDS`] keyed records of [`VALUE_BYTES`] each, of bytes that no compression makes smaller. The keys are the
/// same in every batch, and none of them begins as the benchmark's key filter wants it.
///
/// # Errors
/// If the topic is none.
pub fn body(topic: &str) -> Result<BatchBody> {
    let mut builder = BatchBuilder::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for at in 0..RECORDS {
        let words = (0..VALUE_BYTES.div_ceil(8)).flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        let value: Vec<u8> = words.take(VALUE_BYTES).collect();
        let key = format!("item-{at:011}");
        builder
            .push(topic, RecordView { key: Some(key.as_bytes()), value: Some(&value), headers: &[], timestamp_ms: 0 });
    }
    Ok(BatchBody::parse(builder.finish(), &Limits::default())?)
}

/// A producer with [`IN_FLIGHT`] batches in flight.
///
/// # Errors
/// If the broker gives none.
pub async fn producer(connection: &Connection) -> Result<Producer> {
    let config = ProducerConfig { in_flight_max: IN_FLIGHT, ..ProducerConfig::default() };
    Ok(connection.producer(config).await?)
}

/// How a load went.
#[derive(Debug, Default, Clone)]
pub struct Load {
    /// From the first batch handed over to the last ack.
    pub took: Duration,
    /// From a batch handed over to its ack, of each, in microseconds.
    pub acks: Vec<f64>,
}

impl Load {
    /// Batches.
    pub fn batches(&self) -> u64 {
        self.acks.len() as u64
    }

    /// MB of values per second.
    pub fn rate(&self) -> f64 {
        rate(self.batches(), self.took)
    }
}

/// MB of values per second of so many batches.
pub fn rate(batches: u64, took: Duration) -> f64 {
    batches as f64 * f64::from(RECORDS) * VALUE_BYTES as f64 / 1e6 / took.as_secs_f64()
}

/// Sends a body so many times as fast as the acks come, and waits for the last of them.
///
/// # Errors
/// If a batch was not appended whole.
pub async fn closed(producer: &Producer, body: &BatchBody, batches: u64) -> Result<Load> {
    let (ahead, mut answers) = mpsc::channel(IN_FLIGHT);
    let start = wall();
    let send = async move {
        for _ in 0..batches {
            let delivery = producer.submit(body.clone(), Vec::new()).await?;
            if ahead.send((wall(), delivery)).await.is_err() {
                break;
            }
        }
        anyhow::Ok(())
    };
    let collect = async {
        let mut acks = Vec::new();
        while let Some((since, delivery)) = answers.recv().await {
            let ack = delivery.await?;
            acks.push(micros(wall() - since));
            let whole = [0, RECORDS - 1].map(|at| ack.outcome(at));
            let whole = whole.iter().all(|outcome| matches!(outcome, Some(Outcome::Appended { .. })));
            ensure!(whole && ack.len() == RECORDS && !ack.duplicate, "a batch was not appended: {ack:?}");
        }
        Ok(acks)
    };
    let ((), acks) = tokio::try_join!(send, collect)?;
    Ok(Load { took: wall() - start, acks })
}
