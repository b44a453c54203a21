//! What lies behind the WAL: segments, the manifest that names them, the checkpoint; and the thread that moves full WAL
//! files there.

mod reclaim;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::Notify;

use super::{
    Run, StorageError,
    index::Wanted,
    manifest::{CHECKPOINTS, CheckpointRef, Current, Manifest, SegmentRef},
    objects::Objects,
    pins::{Cut, CutFile, Pin, Pins},
    segment::{KeyRun, StoredKey},
    segments::{self, Segments},
    wal::{
        files::{WalFile, WalFiles},
        local::OnFull,
        spare::Spares,
    },
};
use crate::threads::{self, Running, SharedThreads, Signal};

/// Starts a checkpoint object: then u64 LSN, u32 CRC-32C of the LSN and the state, the state.
const CHECKPOINT_MAGIC: [u8; 4] = *b"TGC1";
/// Bytes before the state.
pub(crate) const CHECKPOINT_HEAD_BYTES: usize = 16;
/// A checkpoint is asked for when the log has grown by this many times the last one: writing state must stay a small part
/// of writing records.
const CHECKPOINT_GROWTH: u64 = 2;
/// Segments that one read by key looks into: their filters answer in no time, but a cold one is opened first.
const KEY_SEGMENTS_MAX: usize = 64;
/// On a full disk consolidation waits this long before it tries again.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Segments and checkpoints in the object store.
#[derive(Debug)]
pub(crate) struct Store {
    shard: u16,
    objects: Arc<Objects>,
    /// Changed by consolidation and by checkpoints, one at a time.
    current: Mutex<Current>,
    /// The manifest's segments, for readers.
    listed: ArcSwap<Listed>,
    /// By first LSN of a segment, why it stays.
    kept: Mutex<HashMap<u64, reclaim::Kept>>,
    segments: Segments,
    pins: Arc<Pins>,
    /// Bytes that left the WAL since the last checkpoint, and bytes of that.
    grown_bytes: AtomicU64,
    checkpoint_bytes: AtomicU64,
    threads: SharedThreads,
}

/// The segments as readers see them. Whatever lies between them, or between the last and the end, is gone.
#[derive(Debug)]
struct Listed {
    segments: Vec<SegmentRef>,
    /// LSN up to which segments hold everything that is kept.
    consolidated: u64,
}

/// Where an LSN lies.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// In the segment of this number.
    Segment(usize),
    /// Nowhere any more; what comes next.
    Hole { next_lsn: u64 },
    /// In the WAL, or nowhere yet.
    Behind,
}

impl Listed {
    fn of(manifest: &Manifest) -> Self {
        Self { segments: manifest.segments.clone(), consolidated: manifest.consolidated() }
    }

    fn place(&self, lsn: u64) -> Place {
        let at = self.segments.partition_point(|segment| segment.next_lsn <= lsn);
        match self.segments.get(at) {
            _ if lsn >= self.consolidated => Place::Behind,
            Some(segment) if segment.first_lsn <= lsn => Place::Segment(at),
            Some(segment) => Place::Hole { next_lsn: segment.first_lsn },
            None => Place::Hole { next_lsn: self.consolidated },
        }
    }
}

/// LSN and CRC of a checkpoint's first bytes, if they are those of one.
pub(crate) fn checkpoint_head(head: &[u8]) -> Option<(u64, u32)> {
    let (magic, rest) = head.split_first_chunk::<4>()?;
    let (lsn, rest) = rest.split_first_chunk::<8>()?;
    let crc = rest.first_chunk::<4>()?;
    (*magic == CHECKPOINT_MAGIC).then(|| (u64::from_le_bytes(*lsn), u32::from_le_bytes(*crc)))
}

impl Store {
    /// Reads the manifest.
    ///
    /// # Errors
    /// If the store fails or the manifest cannot be read.
    pub(crate) fn open(
        shard: u16,
        objects: Objects,
        wal_file_bytes: u64,
        threads: &SharedThreads,
    ) -> Result<Self, StorageError> {
        let objects = Arc::new(objects);
        let current = Current::load(&objects)?;
        let listed = ArcSwap::from_pointee(Listed::of(&current.manifest));
        let segments = Segments::new(shard, Arc::clone(&objects), wal_file_bytes);
        let (current, pins) = (Mutex::new(current), Pins::new(Arc::clone(&objects)));
        let (kept, grown_bytes, checkpoint_bytes) = Default::default();
        let threads = Arc::clone(threads);
        Ok(Self { shard, objects, current, listed, kept, segments, pins, grown_bytes, checkpoint_bytes, threads })
    }

