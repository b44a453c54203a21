//! The WAL's files as all its threads share them: which hold frames, and where in them.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use bytes::Bytes;
use tidegate_protocol::stored::StoredFrame;

use super::entry::FileHeader;
use crate::storage::{
    Run, StorageError,
    disk::DiskFile,
    index::{FrameIndex, Plan, Wanted},
};

/// A WAL file in use.
#[derive(Debug)]
pub(crate) struct WalFile {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// Its first page.
    pub(crate) header: FileHeader,
    /// Its length; a file never grows.
    pub(crate) bytes: u64,
    pub(crate) file: Arc<dyn DiskFile>,
    index: RwLock<FrameIndex>,
}

impl WalFile {
    pub(crate) fn new(
        path: PathBuf,
        header: FileHeader,
        bytes: u64,
        file: Arc<dyn DiskFile>,
        index: FrameIndex,
    ) -> Self {
        Self { path, header, bytes, file, index: RwLock::new(index) }
    }

    /// Makes a frame that is durable at a place of the file known to readers.
    pub(crate) fn push(&self, frame: &StoredFrame, position: u64) {
        self.index.write().unwrap_or_else(PoisonError::into_inner).push(frame, position);
    }

    /// LSN behind the file's last durable frame.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.index.read().unwrap_or_else(PoisonError::into_inner).next_lsn()
    }

    /// Reads frames that touch a wanted topic.
    pub(crate) fn read(&self, from_lsn: u64, bytes_max: usize, wanted: Wanted<'_>) -> Result<Run, StorageError> {
        let plan = self.index.read().unwrap_or_else(PoisonError::into_inner).plan(from_lsn, bytes_max, wanted);
        read_planned(&plan, &self.path, |position, length| {
            let mut buffer = vec![0; length as usize];
            self.file.read_at(&mut buffer, u64::from(position)).map_err(StorageError::io("read", &self.path))?;
            Ok(Bytes::from(buffer))
        })
    }
}

impl WalFile {
    /// The first LSN whose frame was taken at a time or later. `None`: all frames are older, or there is none. Reads about
    /// as many frames as their number has bits.
    pub(crate) fn lsn_at_time(&self, time_ms: i64) -> Result<Option<u64>, StorageError> {
        let frames = || self.index.read().unwrap_or_else(PoisonError::into_inner);
        let is_older = |number: usize| -> Result<bool, StorageError> {
            let run = self.read(frames().lsn_at(number), 1, None)?;
            Ok(run.frames.first().is_some_and(|frame| frame.header.broker_time_ms < time_ms))
        };
        let count = frames().len();
        // Most files are older or newer as a whole.
        if count == 0 || is_older(count - 1)? {
            return Ok(None);
        }
        let (mut older, mut newer) = (0, count - 1);
        while older < newer {
            let middle = older + (newer - older) / 2;
            if is_older(middle)? { older = middle + 1 } else { newer = middle }
        }
        Ok(Some(frames().lsn_at(newer)))
    }
}

/// Reads what was planned and checks every frame of it.
fn read_planned(
    plan: &Plan,
    path: &std::path::Path,
    mut read: impl FnMut(u32, u32) -> Result<Bytes, StorageError>,
) -> Result<Run, StorageError> {
    let mut run = Run { frames: Vec::new(), next_lsn: plan.next_lsn };
    for part in &plan.reads {
        let bytes = read(part.position, part.bytes)?;
        for &(at, length, lsn) in &part.frames {
            let corrupt = |what: String| StorageError::Corrupt {
                file: path.to_path_buf(),
                position: u64::from(part.position) + u64::from(at),
                what,
            };
            let end = at as usize + length as usize;
            if end > bytes.len() {
                return Err(corrupt("the file ends inside a frame".to_owned()));
            }
            let frame =
                StoredFrame::parse(bytes.slice(at as usize..end)).map_err(|error| corrupt(error.to_string()))?;
            if frame.header.first_lsn != lsn {
                let found = frame.header.first_lsn;
                return Err(corrupt(format!("a frame of LSN {found} stands where {lsn} was written")));
            }
            run.frames.push(Arc::new(frame));
        }
    }
    Ok(run)
}

/// All WAL files in use, oldest first; the last one is written to.
#[derive(Debug, Default)]
pub(crate) struct WalFiles {
    files: Mutex<VecDeque<Arc<WalFile>>>,
}

impl WalFiles {
    pub(crate) fn new(files: Vec<Arc<WalFile>>) -> Self {
        Self { files: Mutex::new(files.into()) }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<WalFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file that is written to from now on.
    pub(crate) fn push(&self, file: Arc<WalFile>) {
        self.lock().push_back(file);
    }

    /// First LSN that the WAL holds.
    pub(crate) fn first_lsn(&self) -> Option<u64> {
        self.lock().front().map(|file| file.header.first_lsn)
    }

    /// The file that holds an LSN.
    pub(crate) fn holding(&self, lsn: u64) -> Option<Arc<WalFile>> {
        let files = self.lock();
        let at = files.partition_point(|file| file.header.first_lsn <= lsn).checked_sub(1)?;
        files.get(at).cloned()
    }

    /// All files, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<WalFile>> {
        self.lock().iter().cloned().collect()
    }

    /// The oldest file if more than `max` are full.
    pub(crate) fn oldest_over(&self, max: usize) -> Option<Arc<WalFile>> {
        let files = self.lock();
        if files.len() > max + 1 { files.front().cloned() } else { None }
    }

    /// Takes the oldest file out of use.
    pub(crate) fn retire_oldest(&self) -> Option<Arc<WalFile>> {
        let mut files = self.lock();
        // The file that is written to stays whatever happens.
        if files.len() > 1 { files.pop_front() } else { None }
    }

    /// Files in use.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }
}
