//! Chains on the way out.

use std::sync::Arc;

use serde_json::{Value, json};
use tidegate_protocol::stored::StoredFrame;

use super::support::*;
use crate::hooks::{FaultKind, FetchInput, FetchOutput, Generation, ReaderInfo};

fn ask(frame: &Arc<StoredFrame>, at: &[u32], role: &str) -> FetchInput {
    let reader =
        ReaderInfo { principal: "bob".into(), role: role.into(), group: "g".into(), parameters: r#"{"x":1}"#.into() };
    FetchInput { frame: Arc::clone(frame), at: at.to_vec(), reader }
}

async fn lines(chain: &Arc<Generation>, input: FetchInput) -> Vec<String> {
    let text = |bytes: &Option<bytes::Bytes>| {
        bytes.as_ref().map_or_else(|| "null".into(), |bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    match chain.fetch(input).await.unwrap() {
        FetchOutput::Unchanged => vec!["unchanged".into()],
        FetchOutput::Records(records) => records
            .iter()
            .map(|r| format!("{} {}={}{}", r.at, text(&r.key), text(&r.value), header_text(&r.headers)))
            .collect(),
    }
}

fn script(edits: Value) -> Value {
    json!({"do": "script", "needs": ["key"], "only-key": "k1", "edits": edits})
}

const RECORDS: [(&str, &str, &str); 5] =
    [("a", "k0", "0"), ("b", "k1", "1"), ("a", "k1", "2"), ("a", "k3", "3"), ("b", "k4", "4")];

#[tokio::test]
async fn wanted_records_are_changed_and_dropped() {
    let mask = script(
        json!([{"at": "all", "op": "set-value", "arg": "***"}, {"at": "all", "op": "add-header", "arg": "h", "value": "m"}]),
    );
    let chain = generation(&[Given::hostile("mask", &mask)], vec![fetch_entry(&["a"], &["mask"])]);
    let stored = frame(&RECORDS, 1);
    assert_eq!(
        lines(&chain, ask(&stored, &[0, 1, 2, 3, 4], "")).await,
        ["0 k0=0", "1 k1=1", "2 k1=*** h=m", "3 k3=3", "4 k4=4"]
    );
    assert_eq!(lines(&chain, ask(&stored, &[2, 4], "")).await, ["2 k1=*** h=m", "4 k4=4"]);
    assert_eq!(lines(&chain, ask(&stored, &[0, 3], "")).await, ["unchanged"]);
    assert_eq!(lines(&chain, ask(&stored, &[], "")).await, ["unchanged"]);
    assert_eq!(lines(&chain, ask(&frame(&[("c", "k1", "1")], 1), &[0], "")).await, ["unchanged"]);

    let drop = script(json!([{"at": "all", "op": "drop"}]));
    let chain = generation(&[Given::hostile("drop", &drop)], vec![fetch_entry(&[">"], &["drop"])]);
    assert_eq!(lines(&chain, ask(&stored, &[0, 1, 2], "")).await, ["0 k0=0"]);
    assert_eq!(lines(&chain, ask(&stored, &[2], "")).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_role_may_skip_a_plugin() {
    let mask = script(json!([{"at": "all", "op": "set-value", "arg": "***"}]));
    let mut entry = fetch_entry(&["a"], &["mask"]);
    entry.fetch[0].unless = "role:auditor".into();
    let chain = generation(&[Given::hostile("mask", &mask)], vec![entry]);
    let stored = frame(&[("a", "k1", "secret")], 7);
    assert_eq!(lines(&chain, ask(&stored, &[0], "clerk")).await, ["0 k1=***"]);
    assert_eq!(lines(&chain, ask(&stored, &[0], "auditor")).await, ["unchanged"]);
    assert_eq!(chain.explain("a")[0].unless, "role:auditor");
    let met =
        [("a", "clerk"), ("a", ""), ("a", "auditor"), ("b", "clerk")].map(|(t, role)| chain.has_fetch_for(t, role));
    assert_eq!(met, [true, true, false, false]);
}

#[tokio::test]
async fn a_plugin_that_declared_it_is_told_who_reads() {
    let chain = generation(&[Given::hostile("p", &json!({"do": "reader"}))], vec![fetch_entry(&["a"], &["p"])]);
    let stored = frame(&[("a", "k", "v")], 1);
    assert_eq!(lines(&chain, ask(&stored, &[0], "")).await, [r#"0 k=v reader=bob g {"x":1}"#]);
}

#[tokio::test]
async fn what_is_not_allowed_on_fetch_is_bad_output() {
    let stored = frame(&[("a", "k1", "v")], 1);
    for settings in [
        script(json!([{"at": 0, "op": "reject", "arg": "no"}])),
        script(json!([{"at": 0, "op": "route", "arg": "b"}])),
        json!({"do": "script", "needs": ["key"], "only-key": "k1", "emits": [{"origin": 0, "topic": "b"}]}),
        json!({"do": "reject-all", "needs": ["key"], "only-key": "k1", "text": "no"}),
    ] {
        let given = Given::hostile("p", &settings).grant("route:b").grant("emit:b");
        let chain = generation(std::slice::from_ref(&given), vec![fetch_entry(&["a"], &["p"])]);
        let error = chain.fetch(ask(&stored, &[0], "")).await.unwrap_err();
        assert_eq!(error.kind, FaultKind::BadOutput, "{settings}: {error}");
        let open = generation(&[given.open()], vec![fetch_entry(&["a"], &["p"])]);
        assert_eq!(lines(&open, ask(&stored, &[0], "")).await, ["unchanged"]);
    }
}

#[tokio::test]
async fn subscribers_share_what_a_pure_plugin_made() {
    let chain = generation(
        &[Given::noop("pure"), Given::hostile("reads", &json!({}))],
        vec![fetch_entry(&["a", "b"], &["pure"]), fetch_entry(&["b"], &["reads"])],
    );
    let calls = |name: &str| plugin(&chain, name).stats().fetch.calls;
    for lsn in [1, 10] {
        let stored = frame(&[("a", "k", "v"), ("a", "l", "v")], lsn);
        for _ in 0..5 {
            chain.fetch(ask(&stored, &[0, 1], "")).await.unwrap();
        }
        chain.fetch(ask(&stored, &[1], "")).await.unwrap();
    }
    assert_eq!(calls("pure"), 4, "once per frame and set of positions");
    let both = frame(&[("b", "k", "v")], 20);
    for _ in 0..3 {
        chain.fetch(ask(&both, &[0], "")).await.unwrap();
    }
    assert_eq!((calls("pure"), calls("reads")), (7, 3), "a plugin that reads the reader is asked each time");
}
