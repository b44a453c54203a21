//! The batch body: records in flat columns, one layout for wire, disk and reader (ADR 1 draws it).
//!
//! Owns the layout: checking bytes into a [`BatchBody`], reading records and columns out of it, building one. Must not know
//! where a body goes, nor who may write what. Called by client and server (wire), `stored` (disk), hooks (columns).

mod builder;
mod parse;
#[cfg(test)]
mod tests;

use bytes::Bytes;

pub use self::builder::BatchBuilder;
use crate::{error::Code, limits::Limits, record::RecordView, topic::TopicError};

/// Version of the layout.
pub const BODY_VERSION: u8 = 1;
/// Codec byte of a body that is not compressed.
pub const CODEC_NONE: u8 = 0;
/// Bytes before the topic table.
pub const BODY_HEADER_BYTES: usize = 24;
/// Bytes of each record beside its items: three end words and the timestamp.
pub const RECORD_FIXED_BYTES: usize = 20;

/// Bit 31 of an end word: the item is null.
pub const NULL: u32 = 1 << 31;

/// A body whose every byte was checked: lengths, order of the ends, topics, headers items, CRC.
#[derive(Debug, Clone)]
pub struct BatchBody {
    bytes: Bytes,
    topics: Vec<std::ops::Range<usize>>,
    sections: Vec<Section>,
    records: u32,
    columns: Columns,
}

/// A run of records of one topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Number of the topic in the body's topic table.
    pub topic: u16,
    /// Records in the run, at least 1.
    pub records: u32,
    /// Position of the first of them in the body.
    pub first: u32,
}

impl BodyError {
    /// The code a client is told.
    pub fn code(&self) -> Code {
        match self {
            Self::Length { .. } | Self::Malformed { .. } => Code::BatchMalformed,
            Self::Crc { .. } => Code::BatchCorrupt,
            Self::Version(_) => Code::UnsupportedVersion,
            Self::Codec(_) => Code::UnsupportedCodec,
            Self::Limit { record: Some(_), .. } => Code::RecordTooLarge,
            Self::Limit { record: None, .. } => Code::BatchTooLarge,
            Self::Topic(_) => Code::TopicInvalid,
        }
    }

    /// The record at fault, if one is.
    pub fn record(&self) -> Option<u32> {
        match self {
            Self::Limit { record, .. } => *record,
            _ => None,
        }
    }
}

/// Where each column starts in the body's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Columns {
    key_ends: usize,
    value_ends: usize,
    header_ends: usize,
    timestamps: usize,
    keys: usize,
    values: usize,
    headers: usize,
}

/// Why bytes are not a batch body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Shorter than its own lengths say, or longer.
    #[error("batch body is {actual} bytes, its header says {expected}")]
    Length {
        /// Bytes expected.
        expected: usize,
        /// Bytes there.
        actual: usize,
    },
    /// The CRC does not match.
    #[error("batch body CRC is {actual:08x}, stored {stored:08x}")]
    Crc {
        /// As computed.
        actual: u32,
        /// As stored.
        stored: u32,
    },
    /// A version this build does not know.
    #[error("batch body version {0} is not served; this build knows version 1")]
    Version(u8),
    /// A codec this build does not know.
    #[error("batch codec {0} is not served; this build knows 0 (none)")]
    Codec(u8),
    /// A bound of `Limits` is broken.
    #[error("{what} is {actual}, at most {max} are allowed")]
    Limit {
        /// What is too large: `record bytes`, `key bytes`, …
        what: &'static str,
        /// As found.
        actual: u64,
        /// The limit.
        max: u64,
        /// The record at fault, if one is.
        record: Option<u32>,
    },
    /// A name in the topic table is none.
    #[error("batch body has a bad topic name: {0}")]
    Topic(TopicError),
    /// A column, table or headers item breaks its layout.
    #[error("batch body is malformed: {what}")]
    Malformed {
        /// Which rule.
        what: &'static str,
    },
}

