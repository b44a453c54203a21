//! Cursors: where a reader goes on. Opaque to clients, printable, resumable, and without a pattern inside.
//!
//! Layout, little endian: u8 version = 1; u8 kind; then kind 1 (shard order): u16 shard, u64 next LSN; kind 2 (one topic):
//! u64 topic id, u64 next offset; u32 CRC-32C of all before. Printed as unpadded base64url.

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

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let _ = f;
        unimplemented!()
    }
}

impl std::str::FromStr for Cursor {
    type Err = CursorError;
    fn from_str(text: &str) -> Result<Self, CursorError> {
        let _ = text;
        unimplemented!()
    }
}
