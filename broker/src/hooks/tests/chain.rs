//! Chains on the way in: what is stored, what is refused, in which order.

use serde_json::json;

use super::support::*;
use crate::{
    hooks::{FaultKind, LoadError, spec::Rejection},
    record::Content,
};

#[tokio::test]
async fn a_batch_that_no_plugin_touches_stays_as_it_came() {
    let chain = generation(&[Given::noop("noop")], vec![entry(&["a/>"], &["noop", "noop"])]);
    for topic in ["a/b", "c"] {
        let sent = batch(&[(topic, "k", "v"), (topic, "l", "w")]);
        let bytes = sent.body.bytes().clone();
        let (back, outcome) = chain.produce(sent).await.unwrap();
        assert!(matches!(outcome.content, Content::Verbatim));
        assert_eq!(back.body.bytes(), &bytes);
        assert_eq!(outcome.generation, 3);
    }
    let stats = plugin(&chain, "noop").stats();
    assert_eq!((stats.produce.calls, stats.produce.records), (2, 4), "twice for `a/b`, never for `c`");
    assert_eq!(stats.produce.latency.buckets.iter().sum::<u64>(), 2);
}

#[tokio::test]
async fn every_operation_does_what_the_contract_says() {
    let script = json!({"do": "script", "edits": [
        {"at": 0, "op": "drop"},
        {"at": 1, "op": "reject", "arg": "no such customer", "code": 12, "retry": 40},
        {"at": 2, "op": "set-key", "arg": "new"},
        {"at": 2, "op": "set-value", "arg": null},
        {"at": 3, "op": "add-header", "arg": "h", "value": "1"},
        {"at": 3, "op": "add-header", "arg": "h", "value": "2"},
        {"at": 3, "op": "remove-header", "arg": "h"},
        {"at": 3, "op": "add-header", "arg": "i", "value": "3"},
        {"at": 4, "op": "route", "arg": "b/c"},
        {"at": 5, "op": "set-key", "arg": "k5"},
    ]});
    let given = Given::hostile("script", &script).grant("route:b/*");
    let chain = generation(&[given], vec![entry(&["a"], &["script"])]);
    let sent: Vec<_> = ["k0", "k1", "k2", "k3", "k4", "k5", "k6"].map(|key| ("a", key, "v")).into();
    let (_, outcome) = chain.produce(batch(&sent)).await.unwrap();
    assert_eq!(stored(&outcome), ["a new=null", "a k3=v i=3", "b/c k4=v", "a k5=v", "a k6=v"]);
    assert_eq!(refused(&outcome), ["0 dropped 0 script/0: ", "1 rejected 500 script/12: no such customer"]);
    assert_eq!(outcome.refused[1].retry_after_ms, 40);
    assert_eq!(outcome.moved, [2, 4], "a key set to what it was is not moved");
    let Content::Rebuilt(records) = &outcome.content else { panic!("rebuilt") };
    assert_eq!(records.iter().map(|r| r.timestamp_ms).collect::<Vec<_>>(), [1002, 1003, 1004, 1005, 1006]);
    let stats = plugin(&chain, "script").stats().produce;
    assert_eq!((stats.dropped, stats.rejected, stats.changed, stats.routed), (1, 1, 3, 1));
}

#[tokio::test]
async fn later_positions_see_the_current_topic_and_what_was_emitted() {
    let route = json!({"do": "script", "edits": [{"at": "all", "op": "route", "arg": "b"}],
        "hook": "produce", "emits": [{"origin": 0, "topic": "audit", "key": "a", "value": "sent"}]});
    let stamp =
        |value: &str| json!({"do": "script", "edits": [{"at": "all", "op": "add-header", "arg": value, "value": "1"}]});
    let chain = generation(
        &[
            Given::hostile("early", &stamp("early")),
            Given::hostile("route", &route).grant("route:b").grant("emit:audit"),
            Given::hostile("late", &stamp("late")),
            Given::hostile("audit", &stamp("audit")),
        ],
        vec![
            entry(&["b", "audit"], &["early"]),
            entry(&["a"], &["route"]),
            entry(&["b"], &["late"]),
            entry(&["audit"], &["audit"]),
        ],
    );
    let (_, outcome) = chain.produce(batch(&[("a", "k", "v"), ("c", "l", "w"), ("a", "m", "x")])).await.unwrap();
    assert_eq!(stored(&outcome), ["b k=v late=1", "c l=w", "b m=x late=1", "audit a=sent audit=1 (emitted)"]);
    let calls = |name: &str| plugin(&chain, name).stats().produce;
    assert_eq!(calls("early").calls, 0, "nothing restarts");
    assert_eq!((calls("late").calls, calls("late").records), (1, 2), "one call with the matching records");
    assert_eq!(calls("route").emitted, 1);
}

