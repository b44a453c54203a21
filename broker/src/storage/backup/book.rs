//! `BACKUP`: what belongs to a backup, with the hash of each file and of itself. A backup without one is none.
//!
//! ```text
//! tidegate backup 1 BLAKE3
//! {"version":1,"data_format":"tidegate data 2","shard":0,"next_lsn":0,"time_ms":0,"files":[{"path":"","bytes":0,"blake3":""}]}
//! ```

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::storage::{Cut, StorageError};

/// Text of `FORMAT` in a backup, and how `BACKUP` begins.
pub(super) const BACKUP_FORMAT: &str = "tidegate backup 1";
/// Version of the text.
const VERSION: u32 = 1;
/// Hex digits of a hash.
const HASH_DIGITS: usize = 64;
/// Bytes of a path in it: the longest is that of a segment or a component.
const PATH_BYTES_MAX: usize = 200;
/// What restored files lie in.
const ROOTS: [&str; 3] = ["objects", "wal", "plugins"];

/// Why there is no backup, or nothing is restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file, directory or object: it cannot be read or written, or is not what it must be.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// There is something else where the backup or the restored directory is to be.
    #[error("{} {what}", path.display())]
    Taken {
        /// The directory.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// Another backup or restore is at work there.
    #[error("backup {} is in use by another backup or restore", path.display())]
    InUse {
        /// The backup.
        path: PathBuf,
    },
    /// The backup that is there reaches further than the log.
    #[error("the backup in {} reaches to LSN {backup}, this log only to {cut}: it is of another broker, or of a later state of this one", path.display())]
    OlderCut {
        /// The backup.
        path: PathBuf,
        /// Its end.
        backup: u64,
        /// The log's.
        cut: u64,
    },
    /// The data directory is not that of the broker that answered.
    #[error("{} is not the file that the broker told of: the data directory belongs to another one, or is in use by none", path.display())]
    OtherBroker {
        /// The WAL file.
        path: PathBuf,
    },
    /// No backup was ever finished there.
    #[error("{} holds no finished backup", path.display())]
    Unfinished {
        /// The directory.
        path: PathBuf,
    },
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Book {
    pub(super) version: u32,
    /// Text of the data directory's `FORMAT`.
    pub(super) data_format: String,
    pub(super) shard: u16,
    pub(super) next_lsn: u64,
    pub(super) time_ms: i64,
    pub(super) files: Vec<Entry>,
}

/// A file of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// Where it lies in a data directory, `/` between the parts.
    pub(super) path: String,
    pub(super) bytes: u64,
    pub(super) blake3: String,
}

impl Book {
    pub(super) fn new(cut: &Cut, data_format: &str, time_ms: i64) -> Self {
        let (shard, next_lsn) = (cut.shard, cut.next_lsn);
        Self { version: VERSION, data_format: data_format.to_owned(), shard, next_lsn, time_ms, files: Vec::new() }
    }

    /// The whole file.
    ///
    /// # Errors
    /// Never: plain data is JSON.
    pub(super) fn encode(&self) -> Result<Vec<u8>, StorageError> {
        let text = serde_json::to_string(self)
            .map_err(|error| StorageError::Encode { what: "BACKUP", source: error.into() })?;
        let hash = blake3::hash(text.as_bytes()).to_hex();
        Ok(format!("{BACKUP_FORMAT} {hash}\n{text}\n").into_bytes())
    }

    /// Reads a whole file; everything in it is checked.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let (head, text) = text.split_once('\n').ok_or("it is cut")?;
        let hash = head.strip_prefix(BACKUP_FORMAT).and_then(|rest| rest.strip_prefix(' '));
        let hash = hash.ok_or_else(|| format!("it begins with {head:.100?}; this build reads {BACKUP_FORMAT:?}"))?;
        let text = text.strip_suffix('\n').ok_or("it is cut")?;
        if blake3::hash(text.as_bytes()).to_hex().as_str() != hash {
            return Err("its hash does not match".to_owned());
        }
        let book: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if book.version != VERSION {
            return Err(format!("version {} is not read by this build; it reads {VERSION}", book.version));
        }
        match book.files.iter().find(|entry| !entry.is_plain()) {
            Some(entry) => Err(format!("it names a file {:.300?} with hash {:.100?}", entry.path, entry.blake3)),
            None => Ok(book),
        }
    }
}

impl Entry {
    /// Leads to a file below one of ours, and nowhere else.
    fn is_plain(&self) -> bool {
        let plain = |part: &str| {
            let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            !part.is_empty() && !part.starts_with('.') && part.bytes().all(known)
        };
        let mut parts = self.path.split('/');
        parts.next().is_some_and(|root| ROOTS.contains(&root))
            && self.path.contains('/')
            && parts.all(plain)
            && self.path.len() <= PATH_BYTES_MAX
            && is_hash(&self.blake3)
    }
}

/// A hash as files in `data` are named by.
pub(super) fn is_hash(name: &str) -> bool {
    name.len() == HASH_DIGITS && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book() -> Book {
        let entry = |path: &str| Entry { path: path.to_owned(), bytes: 7, blake3: "0f".repeat(32) };
        let cut = Cut { next_lsn: 900, ..Cut::default() };
        Book { files: vec![entry("wal/0000000000000001.wal")], ..Book::new(&cut, "tidegate data 2", 1_700_000_000_123) }
    }

    #[test]
    fn golden_bytes() {
        let text = "tidegate backup 1 6314d61c201f29c06d0b5a50f59b21a7453d10caaa5df3b0005f72e01505ff40\n\
                    {\"version\":1,\"data_format\":\"tidegate data 2\",\"shard\":0,\"next_lsn\":900,\"time_ms\":1700000000123,\
                    \"files\":[{\"path\":\"wal/0000000000000001.wal\",\"bytes\":7,\
                    \"blake3\":\"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f\"}]}\n";
        assert_eq!(String::from_utf8(book().encode().unwrap()).unwrap(), text);
        assert_eq!(Book::decode(text.as_bytes()), Ok(book()));
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_found() {
        let whole = book().encode().unwrap();
        for at in 0..whole.len() {
            assert!(Book::decode(&whole[..at]).is_err(), "cut at {at}");
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(Book::decode(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn paths_lead_nowhere_else() {
        for path in
            ["wal/..", "wal/../x", "/etc/passwd", "dev/admin-token", "wal", "wal/", "objects//x", "wal/.x", "wal/a b"]
        {
            let mut book = book();
            book.files[0].path = path.to_owned();
            assert!(Book::decode(&book.encode().unwrap()).is_err(), "{path}");
        }
        let mut book = book();
        book.files[0].blake3 = "../../etc/passwd".to_owned();
        assert!(Book::decode(&book.encode().unwrap()).is_err());
    }
}
