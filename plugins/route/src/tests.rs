use super::*;
use tidegate_plugin::{
    Fields,
    testing::{Fate, Harness, Record},
};

fn route(to: &str) -> Harness<Route> {
    Harness::new(&format!(r#"{{"to": {to:?}}}"#)).unwrap()
}

fn topic(to: &str, record: Record) -> String {
    let fate = route(to).produce(&[record]).unwrap().fates.remove(0);
    fate.kept().unwrap_or_else(|| panic!("{fate:?}")).topic.clone()
}

fn refused(settings: &str) -> String {
    Harness::<Route>::new(settings).expect_err("refused").to_string()
}

#[test]
fn parts_come_from_value_headers_and_key() {
    let record = Record::new("in").key("4711").value(r#"{"a": {"b": 7}, "e": "push"}"#).header("h", "eu");
    assert_eq!(topic("github/{/e}", record.clone()), "github/push");
    assert_eq!(topic("x-{/a/b}/{header:h}/{key}", record), "x-7/eu/4711");
}

#[test]
fn what_cannot_stand_in_a_level_is_escaped() {
    let record = Record::new("in").key("a/b.c%$é");
    assert_eq!(topic("t/{key}", record), "t/a%2Fb%2Ec%25%24%C3%A9");
}

#[test]
fn only_what_the_template_reads_is_asked_for() {
    assert_eq!(route("a/{key}").needs().produce, Fields::KEY);
    assert_eq!(route("a/{/x}-{header:h}").needs().produce, Fields::VALUE | Fields::HEADERS);
    assert_eq!(route("fixed").needs().produce, Fields::empty());
    assert_eq!(topic("fixed", Record::new("in")), "fixed");
}

#[test]
fn an_unresolvable_record_is_rejected_or_left() {
    let records = [
        Record::new("in").value("{}"),
        Record::new("in").value("no json"),
        Record::new("in"),
        Record::new("in").value(r#"{"e": ""}"#),
    ];
    let run = route("{/e}").produce(&records).unwrap();
    let reasons: Vec<_> = run.fates.iter().map(|fate| fate.reason().unwrap()).collect();
    let nothing = "/e: the value has no string, number or boolean there";
    assert_eq!(reasons, [nothing, nothing, nothing, "the record would get a topic with an empty level"]);
    assert!(matches!(run.fates[0], Fate::Rejected { code: UNRESOLVED, retry_after_ms: 0, .. }));

    let mut leave = Harness::<Route>::new(r#"{"to": "{/e}", "unresolved": "leave"}"#).unwrap();
    let run = leave.produce(&records).unwrap();
    assert!(run.passed);
}

#[test]
fn topics_beyond_the_rules_are_rejected() {
    let long = Record::new("in").key("k".repeat(65));
    let reason = |to: &str, record: &Record| {
        let run = route(to).produce(std::slice::from_ref(record)).unwrap();
        run.fates[0].reason().unwrap().to_owned()
    };
    assert!(reason("{key}", &long).contains("64 bytes"));
    assert!(reason("a/{key}", &Record::new("in").key("k".repeat(1000))).contains("249 bytes"));
    let deep = format!("{}{{key}}", "a/".repeat(16));
    assert!(reason(&deep, &Record::new("in").key("k")).contains("16 levels"));
}

#[test]
fn wrong_settings_are_refused_by_name() {
    assert!(refused("{}").contains("`to`"));
    assert!(refused(r#"{"to": "a", "form": 1}"#).contains("`form`"));
    assert!(refused(r#"{"to": "a/{event}"}"#).contains("{event}"));
    assert!(refused(r#"{"to": "a/{key"}"#).contains("not closed"));
    assert!(refused(r#"{"to": "a.b"}"#).contains("%2E"));
    assert!(refused(r#"{"to": "/a"}"#).contains("level"));
    assert!(refused(r#"{"to": "a", "unresolved": "drop"}"#).contains("leave"));
}
