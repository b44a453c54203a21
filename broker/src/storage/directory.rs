//! The data directory: one broker at a time, of one known format (ADR 4).

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    StorageError,
    disk::{Disk, Lock, read_whole},
};

/// Text of `DIR/FORMAT`.
pub(crate) const FORMAT: &str = "tidegate data 2\n";
/// A longer `FORMAT` is not ours.
const FORMAT_BYTES_MAX: u64 = 4096;

/// A data directory that is ours until the lock is dropped.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) wal: PathBuf,
    pub(crate) objects: PathBuf,
    pub(crate) lock: Box<dyn Lock>,
}

impl Directory {
    /// Takes the directory, which is made if need be.
    ///
    /// # Errors
    /// [`StorageError::InUse`] if another broker has it, [`StorageError::Format`] if its format is not ours, or as the
    /// disk says.
    pub(crate) fn take(disk: &dyn Disk, dir: &Path) -> Result<Self, StorageError> {
        disk.create_dir(dir).map_err(StorageError::io("create", dir))?;
        let lock_path = dir.join("LOCK");
        let lock = disk
            .lock(&lock_path)
            .map_err(StorageError::io("lock", &lock_path))?
            .ok_or_else(|| StorageError::InUse { path: dir.to_path_buf() })?;
        let wal = dir.join("wal");
        check_format(disk, dir, &wal)?;
        disk.create_dir(&wal).map_err(StorageError::io("create", &wal))?;
        let objects = dir.join("objects");
        disk.create_dir(&objects).map_err(StorageError::io("create", &objects))?;
        disk.sync_dir(dir).map_err(StorageError::io("sync", dir))?;
        let parent = match dir.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => dir,
        };
        disk.sync_dir(parent).map_err(StorageError::io("sync", parent))?;
        Ok(Self { wal, objects, lock })
    }
}

/// Refuses a directory that is not a data directory of ours, and changes nothing.
///
/// # Errors
/// [`StorageError::Format`], [`StorageError::NotOurs`], or as the disk says.
pub(crate) fn check_format_of(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    let found = match format_of(disk, dir)? {
        Some(found) if found == FORMAT.trim_end() => return Ok(()),
        Some(found) => found,
        None => return Err(StorageError::NotOurs { path: dir.to_path_buf(), wanted: "data directory" }),
    };
    Err(StorageError::Format { path: dir.to_path_buf(), found, known: FORMAT.trim_end() })
}

/// Text of the `FORMAT` file of a directory, cut to 100 characters; `None` if there is none.
///
/// # Errors
/// If the directory is not there, or as the disk says.
pub(crate) fn format_of(disk: &dyn Disk, dir: &Path) -> Result<Option<String>, StorageError> {
    disk.list(dir).map_err(StorageError::io("list", dir))?;
    let path = dir.join("FORMAT");
    let read = disk.open_to_read(&path).and_then(|file| read_whole(&*file, FORMAT_BYTES_MAX));
    match read {
        Ok(found) => Ok(Some(String::from_utf8_lossy(&found).trim_end().chars().take(100).collect())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StorageError::io("read", &path)(error)),
    }
}

/// Refuses another format; writes ours into a new directory.
fn check_format(disk: &dyn Disk, dir: &Path, wal: &Path) -> Result<(), StorageError> {
    let path = dir.join("FORMAT");
    let other = |found: String| StorageError::Format { path: dir.to_path_buf(), found, known: FORMAT.trim_end() };
    match disk.read(&path, FORMAT_BYTES_MAX) {
        Ok(found) if found == FORMAT.as_bytes() => return Ok(()),
        Ok(found) => return Err(other(String::from_utf8_lossy(&found).trim_end().chars().take(100).collect())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(StorageError::io("read", &path)(error)),
    }
    // FORMAT is durable before anything else is made: a log without it is not ours.
    if disk.list(wal).is_ok_and(|names| !names.is_empty()) {
        return Err(other("(no FORMAT file)".to_owned()));
    }
    write_new(disk, dir, "FORMAT", FORMAT.as_bytes())
}

/// Writes a small file so that it is there whole or not at all, and durable when this returns.
///
/// # Errors
/// As the disk says.
pub(crate) fn write_new(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
    let (path, unfinished) = (dir.join(name), dir.join(format!("{name}.new")));
    match disk.remove(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(StorageError::io("remove", &unfinished)(error));
        }
        _ => {}
    }
    let file = disk.create(&unfinished).map_err(StorageError::io("create", &unfinished))?;
    file.write_at(bytes, 0).map_err(StorageError::io("write", &unfinished))?;
    file.sync_data().map_err(StorageError::io("sync", &unfinished))?;
    disk.rename(&unfinished, &path).map_err(StorageError::io("rename", &unfinished))?;
    disk.sync_dir(dir).map_err(StorageError::io("sync", dir))
}
