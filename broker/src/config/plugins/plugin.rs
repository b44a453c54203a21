//! One `[plugin.NAME]` and `[defaults]`.

use std::{collections::BTreeMap, path::Path};

use bytes::Bytes;
use tidegate_protocol::topic::TopicPattern;
use toml::de::DeValue;

use super::{keep, name_holds};
use crate::{
    config::{
        ConfigError,
        bundle::Bundle,
        document::{Item, Section, item_json},
        read_bytes, sha256, units,
    },
    hooks::spec::{Budget, PluginSpec, Policy, Source},
};

/// Bytes of a component, as on the wire.
const COMPONENT_BYTES_MAX: u64 = 64 << 20;
/// Linear memory an operator may give one instance.
const MEMORY_BYTES_MAX: u64 = 4 << 30;
/// Bytes of one plugin's settings as JSON.
const SETTINGS_BYTES_MAX: usize = 256 << 10;
/// Grants of one plugin.
const GRANTS_MAX: usize = 64;

/// Grants that stand alone.
const GRANTS: &[&str] = &["log", "clock", "random", "counters", "batch"];
/// Grants with something behind the colon.
const GRANTS_WITH: &[&str] = &["route", "emit", "header"];
/// Grants that a coming version serves.
const GRANTS_LATER: &[&str] = &["schemas", "crypto", "state", "blob-store", "table-pointer", "secrets", "http"];

/// What `[defaults]` says.
#[derive(Debug, Clone, Default)]
pub(super) struct Defaults {
    budget: Budget,
    produce: Policy,
    fetch: Policy,
}

impl Defaults {
    /// Reads `budget` and `on_failure` of a section, over what stands.
    pub(super) fn read(section: &Section<'_>) -> Result<Self, ConfigError> {
        Self::default().over(section)
    }

    fn over(mut self, section: &Section<'_>) -> Result<Self, ConfigError> {
        if let Some(budget) = section.section("budget")? {
            self.budget(&budget)?;
        }
        if let Some(policy) = section.section("on_failure")? {
            self.policies(&policy)?;
        }
        Ok(self)
    }

    fn budget(&mut self, section: &Section<'_>) -> Result<(), ConfigError> {
        section.only(&["cpu", "cpu_per_mib", "init", "memory", "output"], &[])?;
        let duration = |key: &str, into: &mut std::time::Duration| -> Result<(), ConfigError> {
            if let Some((text, item)) = section.string(key)? {
                *into = units::duration(text).map_err(|reason| section.error(key, item, reason))?;
            }
            Ok(())
        };
        duration("cpu", &mut self.budget.cpu)?;
        duration("cpu_per_mib", &mut self.budget.cpu_per_mib)?;
        duration("init", &mut self.budget.init)?;
        if let Some((text, item)) = section.string("memory")? {
            let bytes = units::bytes(text).map_err(|reason| section.error("memory", item, reason))?;
            if !((64 << 10)..=MEMORY_BYTES_MAX).contains(&bytes) {
                return Err(section.error("memory", item, format!("memory {text:?} must be 64KiB to 4GiB")));
            }
            self.budget.memory_bytes = bytes;
        }
        if let Some((text, item)) = section.string("output")? {
            self.budget.output_times = units::times(text).map_err(|reason| section.error("output", item, reason))?;
        }
        Ok(())
    }

    /// `{ do = "closed" }` for both hooks, or `{ produce = { do = … }, fetch = { do = … } }`.
    fn policies(&mut self, section: &Section<'_>) -> Result<(), ConfigError> {
        if section.item("produce").is_none() && section.item("fetch").is_none() {
            let policy = policy(section, &["do", "produce", "fetch"])?;
            (self.produce, self.fetch) = (policy, policy);
            return Ok(());
        }
        section.only(&["produce", "fetch"], &["compact", "apply"])?;
        if let Some(hook) = section.section("produce")? {
            self.produce = policy(&hook, &["do"])?;
        }
        if let Some(hook) = section.section("fetch")? {
            self.fetch = policy(&hook, &["do"])?;
        }
        Ok(())
    }
}

