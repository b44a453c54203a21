//! The object store, driven from threads that may wait: its futures run on a small runtime of their own, never on the
//! caller's, so that a full pool of the caller cannot wait for itself.

use std::{ops::Range, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutPayload, path::Path};
use tokio::runtime::Runtime;

use super::StorageError;
use crate::threads::{self, SharedThreads, SystemThreads};

/// Threads that carry file operations for the store: consolidation, a checkpoint and two readers behind the tail.
const THREADS_MAX: usize = 4;

/// A door to the object store. Every method blocks.
#[derive(Debug)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    driver: Driver,
}

/// What carries operations of the store.
#[derive(Debug)]
enum Driver {
    /// Taken on drop, which must not wait.
    Runtime(Option<Runtime>),
    /// The caller's thread, in a simulation.
    Caller(SharedThreads),
}

impl Objects {
    /// For a tool that looks at a store beside a broker, or without one.
    ///
    /// # Errors
    /// As `new`.
    pub(crate) fn offline(store: Arc<dyn ObjectStore>) -> Result<Self, StorageError> {
        let threads: SharedThreads = Arc::new(SystemThreads);
        Self::new(store, &threads)
    }

    /// # Errors
    /// If the system gives no threads.
    pub(crate) fn new(store: Arc<dyn ObjectStore>, threads: &SharedThreads) -> Result<Self, StorageError> {
        if threads.is_simulated() {
            return Ok(Self { store, driver: Driver::Caller(Arc::clone(threads)) });
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(THREADS_MAX)
            .thread_name("objects")
            .build()
            .map_err(StorageError::io("start threads for", PathBuf::from("objects")))?;
        Ok(Self { store, driver: Driver::Runtime(Some(runtime)) })
    }

    /// Stores an object that must not exist; durable when this returns.
    ///
    /// # Errors
    /// If it exists, or as the store says.
    pub(crate) fn create(&self, object: &str, payload: PutPayload) -> Result<(), StorageError> {
        self.run("put", object, async move |store, path| {
            store.put_opts(&path, payload, PutMode::Create.into()).await.map(|_| ())
        })
    }

    /// A whole object.
    ///
    /// # Errors
    /// If it does not exist, or as the store says.
    pub(crate) fn get(&self, object: &str) -> Result<Bytes, StorageError> {
        self.run("get", object, async move |store, path| store.get(&path).await?.bytes().await)
    }

    /// A part of an object.
    ///
    /// # Errors
    /// If it does not exist, or as the store says.
    pub(crate) fn get_range(&self, object: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        self.run("get", object, async move |store, path| store.get_range(&path, range).await)
    }

    /// Length of an object.
    ///
    /// # Errors
    /// If it does not exist, or as the store says.
    pub(crate) fn length(&self, object: &str) -> Result<u64, StorageError> {
        self.run("look at", object, async move |store, path| store.head(&path).await.map(|meta| meta.size))
    }

    /// Names of the objects under a prefix.
    ///
    /// # Errors
    /// As the store says.
    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        self.run("list", prefix, async move |store, path| {
            store.list(Some(&path)).map_ok(|meta| meta.location.to_string()).try_collect().await
        })
    }

    /// Removes an object. Not synced: what comes back after a crash is named by no manifest and removed again.
    ///
    /// # Errors
    /// As the store says.
    pub(crate) fn remove(&self, object: &str) -> Result<(), StorageError> {
        self.run("remove", object, async move |store, path| store.delete(&path).await)
    }

    /// Runs an operation on the runtime and waits for it. Works wherever the caller runs, in a runtime or not.
    fn run<T, F>(
        &self,
        operation: &'static str,
        object: &str,
        work: impl FnOnce(Arc<dyn ObjectStore>, Path) -> F,
    ) -> Result<T, StorageError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, object_store::Error>> + Send + 'static,
    {
        let work = work(Arc::clone(&self.store), Path::from(object));
        let done = match &self.driver {
            Driver::Caller(threads) => threads::block_on(&**threads, work),
            Driver::Runtime(runtime) => {
                let runtime = runtime.as_ref().ok_or(StorageError::Closed)?;
                let (sender, receiver) = std::sync::mpsc::sync_channel(1);
                runtime.spawn(async move {
                    // Who waits for it holds the receiver; if not, nobody wants to know.
                    drop(sender.send(work.await));
                });
                receiver.recv().map_err(|_| StorageError::Closed)?
            }
        };
        done.map_err(StorageError::object(operation, object))
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        if let Driver::Runtime(runtime) = &mut self.driver
            && let Some(runtime) = runtime.take()
        {
            runtime.shutdown_background();
        }
    }
}
