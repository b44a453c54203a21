//! One exact list of plugins and chains of a tenant, numbered. Batches run wholly under one.

use std::{collections::BTreeMap, sync::Arc};

use tidegate_protocol::topic::TopicPattern;

use super::{
    Hook, LoadError, Placement, Plugin,
    runtime::Parts,
    share::Shared,
    spec::{ChainEntry, Policy, Rejection, TenantSpec, Use},
    topics::{EntryPatterns, Topics},
};

/// A generation, ready to run batches.
#[derive(Debug)]
pub struct Generation {
    pub(super) parts: Arc<Parts>,
    tenant: Arc<str>,
    number: u64,
    spec: Arc<TenantSpec>,
    plugins: BTreeMap<String, Result<Arc<Plugin>, Arc<LoadError>>>,
    pub(super) members: Vec<Member>,
    produce: Vec<Position>,
    fetch: Vec<Position>,
    pub(super) topics: Topics,
    pub(super) shared: Shared,
    /// For each guard bit the plugin and place that it stands for.
    guards: Vec<(String, String)>,
}

/// A plugin of the generation, wherever it stands in the chains.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: Arc<str>,
    pub(super) plugin: Result<Arc<Plugin>, Arc<LoadError>>,
    on_produce_failure: Policy,
    on_fetch_failure: Policy,
    #[cfg(test)]
    pub(super) native: Option<Arc<dyn super::native::Native>>,
}

impl Member {
    pub(super) fn policy(&self, hook: Hook) -> Policy {
        match hook {
            Hook::Produce => self.on_produce_failure,
            Hook::Fetch => self.on_fetch_failure,
        }
    }
}

/// A place in a chain.
#[derive(Debug)]
pub(super) struct Position {
    /// Number of the member.
    pub(super) member: usize,
    /// Number of the entry.
    entry: usize,
    /// The bit that records get when they pass here; 0 where nobody asks.
    pub(super) guard: u128,
    /// Readers with this role skip it.
    pub(super) unless: Option<Box<str>>,
}

/// What `tidegate plugins explain TOPIC` shows of a chain position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionInfo {
    /// The chain.
    pub hook: Hook,
    /// The plugin's name.
    pub plugin: String,
    /// `FILE:LINE` of the chain entry.
    pub place: String,
    /// `sha256:HEX` of the component.
    pub digest: String,
    /// CPU budget per call, and more per MiB.
    pub cpu: std::time::Duration,
    /// See `cpu`.
    pub cpu_per_mib: std::time::Duration,
    /// What happens when it fails.
    pub policy: Policy,
    /// Records that end here must have passed it.
    pub enforced: bool,
    /// Readers with this role skip it (`role:NAME`); empty = nobody.
    pub unless: String,
    /// Where its calls run now; `None` if it is not loaded.
    pub placement: Option<Placement>,
    /// Why it is not loaded.
    pub unavailable: Option<String>,
}

/// See [`super::Runtime::generation`].
pub(super) fn make(
    parts: Arc<Parts>,
    tenant: &str,
    number: u64,
    spec: Arc<TenantSpec>,
    plugins: BTreeMap<String, Result<Arc<Plugin>, Arc<LoadError>>>,
) -> Result<Generation, LoadError> {
    let members: Vec<Member> = plugins.iter().map(|(name, plugin)| member(&spec, name, plugin)).collect();
    let mut build =
        Builder { members: &members, entries: Vec::new(), produce: Vec::new(), fetch: Vec::new(), guards: Vec::new() };
    for entry in &spec.chain {
        build.entry(entry)?;
    }
    let Builder { entries, produce, fetch, guards, .. } = build;
    let of = |positions: &[Position]| positions.iter().map(|position| position.entry).collect();
    let topics = Topics::new(entries, of(&produce), of(&fetch));
    let shared = Shared::new(parts.config.share_bytes_max);
    Ok(Generation {
        parts,
        tenant: tenant.into(),
        number,
        spec,
        plugins,
        members,
        produce,
        fetch,
        topics,
        shared,
        guards,
    })
}

fn member(spec: &TenantSpec, name: &str, plugin: &Result<Arc<Plugin>, Arc<LoadError>>) -> Member {
    let configured = spec.plugins.get(name);
    Member {
        name: name.into(),
        plugin: plugin.clone(),
        on_produce_failure: configured.map_or(Policy::Closed, |plugin| plugin.on_produce_failure),
        on_fetch_failure: configured.map_or(Policy::Closed, |plugin| plugin.on_fetch_failure),
        #[cfg(test)]
        native: None,
    }
}

struct Builder<'a> {
    members: &'a [Member],
    entries: Vec<EntryPatterns>,
    produce: Vec<Position>,
    fetch: Vec<Position>,
    guards: Vec<(String, String)>,
}

