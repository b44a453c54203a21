//! What the shard holds, for metrics.

use std::sync::Arc;

use super::Shard;
use crate::storage::StorageError;

/// What the shard holds, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Tenants.
    pub tenants: usize,
    /// Topics of all tenants, the broker's own counted.
    pub topics: usize,
    /// Key heads in memory.
    pub keys: usize,
    /// Bytes of their keys.
    pub key_bytes: usize,
    /// Producers remembered.
    pub producers: usize,
    /// Results remembered.
    pub dedup_results: usize,
    /// Samples of offset → LSN.
    pub samples: usize,
    /// Frames not durable yet.
    pub in_flight: usize,
    /// Bytes that wait for the disk.
    pub queued_bytes: usize,
    /// Bytes of the tail in memory.
    pub tail_bytes: usize,
    /// WAL files in use.
    pub wal_files: usize,
    /// LSN of the next frame.
    pub next_lsn: u64,
    /// Everything before is durable.
    pub durable_lsn: u64,
}

impl Shard {
    /// Bytes that wait for the disk.
    pub fn queued_bytes(&self) -> usize {
        self.core.log.queued_bytes()
    }

    /// What the shard holds.
    pub fn stats(&self) -> Stats {
        let durable_lsn = self.core.durable.borrow().next_lsn;
        let (tail_bytes, wal_files) = self.core.log.usage();
        let queued_bytes = self.core.log.queued_bytes();
        let state = self.core.settled();
        let (producers, dedup_results) = state.dedup.len();
        Stats {
            tenants: state.catalog.tenants().len(),
            topics: state.catalog.len(),
            keys: state.heads.len(),
            key_bytes: state.heads.key_bytes(),
            producers,
            dedup_results,
            samples: state.samples.len(),
            in_flight: state.in_flight.len(),
            queued_bytes,
            tail_bytes,
            wal_files,
            next_lsn: state.next_lsn,
            durable_lsn,
        }
    }

    /// Why the log takes nothing more, if it does not.
    pub fn failed(&self) -> Option<Arc<StorageError>> {
        self.core.durable.borrow().failed.clone()
    }
}
