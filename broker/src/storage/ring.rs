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

    /// Frames from the one that holds `from_lsn` on and before `end`; the first may begin before it. `None` if it fell out.
    ///
    /// Frames are here a moment before it is told that they are durable: `end` keeps readers from positions that nobody else
    /// knows of yet.
    pub(crate) fn read(&self, from_lsn: u64, end: u64, bytes_max: usize) -> Option<Run> {
        let state = self.lock();
        if from_lsn >= state.next_lsn.min(end) {
            return Some(Run { frames: Vec::new(), next_lsn: from_lsn });
        }
        let mut at = state.frames.partition_point(|frame| frame.header.first_lsn <= from_lsn).checked_sub(1)?;
        let mut run = Run { frames: Vec::new(), next_lsn: from_lsn };
        let mut bytes = 0;
        while let Some(frame) = state.frames.get(at) {
            bytes += frame.bytes.len();
            if (bytes > bytes_max && !run.frames.is_empty()) || frame.header.first_lsn >= end {
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

#[cfg(test)]
mod tests {
    use tidegate_protocol::{
        batch::BatchBuilder,
        limits::Limits,
        record::RecordView,
        stored::{FrameHeader, TopicStamp},
    };

    use super::*;

    fn frame(first_lsn: u64) -> Arc<StoredFrame> {
        let mut builder = BatchBuilder::new();
        builder.push("t", RecordView { key: None, value: None, headers: &[], timestamp_ms: 0 });
        let body = builder.finish_body(&Limits::default()).unwrap();
        let topics = vec![TopicStamp { id: 16, base_offset: first_lsn }];
        let header = FrameHeader {
            first_lsn,
            tenant: 1,
            input_count: 1,
            topics,
            key_versions: vec![0],
            ..FrameHeader::default()
        };
        Arc::new(StoredFrame::from_parts(header, Some(body)).unwrap())
    }

    #[test]
    fn a_reader_is_told_no_position_before_all_others() {
        let ring = Ring::new(1 << 20);
        ring.publish((0..4).map(frame));
        // Two of them are not told to be durable yet: a cursor behind those would be refused.
        let run = ring.read(0, 2, usize::MAX).unwrap();
        assert_eq!((run.frames.len(), run.next_lsn), (2, 2));
        let run = ring.read(2, 2, usize::MAX).unwrap();
        assert_eq!((run.frames.len(), run.next_lsn), (0, 2));
        let run = ring.read(2, 4, usize::MAX).unwrap();
        assert_eq!((run.frames.len(), run.next_lsn), (2, 4));
        // The same of what is read off the disk.
        let run = run.before(3);
        assert_eq!((run.frames.len(), run.next_lsn), (1, 3));
        assert_eq!((run.clone().before(9).next_lsn, run.before(2).next_lsn), (3, 2));
    }
}
