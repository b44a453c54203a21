//! Backups of a log that goes on, on a real directory; and of one on a disk whose power goes at every change.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers of tests")]

use std::{fs, ops::ControlFlow, sync::Arc};

use tidegate_protocol::{
    batch::BatchBuilder,
    limits::Limits,
    record::RecordView,
    stored::{FrameHeader, StoredFrame, TopicStamp},
};

use super::{vault::hash_of, *};
use crate::{
    clock::{Clock as _, SystemClock},
    storage::{
        Config, Log, PINS_MAX, RealDisk, Replayed, WalKind,
        fsck::{self, Event, StateItem, States},
        sim::{Mutant, SimDisk},
    },
};

fn frame(lsn: u64, bytes: usize) -> Arc<StoredFrame> {
    let value: Vec<u8> = (0..bytes).map(|at| (at as u64 * 31 + lsn) as u8).collect();
    let mut builder = BatchBuilder::new();
    builder.push("t", RecordView { key: Some(b"key"), value: Some(&value), headers: &[], timestamp_ms: 7 });
    let header = FrameHeader {
        first_lsn: lsn,
        broker_time_ms: lsn as i64,
        input_count: 1,
        topics: vec![TopicStamp { id: 16, base_offset: lsn }],
        key_versions: vec![lsn + 1],
        ..FrameHeader::default()
    };
    Arc::new(StoredFrame::from_parts(header, Some(builder.finish_body(&Limits::STORED).unwrap())).unwrap())
}

/// A log and how far it was written.
struct World {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    log: Log,
    next_lsn: u64,
}

impl World {
    fn open(disk: Arc<dyn Disk>, dir: PathBuf) -> Self {
        let config = Config { wal_file_bytes: 64 << 10, wal_files_full_max: 1, ..Config::new(&dir) };
        let log = Log::open(config, Arc::clone(&disk), Arc::new(SystemClock::default()), &mut |_| {}).unwrap();
        let next_lsn = log.next_lsn();
        Self { disk, dir, log, next_lsn }
    }

    /// Appends, and waits until full files have become segments.
    fn write(&mut self, frames: u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..frames {
            self.log.append(frame(self.next_lsn, 500)).unwrap();
            self.next_lsn += 1;
            runtime.block_on(self.log.durable().wait_for(|durable| durable.next_lsn >= self.next_lsn)).unwrap();
        }
        let clock = SystemClock::default();
        while self.log.usage().1 > 2 {
            std::thread::yield_now();
            assert!(clock.monotonic().as_secs() < 20, "consolidation");
        }
    }

    fn backup(&self, dest: &Path, cut: &Cut, verify: bool) -> Result<Backup, BackupError> {
        backup(&*self.disk, &self.dir, dest, cut, Options { time_ms: 5, verify }, &mut |_, _| {})
    }
}

fn real() -> (tempfile::TempDir, World) {
    let temp = tempfile::tempdir().unwrap();
    let world = World::open(Arc::new(RealDisk), temp.path().join("data"));
    (temp, world)
}

/// Restores, judges the directory offline, and gives the frames it holds.
fn restored(source: &Path, dir: &Path) -> Vec<u64> {
    restore(&RealDisk, source, dir, &mut |_, _| {}).unwrap();
    #[derive(Debug)]
    struct Any;
    impl States for Any {
        fn walk(
            &self,
            _: u64,
            _: &mut dyn io::Read,
            _: &mut dyn FnMut(StateItem<'_>) -> Result<(), String>,
        ) -> Result<(), String> {
            Ok(())
        }
    }
    let mut faults = Vec::new();
    let mut tell = |event: Event<'_>| {
        if let Event::Fault(fault) = event {
            // The states of these tests are no states: only what the log says of them is judged.
            faults.extend(Some(fault.clone()).filter(|fault| !fault.what.contains("heads of")));
        }
        ControlFlow::Continue(())
    };
    fsck::run(&RealDisk, dir, &Any, &mut tell).unwrap();
    assert_eq!(faults, vec![]);
    let config = Config { wal_file_bytes: 64 << 10, ..Config::new(dir) };
    let mut frames = Vec::new();
    let mut replay = |item| {
        if let Replayed::Frame(frame) = item {
            assert_eq!(frame.bytes, self::frame(frame.header.first_lsn, 500).bytes);
            frames.push(frame.header.first_lsn);
        }
    };
    let log = Log::open(config, Arc::new(RealDisk), Arc::new(SystemClock::default()), &mut replay).unwrap();
    // And it goes on.
    let next_lsn = log.next_lsn();
    log.append(frame(next_lsn, 500)).unwrap();
    log.close();
    frames
}

