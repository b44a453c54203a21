//! Reads the shard in LSN order, durable frames only: out of memory while the reader keeps up, else off the disk.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Core, ShardError, Waiter};
use crate::storage::{Durable, Run};

/// A reader's handle. Cheap to clone; holds no position.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(super) core: Arc<Core>,
    pub(super) durable: watch::Receiver<Durable>,
}

impl Reader {
    /// Durable frames from an LSN on that touch a wanted topic; waits for none. The first may begin before the LSN.
    /// `next_lsn` tells how far was looked: behind `from_lsn`, unless that is the durable end. Cancel-safe.
    ///
    /// # Errors
    /// If the disk fails, what it holds is damaged, or the LSN is no longer kept.
    pub async fn read(
        &self,
        from_lsn: u64,
        bytes_max: usize,
        wanted: impl Fn(u64) -> bool + Send + Sync + 'static,
    ) -> Result<Run, ShardError> {
        if let Some(mut run) = self.core.log.tail(from_lsn, bytes_max) {
            run.frames.retain(|frame| frame.header.topics.iter().any(|topic| wanted(topic.id)));
            return Ok(run);
        }
        let log = self.core.log.clone();
        let read = tokio::task::spawn_blocking(move || log.read(from_lsn, bytes_max, &wanted));
        Ok(read.await.map_err(|_| ShardError::ShuttingDown)??)
    }

    /// Waits until something at or behind an LSN is durable. Cancel-safe.
    ///
    /// # Errors
    /// If the log failed or was closed before.
    pub async fn wait(&self, lsn: u64) -> Result<(), ShardError> {
        Waiter::new(self.durable.clone(), lsn.saturating_add(1)).durable().await
    }

    /// The next LSN that becomes durable.
    pub fn end(&self) -> u64 {
        self.durable.borrow().next_lsn
    }

    /// First LSN kept.
    pub fn first_lsn(&self) -> u64 {
        self.core.log.first_lsn()
    }

    /// A position at or before a record, from which a scan finds it. `None` if there is no such topic.
    pub fn lsn_of(&self, topic_id: u64, offset: u64) -> Option<u64> {
        let state = self.core.lock();
        let entry = state.catalog.get(topic_id)?;
        Some(state.samples.find(topic_id, offset).unwrap_or(entry.first_lsn))
    }
}
