//! The directory itself: its lock, its format, and the components stored by digest.

use std::{io, path::Path};

use super::{Check, Go};
use crate::storage::{Blobs, Disk, StorageError, blobs::is_hex, directory::check_format_of, disk::Lock};

/// Takes the directory, so that no broker starts on it meanwhile.
///
/// # Errors
/// [`StorageError::InUse`], [`StorageError::Format`] also for a directory that is none of ours, or as the disk says.
pub(super) fn take(disk: &dyn Disk, dir: &Path) -> Result<Option<Box<dyn Lock>>, StorageError> {
    check_format_of(disk, dir)?;
    let path = dir.join("LOCK");
    let taken = match disk.lock_to_read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match disk.lock(&path) {
            // Nobody can start a broker on a disk that cannot be written.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => return Ok(None),
            taken => taken,
        },
        taken => taken,
    };
    let lock = taken.map_err(StorageError::io("lock", &path))?;
    lock.map(Some).ok_or_else(|| StorageError::InUse { path: dir.to_path_buf() })
}

/// Components and settings: each is what its name says.
pub(super) fn blobs(check: &mut Check<'_, '_>) -> Go {
    let dir = check.dir.join("plugins");
    let mut names = match check.disk.list(&dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return check.failed(&dir, &StorageError::io("list", &dir)(error)),
    };
    names.sort_unstable();
    for name in names {
        let path = dir.join(&name);
        if !is_hex(&name) {
            check.orphan(&path, "the broker does not know a file of this name")?;
            continue;
        }
        check.report.blobs += 1;
        match Blobs::read(check.disk, &dir, &name) {
            Ok(bytes) => {
                check.report.bytes += bytes.len() as u64;
                check.progress(bytes.len() as u64)?;
            }
            Err(error) => check.failed(&path, &error)?,
        }
    }
    Ok(())
}
