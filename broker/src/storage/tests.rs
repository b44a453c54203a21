//! The log on a simulated disk: what it keeps, what it refuses, what it reads back.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers of tests")]

mod reclaim;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tidegate_protocol::{
    batch::BatchBuilder,
    limits::Limits,
    record::RecordView,
    stored::{FrameHeader, ProducerStamp, StoredFrame, TopicStamp},
};

use super::{
    sim::{Mutant, SimDisk},
    wal::entry::{ENTRY_BYTES, EntryHeader, FileHeader, HEADER_BYTES, HeaderRead, entry_bytes},
    *,
};
use crate::clock::SystemClock;

const FILE_BYTES: u64 = 64 << 10;

fn config(wal_files_full_max: usize) -> Config {
    Config { wal_file_bytes: FILE_BYTES, wal_files_full_max, ..Config::new("/data") }
}

fn disk() -> SimDisk {
    SimDisk::new(1, Mutant::None)
}

/// Opens a log and gives what it replayed.
fn open_as(disk: &SimDisk, config: Config) -> Result<(Log, Vec<Replayed>), StorageError> {
    let mut replayed = Vec::new();
    let clock = Arc::new(SystemClock::default());
    let log = Log::open(config, Arc::new(disk.clone()), clock, &mut |item| replayed.push(item))?;
    Ok((log, replayed))
}

fn open(disk: &SimDisk) -> (Log, Vec<Arc<StoredFrame>>) {
    let (log, replayed) = open_as(disk, config(4)).unwrap();
    (log, frames(replayed))
}

fn frames(replayed: Vec<Replayed>) -> Vec<Arc<StoredFrame>> {
    let frame = |item| match item {
        Replayed::Frame(frame) => Some(frame),
        Replayed::Checkpoint { .. } => None,
    };
    replayed.into_iter().filter_map(frame).collect()
}

/// A frame of one record of so many bytes in one topic.
fn frame(first_lsn: u64, topic: u64, bytes: usize) -> Arc<StoredFrame> {
    let value: Vec<u8> = (0..bytes).map(|at| (at as u64 * 31 + first_lsn) as u8).collect();
    let mut builder = BatchBuilder::new();
    let record = RecordView { key: Some(b"key"), value: Some(&value), headers: &[], timestamp_ms: 0 };
    builder.push("topic", record);
    let topics = vec![TopicStamp { id: topic, base_offset: first_lsn }];
    let header = FrameHeader { first_lsn, input_count: 1, topics, key_versions: vec![1], ..FrameHeader::default() };
    Arc::new(StoredFrame::from_parts(header, Some(builder.finish_body(&Limits::STORED).unwrap())).unwrap())
}

/// A frame that only remembers a producer.
fn empty_frame(first_lsn: u64) -> Arc<StoredFrame> {
    let producer = Some(ProducerStamp { id: 1, epoch: 0, sequence: first_lsn });
    Arc::new(StoredFrame::from_parts(FrameHeader { first_lsn, producer, ..FrameHeader::default() }, None).unwrap())
}

fn wait(log: &Log, next_lsn: u64) -> Result<(), StorageError> {
    let mut durable = log.durable();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let reached = durable.wait_for(|durable| durable.next_lsn >= next_lsn || durable.failed.is_some());
    let durable = runtime.block_on(reached).unwrap();
    match &durable.failed {
        Some(failed) if durable.next_lsn < next_lsn => Err(StorageError::clone(failed)),
        _ => Ok(()),
    }
}

/// Appends each alone, so that each is a group of its own.
fn append_each(log: &Log, frames: impl IntoIterator<Item = Arc<StoredFrame>>) {
    for frame in frames {
        let next_lsn = frame.next_lsn();
        log.append(frame).unwrap();
        wait(log, next_lsn).unwrap();
    }
}

fn bytes(frames: &[Arc<StoredFrame>]) -> Vec<Bytes> {
    frames.iter().map(|frame| frame.bytes.clone()).collect()
}