impl Builder<'_> {
    fn entry(&mut self, entry: &ChainEntry) -> Result<(), LoadError> {
        let chain = |reason: String| LoadError::Chain { place: entry.place.clone(), reason };
        let pattern = |text: &String| TopicPattern::parse(text).map_err(|error| chain(format!("pattern {error}")));
        let mut patterns = EntryPatterns {
            topics: entry.topics.iter().map(pattern).collect::<Result<_, _>>()?,
            except: entry.except.iter().map(pattern).collect::<Result<_, _>>()?,
            rejection: entry.rejection,
            guard: 0,
        };
        for used in &entry.produce {
            let mut position = self.position(entry, used, Hook::Produce)?;
            if position.unless.is_some() {
                return Err(chain("`unless` is for `fetch`; records on their way in have no reader".to_owned()));
            }
            if entry.enforced {
                if self.guards.len() >= GUARDS_MAX {
                    return Err(chain(format!("more than {GUARDS_MAX} enforced positions in one tenant")));
                }
                position.guard = 1 << self.guards.len();
                patterns.guard |= position.guard;
                self.guards.push((used.plugin.clone(), entry.place.clone()));
            }
            self.produce.push(position);
        }
        for used in &entry.fetch {
            let position = self.position(entry, used, Hook::Fetch)?;
            self.fetch.push(position);
        }
        if self.produce.len().max(self.fetch.len()) > POSITIONS_MAX {
            return Err(chain(format!("more than {POSITIONS_MAX} positions in the chains of one tenant")));
        }
        self.entries.push(patterns);
        Ok(())
    }

    fn position(&self, entry: &ChainEntry, used: &Use, hook: Hook) -> Result<Position, LoadError> {
        let place = || entry.place.clone();
        let member = self.members.iter().position(|member| *member.name == *used.plugin);
        let member = member.ok_or_else(|| LoadError::UnknownPlugin { place: place(), plugin: used.plugin.clone() })?;
        if let Some(Ok(plugin)) = self.members.get(member).map(|member| &member.plugin)
            && !plugin.has(hook)
        {
            return Err(LoadError::NoHook { place: place(), plugin: used.plugin.clone(), hook });
        }
        let unless = match used.unless.strip_prefix("role:") {
            Some(role) if !role.is_empty() => Some(role.into()),
            None if used.unless.is_empty() => None,
            _ => {
                let reason = format!("`unless = {:?}`: write \"role:NAME\"", used.unless);
                return Err(LoadError::Chain { place: place(), reason });
            }
        };
        Ok(Position { member, entry: self.entries.len(), guard: 0, unless })
    }
}

impl Generation {
    /// Its number, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }
    /// The tenant's name.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }
    /// What it was made from.
    pub fn spec(&self) -> &Arc<TenantSpec> {
        &self.spec
    }
    /// A plugin by its name in `plugins.toml`, or why it is not loaded.
    pub fn plugin(&self, name: &str) -> Option<&Result<Arc<Plugin>, Arc<LoadError>>> {
        self.plugins.get(name)
    }
    /// All plugins by name.
    pub fn plugins(&self) -> &BTreeMap<String, Result<Arc<Plugin>, Arc<LoadError>>> {
        &self.plugins
    }
    /// Whether a rejected record of this topic refuses only itself. Where several entries match, `all` wins.
    pub fn rejection(&self, topic: &str) -> Rejection {
        self.topics.plan(topic).map_or(Rejection::PerRecord, |plan| plan.rejection)
    }
    /// Plugins that a record ending in this topic must have passed, in chain order.
    pub fn required(&self, topic: &str) -> Vec<String> {
        self.topics
            .plan(topic)
            .map_or_else(|_| Vec::new(), |plan| self.guard_names(plan.required).map(|(name, _)| name).collect())
    }
    /// Whether some plugin may change or drop records of this topic on their way out.
    pub fn has_fetch(&self, topic: &str) -> bool {
        self.topics.plan(topic).is_ok_and(|plan| !plan.is_free(Hook::Fetch))
    }
    /// The chain positions that a record of this topic meets, produce before fetch, in order.
    pub fn explain(&self, topic: &str) -> Vec<PositionInfo> {
        let matched: Vec<usize> = self.topics.entries_of(topic).collect();
        let both = [(Hook::Produce, &self.produce), (Hook::Fetch, &self.fetch)];
        both.into_iter()
            .flat_map(|(hook, positions)| positions.iter().map(move |position| (hook, position)))
            .filter(|(_, position)| matched.contains(&position.entry))
            .filter_map(|(hook, position)| self.info(hook, position))
            .collect()
    }

    pub(super) fn positions(&self, hook: Hook) -> &[Position] {
        match hook {
            Hook::Produce => &self.produce,
            Hook::Fetch => &self.fetch,
        }
    }

    /// Plugin and place of each guard bit that is set.
    pub(super) fn guard_names(&self, bits: u128) -> impl Iterator<Item = (String, String)> + '_ {
        self.guards.iter().enumerate().filter(move |(bit, _)| bits >> bit & 1 == 1).map(|(_, guard)| guard.clone())
    }

    fn info(&self, hook: Hook, position: &Position) -> Option<PositionInfo> {
        let member = self.members.get(position.member)?;
        let entry = self.spec.chain.get(position.entry)?;
        let spec = self.spec.plugins.get(&*member.name)?;
        let loaded = member.plugin.as_ref().ok();
        let budget = loaded.map_or(&spec.budget, |plugin| plugin.budget());
        Some(PositionInfo {
            hook,
            plugin: member.name.to_string(),
            place: entry.place.clone(),
            digest: spec.digest.clone(),
            cpu: budget.cpu,
            cpu_per_mib: budget.cpu_per_mib,
            policy: member.policy(hook),
            enforced: position.guard != 0,
            unless: position.unless.as_ref().map(|role| format!("role:{role}")).unwrap_or_default(),
            placement: loaded.map(|plugin| plugin.placement()),
            unavailable: member.plugin.as_ref().err().map(ToString::to_string),
        })
    }
}

/// Guards are bits of a word that each record carries.
const GUARDS_MAX: usize = 128;
/// Each batch looks at each position once; a chain this long is a mistake.
const POSITIONS_MAX: usize = 4096;
