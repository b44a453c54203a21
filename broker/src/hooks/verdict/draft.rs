//! One record while the operations of a verdict are tried on it.

use std::borrow::Cow;

use bytes::Bytes;
use tidegate_protocol::{
    limits::Limits,
    record::{encode_headers, headers},
};

use super::{BadVerdict, limit};
use crate::hooks::{
    grants::{Grants, HEADER_NAME_BYTES_MAX},
    work::Patch,
};

/// The fields set so far.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) key: Option<Option<Bytes>>,
    pub(super) value: Option<Option<Bytes>>,
    headers: Cow<'a, [u8]>,
}

impl<'a> Draft<'a> {
    /// Begins with the record's headers as they are now.
    pub(super) fn new(headers: &'a [u8]) -> Self {
        Self { key: None, value: None, headers: Cow::Borrowed(headers) }
    }

    /// Appends a header to the item: the count goes up by one, the bytes go to the end.
    pub(super) fn add_header(&mut self, name: &[u8], value: &[u8], limits: &Limits) -> Result<(), BadVerdict> {
        let item = self.headers.to_mut();
        let count = item.first_chunk().map_or(0, |count| usize::from(u16::from_le_bytes(*count))) + 1;
        limit("headers of a record", count, limits.headers_max.min(u32::from(u16::MAX)) as usize)?;
        let bytes = item.len().max(2) + 6 + name.len() + value.len();
        limit("bytes of the headers of a record", bytes, limits.headers_bytes_max as usize)?;
        // Both lengths were just bounded: a name by 256, a value by the headers' limit.
        let name_bytes = u16::try_from(name.len()).unwrap_or(u16::MAX);
        let value_bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
        let count = u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes();
        match item.first_chunk_mut() {
            Some(old) => *old = count,
            None => item.extend_from_slice(&count),
        }
        item.extend_from_slice(&name_bytes.to_le_bytes());
        item.extend_from_slice(&value_bytes.to_le_bytes());
        item.extend_from_slice(name);
        item.extend_from_slice(value);
        Ok(())
    }

    /// Takes out every header of the name.
    pub(super) fn remove_header(&mut self, name: &[u8]) -> Result<(), BadVerdict> {
        let all = headers(&self.headers).collect::<Result<Vec<_>, _>>().map_err(malformed)?;
        let kept: Vec<_> = all.iter().copied().filter(|(other, _)| other.as_bytes() != name).collect();
        if kept.len() < all.len() {
            let mut item = Vec::with_capacity(self.headers.len());
            encode_headers(kept.into_iter(), &mut item).map_err(malformed)?;
            self.headers = Cow::Owned(item);
        }
        Ok(())
    }

    /// What differs from the body, on top of what differed before; `None` if no field was set.
    pub(super) fn finish(self, old: Option<&Patch>) -> Option<Patch> {
        let headers = match self.headers {
            Cow::Owned(item) => Some(Bytes::from(item)),
            Cow::Borrowed(_) => None,
        };
        if self.key.is_none() && self.value.is_none() && headers.is_none() {
            return None;
        }
        let old = old.cloned().unwrap_or_default();
        Some(Patch { key: self.key.or(old.key), value: self.value.or(old.value), headers: headers.or(old.headers) })
    }
}

/// A name that this plugin may set or remove.
pub(super) fn check_name(name: &[u8], grants: &Grants) -> Result<(), BadVerdict> {
    if name.is_empty() || name.len() > HEADER_NAME_BYTES_MAX {
        return Err(BadVerdict::HeaderName { bytes: name.len() });
    }
    let name = std::str::from_utf8(name).map_err(|_| BadVerdict::NotUtf8 { what: "a header name" })?;
    if grants.may_touch_header(name) { Ok(()) } else { Err(BadVerdict::HeaderNotGranted { name: name.to_owned() }) }
}

/// A whole headers item from a guest.
pub(super) fn check_headers(item: &[u8], grants: &Grants, limits: &Limits) -> Result<(), BadVerdict> {
    limit("bytes of the headers of a record", item.len(), limits.headers_bytes_max as usize)?;
    let mut count = 0;
    for header in headers(item) {
        let (name, _) = header.map_err(malformed)?;
        check_name(name.as_bytes(), grants)?;
        count += 1;
    }
    limit("headers of a record", count, limits.headers_max as usize)
}

fn malformed(error: tidegate_protocol::record::HeadersError) -> BadVerdict {
    BadVerdict::Headers { reason: error.to_string() }
}