fn read_all(log: &Log, bytes_max: usize) -> Vec<Arc<StoredFrame>> {
    let mut lsn = log.first_lsn();
    let mut frames = Vec::new();
    let end = log.durable().borrow().next_lsn;
    while lsn < end {
        let run = log.read(lsn, bytes_max, &|_| true).unwrap();
        assert!(run.next_lsn > lsn, "progress at {lsn}");
        lsn = run.next_lsn;
        frames.extend(run.frames);
    }
    frames
}

fn wal_files(disk: &SimDisk) -> Vec<PathBuf> {
    disk.files(Path::new("/data/wal"))
}

/// Waits until consolidation has come so far. Yields instead of sleeping: it runs on a thread of its own.
fn until(what: &str, reached: impl Fn() -> bool) {
    let clock = SystemClock::default();
    while !reached() {
        std::thread::yield_now();
        assert!(crate::clock::Clock::monotonic(&clock) < Duration::from_secs(20), "waited too long: {what}");
    }
}

#[test]
fn what_is_appended_comes_back_equal_from_the_tail_from_files_and_from_replay() {
    let disk = disk();
    let (log, replayed) = open(&disk);
    assert!(replayed.is_empty());
    let mut all: Vec<_> = (0..200).map(|lsn| frame(lsn, 16, 100 + lsn as usize * 7)).collect();
    all.push(empty_frame(200));
    all.push(frame(201, 17, 10));
    all.iter().for_each(|frame| log.append(Arc::clone(frame)).unwrap());
    wait(&log, 202).unwrap();
    assert_eq!(bytes(&log.tail(0, usize::MAX).unwrap().frames), bytes(&all));
    let with_records: Vec<_> = all.iter().filter(|frame| frame.body.is_some()).cloned().collect();
    for bytes_max in [1, 1000, 20_000, usize::MAX] {
        assert_eq!(bytes(&read_all(&log, bytes_max)), bytes(&with_records), "{bytes_max}");
    }
    assert_eq!(log.frame(200).unwrap().bytes, all[200].bytes);
    let only = log.read(0, usize::MAX, &|id| id == 17).unwrap();
    assert!(only.frames.len() <= 1 && only.next_lsn > 0);
    log.close();
    assert!(matches!(log.append(frame(202, 16, 1)), Err(StorageError::Closed)));
    let (log, replayed) = open(&disk);
    assert_eq!(bytes(&replayed), bytes(&all));
    assert_eq!(log.next_lsn(), 202);
    append_each(&log, [frame(202, 16, 5)]);
}

#[test]
fn a_cut_at_any_byte_of_the_last_frames_keeps_all_frames_before_it() {
    let disk = disk();
    let (all, ends, path) = four_groups(&disk);
    let original = disk.bytes_of(&path);
    for cut in ends[2]..=ends[4] {
        let disk = disk.fork();
        // What a torn write leaves in a file that was full of zeros.
        disk.edit(&path, |bytes| bytes[cut..].fill(0));
        let left = disk.bytes_of(&path);
        let same = |at: &usize| {
            let range = ends[*at]..ends[*at] + ENTRY_BYTES + all[*at].bytes.len();
            left[range.clone()] == original[range]
        };
        let whole = (0..4).take_while(same).count();
        let (log, replayed) = open(&disk);
        assert_eq!(bytes(&replayed), bytes(&all[..whole]), "cut {cut}");
        append_each(&log, [frame(whole as u64, 16, 9)]);
        log.close();
        assert_eq!(open(&disk).1.len(), whole + 1, "cut {cut}: the log goes on where it was cut");
    }
}

#[test]
fn a_flipped_byte_in_the_middle_refuses_to_start_and_names_file_and_position() {
    let disk = disk();
    let (all, ends, path) = four_groups(&disk);
    for at in ends[1]..ends[1] + ENTRY_BYTES + all[1].bytes.len() {
        let disk = disk.fork();
        disk.edit(&path, |bytes| bytes[at] ^= 0x10);
        let Err(StorageError::Corrupt { file, position, .. }) = open_as(&disk, config(4)) else {
            panic!("byte {at} was flipped and nobody noticed");
        };
        assert_eq!((file, position), (path.clone(), ends[1] as u64), "byte {at}");
    }
    // The file's own header: entries without one are damage too.
    disk.edit(&path, |bytes| bytes[9] ^= 1);
    assert!(matches!(open_as(&disk, config(4)), Err(StorageError::Corrupt { position: 0, .. })));
}

