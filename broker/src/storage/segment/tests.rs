//! Segments against a simple model: a list of records. Golden bytes, damage and bytes nobody vouches for.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of tests, cut on purpose")]

mod damage;
mod generate;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use tidegate_protocol::{
    batch::BatchBuilder,
    limits::Limits,
    record::RecordView,
    stored::{FrameHeader, StoredFrame, TopicStamp},
};

use self::generate::{Shape, frames, records_of};
use super::*;
use crate::storage::StorageError;

/// A segment in memory that counts what is read of it.
#[derive(Debug)]
struct Memory {
    bytes: Bytes,
    reads: Mutex<Vec<Range<u64>>>,
}

impl Ranges for Memory {
    fn read(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        self.reads.lock().unwrap().push(range.clone());
        let place = |at: u64| (at as usize).min(self.bytes.len());
        Ok(self.bytes.slice(place(range.start)..place(range.end)))
    }
}

fn memory(bytes: Bytes) -> Arc<Memory> {
    Arc::new(Memory { bytes, reads: Mutex::default() })
}

fn expected(bytes: &Bytes, frames: &[Arc<StoredFrame>]) -> Expected {
    Expected {
        object: "seg/test".to_owned(),
        bytes: bytes.len() as u64,
        first_lsn: frames[0].header.first_lsn,
        next_lsn: frames[frames.len() - 1].next_lsn(),
        shard: 3,
    }
}

fn open(frames: &[Arc<StoredFrame>]) -> (Segment, Arc<Memory>) {
    let bytes = build(3, 1, frames);
    let (expected, memory) = (expected(&bytes, frames), memory(bytes));
    let cache = Arc::new(Cache::new(64 << 20));
    (Segment::open(Arc::clone(&memory) as Arc<dyn Ranges>, cache, &expected).unwrap(), memory)
}

fn scan_all(segment: &Segment, bytes_max: usize) -> Vec<Arc<StoredFrame>> {
    let (mut lsn, mut all) = (segment.first_lsn(), Vec::new());
    while lsn < segment.next_lsn() {
        let run = segment.scan(lsn, bytes_max, None).unwrap();
        assert!(run.next_lsn > lsn, "progress at {lsn}");
        lsn = run.next_lsn;
        all.extend(run.frames);
    }
    all
}

/// All slices from an offset on, one behind the other.
fn all_of(from: u64, mut read: impl FnMut(u64) -> Slice) -> Vec<StoredRecord> {
    let (mut next, mut all) = (Some(from), Vec::new());
    while let Some(from) = next {
        let slice = read(from);
        assert!(slice.next_offset.is_none_or(|next| next > from), "progress at {from}");
        assert!(slice.next_offset.is_none() || !slice.records.is_empty(), "a cut slice has a record");
        next = slice.next_offset;
        all.extend(slice.records);
    }
    all
}

fn assert_frames(got: &[Arc<StoredFrame>], wanted: &[Arc<StoredFrame>], what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (got, wanted) in got.iter().zip(wanted) {
        assert_eq!(got.bytes, wanted.bytes, "{what}: LSN {}", wanted.header.first_lsn);
        assert_eq!(got.header, wanted.header, "{what}");
    }
}

#[test]
fn the_shard_comes_back_in_order_byte_for_byte() {
    for seed in 0..60 {
        let frames = frames(seed, &Shape::of(seed));
        let (segment, _) = open(&frames);
        for bytes_max in [1, 700, 40_000, usize::MAX] {
            assert_frames(&scan_all(&segment, bytes_max), &frames, &format!("seed {seed}, {bytes_max}"));
        }
        for lsn in (segment.first_lsn()..segment.next_lsn()).step_by(7) {
            let run = segment.scan(lsn, 1, None).unwrap();
            let holding = frames.iter().find(|frame| frame.next_lsn() > lsn).unwrap();
            assert_eq!(run.frames[0].bytes, holding.bytes, "seed {seed}, LSN {lsn}");
        }
        let wanted = |id: u64| id.is_multiple_of(2);
        let touching = |frame: &&Arc<StoredFrame>| frame.header.topics.iter().any(|topic| wanted(topic.id));
        let even: Vec<_> = frames.iter().filter(touching).cloned().collect();
        let run = segment.scan(segment.first_lsn(), usize::MAX, Some(&wanted)).unwrap();
        assert_frames(&run.frames, &even, &format!("seed {seed}, some topics"));
        assert_eq!(run.next_lsn, segment.next_lsn());
        assert!(segment.scan(segment.first_lsn(), 1, Some(&|_| false)).unwrap().frames.is_empty());
    }
}

