//! Why the shard says no, and what became of it.

use bytes::Bytes;
use tidegate_protocol::{error::Code, topic::TopicName};

use super::Waiter;
use crate::storage::StorageError;

/// The shard cannot go on, or not with this.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ShardError {
    /// The log failed or was closed; what was asked for may or may not be there after a restart.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What was read back does not fit together: a bug, or files of two logs mixed.
    #[error("the log cannot be replayed at LSN {lsn}: {what}")]
    Replay {
        /// Where.
        lsn: u64,
        /// What does not fit.
        what: String,
    },
    /// The stored result of a batch can no longer be read.
    #[error("the result stored at LSN {lsn} is no longer kept")]
    ResultGone {
        /// Where it was.
        lsn: u64,
    },
    /// A tenant's name breaks the rules.
    #[error("tenant name {name:?} must be 1 to 64 bytes")]
    TenantInvalid {
        /// As given, cut to 100 characters.
        name: String,
    },
    /// There are as many tenants as may be.
    #[error("there are {max} tenants already")]
    TenantsFull {
        /// The limit.
        max: usize,
    },
    /// Work beside the sequencer has panicked: a bug of ours, logged where it was waited for.
    #[error("a fault inside the broker: {work} did not end")]
    Panicked {
        /// What it was.
        work: &'static str,
    },
    /// A task of the runtime ended early: the broker is shutting down.
    #[error("the broker is shutting down")]
    ShuttingDown,
}

impl ShardError {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Storage(error) => storage_code(error),
            Self::Replay { .. } | Self::Panicked { .. } => Code::Internal,
            Self::ResultGone { .. } => Code::SequenceExpired,
            Self::TenantInvalid { .. } => Code::Forbidden,
            Self::TenantsFull { .. } => Code::LimitReached,
            Self::ShuttingDown => Code::ShuttingDown,
        }
    }
}

/// Why a batch, topic or activation is refused as a whole. Nothing changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    /// The chain ran under a generation that is not the live one: run it again.
    #[error("the chain ran under another generation than the live one, {live}")]
    StaleGeneration {
        /// The live one.
        live: u64,
    },
    /// A condition does not hold.
    #[error("{} of topic {topic} stands at version {version}", key_text(key))]
    Conflict {
        /// Of the condition.
        topic: TopicName,
        /// Of the condition.
        key: Bytes,
        /// Version that stands; 0 = the key does not exist.
        version: u64,
        /// Offset of the key's last record.
        last_offset: Option<u64>,
        /// Answer only when this is durable.
        wait: Waiter,
    },
    /// The chain re-keyed or routed away a record that a condition names.
    #[error("the chain moved the record of {} in topic {topic}, which a condition names", key_text(key))]
    TargetMoved {
        /// Of the condition.
        topic: TopicName,
        /// Of the condition.
        key: Bytes,
    },
    /// The sequence is older than the window.
    #[error("the sequence is older than what is remembered of this producer")]
    Expired {
        /// Answer only when this is durable.
        wait: Waiter,
    },
    /// Too many sequences were skipped.
    #[error("the next sequence of this producer is {expected}; at most 1024 may be skipped")]
    Gap {
        /// The next one.
        expected: u64,
        /// Answer only when this is durable.
        wait: Waiter,
    },
    /// A newer instance of the producer is at work.
    #[error("a producer with the same id and epoch {epoch} has taken over")]
    Fenced {
        /// Its epoch.
        epoch: u32,
        /// Answer only when this is durable.
        wait: Waiter,
    },
    /// The topic does not exist and may not be made on the way.
    #[error("topic {0} does not exist")]
    TopicUnknown(TopicName),
    /// The topic exists.
    #[error("topic {topic} exists")]
    TopicExists {
        /// Its name.
        topic: TopicName,
        /// Answer only when this is durable.
        wait: Waiter,
    },
    /// Only the broker writes there.
    #[error("topic {0} is the broker's own")]
    TopicReserved(TopicName),
    /// Somebody changed the plugins first.
    #[error("the live generation is {live}, not the one this change is based on")]
    GenerationChanged {
        /// The live one.
        live: u64,
        /// Answer only when this is durable.
        wait: Waiter,
    },
    /// A bound of the broker is reached.
    #[error("there are {max} {what} already")]
    LimitReached {
        /// `topics`, `producers`.
        what: &'static str,
        /// The bound.
        max: usize,
    },
    /// What the chain made of the batch does not fit one frame.
    #[error("behind the chain the batch is {bytes} bytes, at most {max} can be stored")]
    TooLarge {
        /// As it would be.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// What the chain made of the batch is not a batch.
    #[error("what the chain made of the batch cannot be stored: {0}")]
    Malformed(String),
    /// Too much waits for the disk.
    #[error("{0}")]
    Overloaded(StorageError),
    /// The log has failed.
    #[error("{0}")]
    Failed(StorageError),
    /// The broker is draining.
    #[error("the broker is shutting down")]
    ShuttingDown,
}

impl Refusal {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::StaleGeneration { .. } | Self::GenerationChanged { .. } => Code::GenerationChanged,
            Self::Conflict { .. } => Code::Conflict,
            Self::TargetMoved { .. } => Code::ConditionTargetMoved,
            Self::Expired { .. } => Code::SequenceExpired,
            Self::Gap { .. } => Code::SequenceGap,
            Self::Fenced { .. } => Code::ProducerFenced,
            Self::TopicUnknown(_) => Code::TopicUnknown,
            Self::TopicExists { .. } => Code::TopicExists,
            Self::TopicReserved(_) => Code::TopicReserved,
            Self::LimitReached { .. } => Code::LimitReached,
            Self::TooLarge { .. } => Code::BatchTooLarge,
            Self::Malformed(_) => Code::Internal,
            Self::Overloaded(_) => Code::Overloaded,
            Self::Failed(error) => storage_code(error),
            Self::ShuttingDown => Code::ShuttingDown,
        }
    }

    /// What must be durable before this answer may be given: it was judged on frames that may still be in flight.
    pub fn wait(&self) -> Option<Waiter> {
        match self {
            Self::Conflict { wait, .. }
            | Self::Expired { wait }
            | Self::Gap { wait, .. }
            | Self::Fenced { wait, .. }
            | Self::TopicExists { wait, .. }
            | Self::GenerationChanged { wait, .. } => Some(wait.clone()),
            _ => None,
        }
    }
}

impl From<StorageError> for Refusal {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Overloaded { .. } => Self::Overloaded(error),
            StorageError::TooLarge { bytes, max } => Self::TooLarge { bytes, max },
            StorageError::Closed => Self::ShuttingDown,
            other => Self::Failed(other),
        }
    }
}

fn storage_code(error: &StorageError) -> Code {
    match error {
        full if full.is_full() => Code::StorageFull,
        StorageError::Overloaded { .. } => Code::Overloaded,
        StorageError::Closed => Code::ShuttingDown,
        StorageError::NothingDurable => Code::BackupUnavailable,
        StorageError::PinsFull { .. } => Code::LimitReached,
        StorageError::Failed(cause) if matches!(**cause, StorageError::Closed) => Code::ShuttingDown,
        _ => Code::StorageFailed,
    }
}

/// A key for people: keys are bytes of strangers, and errors go into logs, where keys must not.
fn key_text(key: &[u8]) -> String {
    format!("a key of {} bytes", key.len())
}