#[test]
fn a_group_torn_in_its_first_pages_is_a_torn_tail_not_damage() {
    let disk = disk();
    let (_, ends, path) = one_group_behind_another(&disk);
    // Pages of one write reach the disk in any order: the second frame is lost, the third is whole.
    disk.edit(&path, |bytes| bytes[ends[1]..ends[2]].fill(0));
    let (log, replayed) = open(&disk);
    assert_eq!(replayed.len(), 1);
    // Were the third left there, it would come back behind a new second one of the same length.
    append_each(&log, [frame(1, 16, 40)]);
    log.close();
    assert_eq!(open(&disk).1.len(), 2);
}

#[test]
fn a_full_recycled_file_gives_back_nothing_of_its_earlier_use() {
    let disk = disk();
    let mut next_lsn = 0;
    let mut appended = Vec::new();
    for round in 0..40 {
        let (log, replayed) = open_as(&disk, config(1)).unwrap();
        let replayed = frames(replayed);
        assert_eq!(bytes(&replayed), bytes(&appended), "round {round}");
        let new: Vec<_> = (next_lsn..next_lsn + 40).map(|lsn| frame(lsn, 16, 700 + round)).collect();
        next_lsn += 40;
        append_each(&log, new.clone());
        appended.extend(new);
        log.close();
    }
    assert!(wal_files(&disk).len() <= 6, "{} files for 18 files' worth of frames", wal_files(&disk).len());
}

#[test]
fn consolidation_and_a_checkpoint_keep_every_record_readable() {
    let disk = disk();
    let (log, _) = open_as(&disk, Config { tail_bytes: 4096, ..config(1) }).unwrap();
    let mut all: Vec<_> = (0..1500).map(|lsn| frame(lsn, 16 + lsn % 3, 500)).collect();
    all[700] = empty_frame(700);
    append_each(&log, all.clone());
    until("all but two files lie in segments", || log.usage().1 <= 2);
    assert_eq!(log.first_lsn(), 0);
    assert!(log.tail(0, 1).is_none(), "the slow reader fell out of the tail");
    let with_records: Vec<_> = all.iter().filter(|frame| frame.body.is_some()).cloned().collect();
    assert_eq!(bytes(&read_all(&log, 30_000)), bytes(&with_records));
    let mut lsn = 0;
    let mut of_one = Vec::new();
    while lsn < 1500 {
        let run = log.read(lsn, 5_000, &|id| id == 17).unwrap();
        lsn = run.next_lsn;
        of_one.extend(run.frames);
    }
    assert_eq!(of_one.len(), 499, "frame 700 was one of its 500");
    assert_eq!(log.frame(700).unwrap().bytes, all[700].bytes);
    log.checkpoint(900, Bytes::from_static(b"state")).unwrap();
    log.checkpoint(800, Bytes::from_static(b"older")).unwrap();
    log.close();
    let (_, replayed) = open_as(&disk, config(1)).unwrap();
    assert!(matches!(&replayed[0], Replayed::Checkpoint { lsn: 900, state } if &state[..] == b"state"));
    assert_eq!(bytes(&frames(replayed)), bytes(&all[900..]));
}

#[test]
fn a_full_disk_is_said_so_and_after_room_was_made_a_restart_goes_on() {
    let disk = disk();
    let (log, _) = open(&disk);
    append_each(&log, (0..10).map(|lsn| frame(lsn, 16, 1000)));
    disk.limit_free_bytes(Some(1000));
    let mut acked = 10;
    let error = loop {
        if let Err(error) = log.append(frame(acked, 16, 1000)) {
            break error;
        }
        match wait(&log, acked + 1) {
            Ok(()) => acked += 1,
            Err(error) => break error,
        }
        assert!(acked < 1000, "the disk never became full");
    };
    assert!(error.is_full(), "{error}");
    assert!(log.append(frame(acked + 1, 16, 1)).unwrap_err().is_full(), "and it stays so");
    log.close();
    disk.limit_free_bytes(None);
    let (log, replayed) = open(&disk);
    assert!(replayed.len() as u64 >= acked);
    append_each(&log, [frame(replayed.len() as u64, 16, 1000)]);
}

