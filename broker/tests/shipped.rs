//! The repository's `plugins.toml` with its real plugins over the real events: what is admitted equals the verdicts of a second
//! validator, line by line. Guests are built by `cargo xtask guests`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use tidegate::{
    clock::{SystemClock, SystemRandom},
    config::plugins,
    hooks::{Config, Generation, Host, Level, Runtime},
    record::{Batch, Content},
};
use tidegate_protocol::{
    batch::{BatchBody, BatchBuilder},
    limits::Limits,
    record::{RecordView, headers},
};

#[derive(Debug)]
struct Quiet;

impl Host for Quiet {
    fn guest_log(&self, _: &str, plugin: &str, _: Level, message: &str) {
        panic!("{plugin} logs: {message}");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(name: &str) -> String {
    let path = root().join("examples/github").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The generation that the shipped file asks for.
fn shipped() -> Arc<Generation> {
    let desired = plugins::load(&root().join("plugins.toml")).unwrap();
    assert!(desired.warnings.is_empty(), "{:?}", desired.warnings);
    let clock = Arc::new(SystemClock::default());
    let random = Arc::new(SystemRandom::default());
    let runtime = Runtime::new(Config::default(), Arc::new(Quiet), clock, random).unwrap();
    let spec = desired.tenants["default"].clone();
    let mut loaded = BTreeMap::new();
    for (name, plugin) in &spec.plugins {
        let component = desired.component(plugin).unwrap();
        let plugin = runtime.load("default", name, plugin, component, desired.files(plugin));
        loaded.insert(name.clone(), Ok(plugin.unwrap_or_else(|error| panic!("{name}: {error}"))));
    }
    runtime.generation("default", 1, Arc::new(spec), loaded).unwrap()
}

fn batch(lines: &[&str]) -> Batch {
    let mut builder = BatchBuilder::new();
    for line in lines {
        let record = RecordView { key: None, value: Some(line.as_bytes()), headers: &[], timestamp_ms: 0 };
        builder.push("github/raw", record);
    }
    let body = BatchBody::parse(builder.finish(), &Limits::default()).unwrap();
    Batch { tenant: 1, principal: "test".into(), body }
}

#[tokio::test]
async fn the_shipped_chain_admits_what_the_second_validator_admits() {
    let chain = shipped();
    let events = read("events.ndjson");
    let lines: Vec<&str> = events.lines().collect();
    let table = read("validity.tsv");
    let expected: Vec<(&str, bool)> = table
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            (fields[1], fields[2].parse().unwrap())
        })
        .collect();
    assert_eq!(lines.len(), expected.len());

    for (number, some) in (0..).zip(lines.chunks(32)) {
        let expected = &expected[number * 32..];
        let (_, outcome) = chain.produce(batch(some)).await.unwrap();
        let refused: Vec<usize> = outcome.refused.iter().map(|refused| refused.index as usize).collect();
        for (at, (event, valid)) in expected.iter().enumerate().take(some.len()) {
            assert_eq!(!refused.contains(&at), *valid, "line {}, {event}", number * 32 + at + 1);
        }
        for refused in &outcome.refused {
            assert_eq!((refused.plugin.as_str(), refused.plugin_code), ("schema", 2), "{}", refused.reason);
            assert!(refused.reason.starts_with("/payload"), "{}", refused.reason);
        }
        let Content::Rebuilt(records) = &outcome.content else { panic!("routed records are rebuilt") };
        let admitted = expected.iter().take(some.len()).filter(|(_, valid)| *valid);
        for (record, (event, _)) in records.iter().zip(admitted) {
            assert_eq!(record.topic.as_str(), format!("github/{event}"));
            let names: Vec<&str> = headers(&record.headers).map(|header| header.unwrap().0).collect();
            assert_eq!(names, ["tidegate-schema", "stamp", "stamp-padding"]);
        }
    }
    for (name, plugin) in chain.plugins() {
        let stats = plugin.as_ref().unwrap().stats();
        assert_eq!(stats.produce.faults.total(), 0, "{name}");
    }
}