#[tokio::test]
async fn an_emitted_record_falls_with_a_rejected_origin_not_with_a_dropped_one() {
    let emit = json!({"do": "script", "hook": "produce", "emits": [{"origin": "all", "topic": "out", "key": "e", "value": "x"}]});
    let emit = || Given::hostile("emit", &emit).grant("emit:out");
    let then =
        |edits| Given::hostile("then", &json!({"do": "script", "needs": ["key"], "only-key": "bad", "edits": edits}));
    let chain = || vec![entry(&["a"], &["emit", "then"])];
    let sent = [("a", "good", "1"), ("a", "bad", "2")];

    let drops = generation(&[emit(), then(json!([{"at": "all", "op": "drop"}]))], chain());
    let (_, outcome) = drops.produce(batch(&sent)).await.unwrap();
    assert_eq!(stored(&outcome), ["a good=1", "out e=x (emitted)", "out e=x (emitted)"]);

    let rejects = generation(&[emit(), then(json!([{"at": "all", "op": "reject", "arg": "bad"}]))], chain());
    let (_, outcome) = rejects.produce(batch(&sent)).await.unwrap();
    assert_eq!(stored(&outcome), ["a good=1", "out e=x (emitted)"]);
    assert_eq!(refused(&outcome), ["1 rejected 500 then/0: bad"]);
}

#[tokio::test]
async fn a_rejected_emission_takes_its_origin_along() {
    let emit = json!({"do": "script", "edits": [{"at": 0, "op": "drop"}],
        "hook": "produce", "emits": [{"origin": 0, "topic": "out", "key": "e", "value": "x"}]});
    let reject =
        json!({"do": "script", "hook": "produce", "edits": [{"at": "all", "op": "reject", "arg": "not here"}]});
    let chain = generation(
        &[Given::hostile("emit", &emit).grant("emit:out"), Given::hostile("reject", &reject)],
        vec![entry(&["a"], &["emit"]), entry(&["out"], &["reject"])],
    );
    let (_, outcome) = chain.produce(batch(&[("a", "k", "1"), ("a", "l", "2")])).await.unwrap();
    assert_eq!(stored(&outcome), ["a l=2"]);
    assert_eq!(refused(&outcome), ["0 rejected 500 reject/0: not here"], "nothing is lost in silence");
}

#[tokio::test]
async fn whole_batch_verdicts() {
    let drop = generation(&[Given::hostile("p", &json!({"do": "drop-all"}))], vec![entry(&["a"], &["p"])]);
    let (_, outcome) = drop.produce(batch(&[("a", "k", "1"), ("b", "l", "2")])).await.unwrap();
    assert_eq!(stored(&outcome), ["b l=2"]);
    assert_eq!(refused(&outcome), ["0 dropped 0 p/0: "]);

    let settings = json!({"do": "reject-all", "hook": "produce", "text": "zu groß, ", "count": 100});
    let reject = generation(&[Given::hostile("p", &settings)], vec![entry(&[">"], &["p"])]);
    let (_, outcome) = reject.produce(batch(&[("a", "k", "1"), ("b", "l", "2")])).await.unwrap();
    assert!(stored(&outcome).is_empty());
    for refused in &outcome.refused {
        assert_eq!((refused.code, refused.plugin_code, refused.retry_after_ms), (500, 7, 50));
        assert_eq!(refused.reason.len(), 256, "cut, and 256 is a character boundary here");
    }
    assert_eq!(outcome.refused.len(), 2);
}

#[tokio::test]
async fn routes_and_emissions_outside_the_grant_reject_the_record() {
    for (edits, emits) in [
        (json!([{"at": 1, "op": "route", "arg": "elsewhere"}]), json!([])),
        (json!([{"at": 1, "op": "set-value", "arg": "x"}]), json!([{"origin": 1, "topic": "elsewhere"}])),
        (json!([{"at": 1, "op": "route", "arg": "$sys/topics"}]), json!([])),
    ] {
        let given = Given::hostile(
            "p",
            &json!({"do": "script", "edits": edits, "emits": emits, "needs": ["key"], "only-key": "k"}),
        )
        .grant("route:b")
        .grant("emit:b")
        .grant("route:$dead/>");
        let chain = generation(&[given], vec![entry(&["a"], &["p"])]);
        let (_, outcome) = chain.produce(batch(&[("a", "j", "1"), ("a", "k", "2")])).await.unwrap();
        assert_eq!(stored(&outcome), ["a j=1"]);
        assert_eq!((outcome.refused[0].index, outcome.refused[0].code), (1, 507), "{edits} {emits}");
        assert_eq!(outcome.refused[0].plugin, "p");
    }
}

