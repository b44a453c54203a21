//! The chain a tenant's batches run under now.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::hooks::Generation;

/// The live generation of one tenant. `server::activation` changes it, batches take snapshots.
///
/// Invariant: whoever holds [`Live::hold`] sees no change; a change is sequenced and published under the same lock, so a
/// batch that the sequencer called stale finds the new generation here once it got through.
#[derive(Debug)]
pub struct Live {
    current: Arc<ArcSwap<Generation>>,
    change: tokio::sync::RwLock<()>,
}

impl Live {
    /// With a first generation.
    pub fn new(generation: Arc<Generation>) -> Self {
        Self { current: Arc::new(ArcSwap::new(generation)), change: tokio::sync::RwLock::new(()) }
    }

    /// The generation now.
    pub fn now(&self) -> Arc<Generation> {
        self.current.load_full()
    }

    /// For readers, who only ever look.
    pub fn watched(&self) -> Arc<ArcSwap<Generation>> {
        Arc::clone(&self.current)
    }

    /// Keeps changes back until the guard is dropped. Waits for one that is under way. Cancel-safe.
    pub async fn hold(&self) -> tokio::sync::RwLockReadGuard<'_, ()> {
        self.change.read().await
    }

    /// Runs `sequence`, which tells the shard of the change, and publishes what it gives before any batch can look again.
    ///
    /// # Errors
    /// What `sequence` gives. Nothing was published then.
    pub async fn change<T, E>(&self, sequence: impl FnOnce() -> Result<(Arc<Generation>, T), E>) -> Result<T, E> {
        let _held = self.change.write().await;
        let (generation, told) = sequence()?;
        self.current.store(generation);
        Ok(told)
    }
}
