//! Blocks: records by (topic, key, offset), each key once per block in front of its records.
//!
//! ```text
//! block   groups, back to back
//! group   topic number (first of a block: absolute; else: difference) · key bytes + 1, 0 = null key · key ·
//!         records · bytes of the records · records
//! record  u8 flags: 1 = null value, 2 = headers follow, 4 = generation follows ·
//!         offset − topic's first · key version (not for a null key) · LSN − segment's first ·
//!         broker time − segment's first · timestamp − broker time (signed) ·
//!         [generation − segment's (signed)] · value bytes · [headers bytes] · value · headers item
//! ```
//!
//! All numbers are varints. A record is whole in itself, so that any one of a block can be read without those before it.

use std::sync::OnceLock;

use bytes::Bytes;
use tidegate_protocol::record::RecordView;

use super::varint::{Cursor, Fault, put, put_bytes, put_signed};

const NULL_VALUE: u8 = 1;
const HEADERS: u8 = 2;
const GENERATION: u8 = 4;

/// What numbers in records count from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bases {
    pub(super) first_lsn: u64,
    pub(super) first_time_ms: i64,
    pub(super) generation: u64,
}

/// Where a record stands, beside what its producer said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stamp {
    /// From the topic's first in the segment.
    pub(super) offset: u64,
    pub(super) key_version: u64,
    pub(super) lsn: u64,
    pub(super) broker_time_ms: i64,
    pub(super) generation: u64,
}

/// Appends a record to a group.
pub(super) fn put_record(out: &mut Vec<u8>, bases: &Bases, stamp: &Stamp, record: &RecordView<'_>) {
    let null = if record.value.is_none() { NULL_VALUE } else { 0 };
    let headers = if record.headers.is_empty() { 0 } else { HEADERS };
    let generation = if stamp.generation == bases.generation { 0 } else { GENERATION };
    out.push(null | headers | generation);
    put(out, stamp.offset);
    if record.key.is_some() {
        put(out, stamp.key_version);
    }
    put(out, stamp.lsn - bases.first_lsn);
    put(out, stamp.broker_time_ms.wrapping_sub(bases.first_time_ms).cast_unsigned());
    put_signed(out, record.timestamp_ms.wrapping_sub(stamp.broker_time_ms));
    if generation != 0 {
        put_signed(out, stamp.generation.wrapping_sub(bases.generation).cast_signed());
    }
    let value = record.value.unwrap_or_default();
    put(out, value.len() as u64);
    if headers != 0 {
        put(out, record.headers.len() as u64);
    }
    out.extend_from_slice(value);
    out.extend_from_slice(record.headers);
}

/// Appends a group of records that were put together. `topic` is the difference to the group before.
pub(super) fn put_group(out: &mut Vec<u8>, topic: u32, key: Option<&[u8]>, count: u32, records: &[u8]) {
    put(out, u64::from(topic));
    put(out, key.map_or(0, |key| key.len() as u64 + 1));
    out.extend_from_slice(key.unwrap_or_default());
    put(out, u64::from(count));
    put_bytes(out, records);
}

/// Where a record's group and itself begin in the payload.
type Slot = (u32, u32);

/// A block in memory, its CRC checked.
#[derive(Debug)]
pub(super) struct Block {
    payload: Bytes,
    /// Per record, once somebody wants one by number: where its group and itself begin.
    slots: OnceLock<Result<Box<[Slot]>, Fault>>,
}

impl Block {
    pub(super) fn new(payload: Bytes) -> Self {
        Self { payload, slots: OnceLock::new() }
    }

    /// Bytes of memory, slots counted.
    pub(super) fn memory_bytes(&self, records: u32) -> usize {
        self.payload.len() + records as usize * size_of::<Slot>() + size_of::<Self>()
    }

    /// Memory that slices of it share.
    pub(super) fn slice(&self, part: &[u8]) -> Bytes {
        self.payload.slice_ref(part)
    }

    /// The record with a number in the block: its key and itself.
    pub(super) fn record(&self, number: usize, bases: &Bases) -> Result<(RecordView<'_>, Stamp), Fault> {
        let slots = self.slots.get_or_init(|| self.find_slots()).as_ref().map_err(|fault| *fault)?;
        let &(group, record) = slots.get(number).ok_or("a block holds fewer records than its index says")?;
        let key = key_of(&mut Cursor::at(&self.payload, group as usize))?;
        read_record(&mut Cursor::at(&self.payload, record as usize), key, bases)
    }