    /// Segments or checkpoints are there, and no manifest ever was.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn lacks_manifest(&self) -> Result<bool, StorageError> {
        let current = self.current();
        Ok(current.number == 0 && !current.orphans(&self.objects)?.is_empty())
    }

    /// Removes what an earlier run has left. Only for a log that was found whole.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn tidy(&self) -> Result<(), StorageError> {
        self.current().tidy(&self.objects)
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        // Held while a manifest is written.
        threads::lock(&*self.threads, &self.current)
    }

    /// LSN up to which segments hold everything that is kept.
    pub(crate) fn consolidated(&self) -> u64 {
        self.listed.load().consolidated
    }

    /// First LSN that a segment holds.
    pub(crate) fn first_lsn(&self) -> Option<u64> {
        self.listed.load().segments.first().map(|segment| segment.first_lsn)
    }

    /// Segments, and bytes of all.
    pub(crate) fn usage(&self) -> (usize, u64) {
        let listed = self.listed.load();
        (listed.segments.len(), listed.segments.iter().map(|segment| segment.bytes).sum())
    }

    /// Reads by the list of segments. One that was dropped meanwhile is not there any more: then the list is another one.
    fn with_listed<T>(&self, read: impl Fn(&Listed) -> Result<T, StorageError>) -> Result<T, StorageError> {
        let mut listed = self.listed.load_full();
        loop {
            let done = read(&listed);
            let now = self.listed.load_full();
            if done.is_ok() || Arc::ptr_eq(&listed, &now) {
                return done;
            }
            listed = now;
        }
    }

    /// The checkpoint that counts.
    ///
    /// # Errors
    /// If the store fails or the checkpoint is damaged.
    pub(crate) fn checkpoint(&self) -> Result<Option<(u64, Bytes)>, StorageError> {
        let Some(CheckpointRef { lsn, object }) = self.current().manifest.checkpoint.clone() else { return Ok(None) };
        let bytes = self.objects.get(&object)?;
        let whole = bytes.get(..CHECKPOINT_HEAD_BYTES).is_some_and(|head| {
            let state = &bytes[CHECKPOINT_HEAD_BYTES..];
            let crc = crc32c::crc32c_append(crc32c::crc32c(&head[4..12]), state);
            head[..4] == CHECKPOINT_MAGIC && head[4..12] == lsn.to_le_bytes() && head[12..] == crc.to_le_bytes()
        });
        if !whole {
            let what = format!("it is not the checkpoint of LSN {lsn} that the manifest names");
            return Err(StorageError::Corrupt { file: object.into(), position: 0, what });
        }
        Ok(Some((lsn, bytes.slice(CHECKPOINT_HEAD_BYTES..))))
    }

    /// Puts a checkpoint and makes it the one that counts.
    ///
    /// # Errors
    /// If the store fails; the one before counts then.
    pub(crate) fn put_checkpoint(&self, lsn: u64, state: Bytes) -> Result<(), StorageError> {
        let mut current = self.current();
        let before = current.manifest.checkpoint.clone();
        if before.as_ref().is_some_and(|before| before.lsn >= lsn) {
            return Ok(());
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&lsn.to_le_bytes()), &state);
        let mut head = Vec::from(CHECKPOINT_MAGIC);
        head.extend_from_slice(&lsn.to_le_bytes());
        head.extend_from_slice(&crc.to_le_bytes());
        self.grown_bytes.store(0, Ordering::Relaxed);
        self.checkpoint_bytes.store(state.len() as u64, Ordering::Relaxed);
        let object = format!("{CHECKPOINTS}/{lsn:016}-{:016}", current.number);
        self.objects.create(&object, [Bytes::from(head), state].into_iter().collect())?;
        let mut manifest = current.manifest.clone();
        manifest.checkpoint = Some(CheckpointRef { lsn, object });
        current.replace(&self.objects, manifest)?;
        if let Some(before) = before
            && let Err(error) = self.pins.discard(&before.object)
        {
            tracing::warn!(%error, "cannot remove the checkpoint before this one; the next start does");
        }
        Ok(())
    }

    /// What belongs to a copy of the log now, and the pin on it.
    ///
    /// # Errors
    /// If there are too many pins.
    pub(crate) fn pin(&self, wal: &WalFiles, durable: impl Fn() -> u64) -> Result<(Cut, Pin), StorageError> {
        // While the manifest cannot change no file leaves the WAL that it does not name.
        let current = self.current();
        let manifest = &current.manifest;
        let (text, consolidated) = (manifest.text()?, manifest.consolidated());
        let objects = manifest.segments.iter().map(|segment| segment.object.clone());
        let objects = objects.chain(manifest.checkpoint.iter().map(|checkpoint| checkpoint.object.clone())).collect();
        // Behind all that the manifest holds, which cannot change; and before the files: whatever is durable lies in one.
        let next_lsn = durable();
        let mut files = wal.all();
        files.retain(|file| file.header.first_lsn <= next_lsn);
        let needed = |next: Option<&Arc<WalFile>>| next.is_none_or(|next| next.header.first_lsn > consolidated);
        let unneeded = (0..files.len()).take_while(|at| !needed(files.get(at + 1))).count();
        files.drain(..unneeded);
        let pin = self.pins.pin(objects, files.clone())?;
        let number = current.number;
        drop(current);
        let of = |file: &Arc<WalFile>| {
            let name = file.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            CutFile { name, generation: file.header.generation, first_lsn: file.header.first_lsn }
        };
        let manifest = if number == 0 { Bytes::new() } else { text };
        let wal = files.iter().map(of).collect();
        Ok((Cut { shard: self.shard, next_lsn, manifest_number: number, manifest, wal }, pin))
    }

    /// Makes segments of the WAL's oldest file and takes it out of use. `None` if no more than `full_max` are full.
    fn consolidate(&self, wal: &WalFiles, full_max: usize, spares: &Spares) -> Result<Option<u64>, StorageError> {
        let Some(file) = wal.oldest_over(full_max) else { return Ok(None) };
        let next_lsn = file.next_lsn();
        // A crash between manifest and reuse leaves a file that is in a segment already.
        if next_lsn > self.current().manifest.consolidated() {
            let made = segments::write(&self.objects, self.shard, &file)?;
            let bytes: u64 = made.iter().map(|segment| segment.bytes).sum();
            tracing::debug!(next_lsn, segments = made.len(), bytes, "consolidated a WAL file");
            #[cfg(mutants)]
            let made = self.manifest_first(made, &file)?;
            #[cfg(mutants)]
            if crate::mutants::is("wal-freed-early") {
                drop(file);
                wal.retire_oldest().into_iter().for_each(|retired| spares.recycle(retired));
                return self.list(made).map(|()| Some(next_lsn));
            }
            self.list(made)?;
        }
        self.grown_bytes.fetch_add(file.bytes, Ordering::Relaxed);
        drop(file);
        self.threads.pause("listed a segment");
        if let Some(retired) = wal.retire_oldest() {
            spares.recycle(retired);
        }
        Ok(Some(next_lsn))
    }

    /// Makes segments the log's.
    fn list(&self, made: Vec<SegmentRef>) -> Result<(), StorageError> {
        let mut current = self.current();
        let mut manifest = current.manifest.clone();
        manifest.segments.extend(made);
        current.replace(&self.objects, manifest)?;
        self.threads.pause("replaced the manifest");
        self.listed.store(Arc::new(Listed::of(&current.manifest)));
        Ok(())
    }

    #[cfg(mutants)]
    fn manifest_first(&self, made: Vec<SegmentRef>, wal: &WalFile) -> Result<Vec<SegmentRef>, StorageError> {
        if !crate::mutants::is("manifest-before-segment") {
            return Ok(made);
        }
        made.iter().try_for_each(|segment| self.objects.remove(&segment.object))?;
        self.list(made)?;
        segments::write(&self.objects, self.shard, wal)?;
        Ok(Vec::new())
    }

    /// Whether a checkpoint now is worth its bytes.
    fn checkpoint_pays(&self) -> bool {
        let last = self.checkpoint_bytes.load(Ordering::Relaxed);
        self.grown_bytes.load(Ordering::Relaxed) >= last.saturating_mul(CHECKPOINT_GROWTH)
    }

    /// Reads frames that touch a wanted topic, from the segment that holds an LSN; none where it is gone. `None`: it lies
    /// behind all segments.
    ///
    /// # Errors
    /// If the store fails or the segment is damaged.
    pub(crate) fn read(
        &self,
        from_lsn: u64,
        bytes_max: usize,
        wanted: Wanted<'_>,
    ) -> Result<Option<Run>, StorageError> {
        self.with_listed(|listed| match listed.place(from_lsn) {
            Place::Behind => Ok(None),
            Place::Hole { next_lsn } => Ok(Some(Run { frames: Vec::new(), next_lsn })),
            Place::Segment(at) => self.segments.read(&listed.segments[at], from_lsn, bytes_max, wanted).map(Some),
        })
    }
}

