//! Every way a guest can misbehave: decided by its policy, within its budget, and nobody else notices.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::support::*;
use crate::{
    hooks::{FaultKind, Generation},
    record::Content,
};

/// Misbehaves for records with the key `bad`, so that the smoke run passes.
fn when_bad(mut settings: Value) -> Value {
    settings["needs"] = json!(["key"]);
    settings["only-key"] = json!("bad");
    settings
}

fn chain(given: Given) -> Arc<Generation> {
    generation(&[given, Given::noop("noop")], vec![entry(&["a"], &["p"]), entry(&[">"], &["noop"])])
}

/// Refuses the batch with this kind under `closed`, passes it under `open`; then all goes on.
async fn decided(settings: Value, kind: FaultKind, told: &str) {
    // Some of these take longer than a hook should.
    let cpu = if kind == FaultKind::Deadline { 5 } else { 2_000 };
    let given = Given::hostile("p", &when_bad(settings.clone())).budget(|b| b.cpu = Duration::from_millis(cpu));
    let bad = [("a", "bad", "v"), ("a", "k", "v")];
    let closed = chain(given.clone());
    for _ in 0..2 {
        let error = closed.produce(batch(&bad)).await.unwrap_err();
        assert_eq!((error.plugin.as_str(), error.kind), ("p", kind), "{settings}: {error}");
        assert!(error.message.contains(told), "{settings}: {error}");
        let (_, outcome) = closed.produce(batch(&[("a", "k", "v")])).await.expect("good batches pass");
        assert!(matches!(outcome.content, Content::Verbatim));
        closed.produce(batch(&[("b", "bad", "v")])).await.expect("other topics go on");
    }
    let stats = plugin(&closed, "p").stats().produce;
    assert!(stats.faults.total() >= 2, "{settings}");

    let open = chain(given.open());
    let (_, outcome) = open.produce(batch(&bad)).await.unwrap();
    assert!(matches!(outcome.content, Content::Verbatim), "{settings}: no effect of it stays");
}

#[tokio::test]
async fn verdicts_that_break_the_contract() {
    let long = "x".repeat(257);
    for (settings, told) in [
        (json!({"do": "unequal"}), "they are parallel"),
        (json!({"do": "descending"}), "positions never descend"),
        (json!({"do": "out-of-range"}), "position 2 in a frame of 2 records"),
        (json!({"do": "bad-op"}), "operation 7 on record 0 is not known"),
        (json!({"do": "exclusive"}), "has other operations"),
        (json!({"do": "no-rejection"}), "rejection 0 does not exist"),
        (json!({"do": "no-string"}), "string 17 does not exist"),
        (json!({"do": "no-header-value", "text": "h"}), "string 1 does not exist"),
        (json!({"do": "string-ends-descend"}), "string end 1 descends"),
        (json!({"do": "string-end-outside"}), "string end 0 descends or lies outside"),
        (json!({"do": "topic", "text": "a//b"}), "topic"),
        (json!({"do": "topic", "text": ""}), "topic"),
        (json!({"do": "header", "text": "tidegate-schema"}), "needs the grant \"header:tidegate-schema\""),
        (json!({"do": "header", "text": "TideGate-x"}), "is reserved"),
        (json!({"do": "header", "text": ""}), "header name of 0 bytes"),
        (json!({"do": "header", "text": long}), "header name of 257 bytes"),
        (json!({"do": "not-utf8"}), "not UTF-8"),
        (json!({"do": "huge-key"}), "bytes of a key"),
        (json!({"do": "many-headers", "text": "h"}), "headers of a record would be 65"),
        (json!({"do": "output-bomb", "count": 70_000}), "bytes of output"),
        (json!({"do": "emit-origin", "text": "b"}), "position 2 in a frame of 2"),
        (json!({"do": "emit-headers", "text": "b"}), "headers item is malformed"),
        (json!({"do": "emit-bomb", "text": "b", "count": 4_000}), "bytes of output"),
        (json!({"do": "script", "emits": [{"origin": 0, "topic": "b", "header": "tidegate-x"}]}), "is reserved"),
        (json!({"do": "script", "edits": [{"at": 0, "op": "remove-header", "arg": "tidegate-x"}]}), "is reserved"),
    ] {
        decided(settings, FaultKind::BadOutput, told).await;
    }
}

