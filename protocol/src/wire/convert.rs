//! What the messages mean: typed reading of their fields, and the short ways to make them.

use bytes::Bytes;

use super::{
    AckRun, ClientBody, ClientMessage, Condition, Expect, Failure, ServerBody, ServerMessage, VERSION, Welcome,
};
use crate::{
    error::Code,
    limits::Limits,
    stored::{Refused, RefusedStatus},
    topic::{TopicError, TopicName},
};

/// What became of the records of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AckStatus {
    /// They are in a topic.
    Appended = 0,
    /// A plugin let them go.
    Dropped = 1,
    /// A plugin or a guard refused them.
    Rejected = 2,
    /// They lie in a dead-letter topic.
    Diverted = 3,
}

impl TryFrom<u32> for AckStatus {
    type Error = u32;
    fn try_from(status: u32) -> Result<Self, u32> {
        match status {
            0 => Ok(Self::Appended),
            1 => Ok(Self::Dropped),
            2 => Ok(Self::Rejected),
            3 => Ok(Self::Diverted),
            other => Err(other),
        }
    }
}

impl From<AckStatus> for u32 {
    fn from(status: AckStatus) -> Self {
        Self::from(status as u8)
    }
}

impl From<RefusedStatus> for AckStatus {
    fn from(status: RefusedStatus) -> Self {
        match status {
            RefusedStatus::Dropped => Self::Dropped,
            RefusedStatus::Rejected => Self::Rejected,
            RefusedStatus::Diverted => Self::Diverted,
        }
    }
}

impl AckRun {
    /// Consecutive records of one topic that were appended at dense offsets from `first_offset`, one key version each.
    pub fn appended(topic: u32, first_offset: u64, key_versions: Vec<u64>) -> Self {
        Self {
            records: u32::try_from(key_versions.len()).unwrap_or(u32::MAX),
            status: AckStatus::Appended.into(),
            topic,
            first_offset,
            key_versions,
            ..Self::default()
        }
    }

    /// One record that was not appended.
    pub fn refused(refused: &Refused) -> Self {
        Self {
            records: 1,
            status: AckStatus::from(refused.status).into(),
            code: u32::from(refused.code),
            plugin_code: u32::from(refused.plugin_code),
            retry_after_ms: refused.retry_after_ms,
            reason: refused.reason.clone(),
            plugin: refused.plugin.clone(),
            ..Self::default()
        }
    }
}

/// Why a condition is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// It expects nothing, or absence that is not.
    #[error("a condition must name a version, a last offset or absence")]
    Expectation,
    /// Its topic is no name.
    #[error(transparent)]
    Topic(#[from] TopicError),
}

impl ConditionError {
    /// The code a client is told.
    pub fn code(&self) -> Code {
        match self {
            Self::Expectation => Code::ProtocolViolation,
            Self::Topic(_) => Code::TopicInvalid,
        }
    }
}

impl Condition {
    /// The key of a topic must stand at what is expected.
    pub fn new(topic: &TopicName, key: impl Into<Vec<u8>>, expect: Expect) -> Self {
        Self { topic: topic.as_str().to_owned(), key: key.into(), expect: Some(expect) }
    }

    /// Its checked parts. `Absent(false)` never comes out.
    ///
    /// # Errors
    /// If one of them is missing or wrong.
    pub fn into_parts(self) -> Result<(TopicName, Bytes, Expect), ConditionError> {
        let expect = match self.expect {
            Some(Expect::Absent(false)) | None => return Err(ConditionError::Expectation),
            Some(expect) => expect,
        };
        Ok((TopicName::parse(&self.topic)?, self.key.into(), expect))
    }
}

impl Failure {
    /// A failure with a code and a text, nothing else told.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: u32::from(code.number()), message: message.into(), ..Self::default() }
    }

    /// Tells when to try again.
    #[must_use]
    pub fn retry_after_ms(mut self, retry_after_ms: u32) -> Self {
        self.retry_after_ms = retry_after_ms;
        self
    }

    /// Tells which plugin is at fault.
    #[must_use]
    pub fn by_plugin(mut self, plugin: impl Into<String>) -> Self {
        self.plugin = plugin.into();
        self
    }

    /// Tells which record of the batch is at fault, by its position from 0.
    #[must_use]
    pub fn at_record(mut self, at: u32) -> Self {
        self.record = at.saturating_add(1);
        self
    }

    /// Its code, if this build knows it.
    pub fn known_code(&self) -> Option<Code> {
        u16::try_from(self.code).ok().and_then(Code::from_number)
    }

    /// Position of the record at fault in the batch, from 0.
    pub fn record_at(&self) -> Option<u32> {
        self.record.checked_sub(1)
    }

    /// Whether the same request may succeed later without a change: the code says so, or the broker told when.
    pub fn is_retriable(&self) -> bool {
        self.retry_after_ms > 0 || self.known_code().is_some_and(|code| code.row().retriable)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.known_code() {
            Some(code) => write!(f, "{code}: {}", self.message)?,
            None => write!(f, "error {}: {}", self.code, self.message)?,
        }
        if let Some(at) = self.record_at() {
            write!(f, " (record {at})")?;
        }
        if !self.plugin.is_empty() {
            write!(f, " (plugin {})", self.plugin)?;
        }
        Ok(())
    }
}

impl Welcome {
    /// A welcome with this version and these limits.
    pub fn new(broker: impl Into<String>, limits: &Limits) -> Self {
        Self {
            version: VERSION,
            broker: broker.into(),
            record_bytes_max: limits.record_bytes_max,
            batch_bytes_max: limits.batch_bytes_max,
            batch_records_max: limits.batch_records_max,
            key_bytes_max: limits.key_bytes_max,
            ..Self::default()
        }
    }

    /// The limits it tells; those it does not tell are the defaults.
    pub fn limits(&self) -> Limits {
        Limits {
            record_bytes_max: self.record_bytes_max,
            batch_bytes_max: self.batch_bytes_max,
            batch_records_max: self.batch_records_max,
            key_bytes_max: self.key_bytes_max,
            ..Limits::default()
        }
    }
}

impl From<ClientBody> for ClientMessage {
    fn from(body: ClientBody) -> Self {
        Self { body: Some(body) }
    }
}

impl From<ServerBody> for ServerMessage {
    fn from(body: ServerBody) -> Self {
        Self { body: Some(body) }
    }
}
