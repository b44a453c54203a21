//! The log's segments: makes them of full WAL files, and keeps those that were read last open.

use std::{
    collections::HashMap,
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use tidegate_protocol::stored::StoredFrame;

use super::{
    Run, StorageError,
    index::Wanted,
    manifest::{SEGMENTS, SegmentRef},
    objects::Objects,
    segment::{self, Cache, Expected, Ranges, Segment},
    wal::files::WalFile,
};

/// Frames of one segment: a WAL file of the default length. A longer file becomes several, so that building one takes no
/// more memory.
const WINDOW_BYTES: usize = 64 << 20;
/// Windows that the cache holds: a read of history in order needs all blocks of the one it is in, so that this many readers
/// may be in different ones without reading blocks twice.
const CACHED_WINDOWS: usize = 3;
/// And at least this much.
const CACHE_BYTES_MIN: usize = 4 << 20;
/// Level of what consolidation writes; merges will write higher ones.
const LEVEL: u8 = 1;
/// Memory of all segments that are open: filters and indexes, about 1 MiB for a window of half a million keys.
const OPEN_BYTES_MAX: usize = 256 << 20;

/// Makes segments of a full WAL file, checking every frame. Durable when this returns, and named by no manifest yet.
///
/// # Errors
/// If the file cannot be read or is damaged, or the store fails.
pub(crate) fn write(objects: &Objects, shard: u16, wal: &WalFile) -> Result<Vec<SegmentRef>, StorageError> {
    let mut made = Vec::new();
    let (mut lsn, next_lsn) = (wal.header.first_lsn, wal.next_lsn());
    while lsn < next_lsn {
        let run = wal.read(lsn, WINDOW_BYTES, None)?;
        let bytes = segment::build(shard, LEVEL, &run.frames);
        let object = format!("{SEGMENTS}/{lsn:016}-{:016}", run.next_lsn);
        put(objects, &object, &bytes)?;
        let time_of = |frame: Option<&Arc<StoredFrame>>| frame.map_or(0, |frame| frame.header.broker_time_ms);
        made.push(SegmentRef {
            first_lsn: lsn,
            next_lsn: run.next_lsn,
            first_time_ms: time_of(run.frames.first()),
            last_time_ms: time_of(run.frames.last()),
            bytes: bytes.len() as u64,
            object,
        });
        lsn = run.next_lsn;
    }
    Ok(made)
}

fn put(objects: &Objects, object: &str, bytes: &Bytes) -> Result<(), StorageError> {
    match objects.create(object, bytes.clone().into()) {
        // An earlier try wrote it, and then the disk was too full for the manifest. Same frames, same bytes.
        Err(StorageError::Object { source, .. }) if matches!(*source, object_store::Error::AlreadyExists { .. }) => {
            if objects.get(object)? == bytes {
                return Ok(());
            }
            let what = "it is there already, and not what an earlier try of the same window wrote".to_owned();
            Err(StorageError::Corrupt { file: PathBuf::from(object), position: 0, what })
        }
        put => put,
    }
}

/// Reads segments. Those read last stay open.
#[derive(Debug)]
pub(crate) struct Segments {
    shard: u16,
    objects: Arc<Objects>,
    cache: Arc<Cache>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// By object: the segment, its memory, when it was last used.
    segments: HashMap<String, (Arc<Segment>, usize, u64)>,
    bytes: usize,
    uses: u64,
}

/// A segment's bytes in the store.
#[derive(Debug)]
struct Stored {
    objects: Arc<Objects>,
    object: String,
}

impl Ranges for Stored {
    fn read(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        self.objects.get_range(&self.object, range)
    }
}

impl Segments {
    /// For windows of WAL files of a length.
    pub(crate) fn new(shard: u16, objects: Arc<Objects>, wal_file_bytes: u64) -> Self {
        let window = usize::try_from(wal_file_bytes).unwrap_or(WINDOW_BYTES).min(WINDOW_BYTES);
        let cache = Arc::new(Cache::new((window * CACHED_WINDOWS).max(CACHE_BYTES_MIN)));
        Self { shard, objects, cache, open: Mutex::default() }
    }

    /// Reads frames that touch a wanted topic.
    ///
    /// # Errors
    /// If the store fails or the segment is damaged.
    pub(crate) fn read(
        &self,
        segment: &SegmentRef,
        from_lsn: u64,
        bytes_max: usize,
        wanted: Wanted<'_>,
    ) -> Result<Run, StorageError> {
        self.open(segment)?.scan(from_lsn, bytes_max, wanted)
    }

    /// A segment, open.
    ///
    /// # Errors
    /// As `read`.
    pub(crate) fn open(&self, segment: &SegmentRef) -> Result<Arc<Segment>, StorageError> {
        if let Some(segment) = self.lock().find(&segment.object) {
            return Ok(segment);
        }
        let SegmentRef { first_lsn, next_lsn, bytes, object, .. } = segment.clone();
        let source = Stored { objects: Arc::clone(&self.objects), object: object.clone() };
        let expected = Expected { object, bytes, first_lsn, next_lsn, shard: self.shard };
        let opened = Arc::new(Segment::open(Arc::new(source), Arc::clone(&self.cache), &expected)?);
        self.lock().keep(expected.object, &opened);
        Ok(opened)
    }

    /// Closes a segment that is gone. Who reads it still has it, and may find its object missing.
    pub(crate) fn forget(&self, object: &str) {
        let mut open = self.lock();
        if let Some((_, bytes, _)) = open.segments.remove(object) {
            open.bytes -= bytes;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn find(&mut self, object: &str) -> Option<Arc<Segment>> {
        self.uses += 1;
        let (segment, _, used) = self.segments.get_mut(object)?;
        *used = self.uses;
        Some(Arc::clone(segment))
    }

    fn keep(&mut self, object: String, segment: &Arc<Segment>) {
        let bytes = segment.memory_bytes();
        self.bytes += bytes;
        if let Some((_, before, _)) = self.segments.insert(object, (Arc::clone(segment), bytes, self.uses)) {
            self.bytes -= before;
        }
        // The one just opened stays even if it alone is over.
        while self.bytes > OPEN_BYTES_MAX && self.segments.len() > 1 {
            let oldest = self.segments.iter().min_by_key(|(_, (_, _, used))| *used);
            let Some(oldest) = oldest.map(|(object, _)| object.clone()) else { break };
            if let Some((_, bytes, _)) = self.segments.remove(&oldest) {
                self.bytes -= bytes;
            }
        }
    }
}
