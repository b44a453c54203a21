//! One record, borrowed or owned, and the layout of its headers.
//!
//! A headers item (ADR 1) is empty, which means no headers, or: u16 count, at least 1; then per header u16 name length,
//! u32 value length (`0xffff_ffff` = null), the name in UTF-8, the value. All little endian. This module knows nothing of
//! batches; `batch` calls it for every item of a body, hooks and client to build items.

use bytes::Bytes;

/// Length word of a null header value.
const NULL_VALUE: u32 = u32::MAX;
/// Bytes before the name of a header: two lengths.
const HEADER_PREFIX_BYTES: usize = 6;

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

impl RecordView<'_> {
    /// Bytes of key, value and headers together: what `Limits::record_bytes_max` bounds.
    pub fn bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + self.headers.len()
    }

    /// A copy that owns its bytes.
    ///
    /// # Errors
    /// If the headers item cannot be read; never for a record of a checked body.
    pub fn to_record(&self) -> Result<Record, HeadersError> {
        let headers = headers(self.headers)
            .map(|header| header.map(|(name, value)| (name.to_owned(), value.map(Bytes::copy_from_slice))))
            .collect::<Result<_, _>>()?;
        Ok(Record {
            key: self.key.map(Bytes::copy_from_slice),
            value: self.value.map(Bytes::copy_from_slice),
            headers,
            timestamp_ms: self.timestamp_ms,
        })
    }
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

impl Record {
    /// Appends its headers item to `out`.
    ///
    /// # Errors
    /// As [`encode_headers`]; `out` is then as it was.
    pub fn encode_headers(&self, out: &mut Vec<u8>) -> Result<(), HeadersError> {
        encode_headers(self.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())), out)
    }

    /// Bytes of its headers item.
    pub fn headers_bytes(&self) -> usize {
        if self.headers.is_empty() {
            return 0;
        }
        2 + self
            .headers
            .iter()
            .map(|(name, value)| HEADER_PREFIX_BYTES + name.len() + value.as_ref().map_or(0, Bytes::len))
            .sum::<usize>()
    }

    /// Bytes of key, value and headers together: what `Limits::record_bytes_max` bounds.
    pub fn bytes(&self) -> usize {
        self.key.as_ref().map_or(0, Bytes::len) + self.value.as_ref().map_or(0, Bytes::len) + self.headers_bytes()
    }
}

/// Why a headers item cannot be read or built.
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
    /// Only when building: a name over 65 535 bytes, a value of 4 GiB, or more than 65 535 headers.
    #[error("header {index} is too large for the layout of headers")]
    TooLarge {
        /// Which header, from 0; the last possible one if there are too many.
        index: u16,
    },
}

/// Iterates a headers item. Items from a checked batch body never give an error.
pub fn headers(item: &[u8]) -> Headers<'_> {
    Headers::new(item)
}

/// See [`headers`]. Ends after its first error.
#[derive(Debug, Clone)]
pub struct Headers<'a> {
    rest: &'a [u8],
    length: usize,
    left: u16,
    index: u16,
    failed: bool,
}

impl<'a> Headers<'a> {
    fn new(item: &'a [u8]) -> Self {
        // An item of a byte, or one that spells out "none", is not of the layout: the first step then meets the cut.
        let (left, rest) = match item.split_first_chunk::<2>() {
            Some((count, rest)) if *count != [0, 0] => (u16::from_le_bytes(*count), rest),
            _ => (u16::from(!item.is_empty()), &[][..]),
        };
        Self { rest, length: item.len(), left, index: 0, failed: false }
    }

    /// Headers not yet given, as far as the item tells the truth.
    pub fn remaining(&self) -> u16 {
        self.left
    }

    fn take(&mut self) -> Result<(&'a str, Option<&'a [u8]>), HeadersError> {
        let cut = HeadersError::Length { length: self.length };
        let Some((prefix, rest)) = self.rest.split_first_chunk::<HEADER_PREFIX_BYTES>() else { return Err(cut) };
        let name_bytes = usize::from(u16::from_le_bytes([prefix[0], prefix[1]]));
        let value_word = u32::from_le_bytes([prefix[2], prefix[3], prefix[4], prefix[5]]);
        let Some((name, rest)) = rest.split_at_checked(name_bytes) else { return Err(cut) };
        let (value, rest) = if value_word == NULL_VALUE {
            (None, rest)
        } else {
            let split = usize::try_from(value_word).ok().and_then(|bytes| rest.split_at_checked(bytes));
            let Some((value, rest)) = split else { return Err(cut) };
            (Some(value), rest)
        };
        let name = match std::str::from_utf8(name) {
            Ok(name) if !name.is_empty() => name,
            _ => return Err(HeadersError::Name { index: self.index }),
        };
        self.rest = rest;
        self.left -= 1;
        self.index = self.index.saturating_add(1);
        if self.left == 0 && !self.rest.is_empty() {
            return Err(cut);
        }
        Ok((name, value))
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Result<(&'a str, Option<&'a [u8]>), HeadersError>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.left == 0 {
            return None;
        }
        let header = self.take();
        self.failed = header.is_err();
        Some(header)
    }
}

impl std::iter::FusedIterator for Headers<'_> {}

/// Encodes headers behind what is in `out`; nothing for none.
///
/// # Errors
/// If a name is empty, or a name, a value or their number does not fit the layout; `out` is then as it was.
pub fn encode_headers<'a>(
    headers: impl ExactSizeIterator<Item = (&'a str, Option<&'a [u8]>)>,
    out: &mut Vec<u8>,
) -> Result<(), HeadersError> {
    let start = out.len();
    let encoded = encode_all(headers, out);
    if encoded.is_err() {
        out.truncate(start);
    }
    encoded
}

fn encode_all<'a>(
    headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
    out: &mut Vec<u8>,
) -> Result<(), HeadersError> {
    let start = out.len();
    let mut count: u16 = 0;
    for (name, value) in headers {
        let too_large = HeadersError::TooLarge { index: count };
        if name.is_empty() {
            return Err(HeadersError::Name { index: count });
        }
        let Ok(name_bytes) = u16::try_from(name.len()) else { return Err(too_large) };
        let value_word = match value.map(|value| u32::try_from(value.len())) {
            None => NULL_VALUE,
            Some(Ok(bytes)) if bytes != NULL_VALUE => bytes,
            Some(_) => return Err(too_large),
        };
        if count == 0 {
            out.extend_from_slice(&[0; 2]);
        }
        let Some(next) = count.checked_add(1) else { return Err(too_large) };
        count = next;
        out.extend_from_slice(&name_bytes.to_le_bytes());
        out.extend_from_slice(&value_word.to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(value.unwrap_or_default());
    }
    if let Some(place) = out.get_mut(start..start + 2).filter(|_| count > 0) {
        place.copy_from_slice(&count.to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
