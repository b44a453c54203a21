//! The directory of a backup: contents by their hash in `data/`, and `BACKUP`, which says what counts. A file has its name
//! only once it is synced and was read back, so that what a crash leaves is whole or called `.new`.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::book::{BACKUP_FORMAT, BackupError, Book, is_hash};
use crate::storage::{
    Disk, DiskFile, StorageError,
    directory::{format_of, write_new},
    disk::{Lock, read_whole},
    segment::{FOOTER_BYTES, Ranges},
};

/// Bytes of a `BACKUP` file: some 200 for a segment of 64 MiB.
const BOOK_BYTES_MAX: u64 = 256 << 20;
/// Read back at once.
const READ_BYTES: usize = 1 << 20;

/// A backup's directory, ours until it is dropped.
pub(super) struct Vault<'a> {
    disk: &'a dyn Disk,
    dir: PathBuf,
    data: PathBuf,
    written: u64,
    _lock: Option<Box<dyn Lock>>,
}

/// A content while it is written.
pub(super) struct Sink<'a> {
    disk: &'a dyn Disk,
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    bytes: u64,
    hasher: blake3::Hasher,
}

impl<'a> Vault<'a> {
    /// Takes a directory for backups: one of ours, an empty one, or a new one.
    ///
    /// # Errors
    /// If it is anything else, in use, or as the disk says.
    pub(super) fn open(disk: &'a dyn Disk, dir: &Path) -> Result<Self, BackupError> {
        let there = check_dest(disk, dir)?;
        let data = dir.join("data");
        disk.create_private_dir(dir).map_err(StorageError::io("create", dir))?;
        let path = dir.join("LOCK");
        let lock = disk.lock(&path).map_err(StorageError::io("lock", &path))?;
        let lock = Some(lock.ok_or_else(|| BackupError::InUse { path: dir.to_path_buf() })?);
        if !there {
            // Somebody may have made one between the look and the lock.
            check_dest(disk, dir)?;
            write_new(disk, dir, "FORMAT", format!("{BACKUP_FORMAT}\n").as_bytes())?;
        }
        disk.create_private_dir(&data).map_err(StorageError::io("create", &data))?;
        sync(disk, dir)?;
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        sync(disk, parent)?;
        let vault = Self { disk, dir: dir.to_path_buf(), data, written: 0, _lock: lock };
        for name in vault.names()?.iter().filter(|name| !is_hash(name)) {
            // What a backup left that did not end.
            if name.ends_with(".new") {
                vault.remove(name)?;
            }
        }
        Ok(vault)
    }

