//! The tail: the last durable frames, kept in memory so that a reader who keeps up reads no disk.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidegate_protocol::stored::StoredFrame;

use super::Run;

/// Durable frames up to a number of bytes; the oldest fall out.
#[derive(Debug)]
pub(crate) struct Ring {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<Arc<StoredFrame>>,
    bytes: usize,
    next_lsn: u64,
}

impl Ring {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Empty, in front of an LSN.
    pub(crate) fn start_at(&self, lsn: u64) {
        let mut state = self.lock();
        if state.next_lsn != lsn {
            *state = State { next_lsn: lsn, ..State::default() };
        }
    }

    /// Takes frames that are durable. What follows no frame here starts the ring anew.
    pub(crate) fn publish(&self, frames: impl IntoIterator<Item = Arc<StoredFrame>>) {
        let mut state = self.lock();
        for frame in frames {
            if frame.header.first_lsn != state.next_lsn {
                *state = State::default();
            }
            state.next_lsn = frame.next_lsn();
            state.bytes += memory_bytes(&frame);
            state.frames.push_back(frame);
        }
        while state.bytes > self.bytes_max
            && let Some(oldest) = state.frames.pop_front()
        {
            state.bytes -= memory_bytes(&oldest);
        }
    }

    /// Frames from the one that holds `from_lsn` on; the first may begin before it. `None` if it fell out.
    pub(crate) fn read(&self, from_lsn: u64, bytes_max: usize) -> Option<Run> {
        let state = self.lock();
        if from_lsn >= state.next_lsn {
            return Some(Run { frames: Vec::new(), next_lsn: from_lsn });
        }
        let mut at = state.frames.partition_point(|frame| frame.header.first_lsn <= from_lsn).checked_sub(1)?;
        let mut run = Run { frames: Vec::new(), next_lsn: from_lsn };
        let mut bytes = 0;
        while let Some(frame) = state.frames.get(at) {
            bytes += frame.bytes.len();
            if bytes > bytes_max && !run.frames.is_empty() {
                break;
            }
            run.next_lsn = frame.next_lsn();
            run.frames.push(Arc::clone(frame));
            at += 1;
        }
        Some(run)
    }

    /// The first LSN kept whose frame was taken at a time or later; the end if there is none.
    pub(crate) fn lsn_at_time(&self, time_ms: i64) -> u64 {
        let state = self.lock();
        let at = state.frames.partition_point(|frame| frame.header.broker_time_ms < time_ms);
        state.frames.get(at).map_or(state.next_lsn, |frame| frame.header.first_lsn)
    }

    /// First LSN kept.
    pub(crate) fn first_lsn(&self) -> u64 {
        let state = self.lock();
        state.frames.front().map_or(state.next_lsn, |frame| frame.header.first_lsn)
    }

    /// Bytes kept.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }
}

/// What a frame takes in memory, about: its bytes, and what was parsed of them.
fn memory_bytes(frame: &StoredFrame) -> usize {
    let header = &frame.header;
    frame.bytes.len() + 256 + header.key_versions.len() * 8 + header.topics.len() * 32 + header.refused.len() * 96
}
