//! One runtime for all tests, and short ways to say: this plugin, this chain, these records.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, LazyLock, Mutex},
};

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_protocol::{
    batch::{BatchBody, BatchBuilder},
    limits::Limits,
    record::{RecordView, headers},
    stored::{FrameHeader, RefusedStatus, StoredFrame, TopicStamp},
};

use crate::{
    clock::{SystemClock, SystemRandom},
    hooks::{
        Config, Generation, Host, Level, LoadError, Plugin, Runtime,
        spec::{Budget, ChainEntry, PluginSpec, Policy, Rejection, Source, TenantSpec, Use},
    },
    record::{Batch, Content, Outcome},
};

/// Keeps what guests log.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<Vec<String>>);

impl Host for Log {
    fn guest_log(&self, tenant: &str, plugin: &str, level: Level, message: &str) {
        self.0.lock().unwrap().push(format!("{tenant} {plugin} {level:?} {message}"));
    }
}

impl Log {
    pub(super) fn of(&self, plugin: &str) -> Vec<String> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|line| line.split(' ').nth(1) == Some(plugin)).cloned().collect()
    }
}

pub(super) static LOG: LazyLock<Arc<Log>> = LazyLock::new(Arc::default);

static CACHE: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

pub(super) static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| runtime(Config { cache_dir: Some(CACHE.path().join("code")), ..Config::default() }));

pub(super) fn runtime(config: Config) -> Runtime {
    let host: Arc<Log> = Arc::clone(&LOG);
    Runtime::new(config, host, Arc::new(SystemClock::default()), Arc::new(SystemRandom::default())).unwrap()
}

/// A guest that `cargo xtask guests` built.
pub(super) fn guest(name: &str) -> Vec<u8> {
    let plugins = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/plugins"));
    let path = plugins.join(name).with_extension("wasm");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}: run `cargo xtask guests` first", path.display()))
}

