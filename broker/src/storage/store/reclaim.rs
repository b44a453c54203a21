//! Frees what nobody can read any more: whole segments, first out of the manifest, then out of the store. And finds what
//! stands where in the others by time (ADR 9).

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use super::{Listed, Place, Store};
use crate::storage::{Reclaim, Reclaimed, Stamps, StorageError, manifest::SegmentRef};

/// Why a segment stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// This topic has records in it up to an offset.
    Topic { id: u64, next_offset: u64 },
    /// Nothing in it is alive: it may go once nothing else holds it.
    Nothing,
}

impl Store {
    /// Drops segments that hold nothing alive, lie before the checkpoint, and are not held for another reason.
    ///
    /// # Errors
    /// If the manifest cannot be replaced: what it says then only a start can tell. A segment that cannot be read stays.
    pub(crate) fn reclaim(&self, request: &Reclaim<'_>) -> Result<Reclaimed, StorageError> {
        let mut done = Reclaimed::default();
        // Held to the end: one at a time, each by the list that the one before has left.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let listed = self.listed.load_full();
        let covered = self.current().manifest.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.lsn);
        let (mut dead, mut uncovered_bytes) = (Vec::new(), 0);
        for segment in &listed.segments {
            if (request.stopped)() {
                break;
            }
            match self.is_alive(&mut kept, segment, request) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    // It stays; those behind it need not.
                    tracing::warn!(object = segment.object, %error, "cannot tell whether a segment is needed: it stays");
                    continue;
                }
            }
            if segment.next_lsn <= covered {
                dead.push(segment);
            } else {
                uncovered_bytes += segment.bytes;
            }
        }
        done.held_bytes += uncovered_bytes;
        // A checkpoint that is larger than what it lets go is not worth its bytes.
        done.checkpoint_helps = uncovered_bytes > self.checkpoint_bytes.load(Ordering::Relaxed);
        if dead.is_empty() {
            return Ok(done);
        }
        let windows: Vec<Range<u64>> = dead.iter().map(|segment| segment.first_lsn..segment.next_lsn).collect();
        let held = (request.held)(&windows);
        let (held, gone): (Vec<_>, Vec<_>) = dead.into_iter().zip(held).partition(|(_, held)| *held);
        done.held_bytes += held.iter().map(|(segment, _)| segment.bytes).sum::<u64>();
        if gone.is_empty() {
            return Ok(done);
        }
        let mut current = self.current();
        let mut manifest = current.manifest.clone();
        manifest.drop_segments(|segment| gone.iter().any(|(gone, _)| gone.object == segment.object));
        current.replace(&self.objects, manifest)?;
        self.listed.store(Arc::new(Listed::of(&current.manifest)));
        drop(current);
        for (segment, _) in gone {
            done.segments += 1;
            done.bytes += segment.bytes;
            kept.remove(&segment.first_lsn);
            self.segments.forget(&segment.object);
            if let Err(error) = self.pins.discard(&segment.object) {
                tracing::warn!(%error, "cannot remove a segment that was dropped; the next start does");
            }
        }
        tracing::debug!(segments = done.segments, bytes = done.bytes, "dropped segments that hold nothing alive");
        Ok(done)
    }

    /// Whether a topic has records in a segment that are kept. What was found is remembered: low offsets only rise.
    fn is_alive(
        &self,
        known: &mut HashMap<u64, Kept>,
        segment: &SegmentRef,
        request: &Reclaim<'_>,
    ) -> Result<bool, StorageError> {
        let alive = |kept: Kept| match kept {
            Kept::Topic { id, next_offset } => (request.low_offset)(id) < next_offset,
            Kept::Nothing => false,
        };
        if let Some(&kept) = known.get(&segment.first_lsn)
            && (kept == Kept::Nothing || alive(kept))
        {
            return Ok(alive(kept));
        }
        let open = self.segments.open(segment)?;
        let mut parts = open.topic_ends().map(|(id, next_offset)| Kept::Topic { id, next_offset });
        let kept = parts.find(|&kept| alive(kept)).unwrap_or(Kept::Nothing);
        known.insert(segment.first_lsn, kept);
        Ok(kept != Kept::Nothing)
    }

    /// The first LSN whose frame was taken at a time or later. `None`: all segments are older.
    ///
    /// # Errors
    /// If the store fails or a segment is damaged.
    pub(crate) fn lsn_at_time(&self, time_ms: i64) -> Result<Option<u64>, StorageError> {
        self.with_listed(|listed| {
            let at = listed.segments.partition_point(|segment| segment.last_time_ms < time_ms);
            match listed.segments.get(at) {
                None => Ok(None),
                Some(segment) if segment.first_time_ms >= time_ms => Ok(Some(segment.first_lsn)),
                Some(segment) => self.segments.open(segment)?.lsn_at_time(time_ms).map(Some),
            }
        })
    }

    /// Stamps of frames from an LSN on that touch a wanted topic, out of the segment that holds it. `None`: it lies behind
    /// all segments.
    ///
    /// # Errors
    /// As `lsn_at_time`.
    pub(crate) fn stamps(&self, from_lsn: u64, wanted: &dyn Fn(u64) -> bool) -> Result<Option<Stamps>, StorageError> {
        self.with_listed(|listed| match listed.place(from_lsn) {
            Place::Behind => Ok(None),
            Place::Hole { next_lsn } => Ok(Some(Stamps { stamps: Vec::new(), next_lsn })),
            Place::Segment(at) => self.segments.open(&listed.segments[at])?.stamps(from_lsn, wanted).map(Some),
        })
    }
}
