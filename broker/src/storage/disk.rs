//! The seam to the disk: the few operations the log needs, so that a test can bring a disk that fails or forgets.
//!
//! [`RealDisk`] goes through the standard library and nothing else: what intercepts the C library's `pwrite` and
//! `fdatasync` (a layer that forgets unsynced writes, say) sees every write of the WAL.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, FileExt as _},
    path::Path,
    sync::Arc,
};

use object_store::{ObjectStore, local::LocalFileSystem};

/// A disk: files, directories, a lock, and the object store that lies on it.
///
/// Nothing is durable before it is synced: bytes of a file by [`DiskFile::sync_data`], names by [`Disk::sync_dir`].
pub trait Disk: Send + Sync + Debug {
    /// Makes a directory and those above it; fine if it is there.
    ///
    /// # Errors
    /// As the system says.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// `NotFound` if it does not exist, else as the system says.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file for reading alone: the file, or the disk it lies on, need not let itself be written.
    ///
    /// # Errors
    /// `NotFound` if it does not exist, else as the system says.
    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open(path)
    }
    /// Makes a directory and those above it, for its owner only; fine if it is there, which changes nothing of it.
    ///
    /// # Errors
    /// As the system says.
    fn create_private_dir(&self, path: &Path) -> io::Result<()> {
        self.create_dir(path)
    }
    /// Takes the lock of a file that is there, without writing. `None` if another process has it.
    ///
    /// # Errors
    /// `NotFound` if there is no such file, else as the system says.
    fn lock_to_read(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        self.lock(path)
    }
    /// The object store below a directory that is there, for reading.
    ///
    /// # Errors
    /// `NotFound` if there is no such directory, else as the system says.
    fn objects_to_read(&self, root: &Path) -> io::Result<Arc<dyn ObjectStore>> {
        self.objects(root)
    }
    /// Makes a file that must not exist.
    ///
    /// # Errors
    /// `AlreadyExists`, else as the system says.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file another name, over what has that name.
    ///
    /// # Errors
    /// As the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound`, else as the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Names of the files in a directory, in no order. Names that are not UTF-8 are not ours and left out.
    ///
    /// # Errors
    /// `NotFound`, else as the system says.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// As the system says.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Takes the exclusive lock of a file, which is made if need be. `None` if another process has it. The lock is held
    /// until the value is dropped.
    ///
    /// # Errors
    /// As the system says.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>>;
    /// The object store below a directory. A put that returned is durable.
    ///
    /// # Errors
    /// As the system says.
    fn objects(&self, root: &Path) -> io::Result<Arc<dyn ObjectStore>>;

    /// Reads a whole small file.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; `InvalidData` if it is longer than `bytes_max`; else as the system says.
    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        read_whole(&*self.open(path)?, bytes_max)
    }
}

/// Reads a whole small file that is open.
///
/// # Errors
/// `InvalidData` if it is longer than `bytes_max`; else as the system says.
pub(crate) fn read_whole(file: &dyn DiskFile, bytes_max: u64) -> io::Result<Vec<u8>> {
    let length = file.length()?;
    if length > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{length} bytes, at most {bytes_max}")));
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// An open file. Reads and writes name their place, so that several threads may share it.
pub trait DiskFile: Send + Sync + Debug {
    /// Fills the buffer from a place in the file.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before, else as the system says.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()>;
    /// Writes all bytes at a place in the file, which grows if need be.
    ///
    /// # Errors
    /// As the system says; some of the bytes may have been written.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;
    /// Makes the file's bytes and length durable (`fdatasync`).
    ///
    /// # Errors
    /// As the system says. Nothing may be believed about any byte written since the last success.
    fn sync_data(&self) -> io::Result<()>;
    /// Lets the system forget what it holds of a file that is synced, so that the next read comes from the disk. A hint.
    fn forget_cached(&self) {}
    /// Length in bytes.
    ///
    /// # Errors
    /// As the system says.
    fn length(&self) -> io::Result<u64>;
}

/// A lock that is held as long as this lives.
pub trait Lock: Send + Sync + Debug {}

/// The machine's own disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(true).open(path)?)))
    }
    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(File::open(path)?)))
    }
    fn create_private_dir(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }
    fn lock_to_read(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        take_lock(File::open(path)?)
    }
    fn objects_to_read(&self, root: &Path) -> io::Result<Arc<dyn ObjectStore>> {
        fs::metadata(root)?;
        Ok(Arc::new(LocalFileSystem::new_with_prefix(root).map_err(io::Error::other)?))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(true).create_new(true).open(path)?)))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        take_lock(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?)
    }
    fn objects(&self, root: &Path) -> io::Result<Arc<dyn ObjectStore>> {
        fs::create_dir_all(root)?;
        let store = LocalFileSystem::new_with_prefix(root).map_err(io::Error::other)?;
        // Without this a put is in the page cache only.
        Ok(Arc::new(store.with_fsync(true)))
    }
}

fn take_lock(file: File) -> io::Result<Option<Box<dyn Lock>>> {
    match file.try_lock() {
        Ok(()) => Ok(Some(Box::new(RealLock(file)))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, position)
    }
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, position)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn forget_cached(&self) {
        // Where the system does not take the hint, the read comes from memory.
        rustix::fs::fadvise(&self.0, 0, None, rustix::fs::Advice::DontNeed).ok();
    }
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// Unlocks when the file is closed.
#[derive(Debug)]
struct RealLock(#[expect(dead_code, reason = "held for the lock that ends with it")] File);

impl Lock for RealLock {}
