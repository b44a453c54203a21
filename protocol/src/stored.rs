//! The stored frame: what the WAL, segments and the tail hold (ADR 1 draws it).

use bytes::{Bytes, BytesMut};

use crate::batch::BatchBody;

/// What the broker knows of a batch and the body does not say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FrameHeader {
    /// The shard, 0 in this version.
    pub shard: u16,
    /// Epoch of the shard's owner.
    pub epoch: u64,
    /// Position of the first record.
    pub first_lsn: u64,
    /// Unix milliseconds, never descending within a shard.
    pub broker_time_ms: i64,
    /// Chain generation of the tenant under which the batch ran.
    pub generation: u64,
    /// The tenant's number.
    pub tenant: u32,
    /// Records the client sent.
    pub input_count: u32,
    /// Who sent it, for dedup.
    pub producer: Option<ProducerStamp>,
    /// For each topic of the body: its id and the offset of its first record in this frame.
    pub topics: Vec<TopicStamp>,
    /// For each record its key version, 0 for a null key.
    pub key_versions: Vec<u64>,
    /// What happened to the input records that are not in the body, by ascending index.
    pub refused: Vec<Refused>,
}

/// Identity of a batch for dedup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProducerStamp {
    /// Never 0.
    pub id: u64,
    /// A higher one fences lower ones.
    pub epoch: u32,
    /// Dense per (id, epoch), from 0.
    pub sequence: u64,
}

/// Id and first offset of a topic in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicStamp {
    /// Shard (16 bits) and counter; never reused.
    pub id: u64,
    /// Offset of the topic's first record in this frame.
    pub base_offset: u64,
}

/// Ack entry of an input record that was not appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Position in the client's batch.
    pub index: u32,
    /// What became of it.
    pub status: RefusedStatus,
    /// `error::Code` number, or 0 for a drop.
    pub code: u16,
    /// The plugin's own code, or 0.
    pub plugin_code: u16,
    /// 0 = do not retry.
    pub retry_after_ms: u32,
    /// At most 256 bytes.
    pub reason: String,
    /// The plugin that decided; empty = the broker. At most 64 bytes.
    pub plugin: String,
}

/// See [`Refused`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RefusedStatus {
    /// A plugin let it go.
    Dropped = 1,
    /// A plugin or a guard refused it.
    Rejected = 2,
    /// It lies in a dead-letter topic.
    Diverted = 3,
}

/// A whole frame, checked.
#[derive(Debug, Clone)]
pub struct StoredFrame {
    /// The broker's part.
    pub header: FrameHeader,
    /// The records; `None` for a frame that only remembers a producer's sequence.
    pub body: Option<BatchBody>,
    /// All bytes of the frame.
    pub bytes: Bytes,
}

/// Why bytes are not a stored frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes end inside the frame.
    #[error("stored frame is cut: {needed} bytes needed, {there} there")]
    Cut {
        /// Bytes needed, as far as known.
        needed: usize,
        /// Bytes there.
        there: usize,
    },
    /// Not a frame at all.
    #[error("stored frame magic is {0:02x?}")]
    Magic([u8; 4]),
    /// A newer or older format.
    #[error("stored frame version {0} is not read by this build; it reads version 1")]
    Version(u8),
    /// Header CRC wrong.
    #[error("stored frame header CRC is {actual:08x}, stored {stored:08x}")]
    HeaderCrc {
        /// As computed.
        actual: u32,
        /// As stored.
        stored: u32,
    },
    /// A count or list of the header breaks its layout.
    #[error("stored frame header is malformed: {what}")]
    Malformed {
        /// Which rule.
        what: &'static str,
    },
    /// The body is not one.
    #[error(transparent)]
    Body(#[from] crate::batch::BodyError),
}

/// Encodes the header that precedes a body of `body_bytes` bytes, its CRC included.
pub fn encode_header(header: &FrameHeader, body_bytes: u32) -> BytesMut {
    let _ = (header, body_bytes);
    unimplemented!()
}

/// Length of the whole frame, from its first 16 bytes. `None` while fewer are there.
///
/// # Errors
/// If magic or version are not ours, or the lengths are over 64 MiB.
pub fn frame_bytes(prefix: &[u8]) -> Result<Option<usize>, FrameError> {
    let _ = prefix;
    unimplemented!()
}

impl StoredFrame {
    /// Checks and takes exactly one frame.
    ///
    /// # Errors
    /// If a byte of it is wrong.
    pub fn parse(bytes: Bytes) -> Result<Self, FrameError> {
        let _ = bytes;
        unimplemented!()
    }
    /// LSNs it takes: its records, at least 1.
    pub fn lsn_count(&self) -> u64 {
        self.body.as_ref().map_or(1, |body| u64::from(body.len().max(1)))
    }
    /// First LSN behind it.
    pub fn next_lsn(&self) -> u64 {
        self.header.first_lsn + self.lsn_count()
    }
    /// For each record of the body: topic id, offset, key version. Offsets count up per topic in batch order.
    pub fn positions(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        std::iter::empty()
    }
}
