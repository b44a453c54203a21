//! What operators are told: the plugins of a tenant, the chain of a topic, where things differ from the file.

use std::time::Duration;

use tidegate_protocol::wire::{Chain, ChainPosition, PluginInfo, Plugins};

use super::{Activation, Tenant, retention};
use crate::hooks::{
    Generation, Hook, Placement, PositionInfo,
    spec::{Budget, PluginSpec, Policy, Rejection, Source},
};

impl Activation {
    /// The plugins of a tenant, in the order of the file; those the file does not name come last.
    pub fn list(&self, tenant: &Tenant) -> Plugins {
        let generation = tenant.live.now();
        let wanted = self.wanted();
        let mut names: Vec<&String> = generation.spec().plugins.keys().collect();
        names.sort_by_key(|name| wanted.place(name));
        let info = |name: &String| {
            let spec = generation.spec().plugins.get(name)?;
            let lines = [wanted.drift(&tenant.name, name, spec), wanted.refusal()];
            let lines: Vec<_> = lines.into_iter().filter(|line| !line.is_empty()).collect();
            Some(plugin_info(&generation, name, spec, lines.join("; ")))
        };
        Plugins { plugins: names.into_iter().filter_map(info).collect(), generation: generation.number() }
    }

    /// Where what runs differs from the file, over all tenants; one line each.
    pub fn drift(&self) -> Vec<String> {
        let wanted = self.wanted();
        let refusal = wanted.refusal();
        let mut lines: Vec<String> =
            Some(format!("plugins.toml: {refusal}")).filter(|_| !refusal.is_empty()).into_iter().collect();
        for tenant in self.tenants() {
            for (name, spec) in &tenant.live.now().spec().plugins {
                let line = wanted.drift(&tenant.name, name, spec);
                if !line.is_empty() {
                    lines.push(format!("tenant {}: plugin {name}: {line}", tenant.name));
                }
            }
        }
        lines
    }

    /// Plugins that are not loaded, over all tenants; one line each.
    pub fn faults(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for tenant in self.tenants() {
            for (name, plugin) in tenant.live.now().plugins() {
                if let Err(error) = plugin {
                    lines.push(format!("tenant {}: plugin {name}: {error}", tenant.name));
                }
            }
        }
        lines
    }

    /// The effective chain of a topic.
    pub fn explain(&self, tenant: &Tenant, topic: &str) -> Chain {
        let generation = tenant.live.now();
        let positions = generation.explain(topic).into_iter().map(|at| position(&generation, at)).collect();
        let rejection = match generation.rejection(topic) {
            Rejection::PerRecord => "per-record",
            Rejection::All => "all",
        };
        Chain {
            positions,
            generation: generation.number(),
            rejection: rejection.to_owned(),
            required: generation.required(topic),
            retention: retention::told(generation.spec(), topic),
        }
    }
}

fn plugin_info(generation: &Generation, name: &str, spec: &PluginSpec, drift: String) -> PluginInfo {
    let used = |hook: fn(&crate::hooks::spec::ChainEntry) -> &Vec<crate::hooks::spec::Use>, label: &str| {
        let stands = generation.spec().chain.iter().any(|entry| hook(entry).iter().any(|at| at.plugin == name));
        stands.then(|| label.to_owned())
    };
    let hooks = [used(|entry| &entry.produce, "produce"), used(|entry| &entry.fetch, "fetch")];
    let mut info = PluginInfo {
        name: name.to_owned(),
        hooks: hooks.into_iter().flatten().collect(),
        source: match spec.source {
            Source::File => "file",
            Source::Swap => "swap",
        }
        .to_owned(),
        drift,
        grants: spec.grants.clone(),
        ..PluginInfo::default()
    };
    match generation.plugin(name) {
        Some(Ok(plugin)) => {
            let stats = plugin.stats();
            let both = [&stats.produce, &stats.fetch];
            info.digest = plugin.digest().to_owned();
            info.version.clone_from(&plugin.manifest().version);
            info.calls = both.iter().map(|hook| hook.calls).sum();
            info.records = both.iter().map(|hook| hook.records).sum();
            info.cpu_ns = both.iter().map(|hook| hook.cpu_ns).sum();
            info.faults = both.iter().map(|hook| hook.faults.total()).sum();
            info.dropped = both.iter().map(|hook| hook.dropped).sum();
            info.rejected = both.iter().map(|hook| hook.rejected).sum();
            info.changed = both.iter().map(|hook| hook.changed).sum();
            info.memory_bytes = stats.memory_bytes;
            info.placement = placement(stats.placement).to_owned();
        }
        Some(Err(error)) => info.fault = error.to_string(),
        None => info.fault = "not loaded".to_owned(),
    }
    info
}

/// Where calls run, for people.
pub(in crate::server) fn placement(placement: Placement) -> &'static str {
    match placement {
        Placement::Inline => "inline",
        Placement::HookThread => "hook thread",
    }
}

fn position(generation: &Generation, at: PositionInfo) -> ChainPosition {
    let entry = generation.spec().chain.iter().find(|entry| entry.place == at.place);
    let spec = generation.spec().plugins.get(&at.plugin);
    ChainPosition {
        hook: match at.hook {
            Hook::Produce => "produce",
            Hook::Fetch => "fetch",
        }
        .to_owned(),
        plugin: at.plugin,
        place: at.place,
        topics: entry.map(|entry| entry.topics.clone()).unwrap_or_default(),
        except: entry.map(|entry| entry.except.clone()).unwrap_or_default(),
        digest: at.digest,
        budget: spec.map(|spec| budget(&spec.budget, at.cpu, at.cpu_per_mib)).unwrap_or_default(),
        policy: match at.policy {
            Policy::Closed => "closed",
            Policy::Open => "open",
        }
        .to_owned(),
        unless: at.unless,
    }
}

/// `5ms + 20ms/MiB, 32 MiB, output 4x`. The times are those in force, the rest is as configured.
fn budget(budget: &Budget, cpu: Duration, cpu_per_mib: Duration) -> String {
    let memory = match budget.memory_bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes => format!("{} KiB", bytes >> 10),
    };
    format!("{cpu:?} + {cpu_per_mib:?}/MiB, {memory}, output {}x", budget.output_times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_in_a_line() {
        let default = Budget::default();
        let line = budget(&default, default.cpu, default.cpu_per_mib);
        assert_eq!(line, "5ms + 20ms/MiB, 32 MiB, output 4x");
    }
}
