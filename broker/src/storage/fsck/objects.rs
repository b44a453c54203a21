//! The object store: manifest, checkpoint, segments, and what nobody names.

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use tidegate_protocol::stored::StoredFrame;

use super::{Check, Go, Stop, order::Order, wal};
use crate::storage::{
    StorageError,
    manifest::{self, CHECKPOINTS, CheckpointRef, DIR, Manifest, SEGMENTS, SegmentRef},
    objects::Objects,
    segment::{self, Cache, Expected, Ranges},
    store::{CHECKPOINT_HEAD_BYTES, checkpoint_head},
};

/// Blocks of the segment at hand: as many as a window of the default length has.
const CACHE_BYTES: usize = 96 << 20;
/// Read of a checkpoint at once.
const READ_BYTES: u64 = 1 << 20;

/// What the manifest names.
#[derive(Debug)]
pub(super) struct Named {
    objects: Option<Arc<Objects>>,
    root: PathBuf,
    pub(super) segments: Vec<SegmentRef>,
    /// LSN up to which segments hold everything that is kept.
    pub(super) consolidated: u64,
    /// The checkpoint, if its bytes are what was written.
    pub(super) checkpoint: Option<CheckpointRef>,
    checkpoint_bytes: u64,
    shard: u16,
}

impl Named {
    fn path(&self, object: &str) -> PathBuf {
        self.root.join(object)
    }
}

/// Reads the manifest and the checkpoint it names; tells what nobody names.
pub(super) fn list(check: &mut Check<'_, '_>, wal: &wal::Listed) -> Go<Named> {
    let root = check.dir.join("objects");
    let shard = wal.shard.unwrap_or_default();
    let mut named = Named {
        objects: None,
        root,
        segments: Vec::new(),
        consolidated: 0,
        checkpoint: None,
        checkpoint_bytes: 0,
        shard,
    };
    let store = match check.disk.objects_to_read(&named.root) {
        // A broker that was never started has none.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(named),
        opened => opened.map_err(StorageError::io("open object store", &named.root)),
    };
    let objects = match store.and_then(Objects::offline) {
        Ok(objects) => Arc::new(objects),
        Err(error) => {
            check.failed(&named.root.clone(), &error)?;
            return Ok(named);
        }
    };
    named.objects = Some(Arc::clone(&objects));
    if let Err(error) = read_manifest(check, &objects, wal, &mut named)? {
        check.failed(&named.path(DIR), &error)?;
    }
    if let Some(checkpoint) = named.checkpoint.clone() {
        let path = named.path(&checkpoint.object);
        match read_checkpoint(check, &objects, &checkpoint)? {
            Ok(bytes) => named.checkpoint_bytes = bytes,
            Err(error) => {
                named.checkpoint = None;
                check.failed(&path, &error)?;
            }
        }
    }
    check.total += named.segments.iter().map(|segment| segment.bytes).sum::<u64>();
    Ok(named)
}

fn read_manifest(
    check: &mut Check<'_, '_>,
    objects: &Objects,
    wal: &wal::Listed,
    named: &mut Named,
) -> Go<Result<(), StorageError>> {
    let mut numbers = Vec::new();
    let listed = match objects.list(DIR) {
        Ok(listed) => listed,
        Err(error) => return Ok(Err(error)),
    };
    for object in listed {
        match manifest::number_of(&object) {
            Some(number) => numbers.push(number),
            None => check.orphan(&named.path(&object), "no manifest has this name")?,
        }
    }
    numbers.sort_unstable();
    let mut known = BTreeSet::new();
    let lacks_manifest = numbers.is_empty() && wal.is_empty();
    if let Some(number) = numbers.pop() {
        let object = manifest::object_of(number);
        match manifest::read(objects, number) {
            Ok(manifest) => {
                named.consolidated = manifest.consolidated();
                let Manifest { segments, checkpoint, epoch, .. } = manifest;
                if epoch != 0 {
                    check.fault(
                        &named.path(&object),
                        0,
                        format!("its epoch is {epoch}; every log of this version has 0"),
                    )?;
                }
                known.extend(segments.iter().map(|segment| segment.object.clone()));
                known.extend(checkpoint.iter().map(|checkpoint| checkpoint.object.clone()));
                (named.segments, named.checkpoint) = (segments, checkpoint);
            }
            Err(error) => {
                check.failed(&named.path(&object), &error)?;
                // What is an orphan and what is not, only the manifest knows.
                return Ok(Ok(()));
            }
        }
    }
    for number in numbers {
        check.orphan(&named.path(&manifest::object_of(number)), "an older manifest")?;
    }
    for dir in [SEGMENTS, CHECKPOINTS] {
        let mut there = match objects.list(dir) {
            Ok(there) => there,
            Err(error) => return Ok(Err(error)),
        };
        there.sort_unstable();
        for object in there.iter().filter(|object| !known.contains(*object)) {
            if lacks_manifest {
                let what = "it is there, but neither a manifest nor a WAL file: files are missing".to_owned();
                check.fault(&named.path(object), 0, what)?;
                continue;
            }
            check.orphan(&named.path(object), "no manifest names it; a start that finds the log whole removes it")?;
        }
    }
    Ok(Ok(()))
}

