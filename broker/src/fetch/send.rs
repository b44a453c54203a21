//! Frames to a reader: the stored body as it is where nothing was taken out or changed, else a new one, in parts that a
//! client takes.

use bytes::Bytes;
use tidegate_protocol::{
    batch::BatchBuilder,
    cursor::Cursor,
    limits::Limits,
    record::RecordView,
    stored::StoredFrame,
    wire::{self, FetchHead, FetchProgress, Gap, ServerBody, ServerMessage},
};

use super::select::Selected;
use crate::hooks::{FetchOutput, FetchedRecord};

/// Bytes of a head per record, at most: two varints.
const HEAD_RECORD_BYTES: usize = 20;

/// One frame of kind 2.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) head: FetchHead,
    pub(super) body: Bytes,
    /// The position its cursor tells.
    pub(super) next_lsn: u64,
}

impl Part {
    /// Its bytes; the body is not copied.
    pub(super) fn into_frame(self) -> Vec<Bytes> {
        vec![wire::encode_batch_head(&self.head, self.body.len()), self.body]
    }
}

/// Printed cursor of a position.
pub(super) fn cursor(shard: u16, next_lsn: u64) -> String {
    Cursor::Shard { shard, next_lsn }.to_string()
}

/// Progress as bytes.
pub(super) fn progress(shard: u16, next_lsn: u64, at_end: bool, gaps: Vec<Gap>) -> Vec<Bytes> {
    let progress = FetchProgress { cursor: cursor(shard, next_lsn), at_end, gaps };
    vec![wire::encode_control(&ServerMessage::from(ServerBody::FetchProgress(progress)))]
}

/// What goes out for a frame, in order. Empty where the chain let nothing through.
pub(super) fn parts(frame: &StoredFrame, selected: &Selected, output: &FetchOutput, limits: &Limits) -> Vec<Part> {
    let Some(body) = &frame.body else { return Vec::new() };
    let room = (limits.batch_bytes_max as usize).saturating_sub(selected.at.len().saturating_mul(HEAD_RECORD_BYTES));
    let mut parts =
        Parts { frame, selected, room, done: Vec::new(), builder: BatchBuilder::new(), head: FetchHead::default() };
    match output {
        FetchOutput::Unchanged if selected.whole && body.bytes().len() <= room => {
            parts.head.offsets.clone_from(&selected.offsets);
            parts.head.key_versions.clone_from(&selected.key_versions);
            parts.close(body.bytes().clone(), selected.next_lsn);
        }
        FetchOutput::Unchanged => {
            for (index, at) in selected.at.iter().enumerate() {
                parts.push(index, *at, body.record(*at));
            }
            parts.finish();
        }
        FetchOutput::Records(records) => {
            let mut indexes = selected.at.iter().enumerate();
            for FetchedRecord { at, key, value, headers } in records.iter() {
                // Both ascend.
                let Some((index, _)) = indexes.find(|(_, known)| *known == at) else { break };
                let timestamp_ms = body.record(*at).timestamp_ms;
                let record = RecordView { key: key.as_deref(), value: value.as_deref(), headers, timestamp_ms };
                parts.push(index, *at, record);
            }
            parts.finish();
        }
    }
    parts.done
}

struct Parts<'a> {
    frame: &'a StoredFrame,
    selected: &'a Selected,
    room: usize,
    done: Vec<Part>,
    builder: BatchBuilder,
    head: FetchHead,
}

impl Parts<'_> {
    fn push(&mut self, index: usize, at: u32, record: RecordView<'_>) {
        let body = self.frame.body.as_ref();
        let topic = body.and_then(|body| body.topic_at(at).and_then(|number| body.topic(number))).unwrap_or_default();
        let bytes =
            [record.key, record.value, Some(record.headers)].iter().flatten().map(|part| part.len()).sum::<usize>();
        let more = bytes.saturating_add(topic.len()).saturating_add(RECORD_COLUMNS_BYTES);
        if !self.builder.is_empty() && self.builder.encoded_bytes().saturating_add(more) > self.room {
            let body = self.builder.finish();
            self.close(body, self.frame.header.first_lsn.saturating_add(u64::from(at)));
        }
        self.builder.push(topic, record);
        self.head.offsets.push(self.selected.offsets.get(index).copied().unwrap_or_default());
        self.head.key_versions.push(self.selected.key_versions.get(index).copied().unwrap_or_default());
    }

    fn finish(&mut self) {
        if !self.builder.is_empty() {
            let body = self.builder.finish();
            self.close(body, self.selected.next_lsn);
        }
    }

    fn close(&mut self, body: Bytes, next_lsn: u64) {
        let header = &self.frame.header;
        let mut head = std::mem::take(&mut self.head);
        head.broker_time_ms = header.broker_time_ms;
        head.generation = header.generation;
        head.cursor = cursor(header.shard, next_lsn);
        self.done.push(Part { head, body, next_lsn });
    }
}

/// Ends, timestamp and a section of its own.
const RECORD_COLUMNS_BYTES: usize = 4 * 3 + 8 + 8;
