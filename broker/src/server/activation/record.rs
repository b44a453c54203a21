//! The activation record: what runs, and what each plugin would go back to. JSON, version 1, opaque to the shard.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_protocol::wire::OverrideEnded;

use crate::hooks::spec::{PluginSpec, Source, TenantSpec};

/// Version of the record's form.
const VERSION: u32 = 1;

/// What an activation made live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// What runs.
    pub(super) spec: TenantSpec,
    /// The version before, by plugin.
    pub(super) previous: BTreeMap<String, PluginSpec>,
    /// Those before it, by plugin, the newest last. Records of builds that knew one version before have none.
    #[serde(default)]
    older: BTreeMap<String, Vec<PluginSpec>>,
}

/// Versions that a plugin can go back by. Each holds its settings, and all are in the record.
const VERSIONS_BEFORE_MAX: usize = 8;

/// Why stored bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A newer build wrote it.
    #[error("activation record has version {0}, this build reads version {VERSION}: use the build that wrote it")]
    Version(u32),
    /// It is damaged.
    #[error("activation record cannot be read: {0}")]
    Json(String),
}

impl Record {
    /// Nothing runs.
    pub(super) fn empty() -> Self {
        Self { version: VERSION, spec: TenantSpec::default(), previous: BTreeMap::new(), older: BTreeMap::new() }
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let json = |error: serde_json::Error| RecordError::Json(error.to_string());
        let Versioned { version } = serde_json::from_slice(bytes).map_err(json)?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        serde_json::from_slice(bytes).map_err(json)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data with text keys is JSON")
    }

    /// What a start or a reload makes of it: an entry that changed since it was applied is applied, the others keep what
    /// the command line made of them. Budgets, policies and chains are the file's in any case.
    pub(super) fn merged(&self, desired: &TenantSpec) -> Self {
        let mut merged = Self::empty();
        merged.spec.chain.clone_from(&desired.chain);
        for (name, want) in &desired.plugins {
            let have = self.spec.plugins.get(name);
            let next = match have {
                Some(have) if have.source == Source::Swap && have.applied == want.applied => PluginSpec {
                    budget: want.budget.clone(),
                    on_produce_failure: want.on_produce_failure,
                    on_fetch_failure: want.on_fetch_failure,
                    place: want.place.clone(),
                    ..have.clone()
                },
                _ => want.clone(),
            };
            let replaced = have.filter(|have| !same_version(have, &next));
            merged.go_back_by(name, self.versions_before(name).chain(replaced).cloned().collect());
            merged.spec.plugins.insert(name.clone(), next);
        }
        merged
    }

    /// Overrides of the command line that end when another record becomes live, and are not what that has in their place.
    pub(super) fn overrides_ended(&self, next: &Self) -> Vec<OverrideEnded> {
        let ended = |(name, have): (&String, &PluginSpec)| {
            let next = next.spec.plugins.get(name);
            let goes_on = next.is_some_and(|next| next.source == Source::Swap || same_version(have, next));
            (have.source == Source::Swap && !goes_on).then(|| OverrideEnded {
                plugin: name.clone(),
                digest: have.digest.clone(),
                next_digest: next.map(|next| next.digest.clone()).unwrap_or_default(),
            })
        };
        self.spec.plugins.iter().filter_map(ended).collect()
    }

    /// With another component for one plugin, or `None` if it is not configured. `desired` is the file's entry.
    pub(super) fn swapped(&self, name: &str, digest: &str, desired: Option<&PluginSpec>) -> Option<Self> {
        let have = self.spec.plugins.get(name)?;
        let mut next = PluginSpec { digest: digest.to_owned(), ..have.clone() };
        next.source = source(&next, desired);
        Some(self.replaced(name, next))
    }

    /// With the version before for one plugin, or `None` if there is none. What runs now is not kept: the next rollback goes
    /// further back, never forth again.
    pub(super) fn rolled_back(&self, name: &str, desired: Option<&PluginSpec>) -> Option<Self> {
        let have = self.spec.plugins.get(name)?;
        let mut versions: Vec<PluginSpec> = self.versions_before(name).cloned().collect();
        let mut next = PluginSpec {
            budget: have.budget.clone(),
            on_produce_failure: have.on_produce_failure,
            on_fetch_failure: have.on_fetch_failure,
            place: have.place.clone(),
            applied: have.applied.clone(),
            ..versions.pop()?
        };
        next.source = source(&next, desired);
        let mut record = self.clone();
        record.spec.plugins.insert(name.to_owned(), next);
        record.go_back_by(name, versions);
        Some(record)
    }

    fn replaced(&self, name: &str, next: PluginSpec) -> Self {
        let mut record = self.clone();
        let have = self.spec.plugins.get(name).filter(|have| !same_version(have, &next));
        record.spec.plugins.insert(name.to_owned(), next.clone());
        record.go_back_by(name, self.versions_before(name).chain(have).cloned().collect());
        record
    }

