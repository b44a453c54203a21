//! Reads the shard in LSN order, durable frames only: out of memory while the reader keeps up, else off the disk.

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use tidegate_protocol::{
    batch::BatchBuilder,
    limits::Limits,
    record::RecordView,
    stored::{FrameHeader, StoredFrame, TopicStamp},
    topic::TopicName,
};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::{Core, ShardError, Waiter};
use crate::{
    storage::{
        Durable, Run,
        segment::{StoredKey, StoredRecord},
    },
    threads::{self, Threads, Unfinished},
};

/// A reader's handle. Cheap to clone; holds no position.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(super) core: Arc<Core>,
    pub(super) durable: watch::Receiver<Durable>,
}

impl Reader {
    fn threads(&self) -> &dyn Threads {
        &**self.core.log.threads()
    }

    /// Durable frames from an LSN on that touch a wanted topic, out of memory; `None` if they are not there any more. The first
    /// may begin before the LSN. `next_lsn` tells how far was looked: behind `from_lsn`, unless that is the durable end.
    pub fn tail(&self, from_lsn: u64, bytes_max: usize, wanted: impl Fn(u64) -> bool) -> Option<Run> {
        let mut run = self.core.log.tail(from_lsn, bytes_max)?;
        run.frames.retain(|frame| frame.header.topics.iter().any(|topic| wanted(topic.id)));
        Some(run)
    }

    /// The same off the disk. Cancel-safe.
    ///
    /// # Errors
    /// If the disk fails, what it holds is damaged, or the LSN is no longer kept.
    pub async fn disk(
        &self,
        from_lsn: u64,
        bytes_max: usize,
        wanted: impl Fn(u64) -> bool + Send + Sync + 'static,
    ) -> Result<Run, ShardError> {
        let log = self.core.log.clone();
        let turn = self.turn(from_lsn).await?;
        Ok(blocking(self.threads(), "a read", turn, move || log.read(from_lsn, bytes_max, &wanted)).await??)
    }

    /// As `disk`, for the records of one key: out of segments only those, each in a frame of its own; behind them frames
    /// that touch the topic, for the caller to look through. Cancel-safe.
    ///
    /// # Errors
    /// As `disk`.
    pub async fn disk_key(
        &self,
        from_lsn: u64,
        bytes_max: usize,
        topic_id: u64,
        key: Bytes,
        from_offset: u64,
    ) -> Result<Run, ShardError> {
        let core = Arc::clone(&self.core);
        let turn = self.turn(from_lsn).await?;
        let read = move || core.read_key(from_lsn, bytes_max, StoredKey { topic_id, key: &key, from_offset });
        if let Some(run) = blocking(self.threads(), "a read by key", turn, read).await?? {
            return Ok(run);
        }
        self.disk(from_lsn, bytes_max, move |id| id == topic_id).await
    }

    /// For a read out of segments its turn: each may hold all blocks of a window. Others need none.
    async fn turn(&self, from_lsn: u64) -> Result<Option<OwnedSemaphorePermit>, ShardError> {
        if from_lsn >= self.core.log.consolidated() {
            return Ok(None);
        }
        let turn = Arc::clone(&self.core.history).acquire_owned().await;
        turn.map(Some).map_err(|_| ShardError::ShuttingDown)
    }

    /// Offset of the last record of a key, once that is durable; `None` if it was never written before the LSN that comes
    /// with it: a record of the key stands there or behind. Cancel-safe.
    ///
    /// # Errors
    /// If the log failed before.
    pub async fn last_offset(&self, topic_id: u64, key: &[u8]) -> Result<(Option<u64>, u64), ShardError> {
        let (head, next_lsn) = {
            let mut state = self.core.lock();
            (state.heads.get(topic_id, key), state.next_lsn)
        };
        self.core.waiter(next_lsn).durable().await?;
        Ok((head.map(|head| head.last_offset), next_lsn))
    }

    /// Waits until something at or behind an LSN is durable. Cancel-safe.
    ///
    /// # Errors
    /// If the log failed or was closed before.
    pub async fn wait(&self, lsn: u64) -> Result<(), ShardError> {
        Waiter::new(self.durable.clone(), lsn.saturating_add(1)).durable().await
    }

    /// The next LSN that becomes durable.
    pub fn end(&self) -> u64 {
        self.durable.borrow().next_lsn
    }

    /// First LSN kept.
    pub fn first_lsn(&self) -> u64 {
        self.core.log.first_lsn()
    }

