//! Reads the WAL back after a start: which frames it holds, where it goes on, and whether what ends it is a torn tail or
//! damage.
//!
//! A frame counts if its entry is whole: magic, generation of the file, the next LSN, three CRCs. The first entry that is
//! not whole ends its file. What stands behind it decides (ADR 4):
//!
//! * a later file that goes on with exactly the next LSN: the file was full there, nothing is wrong;
//! * any trace of a *later group* in the same file, or a later file that goes on elsewhere: a group is written only after
//!   the one before was synced, so the bad entry was durable once. That is damage; the broker refuses to start;
//! * else it is the torn tail of a group that was never acked: its remains are wiped, and the log goes on there. Entries
//!   of that same group may be whole behind a torn one, because a disk may write its pages in any order.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use tidegate_protocol::stored::StoredFrame;

use super::{
    entry::{ALIGN, ENTRY_BYTES, ENTRY_MAGIC, EntryHeader, FileHeader, HEADER_BYTES, HeaderRead, entry_bytes},
    files::WalFile,
    local::Resume,
    spare::{Spare, slot_of},
};
use crate::storage::{
    StorageError,
    disk::{Disk, DiskFile},
    index::FrameIndex,
};

/// What the directory is and what is known from elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    /// `DIR/wal`.
    pub(crate) dir: &'a Path,
    pub(crate) shard: u16,
    /// Length of new files: spares of another length are not used.
    pub(crate) file_bytes: u64,
    /// All LSNs before this lie in segments.
    pub(crate) consolidated: u64,
    /// Frames from here on are replayed.
    pub(crate) replay_from: u64,
}

/// A WAL read back.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Files in use, oldest first.
    pub(crate) files: Vec<Arc<WalFile>>,
    /// Files out of use.
    pub(crate) spares: Vec<Spare>,
    /// Highest slot plus one.
    pub(crate) next_slot: u64,
    pub(crate) resume: Resume,
}

/// A file before its entries are read.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    header: FileHeader,
}

/// Reads the WAL of a directory and calls `replay` for every frame from `replay_from` on.
///
/// # Errors
/// If a file cannot be read, or holds damage.
pub(crate) fn recover(
    disk: &dyn Disk,
    scope: Scope<'_>,
    replay: &mut dyn FnMut(Arc<StoredFrame>),
) -> Result<Recovered, StorageError> {
    // Names that a crash left in the page cache only must be durable before anything is told from them.
    disk.sync_dir(scope.dir).map_err(StorageError::io("sync", scope.dir))?;
    let mut listed = list(disk, &scope)?;
    let (found, spares) = split(disk, &mut listed, &scope)?;
    let mut recovered = Recovered {
        files: Vec::new(),
        spares,
        next_slot: listed.next_slot,
        resume: Resume { active: None, generation: listed.generation, next_lsn: scope.consolidated },
    };
    let Some(first) = found.first() else {
        if scope.consolidated == 0 {
            return Ok(recovered);
        }
        let what = format!("no WAL file is there, but segments reach to LSN {}", scope.consolidated);
        return Err(StorageError::Corrupt { file: scope.dir.to_path_buf(), position: 0, what });
    };
    if first.header.first_lsn > scope.consolidated {
        let what = format!(
            "the WAL starts at LSN {}, but segments end at {}: a file is missing before it",
            first.header.first_lsn, scope.consolidated
        );
        return Err(StorageError::Corrupt { file: first.path.clone(), position: 0, what });
    }
    let starts: Vec<u64> = found.iter().map(|file| file.header.first_lsn).collect();
    for (at, file) in found.into_iter().enumerate() {
        let (file, position) = Scan::new(file).finish(starts.get(at + 1).copied(), scope.replay_from, replay)?;
        recovered.resume.next_lsn = file.next_lsn();
        recovered.resume.active = Some((Arc::clone(&file), position));
        recovered.files.push(file);
    }
    Ok(recovered)
}

#[derive(Debug, Default)]
struct Listed {
    in_use: Vec<Found>,
    spares: Vec<Spare>,
    next_slot: u64,
    generation: u64,
}

