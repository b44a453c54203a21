//! The WAL on a local disk: one write and one `fdatasync` for everything queued, into files made ready before.

use std::sync::Arc;

use tidegate_protocol::stored::StoredFrame;

use super::{
    Wal,
    entry::{ENTRY_BYTES, EntryHeader, FileHeader, HEADER_BYTES, entry_bytes},
    files::{WalFile, WalFiles},
    spare::Spares,
};
use crate::{
    clock::SharedClock,
    storage::{StorageError, index::FrameIndex},
};

/// The single writer of the WAL. Lives in the writer thread.
#[derive(Debug)]
pub(crate) struct LocalWal {
    shard: u16,
    clock: SharedClock,
    files: Arc<WalFiles>,
    spares: Arc<Spares>,
    /// Told when a file is full.
    on_full: Arc<dyn OnFull>,
    active: Arc<WalFile>,
    /// Where the next group goes.
    position: u64,
    /// Files filled since start: a broker that fills files keeps one more ready.
    filled: usize,
    generation: u64,
    buffer: Vec<u8>,
    written: Vec<(Arc<StoredFrame>, u64)>,
}

/// Who wants to know that a file is full.
pub(crate) trait OnFull: Send + Sync + std::fmt::Debug {
    /// Must not wait.
    fn file_is_full(&self);
}

/// Where a recovered WAL goes on.
#[derive(Debug)]
pub(crate) struct Resume {
    /// The file written to last; `None` in a new directory.
    pub(crate) active: Option<(Arc<WalFile>, u64)>,
    /// Highest generation ever used.
    pub(crate) generation: u64,
    /// LSN of the next frame.
    pub(crate) next_lsn: u64,
}

impl LocalWal {
    /// Goes on behind what was recovered.
    ///
    /// # Errors
    /// If a first file is needed and cannot be made.
    pub(crate) fn open(
        shard: u16,
        clock: SharedClock,
        files: Arc<WalFiles>,
        spares: Arc<Spares>,
        on_full: Arc<dyn OnFull>,
        resume: Resume,
    ) -> Result<Self, StorageError> {
        let mut generation = resume.generation;
        let (active, position) = match resume.active {
            Some(active) => active,
            None => {
                generation = next_generation(generation, &clock);
                let active = start_file(&spares, shard, generation, resume.next_lsn)?;
                files.push(Arc::clone(&active));
                (active, HEADER_BYTES as u64)
            }
        };
        let (buffer, written) = Default::default();
        Ok(Self { shard, clock, files, spares, on_full, active, position, filled: 0, generation, buffer, written })
    }

    fn encode(&mut self, frame: &Arc<StoredFrame>) {
        let start = self.buffer.len();
        let place = self.position + start as u64;
        EntryHeader {
            frame_bytes: u32::try_from(frame.bytes.len()).expect("the log takes no frame longer than a file"),
            generation: self.active.header.generation,
            first_lsn: frame.header.first_lsn,
            group_position: self.position,
        }
        .encode(&mut self.buffer);
        self.buffer.extend_from_slice(&frame.bytes);
        self.buffer.resize(start + entry_bytes(frame.bytes.len()), 0);
        self.written.push((Arc::clone(frame), place + ENTRY_BYTES as u64));
    }

    /// Writes and syncs what is encoded.
    fn flush(&mut self) -> Result<(), StorageError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let active = &self.active;
        active.file.write_at(&self.buffer, self.position).map_err(StorageError::io("write", &active.path))?;
        active.file.sync_data().map_err(StorageError::io("sync", &active.path))?;
        for (frame, place) in self.written.drain(..) {
            active.push(&frame, place);
        }
        self.position += self.buffer.len() as u64;
        self.buffer.clear();
        if self.position > active.bytes / 4 {
            self.spares.want(1 + self.filled.min(1));
        }
        Ok(())
    }

    /// Goes on in the next file. Everything before is durable, and so is the new header before an entry follows it: an
    /// entry in a file without a header is damage, never a torn write.
    fn switch(&mut self, first_lsn: u64) -> Result<(), StorageError> {
        self.generation = next_generation(self.generation, &self.clock);
        self.active = start_file(&self.spares, self.shard, self.generation, first_lsn)?;
        self.position = HEADER_BYTES as u64;
        self.filled += 1;
        self.files.push(Arc::clone(&self.active));
        self.on_full.file_is_full();
        Ok(())
    }
}

impl Wal for LocalWal {
    fn commit(&mut self, group: &[Arc<StoredFrame>]) -> Result<(), StorageError> {
        for frame in group {
            let end = self.position + (self.buffer.len() + entry_bytes(frame.bytes.len())) as u64;
            if end > self.active.bytes {
                self.flush()?;
                self.switch(frame.header.first_lsn)?;
            }
            self.encode(frame);
        }
        self.flush()
    }
}

fn start_file(spares: &Spares, shard: u16, generation: u64, first_lsn: u64) -> Result<Arc<WalFile>, StorageError> {
    let spare = spares.take()?;
    let header = FileHeader { shard, generation, first_lsn };
    let bytes = spare.file.length().map_err(StorageError::io("read", &spare.path))?;
    spare.file.write_at(&header.encode(), 0).map_err(StorageError::io("write", &spare.path))?;
    spare.file.sync_data().map_err(StorageError::io("sync", &spare.path))?;
    Ok(Arc::new(WalFile::new(spare.path, header, bytes, spare.file, FrameIndex::new(first_lsn))))
}

/// Counts up the high half; the low half is salt that nobody outside can foresee (see `entry`).
fn next_generation(last: u64, clock: &SharedClock) -> u64 {
    let noise = clock.unix().as_nanos() ^ (clock.monotonic().as_nanos() << 20);
    let digest = blake3::hash(&noise.to_le_bytes());
    let salt = u32::from_le_bytes(digest.as_bytes().first_chunk().copied().unwrap_or_default());
    (((last >> 32) + 1) << 32) | u64::from(salt)
}
