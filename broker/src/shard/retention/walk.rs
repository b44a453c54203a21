//! Finds where what is kept of a topic is to begin, by looking at frames without their records.

use std::collections::HashMap;

use crate::{
    catalog::{Entry, Low},
    shard::{Core, ShardError, samples::Sample},
    storage::FrameStamp,
};

/// How far a topic is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Until {
    /// Records before this offset.
    Offset(u64),
    /// Whole batches, as long as so many bytes of the topic (counted from its first record) are not passed.
    Bytes(u64),
}

/// A topic as a walk finds it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub(super) low: Low,
    /// All bytes it ever had.
    pub(super) bytes: u64,
    /// Nothing of it lies before.
    pub(super) first_lsn: u64,
}

impl Core {
    /// Where a topic stands.
    pub(super) fn standing(&self, id: u64) -> Option<Standing> {
        let state = self.lock();
        let standing = |entry: &Entry| Standing {
            low: entry.low,
            bytes: entry.bytes,
            first_lsn: entry.first_lsn.max(entry.low.lsn),
        };
        state.catalog.get(id).map(standing)
    }

    /// Where what is kept of a topic begins if it is cut so far. Blocking.
    pub(in crate::shard) fn low_at(&self, id: u64, until: Until) -> Result<Low, ShardError> {
        let Some(mut low) = self.start_of(id, until) else { return Ok(Low::default()) };
        let end = self.durable.borrow().next_lsn;
        let mut lsn = low.lsn;
        while lsn < end {
            if self.retention.is_stopped() {
                return Err(ShardError::ShuttingDown);
            }
            let found = self.log.stamps(lsn, &|topic| topic == id)?;
            for stamp in found.stamps.iter().filter(|stamp| stamp.next_lsn > lsn) {
                for (_, first, records) in stamp.parts().filter(|&(topic, ..)| topic == id) {
                    self.catch_up(id, first, &mut low);
                    if cut(&mut low, id, (first, records), stamp, until) {
                        return Ok(low);
                    }
                }
            }
            lsn = found.next_lsn.max(lsn + 1);
        }
        Ok(low)
    }

    /// Where a walk meets a record that does not go on where it is, somebody has removed what came before meanwhile, and says
    /// how many bytes that was.
    fn catch_up(&self, id: u64, first: u64, low: &mut Low) {
        if first > low.offset
            && let Some(standing) = self.standing(id)
            && standing.low.offset > low.offset
        {
            *low = standing.low;
        }
    }

    /// From where on a topic is walked: the last sample that is not behind, or its low offset.
    fn start_of(&self, id: u64, until: Until) -> Option<Low> {
        let state = self.lock();
        let &Entry { low, first_lsn, .. } = state.catalog.get(id)?;
        let sample = match until {
            Until::Offset(offset) => state.samples.find(id, offset.saturating_sub(1)),
            Until::Bytes(bytes) => state.samples.find_bytes(id, bytes),
        };
        let sampled = sample.map(|Sample { offset, lsn, bytes }| Low { offset, lsn, bytes });
        let first = Low { lsn: low.lsn.max(first_lsn), ..low };
        Some(sampled.filter(|sampled| sampled.offset > low.offset).unwrap_or(first))
    }
}

/// Takes some records of a topic off its beginning, as far as they are to be cut. `true`: no more are.
fn cut(low: &mut Low, id: u64, (first, records): (u64, u64), stamp: &FrameStamp, until: Until) -> bool {
    let (from, end) = (first.max(low.offset), first.saturating_add(records));
    if end <= from {
        return false;
    }
    let (to, last) = match until {
        Until::Offset(offset) => (end.min(offset), end >= offset),
        Until::Bytes(bytes) if low.bytes.saturating_add(stamp.share(end - from)) > bytes => (from, true),
        Until::Bytes(_) => (end, false),
    };
    if to > from {
        *low = behind(low, id, from, to, stamp);
    }
    last
}

/// A low offset behind some records of a frame.
fn behind(low: &Low, id: u64, from: u64, to: u64, stamp: &FrameStamp) -> Low {
    Low {
        offset: to,
        lsn: stamp.lsn_of(id, to - 1).map_or(stamp.next_lsn, |lsn| lsn + 1),
        bytes: low.bytes.saturating_add(stamp.share(to - from)),
    }
}

/// Topics that are cut in one walk over the log, to a position.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    pub(super) lows: HashMap<u64, Low>,
}

impl Cuts {
    /// Takes all wanted records of a frame off the beginning of their topics. The walk must not leave any out.
    pub(super) fn take(&mut self, core: &Core, stamp: &FrameStamp, wanted: impl Fn(u64) -> bool) {
        for (id, first, records) in stamp.parts().filter(|&(id, ..)| wanted(id)) {
            let known = self.lows.get(&id).copied();
            let Some(mut low) = known.or_else(|| core.standing(id).map(|standing| standing.low)) else { continue };
            core.catch_up(id, first, &mut low);
            let (from, end) = (first.max(low.offset), first.saturating_add(records));
            if end > from {
                self.lows.insert(id, behind(&low, id, from, end, stamp));
            }
        }
    }
}
