//! Frame heads: what a frame held beside its records, in shard order, in pages of about 64 KiB, and the index of the pages.
//!
//! They are the run-length tables: a head says for a run of LSNs broker time and generation, and for each of its topics the
//! first offset. They also hold what an answer to a producer's retry needs: its stamp, key versions, and why records were
//! refused: enough to answer a retry without a block, and when its records were compacted away. Nothing is compacted yet, and
//! a retry still reads the whole frame.
//!
//! ```text
//! page    heads: bytes · head (`FrameHead`: broker header, and the body up to its columns, as they were)
//! index   pages, then per page: bytes of the chunk · frames · LSN (difference to the page before) · broker time
//!         (difference; the first: to the segment's first)
//! ```

use bytes::Bytes;
use tidegate_protocol::stored::FrameHead;

use super::varint::{Cursor, Fault, put, put_bytes};

const PAGE_BYTES: usize = 64 << 10;

/// A page of frame heads, in the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) position: u64,
    pub(super) bytes: u32,
    pub(super) frames: u32,
    pub(super) first_lsn: u64,
    /// Broker time of its first frame: where a read since some time starts.
    pub(super) first_time_ms: i64,
}

/// Builds pages; the caller puts them into the segment.
#[derive(Debug, Default)]
pub(super) struct Builder {
    pub(super) payloads: Vec<u8>,
    pub(super) ends: Vec<usize>,
    rows: Vec<(u32, u64, i64)>,
}

impl Builder {
    /// Takes the head of the next frame.
    pub(super) fn push(&mut self, first_lsn: u64, broker_time_ms: i64, head: &[u8]) {
        let start = self.ends.last().copied().unwrap_or_default();
        let full = self.payloads.len() - start >= PAGE_BYTES;
        if full {
            self.ends.push(self.payloads.len());
        }
        if full || self.rows.is_empty() {
            self.rows.push((0, first_lsn, broker_time_ms));
        }
        self.rows.last_mut().expect("pushed above").0 += 1;
        put_bytes(&mut self.payloads, head);
    }

    /// Ends the last page.
    pub(super) fn finish(&mut self) {
        if !self.rows.is_empty() {
            self.ends.push(self.payloads.len());
        }
    }

    /// The index, once every page's bytes in the segment are known.
    pub(super) fn encode_index(&self, chunk_bytes: &[usize], first_lsn: u64, first_time_ms: i64) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.rows.len() as u64);
        let (mut lsn, mut time_ms) = (first_lsn, first_time_ms);
        for (&(frames, first_lsn, first_time_ms), &bytes) in self.rows.iter().zip(chunk_bytes) {
            put(&mut out, bytes as u64);
            put(&mut out, u64::from(frames));
            put(&mut out, first_lsn - lsn);
            put(&mut out, first_time_ms.wrapping_sub(time_ms).cast_unsigned());
            (lsn, time_ms) = (first_lsn, first_time_ms);
        }
        out
    }
}

/// Reads the index of pages that begin at a position. Gives the position behind the last page.
pub(super) fn decode_index(
    payload: &[u8],
    mut position: u64,
    first_lsn: u64,
    first_time_ms: i64,
) -> Result<(Vec<Page>, u64), Fault> {
    let mut cursor = Cursor::new(payload);
    let count = cursor.count(4)?;
    let mut pages = Vec::with_capacity(count);
    let (mut lsn, mut time_ms) = (first_lsn, first_time_ms);
    for at in 0..count {
        let (bytes, frames, step) = (cursor.u32()?, cursor.u32()?, cursor.number()?);
        time_ms = time_ms.wrapping_add(cursor.number()?.cast_signed());
        lsn = lsn.checked_add(step).ok_or("LSNs are over 64 bits")?;
        if frames == 0 || (at == 0) != (step == 0) {
            return Err("pages of frame heads do not ascend");
        }
        pages.push(Page { position, bytes, frames, first_lsn: lsn, first_time_ms: time_ms });
        position = position.checked_add(u64::from(bytes)).ok_or("pages are over 64 bits")?;
    }
    if cursor.is_empty() { Ok((pages, position)) } else { Err("bytes are left over behind the index of frame heads") }
}

/// Reads a page that ends in front of an LSN.
pub(super) fn decode(page: &Page, payload: &Bytes, next_lsn: u64) -> Result<Vec<FrameHead>, Fault> {
    let mut cursor = Cursor::new(payload);
    if page.frames as usize > payload.len() {
        return Err("a page of frame heads has more frames than bytes");
    }
    let mut heads = Vec::with_capacity(page.frames as usize);
    let mut lsn = page.first_lsn;
    for _ in 0..page.frames {
        let head = FrameHead::parse(payload.slice_ref(cursor.bytes()?)).map_err(|_| "a frame head is damaged")?;
        if head.header.first_lsn != lsn {
            return Err("a frame head does not stand where its LSN is");
        }
        lsn = head.next_lsn();
        heads.push(head);
    }
    if !cursor.is_empty() || lsn != next_lsn {
        return Err("frame heads do not fill their page");
    }
    Ok(heads)
}
