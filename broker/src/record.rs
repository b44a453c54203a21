//! The stages of a batch between wire and log, as types: each step consumes the one before.

use bytes::Bytes;
use tidegate_protocol::{batch::BatchBody, stored::Refused, topic::TopicName};

/// A batch that may run through the chain: authorised, within limits, reserved names refused.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The tenant's number.
    pub tenant: u32,
    /// Who sent it.
    pub principal: std::sync::Arc<str>,
    /// The client's body.
    pub body: BatchBody,
}

/// What the chain made of a batch.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The generation it ran under.
    pub generation: u64,
    /// What is to be stored.
    pub content: Content,
    /// Input records that are not stored, by ascending index.
    pub refused: Vec<Refused>,
    /// Input records the chain re-keyed or routed (ascending): conditions ask.
    pub moved: Vec<u32>,
}

/// What is to be stored of a batch.
#[derive(Debug, Clone)]
pub enum Content {
    /// The client's body as it came: nothing was changed, dropped, rejected, routed or emitted.
    Verbatim,
    /// Kept records in the client's order, then the emitted ones.
    Rebuilt(Vec<Rebuilt>),
}

/// A record behind the chain.
#[derive(Debug, Clone)]
pub struct Rebuilt {
    /// Where it ends.
    pub topic: TopicName,
    /// `None` = null.
    pub key: Option<Bytes>,
    /// `None` = null.
    pub value: Option<Bytes>,
    /// A headers item.
    pub headers: Bytes,
    /// The producer's time; an emitted record has its origin's.
    pub timestamp_ms: i64,
    /// Emitted by a plugin, not sent by the client.
    pub emitted: bool,
}