fn policy(section: &Section<'_>, known: &[&str]) -> Result<Policy, ConfigError> {
    section.only(known, &["attempts", "breaker", "compact", "apply"])?;
    let item = section.needed("do", "do = \"closed\"")?;
    match section.text("do", item)? {
        "closed" => Ok(Policy::Closed),
        "open" => Ok(Policy::Open),
        "dead-letter" => {
            Err(section.error("do", item, "the policy \"dead-letter\" is not served in this version".to_owned()))
        }
        other => Err(section.spelling("do", item, "policy", other, &["closed", "open", "dead-letter"])),
    }
}

/// Reads one plugin with its component and files.
pub(super) fn read(
    name: &str,
    section: &Section<'_>,
    defaults: &Defaults,
    root: &Path,
    blobs: &mut BTreeMap<String, Bytes>,
) -> Result<PluginSpec, ConfigError> {
    section.only(&["from", "digest", "grants", "settings", "budget", "on_failure", "wasi"], &[])?;
    if !name_holds(name) {
        let reason = format!("plugin name {name:?} must be 1 to 64 of letters, digits, `_` and `-`");
        return Err(section.source().error(section.span(), section.key(""), reason));
    }
    if let Some((_, item)) = section.string("wasi")? {
        return Err(section.error(
            "wasi",
            item,
            "\"wasi\" is not served in this version: build the guest without it".to_owned(),
        ));
    }
    let own = defaults.clone().over(section)?;
    let digest = component(section, root, blobs)?;
    let (settings, files) = settings(section, root, blobs)?;
    let grants = grants(section)?;
    let applied = applied(section, &digest, &files)?;
    Ok(PluginSpec {
        digest,
        settings,
        files,
        grants,
        budget: own.budget,
        on_produce_failure: own.produce,
        on_fetch_failure: own.fetch,
        wasi: false,
        source: Source::File,
        applied,
        place: section.place(),
    })
}

fn component(section: &Section<'_>, root: &Path, blobs: &mut BTreeMap<String, Bytes>) -> Result<String, ConfigError> {
    let item = section.needed("from", "from = \"plugins/filter.wasm\"")?;
    let from = section.text("from", item)?;
    let bytes = read_bytes(&root.join(from), COMPONENT_BYTES_MAX)
        .map_err(|error| section.error("from", item, format!("{}: {}", error.file, error.reason)))?;
    let digest = keep(blobs, Bytes::from(bytes));
    if let Some((wanted, item)) = section.string("digest")? {
        let form = wanted.strip_prefix("sha256:").is_some_and(|hex| {
            hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        });
        if !form {
            let reason = format!("digest {wanted:?} must be \"sha256:\" and 64 hex digits in lower case");
            return Err(section.error("digest", item, reason));
        }
        if wanted != digest {
            let reason = format!("{from:?} has digest {digest}, not {wanted}: the file is not the one that was meant");
            return Err(section.error("digest", item, reason));
        }
    }
    Ok(digest)
}

fn settings(
    section: &Section<'_>,
    root: &Path,
    blobs: &mut BTreeMap<String, Bytes>,
) -> Result<(String, BTreeMap<String, String>), ConfigError> {
    let Some(item) = section.item("settings") else { return Ok(("{}".to_owned(), BTreeMap::new())) };
    if !item.get_ref().is_table() {
        return Err(section.error("settings", item, "\"settings\" must be a table".to_owned()));
    }
    let json = item_json(section.source(), &section.key("settings"), item)?.to_string();
    if json.len() > SETTINGS_BYTES_MAX {
        let reason = format!("settings are {} bytes as JSON, at most {SETTINGS_BYTES_MAX} are allowed", json.len());
        return Err(section.error("settings", item, reason));
    }
    let mut bundle = Bundle::default();
    bundle_settings(section, item, root, &mut bundle)?;
    let files = bundle.finish().map_err(|reason| section.error("settings", item, reason))?;
    Ok((json, files.into_iter().map(|(path, bytes)| (path, keep(blobs, bytes))).collect()))
}