    /// Digests of everything that it needs to run, or to go back.
    pub(super) fn digests(&self) -> impl Iterator<Item = &str> {
        let before = self.previous.values().chain(self.older.values().flatten());
        let specs = self.spec.plugins.values().chain(before);
        specs.flat_map(|spec| std::iter::once(&spec.digest).chain(spec.files.values())).map(String::as_str)
    }

    /// What a plugin ran before, the newest last.
    fn versions_before(&self, name: &str) -> impl Iterator<Item = &PluginSpec> {
        self.older.get(name).into_iter().flatten().chain(self.previous.get(name))
    }

    /// Keeps the newest of the versions that a plugin goes back by.
    fn go_back_by(&mut self, name: &str, mut versions: Vec<PluginSpec>) {
        versions.drain(..versions.len().saturating_sub(VERSIONS_BEFORE_MAX));
        self.previous.remove(name);
        self.older.remove(name);
        if let Some(previous) = versions.pop() {
            self.previous.insert(name.to_owned(), previous);
        }
        if !versions.is_empty() {
            self.older.insert(name.to_owned(), versions);
        }
    }
}

/// Back at what the file says, nothing overrides it.
fn source(next: &PluginSpec, desired: Option<&PluginSpec>) -> Source {
    match desired {
        Some(desired) if desired.applied == next.applied && same_version(desired, next) => Source::File,
        _ => Source::Swap,
    }
}

/// The same code under the same settings: what a rollback tells apart.
pub(super) fn same_version(left: &PluginSpec, right: &PluginSpec) -> bool {
    left.digest == right.digest
        && left.settings == right.settings
        && left.files == right.files
        && left.grants == right.grants
}

/// A loaded plugin of one spec serves for the other. Policies belong to the generation, not to the plugin.
pub(super) fn same_load(left: &PluginSpec, right: &PluginSpec) -> bool {
    same_version(left, right) && left.budget == right.budget && left.wasi == right.wasi
}

/// How what runs differs from the file, for people; empty = it does not.
pub(super) fn drift(runs: &PluginSpec, desired: Option<&PluginSpec>) -> String {
    let Some(desired) = desired else { return "not in plugins.toml any more".to_owned() };
    if runs.digest != desired.digest {
        return format!("runs {}, plugins.toml has {}", short(&runs.digest), short(&desired.digest));
    }
    if !same_version(runs, desired) {
        return "runs with other settings than plugins.toml has".to_owned();
    }
    String::new()
}

/// The first digits of a digest, as people compare them.
fn short(digest: &str) -> &str {
    digest.get(..SHORT_BYTES).unwrap_or(digest)
}

