//! One record, borrowed or owned, and the layout of its headers.

use bytes::Bytes;

/// A record as it lies in a batch body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// `None` is a null key: the record has no version.
    pub key: Option<&'a [u8]>,
    /// `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// A headers item (see ADR 1); empty = none. Read it with [`headers`].
    pub headers: &'a [u8],
    /// The producer's own time, Unix milliseconds.
    pub timestamp_ms: i64,
}

/// A record that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// `None` is a null key.
    pub key: Option<Bytes>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    /// Names and values in order; names may repeat.
    pub headers: Vec<(String, Option<Bytes>)>,
    /// The producer's own time, Unix milliseconds.
    pub timestamp_ms: i64,
}

/// Why a headers item cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeadersError {
    /// The item ends inside a header, or bytes are left over.
    #[error("headers item of {length} bytes is cut or has bytes left over")]
    Length {
        /// Bytes of the item.
        length: usize,
    },
    /// A name is empty or not UTF-8.
    #[error("name of header {index} is empty or not UTF-8")]
    Name {
        /// Which header, from 0.
        index: u16,
    },
}

/// Iterates a headers item. Items from a checked batch body never give an error.
pub fn headers(item: &[u8]) -> Headers<'_> {
    Headers::new(item)
}

/// See [`headers`].
#[derive(Debug, Clone)]
pub struct Headers<'a> {
    rest: &'a [u8],
    left: u16,
    index: u16,
    failed: bool,
}

impl<'a> Headers<'a> {
    fn new(item: &'a [u8]) -> Self {
        let _ = item;
        unimplemented!()
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Result<(&'a str, Option<&'a [u8]>), HeadersError>;
    fn next(&mut self) -> Option<Self::Item> {
        unimplemented!()
    }
}

/// Encodes headers into `out`; nothing for none.
pub fn encode_headers<'a>(headers: impl ExactSizeIterator<Item = (&'a str, Option<&'a [u8]>)>, out: &mut Vec<u8>) {
    let _ = (headers.len(), out);
    unimplemented!()
}
