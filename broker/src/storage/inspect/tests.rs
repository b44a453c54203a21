//! Files that are whole, damaged, cut, or nothing of ours: told as far as they can be read, and never a panic.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers of tests")]

use std::io;

use tidegate_protocol::{
    batch::BatchBuilder,
    limits::Limits,
    record::RecordView,
    stored::{FrameHeader, TopicStamp},
};

use super::*;
use crate::storage::{
    segment,
    sim::{Mutant, SimDisk},
    wal::entry::{EntryHeader, FileHeader, entry_bytes},
};

/// Items of a state that is text: `topic` and `head` lines.
#[derive(Debug)]
struct Lines;

impl States for Lines {
    fn walk(
        &self,
        _: u64,
        state: &mut dyn io::Read,
        each: &mut dyn FnMut(StateItem<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut text = String::new();
        state.read_to_string(&mut text).map_err(|error| error.to_string())?;
        text.lines().try_for_each(|line| match line {
            "topic" => each(StateItem::Topic { id: 16, name: "t", tenant: 1, next_offset: 3 }),
            "head" => each(StateItem::Head { topic: 16, key: b"k", version: 2, last_offset: 1 }),
            other => Err(format!("what is {other:?}?")),
        })
    }
}

fn frame(lsn: u64) -> Arc<StoredFrame> {
    let mut builder = BatchBuilder::new();
    let value = vec![7; 100];
    builder.push("t/one", RecordView { key: Some(b"k"), value: Some(&value), headers: &[], timestamp_ms: 7 });
    builder.push("t/two", RecordView { key: None, value: None, headers: &[], timestamp_ms: 8 });
    let topics = [(16, lsn / 2), (17, lsn / 2)].map(|(id, base_offset)| TopicStamp { id, base_offset }).to_vec();
    let header = FrameHeader {
        first_lsn: lsn,
        broker_time_ms: lsn as i64,
        input_count: 2,
        topics,
        key_versions: vec![lsn / 2 + 1, 0],
        ..FrameHeader::default()
    };
    Arc::new(StoredFrame::from_parts(header, Some(builder.finish_body(&Limits::STORED).unwrap())).unwrap())
}

/// A WAL file of five frames, each a group of its own, and where they begin.
fn wal_file() -> (Vec<u8>, Vec<usize>) {
    let header = FileHeader { shard: 0, generation: 0x1_0000_0007, first_lsn: 10 };
    let (mut bytes, mut places) = (header.encode(), Vec::new());
    for lsn in (10..20).step_by(2) {
        let frame = frame(lsn);
        let start = bytes.len();
        places.push(start);
        let frame_bytes = frame.bytes.len() as u32;
        let entry =
            EntryHeader { frame_bytes, generation: header.generation, first_lsn: lsn, group_position: start as u64 };
        entry.encode(&mut bytes);
        bytes.extend_from_slice(&frame.bytes);
        bytes.resize(start + entry_bytes(frame.bytes.len()), 0);
    }
    bytes.resize(16 << 10, 0);
    (bytes, places)
}

fn segment_file() -> Vec<u8> {
    let frames: Vec<_> = (10..40).step_by(2).map(frame).collect();
    segment::build(0, 1, &frames).to_vec()
}

fn checkpoint_file() -> Vec<u8> {
    let (lsn, state) = (30_u64.to_le_bytes(), b"topic\nhead\nhead\n");
    let crc = crc32c::crc32c_append(crc32c::crc32c(&lsn), state);
    [b"TGC1", &lsn[..], &crc.to_le_bytes(), state].concat()
}

/// What is told of a file, a line each, and its faults.
fn told(bytes: &[u8], records_max: u64) -> Result<(Vec<String>, Vec<u64>), InspectError> {
    let disk = SimDisk::new(1, Mutant::None);
    let path = Path::new("/file");
    disk.create(path).unwrap().write_at(bytes, 0).unwrap();
    let (mut lines, mut faults) = (Vec::new(), Vec::new());
    run(&disk, path, &Lines, records_max, &mut |item| {
        match item {
            Item::Fields(name, fields) => lines.push(format!("{name} {fields:?}")),
            Item::Topic(id, topic) => lines.push(format!("topic {id} {} {}", topic.name, topic.records)),
            Item::Record(record) => lines.push(format!("record {}@{} {}", record.topic_id, record.offset, record.lsn)),
            Item::Fault(position, _) => faults.push(position),
        }
        Ok(())
    })?;
    Ok((lines, faults))
}

fn count(lines: &[String], what: &str) -> usize {
    lines.iter().filter(|line| line.starts_with(what)).count()
}

#[test]
fn whole_files_are_told_and_records_as_many_as_wanted() {
    let (wal, _) = wal_file();
    for (bytes, kind, records) in [(wal, "wal", 10), (segment_file(), "segment", 30)] {
        for max in [0, 1, 3, 1_000] {
            let (lines, faults) = told(&bytes, max).unwrap();
            assert_eq!((faults.len(), count(&lines, "record")), (0, records.min(max as usize)), "{kind}");
            assert!(lines[0].starts_with(kind));
            assert_eq!(lines.iter().filter(|line| line.starts_with("topic 1")).count(), 2, "{lines:?}");
            assert!(lines.contains(&format!("topic 16 t/one {}", records / 2)), "{lines:?}");
        }
    }
    let (lines, faults) = told(&checkpoint_file(), 2).unwrap();
    assert_eq!((faults.len(), count(&lines, "topic"), count(&lines, "head")), (0, 1, 1), "{lines:?}");
    assert!(lines.last().unwrap().contains("(\"keys\", Number(2))"), "{lines:?}");
    let text = manifest::Manifest::empty().text().unwrap();
    let (lines, faults) = told(&text, 0).unwrap();
    assert!(lines.len() == 2 && lines[0].starts_with("manifest") && faults.is_empty(), "{lines:?}");
    assert_eq!(told(b"{}", 0).unwrap().1, [0]);
    let (lines, faults) = told(&[0; 8192], 5).unwrap();
    assert!(faults.is_empty() && lines[0].contains("in_use"), "a WAL file made ready for later: {lines:?}");
    for none in [&b""[..], b"x", b"tidegate data 2\n", &[0; 100]] {
        assert!(matches!(told(none, 0), Err(InspectError::Unknown { .. })));
    }
}

#[test]
fn behind_damage_in_a_wal_file_what_is_whole_is_shown() {
    let (whole, places) = wal_file();
    for (number, place) in places.iter().enumerate() {
        let mut bytes = whole.clone();
        bytes[place + 60] ^= 1;
        let (lines, faults) = told(&bytes, 100).unwrap();
        assert_eq!(count(&lines, "record"), 8, "entry {number}");
        // Behind the last one nothing shows that it was ever there.
        let expected = if number + 1 < places.len() { vec![*place as u64] } else { vec![] };
        assert_eq!(faults, expected, "entry {number}");
    }
    let mut bytes = whole;
    bytes[8] ^= 1;
    assert_eq!(told(&bytes, 100).unwrap().1, [0], "without the header nobody knows which entries count");
}

#[test]
fn no_changed_byte_and_no_cut_makes_a_panic() {
    let (mut wal, _) = wal_file();
    wal.truncate(6 << 10);
    for whole in [wal, segment_file(), checkpoint_file()] {
        let step = whole.len() / 400 + 1;
        for at in (0..whole.len()).step_by(step) {
            drop(told(&whole[..at], 5));
            let mut bytes = whole.clone();
            bytes[at] ^= 0x81;
            drop(told(&bytes, 5));
        }
    }
    let segment = segment_file();
    for at in (0..segment.len()).step_by(7) {
        let mut bytes = segment.clone();
        bytes[at] ^= 4;
        let (_, faults) = told(&bytes, 0).unwrap();
        assert!(!faults.is_empty(), "byte {at}");
    }
}