    /// Takes a directory to read from.
    ///
    /// # Errors
    /// If it is no backup, in use, or as the disk says.
    pub(super) fn open_to_read(disk: &'a dyn Disk, dir: &Path) -> Result<Self, BackupError> {
        match format_of(disk, dir)? {
            None => return Err(StorageError::NotOurs { path: dir.to_path_buf(), wanted: "backup" }.into()),
            Some(found) if found != BACKUP_FORMAT => return Err(other_format(dir, found).into()),
            Some(_) => {}
        }
        let path = dir.join("LOCK");
        let lock = match disk.lock_to_read(&path) {
            // Copied elsewhere without it: nobody else is at work there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            lock => {
                let lock = lock.map_err(StorageError::io("lock", &path))?;
                Some(lock.ok_or_else(|| BackupError::InUse { path: dir.to_path_buf() })?)
            }
        };
        Ok(Self { disk, dir: dir.to_path_buf(), data: dir.join("data"), written: 0, _lock: lock })
    }

    /// What counts; `None`: no backup was ever finished here.
    ///
    /// # Errors
    /// If it is damaged, or as the disk says.
    pub(super) fn book(&self) -> Result<Option<Book>, StorageError> {
        let path = self.dir.join("BACKUP");
        let read = self.disk.open_to_read(&path).and_then(|file| read_whole(&*file, BOOK_BYTES_MAX));
        let bytes = match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(StorageError::io("read", &path))?,
        };
        let book = Book::decode(&bytes);
        book.map(Some).map_err(|what| StorageError::Corrupt { file: path, position: 0, what })
    }

    fn names(&self) -> Result<Vec<String>, StorageError> {
        self.disk.list(&self.data).map_err(StorageError::io("list", &self.data))
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        let path = self.data.join(name);
        self.disk.remove(&path).map_err(StorageError::io("remove", path))
    }

    /// Segments that are here, by length and footer: what equals one in both need not be read.
    pub(super) fn segments(&self) -> Result<HashMap<(u64, Bytes), String>, StorageError> {
        let mut segments = HashMap::new();
        for name in self.names()?.into_iter().filter(|name| is_hash(name)) {
            let path = self.data.join(&name);
            let file = self.disk.open_to_read(&path).map_err(StorageError::io("open", &path))?;
            let bytes = file.length().map_err(StorageError::io("read", &path))?;
            let Some(at) = bytes.checked_sub(FOOTER_BYTES as u64) else { continue };
            let mut footer = vec![0; FOOTER_BYTES];
            file.read_at(&mut footer, at).map_err(StorageError::io("read", &path))?;
            segments.insert((bytes, footer.into()), name);
        }
        Ok(segments)
    }

    /// Whether a content is here: by its length, and if asked for by reading it.
    pub(super) fn holds(&self, hash: &str, bytes: u64, verify: bool) -> Result<bool, StorageError> {
        let path = self.data.join(hash);
        let file = match self.disk.open_to_read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened.map_err(StorageError::io("open", &path))?,
        };
        if file.length().map_err(StorageError::io("read", &path))? != bytes {
            return Ok(false);
        }
        Ok(!verify || hash_of(&*file, &path)?.0 == hash)
    }

    /// Stores what `write` writes; gives its hash and length.
    ///
    /// # Errors
    /// As `write`, as the disk says, or if what is read back is not what was written.
    pub(super) fn put(
        &mut self,
        write: impl FnOnce(&mut Sink<'_>) -> Result<(), StorageError>,
    ) -> Result<(String, u64), StorageError> {
        let path = self.data.join(format!("{:08}.new", self.written));
        self.written += 1;
        let mut sink = Sink::create(self.disk, path.clone())?;
        let done = write(&mut sink).and_then(|()| sink.finish());
        let (hash, bytes) = match done {
            Ok(done) => done,
            Err(error) => {
                // It helps nobody, least of all on a full disk.
                drop(self.disk.remove(&path));
                return Err(error);
            }
        };
        self.disk.rename(&path, &self.data.join(&hash)).map_err(StorageError::io("rename", &path))?;
        Ok((hash, bytes))
    }

    /// Makes a book the one that counts; durable when this returns.
    pub(super) fn commit(&self, book: &Book) -> Result<(), StorageError> {
        sync(self.disk, &self.data)?;
        write_new(self.disk, &self.dir, "BACKUP", &book.encode()?)
    }

    /// Removes contents that are not named; gives how many.
    pub(super) fn retain(&self, named: &BTreeSet<&str>) -> Result<u64, StorageError> {
        let mut removed = 0;
        for name in self.names()? {
            if is_hash(&name) && !named.contains(name.as_str()) {
                self.remove(&name)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Opens a content for reading.
    pub(super) fn content(&self, hash: &str) -> Result<(Arc<dyn DiskFile>, PathBuf), StorageError> {
        let path = self.data.join(hash);
        let file = self.disk.open_to_read(&path).map_err(StorageError::io("open", &path))?;
        Ok((file, path))
    }
}

/// Whether a directory is a backup already; `false`: it is empty or not there.
///
/// # Errors
/// If it is anything else.
fn check_dest(disk: &dyn Disk, dir: &Path) -> Result<bool, BackupError> {
    let names = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        listed => listed.map_err(StorageError::io("list", dir))?,
    };
    let taken = |what| BackupError::Taken { path: dir.to_path_buf(), what };
    match format_of(disk, dir)? {
        Some(found) if found == BACKUP_FORMAT => Ok(true),
        Some(found) if found.starts_with("tidegate backup") => Err(other_format(dir, found).into()),
        Some(_) => Err(taken("is a data directory, not a backup")),
        // What a first backup left that did not get further than its first file.
        None if names.iter().all(|name| matches!(name.as_str(), "LOCK" | "FORMAT.new")) => Ok(false),
        None => Err(taken("is neither empty nor a backup")),
    }
}

fn other_format(dir: &Path, found: String) -> StorageError {
    StorageError::Format { path: dir.to_path_buf(), found, known: BACKUP_FORMAT }
}

pub(super) fn sync(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    disk.sync_dir(dir).map_err(StorageError::io("sync", dir))
}

/// Hash and length of a file.
pub(super) fn hash_of(file: &dyn DiskFile, path: &Path) -> Result<(String, u64), StorageError> {
    let fail = |error| StorageError::io("read", path)(error);
    let bytes = file.length().map_err(fail)?;
    let (mut at, mut hasher, mut buffer) = (0, blake3::Hasher::new(), vec![0; READ_BYTES]);
    while at < bytes {
        let length = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(READ_BYTES);
        file.read_at(&mut buffer[..length], at).map_err(fail)?;
        hasher.update(&buffer[..length]);
        at += length as u64;
    }
    Ok((hasher.finalize().to_hex().to_string(), bytes))
}

impl<'a> Sink<'a> {
    /// A new file; one that is there is left over.
    pub(super) fn create(disk: &'a dyn Disk, path: PathBuf) -> Result<Self, StorageError> {
        let file = disk.create(&path).map_err(StorageError::io("create", &path))?;
        Ok(Self { disk, file, path, bytes: 0, hasher: blake3::Hasher::new() })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.file.write_at(bytes, self.bytes).map_err(StorageError::io("write", &self.path))?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// What was written so far.
    pub(super) fn open(&self) -> Result<Arc<dyn DiskFile>, StorageError> {
        self.disk.open_to_read(&self.path).map_err(StorageError::io("open", &self.path))
    }

    /// The same, by ranges.
    pub(super) fn ranges(&self) -> Result<impl Ranges + use<>, StorageError> {
        Ok(Written { file: self.open()?, path: self.path.clone(), bytes: self.bytes })
    }

    /// Makes all of it durable and reads it back from the disk.
    pub(super) fn finish(self) -> Result<(String, u64), StorageError> {
        self.file.sync_data().map_err(StorageError::io("sync", &self.path))?;
        self.file.forget_cached();
        let hash = self.hasher.finalize().to_hex().to_string();
        let read = hash_of(&*self.open()?, &self.path)?;
        if read != (hash, self.bytes) {
            let what = "what is read back is not what was written".to_owned();
            return Err(StorageError::Corrupt { file: self.path, position: 0, what });
        }
        Ok(read)
    }
}

#[derive(Debug)]
struct Written {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    bytes: u64,
}

impl Ranges for Written {
    fn read(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        let end = range.end.min(self.bytes);
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(range.start)).unwrap_or(usize::MAX)];
        self.file.read_at(&mut bytes, range.start.min(end)).map_err(StorageError::io("read", &self.path))?;
        Ok(bytes.into())
    }
}
