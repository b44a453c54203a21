//! What a backup holds on to while it copies: a cut of the log, and the pin that keeps its objects and WAL files (ADR 10).
//!
//! The cut is taken by `Log::pin`. Objects that leave the manifest go through [`Pins::discard`]: pinned ones are removed when
//! the last pin on them goes. WAL files are held like those of any reader.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

use super::{StorageError, objects::Objects, wal::files::WalFile};

/// Pins at a time: each may keep as much on the disk as is replaced while it lasts.
pub const PINS_MAX: usize = 4;

/// What belongs to a copy of the log at an instant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cut {
    /// The shard.
    pub shard: u16,
    /// Everything before is durable and belongs to it.
    pub next_lsn: u64,
    /// Number of the manifest; 0 = there is none yet.
    pub manifest_number: u64,
    /// Its text.
    pub manifest: Bytes,
    /// WAL files behind what the manifest's segments hold, oldest first; one at least.
    pub wal: Vec<CutFile>,
}

/// A WAL file of a cut.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CutFile {
    /// Its name in `DIR/wal`.
    pub name: String,
    /// Of this use of the file.
    pub generation: u64,
    /// LSN of its first entry.
    pub first_lsn: u64,
}

/// Keeps what a cut names until it is dropped, which may wait for the store.
#[derive(Debug)]
pub struct Pin {
    pins: Arc<Pins>,
    objects: Vec<String>,
    /// Held like those of any reader: they are not used again meanwhile.
    _wal: Vec<Arc<WalFile>>,
}

/// All pins on a store.
#[derive(Debug)]
pub(crate) struct Pins {
    objects: Arc<Objects>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pins: usize,
    /// By object, how many pins are on it.
    held: HashMap<String, usize>,
    /// Left the manifest while they were pinned.
    discarded: Vec<String>,
}

impl Pins {
    pub(crate) fn new(objects: Arc<Objects>) -> Arc<Self> {
        Arc::new(Self { objects, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins objects that the manifest names; it must not change meanwhile.
    ///
    /// # Errors
    /// If there are too many pins.
    pub(crate) fn pin(self: &Arc<Self>, objects: Vec<String>, wal: Vec<Arc<WalFile>>) -> Result<Pin, StorageError> {
        let mut state = self.lock();
        if state.pins >= PINS_MAX {
            return Err(StorageError::PinsFull { max: PINS_MAX });
        }
        state.pins += 1;
        for object in &objects {
            *state.held.entry(object.clone()).or_default() += 1;
        }
        drop(state);
        Ok(Pin { pins: Arc::clone(self), objects, _wal: wal })
    }

    /// Removes an object that the manifest names no more, or leaves that to the last pin on it.
    ///
    /// # Errors
    /// As the store says.
    pub(crate) fn discard(&self, object: &str) -> Result<(), StorageError> {
        let mut state = self.lock();
        if state.held.contains_key(object) {
            state.discarded.push(object.to_owned());
            return Ok(());
        }
        drop(state);
        self.objects.remove(object)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.pins.lock();
        state.pins -= 1;
        for object in &self.objects {
            if let Some(count) = state.held.get_mut(object) {
                *count -= 1;
                if *count == 0 {
                    state.held.remove(object);
                }
            }
        }
        let State { held, discarded, .. } = &mut *state;
        let free: Vec<String> = discarded.extract_if(.., |object| !held.contains_key(object)).collect();
        drop(state);
        for object in free {
            if let Err(error) = self.pins.objects.remove(&object) {
                tracing::warn!(%error, "cannot remove an object that a backup held; the next start does");
            }
        }
    }
}