#[tokio::test]
async fn a_record_must_have_passed_what_its_last_topic_requires() {
    let route = json!({"do": "script", "needs": ["key"], "only-key": "move", "edits": [{"at": "all", "op": "route", "arg": "safe"}]});
    let mut safe = entry(&["safe"], &["check"]);
    safe.enforced = true;
    safe.place = "plugins.toml:42".into();
    let given = || [Given::noop("check"), Given::hostile("route", &route).grant("route:safe")];
    let sent = [("safe", "k", "1"), ("a", "move", "2"), ("a", "stay", "3")];

    let before = generation(&given(), vec![entry(&["a"], &["route"]), safe.clone()]);
    let (_, outcome) = before.produce(batch(&sent)).await.unwrap();
    assert_eq!(stored(&outcome), ["safe k=1", "safe move=2", "a stay=3"]);
    assert_eq!(before.required("safe"), ["check"]);
    assert!(before.required("a").is_empty());

    let behind = generation(&given(), vec![safe, entry(&["a"], &["route"])]);
    let (_, outcome) = behind.produce(batch(&sent)).await.unwrap();
    assert_eq!(stored(&outcome), ["safe k=1", "a stay=3"]);
    let expected = "1 rejected 506 /0: safe needs what check (plugins.toml:42) does, and the record did not pass it";
    assert_eq!(refused(&outcome), [expected]);
}

#[tokio::test]
async fn patterns_exceptions_and_rejection_are_per_topic() {
    let mut open = entry(&["a/>"], &["noop"]);
    open.except = vec!["a/raw".into()];
    open.rejection = Rejection::All;
    let chain = generation(&[Given::noop("noop")], vec![open, fetch_entry(&["a/raw"], &["noop"])]);
    chain.produce(batch(&[("a/x", "k", "1"), ("a/raw", "l", "2"), ("a/x", "m", "3")])).await.unwrap();
    assert_eq!(plugin(&chain, "noop").stats().produce.records, 2);
    assert_eq!(chain.rejection("a/x"), Rejection::All);
    assert_eq!(chain.rejection("a/raw"), Rejection::PerRecord);
    assert!(chain.has_fetch("a/raw") && !chain.has_fetch("a/x"));
    let explained = chain.explain("a/raw");
    assert_eq!(explained.len(), 1);
    assert_eq!((explained[0].plugin.as_str(), explained[0].place.as_str()), ("noop", "plugins.toml:9"));
}

#[tokio::test]
async fn a_plugin_that_is_not_loaded_is_decided_by_its_policy() {
    let broken = Given::hostile("broken", &json!({"init": "fail"}));
    let closed = generation(std::slice::from_ref(&broken), vec![entry(&["a"], &["broken"])]);
    let error = closed.produce(batch(&[("a", "k", "v")])).await.unwrap_err();
    assert_eq!((error.kind, error.code().name()), (FaultKind::Unavailable, "PLUGIN_UNAVAILABLE"));
    assert!(error.message.contains("the settings are wrong"), "{error}");
    assert_eq!(closed.explain("a")[0].placement, None);
    closed.produce(batch(&[("b", "k", "v")])).await.expect("other topics go on");

    let open = generation(&[broken.open()], vec![entry(&["a"], &["broken"])]);
    let (_, outcome) = open.produce(batch(&[("a", "k", "v")])).await.unwrap();
    assert!(matches!(outcome.content, Content::Verbatim));
}

#[test]
fn a_chain_that_cannot_hold_is_refused_with_its_line() {
    let make = |chain| {
        let given = Given::noop("noop");
        let plugins = [("noop".to_owned(), given.load().map_err(std::sync::Arc::new))].into();
        let spec = crate::hooks::spec::TenantSpec { plugins: [("noop".to_owned(), given.spec)].into(), chain };
        RUNTIME.generation("acme", 1, spec.into(), plugins).unwrap_err()
    };
    let unknown = make(vec![entry(&["a"], &["nop"])]);
    assert!(matches!(unknown, LoadError::UnknownPlugin { .. }), "{unknown}");
    assert!(make(vec![entry(&["a//b"], &["noop"])]).to_string().starts_with("plugins.toml:9: pattern "));
    let mut unless = fetch_entry(&["a"], &["noop"]);
    unless.fetch[0].unless = "admin".into();
    assert!(make(vec![unless]).to_string().contains("role:NAME"));
}

#[test]
fn a_plugin_that_reads_nothing_costs_the_same_for_one_record_and_for_a_thousand() {
    let plugin = Given::noop("noop").load().unwrap();
    let best = |count: usize| {
        let body = body(&vec![("a", "key", "value"); count]);
        let rounds = (0..20).map(|_| plugin.measure(crate::hooks::Hook::Produce, body.clone(), 1_000).unwrap() / 1_000);
        rounds.min().unwrap()
    };
    let (one, thousand) = (best(1), best(1_000));
    println!("a call that passes 1 record: {one:?}; 1000 records: {thousand:?}");
    assert!(thousand < one * 3, "{one:?} {thousand:?}");
}
