//! `plugins.toml`: which plugins a tenant runs, with what, where. Public API: order in the file is order in the chain.
//!
//! Called by `cli` (`check`) and by the broker through [`PluginsFile`]. Must not know whether a component runs: that is
//! for the hook runtime to say.

mod chain;
mod plugin;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    ConfigError,
    document::{Section, Source},
    read_text,
};
use crate::{
    hooks::spec::{PluginSpec, TenantSpec},
    server::activation::{Desired, DesiredError, DesiredSource},
};

/// What `plugins.toml` asks for: specs by tenant, and the bytes they name by digest.
pub type LoadedConfig = Desired;

/// Bytes of the file itself.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Plugins of one file.
const PLUGINS_MAX: usize = 256;
/// Entries of one file.
const CHAIN_MAX: usize = 1_024;
/// The tenant of an entry that names none.
pub const TENANT_DEFAULT: &str = "default";

/// Reads `plugins.toml` and everything it names.
///
/// # Errors
/// If a line of it does not hold, or a file it names cannot be read. Nothing else happened then.
pub fn load(path: &Path) -> Result<LoadedConfig, ConfigError> {
    let text = read_text(path, FILE_BYTES_MAX).map_err(|error| ConfigError { keeps_running: true, ..error })?;
    let name = path.display().to_string();
    parse(&Source { file: &name, text: &text, keeps_running: true }, folder(path))
}

/// The folder that paths in the file are relative to.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn parse(source: &Source<'_>, root: &Path) -> Result<LoadedConfig, ConfigError> {
    let table = source.parse()?;
    let document = Section::root(source, &table);
    document.only(&["version", "defaults", "plugin", "chain"], &[])?;
    version(&document)?;
    let defaults = match document.section("defaults")? {
        Some(section) => {
            section.only(&["budget", "on_failure"], &[])?;
            plugin::Defaults::read(&section)?
        }
        None => plugin::Defaults::default(),
    };
    let mut blobs = BTreeMap::new();
    let mut plugins = BTreeMap::new();
    let sections = document.section("plugin")?.map(|section| section.sections()).transpose()?.unwrap_or_default();
    if sections.len() > PLUGINS_MAX {
        let reason = format!("{} plugins, at most {PLUGINS_MAX} are allowed", sections.len());
        return Err(source.error(0..0, "plugin", reason));
    }
    let mut order = Vec::new();
    for (name, section) in &sections {
        plugins.insert(name.clone(), plugin::read(name, section, &defaults, root, &mut blobs)?);
        order.push((name.clone(), section.span()));
    }
    let entries = document.array_of_sections("chain")?;
    if entries.len() > CHAIN_MAX {
        let reason = format!("{} chain entries, at most {CHAIN_MAX} are allowed", entries.len());
        return Err(source.error(0..0, "chain", reason));
    }
    let names: Vec<&str> = plugins.keys().map(String::as_str).collect();
    let mut warnings = Vec::new();
    let mut tenants: BTreeMap<String, TenantSpec> = BTreeMap::new();
    for section in &entries {
        let (tenant, entry) = chain::read(section, &names, &mut warnings)?;
        tenants.entry(tenant).or_default().chain.push(entry);
    }
    tenants.values().for_each(|tenant| chain::warn_hidden(&tenant.chain, &mut warnings));
    place_plugins(&plugins, &mut tenants, &mut warnings);
    Ok(Desired { tenants, blobs, order: order.into_iter().map(|(name, _)| name).collect(), warnings })
}

fn version(document: &Section<'_>) -> Result<(), ConfigError> {
    let item = document.needed("version", "version = 1")?;
    match item.get_ref().as_integer().map(|number| number.as_str()) {
        Some("1") => Ok(()),
        _ => Err(document.error("version", item, "this build reads version = 1 of the file only".to_owned())),
    }
}

/// Gives each tenant the plugins its entries use. One that nobody uses is still loaded and checked, for the default tenant.
fn place_plugins(
    plugins: &BTreeMap<String, PluginSpec>,
    tenants: &mut BTreeMap<String, TenantSpec>,
    warnings: &mut Vec<String>,
) {
    let mut used = BTreeSet::new();
    for spec in tenants.values_mut() {
        for at in spec.chain.iter().flat_map(|entry| entry.produce.iter().chain(&entry.fetch)) {
            if let Some(plugin) = plugins.get(&at.plugin) {
                spec.plugins.insert(at.plugin.clone(), plugin.clone());
                used.insert(at.plugin.clone());
            }
        }
    }
    for (name, plugin) in plugins.iter().filter(|(name, _)| !used.contains(*name)) {
        warnings.push(format!("{}: plugin {name:?} stands in no chain", plugin.place));
        tenants.entry(TENANT_DEFAULT.to_owned()).or_default().plugins.insert(name.clone(), plugin.clone());
    }
}

/// The file as the broker reads it again and again.
#[derive(Debug, Clone)]
pub struct PluginsFile {
    /// Its path.
    pub path: PathBuf,
}

impl DesiredSource for PluginsFile {
    fn load(&self) -> Result<Desired, DesiredError> {
        load(&self.path).map_err(|error| DesiredError { short: error.short(), full: error.to_string() })
    }
}

/// Names of plugins and tenants: 1 to 64 of letters, digits, `_` and `-`.
fn name_holds(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// Keeps bytes by digest and gives the digest.
fn keep(blobs: &mut BTreeMap<String, Bytes>, bytes: Bytes) -> String {
    let digest = super::sha256(&bytes);
    blobs.entry(digest.clone()).or_insert(bytes);
    digest
}

#[cfg(test)]
mod tests;
