//! Which topics a segment holds, and in which order their records were written: the permutation from offset to rank.
//!
//! The *rank* of a record is its number in the segment's own order, by (topic, key, offset). A topic's records are a range
//! of ranks. Its permutation gives for the n-th offset kept the rank within that range, packed in as many bits as the
//! largest one needs; no bits where both orders are the same.
//!
//! ```text
//! topic table   topics, then per topic, by id: id − id before · runs of offsets · per run { gap before (first: the offset
//!               itself), records } · keys in the directory · records with a null key · bits of the permutation
//! permutations  back to back in the order of topics: records × bits, rounded up to a byte; then 8 bytes of 0
//! ```

use super::varint::{Cursor, Fault, put};

/// Bytes behind the last permutation, so that any entry can be read as one word.
const PADDING_BYTES: usize = 8;
/// A rank is a u32.
const BITS_MAX: u32 = 32;

/// One topic of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Topic {
    pub(super) id: u64,
    /// Offsets that are kept, ascending: first, and how many. One run unless something was taken out.
    pub(super) runs: Vec<(u64, u32)>,
    /// Keys in the directory.
    pub(super) keys: u32,
    /// Records with a null key: the first ranks of the topic.
    pub(super) nulls: u32,
    pub(super) bits: u32,
    /// The following are not written: they come of the topics before.
    pub(super) records: u32,
    pub(super) first_rank: u32,
    permutation: usize,
}

impl Topic {
    /// A topic before its ranks are known.
    pub(super) fn new(id: u64) -> Self {
        Self { id, runs: Vec::new(), keys: 0, nulls: 0, bits: 0, records: 0, first_rank: 0, permutation: 0 }
    }

    /// First offset kept; records count from it.
    pub(super) fn first_offset(&self) -> u64 {
        self.runs.first().map_or(0, |&(first, _)| first)
    }

    /// Ranks of its records.
    pub(super) fn ranks(&self) -> std::ops::Range<u32> {
        self.first_rank..self.first_rank + self.records
    }

    /// Takes the next offset.
    pub(super) fn push(&mut self, offset: u64) {
        self.records += 1;
        match self.runs.last_mut() {
            Some((first, count)) if *first + u64::from(*count) == offset => *count += 1,
            _ => self.runs.push((offset, 1)),
        }
    }

    /// Number among the offsets kept of the first one at or behind `offset`, and that one. `None` if there is none.
    pub(super) fn at_or_behind(&self, offset: u64) -> Option<(u32, u64)> {
        let mut number = 0;
        for &(first, count) in &self.runs {
            if offset < first + u64::from(count) {
                let from = offset.max(first);
                return Some((number + u32::try_from(from - first).ok()?, from));
            }
            number += count;
        }
        None
    }

    /// Rank of the n-th offset kept.
    pub(super) fn rank(&self, number: u32, permutations: &[u8]) -> Result<u32, Fault> {
        if number >= self.records {
            return Err("an offset is none of its topic");
        }
        if self.bits == 0 {
            return Ok(self.first_rank + number);
        }
        let bit = u64::from(number) * u64::from(self.bits);
        let place = self.permutation + usize::try_from(bit / 8).map_err(|_| "a permutation is over memory")?;
        let word = permutations.get(place..).and_then(|rest| rest.first_chunk::<8>());
        let word = u64::from_le_bytes(*word.ok_or("a permutation is cut")?);
        let rank = u32::try_from((word >> (bit % 8)) & ((1 << self.bits) - 1)).unwrap_or(u32::MAX);
        if rank >= self.records { Err("a permutation leads out of its topic") } else { Ok(self.first_rank + rank) }
    }

    fn permutation_bytes(&self) -> usize {
        usize::try_from((u64::from(self.records) * u64::from(self.bits)).div_ceil(8)).unwrap_or(usize::MAX)
    }
}

/// Packs one topic's permutation behind those before it. `ranks[n]` is the rank of the n-th offset within the topic.
pub(super) fn pack(topic: &mut Topic, ranks: &[u32], out: &mut Vec<u8>) {
    let same = ranks.iter().zip(0..).all(|(&rank, number)| rank == number);
    topic.bits = if same { 0 } else { u32::BITS - topic.records.saturating_sub(1).leading_zeros() };
    let start = out.len();
    out.resize(start + topic.permutation_bytes() + PADDING_BYTES, 0);
    if !same {
        for (&rank, number) in ranks.iter().zip(0_usize..) {
            let bit = number * topic.bits as usize;
            let place = start + bit / 8;
            let word = out[place..].first_chunk_mut::<8>().expect("padding stands behind every entry");
            *word = (u64::from_le_bytes(*word) | u64::from(rank) << (bit % 8)).to_le_bytes();
        }
    }
    out.truncate(start + topic.permutation_bytes());
}

/// Ends the permutations.
pub(super) fn pad(out: &mut Vec<u8>) {
    out.resize(out.len() + PADDING_BYTES, 0);
}

/// The topic table.
pub(super) fn encode(topics: &[Topic]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, topics.len() as u64);
    let mut id = 0;
    for topic in topics {
        put(&mut out, topic.id - id);
        id = topic.id;
        put(&mut out, topic.runs.len() as u64);
        let mut end = 0;
        for &(first, count) in &topic.runs {
            put(&mut out, first - end);
            put(&mut out, u64::from(count));
            end = first + u64::from(count);
        }
        put(&mut out, u64::from(topic.keys));
        put(&mut out, u64::from(topic.nulls));
        put(&mut out, u64::from(topic.bits));
    }
    out
}

/// Reads a topic table; the second is how many bytes the permutations must have.
pub(super) fn decode(payload: &[u8]) -> Result<(Vec<Topic>, usize), Fault> {
    let mut cursor = Cursor::new(payload);
    let count = cursor.count(5)?;
    let mut topics = Vec::with_capacity(count);
    let (mut id, mut rank, mut permutation) = (0_u64, 0_u32, 0_usize);
    for at in 0..count {
        let step = cursor.number()?;
        id = id.checked_add(step).filter(|_| at == 0 || step > 0).ok_or("topics do not ascend")?;
        let mut topic = Topic { first_rank: rank, permutation, ..Topic::new(id) };
        let mut end = 0_u64;
        for _ in 0..cursor.count(2)? {
            let (gap, records) = (cursor.number()?, cursor.u32()?);
            let first = end.checked_add(gap).ok_or("offsets are over 64 bits")?;
            end = first.checked_add(u64::from(records)).ok_or("offsets are over 64 bits")?;
            topic.records = topic.records.checked_add(records).ok_or("records are over 32 bits")?;
            topic.runs.push((first, records));
        }
        (topic.keys, topic.nulls, topic.bits) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        if topic.nulls > topic.records || topic.bits > BITS_MAX {
            return Err("a topic has more null keys than records, or too wide a permutation");
        }
        rank = rank.checked_add(topic.records).ok_or("records are over 32 bits")?;
        permutation = permutation.checked_add(topic.permutation_bytes()).ok_or("permutations are over memory")?;
        topics.push(topic);
    }
    if !cursor.is_empty() {
        return Err("bytes are left over behind the topics");
    }
    Ok((topics, permutation.checked_add(PADDING_BYTES).ok_or("permutations are over memory")?))
}
