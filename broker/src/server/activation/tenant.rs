//! One tenant's plugins: what runs, what is loaded, and the lock under which that changes.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use tracing::{error, info};

use super::{
    ActivationError,
    record::{Record, same_load},
    retention,
};
use crate::{
    hooks::{Generation, LoadError, Plugin, Runtime, spec::PluginSpec},
    produce::Live,
    shard::{Activated, Shard},
    storage::Blobs,
};

/// Plugins by name; those that could not be loaded are decided by their policies.
pub(super) type Loaded = BTreeMap<String, Result<Arc<Plugin>, Arc<LoadError>>>;

/// A tenant somebody can speak for.
#[derive(Debug)]
pub struct Tenant {
    /// Its name.
    pub name: Arc<str>,
    /// Its number in the log.
    pub number: u32,
    /// The chain its batches run under.
    pub live: Arc<Live>,
    /// What the last activation made live. Whoever holds the lock may change it.
    pub(super) state: tokio::sync::Mutex<State>,
}

/// What runs.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) record: Record,
    pub(super) loaded: Loaded,
}

/// The parts that loading needs. Clones are handles.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    pub(super) shard: Shard,
    pub(super) runtime: Runtime,
    pub(super) blobs: Blobs,
}

/// A change that passed all its checks and is not live yet.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) state: State,
    generation: Arc<Generation>,
}

/// Where the bytes of components and files come from.
pub(super) type Bytesource<'a> = &'a (dyn Fn(&str) -> Option<Bytes> + Sync);

impl Tools {
    /// Loads everything a record names, without a change in the log: for the start. What cannot be loaded is decided by
    /// its policy. Blocking.
    pub(super) fn resume(&self, tenant: &str, number: u64, record: Record) -> Result<Prepared, LoadError> {
        let mut loaded = Loaded::new();
        for (name, spec) in &record.spec.plugins {
            let plugin = self.load(tenant, name, spec, &|_| None).map_err(|error| {
                error!(tenant, plugin = name, error = %error, "plugin of the last generation cannot be loaded");
                Arc::new(error)
            });
            loaded.insert(name.clone(), plugin);
        }
        self.prepared(tenant, number, State { record, loaded })
    }

    /// Checks everything a record asks for: loads what is not loaded, stores its bytes, strings the chains. Nothing
    /// changes if a step fails but stored bytes that nobody names. Blocking.
    pub(super) fn prepare(
        &self,
        tenant: &str,
        number: u64,
        before: &State,
        record: Record,
        bytes: Bytesource<'_>,
    ) -> Result<Prepared, ActivationError> {
        let mut loaded = Loaded::new();
        for (name, spec) in &record.spec.plugins {
            let have = before.record.spec.plugins.get(name).filter(|have| same_load(have, spec));
            let plugin = match have.and_then(|_| before.loaded.get(name)) {
                Some(Ok(plugin)) => Arc::clone(plugin),
                _ => self.load(tenant, name, spec, bytes)?,
            };
            loaded.insert(name.clone(), Ok(plugin));
        }
        let prepared = self.prepared(tenant, number, State { record, loaded })?;
        // Last, and before the record that names them: a restart must find them.
        for spec in prepared.state.record.spec.plugins.values() {
            for digest in std::iter::once(&spec.digest).chain(spec.files.values()) {
                if let Some(content) = bytes(digest) {
                    self.blobs.put(&content)?;
                }
            }
        }
        Ok(prepared)
    }

    fn prepared(&self, tenant: &str, number: u64, state: State) -> Result<Prepared, LoadError> {
        let spec = Arc::new(state.record.spec.clone());
        let generation = self.runtime.generation(tenant, number, spec, state.loaded.clone())?;
        Ok(Prepared { state, generation })
    }

    fn load(
        &self,
        tenant: &str,
        name: &str,
        spec: &PluginSpec,
        bytes: Bytesource<'_>,
    ) -> Result<Arc<Plugin>, LoadError> {
        let content = |digest: &str| match bytes(digest) {
            Some(content) => Ok(content),
            None => self.blobs.get(digest).map_err(|error| LoadError::Start {
                plugin: name.to_owned(),
                step: format!("reading {digest} from the data directory"),
                fault: error.to_string(),
                hint: "; swap the plugin in again, or reload plugins.toml with its file in place",
            }),
        };
        let component = content(&spec.digest)?;
        let file = |(path, digest): (&String, &String)| Ok((path.clone(), content(digest)?));
        let files = spec.files.iter().map(file).collect::<Result<Vec<_>, LoadError>>()?;
        self.runtime.load(tenant, name, spec, &component, files)
    }
}

impl Prepared {
    /// For the start: the first generation of a tenant.
    pub(super) fn into_tenant(self, name: Arc<str>, number: u32) -> Tenant {
        let live = Arc::new(Live::new(self.generation));
        Tenant { name, number, live, state: tokio::sync::Mutex::new(self.state) }
    }
}

impl Tenant {
    /// Number of the live generation.
    pub fn generation(&self) -> u64 {
        self.live.now().number()
    }

    /// Makes a prepared change live: sequences its record and publishes the generation in one step, so that no batch of
    /// the tenant can come between, then waits until it is durable.
    pub(super) async fn activate(
        &self,
        shard: &Shard,
        state: &mut State,
        prepared: Prepared,
    ) -> Result<Activated, ActivationError> {
        let based_on = self.generation();
        let record = Bytes::from(prepared.state.record.to_bytes());
        let generation = prepared.generation;
        let ticket = self
            .live
            .change(|| {
                let ticket = shard.activate(self.number, based_on, record)?;
                assert_eq!(ticket.generation(), generation.number(), "generations of a tenant are dense");
                Ok::<_, crate::shard::Refusal>((generation, ticket))
            })
            .await?;
        *state = prepared.state;
        // Before the wait, which may be given up. What these rules remove stands behind their record in the log.
        shard.set_retention(self.number, retention::rules(&state.record.spec));
        let activated = ticket.durable().await.map_err(ActivationError::NotDurable)?;
        info!(tenant = &*self.name, generation = activated.generation, lsn = activated.lsn, "generation is live");
        Ok(activated)
    }
}