impl BatchBody {
    /// Checks and takes a body. Allocates only for topics and sections, after their counts were checked.
    ///
    /// # Errors
    /// If the bytes are not exactly one well-formed body within `limits`.
    pub fn parse(bytes: Bytes, limits: &Limits) -> Result<Self, BodyError> {
        parse::check(&bytes, limits)?;
        parse::layout(bytes, limits)
    }
    /// The bytes, as they came.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
    /// Number of records.
    pub fn len(&self) -> u32 {
        self.records
    }
    /// No record.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }
    /// Names of the topics, in the order of the table: checked, each once, each used by a section.
    pub fn topics(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        self.topics.iter().map(|range| self.text(range))
    }
    /// The name with a number of the table; `None` if there is none.
    pub fn topic(&self, number: u16) -> Option<&str> {
        self.topics.get(usize::from(number)).map(|range| self.text(range))
    }
    /// The runs, in batch order.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }
    /// Number of the topic of the record at a position below `len`; `None` behind it.
    pub fn topic_at(&self, at: u32) -> Option<u16> {
        if at >= self.records {
            return None;
        }
        let behind = self.sections.partition_point(|section| section.first <= at);
        self.sections.get(behind.checked_sub(1)?).map(|section| section.topic)
    }
    /// The record at a position below `len`.
    ///
    /// # Panics
    /// If there is none.
    pub fn record(&self, at: u32) -> RecordView<'_> {
        assert!(at < self.records, "record {at} of {}", self.records);
        let at = at as usize;
        let columns = &self.columns;
        // `parse` proved that ends ascend and stay in their column, so the slices below are in range.
        RecordView {
            key: self.item(columns.key_ends, columns.keys, at),
            value: self.item(columns.value_ends, columns.values, at),
            headers: self.item(columns.header_ends, columns.headers, at).unwrap_or_default(),
            timestamp_ms: i64::from_le_bytes(self.array(columns.timestamps + at * 8)),
        }
    }
    /// All records with the number of their topic, in batch order.
    pub fn records(&self) -> impl ExactSizeIterator<Item = (u16, RecordView<'_>)> + '_ {
        Records { body: self, at: 0, section: 0, section_end: 0, topic: 0 }
    }
    /// The key column: `len` end words as little-endian bytes, and the bytes of all keys.
    pub fn key_column(&self) -> (&[u8], &[u8]) {
        let columns = &self.columns;
        (&self.bytes[columns.key_ends..columns.value_ends], &self.bytes[columns.keys..columns.values])
    }
    /// The value column, as `key_column`.
    pub fn value_column(&self) -> (&[u8], &[u8]) {
        let columns = &self.columns;
        (&self.bytes[columns.value_ends..columns.header_ends], &self.bytes[columns.values..columns.headers])
    }
    /// The column of headers items, as `key_column`.
    pub fn header_column(&self) -> (&[u8], &[u8]) {
        let columns = &self.columns;
        (&self.bytes[columns.header_ends..columns.timestamps], &self.bytes[columns.headers..])
    }
    /// `len` timestamps as little-endian i64.
    pub fn timestamp_column(&self) -> &[u8] {
        &self.bytes[self.columns.timestamps..self.columns.keys]
    }
    /// The record's bytes as a slice that shares this body's memory.
    ///
    /// # Panics
    /// If `part` was not taken from this body.
    pub fn slice(&self, part: &[u8]) -> Bytes {
        self.bytes.slice_ref(part)
    }

    /// The same body over other memory that holds the same bytes: a part of the frame it was copied into.
    pub(crate) fn moved_to(mut self, bytes: Bytes) -> Self {
        debug_assert_eq!(self.bytes, bytes, "a body moves only to its own bytes");
        self.bytes = bytes;
        self
    }

    fn text(&self, range: &std::ops::Range<usize>) -> &str {
        std::str::from_utf8(&self.bytes[range.clone()]).unwrap_or_default()
    }

    fn array<const N: usize>(&self, place: usize) -> [u8; N] {
        *self.bytes[place..].first_chunk().expect("parse proved that the columns are whole")
    }

    fn item(&self, ends: usize, column: usize, at: usize) -> Option<&[u8]> {
        let end = u32::from_le_bytes(self.array(ends + at * 4));
        if end & NULL != 0 {
            return None;
        }
        let start = match at {
            0 => 0,
            _ => u32::from_le_bytes(self.array(ends + (at - 1) * 4)) & !NULL,
        };
        Some(&self.bytes[column + start as usize..column + end as usize])
    }
}

/// See [`BatchBody::records`]: one step per record, one more per section.
struct Records<'a> {
    body: &'a BatchBody,
    at: u32,
    section: usize,
    section_end: u32,
    topic: u16,
}

impl<'a> Iterator for Records<'a> {
    type Item = (u16, RecordView<'a>);
    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.body.records {
            return None;
        }
        if self.at == self.section_end {
            let section = self.body.sections.get(self.section)?;
            self.section += 1;
            self.section_end = section.first + section.records;
            self.topic = section.topic;
        }
        let record = self.body.record(self.at);
        self.at += 1;
        Some((self.topic, record))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.body.records - self.at) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Records<'_> {}
