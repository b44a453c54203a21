//! Segments, version 1: a window of the log, its records sorted by (topic, key, offset), with what finds them in every
//! order (ADR 8).
//!
//! ```text
//! 0  8  magic "TGS1" · u8 version = 1 · u8 level · u16 shard
//!       blocks              records by (topic, key, offset), about 64 KiB each           `block`
//!       directory pages     keys with their heads, about 2 KiB each                      `directory`
//!       pages of heads      frames without their records, in shard order, about 64 KiB   `heads`
//!       permutations        per topic: from offset to rank                               `topics`
//!       topic table · block index · directory index · index of heads · filter            read when a segment is opened
//!       footer, 100 bytes                                                                `footer`
//! ```
//!
//! All integers little endian. Each block, page and table is a [`chunk`]: codec, payload, a CRC that knows its position.
//! One copy of the records serves replay of a key (filter → page → one range of blocks), a topic in order (permutation →
//! blocks) and the shard in order (heads → permutation → blocks → frames as they were, their CRCs checked again).
//!
//! Must not know where objects lie, nor manifests: it builds bytes and reads ranges.

mod block;
mod cache;
mod check;
mod chunk;
mod directory;
mod filter;
mod footer;
mod heads;
mod history;
mod keys;
mod reader;
mod scan;
mod survey;
#[cfg(test)]
mod tests;
mod topics;
mod varint;
mod writer;

use bytes::Bytes;

pub use self::{
    cache::Cache,
    check::{Fault as CheckFault, check, check_whole, footer_of},
    directory::KeyHead,
    footer::FOOTER_BYTES,
    keys::KeyList,
    reader::{Expected, Ranges, Segment},
    survey::{PART_NAMES, Survey, TopicSurvey},
    writer::build,
};

/// A record with all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// The topic's id.
    pub topic_id: u64,
    /// In its topic.
    pub offset: u64,
    /// Of its key; 0 for a null key.
    pub key_version: u64,
    /// In its shard.
    pub lsn: u64,
    /// Unix milliseconds.
    pub broker_time_ms: i64,
    /// Chain generation under which it was taken.
    pub generation: u64,
    /// The producer's own time, Unix milliseconds.
    pub timestamp_ms: i64,
    /// `None` is a null key.
    pub key: Option<Bytes>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    /// A headers item (ADR 1); empty = none.
    pub headers: Bytes,
}

/// What a record costs a read beside its own bytes: itself and, where it gets one, a frame of its own. Without it, a key of
/// nothing but tombstones would never fill a read.
const RECORD_COST_BYTES: usize = 512;

impl StoredRecord {
    /// What a read is charged for it: bytes of key, value and headers, and the cost of any record.
    pub fn charge(&self) -> usize {
        let content = [&self.key, &self.value].into_iter().flatten().map(Bytes::len).sum::<usize>();
        content + self.headers.len() + RECORD_COST_BYTES
    }
}

/// Whose records are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredKey<'a> {
    /// The topic's id.
    pub topic_id: u64,
    /// As stored.
    pub key: &'a [u8],
    /// Records before this offset are not.
    pub from_offset: u64,
}

/// Records of a key out of a stretch of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyRun {
    /// In order.
    pub records: Vec<StoredRecord>,
    /// Everything before was looked at.
    pub next_lsn: u64,
}

impl KeyRun {
    /// The part before an LSN.
    pub(super) fn before(mut self, end: u64) -> Self {
        self.records.retain(|record| record.lsn < end);
        self.next_lsn = self.next_lsn.min(end);
        self
    }
}

/// Records of a topic or key in offset order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slice {
    /// The records.
    pub records: Vec<StoredRecord>,
    /// Where the bound cut; `None`: the segment holds no more.
    pub next_offset: Option<u64>,
}
