use super::*;
use crate::reason::Code;
use serde_json::json;
use tidegate_plugin::testing::{Fate, Harness, Record, log_lines};

fn settings(document: &Value, more: &str) -> Settings {
    let json = format!(r#"{{"asyncapi": "file:d.json"{more}}}"#);
    Settings::new(json, vec![("d.json".to_owned(), document.to_string().into_bytes())])
}

fn plugin(document: &Value, more: &str) -> Harness<crate::Schema> {
    Harness::with(&settings(document, more)).unwrap()
}

fn document(channels: Value) -> Value {
    json!({"asyncapi": "3.0.0", "info": {"title": "t", "version": "1"}, "channels": channels})
}

/// One channel with one message, whose payload has this schema.
fn single(schema: Value) -> Value {
    document(json!({"c": {"address": "t", "messages": {"m": {"payload": schema}}}}))
}

fn reason(run: &Fate) -> (u16, &str) {
    match run {
        Fate::Rejected { code, reason, .. } => (*code, reason),
        other => panic!("not rejected: {other:?}"),
    }
}

fn judged(document: &Value, topic: &str, value: &str) -> Fate {
    plugin(document, "").produce(&[Record::new(topic).value(value)]).unwrap().fates.remove(0)
}

#[test]
fn a_record_that_holds_names_its_document() {
    let document = single(json!({"type": "object"}));
    let fate = judged(&document, "t", "{}");
    let header = fate.kept().unwrap().header_text("tidegate-schema").unwrap().to_owned();
    let (hash, version) = header.split_once('@').unwrap();
    assert_eq!((hash.len(), version), (12, "1"));
    let other = judged(&single(json!({"type": ["object"]})), "t", "{}");
    assert_ne!(
        other.kept().unwrap().header_text("tidegate-schema"),
        Some(header.as_str()),
        "the hash tells documents apart"
    );
}

#[test]
fn reasons_name_pointer_keyword_and_what_is_wrong_but_no_value() {
    let document = single(json!({
        "type": "object",
        "properties": {"rule": {"type": "object", "properties": {"x": {"required": ["name"]}, "n": {"type": "integer"}}}},
        "additionalProperties": false,
    }));
    let table = [
        (r#"{"rule": {"x": {}}}"#, r#"/rule/x: "required": "name" is missing"#),
        (r#"{"rule": {"n": "secret"}}"#, r#"/rule/n: "type": value is not of type "integer""#),
        (r#"{"other": 1}"#, r#"(top): "additionalProperties": unexpected "other""#),
    ];
    for (value, expected) in table {
        assert_eq!(reason(&judged(&document, "t", value)), (Code::Invalid as u16, expected));
    }
}

#[test]
fn alternatives_are_told_by_the_branch_that_was_meant() {
    let branch = |action: &str, member: &str| {
        json!({
            "type": "object",
            "required": ["action", member],
            "properties": {"action": {"enum": [action]}, member: {"type": "integer"}},
        })
    };
    let document = single(json!({"oneOf": [branch("made", "a"), branch("gone", "b"), branch("moved", "c")]}));
    let told = |value: &str| reason(&judged(&document, "t", value)).1.to_owned();
    assert_eq!(told(r#"{"action": "gone"}"#), r#"(top): "required": "b" is missing"#);
    assert_eq!(told(r#"{"action": "moved", "c": "1"}"#), r#"/c: "type": value is not of type "integer""#);
    assert!(
        told(r#"{"action": "lost", "a": 1}"#).starts_with(r#"/action: "enum""#),
        "{}",
        told(r#"{"action": "lost"}"#)
    );
}

#[test]
fn long_reasons_keep_their_sentence() {
    let name = "n".repeat(300);
    let document = single(json!({"properties": {name.clone(): {"type": "integer"}}}));
    let fate = judged(&document, "t", &json!({name: "x"}).to_string());
    let (_, reason) = reason(&fate);
    assert!(reason.len() <= 256 && reason.ends_with(r#"nn: "type": value is not of type "integer""#), "{reason}");
}

#[test]
fn what_is_no_json_and_what_has_no_channel_is_rejected_by_code() {
    let document = single(json!({}));
    assert_eq!(reason(&judged(&document, "t", "{\"a\":")).0, Code::NotJson as u16);
    assert_eq!(reason(&judged(&document, "t", "{} {}")).0, Code::NotJson as u16);
    assert_eq!(reason(&judged(&document, "other", "{}")), (3, "no channel of the document describes the topic other"));
}

#[test]
fn unknown_topics_and_tombstones_follow_their_settings() {
    let document = single(json!({}));
    let records = [Record::new("other").value("x"), Record::new("t")];
    let run = plugin(&document, "").produce(&records).unwrap();
    assert_eq!(reason(&run.fates[0]).0, 3);
    assert_eq!(run.fates[1].kept(), Some(&records[1]), "a tombstone passes, without header");
    let run = plugin(&document, r#", "unknown": "pass", "tombstones": "reject""#).produce(&records).unwrap();
    assert_eq!(run.fates[0].kept(), Some(&records[0]));
    assert_eq!(reason(&run.fates[1]), (5, "the record has no value"));
}

#[test]
fn flag_marks_and_observe_only_logs() {
    let document = single(json!({"type": "object"}));
    let records = [Record::new("t").value("1"), Record::new("t").value("{}")];
    let run = plugin(&document, r#", "mode": "flag""#).produce(&records).unwrap();
    let flagged = run.fates[0].kept().unwrap();
    assert_eq!(flagged.header_text("tidegate-invalid"), Some(r#"2: (top): "type": value is not of type "object""#));
    assert_eq!(flagged.header_text("tidegate-schema"), None);
    assert!(run.fates[1].kept().unwrap().header_text("tidegate-invalid").is_none());

    log_lines();
    let run = plugin(&document, r#", "mode": "observe", "schema_header": false"#).produce(&records).unwrap();
    assert!(run.passed);
    let lines = log_lines();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].1.contains("record 0") && lines[0].1.contains("\"type\""), "{lines:?}");
}

/// One channel for all events, told apart by a constant.
fn events() -> Value {
    let message = |event: &str, member: &str| {
        json!({"payload": {
            "type": "object",
            "required": ["event", member],
            "properties": {"event": {"const": event}, member: {"type": "integer"}},
        }})
    };
    document(json!({"all": {
        "address": "events/{event}",
        "parameters": {"event": {}},
        "messages": {"push": message("push", "a"), "fork": message("fork", "b")},
    }}))
}

#[test]
fn an_address_parameter_names_the_message() {
    let document = events();
    assert!(judged(&document, "events/push", r#"{"event": "push", "a": 1}"#).kept().is_some());
    let fate = judged(&document, "events/push", r#"{"event": "fork", "b": 1}"#);
    assert!(reason(&fate).1.starts_with("/event: \"const\"") || reason(&fate).1.contains("\"a\""), "{fate:?}");
}

#[test]
fn constants_choose_where_the_address_does_not() {
    let document = events();
    assert!(judged(&document, "events/any", r#"{"event": "fork", "b": 1}"#).kept().is_some());
    let fate = judged(&document, "events/any", r#"{"event": "fork", "b": "1"}"#);
    assert_eq!(reason(&fate).1, r#"/b: "type": value is not of type "integer""#);
    let fate = judged(&document, "events/any", r#"{"event": "lost"}"#);
    assert_eq!(reason(&fate), (4, "no message of the channel applies: none of fork, push"));
}

#[test]
fn a_message_of_draft_2020_12_is_judged_by_it() {
    let schema = json!({"schemaFormat": "application/schema+json;version=2020-12", "schema": {"prefixItems": [{"type": "integer"}]}});
    assert!(judged(&single(schema.clone()), "t", "[1]").kept().is_some());
    assert!(reason(&judged(&single(schema), "t", r#"["1"]"#)).1.starts_with("/0: \"type\""));
}

#[test]
fn formats_are_not_asserted() {
    assert!(judged(&single(json!({"format": "date-time"})), "t", r#""yesterday""#).kept().is_some());
}

#[test]
fn wrong_settings_and_documents_are_refused_by_name() {
    let message = |json: &str, files: &[(&str, &str)]| {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())).collect();
        Harness::<crate::Schema>::with(&Settings::new(json, files)).expect_err("refused").to_string()
    };
    assert!(message("{}", &[]).contains("asyncapi"));
    assert!(message(r#"{"asyncapi": "file:a.json", "mod": "flag"}"#, &[]).contains("`mod`"));
    assert!(message(r#"{"asyncapi": "file:a.json"}"#, &[]).contains("a.json"));
    assert!(message(r#"{"asyncapi": "file:a.yaml"}"#, &[("a.yaml", "asyncapi: 3.0.0")]).contains("YAML"));
    let bad = single(json!({"type": "objekt"})).to_string();
    assert!(message(r#"{"asyncapi": "file:a.json"}"#, &[("a.json", &bad)]).contains("a.json"));
}
