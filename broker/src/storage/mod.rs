//! Disk and bucket: keeps stored frames in LSN order, durable before anybody is told, and gives them back.
//!
//! Owns `std::fs` and `object_store`. Must not know what a topic is called, what a key means beside its bytes, hooks or
//! connections. Called by `shard` (append, checkpoint), `fetch` (read, through `shard`), `cli` (offline tools). ADR 4 and 8
//! have the formats.
//!
//! A frame's way: [`Log::append`] → queue → writer thread → [`wal`] (one write, one fdatasync for all queued) → tail ring
//! and `durable` → later, when its WAL file is full, a segment in the object store.

pub mod backup;
mod blobs;
mod directory;
pub mod disk;
mod error;
pub mod fsck;
mod index;
pub mod inspect;
mod log;
mod manifest;
mod objects;
mod pins;
mod ring;
pub mod segment;
mod segments;
mod stamp;
mod store;
mod wal;

#[cfg(test)]
pub(crate) mod sim;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use tidegate_protocol::stored::StoredFrame;

pub use self::{
    blobs::Blobs,
    disk::{Disk, DiskFile, Lock, RealDisk},
    error::StorageError,
    log::{Durable, Log, Reclaim, Reclaimed},
    pins::{Cut, CutFile, PINS_MAX, Pin},
    stamp::{FrameStamp, Stamps, share},
};

/// Settings of the storage engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The data directory.
    pub dir: PathBuf,
    /// Length of a WAL file: 64 KiB to 1 GiB, a multiple of 4 096. Default 64 MiB.
    pub wal_file_bytes: u64,
    /// When more WAL files than this are full, the oldest becomes a segment. Default 4.
    pub wal_files_full_max: usize,
    /// Bytes of the last frames kept in memory. Default 64 MiB.
    pub tail_bytes: usize,
    /// Bytes written and synced at once. Default 8 MiB: more makes an ack later, not a disk faster.
    pub group_bytes_max: usize,
    /// Bytes that may wait for the disk; more is refused. Default 64 MiB.
    pub queue_bytes_max: usize,
    /// Where the WAL lies.
    pub wal: WalKind,
    /// The shard's number.
    pub shard: u16,
}

/// Where the WAL lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WalKind {
    /// In files of the data directory.
    #[default]
    Local,
    /// Nowhere: all is lost with the process, and only the tail can be read. For tests, and for measuring what all else
    /// costs.
    Memory,
}

impl Config {
    /// Defaults for a data directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            wal_file_bytes: 64 << 20,
            wal_files_full_max: 4,
            tail_bytes: 64 << 20,
            group_bytes_max: 8 << 20,
            queue_bytes_max: 64 << 20,
            wal: WalKind::Local,
            shard: 0,
        }
    }

    fn check(&self) -> Result<(), StorageError> {
        let value = self.wal_file_bytes;
        check_wal_file_bytes(value).map_err(|rule| StorageError::Setting { setting: "wal_file_bytes", value, rule })
    }
}

/// The rule of [`Config::wal_file_bytes`].
///
/// # Errors
/// The rule, if it is broken.
pub fn check_wal_file_bytes(bytes: u64) -> Result<(), &'static str> {
    let holds = (64 << 10..=1 << 30).contains(&bytes) && bytes.is_multiple_of(4096);
    holds.then_some(()).ok_or("it must be a multiple of 4096 from 64 KiB to 1 GiB")
}

/// What [`Log::open`] gives back of the past, in LSN order.
#[derive(Debug, Clone)]
pub enum Replayed {
    /// The state that was handed to [`Log::checkpoint`]: comes first, if at all. Frames from `lsn` on follow.
    Checkpoint {
        /// The state holds everything before this.
        lsn: u64,
        /// As handed over.
        state: Bytes,
    },
    /// A frame behind it.
    Frame(Arc<StoredFrame>),
}

/// A part of the log.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// Frames in LSN order. The first may begin before the LSN asked for, if that lies inside it.
    pub frames: Vec<Arc<StoredFrame>>,
    /// The next LSN to scan: everything before it was looked at.
    pub next_lsn: u64,
}

impl Run {
    /// The part before an LSN where a frame begins. What lies behind the end that was told may be durable already: readers
    /// hear of no position before everybody else.
    fn before(mut self, end: u64) -> Self {
        while self.frames.pop_if(|frame| frame.header.first_lsn >= end).is_some() {}
        self.next_lsn = self.next_lsn.min(end);
        self
    }
}