#[tokio::test]
async fn output_beyond_what_is_lifted_at_all() {
    decided(json!({"do": "output-bomb", "count": 8 << 20}), FaultKind::BadOutput, "too much data").await;
}

#[tokio::test]
async fn traps_and_their_last_words() {
    decided(json!({"do": "panic", "text": "lost my marbles"}), FaultKind::Trap, "lost my marbles").await;
    decided(json!({"do": "count-names", "count": 200_000}), FaultKind::Trap, "counter names").await;
    decided(json!({"do": "random", "count": 65_537}), FaultKind::Trap, "at most 65536 a call").await;
    decided(json!({"do": "batch-greedy"}), FaultKind::Trap, "must ascend without doubles").await;
}

#[tokio::test]
async fn memory_is_capped() {
    decided(json!({"do": "eat-memory"}), FaultKind::Memory, "33554432 bytes of memory").await;
}

#[tokio::test]
async fn failures_that_the_guest_declares() {
    decided(json!({"do": "retry", "count": 1500}), FaultKind::Retry { after_ms: 1500 }, "the database is away").await;
    decided(json!({"do": "permanent"}), FaultKind::Permanent, "no").await;
}

#[tokio::test]
async fn an_endless_loop_ends_at_its_budget_and_others_go_on() {
    decided(json!({"do": "spin"}), FaultKind::Deadline, "ms allowed in `tidegate_guest_hostile::guest::").await;

    let budget = Duration::from_millis(50);
    let spin = Given::hostile("p", &when_bad(json!({"do": "spin"}))).budget(|b| b.cpu = budget);
    let chain = chain(spin);
    let before = crate::hooks::guest::thread_cpu();
    let error = chain.produce(batch(&[("a", "bad", "v")])).await.unwrap_err();
    assert_eq!(error.code().name(), "PLUGIN_DEADLINE");
    assert!(error.code().row().retriable);
    assert_eq!(error.record, Some(0), "one record, so it is the guilty one");
    let spent = Duration::from_nanos(plugin(&chain, "p").stats().produce.cpu_ns);
    // Ticks come each millisecond of the wall clock; a call that is not running misses them without using time.
    assert!(spent >= budget && spent < budget + Duration::from_millis(30), "{spent:?}");
    let here = crate::hooks::guest::thread_cpu() - before;
    assert!(here < Duration::from_millis(20), "a plugin that is not known as short spins elsewhere: {here:?}");
    assert_eq!(plugin(&chain, "p").stats().produce.faults.deadline, 1, "not tried a second time");
}

#[tokio::test]
async fn a_trap_is_tried_once_more_on_a_fresh_instance() {
    let chain = chain(Given::hostile("p", &when_bad(json!({"do": "panic"}))));
    chain.produce(batch(&[("a", "bad", "v")])).await.unwrap_err();
    let stats = plugin(&chain, "p").stats();
    assert_eq!((stats.produce.calls, stats.produce.faults.trap, stats.instances), (2, 2, 2));
}

#[tokio::test]
async fn a_plugin_that_was_short_is_tried_once_more_too_and_never_started_on_the_callers_thread() {
    let chain = chain(Given::hostile("p", &when_bad(json!({"do": "panic"}))));
    let inline = || plugin(&chain, "p").placement() == crate::hooks::Placement::Inline;
    for round in 1..=3 {
        let mut calls = 0;
        while !inline() {
            chain.produce(batch(&[("a", "k", "v")])).await.unwrap();
            calls += 1;
            assert!(calls < 100_000);
        }
        chain.produce(batch(&[("a", "bad", "v")])).await.unwrap_err();
        let stats = plugin(&chain, "p").stats();
        assert_eq!(stats.produce.faults.trap, 2 * round, "never a third time");
    }
}

