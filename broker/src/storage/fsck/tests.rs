//! A WAL and segments that were damaged at every place, judged without a start. What a checkpoint says is judged in the tests
//! of `shard`, whose form it is.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers of tests")]

use std::sync::Arc;

use tidegate_protocol::{
    batch::BatchBuilder,
    limits::Limits,
    record::RecordView,
    stored::{FrameHeader, StoredFrame, TopicStamp},
};

use super::*;
use crate::{
    clock::SystemClock,
    storage::{
        Config, Log,
        disk::RealDisk,
        sim::{Mutant, SimDisk},
        wal::entry::{ENTRY_BYTES, EntryHeader, HEADER_BYTES, entry_bytes},
    },
};

const FILE_BYTES: u64 = 64 << 10;

/// No checkpoint is read in these tests.
#[derive(Debug)]
struct NoStates;

impl States for NoStates {
    fn walk(
        &self,
        _: u64,
        _: &mut dyn io::Read,
        _: &mut dyn FnMut(StateItem<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        Ok(())
    }
}

/// A frame of one record: the `lsn`-th of its topic, the next version of its key.
fn frame(lsn: u64, bytes: usize) -> Arc<StoredFrame> {
    let value: Vec<u8> = (0..bytes).map(|at| (at as u64 * 31 + lsn) as u8).collect();
    let key = format!("key-{}", lsn % 7);
    let mut builder = BatchBuilder::new();
    builder.push("t", RecordView { key: Some(key.as_bytes()), value: Some(&value), headers: &[], timestamp_ms: 7 });
    let header = FrameHeader {
        first_lsn: lsn,
        broker_time_ms: lsn as i64,
        input_count: 1,
        topics: vec![TopicStamp { id: 16, base_offset: lsn }],
        key_versions: vec![lsn / 7 + 1],
        ..FrameHeader::default()
    };
    Arc::new(StoredFrame::from_parts(header, Some(builder.finish_body(&Limits::STORED).unwrap())).unwrap())
}

/// A closed log of frames, each a group of its own.
fn log_of(frames: u64, bytes: usize) -> SimDisk {
    let disk = SimDisk::new(1, Mutant::None);
    let config = Config { wal_file_bytes: FILE_BYTES, wal_files_full_max: 1, ..Config::new("/data") };
    let clock = Arc::new(SystemClock::default());
    let log = Log::open(config, Arc::new(disk.clone()), clock, &mut |_| {}).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for lsn in 0..frames {
        log.append(frame(lsn, bytes)).unwrap();
        runtime.block_on(log.durable().wait_for(|durable| durable.next_lsn > lsn)).unwrap();
    }
    let clock = SystemClock::default();
    // One more full file than may be becomes a segment, on a thread of its own.
    while log.usage().1 > 2 {
        std::thread::yield_now();
        assert!(crate::clock::Clock::monotonic(&clock).as_secs() < 20, "consolidation");
    }
    log.close();
    disk
}

fn judge(disk: &SimDisk) -> (Report, Vec<Fault>, Vec<String>) {
    judge_with(disk, KEYS_AT_ONCE)
}

fn judge_with(disk: &SimDisk, keys_max: usize) -> (Report, Vec<Fault>, Vec<String>) {
    let (mut faults, mut remarks) = (Vec::new(), Vec::new());
    let mut tell = |event: Event<'_>| {
        match event {
            Event::Fault(fault) => faults.push(fault.clone()),
            Event::Remark(file, what) => remarks.push(format!("{}: {what}", file.display())),
            Event::Progress { .. } => {}
        }
        ControlFlow::Continue(())
    };
    let report = run_bounded(disk, Path::new("/data"), &NoStates, &mut tell, keys_max).unwrap();
    assert_eq!(report.faults, faults.len() as u64);
    (report, faults, remarks)
}

/// The WAL files in use, oldest first, with where their entries begin and the last one ends.
fn wal_files(disk: &SimDisk) -> Vec<(PathBuf, Vec<usize>)> {
    let mut files = Vec::new();
    for path in disk.files(Path::new("/data/wal")) {
        let bytes = disk.bytes_of(&path);
        let crate::storage::wal::entry::HeaderRead::Known(header) =
            crate::storage::wal::entry::FileHeader::decode(&bytes)
        else {
            continue;
        };
        let mut places = vec![HEADER_BYTES];
        while let Some(entry) = EntryHeader::decode(&bytes[*places.last().unwrap()..])
            && entry.generation == header.generation
        {
            places.push(places.last().unwrap() + entry_bytes(entry.frame_bytes as usize));
        }
        files.push((header.generation, path, places));
    }
    files.sort_unstable();
    let listed: Vec<_> = files.into_iter().map(|(_, path, places)| (path, places)).collect();
    listed[listed.len() - 2..].to_vec()
}

