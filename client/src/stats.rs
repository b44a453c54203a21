//! What happened to a connection, counted: whoever promises that no client is disconnected reads it here.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the connection was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Times the broker said welcome.
    pub connects: u64,
    /// Times a standing connection ended that this side had not closed.
    pub disconnects: u64,
    /// Welcomes after the first.
    pub reconnects: u64,
    /// Dials that led to no welcome.
    pub dials_failed: u64,
    /// Batches sent again because their answer was lost or was "later".
    pub batches_resent: u64,
    /// Subscriptions opened again from their cursor.
    pub subscriptions_resumed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connects: AtomicU64,
    pub(crate) disconnects: AtomicU64,
    pub(crate) dials_failed: AtomicU64,
    pub(crate) batches_resent: AtomicU64,
    pub(crate) subscriptions_resumed: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Stats {
        let connects = self.connects.load(Ordering::Relaxed);
        Stats {
            connects,
            disconnects: self.disconnects.load(Ordering::Relaxed),
            reconnects: connects.saturating_sub(1),
            dials_failed: self.dials_failed.load(Ordering::Relaxed),
            batches_resent: self.batches_resent.load(Ordering::Relaxed),
            subscriptions_resumed: self.subscriptions_resumed.load(Ordering::Relaxed),
        }
    }
}
