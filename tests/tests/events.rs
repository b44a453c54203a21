//! The real events: 329 webhook deliveries through the repository's own chain, judged by a second validator's list.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, fs, time::Duration};

use serde_json::Value;
use tidegate_protocol::{error::Code, wire::ProduceHead};
use tidegate_tests::{
    broker::{Site, repository},
    ledger::gaps,
    raw::{Client, Send},
    wait::test,
};

const LIMIT: Duration = Duration::from_secs(240);
/// Records of one batch.
const BATCH: usize = 50;

/// What became of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    Appended { topic: String, offset: u64 },
    Rejected { reason: String },
}

async fn produce(client: &Client, lines: &[&str]) -> Vec<Fate> {
    let mut fates = Vec::new();
    for batch in lines.chunks(BATCH) {
        let records: Vec<Send> = batch.iter().map(|line| Send::new("github/raw", line.as_bytes().to_vec())).collect();
        let ack = client.produce(ProduceHead::default(), &records).await.unwrap();
        assert!(ack.failure.is_none(), "{ack:?}");
        for run in &ack.runs {
            for at in 0..u64::from(run.records) {
                fates.push(match run.status {
                    0 => {
                        Fate::Appended { topic: ack.topics[run.topic as usize].clone(), offset: run.first_offset + at }
                    }
                    2 => {
                        assert_eq!(run.code, u32::from(Code::PluginRejected.number()), "{run:?}");
                        assert_eq!(run.plugin, "schema", "{run:?}");
                        Fate::Rejected { reason: run.reason.clone() }
                    }
                    other => panic!("status {other}: {run:?}"),
                });
            }
        }
    }
    fates
}

/// JSON pointers that the repository's `redact` masks.
fn masked() -> Vec<String> {
    let text = fs::read_to_string(repository().join("plugins.toml")).unwrap();
    let file: toml::Table = text.parse().unwrap();
    let pointers = file["plugin"]["redact"]["settings"]["pointers"].as_array().unwrap();
    pointers.iter().map(|pointer| pointer.as_str().unwrap().to_owned()).collect()
}

#[test]
fn real_events_are_routed_judged_stored_and_masked() {
    test(LIMIT, async {
        let examples = repository().join("examples/github");
        let events = fs::read_to_string(examples.join("events.ndjson")).unwrap();
        let lines: Vec<&str> = events.lines().collect();
        let verdicts = fs::read_to_string(examples.join("validity.tsv")).unwrap();
        let expected: Vec<(&str, bool)> = verdicts
            .lines()
            .skip(1)
            .map(|line| {
                let fields: Vec<&str> = line.split('\t').collect();
                (fields[1], fields[2] == "true")
            })
            .collect();
        assert_eq!(lines.len(), expected.len());

        let mut site = Site::new();
        site.plugins_at(&repository().join("plugins.toml"));
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let fates = produce(&client, &lines).await;
        assert_eq!(fates.len(), lines.len());
        let mut stored: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, (fate, (event, valid))) in fates.iter().zip(&expected).enumerate() {
            match fate {
                Fate::Appended { topic, offset } => {
                    assert!(*valid, "line {}: accepted, the second validator says no", at + 1);
                    assert_eq!(*topic, format!("github/{event}"), "line {}", at + 1);
                    let of_topic = stored.entry(topic.clone()).or_default();
                    assert_eq!(*offset, of_topic.len() as u64, "line {}", at + 1);
                    of_topic.push(at);
                }
                Fate::Rejected { reason } => {
                    assert!(!*valid, "line {}: {reason}; the second validator says yes", at + 1);
                    assert!(reason.contains("/payload"), "line {}: no pointer in {reason:?}", at + 1);
                }
            }
        }

        // Before and after a crash the same comes out: every accepted record, in order, masked.
        let before = read_back(&client, &lines, &stored).await;
        assert!(client.all("github/raw").await.is_empty(), "routed records leave nothing where they came in");
        broker.kill();
        let broker = site.start().await;
        let after = read_back(&Client::new(broker.addr).await, &lines, &stored).await;
        assert_eq!(before, after);
        broker.drain().await;
    });
}

/// Reads everything and compares it with the lines; returns how many values were masked.
async fn read_back(client: &Client, lines: &[&str], stored: &BTreeMap<String, Vec<usize>>) -> usize {
    let read = client.all("github/*").await;
    assert_eq!(gaps(&read), Vec::<String>::new());
    assert_eq!(read.len(), stored.values().map(Vec::len).sum::<usize>());
    let pointers = masked();
    assert!(!pointers.is_empty());
    let mut count = 0;
    for record in &read {
        let at = stored[&record.topic][usize::try_from(record.offset).unwrap()];
        let mut sent: Value = serde_json::from_str(lines[at]).unwrap();
        let mut got: Value = serde_json::from_slice(record.value.as_ref().unwrap()).unwrap();
        for pointer in &pointers {
            let levels: Vec<&str> = pointer.split('/').skip(1).collect();
            count += blank(&mut sent, &levels, "[redacted]", Blank::Any);
            blank(&mut got, &levels, "[redacted]", Blank::MaskedOnly);
        }
        assert!(sent == got, "{}@{}: something else than the masked members differs", record.topic, record.offset);
    }
    assert!(count > 0, "the events hold something to mask");
    count
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blank {
    Any,
    MaskedOnly,
}

/// Puts `mask` in place of every member a pointer stands for (`*` = any), and counts them. With `MaskedOnly` each must be the
/// mask already.
fn blank(value: &mut Value, levels: &[&str], mask: &str, which: Blank) -> usize {
    let Some((level, rest)) = levels.split_first() else {
        assert!(which == Blank::Any || *value == mask, "not masked: {value}");
        *value = Value::from(mask);
        return 1;
    };
    let members: Vec<&mut Value> = match value {
        Value::Object(object) if *level == "*" => object.values_mut().collect(),
        Value::Object(object) => object.get_mut(*level).into_iter().collect(),
        Value::Array(array) if *level == "*" => array.iter_mut().collect(),
        _ => Vec::new(),
    };
    members.into_iter().map(|member| blank(member, rest, mask, which)).sum()
}
