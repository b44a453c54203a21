//! Bytes by their SHA-256 (`DIR/plugins`): components and settings, so that a restart goes on with what ran before even if
//! the files it came from are gone. Called by `server::activation`.

use std::{
    fmt::Write as _,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use super::{
    StorageError,
    directory::write_new,
    disk::{Disk, read_whole},
};

/// A component is at most 64 MiB; nothing longer is read back.
const BLOB_BYTES_MAX: u64 = 64 << 20;

/// A store of bytes by digest. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Blobs {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    /// Two writers of one blob would share its unfinished file.
    writing: Arc<Mutex<()>>,
}

impl Blobs {
    /// Opens the store in a directory, which is made if need be.
    ///
    /// # Errors
    /// As the disk says.
    pub fn open(dir: PathBuf, disk: Arc<dyn Disk>) -> Result<Self, StorageError> {
        disk.create_dir(&dir).map_err(StorageError::io("create", &dir))?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            disk.sync_dir(parent).map_err(StorageError::io("sync", parent))?;
        }
        Ok(Self { dir, disk, writing: Arc::default() })
    }

    /// Stores bytes; durable when this returns. Fine if they are there. Gives their digest, `sha256:HEX`. Blocking.
    ///
    /// # Errors
    /// If they are over 64 MiB, or as the disk says.
    pub fn put(&self, bytes: &[u8]) -> Result<String, StorageError> {
        if bytes.len() as u64 > BLOB_BYTES_MAX {
            return Err(StorageError::TooLarge { bytes: bytes.len() as u64, max: BLOB_BYTES_MAX });
        }
        let hex = sha256_hex(bytes);
        let digest = format!("sha256:{hex}");
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // What is there and damaged is written anew. What is there and whole may lack the sync of its name.
        match self.get(&digest) {
            Ok(_) => self.disk.sync_dir(&self.dir).map_err(StorageError::io("sync", &self.dir))?,
            Err(_) => write_new(&*self.disk, &self.dir, &hex, bytes)?,
        }
        Ok(digest)
    }

    /// Removes what is stored under no digest that `wanted` knows; gives the number. Files that are not ours stay. Blocking.
    ///
    /// # Errors
    /// As the disk says; some may be removed then.
    pub fn retain(&self, wanted: impl Fn(&str) -> bool) -> Result<usize, StorageError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut removed = 0;
        for name in self.disk.list(&self.dir).map_err(StorageError::io("list", &self.dir))? {
            if is_hex(&name) && !wanted(&format!("sha256:{name}")) {
                let path = self.dir.join(&name);
                self.disk.remove(&path).map_err(StorageError::io("remove", &path))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Reads bytes back and checks them against their digest. Blocking.
    ///
    /// # Errors
    /// [`StorageError::BlobUnknown`] if there are none, [`StorageError::Corrupt`] if they are not what was stored, or as
    /// the disk says.
    pub fn get(&self, digest: &str) -> Result<Bytes, StorageError> {
        let unknown = || StorageError::BlobUnknown { digest: digest.chars().take(100).collect() };
        let hex = digest.strip_prefix("sha256:").ok_or_else(unknown)?;
        if !is_hex(hex) {
            return Err(unknown());
        }
        match Self::read(&*self.disk, &self.dir, hex) {
            Err(StorageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Err(unknown()),
            read => read,
        }
    }

    /// Reads the bytes of a digest in a directory, and checks them against it.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] if they are not what was stored, or as the disk says.
    pub(crate) fn read(disk: &dyn Disk, dir: &Path, hex: &str) -> Result<Bytes, StorageError> {
        let path = dir.join(hex);
        let file = disk.open_to_read(&path).map_err(StorageError::io("open", &path))?;
        let bytes = read_whole(&*file, BLOB_BYTES_MAX).map_err(StorageError::io("read", &path))?;
        let found = sha256_hex(&bytes);
        if found != hex {
            let what = format!("its SHA-256 is {found}");
            return Err(StorageError::Corrupt { file: path, position: 0, what });
        }
        Ok(bytes.into())
    }
}

/// A digest as files are named by.
pub(crate) fn is_hex(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn sha256_hex(bytes: &[u8]) -> String {
    let digest = ::ring::digest::digest(&::ring::digest::SHA256, bytes);
    digest.as_ref().iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a string does not fail");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::RealDisk;

    fn open(dir: &tempfile::TempDir) -> Blobs {
        Blobs::open(dir.path().join("plugins"), Arc::new(RealDisk)).unwrap()
    }

    #[test]
    fn what_is_put_comes_back_by_its_digest_also_after_opening_again() {
        let dir = tempfile::tempdir().unwrap();
        let digest = open(&dir).put(b"abc").unwrap();
        assert_eq!(digest, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(open(&dir).put(b"abc").unwrap(), digest);
        assert_eq!(&open(&dir).get(&digest).unwrap()[..], b"abc");
    }

    #[test]
    fn a_damaged_blob_is_refused_and_healed_by_the_next_put() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(&dir);
        let digest = blobs.put(b"abc").unwrap();
        let path = dir.path().join("plugins").join(digest.strip_prefix("sha256:").unwrap());
        RealDisk.open(&path).unwrap().write_at(b"X", 1).unwrap();
        assert!(matches!(blobs.get(&digest), Err(StorageError::Corrupt { .. })));
        assert_eq!(blobs.put(b"abc").unwrap(), digest);
        assert_eq!(&blobs.get(&digest).unwrap()[..], b"abc");
    }

    #[test]
    fn only_what_nobody_wants_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(&dir);
        let (one, two) = (blobs.put(b"one").unwrap(), blobs.put(b"two").unwrap());
        let foreign = dir.path().join("plugins/notes.txt");
        std::fs::write(&foreign, "not ours").unwrap();
        assert_eq!(blobs.retain(|digest| digest == one).unwrap(), 1);
        assert!(blobs.get(&one).is_ok() && foreign.exists());
        assert!(matches!(blobs.get(&two), Err(StorageError::BlobUnknown { .. })));
    }

    #[test]
    fn what_is_no_digest_reaches_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(&dir);
        for digest in ["", "sha256:", "sha256:../../etc/passwd", "md5:00", &format!("sha256:{}", "A".repeat(64))] {
            assert!(matches!(blobs.get(digest), Err(StorageError::BlobUnknown { .. })), "{digest}");
        }
        let absent = format!("sha256:{}", "0".repeat(64));
        assert!(matches!(blobs.get(&absent), Err(StorageError::BlobUnknown { .. })));
    }
}