#[test]
fn a_whole_directory_is_whole_and_nothing_of_it_changes() {
    let disk = log_of(400, 500);
    let before: Vec<_> = disk.files(Path::new("/data/wal")).iter().map(|path| disk.bytes_of(path)).collect();
    let (report, faults, remarks) = judge(&disk);
    assert_eq!((faults, remarks), (vec![], vec![]));
    assert_eq!((report.first_lsn, report.next_lsn, report.records, report.frames), (0, 400, 400, 400));
    assert!(report.segments > 0 && report.wal_files == 2 && !report.stopped, "{report:?}");
    let after: Vec<_> = disk.files(Path::new("/data/wal")).iter().map(|path| disk.bytes_of(path)).collect();
    assert!(before == after);
    // Seven keys, two at once: the log is read again, and nothing is found or counted twice.
    assert_eq!(judge_with(&disk, 2).0, report);
}

#[test]
fn every_changed_byte_of_an_entry_is_found_at_its_place_or_looks_like_a_torn_tail() {
    let disk = log_of(40, 60);
    let (path, places) = &wal_files_of_one(&disk);
    let last = places.len() - 2;
    for (number, pair) in places.windows(2).enumerate().skip(last.saturating_sub(3)) {
        let padding = pair[1] - ENTRY_BYTES - pair[0] - frame(number as u64, 60).bytes.len();
        for at in pair[0]..pair[1] {
            let damaged = disk.fork();
            damaged.edit(path, |bytes| bytes[at] ^= 0x10);
            let (report, faults, remarks) = judge(&damaged);
            if at >= pair[1] - padding {
                assert_eq!((faults, report.next_lsn), (vec![], 40), "padding at {at}");
            } else if number < last {
                assert_eq!((&faults[0].file, faults[0].position), (path, pair[0] as u64), "byte {at}: {faults:?}");
            } else {
                // The last group: a start would call it torn. What is lost is told.
                assert_eq!((faults, report.next_lsn), (vec![], 39), "byte {at}: {remarks:?}");
            }
        }
    }
    for at in 0..HEADER_BYTES {
        let damaged = disk.fork();
        damaged.edit(path, |bytes| bytes[at] ^= 1);
        let (_, faults, _) = judge(&damaged);
        assert!(!faults.is_empty() && &faults[0].file == path, "byte {at} of the header: {faults:?}");
    }
}

/// The only WAL file of a young log.
fn wal_files_of_one(disk: &SimDisk) -> (PathBuf, Vec<usize>) {
    let path = disk.files(Path::new("/data/wal")).into_iter().find(|path| disk.bytes_of(path).starts_with(b"TGW1"));
    let path = path.unwrap();
    let bytes = disk.bytes_of(&path);
    let mut places = vec![HEADER_BYTES];
    while let Some(entry) = EntryHeader::decode(&bytes[*places.last().unwrap()..]) {
        places.push(places.last().unwrap() + entry_bytes(entry.frame_bytes as usize));
    }
    (path, places)
}

#[test]
fn a_torn_tail_is_a_remark() {
    let disk = log_of(4, 60);
    let (path, places) = wal_files_of_one(&disk);
    let end = *places.last().unwrap();
    disk.edit(&path, |bytes| {
        let generation = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        let mut entry = Vec::new();
        EntryHeader { frame_bytes: 900, generation, first_lsn: 4, group_position: end as u64 }.encode(&mut entry);
        bytes[end..end + entry.len()].copy_from_slice(&entry);
    });
    let (report, faults, remarks) = judge(&disk);
    assert_eq!((faults, report.next_lsn), (vec![], 4));
    assert!(remarks.len() == 1 && remarks[0].contains("never acked"), "{remarks:?}");
}

