//! The real events: every verdict equals that of another validator, line by line.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path};

use serde_json::Value;
use tidegate_plugin::{
    Settings,
    testing::{Fate, Harness, Record},
};
use tidegate_plugin_schema::Schema;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/github").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What `validity.tsv` says of each line: event and verdict.
fn expected() -> Vec<(String, bool)> {
    let table = read("validity.tsv");
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("line\tevent\tvalid"));
    (1..)
        .zip(lines)
        .map(|(number, line)| {
            let fields: Vec<&str> = line.split('\t').collect();
            assert_eq!(fields[0], number.to_string());
            (fields[1].to_owned(), fields[2].parse().unwrap())
        })
        .collect()
}

#[test]
fn verdicts_equal_those_of_the_second_validator() {
    let file = |name: &str| (format!("examples/github/{name}"), read(name).into_bytes());
    let settings = Settings::new(
        r#"{"asyncapi": "file:examples/github/asyncapi.json"}"#,
        vec![file("asyncapi.json"), file("schema.json")],
    );
    let mut plugin = Harness::<Schema>::with(&settings).unwrap();

    let expected = expected();
    let events = read("events.ndjson");
    assert_eq!(events.lines().count(), expected.len());
    let records: Vec<Record> = events
        .lines()
        .zip(&expected)
        .map(|(line, (event, _))| {
            let value: Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["event"], event.as_str());
            Record::new(&format!("github/{event}")).value(line)
        })
        .collect();

    let run = plugin.produce(&records).unwrap();
    for (number, (fate, (event, valid))) in (1..).zip(run.fates.iter().zip(&expected)) {
        assert_eq!(fate.kept().is_some(), *valid, "line {number}, {event}: {:?}", fate.reason());
        if let Fate::Rejected { code, reason, retry_after_ms } = fate {
            assert_eq!((*code, *retry_after_ms), (2, 0), "line {number}: {reason}");
            assert!(reason.starts_with("/payload"), "line {number}: {reason}");
            println!("{number}\t{event}\t{reason}");
        }
    }
}
