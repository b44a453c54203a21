//! Activation: which plugins run, and how that changes while traffic runs.
//!
//! Owns the live generation of every tenant and the activation records. Must not know what a plugin does or how the log is
//! written. Called by `server` (requests, start) and by nobody else.
//!
//! The activation log decides what runs; `plugins.toml` is desired state. A change is loaded and checked whole, then
//! sequenced like a batch; any failure before leaves what runs as it is. ADR 7 has the rules.

mod desired;
mod error;
mod record;
mod retention;
mod start;
mod tell;
mod tenant;
mod wanted;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use tidegate_protocol::{
    topic::TopicPattern,
    wire::{self, TopicInfo},
};
use tokio::sync::MutexGuard;
use tracing::warn;

pub use self::{
    desired::{Desired, DesiredError, DesiredSource},
    error::ActivationError,
    record::RecordError,
    tenant::Tenant,
};
use self::{
    record::Record,
    tenant::{Prepared, State, Tools},
    wanted::Wanted,
};
pub(super) use self::{
    start::{Parts, Unused},
    tell::placement,
};
use crate::{
    hooks::spec::{PluginSpec, TenantSpec},
    metrics::Metrics,
    shard::Activated,
};

/// Bytes of a component that a swap brings.
pub const COMPONENT_BYTES_MAX: usize = 64 << 20;
/// Topics told in an answer.
const TOPICS_TOLD_MAX: usize = 1_000;

/// The service. A cheap handle.
#[derive(Debug, Clone)]
pub struct Activation {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tools: Tools,
    source: Option<Arc<dyn DesiredSource>>,
    tenants: BTreeMap<String, Arc<Tenant>>,
    /// What is known of `plugins.toml`.
    wanted: Mutex<Arc<Wanted>>,
    metrics: Arc<Metrics>,
}

impl Activation {
    /// A tenant, if somebody can speak for it.
    pub fn tenant(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.inner.tenants.get(name)
    }

    /// All tenants, by name.
    pub fn tenants(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.inner.tenants.values()
    }

