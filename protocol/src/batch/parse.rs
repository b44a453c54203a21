//! Checking bytes into a body: lengths and CRC first, then every count before what it counts is allocated.

use std::{collections::HashSet, ops::Range};

use bytes::Bytes;

use super::{
    BODY_HEADER_BYTES, BODY_VERSION, BatchBody, BodyError, CODEC_NONE, Columns, NULL, RECORD_FIXED_BYTES, Section,
};
use crate::{
    limits::{Limits, TOPICS_PER_BATCH_MAX},
    record::headers,
    topic::{TopicError, check_name},
};

/// Where the CRC lies in the header.
pub(super) const CRC_AT: usize = 20;

/// Version, length and CRC: all that can be said before the layout is looked at.
pub(super) fn check(bytes: &[u8], limits: &Limits) -> Result<(), BodyError> {
    let Some((header, rest)) = bytes.split_first_chunk::<BODY_HEADER_BYTES>() else {
        return Err(BodyError::Length { expected: BODY_HEADER_BYTES, actual: bytes.len() });
    };
    limit("batch bytes", bytes.len() as u64, limits.batch_bytes_max, None)?;
    if header[0] != BODY_VERSION {
        return Err(BodyError::Version(header[0]));
    }
    let told = read_u32(header, 16) as usize;
    if told != rest.len() {
        return Err(BodyError::Length { expected: BODY_HEADER_BYTES.saturating_add(told), actual: bytes.len() });
    }
    let actual = crc32c::crc32c_append(crc32c::crc32c(&header[..CRC_AT]), rest);
    let stored = read_u32(header, CRC_AT);
    if actual != stored {
        return Err(BodyError::Crc { actual, stored });
    }
    Ok(())
}

/// Everything behind the CRC. Also what a builder's own bytes go through, so that one place alone makes a `BatchBody`.
pub(super) fn layout(bytes: Bytes, limits: &Limits) -> Result<BatchBody, BodyError> {
    let Some(header) = bytes.first_chunk::<BODY_HEADER_BYTES>() else {
        return Err(BodyError::Length { expected: BODY_HEADER_BYTES, actual: bytes.len() });
    };
    if header[1] != CODEC_NONE {
        return Err(BodyError::Codec(header[1]));
    }
    if read_u32(header, 4) != 0 {
        return Err(BodyError::Malformed { what: "lane is not 0" });
    }
    let topic_count = usize::from(u16::from_le_bytes([header[2], header[3]]));
    let records = read_u32(header, 8);
    let section_count = read_u32(header, 12);
    limit("records of the batch", u64::from(records), limits.batch_records_max, None)?;
    if topic_count > usize::from(TOPICS_PER_BATCH_MAX) {
        return Err(BodyError::Limit {
            what: "topics of the batch",
            actual: topic_count as u64,
            max: u64::from(TOPICS_PER_BATCH_MAX),
            record: None,
        });
    }
    let (topics, place) = topic_table(&bytes, topic_count)?;
    let (sections, place) = section_table(&bytes, place, section_count, topic_count, records)?;
    let columns = columns(&bytes, place, records)?;
    let body = BatchBody { bytes, topics, sections, records, columns };
    items(&body, limits)?;
    Ok(body)
}

fn topic_table(bytes: &[u8], count: usize) -> Result<(Vec<Range<usize>>, usize), BodyError> {
    const CUT: BodyError = BodyError::Malformed { what: "topic table is cut" };
    let mut topics: Vec<Range<usize>> = Vec::with_capacity(count);
    let mut seen = HashSet::new();
    let mut place = BODY_HEADER_BYTES;
    for _ in 0..count {
        let length = bytes.get(place..).and_then(|rest| rest.first_chunk()).ok_or(CUT)?;
        let start = place + 2;
        let range = start..start + usize::from(u16::from_le_bytes(*length));
        let name = bytes.get(range.clone()).ok_or(CUT)?;
        let name = std::str::from_utf8(name).map_err(|_| BodyError::Malformed { what: "topic name is not UTF-8" })?;
        check_name(name).map_err(|reason| BodyError::Topic(TopicError::new(name, reason)))?;
        // A table of one name, the common one, costs no hashing.
        if count > 1 && !seen.insert(name) {
            return Err(BodyError::Malformed { what: "topic table names a topic twice" });
        }
        place = range.end;
        topics.push(range);
    }
    Ok((topics, place))
}

