//! Writing: records are gathered into batches, a bounded number of batches is in flight, and none is appended twice.
//!
//! The handle gathers records under a short lock; one task per producer (`driver`) owns the stream, the batches that wait
//! for an answer, and the retries. A batch keeps its sequence for all its tries, so the broker knows a repeated one.

mod ack;
mod driver;
mod numbering;
mod queue;

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tidegate_protocol::{batch::BatchBody, record::Record, wire::Condition};
use tokio::{sync::watch, task::JoinHandle};

pub use self::ack::{BatchAck, Outcome};
use self::{
    driver::Driver,
    numbering::Numbering,
    queue::{Answer, Pushed, Queue},
};
use crate::{Connection, Error};

/// How a producer gathers and sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerConfig {
    /// A batch is sent at the latest so long after its first record. Default 5 ms.
    pub linger: Duration,
    /// A batch is sent when it has so many bytes. Default 256 KiB. A larger record goes alone.
    pub batch_bytes_max: u32,
    /// A batch is sent when it has so many records. Default 1 000.
    pub batch_records_max: u32,
    /// Batches sent or ready that wait for their answer, at most. Default 16; 1 keeps the order of batches even when one
    /// is told "later". At most 512.
    pub in_flight_max: usize,
    /// Whether batches are numbered, so that a retry is known to the broker. Default yes. Without, a batch whose answer
    /// was lost is not sent again: [`Error::Unanswered`].
    pub idempotent: bool,
    /// How long a batch is tried, from when it was closed, before its error comes out. Default 60 s, at most 50 min.
    pub retry_for: Duration,
    /// Goes on as a known producer instead of asking for a new id: it fences those with a lower epoch.
    pub identity: Option<ProducerIdentity>,
}

/// Who a producer is for dedup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerIdentity {
    /// Never 0.
    pub id: u64,
    /// A higher one fences lower ones.
    pub epoch: u32,
    /// Sequence of the first batch: behind every one that was used under this epoch. A new epoch starts at 0.
    pub next_sequence: u64,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            linger: Duration::from_millis(5),
            batch_bytes_max: 256 << 10,
            batch_records_max: 1_000,
            in_flight_max: 16,
            idempotent: true,
            retry_for: Duration::from_secs(60),
            identity: None,
        }
    }
}

/// A producer. Records of one caller keep their order; see [`ProducerConfig::in_flight_max`] for the exception.
///
/// Dropping it gives up what has no answer yet; [`Self::close`] waits for it.
#[derive(Debug)]
pub struct Producer {
    queue: Arc<Queue>,
    identity: Option<ProducerIdentity>,
    driver: Option<JoinHandle<()>>,
}

impl Producer {
    pub(crate) async fn open(connection: Connection, config: ProducerConfig) -> Result<Self, Error> {
        let limits = connection.limits().await?;
        let identity = match config.identity {
            Some(identity) => Some(identity),
            None if config.idempotent => {
                let id = connection.admin().producer_id().await?;
                Some(ProducerIdentity { id, epoch: 0, next_sequence: 0 })
            }
            None => None,
        };
        let queue = Arc::new(Queue::new(&config, limits));
        let numbering = identity.map(|identity| Numbering::new(identity, config.identity.is_none()));
        let driver = Driver::new(Arc::clone(&queue), connection, numbering);
        let driver = tokio::spawn(driver.run());
        Ok(Self { queue, identity, driver: Some(driver) })
    }

    /// Puts a record into the open batch, waiting while too much is in flight. The answer comes from the [`Delivery`].
    /// Cancel-safe: a call given up has put nothing.
    ///
    /// # Errors
    /// If the record cannot be sent (name, size), or the producer is closed or fenced.
    pub async fn send(&self, topic: &str, record: Record) -> Result<Delivery, Error> {
        loop {
            // Made before the look: what is told from now on is not missed.
            let space = self.queue.space();
            match self.queue.push(topic, &record)? {
                Pushed::In { done, at } => return Ok(Delivery { done, at }),
                Pushed::Full => space.await,
            }
        }
    }

    /// Sends a batch as it is, behind the records given before, and waits for its answer.
    ///
    /// # Errors
    /// If the batch was refused as a whole (nothing of it was appended), cannot be sent, or its answer is not known.
    pub async fn send_batch(&self, body: BatchBody, conditions: Vec<Condition>) -> Result<Arc<BatchAck>, Error> {
        self.submit(body, conditions).await?.await
    }

    /// As [`Self::send_batch`], without waiting for the answer, which comes from the [`BatchDelivery`]. Cancel-safe: a call
    /// given up has sent nothing.
    ///
    /// # Errors
    /// If the batch cannot be sent (size), or the producer is closed or fenced.
    pub async fn submit(&self, body: BatchBody, conditions: Vec<Condition>) -> Result<BatchDelivery, Error> {
        let mut job = Some((body, conditions));
        loop {
            // Made before the look: what is told from now on is not missed.
            let space = self.queue.space();
            if let Some(done) = self.queue.submit(&mut job)? {
                return Ok(BatchDelivery { done });
            }
            space.await;
        }
    }

    /// Sends what is open, and waits until everything given so far has its answer.
    ///
    /// # Errors
    /// The first error of a whole batch; all are answered nevertheless.
    pub async fn flush(&self) -> Result<(), Error> {
        let mut first = Ok(());
        for done in self.queue.flush() {
            let answer = answered(done).await;
            if first.is_ok() {
                first = answer.map(|_| ());
            }
        }
        first
    }

    /// Flushes, and ends the stream.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub async fn close(mut self) -> Result<(), Error> {
        self.queue.close();
        let flushed = self.flush().await;
        if let Some(driver) = self.driver.take() {
            // It ends by itself once nothing waits; a panic in it would be a bug, and is one of its own to report.
            driver.await.ok();
        }
        flushed
    }

    /// Id, epoch and first sequence, if batches are numbered. One that asked for its id goes on under another should the
    /// broker have forgotten it, which takes an hour of silence.
    pub fn identity(&self) -> Option<ProducerIdentity> {
        self.identity
    }

    /// Batches that are ready or sent and have no answer yet.
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if self.driver.is_some() {
            self.queue.abandon();
        }
    }
}

/// Tells what became of one record, once its batch has its answer. Await it.
#[derive(Debug)]
pub struct Delivery {
    done: watch::Receiver<Answer>,
    at: u32,
}

impl Delivery {
    /// What became of the record. Cancel-safe only in that the record is sent all the same.
    ///
    /// # Errors
    /// If its batch was refused as a whole, or its answer is not known.
    pub async fn outcome(self) -> Result<Outcome, Error> {
        let ack = answered(self.done).await?;
        ack.outcome(self.at).ok_or(Error::Protocol { what: "an answer with too few records" })
    }
}

impl IntoFuture for Delivery {
    type Output = Result<Outcome, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.outcome())
    }
}

/// Tells what became of a batch. Await it.
#[derive(Debug)]
pub struct BatchDelivery {
    done: watch::Receiver<Answer>,
}

impl IntoFuture for BatchDelivery {
    type Output = Result<Arc<BatchAck>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(answered(self.done))
    }
}

async fn answered(mut done: watch::Receiver<Answer>) -> Result<Arc<BatchAck>, Error> {
    // The sender goes without an answer only where the producer was given up.
    let answer = done.wait_for(Option::is_some).await.map_err(|_| Error::Closed)?;
    answer.clone().unwrap_or(Err(Error::Closed))
}
