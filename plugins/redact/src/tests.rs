use super::*;
use tidegate_plugin::testing::{Fate, Harness, Record};

fn plugin(pointers: &[&str], more: &str) -> Harness<Redact> {
    Harness::new(&format!(r#"{{"pointers": {pointers:?}{more}}}"#)).unwrap()
}

fn redact(pointers: &[&str], value: &str) -> String {
    let mut plugin = plugin(pointers, r#", "with": "X""#);
    let record = Record::new("t").value(value);
    let in_ = plugin.produce(std::slice::from_ref(&record)).unwrap();
    let out = plugin.fetch(&Reader::default(), &[record]).unwrap();
    assert_eq!(in_, out, "both hooks do the same");
    in_.fates[0].kept().unwrap().text().to_owned()
}

#[test]
fn only_the_member_changes_and_the_rest_stays_byte_for_byte() {
    let value =
        "{ \"n\":1.000000000000000000001e300 ,\t\"a\" : {\"b\":  [1, {\"c\": 2}] , \"z\":\"\\u00e9\"},\"m\":-0.0}\n";
    assert_eq!(redact(&["/a/b"], value), value.replace("[1, {\"c\": 2}]", "\"X\""));
    assert_eq!(redact(&["/a/b/1/c"], value), value.replace("2}", "\"X\"}"));
    assert_eq!(
        redact(&["/n", "/m"], value),
        value.replace("1.000000000000000000001e300", "\"X\"").replace("-0.0", "\"X\"")
    );
    assert_eq!(redact(&["/a/gone", "/a/b/7", "/n/x"], value), value);
}

#[test]
fn any_stands_for_members_and_elements_beside_named_ones() {
    let value = r#"{"a":[{"x":1,"y":2},{"x":3}],"b":{"x":4,"k":{"x":5}}}"#;
    assert_eq!(redact(&["/a/*/x"], value), r#"{"a":[{"x":"X","y":2},{"x":"X"}],"b":{"x":4,"k":{"x":5}}}"#);
    assert_eq!(redact(&["/b/*"], value), r#"{"a":[{"x":1,"y":2},{"x":3}],"b":{"x":"X","k":"X"}}"#);
    assert_eq!(redact(&["/a/0/y", "/a/*/x"], value), r#"{"a":[{"x":"X","y":"X"},{"x":"X"}],"b":{"x":4,"k":{"x":5}}}"#);
    assert_eq!(redact(&["/*/k/x", "/b/x"], value), r#"{"a":[{"x":1,"y":2},{"x":3}],"b":{"x":"X","k":{"x":"X"}}}"#);
}

#[test]
fn every_member_of_a_name_is_hidden_however_it_is_spelled() {
    assert_eq!(redact(&["/a"], r#"{"a":1,"\u0061":2,"a":{"b":3}}"#), r#"{"a":"X","\u0061":"X","a":"X"}"#);
    assert_eq!(redact(&["/a~1b/~0"], r#"{"a/b":{"~":1}}"#), r#"{"a/b":{"~":"X"}}"#);
}

#[test]
fn what_matches_nothing_passes_without_a_list() {
    let mut plugin = plugin(&["/a"], "");
    assert!(plugin.produce(&[Record::new("t").value("[1]"), Record::new("t")]).unwrap().passed);
}

#[test]
fn what_is_not_json_goes_unless_told_otherwise() {
    let bad: [&[u8]; 5] = [b"{\"a\":1", b"{\"a\":1} x", b"", b"text", b"{\"a\":\"\xff\"}"];
    for value in bad {
        let record = Record::new("t").value(value);
        let run = plugin(&["/a"], "").produce(std::slice::from_ref(&record)).unwrap();
        assert_eq!(run.fates, [Fate::Dropped], "{value:?}");
        assert!(plugin(&["/a"], r#", "not_json": "pass""#).produce(&[record]).unwrap().passed);
    }
}

#[test]
fn nesting_bombs_end_as_no_json() {
    let deep = "[".repeat(1_000_000);
    let run = plugin(&["/*/*/*"], "").produce(&[Record::new("t").value(deep)]).unwrap();
    assert_eq!(run.fates, [Fate::Dropped]);
}

#[test]
fn hashes_depend_on_the_member_and_the_salt_alone() {
    let hashed = |salt: &str, value: &str| {
        let settings = format!(r#"{{"pointers": ["/a"], "with": "hash", "salt": {salt:?}}}"#);
        let run = Harness::<Redact>::new(&settings).unwrap().produce(&[Record::new("t").value(value)]).unwrap();
        run.fates[0].kept().unwrap().text().to_owned()
    };
    let one = hashed("s", r#"{"a":"mail"}"#);
    assert_eq!(one.len(), r#"{"a":""}"#.len() + 32);
    assert_eq!(one, hashed("s", r#"{"a":"m\u0061il"}"#));
    assert_ne!(one, hashed("s", r#"{"a":"other"}"#));
    assert_ne!(one, hashed("t", r#"{"a":"mail"}"#));
}

#[test]
fn wrong_settings_are_refused_by_name() {
    let refused = |settings: &str| Harness::<Redact>::new(settings).expect_err("refused").to_string();
    assert!(refused(r#"{"pointers": []}"#).contains("pointers"));
    assert!(refused(r#"{"pointers": ["a"]}"#).contains("\"a\""));
    assert!(refused(r#"{"pointers": ["/a"], "with": "hash"}"#).contains("salt"));
    assert!(refused(r#"{"pointers": ["/a"], "salt": "x"}"#).contains("hash"));
    assert!(refused(r#"{"pointers": ["/a"], "notjson": "pass"}"#).contains("`notjson`"));
}

#[test]
fn the_text_is_written_as_json() {
    let mut plugin = plugin(&["/a"], r#", "with": "\"quoted\"""#);
    let run = plugin.produce(&[Record::new("t").value(r#"{"a":1}"#)]).unwrap();
    assert_eq!(run.fates[0].kept().unwrap().text(), r#"{"a":"\"quoted\""}"#);
}
