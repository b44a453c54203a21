//! The formats of Tidegate: record batches, stored frames, stream messages, cursors, names and the error table.
//!
//! Pure: no I/O, no async, no clock. Everything here takes bytes and gives values, or the other way round, so that the
//! broker, the client, the tools and the tests speak of the same bytes. All integers are little endian.

pub mod batch;
pub mod cursor;
pub mod error;
pub mod limits;
pub mod record;
pub mod stored;
pub mod topic;
pub mod wire;

/// The text, cut to at most `bytes_max` bytes at the border of a character.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}

#[cfg(test)]
mod testing;