/// Checks the checksum of a checkpoint; gives the length of its state.
fn read_checkpoint(
    check: &mut Check<'_, '_>,
    objects: &Objects,
    checkpoint: &CheckpointRef,
) -> Go<Result<u64, StorageError>> {
    let read = || {
        let object = &checkpoint.object;
        let bytes = objects.length(object)?;
        let head = objects.get_range(object, 0..bytes.min(CHECKPOINT_HEAD_BYTES as u64))?;
        let corrupt = |position: u64, what: String| StorageError::Corrupt { file: object.into(), position, what };
        let Some((lsn, stored)) = checkpoint_head(&head) else {
            return Err(corrupt(0, "it does not begin like a checkpoint".to_owned()));
        };
        if lsn != checkpoint.lsn {
            return Err(corrupt(4, format!("it is of LSN {lsn}, the manifest says {}", checkpoint.lsn)));
        }
        let mut crc = crc32c::crc32c(&lsn.to_le_bytes());
        let mut at = CHECKPOINT_HEAD_BYTES as u64;
        while at < bytes {
            let part = objects.get_range(object, at..bytes.min(at + READ_BYTES))?;
            crc = crc32c::crc32c_append(crc, &part);
            at += part.len() as u64;
        }
        if crc != stored {
            return Err(corrupt(12, "the CRC of the checkpoint does not match".to_owned()));
        }
        Ok(bytes)
    };
    let done = read();
    if let Ok(bytes) = &done {
        check.report.checkpoint_lsn = Some(checkpoint.lsn);
        check.report.bytes += bytes;
        check.progress(*bytes)?;
    }
    Ok(done)
}

/// A segment's bytes, read for the first time.
#[derive(Debug)]
struct Object {
    objects: Arc<Objects>,
    object: String,
}

impl Ranges for Object {
    fn read(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        self.objects.get_range(&self.object, range)
    }
}

/// Reads all segments in order.
pub(super) fn segments(check: &mut Check<'_, '_>, named: &Named, order: &mut Order) -> Go {
    let Some(objects) = &named.objects else {
        order.start_at(0);
        return Ok(());
    };
    let first = named.segments.first().map_or(0, |segment| segment.first_lsn);
    order.start_at(first);
    compare(check, named, order)?;
    for at in &named.segments {
        // That nothing is missing between two of them the manifest has been asked.
        order.skip_to(at.first_lsn);
        let path = named.path(&at.object);
        let source: Arc<dyn Ranges> = Arc::new(Object { objects: Arc::clone(objects), object: at.object.clone() });
        let faults = segment(check, named, at, (&path, &source), order)?;
        if order.part() == 0 {
            check.report.segments += 1;
            check.report.bytes += at.bytes;
        }
        check.progress(at.bytes)?;
        if faults {
            order.leave_out(at.next_lsn);
        }
    }
    order.skip_to(named.consolidated);
    Ok(())
}

/// Checks one segment and its place in the log. Gives whether something is wrong.
fn segment(
    check: &mut Check<'_, '_>,
    named: &Named,
    at: &SegmentRef,
    (path, source): (&Path, &Arc<dyn Ranges>),
    order: &mut Order,
) -> Go<bool> {
    let objects = named.objects.as_ref().map(|objects| objects.length(&at.object));
    match objects.transpose() {
        Err(error) => return check.failed(path, &error).map(|()| true),
        Ok(bytes) if bytes != Some(at.bytes) => {
            let what = format!("it has {} bytes, the manifest says {}", bytes.unwrap_or_default(), at.bytes);
            return check.fault(path, 0, what).map(|()| true);
        }
        Ok(_) => {}
    }
    let expected = Expected {
        object: at.object.clone(),
        bytes: at.bytes,
        first_lsn: at.first_lsn,
        next_lsn: at.next_lsn,
        shard: named.shard,
    };
    let cache = Arc::new(Cache::new(CACHE_BYTES));
    let mut wrong = false;
    let mut times_ms: Option<(i64, i64)> = None;
    let mut each = |frame: &StoredFrame| -> Result<(), Stop> {
        let time_ms = frame.header.broker_time_ms;
        times_ms = Some((times_ms.map_or(time_ms, |(first, _)| first), time_ms));
        if let Err(what) = order.frame(frame) {
            wrong = true;
            check.fault(path, 0, what)?;
            order.leave_out(frame.next_lsn());
        }
        compare(check, named, order)
    };
    let faults = segment::check(source, &cache, &expected, &mut each)?;
    for fault in &faults {
        check.fault(path, fault.position, fault.what.as_str())?;
    }
    if faults.is_empty() && times_ms != Some((at.first_time_ms, at.last_time_ms)) {
        check.fault(path, 0, "the manifest names other times for it than its frames have")?;
    }
    Ok(wrong || !faults.is_empty())
}

/// Where the log stands at the checkpoint's LSN, compares the two.
pub(super) fn compare(check: &mut Check<'_, '_>, named: &Named, order: &mut Order) -> Go {
    let Some((checkpoint, objects)) = named.checkpoint.as_ref().zip(named.objects.as_ref()) else { return Ok(()) };
    if checkpoint.lsn != order.range().1 || order.is_broken() {
        return Ok(());
    }
    let mut state =
        State { objects, object: &checkpoint.object, at: CHECKPOINT_HEAD_BYTES as u64, bytes: named.checkpoint_bytes };
    let walked = check.states.walk(checkpoint.lsn, &mut state, &mut |item| order.item(&item));
    let (path, at) = (named.path(&checkpoint.object), CHECKPOINT_HEAD_BYTES as u64);
    match walked.and_then(|()| order.all_named()) {
        Ok(()) => Ok(()),
        Err(what) => check.fault(&path, at, what),
    }
}

/// The state of a checkpoint, read as it is wanted.
#[derive(Debug)]
struct State<'a> {
    objects: &'a Objects,
    object: &'a str,
    at: u64,
    bytes: u64,
}

impl io::Read for State<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let end = self.bytes.min(self.at + buffer.len() as u64);
        if self.at >= end {
            return Ok(0);
        }
        let part = self.objects.get_range(self.object, self.at..end).map_err(io::Error::other)?;
        let part = part.get(..part.len().min(buffer.len())).unwrap_or_default();
        buffer.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        self.at += part.len() as u64;
        Ok(part.len())
    }
}