/// `sha256:` and 12 digits.
const SHORT_BYTES: usize = 19;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::spec::{Budget, Policy};

    fn plugin(digest: &str, applied: &str) -> PluginSpec {
        PluginSpec {
            digest: digest.to_owned(),
            settings: "{}".to_owned(),
            files: BTreeMap::new(),
            grants: Vec::new(),
            budget: Budget::default(),
            on_produce_failure: Policy::Closed,
            on_fetch_failure: Policy::Closed,
            wasi: false,
            source: Source::File,
            applied: applied.to_owned(),
            place: "plugins.toml:3".to_owned(),
        }
    }

    fn spec(entries: &[(&str, PluginSpec)]) -> TenantSpec {
        let plugins = entries.iter().map(|(name, plugin)| ((*name).to_owned(), plugin.clone())).collect();
        TenantSpec { plugins, chain: Vec::new() }
    }

    fn runs<'a>(record: &'a Record, name: &str) -> &'a PluginSpec {
        record.spec.plugins.get(name).expect("there")
    }

    #[test]
    fn bytes_and_back() {
        let record = Record::empty().merged(&spec(&[("a", plugin("1", "x"))]));
        assert_eq!(Record::read(&record.to_bytes()), Ok(record));
        assert_eq!(Record::read(b"{\"version\":2,\"new\":1}"), Err(RecordError::Version(2)));
        assert!(matches!(Record::read(b"{"), Err(RecordError::Json(_))));
    }

    #[test]
    fn an_override_outlives_a_reload_until_its_entry_changes() {
        let file = spec(&[("a", plugin("1", "x")), ("b", plugin("5", "y"))]);
        let swapped = Record::empty().merged(&file).swapped("a", "2", file.plugins.get("a")).expect("configured");
        assert_eq!((runs(&swapped, "a").digest.as_str(), runs(&swapped, "a").source), ("2", Source::Swap));
        // Another entry changes, and the defaults.
        let mut other = plugin("1", "x");
        other.on_fetch_failure = Policy::Open;
        let reloaded = swapped.merged(&spec(&[("a", other), ("b", plugin("6", "z"))]));
        assert_eq!((runs(&reloaded, "a").digest.as_str(), runs(&reloaded, "b").digest.as_str()), ("2", "6"));
        assert_eq!(runs(&reloaded, "a").on_fetch_failure, Policy::Open);
        assert_eq!(reloaded.previous.get("a").map(|spec| spec.digest.as_str()), Some("1"));
        assert_eq!(reloaded.previous.get("b").map(|spec| spec.digest.as_str()), Some("5"));
        assert_eq!(swapped.overrides_ended(&reloaded), []);
        // Its own entry changes.
        let applied = reloaded.merged(&spec(&[("a", plugin("3", "w"))]));
        let ended = |next: &str| OverrideEnded { plugin: "a".into(), digest: "2".into(), next_digest: next.into() };
        assert_eq!(reloaded.overrides_ended(&applied), [ended("3")]);
        assert_eq!(reloaded.overrides_ended(&reloaded.merged(&spec(&[]))), [ended("")], "its entry is gone");
        let adopted = reloaded.merged(&spec(&[("a", plugin("2", "v"))]));
        assert_eq!(reloaded.overrides_ended(&adopted), [], "the file has taken it over");
        assert_eq!((runs(&applied, "a").digest.as_str(), runs(&applied, "a").source), ("3", Source::File));
        assert_eq!(applied.previous.get("a").map(|spec| spec.digest.as_str()), Some("2"));
        assert!(!applied.spec.plugins.contains_key("b") && !applied.previous.contains_key("b"));
    }

    fn swapped(record: &Record, digest: &str) -> Record {
        record.swapped("a", digest, None).expect("configured")
    }

    /// A second rollback went forth again, to the version that the first was to get rid of.
    #[test]
    fn each_rollback_goes_further_back() {
        let file = spec(&[("a", plugin("1", "x"))]);
        let desired = file.plugins.get("a");
        let first = Record::empty().merged(&file);
        assert_eq!(first.rolled_back("a", desired), None, "there is no version before");
        assert_eq!(first.swapped("b", "2", None), None, "it is not configured");
        let second = first.swapped("a", "2", desired).expect("configured");
        assert_eq!(drift(runs(&second, "a"), desired), "runs 2, plugins.toml has 1");
        let third = swapped(&second, "3");
        let back = third.rolled_back("a", desired).expect("a version before");
        assert_eq!((runs(&back, "a").digest.as_str(), runs(&back, "a").source), ("2", Source::Swap));
        let back = back.rolled_back("a", desired).expect("a version before");
        assert_eq!((runs(&back, "a").digest.as_str(), runs(&back, "a").source), ("1", Source::File));
        assert_eq!(drift(runs(&back, "a"), desired), "");
        assert_eq!(back.rolled_back("a", desired), None, "it is the oldest");
        // What came meanwhile counts from where it is.
        let fourth = swapped(&back, "4");
        assert_eq!(runs(&fourth.rolled_back("a", desired).expect("a version before"), "a").digest, "1");
        // So does a version that the file brings.
        let reloaded = third.merged(&spec(&[("a", plugin("5", "y"))]));
        let back = reloaded.rolled_back("a", None).expect("a version before");
        assert_eq!(runs(&back, "a").digest, "3");
        assert_eq!(runs(&back.rolled_back("a", None).expect("a version before"), "a").digest, "2");
    }

    /// It was put into the history, and each rollback met it there again.
    #[test]
    fn a_swap_to_what_runs_is_no_step() {
        let first = Record::empty().merged(&spec(&[("a", plugin("1", "x"))]));
        let again = swapped(&swapped(&first, "2"), "2");
        assert_eq!(runs(&again.rolled_back("a", None).expect("a version before"), "a").digest, "1");
    }

    #[test]
    fn the_way_back_has_a_bound() {
        let first = Record::empty().merged(&spec(&[("a", plugin("0", "x"))]));
        let mut record = (1..=20).fold(first, |record, version| swapped(&record, &version.to_string()));
        let mut steps = 0;
        while let Some(back) = record.rolled_back("a", None) {
            record = back;
            steps += 1;
        }
        assert_eq!((steps, runs(&record, "a").digest.as_str()), (VERSIONS_BEFORE_MAX, "12"));
    }

    #[test]
    fn a_record_of_a_build_that_knew_one_version_before_is_read() {
        let record = swapped(&Record::empty().merged(&spec(&[("a", plugin("1", "x"))])), "2");
        let mut json: serde_json::Value = serde_json::from_slice(&record.to_bytes()).expect("JSON");
        json.as_object_mut().expect("an object").remove("older");
        assert_eq!(Record::read(json.to_string().as_bytes()), Ok(record));
    }

    #[test]
    fn nothing_new_is_nothing_new() {
        let file = spec(&[("a", plugin("1", "x"))]);
        let record = Record::empty().merged(&file);
        assert_eq!(record.merged(&file), record);
    }
}
