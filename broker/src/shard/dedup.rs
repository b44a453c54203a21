//! Producers and what was made of their batches, so that a retry gets the stored result instead of a second append.
//!
//! Only the LSN of a result is kept here: the frame there holds the whole answer (ADR 1). A sequence is *known* if its
//! frame is in the window, *expired* if it is older than the window, and new otherwise. Small holes are normal: a batch
//! refused as a whole is not stored, and its retry runs the live chain.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use tidegate_protocol::stored::ProducerStamp;

use super::buckets::Buckets;

/// Sequences a producer's window spans; also the widest hole: who skips more has lost batches.
pub const WINDOW: u64 = 1024;
/// Broker time that a result is kept.
pub const WINDOW_AGE_MS: i64 = 3_600_000;

/// Broker time between two looks at all producers for silent ones.
const SWEEP_MS: i64 = 60_000;

/// What is known of a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Never stored.
    New,
    /// Stored in the frame with this first LSN.
    Known(u64),
    /// Too old to tell.
    Expired,
    /// Too far ahead.
    Gap {
        /// The next sequence.
        expected: u64,
    },
    /// A newer instance of the producer is at work.
    Fenced {
        /// Its epoch.
        epoch: u32,
    },
    /// Another producer finds no room.
    Full,
}

/// One producer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Window {
    pub(super) epoch: u32,
    /// Sequences before this are forgotten.
    pub(super) floor: u64,
    /// The highest stored plus one.
    pub(super) next: u64,
    /// Broker time of the last result.
    pub(super) touched_ms: i64,
    /// Ascending by sequence.
    pub(super) results: VecDeque<Stored>,
}

/// Where a result lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) sequence: u64,
    pub(super) lsn: u64,
    pub(super) time_ms: i64,
}

/// All producers of all tenants.
#[derive(Debug)]
pub(super) struct Dedup {
    windows: Buckets<(u32, u64), Arc<Window>>,
    results: usize,
    producers_max: usize,
    results_max: usize,
    /// Broker time of the last look for silent producers.
    swept_ms: i64,
}

impl Dedup {
    pub(super) fn new(producers_max: usize, results_max: usize) -> Self {
        Self { windows: Buckets::new(), results: 0, producers_max, results_max, swept_ms: 0 }
    }

    /// All of them as they are now.
    pub(super) fn copy(&mut self) -> Self {
        Self { windows: self.windows.copy(), ..*self }
    }

    /// What is known of a batch.
    pub(super) fn judge(&self, tenant: u32, stamp: ProducerStamp, now_ms: i64) -> Verdict {
        let window = match self.windows.get(&(tenant, stamp.id)) {
            None if self.windows.len() >= self.producers_max => return Verdict::Full,
            None => return first_of_epoch(stamp.sequence),
            Some(window) => window,
        };
        if stamp.epoch < window.epoch {
            return Verdict::Fenced { epoch: window.epoch };
        }
        if stamp.epoch > window.epoch {
            return first_of_epoch(stamp.sequence);
        }
        if stamp.sequence < window.floor {
            return Verdict::Expired;
        }
        match window.results.binary_search_by_key(&stamp.sequence, |stored| stored.sequence) {
            Ok(at) if window.results.get(at).is_none_or(|stored| expired(stored, now_ms)) => Verdict::Expired,
            Ok(at) => window.results.get(at).map_or(Verdict::Expired, |stored| Verdict::Known(stored.lsn)),
            Err(_) if stamp.sequence > window.next.saturating_add(WINDOW) => Verdict::Gap { expected: window.next },
            Err(_) => Verdict::New,
        }
    }

    /// Takes a result. Older ones fall out of the window.
    pub(super) fn store(&mut self, tenant: u32, stamp: ProducerStamp, lsn: u64, now_ms: i64) {
        let key = (tenant, stamp.id);
        if self.windows.get(&key).is_none() {
            self.windows.insert(key, Arc::new(Window { epoch: stamp.epoch, ..Window::default() }));
        }
        let Some(window) = self.windows.get_mut(&key) else { return };
        let window = Arc::make_mut(window);
        let before = window.results.len();
        window.store(stamp, lsn, now_ms);
        self.results = self.results + window.results.len() - before;
        self.shrink(now_ms);
    }

