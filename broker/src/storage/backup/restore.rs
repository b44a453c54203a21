//! Makes a data directory of a backup. No broker starts on one that is not finished: its `FORMAT` says so.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use super::{
    Tell, below,
    book::{BackupError, Entry},
    vault::{Sink, Vault, sync},
};
use crate::storage::{
    Disk, StorageError,
    directory::{FORMAT, format_of, write_new},
};

/// Text of `FORMAT` until all is there.
const UNFINISHED: &str = "tidegate restore 1, unfinished";
/// Copied at once.
const COPY_BYTES: usize = 1 << 20;

/// What was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Everything before this LSN is there.
    pub next_lsn: u64,
    /// When the backup was taken, Unix milliseconds.
    pub time_ms: i64,
    /// Files written.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// Makes a data directory of the backup in `source`; `dir` must be empty or not there. Blocking.
///
/// # Errors
/// If there is no whole backup, `dir` is taken, or as the disk says. What is in `dir` then is not started on.
pub fn restore(disk: &dyn Disk, source: &Path, dir: &Path, tell: &mut Tell<'_>) -> Result<Restored, BackupError> {
    let vault = Vault::open_to_read(disk, source)?;
    let book = vault.book()?.ok_or_else(|| BackupError::Unfinished { path: source.to_path_buf() })?;
    let known = FORMAT.trim_end();
    if book.data_format != known {
        let (path, found) = (source.to_path_buf(), book.data_format.chars().take(100).collect());
        return Err(StorageError::Format { path, found, known }.into());
    }
    check_empty(disk, dir)?;
    disk.create_private_dir(dir).map_err(StorageError::io("create", dir))?;
    let path = dir.join("LOCK");
    let lock = disk.lock(&path).map_err(StorageError::io("lock", &path))?;
    let _lock = lock.ok_or_else(|| StorageError::InUse { path: dir.to_path_buf() })?;
    check_empty(disk, dir)?;
    write_new(disk, dir, "FORMAT", format!("{UNFINISHED}\n").as_bytes())?;
    sync(disk, dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new(".")))?;
    let total = book.files.iter().map(|entry| entry.bytes).sum();
    let (next_lsn, time_ms) = (book.next_lsn, book.time_ms);
    let mut done = Restored { next_lsn, time_ms, ..Restored::default() };
    let mut folders = BTreeSet::new();
    for entry in &book.files {
        let path = below(dir, &entry.path);
        make_folders(disk, dir, &path, &mut folders)?;
        file(disk, &vault, entry, path)?;
        done.files += 1;
        done.bytes += entry.bytes;
        tell(done.bytes, total);
    }
    folders.iter().try_for_each(|folder| sync(disk, folder))?;
    sync(disk, dir)?;
    write_new(disk, dir, "FORMAT", FORMAT.as_bytes())?;
    Ok(done)
}

/// Nothing may be there but what a restore made that got no further.
fn check_empty(disk: &dyn Disk, dir: &Path) -> Result<(), BackupError> {
    let names = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        listed => listed.map_err(StorageError::io("list", dir))?,
    };
    let taken = |what| Err(BackupError::Taken { path: dir.to_path_buf(), what });
    match format_of(disk, dir)? {
        Some(found) if found == UNFINISHED => taken("holds what an unfinished restore left: remove it first"),
        Some(_) => taken("is a data directory already"),
        None if names.iter().all(|name| matches!(name.as_str(), "LOCK" | "FORMAT.new")) => Ok(()),
        None => taken("is not empty"),
    }
}

/// Makes the folders between a directory and a file, and notes them.
fn make_folders(disk: &dyn Disk, dir: &Path, path: &Path, made: &mut BTreeSet<PathBuf>) -> Result<(), StorageError> {
    let between = path.ancestors().skip(1).take_while(|folder| *folder != dir);
    let new: Vec<&Path> = between.filter(|folder| !made.contains(*folder)).collect();
    for folder in new.into_iter().rev() {
        disk.create_private_dir(folder).map_err(StorageError::io("create", folder))?;
        made.insert(folder.to_path_buf());
    }
    Ok(())
}

/// Copies one file, checked against its hash.
fn file(disk: &dyn Disk, vault: &Vault<'_>, entry: &Entry, path: PathBuf) -> Result<(), StorageError> {
    let (from, of) = vault.content(&entry.blake3)?;
    let fail = |error| StorageError::io("read", &of)(error);
    let bytes = from.length().map_err(fail)?;
    let corrupt = |what: String| StorageError::Corrupt { file: of.clone(), position: 0, what };
    if bytes != entry.bytes {
        return Err(corrupt(format!("it has {bytes} bytes, the backup says {}", entry.bytes)));
    }
    let mut sink = Sink::create(disk, path)?;
    let (mut at, mut buffer) = (0, vec![0; COPY_BYTES]);
    while at < bytes {
        let length = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(COPY_BYTES);
        from.read_at(&mut buffer[..length], at).map_err(fail)?;
        sink.write(&buffer[..length])?;
        at += length as u64;
    }
    let (hash, _) = sink.finish()?;
    if hash != entry.blake3 {
        return Err(corrupt(format!("its content has hash {hash}: {} cannot be restored", entry.path)));
    }
    Ok(())
}
