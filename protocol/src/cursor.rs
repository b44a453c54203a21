//! Cursors: where a reader goes on. Opaque to clients, printable, resumable, and without a pattern inside.
//!
//! Layout, little endian: u8 version = 1; u8 kind; then kind 1 (shard order): u16 shard, u64 next LSN; kind 2 (one topic):
//! u64 topic id, u64 next offset; u32 CRC-32C of all before. Printed as unpadded base64url.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::{Buf, BufMut};

/// Version byte of a cursor.
pub const CURSOR_VERSION: u8 = 1;
/// Longest printed cursor; longer text is refused unread.
pub const CURSOR_TEXT_BYTES_MAX: usize = 64;

const KIND_SHARD: u8 = 1;
const KIND_TOPIC: u8 = 2;

/// A position in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cursor {
    /// In shard order: what a wildcard subscription holds.
    Shard {
        /// The shard.
        shard: u16,
        /// The next position to scan.
        next_lsn: u64,
    },
    /// In one topic.
    Topic {
        /// The topic's id: a topic that was deleted and made again is another one.
        topic_id: u64,
        /// The next offset to scan.
        next_offset: u64,
    },
}

/// Why text is not a cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of this version: {0}")]
pub struct CursorError(pub &'static str);

impl Cursor {
    /// Its bytes, CRC included.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(22);
        out.put_u8(CURSOR_VERSION);
        match *self {
            Self::Shard { shard, next_lsn } => {
                out.put_u8(KIND_SHARD);
                out.put_u16_le(shard);
                out.put_u64_le(next_lsn);
            }
            Self::Topic { topic_id, next_offset } => {
                out.put_u8(KIND_TOPIC);
                out.put_u64_le(topic_id);
                out.put_u64_le(next_offset);
            }
        }
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        out
    }

    /// Takes exactly one cursor.
    ///
    /// # Errors
    /// If the bytes are of another version or kind, of the wrong length, or damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CursorError> {
        let (covered, crc) = bytes.split_last_chunk::<4>().ok_or(CursorError("too short"))?;
        let (version, rest) = covered.split_first().ok_or(CursorError("too short"))?;
        if *version != CURSOR_VERSION {
            return Err(CursorError("unknown version"));
        }
        if crc32c::crc32c(covered) != u32::from_le_bytes(*crc) {
            return Err(CursorError("damaged"));
        }
        match rest.split_first() {
            Some((&KIND_SHARD, mut fields)) if fields.len() == 10 => {
                Ok(Self::Shard { shard: fields.get_u16_le(), next_lsn: fields.get_u64_le() })
            }
            Some((&KIND_TOPIC, mut fields)) if fields.len() == 16 => {
                Ok(Self::Topic { topic_id: fields.get_u64_le(), next_offset: fields.get_u64_le() })
            }
            _ => Err(CursorError("unknown kind or wrong length")),
        }
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.to_bytes()))
    }
}

impl std::str::FromStr for Cursor {
    type Err = CursorError;
    fn from_str(text: &str) -> Result<Self, CursorError> {
        if text.len() > CURSOR_TEXT_BYTES_MAX {
            return Err(CursorError("too long"));
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| CursorError("not unpadded base64url"))?;
        Self::from_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests;