#[test]
fn changed_objects_are_found_and_named() {
    let disk = log_of(400, 500);
    let objects = disk.object_names();
    let file = |name: &str| Path::new("/data/objects").join(name);
    for name in objects.iter().filter(|name| name.starts_with("seg/")).take(1) {
        let mut length = 0;
        disk.edit_object(name, |bytes| length = bytes.len());
        for at in (0..length).step_by(length / 40).chain(length - 100..length) {
            let damaged = disk.fork();
            damaged.edit_object(name, |bytes| bytes[at] ^= 4);
            let (_, faults, _) = judge(&damaged);
            assert!(faults.iter().all(|fault| fault.file == file(name)) && !faults.is_empty(), "{at}: {faults:?}");
            assert!(faults[0].position <= at as u64 || at < 8 || at >= length - 100, "{at}: {faults:?}");
        }
        for cut in [0, 1, length / 2, length - 1] {
            let damaged = disk.fork();
            damaged.edit_object(name, |bytes| bytes.truncate(cut));
            assert_eq!(judge(&damaged).1[0].file, file(name));
        }
    }
    let manifest = objects.iter().find(|name| name.starts_with("manifest/")).unwrap();
    let mut length = 0;
    disk.edit_object(manifest, |bytes| length = bytes.len());
    for at in 0..length {
        let damaged = disk.fork();
        damaged.edit_object(manifest, |bytes| bytes[at] ^= 1);
        assert!(!judge(&damaged).1.is_empty(), "byte {at} of the manifest");
    }
}

#[test]
fn what_is_missing_or_left_over_is_told() {
    let disk = log_of(400, 500);
    let segment = disk.object_names().into_iter().find(|name| name.starts_with("seg/")).unwrap();
    disk.put_object("seg/0000000000009000-0000000000009009", b"half a segment");
    disk.put_object("checkpoint/0000000000000005-0000000000000000", b"half a checkpoint");
    disk.put_object("manifest/0000000000000000", b"{}");
    disk.create(Path::new("/data/wal/notes.txt")).unwrap();
    let (report, faults, remarks) = judge(&disk);
    assert_eq!((faults, report.orphans, remarks.len()), (vec![], 4, 4), "{remarks:?}");
    // Without manifest and WAL they are no leftovers: they are all there is.
    let bare = disk.fork();
    bare.object_names().iter().filter(|name| name.starts_with("manifest/")).for_each(|name| bare.remove_object(name));
    bare.files(Path::new("/data/wal")).iter().for_each(|path| bare.remove(path).unwrap());
    let (report, faults, _) = judge(&bare);
    assert_eq!(report.orphans, 0);
    assert!(faults.iter().any(|fault| fault.what.contains("neither a manifest nor a WAL file")), "{faults:?}");
    let gone = disk.fork();
    gone.remove_object(&segment);
    let (_, faults, _) = judge(&gone);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].what.contains("cannot look at"), "{faults:?}");
    for (at, (path, _)) in wal_files(&disk).into_iter().enumerate() {
        let gone = disk.fork();
        gone.remove(&path).unwrap();
        let (report, faults, _) = judge(&gone);
        // The file written to last can vanish unnoticed (ADR 4).
        assert!(if at == 0 { !faults.is_empty() } else { report.next_lsn < 400 }, "{at}: {faults:?}");
    }
}

#[test]
fn what_is_no_data_directory_or_in_use_is_refused() {
    let disk = log_of(4, 60);
    let refused = |disk: &dyn Disk, dir: &str| {
        run(disk, Path::new(dir), &NoStates, &mut |_| ControlFlow::Continue(())).unwrap_err()
    };
    assert!(matches!(refused(&disk, "/other"), StorageError::NotOurs { .. }));
    assert!(matches!(refused(&RealDisk, "/no/such/dir"), StorageError::Io { operation: "list", .. }));
    let newer = disk.fork();
    newer.edit(Path::new("/data/FORMAT"), |bytes| *bytes = b"tidegate data 9\n".to_vec());
    assert!(matches!(refused(&newer, "/data"), StorageError::Format { found, .. } if found == "tidegate data 9"));
    let lock = disk.lock(Path::new("/data/LOCK")).unwrap().unwrap();
    assert!(matches!(refused(&disk, "/data"), StorageError::InUse { .. }));
    drop(lock);
    assert!(judge(&disk).1.is_empty());
}

#[test]
fn the_first_fault_ends_a_check_that_wants_no_more() {
    let disk = log_of(400, 500);
    for name in disk.object_names().iter().filter(|name| name.starts_with("seg/")) {
        disk.edit_object(name, |bytes| bytes[100] ^= 1);
    }
    let mut faults = 0;
    let mut tell = |event: Event<'_>| match event {
        Event::Fault(_) => {
            faults += 1;
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    };
    let report = run(&disk, Path::new("/data"), &NoStates, &mut tell).unwrap();
    assert!(report.stopped && report.faults == 1 && faults == 1);
    assert!(judge(&disk).1.len() > 1);
}
