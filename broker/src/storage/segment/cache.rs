//! Parts of segments kept in memory, checked, up to a number of bytes; what was not used for longest goes.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tidegate_protocol::stored::FrameHead;

use super::block::Block;

/// A part in memory.
#[derive(Debug, Clone)]
pub(super) enum Part {
    Block(Arc<Block>),
    /// A page of the directory, or all permutations.
    Payload(Bytes),
    Heads(Arc<Vec<FrameHead>>),
}

/// See the module. Shared by all segments of a log.
#[derive(Debug)]
pub struct Cache {
    bytes_max: usize,
    segments: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By number of the segment and position in it.
    parts: HashMap<(u64, u64), Kept>,
    bytes: usize,
    uses: u64,
}

#[derive(Debug)]
struct Kept {
    part: Part,
    bytes: usize,
    used: u64,
}

impl Cache {
    /// Empty. One part stays even if it alone is over the bound.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, segments: AtomicU64::new(0), state: Mutex::default() }
    }

    /// Bytes kept.
    pub fn bytes(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }

    /// A number for a segment that is opened.
    pub(super) fn next_segment(&self) -> u64 {
        self.segments.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn find(&self, segment: u64, position: u64) -> Option<Part> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.uses += 1;
        let uses = state.uses;
        let kept = state.parts.get_mut(&(segment, position))?;
        kept.used = uses;
        Some(kept.part.clone())
    }

    pub(super) fn keep(&self, segment: u64, position: u64, part: Part, bytes: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.uses += 1;
        let used = state.uses;
        state.bytes += bytes;
        if let Some(before) = state.parts.insert((segment, position), Kept { part, bytes, used }) {
            state.bytes -= before.bytes;
        }
        if state.bytes > self.bytes_max {
            state.shrink(self.bytes_max);
        }
    }

    /// Forgets a segment.
    pub(super) fn forget(&self, segment: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.parts.retain(|&(of, _), _| of != segment);
        state.bytes = state.parts.values().map(|kept| kept.bytes).sum();
    }
}

impl State {
    /// Down to seven eighths of the bound, so that this is rare.
    fn shrink(&mut self, bytes_max: usize) {
        let mut by_use: Vec<_> = self.parts.iter().map(|(&place, kept)| (kept.used, place)).collect();
        by_use.sort_unstable();
        // The one just used stays.
        by_use.pop();
        for (_, place) in by_use {
            if self.bytes <= bytes_max - bytes_max / 8 {
                return;
            }
            if let Some(kept) = self.parts.remove(&place) {
                self.bytes -= kept.bytes;
            }
        }
    }
}
