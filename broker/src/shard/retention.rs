//! What is kept: moves low offsets, because somebody asks for it or because a topic's rule says so, and has storage drop what
//! lies below (ADR 9).
//!
//! A low offset moves by a record of its own; readers are held to it once that is durable. Called by `server` (rules,
//! truncate); the thread here looks again and again.

mod keeper;
mod walk;

use std::{
    collections::HashMap,
    sync::{
        Arc, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::{
    error::Code,
    topic::{TopicName, TopicPattern},
};

#[cfg(test)]
pub(super) use self::keeper::Keeper;
pub(super) use self::keeper::Retention;
use self::walk::Until;
use super::{
    Core, Refusal, Shard, ShardError, Topic, Waiter, append, append::Draft, durable_topic, reader::blocking,
    state::State, system,
};
use crate::{
    catalog::{self, Low},
    storage::Reclaimed,
};

/// Low offsets moved in one frame.
const MOVES_MAX: usize = 1_000;

/// What is kept of the topics that it matches. Of several the first that matches decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionRule {
    /// Patterns, any of which.
    pub topics: Vec<TopicPattern>,
    /// But none of these.
    pub except: Vec<TopicPattern>,
    /// Records older than this go.
    pub age: Option<Duration>,
    /// Of what is over so many bytes the oldest goes.
    pub bytes: Option<u64>,
}

impl RetentionRule {
    /// Whether it speaks of a topic.
    pub fn matches(&self, topic: &str) -> bool {
        self.topics.iter().any(|pattern| pattern.matches(topic))
            && !self.except.iter().any(|pattern| pattern.matches(topic))
    }
}

/// Why a low offset moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// An operator asked for it.
    Truncate,
    /// A rule by age.
    Age,
    /// A rule by size.
    Size,
}

/// What retention did since the start, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetentionStats {
    /// Moves of low offsets: by truncation, by age, by size.
    pub moves: [u64; 3],
    /// Segments dropped.
    pub segments_dropped: u64,
    /// Their bytes.
    pub bytes_dropped: u64,
    /// Bytes of segments that hold nothing alive and are not dropped yet.
    pub held_bytes: u64,
    /// Looks that failed.
    pub failures: u64,
    /// Segments there are.
    pub segments: u64,
    /// Their bytes.
    pub segment_bytes: u64,
}

/// Counted as it happens.
#[derive(Debug, Default)]
pub(super) struct Counts {
    moves: [AtomicU64; 3],
    segments_dropped: AtomicU64,
    bytes_dropped: AtomicU64,
    held_bytes: AtomicU64,
    failures: AtomicU64,
    /// The shard ends: a walk over a long log is given up.
    stopped: AtomicBool,
}

impl Counts {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn moved(&self, cause: Cause, count: usize) {
        self.moves[cause as usize].fetch_add(count as u64, Ordering::Relaxed);
    }

    fn reclaimed(&self, reclaimed: &Reclaimed) {
        self.segments_dropped.fetch_add(reclaimed.segments, Ordering::Relaxed);
        self.bytes_dropped.fetch_add(reclaimed.bytes, Ordering::Relaxed);
        self.held_bytes.store(reclaimed.held_bytes, Ordering::Relaxed);
    }
}

/// The rules of all tenants.
#[derive(Debug, Default)]
pub(super) struct Rules {
    by_tenant: HashMap<u32, Arc<[RetentionRule]>>,
    /// How often they were set.
    changes: u64,
}

/// A truncation that is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncated {
    /// The topic as it is now.
    pub topic: Topic,
    /// Its low offset before.
    pub low_offset_before: u64,
}

/// Why a topic is not truncated. Nothing changed, unless it failed: then it may be after a restart.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TruncateError {
    /// There is no such topic.
    #[error("topic {0} does not exist")]
    Unknown(TopicName),
    /// It does not go so far.
    #[error("topic {topic} ends at offset {next_offset}: what lies before {before} is not all there yet")]
    Beyond {
        /// Its name.
        topic: TopicName,
        /// As asked.
        before: u64,
        /// The offset of its next record.
        next_offset: u64,
    },
    /// The log takes nothing.
    #[error("{0}")]
    Refused(Refusal),
    /// The log failed.
    #[error("{0}")]
    Failed(#[from] ShardError),
}

impl TruncateError {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Unknown(_) => Code::TopicUnknown,
            Self::Beyond { .. } => Code::OffsetOutOfRange,
            Self::Refused(refusal) => refusal.code(),
            Self::Failed(error) => error.code(),
        }
    }
}