/// Opens every file and reads its header.
fn list(disk: &dyn Disk, scope: &Scope<'_>) -> Result<Listed, StorageError> {
    let mut listed = Listed::default();
    let mut names = disk.list(scope.dir).map_err(StorageError::io("list", scope.dir))?;
    names.sort_unstable();
    for name in names {
        let Some(slot) = slot_of(&name) else { continue };
        listed.next_slot = listed.next_slot.max(slot + 1);
        let path = scope.dir.join(&name);
        let file = disk.open(&path).map_err(StorageError::io("open", &path))?;
        let bytes = file.length().map_err(StorageError::io("read", &path))?;
        let mut head = vec![0; (HEADER_BYTES + ENTRY_BYTES).min(usize::try_from(bytes).unwrap_or(usize::MAX))];
        file.read_at(&mut head, 0).map_err(StorageError::io("read", &path))?;
        let corrupt = |what: String| StorageError::Corrupt { file: path.clone(), position: 0, what };
        match FileHeader::decode(&head) {
            HeaderRead::Known(header) if header.shard != scope.shard => {
                let found = header.shard;
                return Err(corrupt(format!("the file is of shard {found}, this is shard {}", scope.shard)));
            }
            HeaderRead::Known(header) => {
                listed.generation = listed.generation.max(header.generation);
                listed.in_use.push(Found { path, file, bytes, header });
            }
            HeaderRead::Version(version) => {
                return Err(corrupt(format!("WAL file version {version} is not read by this build; it reads 1")));
            }
            HeaderRead::Blank => {
                // A header is durable before the first entry is written: an entry that is still needed is proof of it.
                if let Some(entry) = head.get(HEADER_BYTES..).and_then(EntryHeader::decode)
                    && entry.first_lsn >= scope.consolidated
                {
                    return Err(corrupt("the header of the file is damaged, entries stand behind it".to_owned()));
                }
                spare_or_remove(disk, scope, path, file, bytes, &mut listed.spares)?;
            }
        }
    }
    listed.in_use.sort_unstable_by_key(|file| file.header.generation);
    Ok(listed)
}

/// Splits files whose every frame lies in a segment from those still needed.
fn split(disk: &dyn Disk, listed: &mut Listed, scope: &Scope<'_>) -> Result<(Vec<Found>, Vec<Spare>), StorageError> {
    let mut spares = std::mem::take(&mut listed.spares);
    let mut needed = Vec::new();
    let mut files = std::mem::take(&mut listed.in_use).into_iter().peekable();
    while let Some(found) = files.next() {
        let next_first = files.peek().map(|next| next.header.first_lsn);
        if next_first.is_some_and(|lsn| lsn <= scope.consolidated) {
            spare_or_remove(disk, scope, found.path, found.file, found.bytes, &mut spares)?;
        } else {
            needed.push(found);
        }
    }
    Ok((needed, spares))
}

/// Keeps a file without content for use, if it is whole.
fn spare_or_remove(
    disk: &dyn Disk,
    scope: &Scope<'_>,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    spares: &mut Vec<Spare>,
) -> Result<(), StorageError> {
    if bytes == scope.file_bytes {
        spares.push(Spare { path, file });
        return Ok(());
    }
    disk.remove(&path).map_err(StorageError::io("remove", &path))
}

/// One file while it is read.
#[derive(Debug)]
struct Scan {
    found: Found,
    window: Window,
    /// Where the next entry would stand.
    position: usize,
    /// LSN it would have.
    next_lsn: u64,
    /// Where the group of the last whole entry began.
    group_position: usize,
    index: FrameIndex,
}

/// Why an entry does not count.
type Bad = &'static str;

impl Scan {
    fn new(found: Found) -> Self {
        let first_lsn = found.header.first_lsn;
        let (position, group_position) = (HEADER_BYTES, HEADER_BYTES);
        let (window, index) = (Window::default(), FrameIndex::new(first_lsn));
        Self { found, window, position, next_lsn: first_lsn, group_position, index }
    }

    /// Bytes of the file; `None` if it ends before.
    fn bytes(&mut self, at: usize, length: usize) -> Result<Option<&[u8]>, StorageError> {
        self.window.bytes(&self.found, at, length)
    }

    /// Replays all whole entries and judges what ends them.
    fn finish(
        mut self,
        next_file_lsn: Option<u64>,
        replay_from: u64,
        replay: &mut dyn FnMut(Arc<StoredFrame>),
    ) -> Result<(Arc<WalFile>, u64), StorageError> {
        let bad = loop {
            match self.entry()? {
                Ok((frame, group_position)) => {
                    self.index.push(&frame, (self.position + ENTRY_BYTES) as u64);
                    self.position += entry_bytes(frame.bytes.len());
                    self.next_lsn = frame.next_lsn();
                    self.group_position = group_position;
                    if frame.header.first_lsn >= replay_from {
                        replay(Arc::new(frame));
                    }
                }
                Err(bad) => break bad,
            }
        };
        match next_file_lsn {
            Some(lsn) if lsn == self.next_lsn => {}
            Some(lsn) => {
                return Err(
                    self.corrupt(format!("{bad}, and the next file goes on at LSN {lsn}, not {}", self.next_lsn))
                );
            }
            None => self.end_of_log(bad)?,
        }
        let Found { path, file, bytes, header } = self.found;
        Ok((Arc::new(WalFile::new(path, header, bytes, file, self.index)), self.position as u64))
    }

