//! Whether a segment is whole: every checksum, and whether its tables and its records say the same of each other. For offline
//! tools; a reader checks only what it reads.
//!
//! Three walks. By rank: blocks beside the directory, each record looked up through filter, directory and permutation. By LSN:
//! frame heads, each frame put together again, its records compared with what they say of themselves. By position: the
//! checksum of the whole. Memory: what is open of a segment, and the cache.

use std::sync::Arc;

use tidegate_protocol::{
    record::RecordView,
    stored::{FrameHead, StoredFrame},
};

use super::{
    Expected, KeyHead, Ranges, Segment,
    block::{Block, Stamp},
    cache::Cache,
    directory::{self, Found},
    filter,
    footer::{FOOTER_BYTES, Footer, HEAD_BYTES, MAGIC, VERSION},
    topics::Topic,
};
use crate::storage::StorageError;

/// Read at once for the checksum of the whole.
const READ_BYTES: u64 = 1 << 20;
/// Bytes of frames that are put together at once.
const FRAMES_BYTES: usize = 4 << 20;

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// From the start of the segment.
    pub position: u64,
    /// What.
    pub what: String,
}

impl Fault {
    fn at(position: u64, what: impl Into<String>) -> Self {
        Self { position, what: what.into() }
    }

    fn of(error: &StorageError) -> Self {
        match error {
            StorageError::Corrupt { position, what, .. } => Self::at(*position, what.as_str()),
            other => Self::at(0, other.to_string()),
        }
    }
}

/// Checks a segment and calls `each` with every frame in order. Gives what is wrong: the first fault of each walk. Blocking.
///
/// # Errors
/// As `each`; faults are no errors.
pub fn check<E>(
    source: &Arc<dyn Ranges>,
    cache: &Arc<Cache>,
    expected: &Expected,
    each: &mut dyn FnMut(&StoredFrame) -> Result<(), E>,
) -> Result<Vec<Fault>, E> {
    let segment = match Segment::open(Arc::clone(source), Arc::clone(cache), expected) {
        Ok(segment) => segment,
        Err(error) => return Ok(vec![Fault::of(&error)]),
    };
    let mut faults = Vec::new();
    faults.extend(ByRank::walk(&segment).err());
    // Both walks read the same blocks.
    faults.extend(by_lsn(&segment, each)?.err().filter(|fault| !faults.contains(fault)));
    // Where a part is at fault, its own checksum has said so, and where.
    if faults.is_empty() {
        faults.extend(whole(&**source, &segment.footer, expected).err());
    }
    Ok(faults)
}

/// The walk through the blocks, and what it holds beside them.
struct ByRank<'a> {
    segment: &'a Segment,
    permutations: bytes::Bytes,
    /// Entries of the page at hand, and where it lies.
    entries: std::vec::IntoIter<(u32, Vec<u8>, Found)>,
    page: usize,
    page_at: u64,
    /// The key whose records come.
    key: Option<(u32, Vec<u8>, Found)>,
    keys: Vec<u32>,
    rank: u32,
    /// Of the key at hand: the last record.
    last: Option<(u64, u64, bool)>,
}

impl<'a> ByRank<'a> {
    fn walk(segment: &'a Segment) -> Result<(), Fault> {
        let permutations = segment.permutations().map_err(|error| Fault::of(&error))?;
        let keys = vec![0; segment.topics.len()];
        let (entries, page_at) = (Vec::new().into_iter(), segment.footer.parts.start(1));
        let mut walk = Self { segment, permutations, entries, page: 0, page_at, key: None, keys, rank: 0, last: None };
        for (number, entry) in segment.blocks.iter().enumerate() {
            let mut block: Option<Arc<Block>> = None;
            segment.read_blocks([number], |_, read| block = Some(read)).map_err(|error| Fault::of(&error))?;
            let Some(block) = block else { return Err(Fault::at(entry.position, "the block cannot be read")) };
            let mut fault = None;
            let walked = block.walk(&segment.footer.bases, |topic, record, stamp| {
                walk.record(topic, record, stamp, entry.position).map_err(|found| {
                    fault = Some(found);
                    "told beside"
                })
            });
            if let Some(fault) = fault {
                return Err(fault);
            }
            walked.map_err(|what| Fault::at(entry.position, what))?;
            if walk.rank != entry.first_rank + entry.records {
                return Err(Fault::at(entry.position, "a block holds another number of records than its index says"));
            }
        }
        walk.end()
    }

