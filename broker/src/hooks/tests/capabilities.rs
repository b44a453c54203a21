//! What a guest may ask of the host.

use serde_json::json;

use super::support::*;

#[tokio::test]
async fn the_batch_capability_reads_finds_and_parses() {
    let given = Given::hostile("p", &json!({"do": "batch", "text": "needle"}));
    let chain = generation(&[given], vec![entry(&["a"], &["p"])]);
    let sent = [
        ("a", "k0", r#"{"a": {"b": "one"}}"#),
        ("x", "k1", r#"{"a": {"b": "other topic"}}"#),
        ("a", "k2", r#"{"a": {"b": [2, "needle"]}}"#),
        ("a", "k3", "no json, needle"),
    ];
    let (_, outcome) = chain.produce(batch(&sent)).await.unwrap();
    // Found at 1 and 2 of the three records of the call; all values; the first found key; one absent; the members.
    let bytes = sent[0].2.len() + sent[2].2.len() + sent[3].2.len();
    let told = format!("batch=[1, 2] {bytes} k2 1 one[2,\"needle\"]");
    assert_eq!(stored(&outcome)[0], format!("a k0={} {told}", sent[0].2));
}

#[tokio::test]
async fn the_instance_knows_tenant_and_principal() {
    let chain = generation(&[Given::hostile("p", &json!({"do": "instance"}))], vec![entry(&["a"], &["p"])]);
    let (_, outcome) = chain.produce(batch(&[("a", "k", "v")])).await.unwrap();
    assert_eq!(stored(&outcome), ["a k=v instance=acme alice true"]);
}

#[tokio::test]
async fn random_and_clock_answer() {
    let chain =
        generation(&[Given::hostile("p", &json!({"do": "random", "count": 65_536}))], vec![entry(&["a"], &["p"])]);
    let (_, one) = chain.produce(batch(&[("a", "k", "v")])).await.unwrap();
    let (_, two) = chain.produce(batch(&[("a", "k", "v")])).await.unwrap();
    assert_ne!(stored(&one), stored(&two));
}

#[tokio::test]
async fn log_lines_are_cut_and_counted() {
    let long = "ü".repeat(1000);
    let given =
        Given::hostile("flood", &json!({"do": "log", "needs": ["key"], "only-key": "now", "text": long, "count": 500}));
    let chain = generation(&[given], vec![entry(&["a"], &["flood"])]);
    chain.produce(batch(&[("a", "now", "v")])).await.unwrap();
    let lines = LOG.of("flood");
    // The flood may fall into two seconds.
    assert!((100..=200).contains(&lines.len()), "{}", lines.len());
    assert!(lines.iter().all(|line| line.starts_with("acme flood Info ü") && line.len() <= 1024 + 16));
    assert_eq!(plugin(&chain, "flood").stats().log_lines_dropped, 500 - lines.len() as u64);
}

#[tokio::test]
async fn counters_are_exact_shared_and_outlive_a_swap() {
    let given = Given::hostile("counting", &json!({"do": "count", "text": "seen"}));
    let one = generation(std::slice::from_ref(&given), vec![entry(&["a"], &["counting"])]);
    for _ in 0..50 {
        one.produce(batch(&[("a", "k", "v"), ("a", "l", "v")])).await.unwrap();
    }
    assert_eq!(plugin(&one, "counting").counter("seen"), 100, "the smoke run does not count");
    let two = generation(&[given], vec![entry(&["a"], &["counting"])]);
    drop(one);
    two.produce(batch(&[("a", "k", "v")])).await.unwrap();
    assert_eq!(plugin(&two, "counting").counter("seen"), 101);
}