#[test]
fn a_cut_is_what_was_durable_however_the_log_goes_on() {
    let (temp, mut world) = real();
    world.write(300);
    let (cut, pin) = world.log.pin().unwrap();
    assert_eq!((cut.next_lsn, cut.wal.len()), (300, 2));
    // Files would be taken again and again now, were they not held.
    world.write(600);
    let dest = temp.path().join("backup");
    let first = world.backup(&dest, &cut, false).unwrap();
    assert!(first.segments > 0 && first.segments_copied == first.segments, "{first:?}");
    drop(pin);
    assert_eq!(restored(&dest, &temp.path().join("restored")), (0..300).collect::<Vec<_>>());
    // The next one copies only what is new.
    let (cut, pin) = world.log.pin().unwrap();
    let second = world.backup(&dest, &cut, false).unwrap();
    assert_eq!(second.segments - second.segments_copied, first.segments);
    assert!(second.removed > 0 && second.bytes > first.bytes, "{second:?}");
    let third = world.backup(&dest, &cut, true).unwrap();
    assert_eq!((third.segments_copied, third.segments), (0, second.segments));
    drop(pin);
    assert_eq!(restored(&dest, &temp.path().join("again")), (0..900).collect::<Vec<_>>());
    // An empty log has a backup too.
    let (temp, world) = real();
    let (cut, _pin) = world.log.pin().unwrap();
    world.backup(&temp.path().join("b"), &cut, false).unwrap();
    assert!(restored(&temp.path().join("b"), &temp.path().join("r")).is_empty());
}

#[test]
fn a_pinned_object_that_is_replaced_goes_with_its_last_pin() {
    let (temp, mut world) = real();
    world.write(300);
    world.log.checkpoint(100, Bytes::from_static(b"one")).unwrap();
    let there = || fs::read_dir(world.dir.join("objects/checkpoint")).unwrap().count();
    let pins: Vec<_> = (0..2).map(|_| world.log.pin().unwrap()).collect();
    world.log.checkpoint(200, Bytes::from_static(b"two")).unwrap();
    assert_eq!(there(), 2, "the first is held");
    let dest = temp.path().join("backup");
    world.backup(&dest, &pins[0].0, false).unwrap();
    let mut pins = pins.into_iter();
    drop(pins.next());
    assert_eq!(there(), 2);
    drop(pins.next());
    assert_eq!(there(), 1);
    let many: Vec<_> = (0..PINS_MAX).map(|_| world.log.pin().unwrap()).collect();
    assert!(matches!(world.log.pin(), Err(StorageError::PinsFull { max: PINS_MAX })));
    drop(many);
    assert!(world.log.pin().is_ok());
    let memory = Config { wal: WalKind::Memory, ..Config::new("/nowhere") };
    let log = Log::open(memory, Arc::new(RealDisk), Arc::new(SystemClock::default()), &mut |_| {}).unwrap();
    assert!(matches!(log.pin(), Err(StorageError::NothingDurable)));
}

