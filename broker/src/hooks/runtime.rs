//! The runtime as a whole: one engine, one code cache, the hook threads, and the door through which plugins come in.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use bytes::Bytes;

use super::{
    Config, Generation, Host, LoadError, Plugin, RuntimeError,
    cache::Cache,
    capabilities::Counters,
    engine::Engine,
    generation,
    guest::Services,
    load,
    spec::{PluginSpec, TenantSpec},
    threads::Threads,
};
use crate::clock::{SharedClock, SharedRandom};

/// Loads plugins and makes generations of them. Clones are handles to the same runtime.
#[derive(Debug, Clone)]
pub struct Runtime {
    pub(super) parts: Arc<Parts>,
}

/// What a runtime is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) config: Config,
    pub(super) engine: Engine,
    pub(super) cache: Option<Cache>,
    pub(super) services: Arc<Services>,
    pub(super) threads: Threads,
    /// By tenant and plugin name, as long as any version of the plugin lives.
    counters: Mutex<HashMap<(String, String), Weak<Counters>>>,
}

impl Runtime {
    /// Starts the engine, its ticker and the hook threads.
    ///
    /// # Errors
    /// If the address space is too small, the cache directory cannot be used, or a thread does not start.
    pub fn new(
        config: Config,
        host: Arc<dyn Host>,
        clock: SharedClock,
        random: SharedRandom,
    ) -> Result<Self, RuntimeError> {
        let engine = Engine::new(&config)?;
        let open = |dir: &std::path::PathBuf| Cache::open(dir, &engine.wasmtime, &*random);
        let cache = config.cache_dir.as_ref().map(open).transpose()?;
        let ticker = Arc::clone(&engine.ticker);
        let services = Arc::new(Services { host, clock, random, ticker });
        let threads = Threads::start(config.hook_threads, config.hook_queue_max)?;
        Ok(Self { parts: Arc::new(Parts { config, engine, cache, services, threads, counters: Mutex::default() }) })
    }

    /// Loads a plugin: digest, component, compiled code, world, imports against grants, `describe`, `init` with the
    /// settings and bundled files (path as the guest knows it, content), and one record through each hook. Blocking: up
    /// to some seconds where code must be compiled.
    ///
    /// # Errors
    /// Whatever step fails, with what to do about it. Nothing of the plugin stays.
    pub fn load(
        &self,
        tenant: &str,
        name: &str,
        spec: &PluginSpec,
        component: &[u8],
        files: Vec<(String, Bytes)>,
    ) -> Result<Arc<Plugin>, LoadError> {
        load::load(&self.parts, tenant, name, spec, component, files).map(Arc::new)
    }

    /// Strings plugins to the chains of one generation. A plugin that could not be loaded is an `Err` here and decided
    /// by its policy whenever its turn comes.
    ///
    /// # Errors
    /// If a chain names a plugin that is not in `plugins`, uses a hook that a plugin has not, or holds a pattern that
    /// is none.
    pub fn generation(
        &self,
        tenant: &str,
        number: u64,
        spec: Arc<TenantSpec>,
        plugins: BTreeMap<String, Result<Arc<Plugin>, Arc<LoadError>>>,
    ) -> Result<Arc<Generation>, LoadError> {
        generation::make(Arc::clone(&self.parts), tenant, number, spec, plugins).map(Arc::new)
    }
}

impl Parts {
    /// Counters of a plugin: those of its other versions in the tenant, if one lives.
    pub(super) fn counters(&self, tenant: &str, plugin: &str) -> Arc<Counters> {
        let mut all = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, counters| counters.strong_count() > 0);
        let slot = all.entry((tenant.to_owned(), plugin.to_owned())).or_default();
        let counters = slot.upgrade().unwrap_or_default();
        *slot = Arc::downgrade(&counters);
        counters
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.threads.stop();
        self.engine.ticker.stop();
    }
}