    /// A position at or before a record, from which a scan finds it. `None` if there is no such topic.
    pub fn lsn_of(&self, topic_id: u64, offset: u64) -> Option<u64> {
        let state = self.core.lock();
        let entry = state.catalog.get(topic_id)?;
        let sampled = state.samples.find(topic_id, offset).map_or(entry.first_lsn, |sample| sample.lsn);
        Some(sampled.max(if offset >= entry.durable_low.offset { entry.durable_low.lsn } else { 0 }))
    }

    /// The first durable LSN whose record was taken at a time (Unix milliseconds) or later; the end if there is none.
    /// Cancel-safe.
    ///
    /// # Errors
    /// If the disk fails, or what it holds is damaged.
    pub async fn lsn_at_time(&self, time_ms: i64) -> Result<u64, ShardError> {
        let log = self.core.log.clone();
        Ok(blocking(self.threads(), "a look-up by time", None, move || log.lsn_at_time(time_ms)).await??)
    }

    /// Broker time now, Unix milliseconds.
    pub fn broker_time_ms(&self) -> i64 {
        self.core.broker_now_ms()
    }

    /// The first offset of a topic that is kept.
    pub fn low_offset(&self, topic_id: u64) -> u64 {
        self.core.lows.low_offset(topic_id)
    }

    /// How often any low offset has moved.
    pub fn low_changes(&self) -> u64 {
        self.core.lows.changes()
    }

    /// Wanted topics of which records at or behind a position are gone by a move behind the first `seen` ones: their names and
    /// the first offset kept. At most `max`.
    pub fn gaps(
        &self,
        from_lsn: u64,
        seen: u64,
        max: usize,
        wanted: impl Fn(u64, u64) -> bool,
    ) -> Vec<(TopicName, u64)> {
        let gaps = self.core.lows.gaps(from_lsn, seen, wanted);
        let names = self.core.names.read().unwrap_or_else(PoisonError::into_inner);
        let named = gaps.into_iter().filter_map(|(id, offset)| Some((names.get(&id)?.1.clone(), offset)));
        named.take(max).collect()
    }
}

/// Runs something that blocks; a permit is held to its end, also when nobody waits any more.
///
/// # Errors
/// If it panics (logged here), or the runtime ends.
pub(super) async fn blocking<T: Send + 'static>(
    threads: &dyn Threads,
    work: &'static str,
    turn: Option<OwnedSemaphorePermit>,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ShardError> {
    let done = threads::blocking(threads, move || {
        let _turn = turn;
        run()
    });
    done.await.map_err(|unfinished| match unfinished {
        Unfinished::Panicked => {
            tracing::error!(work, "work beside the sequencer has panicked");
            ShardError::Panicked { work }
        }
        Unfinished::Stopped => ShardError::ShuttingDown,
    })
}

impl Core {
    /// Records of a key out of segments, each in a frame of its own. Blocking.
    fn read_key(&self, from_lsn: u64, bytes_max: usize, key: StoredKey<'_>) -> Result<Option<Run>, ShardError> {
        let Some(found) = self.log.read_key(from_lsn, bytes_max, key)? else { return Ok(None) };
        let frames = found.records.iter().map(|record| self.frame_of(record).map(Arc::new));
        Ok(Some(Run { frames: frames.collect::<Result<_, _>>()?, next_lsn: found.next_lsn }))
    }

    /// A frame of one record, at the record's own position.
    fn frame_of(&self, record: &StoredRecord) -> Result<StoredFrame, ShardError> {
        let replay = |what: String| ShardError::Replay { lsn: record.lsn, what };
        let named = self.names.read().unwrap_or_else(PoisonError::into_inner).get(&record.topic_id).cloned();
        let (tenant, name) = named.ok_or_else(|| replay(format!("topic {} has no name", record.topic_id)))?;
        let mut builder = BatchBuilder::new();
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        let timestamp_ms = record.timestamp_ms;
        builder.push(name.as_str(), RecordView { key, value, headers: &record.headers, timestamp_ms });
        let body = builder.finish_body(&Limits::STORED).map_err(|error| replay(error.to_string()))?;
        let header = FrameHeader {
            first_lsn: record.lsn,
            broker_time_ms: record.broker_time_ms,
            generation: record.generation,
            tenant,
            input_count: 1,
            topics: vec![TopicStamp { id: record.topic_id, base_offset: record.offset }],
            key_versions: vec![record.key_version],
            ..FrameHeader::default()
        };
        StoredFrame::from_parts(header, Some(body)).map_err(|error| replay(error.to_string()))
    }
}
