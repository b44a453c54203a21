//! Reads in order: the shard's, as frames that are again what they were, and one topic's, as records.

use std::{collections::HashMap, sync::Arc};

use tidegate_protocol::{
    record::RecordView,
    stored::{FrameHead, StoredFrame},
};

use super::{RECORD_COST_BYTES, Slice, block::Block, keys::stored, reader::Segment, topics::Topic};
use crate::storage::{Run, StorageError};

/// Records of a topic that are looked up together: bounds what one step holds, and lets it read blocks in their order.
const STEP_RECORDS: u32 = 4_096;

/// The blocks that one read needs, by number.
pub(super) struct Blocks(Vec<Option<Arc<Block>>>);

impl Segment {
    /// Frames from the one that holds an LSN on that touch a wanted topic (`None`: every frame), up to some bytes, at
    /// least one. `next_lsn` tells how far was looked.
    ///
    /// # Errors
    /// If the store fails or the segment is damaged.
    pub fn scan(
        &self,
        from_lsn: u64,
        bytes_max: usize,
        wanted: Option<&dyn Fn(u64) -> bool>,
    ) -> Result<Run, StorageError> {
        let mut run = Run { frames: Vec::new(), next_lsn: self.next_lsn() };
        // Each topic is asked for once, and a segment without one is done.
        let wanted: Option<HashMap<u64, bool>> =
            wanted.map(|wanted| self.topics.iter().map(|topic| (topic.id, wanted(topic.id))).collect());
        if wanted.as_ref().is_some_and(|wanted| !wanted.values().any(|wanted| *wanted)) {
            return Ok(run);
        }
        let mut planned: Vec<(Arc<Vec<FrameHead>>, usize)> = Vec::new();
        let mut bytes = 0;
        let start = self.heads.partition_point(|page| page.first_lsn <= from_lsn).saturating_sub(1);
        'pages: for page in start..self.heads.len() {
            let heads = self.head_page(page)?;
            for (number, head) in heads.iter().enumerate() {
                let topics = &head.header.topics;
                let hit =
                    wanted.as_ref().is_none_or(|all| topics.iter().any(|topic| all.get(&topic.id) == Some(&true)));
                if head.next_lsn() <= from_lsn || !hit {
                    continue;
                }
                if bytes > 0 && bytes + head.frame_bytes() > bytes_max {
                    run.next_lsn = head.header.first_lsn;
                    break 'pages;
                }
                bytes += head.frame_bytes();
                planned.push((Arc::clone(&heads), number));
            }
        }
        run.frames = self.frames(&planned)?;
        Ok(run)
    }

    /// Records of a topic from an offset on, up to some bytes, at least one.
    ///
    /// # Errors
    /// If the store fails or the segment is damaged.
    pub fn scan_topic(&self, topic_id: u64, from_offset: u64, bytes_max: usize) -> Result<Slice, StorageError> {
        let mut slice = Slice::default();
        let Some((_, topic)) = self.topic(topic_id) else { return Ok(slice) };
        let Some((mut number, _)) = topic.at_or_behind(from_offset) else { return Ok(slice) };
        let permutations = self.permutations()?;
        let permutation_at = self.footer.parts.start(3);
        let mut bytes = 0;
        while number < topic.records {
            let step = number..topic.records.min(number + STEP_RECORDS);
            let ranks = step.clone().map(|number| topic.rank(number, &permutations));
            let ranks = ranks.collect::<Result<Vec<u32>, _>>().map_err(self.corrupt(permutation_at))?;
            let blocks = self.gather(&ranks)?;
            for rank in ranks {
                let (at, block) = self.block_at(&blocks, rank)?;
                let entry = &self.blocks[at];
                let (record, stamp) = block
                    .record((rank - entry.first_rank) as usize, &self.footer.bases)
                    .map_err(self.corrupt(entry.position))?;
                let offset = topic.first_offset().saturating_add(stamp.offset);
                if topic.at_or_behind(offset) != Some((number, offset)) {
                    return Err(self.corrupt(entry.position)("a record is not at the offset that led to it"));
                }
                if !slice.records.is_empty() && bytes + record.bytes() + RECORD_COST_BYTES > bytes_max {
                    slice.next_offset = Some(offset);
                    return Ok(slice);
                }
                bytes += record.bytes() + RECORD_COST_BYTES;
                slice.records.push(stored(block, topic, &record, &stamp, offset));
                number += 1;
            }
        }
        Ok(slice)
    }

    /// Puts planned frames together again.
    fn frames(&self, planned: &[(Arc<Vec<FrameHead>>, usize)]) -> Result<Vec<Arc<StoredFrame>>, StorageError> {
        let permutations = self.permutations()?;
        let mut ranks = Vec::new();
        for (heads, number) in planned {
            self.ranks_of(&heads[*number], &permutations, &mut ranks)?;
        }
        let blocks = self.gather(&ranks)?;
        let mut ranks = &ranks[..];
        let mut frames = Vec::with_capacity(planned.len());
        let mut records: Vec<RecordView<'_>> = Vec::new();
        for (heads, number) in planned {
            let head = &heads[*number];
            let (own, behind) = ranks.split_at(head.records as usize);
            ranks = behind;
            records.clear();
            for (&rank, lsn) in own.iter().zip(head.header.first_lsn..) {
                let (at, block) = self.block_at(&blocks, rank)?;
                let entry = &self.blocks[at];
                let record = block.record((rank - entry.first_rank) as usize, &self.footer.bases);
                let (record, stamp) = record.map_err(self.corrupt(entry.position))?;
                if stamp.lsn != lsn {
                    return Err(self.corrupt(entry.position)("a record is not at the LSN that led to it"));
                }
                records.push(record);
            }
            let frame = head.frame(&records).map_err(|error| StorageError::Corrupt {
                file: self.name(),
                position: self.footer.parts.start(2),
                what: format!("frame of LSN {}: {error}", head.header.first_lsn),
            })?;
            frames.push(Arc::new(frame));
        }
        Ok(frames)
    }

    /// Appends the ranks of a frame's records in batch order.
    pub(super) fn ranks_of(
        &self,
        head: &FrameHead,
        permutations: &[u8],
        ranks: &mut Vec<u32>,
    ) -> Result<(), StorageError> {
        let position = self.footer.parts.start(3);
        let mut last: Option<&Topic> = None;
        for (id, offset) in head.positions() {
            // Runs of one topic are the rule: it is searched once.
            let topic: &Topic = match last {
                Some(topic) if topic.id == id => topic,
                _ => self.topic(id).ok_or("a frame names a topic that is not there").map_err(self.corrupt(position))?.1,
            };
            last = Some(topic);
            let rank = match topic.at_or_behind(offset) {
                Some((number, at)) if at == offset => topic.rank(number, permutations),
                _ => Err("a frame names an offset that is not there"),
            };
            ranks.push(rank.map_err(self.corrupt(position))?);
        }
        Ok(())
    }

    /// Reads the blocks that hold some ranks.
    pub(super) fn gather(&self, ranks: &[u32]) -> Result<Blocks, StorageError> {
        let mut needed = vec![false; self.blocks.len()];
        for &rank in ranks {
            // Without any block there is none to need: `block_at` says so.
            needed.get_mut(self.block_of(rank)).into_iter().for_each(|needed| *needed = true);
        }
        let mut blocks = Blocks(vec![None; self.blocks.len()]);
        let numbers = needed.iter().enumerate().filter_map(|(number, &needed)| needed.then_some(number));
        self.read_blocks(numbers, |number, block| blocks.0[number] = Some(block))?;
        Ok(blocks)
    }

    pub(super) fn block_at<'a>(&self, blocks: &'a Blocks, rank: u32) -> Result<(usize, &'a Block), StorageError> {
        let at = self.block_of(rank);
        match blocks.0.get(at).and_then(Option::as_deref) {
            Some(block) => Ok((at, block)),
            None => Err(self.corrupt(0)("a rank leads to no block")),
        }
    }
}