    /// The next record in the order of ranks.
    fn record(&mut self, number: u32, record: &RecordView<'_>, stamp: &Stamp, position: u64) -> Result<(), Fault> {
        let fault = |what: &str| Err(Fault::at(position, what));
        let segment = self.segment;
        let Some(topic) = segment.topics.get(number as usize).filter(|topic| topic.ranks().contains(&self.rank)) else {
            return fault("a record stands among those of another topic");
        };
        match record.key {
            None if self.rank - topic.first_rank >= topic.nulls => return fault("a null key stands among keys"),
            Some(_) if self.rank - topic.first_rank < topic.nulls => return fault("a key stands among null keys"),
            None => {}
            Some(key) => self.of_key(number, topic, key, record, stamp, position)?,
        }
        let offset = topic.first_offset().saturating_add(stamp.offset);
        let Some((at, _)) = topic.at_or_behind(offset).filter(|(_, found)| *found == offset) else {
            return fault("a record has an offset that its topic does not list");
        };
        match topic.rank(at, &self.permutations) {
            Ok(rank) if rank == self.rank => {}
            Ok(_) => {
                let what = format!("offset {offset} of topic {} does not lead to its record", topic.id);
                return Err(Fault::at(segment.footer.parts.start(3), what));
            }
            Err(what) => return Err(Fault::at(segment.footer.parts.start(3), what)),
        }
        let footer = &segment.footer;
        if !(footer.bases.first_lsn..footer.next_lsn).contains(&stamp.lsn) {
            return fault("a record has an LSN outside the segment");
        }
        if !(footer.bases.first_time_ms..=footer.last_time_ms).contains(&stamp.broker_time_ms) {
            return fault("a record has a broker time outside the segment's");
        }
        self.rank += 1;
        Ok(())
    }

    /// A record of a key: the directory must have it there.
    fn of_key(
        &mut self,
        number: u32,
        topic: &Topic,
        key: &[u8],
        record: &RecordView<'_>,
        stamp: &Stamp,
        position: u64,
    ) -> Result<(), Fault> {
        while self.key.as_ref().is_none_or(|(_, _, found)| found.first_rank + found.head.records <= self.rank) {
            self.end_key()?;
            if !self.next_key()? {
                return Err(Fault::at(position, "a record has a key that the directory does not have"));
            }
        }
        if self.key.as_ref().is_none_or(|(of, known, _)| *of != number || known != key) {
            return Err(Fault::at(position, "a record has another key than the directory says"));
        }
        if self.last.is_some_and(|(version, offset, _)| stamp.key_version <= version || stamp.offset <= offset) {
            return Err(Fault::at(position, "versions and offsets of a key do not ascend"));
        }
        if stamp.key_version == 0 {
            return Err(Fault::at(position, format!("a record with a key of topic {} has no version", topic.id)));
        }
        self.last = Some((stamp.key_version, stamp.offset, record.value.is_none()));
        Ok(())
    }

    /// The records of the key at hand have all been seen: is its head theirs?
    fn end_key(&mut self) -> Result<(), Fault> {
        let Some((number, _, Found { head, .. })) = self.key.take() else { return Ok(()) };
        let first_offset = self.segment.topics.get(number as usize).map_or(0, Topic::first_offset);
        let seen = self.last.take().map(|(version, offset, deleted)| {
            let last_offset = first_offset.saturating_add(offset);
            KeyHead { version, last_offset, deleted, records: head.records }
        });
        // A head outlives its records: then nothing here can contradict it.
        if seen.is_some_and(|seen| seen != head) || (seen.is_none() && head.records > 0) {
            return Err(Fault::at(self.page_at, "the head of a key is not that of its last record"));
        }
        Ok(())
    }

