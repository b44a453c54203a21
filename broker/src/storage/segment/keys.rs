//! Reads by key: is it there, where does it stand, what are its records, which keys are there.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_protocol::record::RecordView;

use super::{
    RECORD_COST_BYTES, Slice, StoredRecord,
    block::{Block, Stamp},
    directory::{self, Found, KeyHead},
    filter,
    reader::Segment,
    topics::Topic,
};
use crate::storage::StorageError;

/// A page full of keys.
pub type KeyList = Vec<(Bytes, KeyHead)>;

impl Segment {
    /// Whether the segment may hold a key of a topic. Reads nothing; wrong for fewer than one absent key in a hundred.
    pub fn may_hold(&self, topic_id: u64, key: &[u8]) -> bool {
        filter::may_hold(&self.filter, filter::hash(topic_id, key))
    }

    /// Where a key stands at the end of the segment. Reads one page of the directory, if the filter answers.
    ///
    /// # Errors
    /// If the store fails or the segment is damaged.
    pub fn head(&self, topic_id: u64, key: &[u8]) -> Result<Option<KeyHead>, StorageError> {
        Ok(self.find(topic_id, key)?.map(|(_, found)| found.head))
    }

    /// Records of a key from an offset on, up to some bytes as they are charged, at least one. Reads one page of the directory, if
    /// the filter answers, and one range of blocks.
    ///
    /// # Errors
    /// If the store fails or the segment is damaged.
    pub fn replay(&self, topic_id: u64, key: &[u8], from_offset: u64, bytes_max: usize) -> Result<Slice, StorageError> {
        let Some((topic, found)) = self.find(topic_id, key)? else { return Ok(Slice::default()) };
        let KeyHead { records, last_offset, .. } = found.head;
        if records == 0 || last_offset < from_offset {
            return Ok(Slice::default());
        }
        let ranks = found.first_rank..found.first_rank + records;
        let (first, last) = (self.block_of(ranks.start), self.block_of(ranks.end - 1));
        let first = self.skip_blocks(first, last, topic, from_offset)?;
        let mut slice = Slice::default();
        let mut bytes = 0;
        let mut next = first;
        while next <= last {
            for (number, block) in self.blocks_of_span(&mut next, last, bytes_max)? {
                let entry = &self.blocks[number];
                let of_key = ranks.start.max(entry.first_rank)..ranks.end.min(entry.first_rank + entry.records);
                for rank in of_key {
                    let slot = (rank - entry.first_rank) as usize;
                    let (record, stamp) =
                        block.record(slot, &self.footer.bases).map_err(self.corrupt(entry.position))?;
                    if record.key != Some(key) {
                        return Err(self.corrupt(entry.position)("the directory leads to a record of another key"));
                    }
                    let offset = topic.first_offset().saturating_add(stamp.offset);
                    if offset < from_offset {
                        continue;
                    }
                    if !slice.records.is_empty() && bytes + record.bytes() + RECORD_COST_BYTES > bytes_max {
                        slice.next_offset = Some(offset);
                        return Ok(slice);
                    }
                    bytes += record.bytes() + RECORD_COST_BYTES;
                    slice.records.push(stored(&block, topic, &record, &stamp, offset));
                }
            }
        }
        Ok(slice)
    }

    /// Keys of a topic that begin with a prefix, behind `after`, with their heads.
    ///
    /// # Errors
    /// If the store fails or the segment is damaged.
    pub fn keys(
        &self,
        topic_id: u64,
        prefix: &[u8],
        after: Option<&[u8]>,
        max: usize,
    ) -> Result<KeyList, StorageError> {
        let mut keys = KeyList::new();
        let Some((number, _)) = self.topic(topic_id) else { return Ok(keys) };
        let from = after.map_or(prefix, |after| after.max(prefix));
        let start = directory::page_of(&self.pages, number, from).unwrap_or(0);
        for page in self.pages.get(start..).unwrap_or_default() {
            let payload = self.page(page)?;
            let mut over = false;
            let mut take = |topic: u32, key: &[u8], found: Found| {
                if topic < number || (topic == number && (key < from || after.is_some_and(|after| key <= after))) {
                    return true;
                }
                over = topic > number || !key.starts_with(prefix) || keys.len() >= max;
                if !over {
                    keys.push((Bytes::copy_from_slice(key), found.head));
                }
                !over
            };
            directory::walk(page, &payload, &self.topics, &mut take).map_err(self.corrupt(page.position))?;
            if over {
                break;
            }
        }
        Ok(keys)
    }

    fn find(&self, topic_id: u64, key: &[u8]) -> Result<Option<(&Topic, Found)>, StorageError> {
        if !self.may_hold(topic_id, key) {
            return Ok(None);
        }
        let Some((number, topic)) = self.topic(topic_id) else { return Ok(None) };
        let Some(page) = directory::page_of(&self.pages, number, key).and_then(|at| self.pages.get(at)) else {
            return Ok(None);
        };
        let payload = self.page(page)?;
        let found = directory::seek(page, &payload, &self.topics, (number, key));
        Ok(found.map_err(self.corrupt(page.position))?.map(|found| (topic, found)))
    }

    /// Of a key's blocks the first that can hold an offset. Reads none where a key lies in one block or two.
    fn skip_blocks(&self, first: usize, last: usize, topic: &Topic, from_offset: u64) -> Result<usize, StorageError> {
        let (mut low, mut high) = (first, last);
        if from_offset <= topic.first_offset() || last - first < 2 {
            return Ok(first);
        }
        // Every block behind the first one begins with a record of the key.
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let mut offset = Ok(0);
            self.read_blocks([middle], |_, block| {
                offset = block.record(0, &self.footer.bases).map(|(_, stamp)| stamp.offset);
            })?;
            let offset = offset.map_err(self.corrupt(self.blocks[middle].position))?;
            if topic.first_offset().saturating_add(offset) <= from_offset { low = middle } else { high = middle - 1 }
        }
        Ok(low)
    }

    /// Blocks from `next` on, at most up to `last`, as many as hold the bytes wanted: one read if none is in memory.
    fn blocks_of_span(
        &self,
        next: &mut usize,
        last: usize,
        bytes_max: usize,
    ) -> Result<Vec<(usize, Arc<Block>)>, StorageError> {
        let start = *next;
        let mut bytes = 0;
        while *next <= last && (*next <= start + 1 || bytes < bytes_max) {
            bytes += self.blocks[*next].bytes as usize;
            *next += 1;
        }
        let mut blocks = Vec::with_capacity(*next - start);
        self.read_blocks(start..*next, |number, block| blocks.push((number, block)))?;
        blocks.sort_unstable_by_key(|&(number, _)| number);
        Ok(blocks)
    }
}

/// A record of its own, over the block's memory.
pub(super) fn stored(
    block: &Block,
    topic: &Topic,
    record: &RecordView<'_>,
    stamp: &Stamp,
    offset: u64,
) -> StoredRecord {
    StoredRecord {
        topic_id: topic.id,
        offset,
        key_version: stamp.key_version,
        lsn: stamp.lsn,
        broker_time_ms: stamp.broker_time_ms,
        generation: stamp.generation,
        timestamp_ms: record.timestamp_ms,
        key: record.key.map(|key| block.slice(key)),
        value: record.value.map(|value| block.slice(value)),
        headers: block.slice(record.headers),
    }
}
