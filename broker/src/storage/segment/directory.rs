//! The key directory: every key with its head, by (topic, key), in pages of about 2 KiB, and the index of the pages.
//!
//! ```text
//! page     entries: topic number (first of a page: absolute; else: difference) · bytes shared with the key before ·
//!          bytes of the rest · the rest · records × 2 + 1 if the last one has a null value ·
//!          last offset − topic's first offset (signed) · last version
//! index    pages, then per page: bytes of the chunk · entries · rank of the first record · topic number (difference to
//!          the page before) · bytes of the separator · separator: the shortest key that is over the last key of the page
//!          before and not over the first one here
//! ```
//!
//! Ranks are not written per entry: a key's records follow those of the key before; a topic's null keys come first. A key
//! may have no record any more: its head stays.

use std::cmp::Ordering;

use super::{
    topics::Topic,
    varint::{Cursor, Fault, put, put_bytes, put_signed},
};

/// A look-up reads half a page's entries, some 10 ns each; a page costs some 60 bytes of memory while the segment is open.
const PAGE_BYTES: usize = 2 << 10;

/// Where a key stands at the end of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHead {
    /// Of its last record.
    pub version: u64,
    /// Of its last record.
    pub last_offset: u64,
    /// Its last record has a null value.
    pub deleted: bool,
    /// Its records in this segment; may be 0, the head outlives them.
    pub records: u32,
}

/// A page of the directory, in the segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) position: u64,
    pub(super) bytes: u32,
    entries: u32,
    first_rank: u32,
    topic: u32,
    separator: Box<[u8]>,
}

/// A key as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) head: KeyHead,
    pub(super) first_rank: u32,
}

/// Builds pages; the caller puts them into the segment.
#[derive(Debug, Default)]
pub(super) struct Builder {
    /// Payloads of the pages, back to back, and where each ends.
    pub(super) payloads: Vec<u8>,
    pub(super) ends: Vec<usize>,
    rows: Vec<(u32, u32, u32, Box<[u8]>)>,
    topic: u32,
    key: Vec<u8>,
    entries: u32,
}

impl Builder {
    /// Takes the next key in order. `first_rank` is that of its first record.
    pub(super) fn push(&mut self, topic: u32, key: &[u8], first_rank: u32, head: &KeyHead, topic_first_offset: u64) {
        let start = self.ends.last().copied().unwrap_or_default();
        let mut topic_before = self.topic;
        if self.payloads.len() - start >= PAGE_BYTES {
            self.ends.push(self.payloads.len());
            self.entries = 0;
        }
        let shared = if self.entries == 0 || topic_before != topic { 0 } else { shared(&self.key, key) };
        if self.entries == 0 {
            let same_topic = !self.rows.is_empty() && topic_before == topic;
            let separator = if same_topic { separator(&self.key, key) } else { &[] };
            self.rows.push((0, first_rank, topic, separator.into()));
            topic_before = 0;
        }
        self.entries += 1;
        self.rows.last_mut().expect("pushed above").0 = self.entries;
        let out = &mut self.payloads;
        put(out, u64::from(topic - topic_before));
        put(out, shared as u64);
        put_bytes(out, &key[shared..]);
        put(out, u64::from(head.records) << 1 | u64::from(head.deleted));
        put_signed(out, head.last_offset.wrapping_sub(topic_first_offset).cast_signed());
        put(out, head.version);
        self.topic = topic;
        self.key.clear();
        self.key.extend_from_slice(key);
    }

    /// Ends the last page.
    pub(super) fn finish(&mut self) {
        if self.entries > 0 {
            self.ends.push(self.payloads.len());
        }
    }

    /// The index, once every page's bytes in the segment are known.
    pub(super) fn encode_index(&self, chunk_bytes: &[usize]) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.rows.len() as u64);
        let mut topic_before = 0;
        for ((entries, first_rank, topic, separator), bytes) in self.rows.iter().zip(chunk_bytes) {
            put(&mut out, *bytes as u64);
            put(&mut out, u64::from(*entries));
            put(&mut out, u64::from(*first_rank));
            put(&mut out, u64::from(topic - topic_before));
            put_bytes(&mut out, separator);
            topic_before = *topic;
        }
        out
    }
}

/// Reads the index of pages that begin at a position. Gives the position behind the last page.
pub(super) fn decode_index(payload: &[u8], mut position: u64) -> Result<(Vec<Page>, u64), Fault> {
    let mut cursor = Cursor::new(payload);
    let count = cursor.count(5)?;
    let mut pages: Vec<Page> = Vec::with_capacity(count);
    let mut topic = 0_u32;
    for _ in 0..count {
        let (bytes, entries, first_rank) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        topic = topic.checked_add(cursor.u32()?).ok_or("topic numbers are over 32 bits")?;
        let separator = cursor.bytes()?.into();
        let page = Page { position, bytes, entries, first_rank, topic, separator };
        if pages.last().is_some_and(|before| before.place() >= page.place()) {
            return Err("pages of the directory do not ascend");
        }
        position = position.checked_add(u64::from(bytes)).ok_or("pages are over 64 bits")?;
        pages.push(page);
    }
    if cursor.is_empty() { Ok((pages, position)) } else { Err("bytes are left over behind the directory's index") }
}

