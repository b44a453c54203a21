//! What can go wrong between the log and its disk. Cloned to everybody who waits for the same write.

use std::{io, path::PathBuf, sync::Arc};

/// An error of the storage engine; says which file, which operation, and what stood there.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StorageError {
    /// An operation on a file or directory failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// `open`, `write`, `sync`, …
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// An operation on the object store failed.
    #[error("cannot {operation} object {object}: {source}")]
    Object {
        /// `put`, `get`, `list`.
        operation: &'static str,
        /// Path below the store's root.
        object: String,
        /// The store's answer.
        source: Arc<object_store::Error>,
    },
    /// The disk is full.
    #[error("cannot {operation} {}: the disk is full", path.display())]
    Full {
        /// As in `Io`.
        operation: &'static str,
        /// As in `Io`.
        path: PathBuf,
    },
    /// An earlier write or sync failed: the log takes nothing more until the broker is restarted.
    #[error("the log has stopped: {0}")]
    Failed(Arc<Self>),
    /// A file holds what was never written there, or no longer holds what was.
    #[error("{} is corrupt at byte {position}: {what}", file.display())]
    Corrupt {
        /// The file or object.
        file: PathBuf,
        /// Where in it.
        position: u64,
        /// What is wrong there.
        what: String,
    },
    /// Another process holds the data directory.
    #[error("data directory {} is in use by another broker: stop it, or give another directory", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The data directory is of a format this build does not read.
    #[error("data directory {} has format {found:?}; this build reads {known:?}: use the build that wrote it", path.display())]
    Format {
        /// The directory.
        path: PathBuf,
        /// Text of its `FORMAT` file, cut to 100 characters.
        found: String,
        /// What this build reads.
        known: &'static str,
    },
    /// A log in memory has nothing that could be copied.
    #[error("the log is kept in memory only: there is nothing to back up")]
    NothingDurable,
    /// As many backups as may hold on to the log do so.
    #[error("{max} backups are under way, more may not be")]
    PinsFull {
        /// The bound.
        max: usize,
    },
    /// A directory is not what it is taken for.
    #[error("{} is no {wanted}: it has no FORMAT file", path.display())]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// `data directory`, `backup`.
        wanted: &'static str,
    },
    /// A setting is out of its range.
    #[error("setting {setting} is {value}; {rule}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// As given.
        value: u64,
        /// What it may be.
        rule: &'static str,
    },
    /// A frame is longer than a WAL file can hold.
    #[error("a frame of {bytes} bytes does not fit a WAL file, which holds at most {max}")]
    TooLarge {
        /// Bytes of the frame.
        bytes: u64,
        /// Most that fit.
        max: u64,
    },
    /// Too much is queued for the disk already.
    #[error("{queued} bytes wait for the disk, at most {max} may")]
    Overloaded {
        /// Bytes queued.
        queued: usize,
        /// The bound.
        max: usize,
    },
    /// The position was forgotten: a log in memory keeps its tail only.
    #[error("LSN {lsn} is no longer kept; the log starts at {first}")]
    Gone {
        /// As asked.
        lsn: u64,
        /// First LSN there.
        first: u64,
    },
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
    /// No blob of that digest is stored.
    #[error("no blob {digest} is stored")]
    BlobUnknown {
        /// As asked.
        digest: String,
    },
    /// Bytes handed to the log are not what they must be.
    #[error("cannot write {what}: {source}")]
    Encode {
        /// `manifest`, …
        what: &'static str,
        /// Why.
        source: Arc<serde_json::Error>,
    },
}

impl StorageError {
    /// Wraps an I/O error with its operation and path; a full disk becomes [`StorageError::Full`].
    pub fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { operation, path },
            _ => Self::Io { operation, path, source: Arc::new(source) },
        }
    }

    /// Wraps an error of the object store; a full disk below a local store becomes [`StorageError::Full`].
    pub fn object(operation: &'static str, object: impl ToString) -> impl FnOnce(object_store::Error) -> Self {
        let object = object.to_string();
        move |source| {
            if full_below(&source) {
                return Self::Full { operation, path: PathBuf::from(object) };
            }
            Self::Object { operation, object, source: Arc::new(source) }
        }
    }

    /// The disk is full, here or in what stopped the log.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Failed(cause) => cause.is_full(),
            _ => false,
        }
    }
}

/// Follows the sources of an error down to an I/O error that tells of a full disk.
fn full_below(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>()
            && matches!(io.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        {
            return true;
        }
        next = error.source();
    }
    false
}