impl Store {
    /// Records of a key from an LSN on, up to some bytes. `None` if the LSN lies behind all segments.
    ///
    /// # Errors
    /// If the store fails or a segment is damaged.
    pub(crate) fn read_key(
        &self,
        from_lsn: u64,
        bytes_max: usize,
        key: StoredKey<'_>,
    ) -> Result<Option<KeyRun>, StorageError> {
        self.with_listed(|listed| self.read_key_listed(listed, from_lsn, bytes_max, key))
    }

    fn read_key_listed(
        &self,
        listed: &Listed,
        from_lsn: u64,
        bytes_max: usize,
        key: StoredKey<'_>,
    ) -> Result<Option<KeyRun>, StorageError> {
        if from_lsn >= listed.consolidated {
            return Ok(None);
        }
        let at = listed.segments.partition_point(|segment| segment.next_lsn <= from_lsn);
        let mut run = KeyRun { records: Vec::new(), next_lsn: from_lsn };
        let mut bytes_left = bytes_max;
        for segment in listed.segments.iter().skip(at).take(KEY_SEGMENTS_MAX) {
            #[cfg(mutants)]
            if crate::mutants::is("last-segment-not-asked") && Some(segment) == listed.segments.last() {
                run.next_lsn = segment.next_lsn;
                continue;
            }
            let open = self.segments.open(segment)?;
            let mut next = Some(key.from_offset);
            while let Some(from_offset) = next {
                let slice = open.replay(key.topic_id, key.key, from_offset, bytes_left)?;
                next = slice.next_offset;
                for record in slice.records.into_iter().filter(|record| record.lsn >= from_lsn) {
                    bytes_left = bytes_left.saturating_sub(record.charge());
                    run.next_lsn = record.lsn + 1;
                    run.records.push(record);
                }
                if bytes_left == 0 || (next.is_some() && !run.records.is_empty()) {
                    return Ok(Some(run));
                }
            }
            run.next_lsn = segment.next_lsn;
        }
        if at + KEY_SEGMENTS_MAX >= listed.segments.len() {
            // Behind the last segment there may be a hole.
            run.next_lsn = listed.consolidated;
        }
        Ok(Some(run))
    }
}