    fn wanted(&self) -> Arc<Wanted> {
        Arc::clone(&self.inner.wanted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn want(&self, wanted: Wanted) {
        *self.inner.wanted.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(wanted);
    }

    /// Replaces a plugin's component. `based_on` 0 = whatever is live.
    ///
    /// # Errors
    /// If the plugin is unknown, the change is based on another generation, or the component fails a check. What ran
    /// before keeps running then.
    pub async fn swap(
        &self,
        tenant: &Arc<Tenant>,
        name: &str,
        component: Bytes,
        based_on: u64,
    ) -> Result<wire::Activated, ActivationError> {
        if component.len() > COMPONENT_BYTES_MAX {
            return Err(ActivationError::TooLarge { bytes: component.len(), max: COMPONENT_BYTES_MAX });
        }
        let digest = sha256(&component);
        let change = |record: &Record, desired: Option<&PluginSpec>| {
            record.swapped(name, &digest, desired).ok_or_else(|| unknown(name, record))
        };
        let bytes = move |wanted: &str| (wanted == sha256(&component)).then(|| component.clone());
        self.counted(self.change(tenant, name, based_on, change, bytes).await)
    }

    /// Goes back to a plugin's version before; done again, to the one before that.
    ///
    /// # Errors
    /// As [`Activation::swap`], and if there is no version before.
    pub async fn rollback(
        &self,
        tenant: &Arc<Tenant>,
        name: &str,
        based_on: u64,
    ) -> Result<wire::Activated, ActivationError> {
        let change = |record: &Record, desired: Option<&PluginSpec>| {
            if !record.spec.plugins.contains_key(name) {
                return Err(unknown(name, record));
            }
            record.rolled_back(name, desired).ok_or_else(|| ActivationError::NoPrevious(name.to_owned()))
        };
        self.counted(self.change(tenant, name, based_on, change, |_| None).await)
    }

    async fn change(
        &self,
        tenant: &Arc<Tenant>,
        name: &str,
        based_on: u64,
        change: impl Fn(&Record, Option<&PluginSpec>) -> Result<Record, ActivationError>,
        bytes: impl Fn(&str) -> Option<Bytes> + Send + Sync + 'static,
    ) -> Result<wire::Activated, ActivationError> {
        let mut state = tenant.state.lock().await;
        check_base(tenant, based_on)?;
        let wanted = self.wanted();
        let next = change(&state.record, wanted.plugin(&tenant.name, name))?;
        let digest_of = |record: &Record| record.spec.plugins.get(name).map(|spec| spec.digest.clone());
        let previous = digest_of(&state.record).unwrap_or_default();
        let digest = digest_of(&next).unwrap_or_default();
        if next.spec == state.record.spec {
            return Ok(self.unchanged(tenant, digest));
        }
        let prepared = self.prepare(tenant, &state, next, bytes).await?;
        let activated = tenant.activate(&self.inner.tools.shard, &mut state, prepared).await?;
        Ok(self.activated(&activated, &patterns_of(&state.record.spec, Some(name)), digest, previous))
    }

    /// Reads `plugins.toml` again and applies what changed in it, for all tenants or for none.
    ///
    /// # Errors
    /// If the file does not hold, or anything it asks for fails a check. What ran before keeps running then.
    pub async fn reload(&self, tenant: &Arc<Tenant>, based_on: u64) -> Result<wire::Activated, ActivationError> {
        self.counted(self.reload_all(tenant, based_on).await)
    }

    async fn reload_all(&self, caller: &Arc<Tenant>, based_on: u64) -> Result<wire::Activated, ActivationError> {
        let source = self.inner.source.clone().ok_or(ActivationError::NoFile)?;
        // In the order of names, so that two reloads never wait for each other.
        let mut locked = Vec::new();
        for tenant in self.inner.tenants.values() {
            locked.push((Arc::clone(tenant), tenant.state.lock().await));
        }
        check_base(caller, based_on)?;
        let reloaded = self.reload_locked(source, caller, &mut locked).await;
        if let Err(error) = &reloaded {
            self.want(self.wanted().refused(error.in_short()));
        }
        reloaded
    }

    async fn reload_locked(
        &self,
        source: Arc<dyn DesiredSource>,
        caller: &Arc<Tenant>,
        locked: &mut [(Arc<Tenant>, MutexGuard<'_, State>)],
    ) -> Result<wire::Activated, ActivationError> {
        let desired = tokio::task::spawn_blocking(move || source.load())
            .await
            .map_err(|_| ActivationError::Interrupted)?
            .map_err(ActivationError::Config)?;
        let desired = Arc::new(desired);
        self.warn(&desired);
        let nothing = TenantSpec::default();
        let mut changes = Vec::new();
        for (tenant, state) in &*locked {
            let next = state.record.merged(desired.tenants.get(&*tenant.name).unwrap_or(&nothing));
            changes.push(if next.spec == state.record.spec {
                None
            } else {
                let (blobs, ended) = (Arc::clone(&desired), state.record.overrides_ended(&next));
                let bytes = move |digest: &str| blobs.blobs.get(digest).cloned();
                Some((self.prepare(tenant, state, next, bytes).await?, ended))
            });
        }
        // Every check of every tenant has passed: from here on only the log can fail.
        let mut answer = None;
        for ((tenant, state), change) in locked.iter_mut().zip(changes) {
            let Some((prepared, ended)) = change else { continue };
            let activated = tenant.activate(&self.inner.tools.shard, state, prepared).await?;
            tell_ended(tenant, &ended);
            if Arc::ptr_eq(tenant, caller) {
                let patterns = patterns_of(&state.record.spec, None);
                let activated = self.activated(&activated, &patterns, String::new(), String::new());
                answer = Some(wire::Activated { overrides_ended: ended, ..activated });
            }
        }
        self.want(Wanted::held(&desired));
        Ok(answer.unwrap_or_else(|| self.unchanged(caller, String::new())))
    }

    /// Loads and checks on a thread that may block.
    async fn prepare(
        &self,
        tenant: &Arc<Tenant>,
        state: &State,
        next: Record,
        bytes: impl Fn(&str) -> Option<Bytes> + Send + Sync + 'static,
    ) -> Result<Prepared, ActivationError> {
        let (tools, before, name) = (self.inner.tools.clone(), state.clone(), Arc::clone(&tenant.name));
        let number = tenant.generation().saturating_add(1);
        tokio::task::spawn_blocking(move || tools.prepare(&name, number, &before, next, &bytes))
            .await
            .map_err(|_| ActivationError::Interrupted)?
    }

    fn activated(
        &self,
        activated: &Activated,
        patterns: &[TopicPattern],
        digest: String,
        previous_digest: String,
    ) -> wire::Activated {
        let matching =
            activated.topics.iter().filter(|topic| patterns.iter().any(|pattern| pattern.matches(topic.name.as_str())));
        wire::Activated {
            generation: activated.generation,
            lsn: activated.lsn,
            topics: matching.take(TOPICS_TOLD_MAX).map(topic_info).collect(),
            digest,
            previous_digest,
            clients: self.clients(),
            unchanged: false,
            overrides_ended: Vec::new(),
        }
    }

    fn unchanged(&self, tenant: &Tenant, digest: String) -> wire::Activated {
        wire::Activated {
            generation: tenant.generation(),
            previous_digest: digest.clone(),
            digest,
            clients: self.clients(),
            unchanged: true,
            ..wire::Activated::default()
        }
    }

    fn clients(&self) -> u32 {
        u32::try_from(self.inner.metrics.connections.value()).unwrap_or(u32::MAX)
    }

    fn counted<T>(&self, result: Result<T, ActivationError>) -> Result<T, ActivationError> {
        match &result {
            Ok(_) => self.inner.metrics.activations.add(1),
            Err(error) => {
                warn!(error = %error, "change of plugins refused");
                self.inner.metrics.activations_refused.add(1);
            }
        }
        result
    }

    fn warn(&self, desired: &Desired) {
        for warning in &desired.warnings {
            warn!(warning = %warning, "plugins.toml");
        }
        for tenant in desired.tenants.keys().filter(|tenant| !self.inner.tenants.contains_key(*tenant)) {
            warn!(tenant = %tenant, "plugins.toml has chains for a tenant that nobody can speak for");
        }
    }
}

/// An operator's swap that the file undoes is not undone in silence.
fn tell_ended(tenant: &Tenant, ended: &[wire::OverrideEnded]) {
    for wire::OverrideEnded { plugin, digest, next_digest } in ended {
        warn!(tenant = &*tenant.name, plugin, digest, next_digest, "plugins.toml ends an override of the command line");
    }
}

fn check_base(tenant: &Tenant, based_on: u64) -> Result<(), ActivationError> {
    let live = tenant.generation();
    if based_on == 0 || based_on == live { Ok(()) } else { Err(ActivationError::Changed { based_on, live }) }
}

fn unknown(name: &str, record: &Record) -> ActivationError {
    let known = record.spec.plugins.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    ActivationError::Unknown { name: name.to_owned(), known: if known.is_empty() { "none".to_owned() } else { known } }
}

/// Patterns of the entries that a plugin stands in, or of all.
fn patterns_of(spec: &TenantSpec, plugin: Option<&str>) -> Vec<TopicPattern> {
    let entries = spec
        .chain
        .iter()
        .filter(|entry| plugin.is_none_or(|name| entry.produce.iter().chain(&entry.fetch).any(|at| at.plugin == name)));
    entries.flat_map(|entry| &entry.topics).filter_map(|text| TopicPattern::parse(text).ok()).collect()
}

/// A topic on the wire.
pub(super) fn topic_info(topic: &crate::shard::Topic) -> TopicInfo {
    TopicInfo {
        name: topic.name.as_str().to_owned(),
        id: topic.id,
        next_offset: topic.next_offset,
        created_ms: topic.created_ms,
        low_offset: topic.low_offset,
    }
}

/// `sha256:HEX`.
fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = "sha256:".to_owned();
    for byte in crate::auth::hash(bytes) {
        write!(text, "{byte:02x}").expect("writing to a String does not fail");
    }
    text
}

#[cfg(test)]
mod tests;
