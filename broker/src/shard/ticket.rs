//! What the sequencer hands out: promises that are kept when a frame is durable, and the answer that is given then.

use std::{collections::HashMap, sync::Arc};

use tidegate_protocol::{
    stored::{Refused, StoredFrame},
    topic::TopicName,
};
use tokio::sync::watch;

use super::{Activated, ShardError, Topic};
use crate::{
    storage::{Durable, Log, StorageError},
    threads,
};

/// Waits until an LSN is durable.
#[derive(Debug, Clone)]
pub struct Waiter {
    durable: watch::Receiver<Durable>,
    next_lsn: u64,
}

impl Waiter {
    pub(super) fn new(durable: watch::Receiver<Durable>, next_lsn: u64) -> Self {
        Self { durable, next_lsn }
    }

    /// Resolves when everything that was in flight is durable. Cancel-safe.
    ///
    /// # Errors
    /// If the log failed or was closed before.
    pub async fn durable(mut self) -> Result<(), ShardError> {
        let reached = self.durable.wait_for(|durable| durable.next_lsn >= self.next_lsn || durable.failed.is_some());
        let durable = reached.await.map_err(|_| StorageError::Closed)?;
        match &durable.failed {
            Some(failed) if durable.next_lsn < self.next_lsn => Err(StorageError::Failed(Arc::clone(failed)).into()),
            _ => Ok(()),
        }
    }
}

/// A batch that was taken.
#[derive(Debug)]
pub struct Ticket {
    wait: Waiter,
    source: Source,
}

/// Where the answer comes from.
#[derive(Debug)]
enum Source {
    /// The frame just made.
    Frame(Arc<StoredFrame>),
    /// The frame that an earlier try made.
    Earlier { log: Log, lsn: u64 },
    /// Nothing was stored, there is nothing to remember.
    Nothing(Appended),
}

/// The answer to a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// LSN of the frame; of the next one if nothing was stored.
    pub first_lsn: u64,
    /// Generation under which the chain ran.
    pub generation: u64,
    /// What became of the client's records, in their order.
    pub runs: Vec<AckedRun>,
    /// Topics that the runs name by number.
    pub topics: Vec<TopicName>,
    /// An earlier try stored it.
    pub duplicate: bool,
}

/// Consecutive records of a batch with the same fate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AckedRun {
    /// They are stored.
    Appended {
        /// How many.
        records: u32,
        /// Number of the topic in [`Appended::topics`].
        topic: u32,
        /// Offset of the first; the others follow densely.
        first_offset: u64,
        /// Of each; 0 for a null key.
        key_versions: Vec<u64>,
    },
    /// One record is not.
    Refused(Refused),
}

impl Ticket {
    pub(super) fn frame(wait: Waiter, frame: Arc<StoredFrame>) -> Self {
        Self { wait, source: Source::Frame(frame) }
    }

    pub(super) fn earlier(wait: Waiter, log: Log, lsn: u64) -> Self {
        Self { wait, source: Source::Earlier { log, lsn } }
    }

    pub(super) fn nothing(wait: Waiter, first_lsn: u64, generation: u64, refused: Vec<Refused>) -> Self {
        let runs = refused.into_iter().map(AckedRun::Refused).collect();
        let appended = Appended { first_lsn, generation, runs, topics: Vec::new(), duplicate: false };
        Self { wait, source: Source::Nothing(appended) }
    }

    /// Resolves when the batch, and everything its answer was judged on, is durable. Cancel-safe: the batch is stored
    /// whether or not somebody waits.
    ///
    /// # Errors
    /// If the log failed before: the batch may or may not be there after a restart.
    pub async fn durable(self) -> Result<Arc<Appended>, ShardError> {
        self.wait.durable().await?;
        match self.source {
            Source::Frame(frame) => Ok(Arc::new(answer(&frame))),
            Source::Nothing(appended) => Ok(Arc::new(appended)),
            Source::Earlier { log, lsn } => {
                let gone = |error| match error {
                    StorageError::Gone { .. } => ShardError::ResultGone { lsn },
                    other => other.into(),
                };
                let frame = match log.tail(lsn, 1).and_then(|run| run.frames.into_iter().next()) {
                    Some(frame) => frame,
                    None => {
                        let threads = Arc::clone(log.threads());
                        let read = threads::blocking(&*threads, move || log.frame(lsn)).await;
                        read.map_err(|_| ShardError::ShuttingDown)?.map_err(gone)?
                    }
                };
                Ok(Arc::new(Appended { duplicate: true, ..answer(&frame) }))
            }
        }
    }
}

/// The answer that a frame holds: the n-th record that was not refused is the n-th record of the body.
pub(super) fn answer(frame: &StoredFrame) -> Appended {
    let header = &frame.header;
    let mut topics = Vec::new();
    let mut numbers = HashMap::new();
    let mut runs: Vec<AckedRun> = Vec::new();
    let mut refused = header.refused.iter().peekable();
    let sections = frame.body.iter().flat_map(|body| body.sections());
    let numbers_of_topics = sections.flat_map(|section| std::iter::repeat_n(section.topic, section.records as usize));
    let mut stored = numbers_of_topics.zip(frame.positions());
    for index in 0..header.input_count {
        if let Some(refused) = refused.next_if(|refused| refused.index == index) {
            runs.push(AckedRun::Refused(refused.clone()));
            continue;
        }
        let Some((in_body, (_, offset, key_version))) = stored.next() else { break };
        let number = *numbers.entry(in_body).or_insert_with(|| {
            let name = frame.body.as_ref().and_then(|body| body.topic(in_body));
            topics.extend(name.and_then(|name| TopicName::parse(name).ok()));
            u32::try_from(topics.len()).unwrap_or(u32::MAX).saturating_sub(1)
        });
        match runs.last_mut() {
            Some(AckedRun::Appended { records, topic, key_versions, .. }) if *topic == number => {
                *records += 1;
                key_versions.push(key_version);
            }
            _ => runs.push(AckedRun::Appended {
                records: 1,
                topic: number,
                first_offset: offset,
                key_versions: vec![key_version],
            }),
        }
    }
    let (first_lsn, generation) = (header.first_lsn, header.generation);
    Appended { first_lsn, generation, runs, topics, duplicate: false }
}

/// A change of the chain that was taken.
#[derive(Debug)]
pub struct ActivationTicket {
    pub(super) wait: Waiter,
    pub(super) activated: Activated,
}

impl ActivationTicket {
    /// The new generation: live already, for batches behind it.
    pub fn generation(&self) -> u64 {
        self.activated.generation
    }

    /// Resolves when the activation is durable. Cancel-safe.
    ///
    /// # Errors
    /// If the log failed before.
    pub async fn durable(self) -> Result<Activated, ShardError> {
        self.wait.durable().await?;
        Ok(self.activated)
    }
}

/// A new topic that was taken.
#[derive(Debug)]
pub struct TopicTicket {
    pub(super) wait: Waiter,
    pub(super) topic: Topic,
}

impl TopicTicket {
    /// Resolves when the topic is durable. Cancel-safe.
    ///
    /// # Errors
    /// If the log failed before.
    pub async fn durable(self) -> Result<Topic, ShardError> {
        self.wait.durable().await?;
        Ok(self.topic)
    }
}
