//! The log as its callers see it: a handle on a writer thread that makes queued frames durable in groups.

mod history;
mod open;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tidegate_protocol::stored::StoredFrame;
use tokio::sync::{Notify, watch};

pub use self::history::{Reclaim, Reclaimed};
use super::{
    Config, Replayed, Run, StorageError, WalKind,
    disk::{Disk, Lock},
    index::Wanted,
    pins::{Cut, Pin},
    ring::Ring,
    segment::{KeyRun, StoredKey},
    store::{Consolidation, Store},
    wal::{
        Wal,
        entry::{HEADER_BYTES, entry_bytes},
        files::WalFiles,
        memory::MemWal,
        spare::Spares,
    },
};
use crate::{
    clock::SharedClock,
    threads::{Running, SharedThreads, Signal},
};

/// How far the log is durable.
#[derive(Debug, Clone, Default)]
pub struct Durable {
    /// Everything before this LSN is durable and may be told.
    pub next_lsn: u64,
    /// Why nothing more will become durable.
    pub failed: Option<Arc<StorageError>>,
}

/// A handle on the log. Cheap to clone; the last one closes it.
#[derive(Debug, Clone)]
pub struct Log {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    local: Option<Local>,
    writer: Mutex<Option<Box<dyn Running>>>,
    checkpoint_wanted: Arc<Notify>,
    /// Given back when all threads have ended.
    lock: Mutex<Option<Box<dyn Lock>>>,
}

/// What a log on a disk has besides its writer.
#[derive(Debug)]
struct Local {
    files: Arc<WalFiles>,
    store: Arc<Store>,
    spares: Arc<Spares>,
    consolidation: Consolidation,
}

/// What the writer thread shares with the handles.
#[derive(Debug)]
struct Shared {
    config: Config,
    ring: Ring,
    durable: watch::Sender<Durable>,
    queue: Mutex<Queue>,
    changed: Signal,
    threads: SharedThreads,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Arc<StoredFrame>>,
    /// Of `frames` and of the group being written.
    bytes: usize,
    next_lsn: u64,
    closing: bool,
    failed: Option<Arc<StorageError>>,
}

impl Log {
    /// Opens a log and reads it back. Blocking. `replay` gets the checkpoint first, if there is one, then each frame
    /// behind it in LSN order.
    ///
    /// # Errors
    /// [`StorageError::InUse`], [`StorageError::Format`], [`StorageError::Corrupt`], or as the disk says.
    pub fn open(
        config: Config,
        disk: Arc<dyn Disk>,
        clock: SharedClock,
        replay: &mut dyn FnMut(Replayed),
    ) -> Result<Self, StorageError> {
        config.check()?;
        let threads = clock.threads();
        let shared = Arc::new(Shared {
            ring: Ring::new(config.tail_bytes),
            durable: watch::Sender::default(),
            queue: Mutex::default(),
            changed: Signal::new(&*threads),
            threads,
            config,
        });
        let checkpoint_wanted = Arc::new(Notify::new());
        match shared.config.wal {
            WalKind::Memory => Self::start(shared, checkpoint_wanted, Box::new(MemWal), None),
            WalKind::Local => {
                let opened = open::open_local(&shared, disk, clock, &checkpoint_wanted, replay)?;
                Self::start(shared, checkpoint_wanted, Box::new(opened.0), Some((opened.1, opened.2)))
            }
        }
    }

    fn start(
        shared: Arc<Shared>,
        checkpoint_wanted: Arc<Notify>,
        wal: Box<dyn Wal>,
        local: Option<(Local, Box<dyn Lock>)>,
    ) -> Result<Self, StorageError> {
        let writer = Arc::clone(&shared);
        let writer = shared
            .threads
            .spawn("wal-writer", Box::new(move || writer.write(wal)))
            .map_err(StorageError::io("start a thread for", &shared.config.dir))?;
        let (local, lock) = local.unzip();
        let (writer, lock) = (Mutex::new(Some(writer)), Mutex::new(lock));
        Ok(Self { handle: Arc::new(Handle { shared, local, writer, checkpoint_wanted, lock }) })
    }

    /// Queues a frame; it is durable when `durable` says so. Never blocks.
    ///
    /// # Errors
    /// If the log has failed or was closed, if the frame is longer than a WAL file or too much is queued (nothing was
    /// queued then).
    ///
    /// # Panics
    /// If the frame does not follow the one before: whoever numbers frames hands them over in that order.
    pub fn append(&self, frame: Arc<StoredFrame>) -> Result<(), StorageError> {
        let shared = &self.handle.shared;
        let bytes = entry_bytes(frame.bytes.len());
        let mut queue = shared.lock();
        queue.room(bytes, &shared.config)?;
        assert_eq!(frame.header.first_lsn, queue.next_lsn, "frames are appended in LSN order, without gap");
        queue.next_lsn = frame.next_lsn();
        queue.bytes += bytes;
        queue.frames.push_back(frame);
        drop(queue);
        shared.changed.notify_all();
        Ok(())
    }

