//! Where what is kept of each topic begins, as far as durable: asked by readers, who must not wait for the sequencer.

use std::{
    collections::HashMap,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::catalog::Low;

/// Topics of which something is gone.
#[derive(Debug, Default)]
pub(super) struct Lows {
    /// By topic id: the low offset, and the number of the move that brought it.
    topics: RwLock<HashMap<u64, (Low, u64)>>,
    /// Moves so far.
    changes: AtomicU64,
    /// The highest position behind which nothing of any topic is gone.
    end_lsn: AtomicU64,
}

impl Lows {
    /// Holds readers to a low offset from now on.
    pub(super) fn publish(&self, id: u64, low: Low) {
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        let change = self.changes.load(Ordering::Relaxed) + 1;
        topics.insert(id, (low, change));
        self.end_lsn.fetch_max(low.lsn, Ordering::Relaxed);
        // Last: who sees the number sees the move.
        self.changes.store(change, Ordering::Release);
    }

    /// The first offset of a topic that is kept.
    pub(super) fn low_offset(&self, id: u64) -> u64 {
        self.topics.read().unwrap_or_else(PoisonError::into_inner).get(&id).map_or(0, |(low, _)| low.offset)
    }

    /// Moves so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Topics of which records at or behind a position are gone by a move behind the first `seen` ones, if they are wanted by
    /// id and low offset.
    pub(super) fn gaps(&self, from_lsn: u64, seen: u64, wanted: impl Fn(u64, u64) -> bool) -> Vec<(u64, u64)> {
        if from_lsn >= self.end_lsn.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        let missed = topics.iter().filter(|(_, (low, change))| *change > seen && low.lsn > from_lsn);
        let mut missed: Vec<(u64, u64)> = missed.map(|(&id, (low, _))| (id, low.offset)).collect();
        drop(topics);
        missed.retain(|&(id, offset)| wanted(id, offset));
        missed.sort_unstable();
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_told_to_those_who_stand_before_what_is_gone() {
        let lows = Lows::default();
        lows.publish(16, Low { offset: 5, lsn: 100, bytes: 0 });
        lows.publish(17, Low { offset: 7, lsn: 50, bytes: 0 });
        assert_eq!((lows.low_offset(16), lows.low_offset(18), lows.changes()), (5, 0, 2));
        let gaps = |from_lsn, seen| lows.gaps(from_lsn, seen, |_, _| true);
        assert_eq!(gaps(0, 0), [(16, 5), (17, 7)]);
        assert_eq!(gaps(50, 0), [(16, 5)], "all of topic 17 that is gone lies before");
        assert_eq!((gaps(100, 0).len(), gaps(0, 2).len()), (0, 0));
        assert_eq!(gaps(0, 1), [(17, 7)], "the first move was there before");
        lows.publish(16, Low { offset: 9, lsn: 200, bytes: 0 });
        assert_eq!(gaps(0, 2), [(16, 9)]);
        assert_eq!(lows.gaps(0, 0, |id, offset| id == 17 && offset > 6), [(17, 7)]);
    }
}