#[test]
fn a_topic_comes_in_offset_order_and_a_key_is_the_filtered_scan() {
    for seed in 0..60 {
        let frames = frames(seed, &Shape::of(seed));
        let (segment, _) = open(&frames);
        let records = records_of(&frames);
        let topics: BTreeSet<u64> = records.iter().map(|record| record.topic_id).collect();
        for &topic in &topics {
            let model: Vec<_> = records.iter().filter(|record| record.topic_id == topic).cloned().collect();
            assert!(model.windows(2).all(|pair| pair[0].offset + 1 == pair[1].offset), "dense in the model");
            for bytes_max in [1, 500, usize::MAX] {
                let got = all_of(0, |from| segment.scan_topic(topic, from, bytes_max).unwrap());
                assert_eq!(got, model, "seed {seed}, topic {topic}, {bytes_max}");
            }
            for from in model.iter().map(|record| record.offset).step_by(5) {
                let slice = segment.scan_topic(topic, from, 1).unwrap();
                assert_eq!(slice.records[0].offset, from);
            }
            let behind = model.last().unwrap().offset + 1;
            assert_eq!(segment.scan_topic(topic, behind, 1).unwrap(), Slice::default());
            let keys: BTreeSet<_> = model.iter().filter_map(|record| record.key.clone()).collect();
            for key in &keys {
                check_key(&segment, topic, key, &model);
            }
            for absent in [&b"absent"[..], b"", b"\xff\xff", b"key-000"] {
                if !keys.contains(absent) {
                    assert_eq!(segment.head(topic, absent).unwrap(), None);
                    assert_eq!(segment.replay(topic, absent, 0, 1).unwrap(), Slice::default());
                }
            }
        }
        assert_eq!(segment.scan_topic(u64::MAX, 0, 1).unwrap(), Slice::default());
        assert_eq!(segment.counts().0 as usize, records.len());
    }
}

fn check_key(segment: &Segment, topic: u64, key: &[u8], of_topic: &[StoredRecord]) {
    let model: Vec<_> = of_topic.iter().filter(|record| record.key.as_deref() == Some(key)).cloned().collect();
    let last = model.last().unwrap();
    let head = segment.head(topic, key).unwrap().expect("the key is there");
    let deleted = last.value.is_none();
    let (version, last_offset, records) = (last.key_version, last.offset, model.len() as u32);
    assert_eq!(head, KeyHead { version, last_offset, deleted, records });
    for bytes_max in [1, 300, usize::MAX] {
        assert_eq!(all_of(0, |from| segment.replay(topic, key, from, bytes_max).unwrap()), model);
    }
    for (number, record) in model.iter().enumerate() {
        let rest = all_of(record.offset, |from| segment.replay(topic, key, from, usize::MAX).unwrap());
        assert_eq!(rest, model[number..]);
        let behind = all_of(record.offset + 1, |from| segment.replay(topic, key, from, usize::MAX).unwrap());
        assert_eq!(behind, model[number + 1..]);
    }
}

#[test]
fn records_without_bytes_fill_a_read_too() {
    let frame = |number: u64| {
        let mut builder = BatchBuilder::new();
        (0..10).for_each(|_| {
            builder.push("t", RecordView { key: Some(b""), value: None, headers: &[], timestamp_ms: 5 });
        });
        let header = FrameHeader {
            shard: 3,
            first_lsn: number * 10,
            tenant: 1,
            input_count: 10,
            topics: vec![TopicStamp { id: 16, base_offset: number * 10 }],
            key_versions: (number * 10 + 1..=number * 10 + 10).collect(),
            ..FrameHeader::default()
        };
        Arc::new(StoredFrame::from_parts(header, Some(builder.finish_body(&Limits::STORED).unwrap())).unwrap())
    };
    let frames: Vec<_> = (0..10).map(frame).collect();
    let (segment, _) = open(&frames);
    let bytes_max = 7 * RECORD_COST_BYTES;
    let replay = |from| segment.replay(16, b"", from, bytes_max).unwrap();
    let scan = |from| segment.scan_topic(16, from, bytes_max).unwrap();
    assert_eq!((replay(0).records.len(), replay(0).next_offset), (7, Some(7)));
    assert_eq!((scan(3).records.len(), scan(3).next_offset), (7, Some(10)));
    assert_eq!((all_of(0, replay), all_of(0, scan)), (records_of(&frames), records_of(&frames)));
}

#[test]
fn keys_are_listed_by_prefix_in_order_page_by_page() {
    for seed in 0..30 {
        let frames = frames(seed, &Shape::of(seed));
        let (segment, _) = open(&frames);
        let mut model: BTreeMap<u64, BTreeSet<Bytes>> = BTreeMap::new();
        for record in records_of(&frames) {
            model.entry(record.topic_id).or_default().extend(record.key);
        }
        for (&topic, keys) in &model {
            for prefix in [&b""[..], b"key-", b"key-1", b"k", b"zzz"] {
                let wanted: Vec<_> = keys.iter().filter(|key| key.starts_with(prefix)).cloned().collect();
                for max in [1, 3, usize::MAX] {
                    let mut got: Vec<Bytes> = Vec::new();
                    loop {
                        let page = segment.keys(topic, prefix, got.last().map(|key| &key[..]), max).unwrap();
                        assert!(page.len() <= max);
                        got.extend(page.iter().map(|(key, _)| key.clone()));
                        if page.len() < max {
                            break;
                        }
                    }
                    assert_eq!(got, wanted, "seed {seed}, topic {topic}, prefix {prefix:?}, {max}");
                }
            }
        }
    }
}