    /// Whether a frame of so many bytes would be taken now. Stays true until the next `append`, unless the log fails.
    ///
    /// # Errors
    /// As `append`.
    pub fn room(&self, frame_bytes: usize) -> Result<(), StorageError> {
        let shared = &self.handle.shared;
        shared.lock().room(entry_bytes(frame_bytes), &shared.config)
    }

    /// Tells how far the log is durable.
    pub fn durable(&self) -> watch::Receiver<Durable> {
        self.handle.shared.durable.subscribe()
    }

    /// It takes nothing more: it was closed, or has failed.
    pub fn is_over(&self) -> bool {
        let queue = self.handle.shared.lock();
        queue.closing || queue.failed.is_some()
    }

    /// Bytes that wait for the disk.
    pub fn queued_bytes(&self) -> usize {
        self.handle.shared.lock().bytes
    }

    /// LSN of the next frame, queued ones counted.
    pub fn next_lsn(&self) -> u64 {
        self.handle.shared.lock().next_lsn
    }

    /// Durable frames from an LSN on, out of memory. `None` if they fell out; nothing, with the same LSN, at the end.
    pub fn tail(&self, from_lsn: u64, bytes_max: usize) -> Option<Run> {
        let shared = &self.handle.shared;
        let end = shared.durable.borrow().next_lsn;
        shared.ring.read(from_lsn, end, bytes_max)
    }

    /// Durable frames from an LSN on that touch a wanted topic, out of WAL files or segments. Blocking. Stops at the
    /// bytes asked for, or at the end of a file: `next_lsn` tells how far it looked, at least one frame unless the end of
    /// the log is reached.
    ///
    /// # Errors
    /// If the disk fails, what it holds is damaged, or the LSN is no longer kept.
    pub fn read(&self, from_lsn: u64, bytes_max: usize, wanted: &dyn Fn(u64) -> bool) -> Result<Run, StorageError> {
        self.read_any(from_lsn, bytes_max, Some(wanted))
    }

    /// Records of a key from an LSN on, out of segments, up to some bytes. Blocking. `None` where no segment holds the LSN:
    /// there `read` gives the topic's frames, and the WAL bounds how many.
    ///
    /// # Errors
    /// As `read`.
    pub fn read_key(
        &self,
        from_lsn: u64,
        bytes_max: usize,
        key: StoredKey<'_>,
    ) -> Result<Option<KeyRun>, StorageError> {
        let Some(local) = &self.handle.local else { return Ok(None) };
        let end = self.handle.shared.durable.borrow().next_lsn;
        let found = local.store.read_key(from_lsn, bytes_max, key)?;
        Ok(found.map(|run| run.before(end)))
    }

    /// The durable frame that holds an LSN. Blocking unless it is in the tail.
    ///
    /// # Errors
    /// As `read`.
    pub fn frame(&self, lsn: u64) -> Result<Arc<StoredFrame>, StorageError> {
        let run = match self.tail(lsn, 1) {
            Some(run) => run,
            None => self.read_any(lsn, 1, None)?,
        };
        let gone = || StorageError::Gone { lsn, first: self.first_lsn() };
        run.frames.into_iter().next().ok_or_else(gone)
    }

    fn read_any(&self, from_lsn: u64, bytes_max: usize, wanted: Wanted<'_>) -> Result<Run, StorageError> {
        let shared = &self.handle.shared;
        let end = shared.durable.borrow().next_lsn;
        if from_lsn >= end {
            return Ok(Run { frames: Vec::new(), next_lsn: from_lsn });
        }
        let Some(local) = &self.handle.local else {
            let gone = || StorageError::Gone { lsn: from_lsn, first: shared.ring.first_lsn() };
            return shared.ring.read(from_lsn, end, bytes_max).ok_or_else(gone);
        };
        // A file is listed as a segment before it leaves the WAL, so what is not in the one is in the other.
        if let Some(file) = local.files.holding(from_lsn) {
            shared.threads.pause("found a WAL file to read");
            return Ok(file.read(from_lsn, bytes_max, wanted)?.before(end));
        }
        shared.threads.pause("found no WAL file");
        let gone = || StorageError::Gone { lsn: from_lsn, first: self.first_lsn() };
        Ok(local.store.read(from_lsn, bytes_max, wanted)?.ok_or_else(gone)?.before(end))
    }

    /// LSN up to which segments hold everything that is kept.
    pub fn consolidated(&self) -> u64 {
        self.handle.local.as_ref().map_or(0, |local| local.store.consolidated())
    }

    /// First LSN that can be read.
    pub fn first_lsn(&self) -> u64 {
        match &self.handle.local {
            None => self.handle.shared.ring.first_lsn(),
            Some(local) => local.store.first_lsn().or_else(|| local.files.first_lsn()).unwrap_or_default(),
        }
    }

