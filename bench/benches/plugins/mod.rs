//! Plugins under measurement: a runtime as the broker has it, and what it is told of each plugin.
#![allow(dead_code, reason = "each benchmark uses a part")]

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use bytes::Bytes;
use tidegate::{
    clock::{SystemClock, SystemRandom},
    hooks::{
        Config, Host, Level, Runtime,
        spec::{Budget, PluginSpec, Policy, Source},
    },
};

/// As in the broker's binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Settings of the shipped `schema`.
pub(crate) const SCHEMA_SETTINGS: &str = r#"{"asyncapi":"file:examples/github/asyncapi.json"}"#;

#[derive(Debug)]
struct Quiet;

impl Host for Quiet {
    fn guest_log(&self, _: &str, _: &str, _: Level, _: &str) {}
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A plugin that `cargo xtask guests` built.
pub(crate) fn component(name: &str) -> Result<Vec<u8>> {
    let path = root().join("target/plugins").join(name).with_extension("wasm");
    std::fs::read(&path).with_context(|| format!("{}: run `cargo xtask guests` first", path.display()))
}

/// A file of the real events and what describes them.
pub(crate) fn example(name: &str) -> Result<String> {
    let path = root().join("examples/github").join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// What [`SCHEMA_SETTINGS`] refer to.
pub(crate) fn schema_files() -> Result<Vec<(String, Bytes)>> {
    let file = |name: &str| Ok((format!("examples/github/{name}"), Bytes::from(example(name)?)));
    ["asyncapi.json", "schema.json"].into_iter().map(file).collect()
}

/// With budgets that no measurement meets.
pub(crate) fn spec(bytes: &[u8], settings: &str) -> PluginSpec {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    PluginSpec {
        digest: format!("sha256:{hex}"),
        settings: settings.to_owned(),
        files: BTreeMap::new(),
        grants: vec!["log".to_owned(), "header:tidegate-schema".to_owned()],
        budget: Budget { cpu: Duration::from_secs(1), memory_bytes: 64 << 20, ..Budget::default() },
        on_produce_failure: Policy::Closed,
        on_fetch_failure: Policy::Closed,
        wasi: false,
        source: Source::File,
        applied: String::new(),
        place: "bench".to_owned(),
    }
}

/// Inline placement, as for any plugin whose calls are short.
pub(crate) fn runtime() -> Result<Runtime> {
    let cache_dir = Some(root().join("target/bench-cache"));
    let config = Config { cache_dir, inline_max: Duration::from_secs(1), ..Config::default() };
    Ok(Runtime::new(config, Arc::new(Quiet), Arc::new(SystemClock::default()), Arc::new(SystemRandom::default()))?)
}
