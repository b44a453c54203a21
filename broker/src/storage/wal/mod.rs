//! The write-ahead log: what is written here is durable when `commit` returns.
//!
//! Knows frames as bytes with an LSN and topic ids; nothing of what they mean. One writer thread calls [`Wal::commit`];
//! readers go through `files`.

pub(crate) mod entry;
pub(crate) mod files;
pub(crate) mod local;
pub(crate) mod memory;
pub(crate) mod recovery;
pub(crate) mod spare;
pub(crate) mod walk;

use std::sync::Arc;

use tidegate_protocol::stored::StoredFrame;

use super::StorageError;

/// Where frames become durable.
pub(crate) trait Wal: Send + std::fmt::Debug {
    /// Makes a group of frames durable, in order. After an error nothing is known of any of them, and nothing more may
    /// be committed.
    ///
    /// # Errors
    /// If a write or sync failed, or the disk is full.
    fn commit(&mut self, group: &[Arc<StoredFrame>]) -> Result<(), StorageError>;
}