fn bundle_settings<'a>(
    section: &Section<'a>,
    item: &Item<'a>,
    root: &Path,
    bundle: &mut Bundle,
) -> Result<(), ConfigError> {
    match item.get_ref() {
        DeValue::String(text) => {
            for later in ["secret:", "env:"] {
                if text.starts_with(later) {
                    let reason = format!("settings values \"{later}…\" are not served in this version");
                    return Err(section.error("settings", item, reason));
                }
            }
            let Some(path) = text.strip_prefix("file:") else { return Ok(()) };
            bundle.add(root, path).map_err(|reason| section.error("settings", item, reason))
        }
        DeValue::Array(items) => items.iter().try_for_each(|entry| bundle_settings(section, entry, root, bundle)),
        DeValue::Table(table) => table.iter().try_for_each(|(_, entry)| bundle_settings(section, entry, root, bundle)),
        _ => Ok(()),
    }
}

fn grants(section: &Section<'_>) -> Result<Vec<String>, ConfigError> {
    let items = section.array("grants")?;
    if let Some(item) = items.get(GRANTS_MAX) {
        return Err(section.error("grants", item, format!("more than {GRANTS_MAX} grants")));
    }
    let mut found: Vec<String> = Vec::new();
    for item in items {
        let text = section.text("grants", item)?;
        grant(section, item, text)?;
        if found.iter().any(|known| known == text) {
            return Err(section.error("grants", item, format!("grant {text:?} stands twice")));
        }
        found.push(text.to_owned());
    }
    Ok(found)
}

fn grant(section: &Section<'_>, item: &Item<'_>, text: &str) -> Result<(), ConfigError> {
    let later = |name: &str| {
        GRANTS_LATER
            .contains(&name)
            .then(|| section.error("grants", item, format!("grant {text:?} is not served in this version")))
    };
    let (name, target) = match text.split_once(':') {
        None => (text, None),
        Some((name, target)) => (name, Some(target)),
    };
    if let Some(error) = later(name) {
        return Err(error);
    }
    match (name, target) {
        (name, None) if GRANTS.contains(&name) => Ok(()),
        ("route" | "emit", Some(pattern)) => TopicPattern::parse(pattern)
            .map(|_| ())
            .map_err(|error| section.error("grants", item, format!("grant {text:?}: {}", error.reason))),
        ("header", Some(header)) if header.len() > "tidegate-".len() && header.starts_with("tidegate-") => Ok(()),
        ("header", Some(_)) => {
            let reason = format!("grant {text:?}: only names that start with \"tidegate-\" need a grant");
            Err(section.error("grants", item, reason))
        }
        (name, None) if GRANTS_WITH.contains(&name) => {
            let example = if name == "header" { "header:tidegate-schema" } else { "route:orders/>" };
            Err(section.error("grants", item, format!("grant {text:?} needs a target, as in {example:?}")))
        }
        (name, Some(_)) if GRANTS.contains(&name) => {
            Err(section.error("grants", item, format!("grant {name:?} takes no target, {text:?} gives one")))
        }
        (name, _) => {
            let known: Vec<&str> = [GRANTS, GRANTS_WITH, GRANTS_LATER].concat();
            let mut error = section.spelling("grants", item, "grant", name, &known);
            if error.suggestion.is_none() {
                error.reason = format!(
                    "unknown grant {name:?}; known are {}, route:PATTERN, emit:PATTERN, header:NAME",
                    GRANTS.join(", ")
                );
            }
            Err(error)
        }
    }
}

/// What a reload compares: the entry's own keys and values, the component and the files. Comments and order do not count,
/// nor do `[defaults]`: an override on the command line outlives a change of those.
fn applied(section: &Section<'_>, digest: &str, files: &BTreeMap<String, String>) -> Result<String, ConfigError> {
    let entry = serde_json::json!({ "entry": section.json()?, "component": digest, "files": files });
    Ok(sha256(entry.to_string().as_bytes()))
}