#[test]
fn a_cold_key_costs_one_page_and_one_range_and_an_absent_one_nothing() {
    let shape =
        Shape { frames: 300, records: 40, topics: 3, keys: 4_000, value_bytes: 200, big_bytes: 0, null_one_in: 4 };
    let frames = frames(7, &shape);
    let (segment, memory) = open(&frames);
    assert!(segment.pages.len() > 3 && segment.blocks.len() > 5, "{} pages", segment.pages.len());
    assert_eq!(memory.reads.lock().unwrap().len(), 2, "opening takes two reads");
    let mut keys: BTreeSet<(u64, Bytes)> = BTreeSet::new();
    keys.extend(records_of(&frames).into_iter().filter_map(|record| Some((record.topic_id, record.key?))));
    let expected = expected(&memory.bytes, &frames);
    let cold = || Segment::open(memory.clone(), Arc::new(Cache::new(1 << 20)), &expected).unwrap();
    for (topic, key) in keys.iter().step_by(17) {
        let segment = cold();
        memory.reads.lock().unwrap().clear();
        let slice = segment.replay(*topic, key, 0, 1 << 20).unwrap();
        assert!(!slice.records.is_empty());
        let reads = std::mem::take(&mut *memory.reads.lock().unwrap());
        assert_eq!(reads.len(), 2, "a page and a range: {reads:?}");
        segment.replay(*topic, key, 0, 1 << 20).unwrap();
        assert!(memory.reads.lock().unwrap().is_empty(), "warm, nothing is read");
    }
    let segment = cold();
    memory.reads.lock().unwrap().clear();
    let absent: Vec<_> = (0..10_000).map(|number| format!("absent-{number}")).collect();
    let asked = absent.iter().filter(|key| segment.may_hold(16, key.as_bytes()));
    let hits = asked.inspect(|key| assert_eq!(segment.head(16, key.as_bytes()).unwrap(), None)).count();
    assert!(hits < 100, "{hits} of 10 000 absent keys passed the filter");
    assert!(memory.reads.lock().unwrap().len() <= hits, "no read where the filter says no");
}

#[test]
fn records_over_a_block_and_keys_over_many_blocks_are_read() {
    let shape =
        Shape { frames: 40, records: 20, topics: 1, keys: 2, value_bytes: 9_000, big_bytes: 300_000, null_one_in: 4 };
    let frames = frames(5, &shape);
    let (segment, memory) = open(&frames);
    assert!(segment.blocks.len() > 20, "{}", segment.blocks.len());
    assert_frames(&scan_all(&segment, 1 << 20), &frames, "large records");
    let records = records_of(&frames);
    let keys: BTreeSet<_> = records.iter().filter_map(|record| record.key.clone()).collect();
    keys.iter().for_each(|key| check_key(&segment, 16, key, &records));
    let late = records.iter().rev().find(|record| record.key.is_some()).unwrap();
    let cold = Segment::open(memory.clone(), Arc::new(Cache::new(1 << 20)), &expected(&memory.bytes, &frames)).unwrap();
    memory.reads.lock().unwrap().clear();
    let slice = cold.replay(16, late.key.as_ref().unwrap(), late.offset, 1).unwrap();
    assert_eq!(slice.records, std::slice::from_ref(late));
    assert!(memory.reads.lock().unwrap().len() < 10, "the blocks before are searched, not read through");
}

#[test]
fn the_cache_keeps_its_bound_and_forgets_a_segment_that_is_gone() {
    let frames = frames(3, &Shape { frames: 200, records: 40, value_bytes: 300, ..Shape::of(1) });
    let bytes = build(3, 1, &frames);
    let cache = Arc::new(Cache::new(256 << 10));
    let expected = expected(&bytes, &frames);
    let segment = Segment::open(memory(bytes), Arc::clone(&cache), &expected).unwrap();
    assert_frames(&scan_all(&segment, 30_000), &frames, "with a small cache");
    assert!(cache.bytes() <= 256 << 10, "{}", cache.bytes());
    drop(segment);
    assert_eq!(cache.bytes(), 0);
}

#[test]
fn a_segment_of_frames_without_records_is_one() {
    let frames = frames(1, &Shape { frames: 5, records: 0, ..Shape::of(0) });
    let (segment, _) = open(&frames);
    assert_frames(&scan_all(&segment, 1), &frames, "empty frames");
    assert_eq!(segment.counts(), (0, 0));
    assert!(!segment.may_hold(16, b"key"));
    assert_eq!(segment.keys(16, b"", None, 10).unwrap(), []);
}