pub(super) fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    format!("sha256:{}", digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Every capability: the hostile guest imports all of them.
pub(super) const ALL: [&str; 5] = ["log", "clock", "random", "counters", "batch"];

pub(super) fn spec(component: &[u8], settings: &Value, grants: &[&str]) -> PluginSpec {
    PluginSpec {
        digest: digest(component),
        settings: settings.to_string(),
        files: BTreeMap::new(),
        grants: grants.iter().map(ToString::to_string).collect(),
        budget: Budget::default(),
        on_produce_failure: Policy::Closed,
        on_fetch_failure: Policy::Closed,
        wasi: false,
        source: Source::File,
        applied: String::new(),
        place: "plugins.toml:1".into(),
    }
}

/// A plugin of a test: its name and how it is configured.
#[derive(Clone)]
pub(super) struct Given {
    pub(super) name: String,
    pub(super) component: Vec<u8>,
    pub(super) spec: PluginSpec,
}

impl Given {
    pub(super) fn hostile(name: &str, settings: &Value) -> Self {
        let component = guest("hostile");
        let spec = spec(&component, settings, &ALL);
        Self { name: name.into(), component, spec }
    }
    pub(super) fn noop(name: &str) -> Self {
        let component = guest("noop");
        let spec = spec(&component, &json!({}), &[]);
        Self { name: name.into(), component, spec }
    }
    pub(super) fn grant(mut self, grant: &str) -> Self {
        self.spec.grants.push(grant.into());
        self
    }
    pub(super) fn open(mut self) -> Self {
        self.spec.on_produce_failure = Policy::Open;
        self.spec.on_fetch_failure = Policy::Open;
        self
    }
    pub(super) fn budget(mut self, change: impl FnOnce(&mut Budget)) -> Self {
        change(&mut self.spec.budget);
        self
    }
    pub(super) fn load(&self) -> Result<Arc<Plugin>, LoadError> {
        RUNTIME.load("acme", &self.name, &self.spec, &self.component, Vec::new())
    }
}

/// A chain entry: topics, then the produce list.
pub(super) fn entry(topics: &[&str], produce: &[&str]) -> ChainEntry {
    let used = |plugin: &&str| Use { plugin: (*plugin).into(), unless: String::new() };
    ChainEntry {
        topics: topics.iter().map(ToString::to_string).collect(),
        except: Vec::new(),
        produce: produce.iter().map(used).collect(),
        fetch: Vec::new(),
        rejection: Rejection::PerRecord,
        enforced: false,
        retention: None,
        place: "plugins.toml:9".into(),
    }
}

/// A chain entry: topics, then the fetch list.
pub(super) fn fetch_entry(topics: &[&str], fetch: &[&str]) -> ChainEntry {
    let mut entry = entry(topics, fetch);
    std::mem::swap(&mut entry.produce, &mut entry.fetch);
    entry
}

pub(super) fn generation(given: &[Given], chain: Vec<ChainEntry>) -> Arc<Generation> {
    let plugins = given.iter().map(|given| (given.name.clone(), given.load().map_err(Arc::new))).collect();
    let configured = given.iter().map(|given| (given.name.clone(), given.spec.clone())).collect();
    let spec = Arc::new(TenantSpec { plugins: configured, chain });
    RUNTIME.generation("acme", 3, spec, plugins).unwrap()
}

/// The plugin of a generation.
pub(super) fn plugin(generation: &Generation, name: &str) -> Arc<Plugin> {
    Arc::clone(generation.plugin(name).unwrap().as_ref().unwrap())
}

/// A body of records: topic, key, value.
pub(super) fn body(records: &[(&str, &str, &str)]) -> BatchBody {
    let mut builder = BatchBuilder::new();
    for (number, (topic, key, value)) in (0_i64..).zip(records) {
        let record = RecordView {
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            headers: &[],
            timestamp_ms: 1000 + number,
        };
        builder.push(topic, record);
    }
    BatchBody::parse(builder.finish(), &Limits::default()).unwrap()
}

pub(super) fn batch(records: &[(&str, &str, &str)]) -> Batch {
    Batch { tenant: 1, principal: "alice".into(), body: body(records) }
}

/// The records as a stored frame whose topics begin at offset 100, 200, …
pub(super) fn frame(records: &[(&str, &str, &str)], first_lsn: u64) -> Arc<StoredFrame> {
    let body = body(records);
    let header = FrameHeader {
        first_lsn,
        input_count: body.len(),
        topics: (1..=body.topics().len() as u64).map(|i| TopicStamp { id: 15 + i, base_offset: 100 * i }).collect(),
        key_versions: vec![1; body.len() as usize],
        ..FrameHeader::default()
    };
    Arc::new(StoredFrame::from_parts(header, Some(body)).unwrap())
}

/// What is to be stored, a line each: `topic key=value [name=value …] (emitted)`.
pub(super) fn stored(outcome: &Outcome) -> Vec<String> {
    let Content::Rebuilt(records) = &outcome.content else { return vec!["verbatim".into()] };
    let text = |bytes: &Option<Bytes>| {
        bytes.as_ref().map_or_else(|| "null".into(), |bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    let line = |record: &crate::record::Rebuilt| {
        let mut line = format!("{} {}={}", record.topic, text(&record.key), text(&record.value));
        line += &header_text(&record.headers);
        line + if record.emitted { " (emitted)" } else { "" }
    };
    records.iter().map(line).collect()
}

pub(super) fn header_text(item: &[u8]) -> String {
    headers(item)
        .map(|header| {
            let (name, value) = header.unwrap();
            format!(" {name}={}", String::from_utf8_lossy(value.unwrap_or_default()))
        })
        .collect()
}

/// What became of the records that are not stored, a line each: `index status code plugin/plugin code: reason`.
pub(super) fn refused(outcome: &Outcome) -> Vec<String> {
    let line = |refused: &tidegate_protocol::stored::Refused| {
        let status = if refused.status == RefusedStatus::Dropped { "dropped" } else { "rejected" };
        format!(
            "{} {status} {} {}/{}: {}",
            refused.index, refused.code, refused.plugin, refused.plugin_code, refused.reason
        )
    };
    outcome.refused.iter().map(line).collect()
}