impl Shard {
    /// Sets what is kept of a tenant's topics, in place of what was set before.
    pub fn set_retention(&self, tenant: u32, rules: Vec<RetentionRule>) {
        let mut all = self.core.rules();
        if all.by_tenant.get(&tenant).map_or(&[][..], |known| known) == rules {
            return;
        }
        all.changes += 1;
        if rules.is_empty() {
            all.by_tenant.remove(&tenant)
        } else {
            all.by_tenant.insert(tenant, rules.into())
        };
        drop(all);
        self.core.retention_wanted.notify_one();
    }

    /// Removes a topic's records before an offset: durable, and gone for readers, when this returns. Storage is freed later.
    /// Nothing to remove is no error. Not cancelled by dropping it: it may still happen.
    ///
    /// # Errors
    /// See [`TruncateError`].
    pub async fn truncate(&self, tenant: u32, name: &TopicName, before: u64) -> Result<Truncated, TruncateError> {
        let (id, low_before, wait) = {
            let state = self.core.settled();
            let entry = state.catalog.find(tenant, name.as_str());
            let Some((entry, next_offset)) = entry.and_then(|entry| Some((entry, entry.durable_offset?))) else {
                return Err(TruncateError::Unknown(name.clone()));
            };
            if before > next_offset {
                return Err(TruncateError::Beyond { topic: name.clone(), before, next_offset });
            }
            (entry.id, entry.low.offset, self.core.waiter(state.next_lsn))
        };
        let wait = if before > low_before {
            let core = Arc::clone(&self.core);
            let find = move || core.low_at(id, Until::Offset(before));
            let low = blocking(&**self.core.log.threads(), "a look-up by offset", None, find).await??;
            let mut state = self.core.settled();
            let moved = state.put_lows(&self.core, &[(id, low)]).map_err(TruncateError::Refused)?;
            self.core.retention.moved(Cause::Truncate, moved);
            self.core.waiter(state.next_lsn)
        } else {
            wait
        };
        wait.durable().await?;
        let topic = self.core.settled().catalog.get(id).and_then(durable_topic);
        self.core.retention_wanted.notify_one();
        let topic = topic.ok_or_else(|| TruncateError::Unknown(name.clone()))?;
        Ok(Truncated { topic, low_offset_before: low_before })
    }

    /// What retention did since the start.
    pub fn retention_stats(&self) -> RetentionStats {
        let counts = &self.core.retention;
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (segments, segment_bytes) = self.core.log.segments();
        RetentionStats {
            moves: [Cause::Truncate, Cause::Age, Cause::Size].map(|cause| value(&counts.moves[cause as usize])),
            segments_dropped: value(&counts.segments_dropped),
            bytes_dropped: value(&counts.bytes_dropped),
            held_bytes: value(&counts.held_bytes),
            failures: value(&counts.failures),
            segments: segments as u64,
            segment_bytes,
        }
    }
}

impl Core {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves low offsets, of which there may be many; the waiter tells when all are durable.
    fn move_lows(&self, moves: &[(u64, Low)], cause: Cause) -> Result<Waiter, Refusal> {
        for some in moves.chunks(MOVES_MAX) {
            let moved = self.settled().put_lows(self, some)?;
            self.retention.moved(cause, moved);
        }
        Ok(self.waiter(self.lock().next_lsn))
    }
}

impl State {
    /// Puts a frame that moves low offsets; those that would not rise are left out. Gives how many moved.
    fn put_lows(&mut self, core: &Core, moves: &[(u64, Low)]) -> Result<usize, Refusal> {
        if self.closing {
            return Err(Refusal::ShuttingDown);
        }
        let rises = |&&(id, low): &&(u64, Low)| self.catalog.get(id).is_some_and(|entry| low.offset > entry.low.offset);
        let moves: Vec<(u64, Low)> = moves.iter().filter(rises).copied().collect();
        if moves.is_empty() {
            return Ok(0);
        }
        let records: Vec<_> = moves.iter().map(|&(id, low)| system::low_record(id, low)).collect();
        let records = records.iter().map(|(key, value)| (&key[..], &value[..]));
        let body = append::system_body(system::RETENTION, records, core.now_ms().max(self.broker_time_ms))?;
        let ids = vec![catalog::topic_id(self.shard, catalog::RETENTION_COUNTER)];
        self.put(core, Draft { tenant: catalog::SYSTEM_TENANT, body: Some(body), ids, ..Draft::default() })?;
        let moved = moves.len();
        self.commit_lows(moves);
        Ok(moved)
    }
}