    /// Wakes when a checkpoint would shorten the next start: files left the WAL since the last one.
    pub fn checkpoint_wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.handle.checkpoint_wanted)
    }

    /// Stores the caller's state at an LSN: the next replay starts there. Blocking. Older than the last one: nothing.
    ///
    /// # Errors
    /// If the store fails; the checkpoint before counts then.
    ///
    /// # Panics
    /// If the LSN is not durable: the state would know of records that a crash may take back.
    pub fn checkpoint(&self, lsn: u64, state: Bytes) -> Result<(), StorageError> {
        let durable = self.handle.shared.durable.borrow().next_lsn;
        assert!(lsn <= durable, "a checkpoint of LSN {lsn} must not be ahead of what is durable, {durable}");
        match &self.handle.local {
            Some(local) => local.store.put_checkpoint(lsn, state),
            None => Ok(()),
        }
    }

    /// What the log's threads are.
    pub(crate) fn threads(&self) -> &SharedThreads {
        &self.handle.shared.threads
    }

    /// What belongs to a copy of the log now, and the pin that keeps it. Blocking, as is dropping the pin.
    ///
    /// # Errors
    /// [`StorageError::NothingDurable`] of a log in memory, [`StorageError::PinsFull`].
    pub fn pin(&self) -> Result<(Cut, Pin), StorageError> {
        let local = self.handle.local.as_ref().ok_or(StorageError::NothingDurable)?;
        local.store.pin(&local.files, || self.handle.shared.durable.borrow().next_lsn)
    }

    /// Bytes of frames held in memory for readers, and WAL files in use.
    pub fn usage(&self) -> (usize, usize) {
        let files = self.handle.local.as_ref().map_or(0, |local| local.files.len());
        (self.handle.shared.ring.bytes(), files)
    }

    /// Makes all that is queued durable, then ends all threads and gives the directory free. Blocking. Appends are
    /// refused from now on; reads still work.
    pub fn close(&self) {
        self.handle.close();
    }
}

impl Handle {
    fn close(&self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("the WAL writer has panicked");
        }
        if let Some(local) = &self.local {
            local.consolidation.close();
            local.spares.close();
        }
        // Who waits for more waits in vain.
        self.shared.durable.send_modify(|durable| {
            durable.failed.get_or_insert_with(|| Arc::new(StorageError::Closed));
        });
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

impl Queue {
    fn room(&self, entry: usize, config: &Config) -> Result<(), StorageError> {
        if let Some(failed) = &self.failed {
            return Err(StorageError::Failed(Arc::clone(failed)));
        }
        if self.closing {
            return Err(StorageError::Closed);
        }
        let max = config.wal_file_bytes - HEADER_BYTES as u64;
        if entry as u64 > max {
            return Err(StorageError::TooLarge { bytes: entry as u64, max });
        }
        // One frame always finds room, however small the bound.
        if self.bytes > 0 && self.bytes + entry > config.queue_bytes_max {
            return Err(StorageError::Overloaded { queued: self.bytes, max: config.queue_bytes_max });
        }
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer thread: what queues up while one group is synced is the next group.
    fn write(&self, mut wal: Box<dyn Wal>) {
        while let Some((group, bytes)) = self.next_group() {
            #[cfg(mutants)]
            if crate::mutants::is("ack-before-durable") {
                self.ring.publish(group.clone());
                self.durable.send_modify(|durable| durable.next_lsn = group.last().map_or(0, |frame| frame.next_lsn()));
            }
            let committed = wal.commit(&group);
            if let Err(error) = committed {
                self.fail(error);
                return;
            }
            let next_lsn = group.last().map_or(0, |frame| frame.next_lsn());
            // The ring first: who is woken by `durable` finds the frames there.
            self.ring.publish(group);
            self.lock().bytes -= bytes;
            self.threads.pause("published, not told");
            self.durable.send_modify(|durable| durable.next_lsn = next_lsn);
        }
    }

    /// Waits for frames. `None` when the log is closed and drained.
    fn next_group(&self) -> Option<(Vec<Arc<StoredFrame>>, usize)> {
        let mut queue = self.lock();
        while queue.frames.is_empty() {
            if queue.closing {
                return None;
            }
            queue = self.changed.wait(&self.queue, queue);
        }
        let mut group = Vec::new();
        let mut bytes = 0;
        while let Some(frame) = queue.frames.front() {
            let entry = entry_bytes(frame.bytes.len());
            if !group.is_empty() && bytes + entry > self.config.group_bytes_max {
                break;
            }
            bytes += entry;
            group.extend(queue.frames.pop_front());
        }
        Some((group, bytes))
    }

    /// Nothing is acked and nothing is taken from now on.
    fn fail(&self, error: StorageError) {
        tracing::error!(%error, "the log has failed; the shard takes no more records until a restart");
        let error = Arc::new(error);
        let mut queue = self.lock();
        queue.failed = Some(Arc::clone(&error));
        queue.frames.clear();
        queue.bytes = 0;
        drop(queue);
        self.durable.send_modify(|durable| durable.failed = Some(error));
    }
}
