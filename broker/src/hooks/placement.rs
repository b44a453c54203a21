//! Where a plugin's calls run: inline while they are short, else on a hook thread (ADR 6).

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::Placement;

/// Learns from each call. A plugin begins as not short: the first calls of a new one never hold an I/O thread.
#[derive(Debug)]
pub(super) struct Learned {
    short_in_a_row: AtomicU32,
    inline_max: Duration,
    inline_after: u32,
}

impl Learned {
    pub(super) fn new(inline_max: Duration, inline_after: u32) -> Self {
        Self { short_in_a_row: AtomicU32::new(0), inline_max, inline_after }
    }

    pub(super) fn placement(&self) -> Placement {
        if self.short_in_a_row.load(Ordering::Relaxed) >= self.inline_after {
            Placement::Inline
        } else {
            Placement::HookThread
        }
    }

    /// One overrun is enough to move away: it already cost its I/O thread that long.
    pub(super) fn learn(&self, took: Duration) {
        if took > self.inline_max {
            self.short_in_a_row.store(0, Ordering::Relaxed);
        } else if self.short_in_a_row.load(Ordering::Relaxed) < self.inline_after {
            self.short_in_a_row.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_becomes_short_slowly_and_long_at_once() {
        let learned = Learned::new(Duration::from_micros(100), 3);
        assert_eq!(learned.placement(), Placement::HookThread);
        for _ in 0..3 {
            assert_eq!(learned.placement(), Placement::HookThread);
            learned.learn(Duration::from_micros(100));
        }
        assert_eq!(learned.placement(), Placement::Inline);
        learned.learn(Duration::from_micros(101));
        assert_eq!(learned.placement(), Placement::HookThread);
    }
}
