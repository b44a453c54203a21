use super::*;
use tidegate_plugin::{
    Fields,
    testing::{Fate, Harness, Record},
};

fn filter(expression: &str, more: &str) -> Harness<Filter> {
    Harness::new(&format!(r#"{{"expression": {expression:?}{more}}}"#)).unwrap()
}

fn record() -> Record {
    Record { timestamp_ms: 1_700_000_000_000, ..Record::new("orders/eu/created") }
        .key("4711")
        .header("source", "web")
        .value(r#"{"n": 7, "f": 1.5, "s": "text", "list": [1, 2, 3], "none": null, "o": {"a": true}}"#)
}

fn holds(expression: &str) -> bool {
    let run = filter(expression, "").produce(&[record()]).unwrap();
    match &run.fates[0] {
        Fate::Kept(_) => true,
        Fate::Dropped => false,
        Fate::Rejected { reason, .. } => panic!("{expression}: {reason}"),
    }
}

fn reason(expression: &str, record: Record) -> String {
    let run = filter(expression, "").produce(&[record]).unwrap();
    run.fates[0].reason().unwrap_or_else(|| panic!("{:?}", run.fates)).to_owned()
}

#[test]
fn every_part_of_a_record_can_be_asked() {
    for expression in [
        "key == '4711'",
        "value.n == 7 && value.n > 6.5 && value.f < 2",
        "value.s.startsWith('te') && value.s.matches('^t.xt$')",
        "value.list.exists(x, x > 2) && size(value.list) == 3",
        "has(value.o) && !has(value.gone) && value.o.a && value.none == null",
        "headers.source == 'web' && !('other' in headers)",
        "topic[1] == 'eu' && size(topic) == 3",
        "timestamp >= 1700000000000 && offset == 0",
    ] {
        assert!(holds(expression), "{expression}");
    }
    assert!(!holds("key == 'other'"));
}

#[test]
fn only_what_is_read_is_asked_for() {
    let needs = |expression: &str| filter(expression, "").needs().produce;
    assert_eq!(needs("key == 'a'"), Fields::KEY);
    assert_eq!(needs("topic.exists(value, value == 'x')"), Fields::TOPIC, "bound by the macro");
    assert_eq!(needs("value.a == 1 || headers.b == 'x'"), Fields::VALUE | Fields::HEADERS);
    assert_eq!(needs("timestamp > offset"), Fields::TIMESTAMP | Fields::OFFSET);
    assert_eq!(needs("true"), Fields::empty());
}

#[test]
fn false_drops_or_rejects() {
    assert_eq!(filter("false", "").produce(&[record()]).unwrap().fates, [Fate::Dropped]);
    let run = filter("false", r#", "on_false": "reject""#).produce(&[record()]).unwrap();
    assert!(matches!(run.fates[0], Fate::Rejected { code: FALSE, .. }));
}

#[test]
fn no_answer_follows_its_setting_and_quotes_no_value() {
    assert!(reason("value.gone == 1", record()).ends_with("no member \"gone\""));
    assert!(reason("value.s", record()).ends_with("gives string, not true or false"));
    assert!(reason("value.n == 1", Record::new("t").value("{")).ends_with("the value is not JSON"));
    for expression in ["value.s + value.n == 1", "value.s[0] == 1", "value.list[9] == 1", "value.n / 0 == 1"] {
        let reason = reason(expression, record());
        assert!(!reason.contains("text"), "{expression}: {reason}");
    }
    let all = |setting: &str| filter("value.gone == 1", setting).produce(&[record()]).unwrap();
    assert_eq!(all(r#", "on_error": "drop""#).fates, [Fate::Dropped]);
    assert!(all(r#", "on_error": "pass""#).passed);
}

#[test]
fn a_tombstone_and_odd_bytes_are_values_too() {
    let run = filter("value == null && key == null", "").produce(&[Record::new("t")]).unwrap();
    assert!(run.passed);
    let run = filter("key == b'\\xff\\xfe'", "").produce(&[Record::new("t").key([0xff, 0xfe])]).unwrap();
    assert!(run.passed, "{run:?}");
}

#[test]
fn deep_values_are_no_json_and_do_not_overflow() {
    let deep = Record::new("t").value("[".repeat(100_000));
    assert!(reason("value == 1", deep).ends_with("not JSON"));
}

#[test]
fn wrong_settings_are_refused_by_name() {
    let refused = |settings: &str| Harness::<Filter>::new(settings).expect_err("refused").to_string();
    assert!(refused("{}").contains("`expression`"));
    assert!(refused(r#"{"expression": "val.x == 1"}"#).contains("\"val\" is none of key, value"));
    assert!(refused(r#"{"expression": "key =="}"#).contains("expression"));
    assert!(refused(r#"{"expression": "true", "on_flase": "drop"}"#).contains("`on_flase`"));
    let long = format!(r#"{{"expression": "{}true"}}"#, " ".repeat(17 << 10));
    assert!(refused(&long).contains("at most"));
}