#[tokio::test]
async fn the_budget_grows_with_the_bytes_given() {
    let given =
        Given::hostile("p", &json!({"needs": ["key", "value"]})).budget(|b| b.cpu_per_mib = Duration::from_secs(1));
    let plugin = given.load().unwrap();
    assert_eq!(plugin.call_budget(1 << 20), Duration::from_millis(1005));
    assert_eq!(plugin.call_budget(0), Duration::from_millis(5));
}

#[tokio::test]
async fn short_plugins_come_inline_and_leave_at_once() {
    let chain = chain(Given::hostile("p", &when_bad(json!({"do": "spin"}))));
    let placement = || plugin(&chain, "p").placement();
    assert_eq!(placement(), crate::hooks::Placement::HookThread);
    let mut calls = 0;
    while placement() == crate::hooks::Placement::HookThread {
        chain.produce(batch(&[("a", "k", "v")])).await.unwrap();
        calls += 1;
        assert!(calls < 100_000, "calls of a microsecond are short sooner or later, whatever else runs here");
    }
    assert!(calls >= 32, "{calls}");
    chain.produce(batch(&[("a", "bad", "v")])).await.unwrap_err();
    assert_eq!(placement(), crate::hooks::Placement::HookThread);
}

#[tokio::test]
async fn a_leaking_guest_is_recycled() {
    let chain = chain(Given::hostile("p", &json!({"do": "leak", "count": 100_000})));
    for _ in 0..2_000 {
        chain.produce(batch(&[("a", "k", "v")])).await.unwrap();
    }
    let stats = plugin(&chain, "p").stats();
    assert_eq!(stats.produce.faults.total(), 0, "recycled before its memory was full");
    assert!(stats.instances > 5, "{stats:?}");
    assert!(stats.memory_bytes < 32 << 20, "{stats:?}");
}

#[tokio::test]
async fn two_hundred_thousand_calls_leave_memory_flat() {
    let stamp = json!({"do": "script", "needs": ["key", "value", "headers", "topic", "timestamp", "offset"],
        "edits": [{"at": "all", "op": "add-header", "arg": "h", "value": "1"}]});
    let chain = generation(&[Given::hostile("p", &stamp)], vec![entry(&["a"], &["p"])]);
    let records: Vec<_> = (0..10).map(|_| ("a", "key", "value")).collect();
    let sent = batch(&records);
    let mut resident = vec![resident_kib()];
    for _ in 0..8 {
        for _ in 0..25_000 {
            chain.produce(sent.clone()).await.unwrap();
        }
        resident.push(resident_kib());
    }
    // Other tests run in this process, and take and give memory as they like. A leak takes some every time: one row list per
    // call would be 25 000 times a KiB.
    let least = resident.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).min().unwrap();
    assert!(least < 8 << 10, "{resident:?} KiB");
    let stats = plugin(&chain, "p").stats();
    assert_eq!((stats.produce.calls, stats.produce.changed), (200_000, 2_000_000));
    assert!(stats.memory_bytes < 2 << 20, "{stats:?}");
}

/// Memory of this process.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_callers_at_once_beside_a_guest_that_traps() {
    let chain = chain(Given::hostile("p", &when_bad(json!({"do": "panic"}))));
    let calls = (0..16).map(|caller| {
        let chain = Arc::clone(&chain);
        tokio::spawn(async move {
            for i in 0..200 {
                let key = if (caller + i) % 8 == 0 { "bad" } else { "k" };
                let result = chain.produce(batch(&[("a", key, "v"), ("b", "k", "v")])).await;
                assert_eq!(result.is_err(), key == "bad");
            }
        })
    });
    for call in calls {
        call.await.unwrap();
    }
    let stats = plugin(&chain, "p").stats().produce;
    assert_eq!(stats.faults.trap, 2 * 16 * 25, "each bad batch is tried twice");
    assert_eq!(plugin(&chain, "noop").stats().produce.calls, 16 * 175);
}
