//! The batch body: records in flat columns, one layout for wire, disk and reader (ADR 1 draws it).

use bytes::Bytes;

use crate::{limits::Limits, record::RecordView};

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
    /// A column, topic or headers item breaks its layout.
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
        let _ = (bytes, limits);
        unimplemented!()
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
    /// Names of the topics, in the order of the table.
    pub fn topics(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        self.topics.iter().map(|_| unimplemented!())
    }
    /// The runs, in batch order.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }
    /// The record at a position below `len`.
    ///
    /// # Panics
    /// If there is none.
    pub fn record(&self, at: u32) -> RecordView<'_> {
        let _ = at;
        unimplemented!()
    }
    /// All records with the number of their topic, in batch order.
    pub fn records(&self) -> impl ExactSizeIterator<Item = (u16, RecordView<'_>)> + '_ {
        (0..self.records).map(|_| unimplemented!())
    }
    /// The key column: `len` end words as little-endian bytes, and the bytes of all keys.
    pub fn key_column(&self) -> (&[u8], &[u8]) {
        let _ = &self.columns;
        unimplemented!()
    }
    /// The value column, as `key_column`.
    pub fn value_column(&self) -> (&[u8], &[u8]) {
        unimplemented!()
    }
    /// The column of headers items, as `key_column`.
    pub fn header_column(&self) -> (&[u8], &[u8]) {
        unimplemented!()
    }
    /// `len` timestamps as little-endian i64.
    pub fn timestamp_column(&self) -> &[u8] {
        unimplemented!()
    }
    /// The record's bytes as a slice that shares this body's memory.
    pub fn slice(&self, part: &[u8]) -> Bytes {
        self.bytes.slice_ref(part)
    }
}

/// Builds a body record by record.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    _private: (),
}

impl BatchBuilder {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }
    /// Appends a record; a run of one topic becomes one section. Topics are interned.
    pub fn push(&mut self, topic: &str, record: RecordView<'_>) {
        let _ = (topic, record);
        unimplemented!()
    }
    /// Records so far.
    pub fn len(&self) -> u32 {
        unimplemented!()
    }
    /// No record so far.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes the body would have now.
    pub fn encoded_bytes(&self) -> usize {
        unimplemented!()
    }
    /// The body, and an empty builder again (its memory is kept).
    pub fn finish(&mut self) -> Bytes {
        unimplemented!()
    }
}