    /// Takes the next key of the directory. `false` behind the last.
    fn next_key(&mut self) -> Result<bool, Fault> {
        loop {
            if let Some((number, key, found)) = self.entries.next() {
                let fault = |what: &str| Err(Fault::at(self.page_at, what));
                let segment = self.segment;
                let Some(topic) = segment.topics.get(number as usize) else {
                    return fault("the directory names a topic that is not there");
                };
                if directory::page_of(&segment.pages, number, &key) != Some(self.page - 1) {
                    return fault("the directory's index leads past a key");
                }
                if !filter::may_hold(&segment.filter, filter::hash(topic.id, &key)) {
                    let what = "the filter does not hold a key that is there";
                    return Err(Fault::at(segment.footer.parts.start(8), what));
                }
                if let Some(count) = self.keys.get_mut(number as usize) {
                    *count += 1;
                }
                self.key = Some((number, key, found));
                return Ok(true);
            }
            let Some(page) = self.segment.pages.get(self.page) else { return Ok(false) };
            self.page_at = page.position;
            let payload = self.segment.page(page).map_err(|error| Fault::of(&error))?;
            let mut entries: Vec<(u32, Vec<u8>, Found)> = Vec::new();
            let mut ascends = true;
            let walked = directory::walk(page, &payload, &self.segment.topics, |number, key, found| {
                ascends &= entries.last().is_none_or(|(of, before, _)| (*of, &before[..]) < (number, key));
                entries.push((number, key.to_vec(), found));
                true
            });
            walked.map_err(|what| Fault::at(page.position, what))?;
            if !ascends {
                return Err(Fault::at(page.position, "keys of the directory do not ascend"));
            }
            self.entries = entries.into_iter();
            self.page += 1;
        }
    }

    fn end(mut self) -> Result<(), Fault> {
        self.end_key()?;
        while self.next_key()? {
            self.end_key()?;
        }
        let told = self.segment.topics.iter().map(|topic| topic.keys);
        if !told.eq(self.keys.iter().copied()) {
            let what = "a topic has another number of keys than the directory";
            return Err(Fault::at(self.segment.footer.parts.start(4), what));
        }
        Ok(())
    }
}

/// Frames in order, whole, with records that say the same of themselves.
fn by_lsn<E>(segment: &Segment, each: &mut dyn FnMut(&StoredFrame) -> Result<(), E>) -> Result<Result<(), Fault>, E> {
    let permutations = match segment.permutations() {
        Ok(permutations) => permutations,
        Err(error) => return Ok(Err(Fault::of(&error))),
    };
    for page in 0..segment.heads.len() {
        let heads = match segment.head_page(page) {
            Ok(heads) => heads,
            Err(error) => return Ok(Err(Fault::of(&error))),
        };
        let position = segment.heads[page].position;
        if heads.first().is_none_or(|head| head.header.broker_time_ms != segment.heads[page].first_time_ms) {
            return Ok(Err(Fault::at(segment.footer.parts.start(7), "the index of frame heads names another time")));
        }
        let mut rest = &heads[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let together = rest.iter().take_while(|head| {
                let fits = bytes == 0 || bytes + head.frame_bytes() <= FRAMES_BYTES;
                bytes += head.frame_bytes();
                fits
            });
            let (now, later) = rest.split_at(together.count());
            rest = later;
            match frames(segment, now, &permutations, position) {
                Ok(frames) => frames.iter().try_for_each(&mut *each)?,
                Err(fault) => return Ok(Err(fault)),
            }
        }
    }
    Ok(Ok(()))
}