    /// Calls `each` with topic number, key, record and its stamp for all records as they lie, every group checked.
    pub(super) fn walk(
        &self,
        bases: &Bases,
        mut each: impl FnMut(u32, &RecordView<'_>, &Stamp) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut cursor = Cursor::new(&self.payload);
        let mut topic = 0_u32;
        while !cursor.is_empty() {
            topic = topic.checked_add(cursor.u32()?).ok_or("topic numbers are over 32 bits")?;
            let key = match cursor.usize()? {
                0 => None,
                bytes => Some(cursor.take(bytes - 1)?),
            };
            let (count, bytes) = (cursor.u32()?, cursor.usize()?);
            let mut group = Cursor::new(cursor.take(bytes)?);
            for _ in 0..count {
                let (record, stamp) = read_record(&mut group, key, bases)?;
                each(topic, &record, &stamp)?;
            }
            if !group.is_empty() || count == 0 {
                return Err("records do not fill their group");
            }
        }
        Ok(())
    }

    fn find_slots(&self) -> Result<Box<[Slot]>, Fault> {
        let narrow = |place: usize| u32::try_from(place).map_err(|_| "a block is over 4 GiB");
        let mut slots = Vec::new();
        let mut cursor = Cursor::new(&self.payload);
        while !cursor.is_empty() {
            let start = narrow(cursor.position())?;
            let (key, count, bytes) = (key_of(&mut cursor)?, cursor.u32()?, cursor.usize()?);
            if bytes > cursor.left() {
                return Err("a group goes over its block");
            }
            let end = cursor.position() + bytes;
            for _ in 0..count {
                slots.push((start, narrow(cursor.position())?));
                skip_record(&mut cursor, key.is_some())?;
            }
            if cursor.position() != end {
                return Err("records do not fill their group");
            }
        }
        Ok(slots.into())
    }
}

/// Steps over a group's topic, gives its key.
fn key_of<'a>(cursor: &mut Cursor<'a>) -> Result<Option<&'a [u8]>, Fault> {
    cursor.number()?;
    match cursor.usize()? {
        0 => Ok(None),
        bytes => cursor.take(bytes - 1).map(Some),
    }
}

fn skip_record(cursor: &mut Cursor<'_>, keyed: bool) -> Result<(), Fault> {
    let flags = cursor.byte()?;
    let numbers = 4 + u32::from(keyed) + u32::from(flags & GENERATION != 0);
    for _ in 0..numbers {
        cursor.number()?;
    }
    let value = cursor.usize()?;
    let headers = if flags & HEADERS != 0 { cursor.usize()? } else { 0 };
    cursor.take(value)?;
    cursor.take(headers).map(|_| ())
}

fn read_record<'a>(
    cursor: &mut Cursor<'a>,
    key: Option<&'a [u8]>,
    bases: &Bases,
) -> Result<(RecordView<'a>, Stamp), Fault> {
    let flags = cursor.byte()?;
    if flags & !(NULL_VALUE | HEADERS | GENERATION) != 0 {
        return Err("a record has flags that this build does not know");
    }
    let offset = cursor.number()?;
    let key_version = if key.is_some() { cursor.number()? } else { 0 };
    let lsn = bases.first_lsn.checked_add(cursor.number()?).ok_or("the LSN of a record is over 64 bits")?;
    let broker_time_ms = bases.first_time_ms.wrapping_add(cursor.number()?.cast_signed());
    let timestamp_ms = broker_time_ms.wrapping_add(cursor.signed()?);
    let generation = match flags & GENERATION {
        0 => bases.generation,
        _ => bases.generation.wrapping_add(cursor.signed()?.cast_unsigned()),
    };
    let value_bytes = cursor.usize()?;
    let headers_bytes = if flags & HEADERS != 0 { cursor.usize()? } else { 0 };
    if flags & NULL_VALUE != 0 && value_bytes != 0 {
        return Err("a null value has bytes");
    }
    let value = Some(cursor.take(value_bytes)?).filter(|_| flags & NULL_VALUE == 0);
    let headers = cursor.take(headers_bytes)?;
    let stamp = Stamp { offset, key_version, lsn, broker_time_ms, generation };
    Ok((RecordView { key, value, headers, timestamp_ms }, stamp))
}
