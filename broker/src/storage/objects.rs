//! The object store, driven from threads that may wait: its futures run on a small runtime of their own, never on the
//! caller's.

use std::{ops::Range, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload, path::Path};
use tokio::runtime::{Handle, Runtime};

use super::StorageError;

/// Threads that carry file operations for the store: consolidation, a checkpoint and two readers behind the tail.
const THREADS_MAX: usize = 4;

/// A door to the object store. Every method blocks.
#[derive(Debug)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    handle: Handle,
    /// Taken on drop, which must not wait.
    runtime: Option<Runtime>,
}

impl Objects {
    /// # Errors
    /// If the system gives no threads.
    pub(crate) fn new(store: Arc<dyn ObjectStore>) -> Result<Self, StorageError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(THREADS_MAX)
            .thread_name("objects")
            .build()
            .map_err(StorageError::io("start threads for", PathBuf::from("objects")))?;
        Ok(Self { store, handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Stores an object that must not exist; durable when this returns.
    ///
    /// # Errors
    /// If it exists, or as the store says.
    pub(crate) fn create(&self, object: &str, payload: PutPayload) -> Result<(), StorageError> {
        let put = self.store.put_opts(&Path::from(object), payload, PutMode::Create.into());
        self.handle.block_on(async { put.await }).map_err(StorageError::object("put", object))?;
        Ok(())
    }

    /// A whole object.
    ///
    /// # Errors
    /// If it does not exist, or as the store says.
    pub(crate) fn get(&self, object: &str) -> Result<Bytes, StorageError> {
        let path = Path::from(object);
        let get = async { self.store.get(&path).await?.bytes().await };
        self.handle.block_on(get).map_err(StorageError::object("get", object))
    }

    /// A part of an object.
    ///
    /// # Errors
    /// If it does not exist, or as the store says.
    pub(crate) fn get_range(&self, object: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        let path = Path::from(object);
        let get = async { self.store.get_range(&path, range).await };
        self.handle.block_on(get).map_err(StorageError::object("get", object))
    }

    /// The last bytes of an object, at most `bytes`.
    ///
    /// # Errors
    /// If it does not exist, or as the store says.
    pub(crate) fn get_suffix(&self, object: &str, bytes: u64) -> Result<Bytes, StorageError> {
        let path = Path::from(object);
        let options = GetOptions { range: Some(GetRange::Suffix(bytes)), ..GetOptions::default() };
        let get = async { self.store.get_opts(&path, options).await?.bytes().await };
        self.handle.block_on(get).map_err(StorageError::object("get", object))
    }

    /// Names of the objects under a prefix.
    ///
    /// # Errors
    /// As the store says.
    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        let path = Path::from(prefix);
        let list = async { self.store.list(Some(&path)).map_ok(|meta| meta.location.to_string()).try_collect().await };
        self.handle.block_on(list).map_err(StorageError::object("list", prefix))
    }

    /// Removes an object. Not synced: what comes back after a crash is named by no manifest and removed again.
    ///
    /// # Errors
    /// As the store says.
    pub(crate) fn remove(&self, object: &str) -> Result<(), StorageError> {
        let path = Path::from(object);
        self.handle.block_on(async { self.store.delete(&path).await }).map_err(StorageError::object("remove", object))
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