#[test]
fn what_is_damaged_in_a_backup_is_refused_and_healed_by_a_verifying_one() {
    let (temp, mut world) = real();
    world.write(300);
    let (cut, _pin) = world.log.pin().unwrap();
    let (dest, data) = (temp.path().join("backup"), temp.path().join("backup/data"));
    let whole = world.backup(&dest, &cut, false).unwrap();
    for (at, entry) in fs::read_dir(&data).unwrap().enumerate() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let mut changed = bytes.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        fs::write(&path, changed).unwrap();
        let dir = temp.path().join(format!("restored-{at}"));
        let error = restore(&RealDisk, &dest, &dir, &mut |_, _| {}).unwrap_err();
        assert!(matches!(&error, BackupError::Storage(StorageError::Corrupt { file, .. }) if *file == path), "{error}");
        let config = Config::new(&dir);
        let opened = Log::open(config, Arc::new(RealDisk), Arc::new(SystemClock::default()), &mut |_| {});
        assert!(matches!(opened, Err(StorageError::Format { .. })), "no broker starts on half of it");
        let error = restore(&RealDisk, &dest, &dir, &mut |_, _| {}).unwrap_err();
        assert!(error.to_string().contains("unfinished restore"), "{error}");
        assert_eq!(world.backup(&dest, &cut, true).unwrap().segments, whole.segments);
        assert!(fs::read(&path).unwrap() == bytes, "healed");
    }
    assert_eq!(restored(&dest, &temp.path().join("restored")).len(), 300);
    fs::write(dest.join("BACKUP"), "tidegate backup 1 00\n{}\n").unwrap();
    assert!(restore(&RealDisk, &dest, &temp.path().join("x"), &mut |_, _| {}).is_err());
    fs::remove_file(dest.join("BACKUP")).unwrap();
    let error = restore(&RealDisk, &dest, &temp.path().join("x"), &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, BackupError::Unfinished { .. }), "{error}");
    assert!(!temp.path().join("x").exists(), "nothing was made");
}

