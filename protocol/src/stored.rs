//! The stored frame: what the WAL, segments and the tail hold (ADR 1 draws it).
//!
//! Owns the broker header: encoding it, and checking header and body against each other. Must not know files, offsets in
//! them, or what a refusal means. Called by `shard` (makes frames), `storage` (keeps them) and readers.

mod codec;
mod head;
#[cfg(test)]
mod tests;

use bytes::{Bytes, BytesMut};

pub use self::head::FrameHead;
use crate::{
    batch::{BatchBody, BodyError},
    limits::{FRAME_BYTES_MAX, Limits},
};

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"TGF1";
/// Version of the layout.
pub const FRAME_VERSION: u8 = 1;
/// Bytes of the header before its lists.
pub const HEADER_FIXED_BYTES: usize = 84;
/// Bytes from which [`frame_bytes`] tells the length of the whole.
pub const PREFIX_BYTES: usize = 16;
/// Bytes of a reason; longer ones are cut at the border of a character.
pub const REASON_BYTES_MAX: usize = 256;
/// Bytes of a plugin's name.
pub const PLUGIN_BYTES_MAX: usize = 64;

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

impl Refused {
    /// With its texts cut to what a frame keeps.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.reason.truncate(crate::cut(&self.reason, REASON_BYTES_MAX).len());
        self.plugin.truncate(crate::cut(&self.plugin, PLUGIN_BYTES_MAX).len());
        self
    }
}

impl TryFrom<u8> for RefusedStatus {
    type Error = u8;
    fn try_from(status: u8) -> Result<Self, u8> {
        match status {
            1 => Ok(Self::Dropped),
            2 => Ok(Self::Rejected),
            3 => Ok(Self::Diverted),
            other => Err(other),
        }
    }
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
    /// Header and body together are over `FRAME_BYTES_MAX`.
    #[error("stored frame is {bytes} bytes, at most {} are allowed", FRAME_BYTES_MAX)]
    TooLarge {
        /// As told, or as it would be.
        bytes: u64,
    },
    /// The body is not one.
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// Encodes the header that precedes a body of `body_bytes` bytes, its CRC included. Reasons and plugin names over their
/// limits are cut.
///
/// # Panics
/// If there are over 65 535 topics or a producer's id is 0: a broken invariant of the caller.
pub fn encode_header(header: &FrameHeader, body_bytes: u32) -> BytesMut {
    codec::encode(header, body_bytes, 0)
}

/// Length of the whole frame, from its first 16 bytes. `None` while fewer are there.
///
/// # Errors
/// If magic or version are not ours, or the lengths are over 64 MiB.
pub fn frame_bytes(prefix: &[u8]) -> Result<Option<usize>, FrameError> {
    Ok(codec::lengths(prefix)?.map(|lengths| lengths.header + lengths.body))
}

impl StoredFrame {
    /// Checks and takes exactly one frame.
    ///
    /// # Errors
    /// If a byte of it is wrong.
    pub fn parse(bytes: Bytes) -> Result<Self, FrameError> {
        let Some(lengths) = codec::lengths(&bytes)? else {
            return Err(FrameError::Cut { needed: PREFIX_BYTES, there: bytes.len() });
        };
        let needed = lengths.header + lengths.body;
        if bytes.len() < needed {
            return Err(FrameError::Cut { needed, there: bytes.len() });
        }
        if bytes.len() > needed {
            return Err(FrameError::Malformed { what: "bytes are left over" });
        }
        codec::check_crc(&bytes[..lengths.header])?;
        let body = match lengths.body {
            0 => None,
            _ => Some(BatchBody::parse(bytes.slice(lengths.header..), &Limits::STORED)?),
        };
        let records = body.as_ref().map_or(0, BatchBody::len);
        let header = codec::decode(&bytes[..lengths.header], records)?;
        check_against_body(&header, body.as_ref())?;
        Ok(Self { header, body, bytes })
    }

    /// Encodes a frame. The body's memory is given up for that of the frame.
    ///
    /// # Errors
    /// If header and body do not belong together, or are too large together: the chain may have made a batch grow.
    ///
    /// # Panics
    /// As [`encode_header`].
    pub fn from_parts(mut header: FrameHeader, body: Option<BatchBody>) -> Result<Self, FrameError> {
        header.refused = header.refused.into_iter().map(Refused::bounded).collect();
        check_against_body(&header, body.as_ref())?;
        let body_bytes = body.as_ref().map_or(0, |body| body.bytes().len());
        let told = u32::try_from(body_bytes).map_err(|_| FrameError::TooLarge { bytes: body_bytes as u64 })?;
        let mut bytes = codec::encode(&header, told, body_bytes);
        let header_bytes = bytes.len();
        if header_bytes + body_bytes > FRAME_BYTES_MAX {
            return Err(FrameError::TooLarge { bytes: (header_bytes + body_bytes) as u64 });
        }
        if let Some(body) = &body {
            bytes.extend_from_slice(body.bytes());
        }
        let bytes = bytes.freeze();
        let body = body.map(|body| body.moved_to(bytes.slice(header_bytes..)));
        Ok(Self { header, body, bytes })
    }

    /// LSNs it takes: its records, at least 1.
    pub fn lsn_count(&self) -> u64 {
        self.body.as_ref().map_or(1, |body| u64::from(body.len().max(1)))
    }
    /// First LSN behind it.
    pub fn next_lsn(&self) -> u64 {
        self.header.first_lsn.saturating_add(self.lsn_count())
    }
    /// For each record of the body: topic id, offset, key version. Offsets count up per topic in batch order.
    pub fn positions(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let mut next: Vec<TopicStamp> = self.header.topics.clone();
        let sections = self.body.as_ref().map_or(&[][..], BatchBody::sections);
        let topics = sections.iter().flat_map(|section| (0..section.records).map(|_| usize::from(section.topic)));
        topics.zip(&self.header.key_versions).filter_map(move |(topic, key_version)| {
            let stamp = next.get_mut(topic)?;
            let offset = stamp.base_offset;
            stamp.base_offset = offset.wrapping_add(1);
            Some((stamp.id, offset, *key_version))
        })
    }
    /// Records of the body that a client sent; those behind them were emitted by plugins.
    pub fn client_records(&self) -> u32 {
        let refused = u32::try_from(self.header.refused.len()).unwrap_or(u32::MAX);
        self.header.input_count.saturating_sub(refused)
    }
}

/// What header and body say of each other.
fn check_against_body(header: &FrameHeader, body: Option<&BatchBody>) -> Result<(), FrameError> {
    let fault = |what| Err(FrameError::Malformed { what });
    let records = body.map_or(0, BatchBody::len);
    if header.topics.len() != body.map_or(0, |body| body.topics().len()) {
        return fault("topic stamps are not one per topic of the body");
    }
    if header.key_versions.len() != records as usize {
        return fault("key versions are not one per record");
    }
    if header.first_lsn.checked_add(u64::from(records.max(1))).is_none() {
        return fault("LSNs overflow");
    }
    if header.topics.iter().any(|topic| topic.base_offset.checked_add(u64::from(records)).is_none()) {
        return fault("offsets overflow");
    }
    if !header.refused.is_sorted_by(|one, next| one.index < next.index) {
        return fault("refused records do not ascend");
    }
    if header.refused.last().is_some_and(|last| last.index >= header.input_count) {
        return fault("a refused record is none of the input");
    }
    // Ascending and below the input count, so there are at most that many.
    let admitted = header.input_count as usize - header.refused.len();
    if admitted > records as usize {
        return fault("records are neither in the body nor refused");
    }
    Ok(())
}