    fn corrupt(&self, what: String) -> StorageError {
        StorageError::Corrupt { file: self.found.path.clone(), position: self.position as u64, what }
    }

    /// The entry at `position`, and where its group began.
    fn entry(&mut self) -> Result<Result<(StoredFrame, usize), Bad>, StorageError> {
        let header = self.bytes(self.position, ENTRY_BYTES)?.and_then(EntryHeader::decode);
        let Some(header) = header else { return Ok(Err("no entry stands here")) };
        if header.generation != self.found.header.generation {
            return Ok(Err("an entry of an earlier use of the file stands here"));
        }
        if header.first_lsn != self.next_lsn {
            let (found, wanted) = (header.first_lsn, self.next_lsn);
            return Err(self.corrupt(format!("an entry of LSN {found} stands where LSN {wanted} must")));
        }
        let Some(frame) = self.bytes(self.position + ENTRY_BYTES, header.frame_bytes as usize)? else {
            return Ok(Err("the entry ends behind the file"));
        };
        let Ok(frame) = StoredFrame::parse(Bytes::copy_from_slice(frame)) else {
            return Ok(Err("the frame of the entry is damaged"));
        };
        if frame.header.first_lsn != header.first_lsn {
            return Ok(Err("the frame and its entry name different LSNs"));
        }
        let group_position = usize::try_from(header.group_position).unwrap_or(usize::MAX);
        if group_position < HEADER_BYTES || group_position > self.position {
            return Ok(Err("the entry names a group that begins behind it"));
        }
        Ok(Ok((frame, group_position)))
    }

    /// Tells a torn tail from damage, wipes the one, refuses the other, and makes all that counts durable.
    fn end_of_log(&mut self, bad: Bad) -> Result<(), StorageError> {
        let mut wipe_to = self.position;
        let mut at = self.position;
        while let Some(entry) = self.bytes(at, ENTRY_BYTES)? {
            if entry.starts_with(&ENTRY_MAGIC)
                && let Some(header) = EntryHeader::decode(entry)
                && header.generation == self.found.header.generation
            {
                if header.group_position > self.position as u64 {
                    return Err(self.corrupt(format!("{bad}, but a later group was written at byte {at}")));
                }
                wipe_to = at + ENTRY_BYTES;
            }
            at += ALIGN;
        }
        // A sync that failed before the crash may have left the last group in the page cache only, marked as written.
        // Writing it again makes the sync below mean something.
        self.write_again(0, HEADER_BYTES)?;
        self.write_again(self.group_position, self.position)?;
        let Found { file, path, .. } = &self.found;
        if wipe_to > self.position {
            tracing::info!(
                path = %path.display(), position = self.position, lsn = self.next_lsn,
                "wiped what a crash left of the last write: it was never acked, unless its file was damaged since"
            );
            let zeros = vec![0; WINDOW_BYTES.min(wipe_to - self.position)];
            for from in (self.position..wipe_to).step_by(WINDOW_BYTES) {
                let part = &zeros[..zeros.len().min(wipe_to - from)];
                file.write_at(part, from as u64).map_err(StorageError::io("write", path))?;
            }
        }
        file.sync_data().map_err(StorageError::io("sync", path))
    }

    /// Writes bytes of the file over themselves.
    fn write_again(&mut self, from: usize, to: usize) -> Result<(), StorageError> {
        for at in (from..to).step_by(WINDOW_BYTES) {
            let Some(part) = self.window.bytes(&self.found, at, WINDOW_BYTES.min(to - at))? else { break };
            let Found { file, path, .. } = &self.found;
            file.write_at(part, at as u64).map_err(StorageError::io("write", path))?;
        }
        Ok(())
    }
}

/// Part of a file in memory: reading a whole one would leave its size with the allocator.
#[derive(Debug, Default)]
struct Window {
    bytes: Vec<u8>,
    at: usize,
}

impl Window {
    fn bytes(&mut self, found: &Found, at: usize, length: usize) -> Result<Option<&[u8]>, StorageError> {
        let end = usize::try_from(found.bytes).unwrap_or(usize::MAX);
        if at.checked_add(length).is_none_or(|behind| behind > end) {
            return Ok(None);
        }
        let inside = at.checked_sub(self.at).is_some_and(|from| from + length <= self.bytes.len());
        if !inside {
            // A large frame must not leave a large window.
            self.bytes = vec![0; length.max(WINDOW_BYTES).min(end - at)];
            self.at = at;
            found.file.read_at(&mut self.bytes, at as u64).map_err(StorageError::io("read", &found.path))?;
        }
        Ok(self.bytes.get(at - self.at..at - self.at + length))
    }
}

/// Bytes read at once.
const WINDOW_BYTES: usize = 256 << 10;