#[test]
fn what_is_damaged_or_of_another_broker_is_not_copied_and_changes_nothing() {
    let (temp, mut world) = real();
    world.write(300);
    let (cut, _pin) = world.log.pin().unwrap();
    let dest = temp.path().join("backup");
    world.backup(&dest, &cut, false).unwrap();
    let book = fs::read(dest.join("BACKUP")).unwrap();
    let same = || assert!(fs::read(dest.join("BACKUP")).unwrap() == book, "the backup before still counts");
    let mut other = cut.clone();
    other.wal[0].generation ^= 1;
    assert!(matches!(world.backup(&dest, &other, false), Err(BackupError::OtherBroker { .. })));
    other.wal[0].name = "../LOCK".to_owned();
    assert!(matches!(world.backup(&dest, &other, false), Err(BackupError::OtherBroker { .. })));
    let older = Cut { next_lsn: 10, ..cut.clone() };
    assert!(matches!(world.backup(&dest, &older, false), Err(BackupError::OlderCut { backup: 300, cut: 10, .. })));
    let damage = |path: &Path, at: usize| {
        let mut bytes = fs::read(path).unwrap();
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let wal = world.dir.join("wal").join(&cut.wal[0].name);
    let segment = fs::read_dir(world.dir.join("objects/seg")).unwrap().next().unwrap().unwrap().path();
    for (path, at) in [(&wal, 5_000), (&segment, 700)] {
        damage(path, at);
        let fresh = temp.path().join(format!("fresh-{at}"));
        let error = world.backup(&fresh, &cut, false).unwrap_err();
        assert!(matches!(error, BackupError::Storage(StorageError::Corrupt { .. })), "{error}");
        assert!(!fresh.join("BACKUP").exists());
        damage(path, at);
        world.backup(&fresh, &cut, false).unwrap();
    }
    same();
    // Directories that are something else.
    let taken = |dest: &Path| world.backup(dest, &cut, false).unwrap_err().to_string();
    assert!(taken(&world.dir).contains("is a data directory, not a backup"));
    assert!(taken(temp.path()).contains("is neither empty nor a backup"));
    fs::write(dest.join("FORMAT"), "tidegate backup 2\n").unwrap();
    assert!(taken(&dest).contains("has format \"tidegate backup 2\""));
    fs::write(dest.join("FORMAT"), "tidegate backup 1\n").unwrap();
    let lock = RealDisk.lock(&dest.join("LOCK")).unwrap().unwrap();
    assert!(matches!(world.backup(&dest, &cut, false), Err(BackupError::InUse { .. })));
    assert!(matches!(
        restore(&RealDisk, &dest, &temp.path().join("r"), &mut |_, _| {}),
        Err(BackupError::InUse { .. })
    ));
    drop(lock);
    for (dir, told) in [(&world.dir, "is a data directory already"), (&dest.join("data"), "is not empty")] {
        let error = restore(&RealDisk, &dest, dir, &mut |_, _| {}).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    same();
}

/// A backup on a simulated disk: its book, if everything it names is there whole.
fn judged(disk: &SimDisk, dest: &Path) -> Option<Book> {
    let vault = Vault::open_to_read(disk, dest).ok()?;
    let book = vault.book().unwrap()?;
    for entry in &book.files {
        let (file, path) = vault.content(&entry.blake3).unwrap();
        assert_eq!(hash_of(&*file, &path).unwrap(), (entry.blake3.clone(), entry.bytes), "{}", entry.path);
    }
    Some(book)
}

#[test]
fn wherever_the_power_goes_a_backup_is_the_old_one_or_the_new_one_and_a_restore_is_done_or_not() {
    let disk = SimDisk::new(1, Mutant::None);
    let mut world = World::open(Arc::new(disk.clone()), "/data".into());
    world.write(200);
    let dest = Path::new("/backup");
    let (cut, pin) = world.log.pin().unwrap();
    world.backup(dest, &cut, false).unwrap();
    drop(pin);
    let old = judged(&disk, dest).unwrap();
    world.write(200);
    let (cut, pin) = world.log.pin().unwrap();
    drop(pin);
    world.log.close();
    let run =
        |disk: &SimDisk| backup(disk, Path::new("/data"), dest, &cut, Options::default(), &mut |_, _| {}).map(|_| ());
    let (mut olds, mut news, mut at) = (0, 0, 1);
    loop {
        let crashed = disk.fork();
        crashed.cut_power_after(at);
        let done = run(&crashed);
        crashed.power_cut();
        let book = judged(&crashed, dest).expect("a backup counts at any time");
        if book == old {
            olds += 1
        } else {
            news += 1
        }
        assert!(book == old || book.next_lsn == cut.next_lsn);
        assert!(done.is_err() || book != old, "what was told to be done is durable");
        // The next try ends, and leaves nothing behind.
        run(&crashed).unwrap();
        let book = judged(&crashed, dest).unwrap();
        assert_eq!(crashed.files(&dest.join("data")).len(), book.files.len(), "at change {at}");
        if done.is_ok() {
            break;
        }
        at += 1;
    }
    assert!(olds > 10 && news > 0, "{olds} {news}");
    run(&disk).unwrap();
    let (mut unfinished, mut at) = (0, 1);
    loop {
        let crashed = disk.fork();
        crashed.cut_power_after(at);
        let done = restore(&crashed, dest, Path::new("/new"), &mut |_, _| {});
        crashed.power_cut();
        let format = directory::format_of(&crashed, Path::new("/new")).unwrap();
        let finished = format.as_deref() == Some(FORMAT.trim_end());
        assert!(done.is_err() || finished, "what was told to be done is durable");
        unfinished += usize::from(!finished);
        if finished {
            for entry in &judged(&crashed, dest).unwrap().files {
                let path = below(Path::new("/new"), &entry.path);
                let file = crashed.open(&path).unwrap();
                assert_eq!(hash_of(&*file, &path).unwrap().0, entry.blake3, "{}", entry.path);
            }
        }
        if done.is_ok() {
            break;
        }
        at += 1;
    }
    assert!(unfinished > 10, "{unfinished}");
}

#[test]
fn a_full_disk_is_said_so_and_the_backup_before_counts() {
    let disk = SimDisk::new(1, Mutant::None);
    let mut world = World::open(Arc::new(disk.clone()), "/data".into());
    world.write(200);
    let dest = Path::new("/backup");
    let (cut, pin) = world.log.pin().unwrap();
    world.backup(dest, &cut, false).unwrap();
    drop(pin);
    let old = judged(&disk, dest).unwrap();
    world.write(200);
    let (cut, _pin) = world.log.pin().unwrap();
    disk.limit_free_bytes(Some(20_000));
    let error = world.backup(dest, &cut, false).unwrap_err();
    assert!(matches!(&error, BackupError::Storage(error) if error.is_full()), "{error}");
    assert_eq!(judged(&disk, dest).unwrap(), old);
    assert!(
        disk.files(&dest.join("data")).iter().all(|path| path.extension().is_none()),
        "the unfinished file is gone"
    );
    disk.limit_free_bytes(None);
    world.backup(dest, &cut, false).unwrap();
}