    /// Keeps both bounds. Producers silent for longer than a result is kept go first; results go before producers, because
    /// a producer whose results are gone still learns that they are.
    fn shrink(&mut self, now_ms: i64) {
        if self.windows.len() >= self.producers_max && now_ms >= self.swept_ms + SWEEP_MS {
            self.swept_ms = now_ms;
            self.windows.retain(|_, window| window.touched_ms >= now_ms - WINDOW_AGE_MS);
            self.count();
        }
        if self.results > self.results_max {
            self.windows.retain(|_, window| {
                Arc::make_mut(window).halve();
                true
            });
            self.count();
        }
    }

    fn count(&mut self) {
        self.results = self.windows.maps().flatten().map(|(_, window)| window.results.len()).sum();
    }

    /// Takes windows as they were read back: tenant, id, window.
    pub(super) fn restore(&mut self, windows: impl IntoIterator<Item = (u32, u64, Window)>) {
        for (tenant, id, window) in windows {
            self.windows.insert((tenant, id), Arc::new(window));
        }
        self.count();
    }

    /// Of windows of the log, ascending, those that hold a result which may still be asked for.
    pub(super) fn held(&self, windows: &[Range<u64>], now_ms: i64) -> Vec<bool> {
        let mut held = vec![false; windows.len()];
        for stored in self.iter().flat_map(|(_, _, window)| &window.results) {
            let at = windows.partition_point(|window| window.end <= stored.lsn);
            if windows.get(at).is_some_and(|window| window.contains(&stored.lsn)) && !expired(stored, now_ms) {
                held[at] = true;
            }
        }
        held
    }

    /// Producers, and results of all together.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.windows.len(), self.results)
    }

    /// All producers: tenant, id, window.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u64, &Window)> {
        self.windows.maps().flatten().map(|((tenant, id), window)| (*tenant, *id, &**window))
    }
}

impl Window {
    fn store(&mut self, stamp: ProducerStamp, lsn: u64, now_ms: i64) {
        if stamp.epoch > self.epoch {
            *self = Self { epoch: stamp.epoch, ..Self::default() };
        }
        self.touched_ms = now_ms;
        self.next = self.next.max(stamp.sequence.saturating_add(1));
        let stored = Stored { sequence: stamp.sequence, lsn, time_ms: now_ms };
        match self.results.binary_search_by_key(&stamp.sequence, |stored| stored.sequence) {
            Ok(at) => self.results[at] = stored,
            Err(at) => self.results.insert(at, stored),
        }
        self.floor = self.floor.max(self.next.saturating_sub(WINDOW));
        while let Some(oldest) = self.results.front()
            && (oldest.sequence < self.floor || expired(oldest, now_ms))
        {
            self.floor = self.floor.max(oldest.sequence.saturating_add(1));
            self.results.pop_front();
        }
    }

    fn halve(&mut self) {
        let cut = self.results.len().div_ceil(2);
        if let Some(last) = self.results.drain(..cut).next_back() {
            self.floor = self.floor.max(last.sequence.saturating_add(1));
        }
    }
}

/// A new producer and a new epoch start at 0; the first few may have been refused.
fn first_of_epoch(sequence: u64) -> Verdict {
    if sequence > WINDOW { Verdict::Gap { expected: 0 } } else { Verdict::New }
}

