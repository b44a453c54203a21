//! Activation at the start: the last generation of each tenant comes back first, then the file is applied over it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tracing::{error, info, warn};

use super::{
    Activation, ActivationError, Desired, DesiredError, DesiredSource, Inner, Wanted,
    record::Record,
    retention, tell_ended,
    tenant::{State, Tenant, Tools},
};
use crate::{
    hooks::{Runtime, spec::TenantSpec},
    metrics::Metrics,
    shard::Shard,
    storage::Blobs,
};

/// What an activation service stands on.
#[derive(Debug)]
pub(in crate::server) struct Parts {
    pub(in crate::server) shard: Shard,
    pub(in crate::server) runtime: Runtime,
    pub(in crate::server) blobs: Blobs,
    pub(in crate::server) unused: Unused,
    pub(in crate::server) source: Option<Arc<dyn DesiredSource>>,
    pub(in crate::server) metrics: Arc<Metrics>,
}

/// What becomes of stored components that no tenant needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Unused {
    /// The log speaks for all of them.
    Remove,
    /// The log is in memory: they may be those of a broker that keeps its log here.
    Keep,
}

/// A tenant as the log knows it.
struct Found {
    number: u32,
    generation: u64,
    record: Record,
}

impl Activation {
    /// Brings every tenant's plugins up. A file that does not hold stops the start only where there is nothing to go on
    /// with: no tenant ever had a generation.
    pub(in crate::server) async fn start(parts: Parts, names: Vec<String>) -> Result<Self, ActivationError> {
        let Parts { shard, runtime, blobs, unused, source, metrics } = parts;
        let tools = Tools { shard, runtime, blobs };
        let file = source.clone();
        let (tools, found, desired) = tokio::task::spawn_blocking(move || {
            let found = find(&tools, &names)?;
            Ok::<_, ActivationError>((tools, found, file.map(|file| file.load())))
        })
        .await
        .map_err(|_| ActivationError::Interrupted)??;
        let any = found.values().any(|found| found.generation > 0);
        let (wanted, desired) = match desired {
            None => (Wanted::Nothing, None),
            Some(Ok(desired)) => (Wanted::held(&desired), Some(Arc::new(desired))),
            Some(Err(broken)) if any => {
                error!(error = %broken.short, "plugins.toml does not hold: the last generation goes on");
                (Wanted::Nothing.refused(broken.short), None)
            }
            // None runs yet: there is nothing that goes on unchanged.
            Some(Err(DesiredError { short, .. })) => {
                return Err(ActivationError::Config(DesiredError { full: short.clone(), short }));
            }
        };
        // The version that an override ran may exist nowhere else: when this start ends it, it stays until the next.
        let before: BTreeSet<String> =
            found.values().flat_map(|found| found.record.digests().map(str::to_owned)).collect();
        let tenants = resume(&tools, found).await?;
        let wanted = std::sync::Mutex::new(Arc::new(wanted));
        let activation = Self { inner: Arc::new(Inner { tools, source, tenants, wanted, metrics }) };
        if activation.inner.source.is_none() {
            activation.warn_without_file();
        }
        if let Some(desired) = desired {
            activation.warn(&desired);
            activation.apply(&desired).await?;
        }
        if unused == Unused::Remove {
            let tools = activation.inner.tools.clone();
            let forget = tokio::task::spawn_blocking(move || forget(&tools, &before));
            forget.await.map_err(|_| ActivationError::Interrupted)?;
        }
        Ok(activation)
    }

    fn warn_without_file(&self) {
        for tenant in self.tenants() {
            let generation = tenant.live.now();
            let (number, plugins) = (generation.number(), generation.spec().plugins.len());
            if plugins > 0 {
                warn!(
                    tenant = &*tenant.name,
                    generation = number,
                    plugins,
                    "no plugins.toml is given: the last generation goes on"
                );
            }
        }
    }

    /// Applies the file to each tenant. One that fails goes on with its last generation, if it has one.
    async fn apply(&self, desired: &Arc<Desired>) -> Result<(), ActivationError> {
        for tenant in self.tenants() {
            let mut state = tenant.state.lock().await;
            let nothing = TenantSpec::default();
            let next = state.record.merged(desired.tenants.get(&*tenant.name).unwrap_or(&nothing));
            if next.spec == state.record.spec {
                continue;
            }
            match self.apply_one(tenant, &mut state, next, desired).await {
                Ok(()) => {}
                Err(failed) if tenant.generation() > 0 => {
                    error!(tenant = &*tenant.name, error = %failed, "plugins.toml cannot be applied: the last generation goes on");
                    self.want(self.wanted().refused(failed.in_short()));
                }
                Err(failed) => return Err(failed),
            }
        }
        Ok(())
    }

    async fn apply_one(
        &self,
        tenant: &Arc<Tenant>,
        state: &mut State,
        next: Record,
        desired: &Arc<Desired>,
    ) -> Result<(), ActivationError> {
        let (blobs, ended) = (Arc::clone(desired), state.record.overrides_ended(&next));
        let prepared = self.prepare(tenant, state, next, move |digest| blobs.blobs.get(digest).cloned()).await?;
        tenant.activate(&self.inner.tools.shard, state, prepared).await?;
        tell_ended(tenant, &ended);
        Ok(())
    }
}

/// Removes stored components and files that no tenant runs or can go back to, also none of those that nobody can speak for
/// now, nor did `before` this start. Before the first client: no change is under way that has stored something and not named
/// it yet.
fn forget(tools: &Tools, before: &BTreeSet<String>) {
    let records = tools.shard.activations().into_iter().map(|last| Record::read(&last.record));
    let Ok(records) = records.collect::<Result<Vec<_>, _>>() else {
        warn!("an activation record cannot be read and may need anything: no stored component is removed");
        return;
    };
    let wanted: BTreeSet<&str> = records.iter().flat_map(Record::digests).collect();
    match tools.blobs.retain(|digest| wanted.contains(digest) || before.contains(digest)) {
        Ok(0) => {}
        Ok(removed) => info!(removed, "components and files that no generation needs are removed"),
        Err(error) => warn!(%error, "components and files that no generation needs cannot be removed"),
    }
}

/// Reads the last activation of each tenant.
fn find(tools: &Tools, names: &[String]) -> Result<BTreeMap<String, Found>, ActivationError> {
    let mut found = BTreeMap::new();
    for name in names {
        let number = tools.shard.tenant(name).map_err(ActivationError::NotDurable)?;
        let (generation, record) = match tools.shard.activation(number) {
            None => (0, Record::empty()),
            Some(last) => {
                let record = Record::read(&last.record)
                    .map_err(|reason| ActivationError::Record { tenant: name.clone(), reason })?;
                (last.generation, record)
            }
        };
        found.insert(name.clone(), Found { number, generation, record });
    }
    Ok(found)
}

/// Loads what each record names.
async fn resume(
    tools: &Tools,
    found: BTreeMap<String, Found>,
) -> Result<BTreeMap<String, Arc<Tenant>>, ActivationError> {
    let tools = tools.clone();
    let load = move || {
        let mut tenants = BTreeMap::new();
        for (name, Found { number, generation, record }) in found {
            let plugins = record.spec.plugins.len();
            tools.shard.set_retention(number, retention::rules(&record.spec));
            let prepared = tools.resume(&name, generation, record)?;
            info!(tenant = %name, generation, plugins, "tenant is up");
            tenants.insert(name.clone(), Arc::new(prepared.into_tenant(name.as_str().into(), number)));
        }
        Ok(tenants)
    };
    tokio::task::spawn_blocking(load).await.map_err(|_| ActivationError::Interrupted)?
}