fn frames(
    segment: &Segment,
    heads: &[FrameHead],
    permutations: &[u8],
    position: u64,
) -> Result<Vec<StoredFrame>, Fault> {
    let of = |error: StorageError| Fault::of(&error);
    let mut ranks = Vec::new();
    for head in heads {
        segment.ranks_of(head, permutations, &mut ranks).map_err(of)?;
    }
    let blocks = segment.gather(&ranks).map_err(of)?;
    let mut ranks = &ranks[..];
    let mut frames = Vec::with_capacity(heads.len());
    for head in heads {
        let header = &head.header;
        let footer = &segment.footer;
        let inside = (footer.bases.first_time_ms..=footer.last_time_ms).contains(&header.broker_time_ms);
        if !inside || header.shard != footer.shard {
            let what = format!("the frame of LSN {} has another shard or time than the segment", header.first_lsn);
            return Err(Fault::at(position, what));
        }
        let (own, behind) = ranks.split_at(head.records as usize);
        ranks = behind;
        let mut records: Vec<RecordView<'_>> = Vec::with_capacity(own.len());
        let stamps = own.iter().zip(header.first_lsn..).zip(&header.key_versions).zip(head.positions());
        for (((&rank, lsn), &key_version), (id, offset)) in stamps {
            let (at, block) = segment.block_at(&blocks, rank).map_err(of)?;
            let entry = &segment.blocks[at];
            let read = block.record((rank - entry.first_rank) as usize, &footer.bases);
            let (record, stamp) = read.map_err(|what| Fault::at(entry.position, what))?;
            let first_offset = segment.topic(id).map_or(0, |(_, topic)| topic.first_offset());
            let told = (stamp.lsn, stamp.key_version, first_offset.saturating_add(stamp.offset));
            let time = (stamp.broker_time_ms, stamp.generation) == (header.broker_time_ms, header.generation);
            if told != (lsn, key_version, offset) || !time {
                let what = format!("the record of LSN {lsn} says something else of itself than its frame");
                return Err(Fault::at(entry.position, what));
            }
            records.push(record);
        }
        let frame = head.frame(&records);
        frames.push(frame.map_err(|error| Fault::at(position, format!("frame of LSN {}: {error}", header.first_lsn)))?);
    }
    Ok(frames)
}

/// The checksum of everything before the footer, and the first bytes, which no other covers.
fn whole(source: &dyn Ranges, footer: &Footer, expected: &Expected) -> Result<(), Fault> {
    let end = expected.bytes.saturating_sub(FOOTER_BYTES as u64);
    let (mut at, mut crc) = (0, 0);
    while at < end {
        let next = end.min(at + READ_BYTES);
        let bytes = source.read(at..next).map_err(|error| Fault::of(&error))?;
        if bytes.len() as u64 != next - at {
            return Err(Fault::at(at, "the segment is cut"));
        }
        if at == 0 {
            let [shard, other] = footer.shard.to_le_bytes();
            let head = [&MAGIC[..], &[VERSION, footer.level, shard, other]].concat();
            if bytes.get(..HEAD_BYTES as usize) != Some(&head[..]) {
                return Err(Fault::at(0, "the first bytes are not those of this segment"));
            }
        }
        crc = crc32c::crc32c_append(crc, &bytes);
        at = next;
    }
    if crc != footer.object_crc {
        return Err(Fault::at(end, "the CRC of the whole segment does not match"));
    }
    Ok(())
}

/// The last bytes of a segment, decoded for a check: two segments of one length that agree in them are the same.
///
/// # Errors
/// If the store fails, or it is not the segment that was expected.
pub fn footer_of(source: &dyn Ranges, expected: &Expected) -> Result<bytes::Bytes, StorageError> {
    let at = expected.bytes.saturating_sub(FOOTER_BYTES as u64);
    let footer = source.read(at..expected.bytes)?;
    decoded(&footer, expected).map(|_| footer)
}

/// Checks the checksum of a whole segment and that it is the one expected. Reads all of it once, builds nothing.
///
/// # Errors
/// If the store fails, or it is not.
pub fn check_whole(source: &dyn Ranges, expected: &Expected) -> Result<(), StorageError> {
    let footer = footer_of(source, expected)?;
    let footer = decoded(&footer, expected)?;
    whole(source, &footer, expected).map_err(|fault| corrupt(expected, fault.position, fault.what))
}

fn decoded(footer: &[u8], expected: &Expected) -> Result<Footer, StorageError> {
    let at = expected.bytes.saturating_sub(FOOTER_BYTES as u64);
    let footer = Footer::decode(footer, expected.bytes).map_err(|what| corrupt(expected, at, what.to_owned()))?;
    let Expected { first_lsn, next_lsn, shard, .. } = *expected;
    if (footer.bases.first_lsn, footer.next_lsn, footer.shard) != (first_lsn, next_lsn, shard) {
        return Err(corrupt(
            expected,
            at,
            "the footer names other LSNs, or another shard, than the manifest".to_owned(),
        ));
    }
    Ok(footer)
}

fn corrupt(expected: &Expected, position: u64, what: String) -> StorageError {
    StorageError::Corrupt { file: expected.object.clone().into(), position, what }
}
