//! Numbers of a plugin: written by the one thread that holds an instance, read by whoever asks.
//!
//! Each slot of a plugin has its own set. Its holder is the only writer, so that adding is a plain load and store, not a
//! locked instruction; a reader sums over the slots and may be a call behind.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{FaultKind, Hook};

/// What a plugin did since it was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// `on-produce`.
    pub produce: HookStats,
    /// `on-fetch`.
    pub fetch: HookStats,
    /// The most linear memory that one instance had.
    pub memory_bytes: u64,
    /// Where its calls run now.
    pub placement: Placement,
    /// Instances made, the first and fresh ones after faults and recycling.
    pub instances: u64,
    /// Log lines over 100 a second.
    pub log_lines_dropped: u64,
}

/// What one hook of a plugin did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HookStats {
    /// Calls, those that failed included.
    pub calls: u64,
    /// Records given.
    pub records: u64,
    /// CPU time of the guest and the host's work for it, nanoseconds.
    pub cpu_ns: u64,
    /// Faults by kind.
    pub faults: FaultCounts,
    /// Records dropped.
    pub dropped: u64,
    /// Records rejected.
    pub rejected: u64,
    /// Records whose key, value or headers were changed.
    pub changed: u64,
    /// Records sent to another topic.
    pub routed: u64,
    /// Records emitted.
    pub emitted: u64,
    /// How long calls took.
    pub latency: Histogram,
}

/// Faults by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultCounts {
    /// See [`FaultKind::Trap`].
    pub trap: u64,
    /// See [`FaultKind::Deadline`].
    pub deadline: u64,
    /// See [`FaultKind::Memory`].
    pub memory: u64,
    /// See [`FaultKind::BadOutput`].
    pub bad_output: u64,
    /// See [`FaultKind::Retry`].
    pub retry: u64,
    /// See [`FaultKind::Permanent`].
    pub permanent: u64,
    /// See [`FaultKind::Unavailable`].
    pub unavailable: u64,
}

impl FaultCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.trap + self.deadline + self.memory + self.bad_output + self.retry + self.permanent + self.unavailable
    }
}

/// Call times in powers of two: bucket `i` counts calls of 2^(i-1) to 2^i - 1 ns, bucket 0 those of 0 ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Histogram {
    /// The buckets; the last one takes all that is longer.
    pub buckets: [u64; BUCKETS],
}

impl Histogram {
    /// Upper bound in ns of the bucket in which the given share (0 to 1) of calls is reached; 0 without calls.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let total: u64 = self.buckets.iter().sum();
        let mut left = total;
        for (i, count) in self.buckets.iter().enumerate() {
            left -= count;
            #[expect(clippy::cast_precision_loss, reason = "a share of calls needs no more than 52 bits")]
            if total > 0 && (left as f64) <= (1.0 - share) * (total as f64) {
                return (1_u64 << i).saturating_sub(1);
            }
        }
        0
    }
}

/// Where a plugin's calls run (ADR 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// On the thread that has the batch: its calls are short.
    Inline,
    /// On a hook thread.
    HookThread,
}

/// The numbers of one slot.
#[derive(Debug, Default)]
pub(super) struct SlotStats {
    produce: HookCells,
    fetch: HookCells,
    pub(super) memory_bytes: AtomicU64,
    pub(super) instances: AtomicU64,
}

#[derive(Debug, Default)]
struct HookCells {
    calls: AtomicU64,
    records: AtomicU64,
    cpu_ns: AtomicU64,
    faults: [AtomicU64; 7],
    dropped: AtomicU64,
    rejected: AtomicU64,
    changed: AtomicU64,
    routed: AtomicU64,
    emitted: AtomicU64,
    latency: [AtomicU64; BUCKETS],
}

/// What a verdict does, in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Effects {
    pub(super) dropped: u32,
    pub(super) rejected: u32,
    pub(super) changed: u32,
    pub(super) routed: u32,
    pub(super) emitted: u32,
}

impl SlotStats {
    fn cells(&self, hook: Hook) -> &HookCells {
        match hook {
            Hook::Produce => &self.produce,
            Hook::Fetch => &self.fetch,
        }
    }

    pub(super) fn call(&self, hook: Hook, records: u32, cpu_ns: u64, wall_ns: u64) {
        let cells = self.cells(hook);
        add(&cells.calls, 1);
        add(&cells.records, u64::from(records));
        add(&cells.cpu_ns, cpu_ns);
        let bucket = (u64::BITS - wall_ns.leading_zeros()) as usize;
        if let Some(cell) = cells.latency.get(bucket.min(BUCKETS - 1)) {
            add(cell, 1);
        }
    }

    pub(super) fn effects(&self, hook: Hook, effects: &Effects) {
        let cells = self.cells(hook);
        add(&cells.dropped, u64::from(effects.dropped));
        add(&cells.rejected, u64::from(effects.rejected));
        add(&cells.changed, u64::from(effects.changed));
        add(&cells.routed, u64::from(effects.routed));
        add(&cells.emitted, u64::from(effects.emitted));
    }

    pub(super) fn fault(&self, hook: Hook, kind: FaultKind) {
        let index = match kind {
            FaultKind::Trap => 0,
            FaultKind::Deadline => 1,
            FaultKind::Memory => 2,
            FaultKind::BadOutput => 3,
            FaultKind::Retry { .. } => 4,
            FaultKind::Permanent => 5,
            FaultKind::Unavailable => 6,
        };
        if let Some(cell) = self.cells(hook).faults.get(index) {
            add(cell, 1);
        }
    }

    pub(super) fn memory(&self, bytes: usize) {
        let bytes = bytes as u64;
        if self.memory_bytes.load(Ordering::Relaxed) < bytes {
            self.memory_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn sum_into(&self, hook: Hook, all: &mut HookStats) {
        let cells = self.cells(hook);
        let value = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        all.calls += value(&cells.calls);
        all.records += value(&cells.records);
        all.cpu_ns += value(&cells.cpu_ns);
        let [trap, deadline, memory, bad_output, retry, permanent, unavailable] = &cells.faults;
        all.faults.trap += value(trap);
        all.faults.deadline += value(deadline);
        all.faults.memory += value(memory);
        all.faults.bad_output += value(bad_output);
        all.faults.retry += value(retry);
        all.faults.permanent += value(permanent);
        all.faults.unavailable += value(unavailable);
        all.dropped += value(&cells.dropped);
        all.rejected += value(&cells.rejected);
        all.changed += value(&cells.changed);
        all.routed += value(&cells.routed);
        all.emitted += value(&cells.emitted);
        for (sum, cell) in all.latency.buckets.iter_mut().zip(&cells.latency) {
            *sum += value(cell);
        }
    }
}

/// Adds without a locked instruction: the slot's holder is the only writer.
pub(super) fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// 2^31 ns are two seconds; a call that long is in the last bucket whatever its length.
const BUCKETS: usize = 32;