#[test]
fn a_failed_sync_is_fatal_and_no_ack_follows_it() {
    let disk = disk();
    let (log, _) = open(&disk);
    append_each(&log, (0..3).map(|lsn| frame(lsn, 16, 100)));
    disk.fail_syncs(true);
    log.append(frame(3, 16, 100)).unwrap();
    assert!(matches!(wait(&log, 4), Err(StorageError::Io { operation: "sync", .. })));
    disk.fail_syncs(false);
    assert!(matches!(log.append(frame(4, 16, 100)), Err(StorageError::Failed(_))));
    log.close();
    // The page cache still has the frame, and calls its pages clean. A start must not believe that.
    disk.kill_process();
    let (log, replayed) = open(&disk);
    log.close();
    disk.power_cut();
    assert_eq!(open(&disk).1.len(), replayed.len(), "what a start has replayed stays");
}

#[test]
fn what_a_start_replays_is_durable_even_if_only_the_page_cache_had_it() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed, Mutant::None);
        let (log, _) = open(&disk);
        append_each(&log, (0..3).map(|lsn| frame(lsn, 16, 100)));
        // The process dies between write and sync.
        disk.cut_power_after(2);
        log.append(frame(3, 16, 100)).unwrap();
        assert!(wait(&log, 4).is_err());
        drop(log);
        disk.kill_process();
        let (log, replayed) = open(&disk);
        drop(log);
        disk.power_cut();
        assert_eq!(open(&disk).1.len(), replayed.len(), "seed {seed}");
    }
}

#[test]
fn a_directory_in_use_of_another_format_or_with_files_missing_is_refused() {
    let disk = disk();
    let (log, _) = open_as(&disk, config(1)).unwrap();
    assert!(matches!(open_as(&disk, config(1)), Err(StorageError::InUse { .. })));
    append_each(&log, (0..400).map(|lsn| frame(lsn, 16, 500)));
    until("two files are left", || log.usage().1 <= 2);
    log.close();

    let newer = disk.fork();
    newer.edit(Path::new("/data/FORMAT"), |bytes| *bytes = b"tidegate data 3\n".to_vec());
    let Err(StorageError::Format { found, .. }) = open_as(&newer, config(1)) else { panic!("format 3 was read") };
    assert_eq!(found, "tidegate data 3");

    let without = disk.fork();
    without.remove(Path::new("/data/FORMAT")).unwrap();
    assert!(matches!(open_as(&without, config(1)), Err(StorageError::Format { .. })));

    // The file written to last can vanish unnoticed: nothing durable tells of it. Any other one cannot.
    let mut in_use: Vec<_> = wal_files(&disk).into_iter().map(|path| (header_of(&disk, &path), path)).collect();
    in_use.sort_unstable_by_key(|(header, _)| header.map(|header| header.generation));
    let gone = disk.fork();
    gone.remove(&in_use[in_use.len() - 2].1).unwrap();
    assert!(matches!(open_as(&gone, config(1)), Err(StorageError::Corrupt { .. })));

    let other = Config { shard: 1, ..config(1) };
    assert!(matches!(open_as(&disk, other), Err(StorageError::Corrupt { .. })));
    assert!(open_as(&disk, config(1)).is_ok(), "and the directory is still good");
}