fn expired(stored: &Stored, now_ms: i64) -> bool {
    stored.time_ms < now_ms.saturating_sub(WINDOW_AGE_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(epoch: u32, sequence: u64) -> ProducerStamp {
        ProducerStamp { id: 7, epoch, sequence }
    }

    fn dedup() -> Dedup {
        Dedup::new(100, 1_000_000)
    }

    #[test]
    fn a_stored_sequence_is_known_until_1024_newer_ones_are() {
        let mut dedup = dedup();
        (0..=1024).for_each(|sequence| dedup.store(1, stamp(0, sequence), sequence * 10, 0));
        assert_eq!(dedup.judge(1, stamp(0, 0), 0), Verdict::Expired);
        assert_eq!(dedup.judge(1, stamp(0, 1), 0), Verdict::Known(10));
        assert_eq!(dedup.judge(1, stamp(0, 1024), 0), Verdict::Known(10_240));
        assert_eq!(dedup.judge(1, stamp(0, 1025), 0), Verdict::New);
        assert_eq!(dedup.judge(2, stamp(0, 1), 0), Verdict::New, "another tenant's producer of the same id");
    }

    #[test]
    fn a_hole_may_be_filled_and_a_wide_one_is_a_gap() {
        let mut dedup = dedup();
        dedup.store(1, stamp(0, 5), 50, 0);
        assert_eq!(dedup.judge(1, stamp(0, 3), 0), Verdict::New);
        dedup.store(1, stamp(0, 3), 60, 0);
        assert_eq!(dedup.judge(1, stamp(0, 3), 0), Verdict::Known(60));
        assert_eq!(dedup.judge(1, stamp(0, 6 + 1024), 0), Verdict::New);
        assert_eq!(dedup.judge(1, stamp(0, 7 + 1024), 0), Verdict::Gap { expected: 6 });
        assert_eq!(dedup.judge(2, stamp(0, 1025), 0), Verdict::Gap { expected: 0 });
    }

    #[test]
    fn a_higher_epoch_starts_anew_and_fences_the_lower() {
        let mut dedup = dedup();
        dedup.store(1, stamp(0, 5), 50, 0);
        assert_eq!(dedup.judge(1, stamp(1, 0), 0), Verdict::New);
        dedup.store(1, stamp(1, 0), 60, 0);
        assert_eq!(dedup.judge(1, stamp(0, 5), 0), Verdict::Fenced { epoch: 1 });
        assert_eq!(dedup.judge(1, stamp(1, 0), 0), Verdict::Known(60));
        assert_eq!(dedup.judge(1, stamp(1, 5), 0), Verdict::New);
    }

    #[test]
    fn a_result_expires_after_an_hour_of_broker_time_and_never_becomes_new_again() {
        let mut dedup = dedup();
        dedup.store(1, stamp(0, 0), 0, 0);
        assert_eq!(dedup.judge(1, stamp(0, 0), WINDOW_AGE_MS), Verdict::Known(0));
        assert_eq!(dedup.judge(1, stamp(0, 0), WINDOW_AGE_MS + 1), Verdict::Expired);
        dedup.store(1, stamp(0, 1), 1, WINDOW_AGE_MS + 1);
        assert_eq!(dedup.judge(1, stamp(0, 0), WINDOW_AGE_MS + 1), Verdict::Expired);
    }

    #[test]
    fn windows_of_the_log_are_held_by_results_that_count() {
        let mut dedup = dedup();
        dedup.store(1, stamp(0, 0), 15, 0);
        dedup.store(2, stamp(0, 0), 39, 1_000);
        let windows = [0..10, 10..20, 30..40];
        assert_eq!(dedup.held(&windows, 1_000), [false, true, true]);
        assert_eq!(dedup.held(&windows, WINDOW_AGE_MS + 1), [false, false, true]);
        assert_eq!(dedup.held(&windows, WINDOW_AGE_MS + 1_001), [false; 3]);
    }

    #[test]
    fn both_bounds_hold_and_a_lost_result_is_expired_not_new() {
        let mut dedup = Dedup::new(3, 10);
        (0..11).for_each(|sequence| dedup.store(1, stamp(0, sequence), sequence, 0));
        assert!(dedup.len().1 <= 10, "{:?}", dedup.len());
        assert_eq!(dedup.judge(1, stamp(0, 0), 0), Verdict::Expired);
        for id in 10..12 {
            dedup.store(1, ProducerStamp { id, epoch: 0, sequence: 0 }, 0, 0);
        }
        let another = ProducerStamp { id: 99, epoch: 0, sequence: 0 };
        assert_eq!(dedup.judge(1, another, 0), Verdict::Full);
        dedup.store(1, stamp(0, 11), 11, WINDOW_AGE_MS + 1);
        assert_eq!(dedup.judge(1, another, WINDOW_AGE_MS + 1), Verdict::New, "silent producers made room");
    }
}
