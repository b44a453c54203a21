//! Frames by seed, and the records they hold as a plain list.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use tidegate_protocol::{
    batch::BatchBuilder,
    limits::Limits,
    record::{RecordView, encode_headers},
    stored::{FrameHeader, ProducerStamp, Refused, RefusedStatus, StoredFrame, TopicStamp},
};

use crate::storage::segment::StoredRecord;

/// xorshift64*.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end.max(1)
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// What frames look like.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) frames: u64,
    /// Most of a frame.
    pub(super) records: u64,
    pub(super) topics: u64,
    pub(super) keys: u64,
    /// Most of most values.
    pub(super) value_bytes: u64,
    /// And of some.
    pub(super) big_bytes: u64,
    /// One key in so many is null; 0 = none.
    pub(super) null_one_in: u64,
}

impl Shape {
    /// Some shape: from few records of one topic without keys to many topics with many keys.
    pub(super) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed + 1_000);
        Self {
            frames: 1 + random.below(60),
            records: random.below(12),
            topics: 1 + random.below(6),
            keys: [1, 5, 40, 500][random.below(4) as usize],
            value_bytes: [0, 30, 400][random.below(3) as usize],
            big_bytes: [0, 0, 70_000][random.below(3) as usize],
            null_one_in: [0, 1, 4][random.below(3) as usize],
        }
    }
}

/// Frames that follow each other, numbered as the shard does.
pub(super) fn frames(seed: u64, shape: &Shape) -> Vec<Arc<StoredFrame>> {
    let mut random = Random::new(seed);
    let mut next_lsn = 1_000 + random.below(1_000);
    let mut time_ms = 1_700_000_000_000;
    let mut offsets: HashMap<u64, u64> = HashMap::new();
    let mut versions: HashMap<(u64, Vec<u8>), u64> = HashMap::new();
    let mut frames = Vec::new();
    for number in 0..shape.frames {
        time_ms += i64::try_from(random.below(50)).unwrap();
        let mut builder = BatchBuilder::new();
        let (mut stamps, mut key_versions): (Vec<TopicStamp>, Vec<u64>) = Default::default();
        let mut topic = random.below(shape.topics);
        for _ in 0..random.below(shape.records + 1) {
            if random.one_in(3) {
                topic = random.below(shape.topics);
            }
            let id = 16 + topic;
            let next = offsets.entry(id).or_insert(topic * 100);
            if stamps.iter().all(|stamp| stamp.id != id) {
                stamps.push(TopicStamp { id, base_offset: *next });
            }
            *next += 1;
            let key = key(&mut random, shape);
            let version = key.as_ref().map_or(0, |key| {
                let version = versions.entry((id, key.clone())).or_default();
                *version += 1;
                *version
            });
            key_versions.push(version);
            push(&mut builder, &mut random, shape, topic, key.as_deref());
        }
        let refused = Refused {
            index: 0,
            status: RefusedStatus::Rejected,
            code: 500,
            plugin_code: 7,
            retry_after_ms: 0,
            reason: "because".to_owned(),
            plugin: "filter".to_owned(),
        };
        let records = key_versions.len() as u32;
        let refuses = u32::from(random.one_in(4));
        let header = FrameHeader {
            shard: 3,
            first_lsn: next_lsn,
            broker_time_ms: time_ms,
            generation: 5 + number / 20,
            tenant: 1,
            input_count: records + refuses,
            producer: random.one_in(2).then_some(ProducerStamp { id: 9, epoch: 1, sequence: number }),
            topics: stamps,
            key_versions,
            refused: (0..refuses).map(|_| refused.clone()).collect(),
            ..FrameHeader::default()
        };
        let body = (records > 0).then(|| builder.finish_body(&Limits::STORED).unwrap());
        let frame = StoredFrame::from_parts(header, body).unwrap();
        next_lsn = frame.next_lsn();
        frames.push(Arc::new(frame));
    }
    frames
}

fn key(random: &mut Random, shape: &Shape) -> Option<Vec<u8>> {
    if shape.null_one_in > 0 && random.one_in(shape.null_one_in) {
        return None;
    }
    let number = random.below(shape.keys);
    Some(match number % 7 {
        0 => Vec::new(),
        1 => vec![0; (number % 20) as usize + 1],
        2 => vec![0xff; (number % 10) as usize + 1],
        _ => format!("key-{number}").into_bytes(),
    })
}

fn push(builder: &mut BatchBuilder, random: &mut Random, shape: &Shape, topic: u64, key: Option<&[u8]>) {
    let most = if random.one_in(20) { shape.big_bytes.max(shape.value_bytes) } else { shape.value_bytes };
    let value: Vec<u8> = (0..random.below(most + 1)).map(|_| (random.next() >> 40) as u8).collect();
    let value = (!random.one_in(6)).then_some(value);
    let mut headers = Vec::new();
    if random.one_in(4) {
        encode_headers([("name", Some(&b"value"[..])), ("none", None)].into_iter(), &mut headers).unwrap();
    }
    let timestamp_ms = match random.below(10) {
        0 => i64::MIN,
        1 => i64::MAX,
        _ => 1_700_000_000_000 + random.below(1_000) as i64,
    };
    builder.push(&format!("t/{topic}"), RecordView { key, value: value.as_deref(), headers: &headers, timestamp_ms });
}

/// Every record of the frames, in shard order.
pub(super) fn records_of(frames: &[Arc<StoredFrame>]) -> Vec<StoredRecord> {
    let mut records = Vec::new();
    for frame in frames {
        let body = frame.body.iter().flat_map(|body| body.records());
        for (((topic_id, offset, key_version), (_, record)), lsn) in
            frame.positions().zip(body).zip(frame.header.first_lsn..)
        {
            records.push(StoredRecord {
                topic_id,
                offset,
                key_version,
                lsn,
                broker_time_ms: frame.header.broker_time_ms,
                generation: frame.header.generation,
                timestamp_ms: record.timestamp_ms,
                key: record.key.map(Bytes::copy_from_slice),
                value: record.value.map(Bytes::copy_from_slice),
                headers: Bytes::copy_from_slice(record.headers),
            });
        }
    }
    records
}