fn section_table(
    bytes: &[u8],
    place: usize,
    count: u32,
    topic_count: usize,
    records: u32,
) -> Result<(Vec<Section>, usize), BodyError> {
    // Each section has a record, and the records are within their limit: that bounds the allocation below.
    if count > records {
        return Err(BodyError::Malformed { what: "more sections than records" });
    }
    let end = place + count as usize * 8;
    let table = bytes.get(place..end).ok_or(BodyError::Malformed { what: "section table is cut" })?;
    let mut sections = Vec::with_capacity(count as usize);
    let mut used = vec![false; topic_count];
    let mut first: u32 = 0;
    for entry in table.chunks_exact(8) {
        let (topic, run) = (read_u32(entry, 0), read_u32(entry, 4));
        let slot = usize::try_from(topic).ok().and_then(|topic| used.get_mut(topic));
        let (Some(slot), Ok(topic)) = (slot, u16::try_from(topic)) else {
            return Err(BodyError::Malformed { what: "section names a topic outside the table" });
        };
        *slot = true;
        let behind = first.checked_add(run).filter(|behind| run > 0 && *behind <= records);
        let behind = behind.ok_or(BodyError::Malformed { what: "section is empty or goes over the records" })?;
        sections.push(Section { topic, records: run, first });
        first = behind;
    }
    if first != records {
        return Err(BodyError::Malformed { what: "sections hold fewer records than the batch" });
    }
    if used.contains(&false) {
        return Err(BodyError::Malformed { what: "topic table names a topic without a record" });
    }
    Ok((sections, end))
}

/// Places of the columns; they fill the rest of the bytes exactly.
fn columns(bytes: &[u8], key_ends: usize, records: u32) -> Result<Columns, BodyError> {
    let count = records as usize;
    let value_ends = key_ends + count * 4;
    let header_ends = value_ends + count * 4;
    let timestamps = header_ends + count * 4;
    let keys = key_ends + count * RECORD_FIXED_BYTES;
    if keys > bytes.len() {
        return Err(BodyError::Malformed { what: "columns are cut" });
    }
    // The last end of a column is its length.
    let last = |ends: usize| if count == 0 { 0 } else { (read_u32(bytes, ends + count * 4 - 4) & !NULL) as usize };
    let values = keys.saturating_add(last(key_ends));
    let headers = values.saturating_add(last(value_ends));
    if headers.saturating_add(last(header_ends)) != bytes.len() {
        return Err(BodyError::Malformed { what: "items do not fill the batch" });
    }
    Ok(Columns { key_ends, value_ends, header_ends, timestamps, keys, values, headers })
}

/// The one pass over the records: ends ascend, nulls are empty, items are within limits, headers items are well formed.
fn items(body: &BatchBody, limits: &Limits) -> Result<(), BodyError> {
    let (key_ends, _) = body.key_column();
    let (value_ends, _) = body.value_column();
    let (header_ends, header_items) = body.header_column();
    let ends = key_ends.chunks_exact(4).zip(value_ends.chunks_exact(4)).zip(header_ends.chunks_exact(4));
    let (mut key, mut value, mut header) = (0, 0, 0);
    for (at, ((key_end, value_end), header_end)) in (0_u32..).zip(ends) {
        let key_bytes = step(&mut key, read_u32(key_end, 0))?;
        let value_bytes = step(&mut value, read_u32(value_end, 0))?;
        let header_word = read_u32(header_end, 0);
        let header_start = header as usize;
        let header_bytes = step(&mut header, header_word)?;
        if header_word & NULL != 0 {
            return Err(BodyError::Malformed { what: "headers item is null" });
        }
        if header_bytes > 0 {
            let item = header_items.get(header_start..header as usize);
            headers_item(item.unwrap_or_default(), limits, at)?;
        }
        let total = u64::from(key_bytes) + u64::from(value_bytes) + u64::from(header_bytes);
        limit("key bytes", u64::from(key_bytes), limits.key_bytes_max, Some(at))?;
        limit("record bytes", total, limits.record_bytes_max, Some(at))?;
    }
    Ok(())
}

/// Bytes of the item that ends at `word`; `before` is the end of the one before and moves on. The last end is the length
/// of the column (see `columns`), so ends that ascend stay inside it.
fn step(before: &mut u32, word: u32) -> Result<u32, BodyError> {
    let end = word & !NULL;
    let bytes = end.checked_sub(*before).ok_or(BodyError::Malformed { what: "ends of a column descend" })?;
    if bytes > 0 && word & NULL != 0 {
        return Err(BodyError::Malformed { what: "a null item has bytes" });
    }
    *before = end;
    Ok(bytes)
}

fn headers_item(item: &[u8], limits: &Limits, at: u32) -> Result<(), BodyError> {
    limit("headers bytes", item.len() as u64, limits.headers_bytes_max, Some(at))?;
    let headers = headers(item);
    limit("headers of the record", u64::from(headers.remaining()), limits.headers_max, Some(at))?;
    for header in headers {
        header.map_err(|_| BodyError::Malformed { what: "headers item breaks its layout" })?;
    }
    Ok(())
}

fn limit(what: &'static str, actual: u64, max: u32, record: Option<u32>) -> Result<(), BodyError> {
    if actual > u64::from(max) {
        return Err(BodyError::Limit { what, actual, max: u64::from(max), record });
    }
    Ok(())
}

/// Little-endian u32 at a place the caller has checked; 0 if it is not there.
fn read_u32(bytes: &[u8], place: usize) -> u32 {
    bytes.get(place..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}