/// Moves full WAL files into segments, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Consolidation {
    shared: Arc<Shared>,
    thread: Mutex<Option<Box<dyn Running>>>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    wal: Arc<WalFiles>,
    spares: Arc<Spares>,
    full_max: usize,
    checkpoint_wanted: Arc<Notify>,
    state: Mutex<State>,
    changed: Signal,
}

#[derive(Debug, Default)]
struct State {
    /// A file became full since the last look.
    look: bool,
    closing: bool,
}

impl Consolidation {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn start(
        store: Arc<Store>,
        wal: Arc<WalFiles>,
        spares: Arc<Spares>,
        full_max: usize,
        checkpoint_wanted: Arc<Notify>,
        threads: &SharedThreads,
    ) -> Result<Self, StorageError> {
        let state = Mutex::new(State { look: true, closing: false });
        let changed = Signal::new(&**threads);
        let shared = Arc::new(Shared { store, wal, spares, full_max, checkpoint_wanted, state, changed });
        let worker = Arc::clone(&shared);
        let thread = threads
            .spawn("consolidation", Box::new(move || worker.work()))
            .map_err(StorageError::io("start a thread for", "consolidation"))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// What the writer tells of full files.
    pub(crate) fn on_full(&self) -> Arc<dyn OnFull> {
        Arc::clone(&self.shared) as Arc<dyn OnFull>
    }

    /// Finishes the file at hand and ends the thread.
    pub(crate) fn close(&self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the consolidation thread has panicked");
        }
    }
}

impl OnFull for Shared {
    fn file_is_full(&self) {
        self.lock().look = true;
        self.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.closing {
            if !state.look {
                state = self.changed.wait(&self.state, state);
                continue;
            }
            drop(state);
            let done = self.store.consolidate(&self.wal, self.full_max, &self.spares);
            state = self.lock();
            match done {
                Ok(Some(_)) if self.store.checkpoint_pays() => self.checkpoint_wanted.notify_one(),
                Ok(Some(_)) => {}
                Ok(None) => state.look = false,
                Err(error) if error.is_full() => {
                    tracing::warn!(%error, "cannot move a WAL file into a segment; trying again");
                    state = self.changed.wait_while(&self.state, state, RETRY_DELAY, |state| !state.closing);
                }
                Err(error) => {
                    // The outcome of a failed put is not known; only a start reads it anew. Acks do not depend on it.
                    tracing::error!(%error, "cannot move WAL files into segments any more: the WAL grows until a restart");
                    return;
                }
            }
        }
    }
}