#[test]
fn a_damaged_segment_or_manifest_is_never_read_as_records() {
    let disk = disk();
    let (log, _) = open_as(&disk, Config { tail_bytes: 0, ..config(0) }).unwrap();
    append_each(&log, (0..400).map(|lsn| frame(lsn, 16, 500)));
    until("one file is left", || log.usage().1 <= 1);
    let objects = disk.object_names();
    assert!(objects.iter().any(|name| name.starts_with("seg/")), "{objects:?}");
    for name in objects.iter().filter(|name| name.starts_with("seg/")) {
        for at in [0.1, 0.5, 0.9, 0.999] {
            let disk = disk.fork();
            disk.edit_object(name, |bytes| {
                let at = (bytes.len() as f64 * at) as usize;
                bytes[at] ^= 4;
            });
            let opened = open_as(&disk, config(0));
            assert!(matches!(opened, Err(StorageError::Corrupt { .. })), "{name} at {at}");
        }
    }
    let manifest = objects.iter().find(|name| name.starts_with("manifest/")).unwrap();
    disk.edit_object(manifest, |bytes| bytes[0] = b'x');
    log.close();
    assert!(matches!(open_as(&disk, config(0)), Err(StorageError::Corrupt { .. })));
}

#[test]
fn an_object_that_no_manifest_names_is_removed_at_start() {
    let disk = disk();
    open(&disk).0.close();
    disk.put_object("seg/0000000000000000-0000000000000009", b"half a segment");
    disk.put_object("checkpoint/0000000000000005-0000000000000000", b"half a checkpoint");
    open(&disk).0.close();
    assert_eq!(disk.object_names(), Vec::<String>::new());
}

#[test]
fn a_log_in_memory_keeps_its_tail_and_says_what_is_gone() {
    let memory = Config { wal: WalKind::Memory, tail_bytes: 20_000, ..config(4) };
    let (log, _) = open_as(&disk(), memory).unwrap();
    append_each(&log, (0..100).map(|lsn| frame(lsn, 16, 1000)));
    assert!(log.first_lsn() > 50);
    assert!(matches!(log.read(0, 1, &|_| true), Err(StorageError::Gone { lsn: 0, .. })));
    assert_eq!(read_all(&log, 1).len() as u64, 100 - log.first_lsn());
}

/// Four frames, each a group of its own: the frames, where they start and the last one ends, the file.
fn four_groups(disk: &SimDisk) -> (Vec<Arc<StoredFrame>>, Vec<usize>, PathBuf) {
    let (log, _) = open(disk);
    let all: Vec<_> = (0..4).map(|lsn| frame(lsn, 16, 20 + lsn as usize * 3)).collect();
    append_each(&log, all.clone());
    log.close();
    (all.clone(), ends(&all), active_file(disk))
}

/// One frame, then three written together.
fn one_group_behind_another(disk: &SimDisk) -> (Vec<Arc<StoredFrame>>, Vec<usize>, PathBuf) {
    let (log, _) = open(disk);
    let all: Vec<_> = (0..4).map(|lsn| frame(lsn, 16, 40)).collect();
    append_each(&log, all[..1].iter().cloned());
    log.close();
    let (path, ends) = (active_file(disk), ends(&all));
    let generation = header_of(disk, &path).unwrap().generation;
    disk.edit(&path, |bytes| {
        for (at, frame) in all.iter().enumerate().skip(1) {
            let mut entry = Vec::new();
            let frame_bytes = frame.bytes.len() as u32;
            let (first_lsn, group_position) = (at as u64, ends[1] as u64);
            EntryHeader { frame_bytes, generation, first_lsn, group_position }.encode(&mut entry);
            entry.extend_from_slice(&frame.bytes);
            bytes[ends[at]..ends[at] + entry.len()].copy_from_slice(&entry);
        }
    });
    (all, ends, path)
}

fn ends(frames: &[Arc<StoredFrame>]) -> Vec<usize> {
    let mut end = HEADER_BYTES;
    let ends = frames.iter().map(|frame| {
        end += entry_bytes(frame.bytes.len());
        end
    });
    std::iter::once(HEADER_BYTES).chain(ends).collect()
}

fn header_of(disk: &SimDisk, path: &Path) -> Option<FileHeader> {
    match FileHeader::decode(&disk.bytes_of(path)) {
        HeaderRead::Known(header) => Some(header),
        _ => None,
    }
}

/// The only file in use of a young log.
fn active_file(disk: &SimDisk) -> PathBuf {
    wal_files(disk).into_iter().find(|path| header_of(disk, path).is_some()).unwrap()
}