impl Page {
    fn place(&self) -> (u32, &[u8]) {
        (self.topic, &self.separator)
    }

    /// Keys in it.
    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    /// Whether its first record can be one of a key of its first topic: behind the null keys, not behind the topic.
    pub(super) fn fits(&self, topics: &[Topic]) -> bool {
        let topic = topics.get(self.topic as usize);
        topic.is_some_and(|topic| {
            let ranks = topic.ranks();
            (ranks.start.saturating_add(topic.nulls)..=ranks.end).contains(&self.first_rank)
        })
    }

    /// Memory beside its own size.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.separator.len()
    }
}

/// Number of the page that would hold a key.
pub(super) fn page_of(pages: &[Page], topic: u32, key: &[u8]) -> Option<usize> {
    pages.partition_point(|page| page.place() <= (topic, key)).checked_sub(1)
}

/// Calls `each` with topic number, key and what was found, for all entries of a page, until it gives `false`.
pub(super) fn walk(
    page: &Page,
    payload: &[u8],
    topics: &[Topic],
    mut each: impl FnMut(u32, &[u8], Found) -> bool,
) -> Result<(), Fault> {
    let mut cursor = Cursor::new(payload);
    let mut key = Vec::new();
    let (mut number, mut rank) = (0_u32, page.first_rank);
    for at in 0..page.entries {
        let step = cursor.u32()?;
        number = number.checked_add(step).ok_or("topic numbers are over 32 bits")?;
        let topic = topics.get(number as usize).ok_or("the directory names a topic that is not there")?;
        if at > 0 && step > 0 {
            rank = topic.first_rank + topic.nulls;
        }
        let (shared, rest) = (cursor.usize()?, cursor.bytes()?);
        if shared > key.len() {
            return Err("a key shares more than the key before has");
        }
        key.truncate(shared);
        key.extend_from_slice(rest);
        let counted = cursor.number()?;
        let last_offset = topic.first_offset().wrapping_add(cursor.signed()?.cast_unsigned());
        let records = u32::try_from(counted >> 1).map_err(|_| "records of a key are over 32 bits")?;
        let head = KeyHead { version: cursor.number()?, last_offset, deleted: counted & 1 == 1, records };
        let behind = rank.checked_add(records).filter(|behind| *behind <= topic.ranks().end);
        let behind = behind.ok_or("records of a key go over those of its topic")?;
        if !each(number, &key, Found { head, first_rank: rank }) {
            return Ok(());
        }
        rank = behind;
    }
    if cursor.is_empty() { Ok(()) } else { Err("bytes are left over behind a page of the directory") }
}

/// Finds a key in its page. Compares no byte twice: the entries say what they share.
pub(super) fn seek(
    page: &Page,
    payload: &[u8],
    topics: &[Topic],
    wanted: (u32, &[u8]),
) -> Result<Option<Found>, Fault> {
    let mut cursor = Cursor::new(payload);
    let (mut number, mut rank) = (0_u32, page.first_rank);
    // Bytes that the key before shares with the wanted one; it is under it.
    let mut matched = 0;
    for at in 0..page.entries {
        let step = cursor.u32()?;
        number = number.checked_add(step).ok_or("topic numbers are over 32 bits")?;
        let topic = topics.get(number as usize).ok_or("the directory names a topic that is not there")?;
        if at > 0 && step > 0 {
            rank = topic.first_rank + topic.nulls;
        }
        let (shared, rest) = (cursor.usize()?, cursor.bytes()?);
        let (counted, last_offset, version) = (cursor.number()?, cursor.signed()?, cursor.number()?);
        let records = u32::try_from(counted >> 1).map_err(|_| "records of a key are over 32 bits")?;
        let behind = rank.checked_add(records).filter(|behind| *behind <= topic.ranks().end);
        let behind = behind.ok_or("records of a key go over those of its topic")?;
        if step > 0 {
            matched = 0;
        }
        if number > wanted.0 || (number == wanted.0 && shared < matched) {
            return Ok(None);
        }
        if number == wanted.0 && shared == matched {
            let target = wanted.1.get(shared..).unwrap_or_default();
            match rest.cmp(target) {
                Ordering::Less => matched += self::shared(rest, target),
                Ordering::Greater => return Ok(None),
                Ordering::Equal => {
                    let last_offset = topic.first_offset().wrapping_add(last_offset.cast_unsigned());
                    let head = KeyHead { version, last_offset, deleted: counted & 1 == 1, records };
                    return Ok(Some(Found { head, first_rank: rank }));
                }
            }
        }
        rank = behind;
    }
    Ok(None)
}

fn shared(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// The shortest beginning of `key` that is over `before`, which is under `key`.
fn separator<'a>(before: &[u8], key: &'a [u8]) -> &'a [u8] {
    &key[..(shared(before, key) + 1).min(key.len())]
}
