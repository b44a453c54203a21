//! WAL files made ready ahead of time, on a thread of their own, so that no ack waits for zeros to be written.
//!
//! A file out of use is taken again as it is: its blocks are allocated and written, and its new generation keeps what is
//! in it from being read. Only when there is none, a new one is filled with zeros. Called by the writer (take), by
//! consolidation (recycle).

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::files::WalFile;
use crate::{
    storage::{
        StorageError,
        disk::{Disk, DiskFile},
    },
    threads::{Running, SharedThreads, Signal},
};

/// Files out of use that are kept; more are removed.
const KEPT_MAX: usize = 2;
/// Zeros written at once.
const ZERO_BYTES: usize = 1 << 20;

/// A file of the right length whose blocks are written and whose name is durable.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn DiskFile>,
}

/// Makes files ready.
#[derive(Debug)]
pub(crate) struct Spares {
    shared: Arc<Shared>,
    thread: Mutex<Option<Box<dyn Running>>>,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    file_bytes: u64,
    state: Mutex<State>,
    changed: Signal,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Spare>,
    retired: Vec<Arc<WalFile>>,
    wanted: usize,
    next_slot: u64,
    /// The last try failed; the next demand clears it.
    failed: Option<StorageError>,
    closing: bool,
}

impl Spares {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn start(
        disk: Arc<dyn Disk>,
        dir: &Path,
        file_bytes: u64,
        ready: Vec<Spare>,
        next_slot: u64,
        threads: &SharedThreads,
    ) -> Result<Self, StorageError> {
        let shared = Arc::new(Shared {
            disk,
            dir: dir.to_path_buf(),
            file_bytes,
            state: Mutex::new(State { ready, next_slot, ..State::default() }),
            changed: Signal::new(&**threads),
        });
        let worker = Arc::clone(&shared);
        let thread = threads
            .spawn("wal-spares", Box::new(move || worker.work()))
            .map_err(StorageError::io("start a thread for", dir))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// From now on, so many files shall be ready. Does not wait.
    pub(crate) fn want(&self, count: usize) {
        let mut state = self.shared.lock();
        if state.wanted < count {
            state.wanted = count;
            self.shared.changed.notify_all();
        }
    }

    /// Takes a ready file; waits for one if there is none.
    ///
    /// # Errors
    /// If none can be made, and that the disk is full if it is.
    pub(crate) fn take(&self) -> Result<Spare, StorageError> {
        let mut state = self.shared.lock();
        // A failure of an earlier try may be over: this demand tries once more.
        state.failed = None;
        state.wanted = state.wanted.max(1);
        self.shared.changed.notify_all();
        loop {
            if let Some(spare) = state.ready.pop() {
                // The next one is made when the writer asks for it.
                state.wanted = 0;
                return Ok(spare);
            }
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            if state.closing {
                return Err(StorageError::Closed);
            }
            state = self.shared.changed.wait(&self.shared.state, state);
        }
    }

    /// Gives a file whose frames lie in a segment back for another use.
    pub(crate) fn recycle(&self, file: Arc<WalFile>) {
        self.shared.lock().retired.push(file);
        self.shared.changed.notify_all();
    }

    /// Ends the thread and waits for it.
    pub(crate) fn close(&self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread that makes WAL files ready has panicked");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.closing {
            if state.ready.len() < state.wanted && state.failed.is_none() {
                let again = take_unread(&mut state.retired, |file| file.bytes == self.file_bytes);
                if let Some(file) = again {
                    state.ready.push(Spare { path: file.path, file: file.file });
                    self.changed.notify_all();
                    continue;
                }
                let slot = state.next_slot;
                state.next_slot += 1;
                drop(state);
                let made = self.make(slot);
                state = self.lock();
                match made {
                    Ok(spare) => state.ready.push(spare),
                    Err(error) => {
                        tracing::warn!(%error, "cannot make the next WAL file ready");
                        state.failed = Some(error);
                    }
                }
                self.changed.notify_all();
                continue;
            }
            if state.retired.len() > KEPT_MAX
                && let Some(file) = take_unread(&mut state.retired, |_| true)
            {
                drop(state);
                if let Err(error) = self.disk.remove(&file.path) {
                    tracing::warn!(%error, path = %file.path.display(), "cannot remove a WAL file out of use");
                }
                state = self.lock();
                continue;
            }
            state = self.changed.wait(&self.state, state);
        }
    }

    /// A new file, full of zeros, its bytes and its name durable.
    fn make(&self, slot: u64) -> Result<Spare, StorageError> {
        let path = self.dir.join(file_name(slot));
        let file = self.disk.create(&path).map_err(StorageError::io("create", &path))?;
        let zeros = vec![0; ZERO_BYTES];
        let mut position = 0;
        while position < self.file_bytes {
            let left = usize::try_from(self.file_bytes - position).unwrap_or(usize::MAX);
            let written = file.write_at(&zeros[..left.min(ZERO_BYTES)], position);
            if let Err(error) = written {
                // What was written helps nobody, least of all on a full disk.
                if let Err(error) = self.disk.remove(&path) {
                    tracing::warn!(%error, path = %path.display(), "cannot remove an unfinished WAL file");
                }
                return Err(StorageError::io("fill", &path)(error));
            }
            position += left.min(ZERO_BYTES) as u64;
        }
        file.sync_data().map_err(StorageError::io("sync", &path))?;
        #[cfg(mutants)]
        if crate::mutants::is("name-not-synced") {
            return Ok(Spare { path, file });
        }
        self.disk.sync_dir(&self.dir).map_err(StorageError::io("sync", &self.dir))?;
        Ok(Spare { path, file })
    }
}

/// Takes a file that no reader holds any more.
fn take_unread(retired: &mut Vec<Arc<WalFile>>, fits: impl Fn(&WalFile) -> bool) -> Option<WalFile> {
    let at = retired.iter().position(|file| Arc::strong_count(file) == 1 && fits(file))?;
    Arc::into_inner(retired.swap_remove(at))
}

/// Name of a WAL file: its slot, which says nothing of its content.
pub(crate) fn file_name(slot: u64) -> String {
    format!("{slot:016}.wal")
}

/// The slot of a name, if it is one of a WAL file.
pub(crate) fn slot_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal")?;
    if digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}
