//! The log by time and without records, and what of it may go.

use std::ops::Range;

use super::Log;
use crate::storage::{FrameStamp, Stamps, StorageError};

/// Read from the WAL at once where only stamps are wanted.
const STAMP_BYTES: usize = 4 << 20;

/// What may be dropped. Asked on the caller's thread.
#[derive(Clone, Copy)]
pub struct Reclaim<'a> {
    /// The first offset of a topic that is kept; never goes back.
    pub low_offset: &'a dyn Fn(u64) -> u64,
    /// Of windows of the log, ascending, which must stay although nothing in them is alive.
    pub held: &'a dyn Fn(&[Range<u64>]) -> Vec<bool>,
    /// The look is given up: what was not looked at stays.
    pub stopped: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Reclaim<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reclaim").finish_non_exhaustive()
    }
}

/// What was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reclaimed {
    /// Segments.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of segments that hold nothing alive and stay for another reason.
    pub held_bytes: u64,
    /// A checkpoint would let some of them go.
    pub checkpoint_helps: bool,
}

impl Log {
    /// The first durable LSN whose frame was taken at a time or later; the end if there is none. Blocking.
    ///
    /// # Errors
    /// If the disk fails, or what it holds is damaged.
    pub fn lsn_at_time(&self, time_ms: i64) -> Result<u64, StorageError> {
        let Some(local) = &self.handle.local else { return Ok(self.handle.shared.ring.lsn_at_time(time_ms)) };
        let end = self.handle.shared.durable.borrow().next_lsn;
        // Files first: one that becomes a segment meanwhile is still held here.
        let files = local.files.all();
        if let Some(lsn) = local.store.lsn_at_time(time_ms)? {
            return Ok(lsn);
        }
        for file in files {
            if let Some(lsn) = file.lsn_at_time(time_ms)? {
                return Ok(lsn);
            }
        }
        Ok(end)
    }

    /// Stamps of durable frames from an LSN on that touch a wanted topic, without their records where those lie in
    /// segments. Blocking. `next_lsn` is behind `from_lsn` unless that is the end.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub fn stamps(&self, from_lsn: u64, wanted: &dyn Fn(u64) -> bool) -> Result<Stamps, StorageError> {
        if let Some(local) = &self.handle.local
            && let Some(stamps) = local.store.stamps(from_lsn, wanted)?
        {
            return Ok(stamps);
        }
        let run = match self.tail(from_lsn, STAMP_BYTES) {
            Some(run) => run,
            None => self.read(from_lsn, STAMP_BYTES, wanted)?,
        };
        Ok(Stamps {
            stamps: run.frames.iter().map(|frame| FrameStamp::from(&**frame)).collect(),
            next_lsn: run.next_lsn,
        })
    }

    /// Drops segments that hold nothing alive. Blocking.
    ///
    /// # Errors
    /// If the store fails.
    pub fn reclaim(&self, request: &Reclaim<'_>) -> Result<Reclaimed, StorageError> {
        let reclaimed = self.handle.local.as_ref().map(|local| local.store.reclaim(request));
        reclaimed.unwrap_or_else(|| Ok(Reclaimed::default()))
    }

    /// Segments, and bytes of all.
    pub fn segments(&self) -> (usize, u64) {
        self.handle.local.as_ref().map_or_else(Default::default, |local| local.store.usage())
    }
}
