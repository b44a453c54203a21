//! The runtime itself: its ticker, its threads, its bounds.

use std::{
    sync::{Arc, mpsc::sync_channel},
    time::{Duration, Instant},
};

use serde_json::json;

use super::support::*;
use crate::hooks::{Config, FaultKind, spec::TenantSpec, threads::Threads};

#[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_guest_that_begins_while_the_ticker_sleeps_is_stopped_all_the_same() {
    let runtime = runtime(Config { instances_max: 8, ..Config::default() });
    let given = Given::hostile("p", &json!({"do": "spin", "needs": ["key"], "only-key": "bad"}));
    let plugin = runtime.load("acme", "p", &given.spec, &given.component, Vec::new()).unwrap();
    let spec = TenantSpec { plugins: [("p".into(), given.spec)].into(), chain: vec![entry(&["a"], &["p"])] };
    let chain = runtime.generation("acme", 1, Arc::new(spec), [("p".into(), Ok(plugin))].into()).unwrap();
    for _ in 0..2 {
        wait_until("the ticker falls asleep", || runtime.parts.engine.ticker.is_asleep());
        let error = chain.produce(batch(&[("a", "bad", "v")])).await.unwrap_err();
        assert_eq!(error.kind, FaultKind::Deadline);
    }
}

#[test]
fn instances_are_bounded_and_the_refusal_says_so() {
    let runtime = runtime(Config { instances_max: 2, ..Config::default() });
    let given = Given::noop("p");
    let load = || runtime.load("acme", "p", &given.spec, &given.component, Vec::new());
    let kept = [load().unwrap(), load().unwrap()];
    let told = load().unwrap_err().to_string();
    assert!(told.contains("no room for one more instance") && told.contains("allow the broker more"), "{told}");
    drop(kept);
    load().unwrap();
}

#[tokio::test]
async fn generations_outlive_the_handle_of_their_runtime() {
    let runtime = runtime(Config { instances_max: 8, ..Config::default() });
    let given = Given::noop("p");
    let plugin = runtime.load("acme", "p", &given.spec, &given.component, Vec::new()).unwrap();
    let spec = TenantSpec { plugins: [("p".into(), given.spec)].into(), chain: vec![entry(&["a"], &["p"])] };
    let chain = runtime.generation("acme", 1, Arc::new(spec), [("p".into(), Ok(plugin))].into()).unwrap();
    drop(runtime);
    for _ in 0..100 {
        chain.produce(batch(&[("a", "k", "v")])).await.unwrap();
    }
}

#[tokio::test]
async fn a_job_that_panics_or_is_given_up_harms_no_other() {
    let threads = Arc::new(Threads::start(1, 1).unwrap());
    assert!(threads.run(|| panic!("a bug of ours")).await.is_err());

    let (begun, begins) = sync_channel::<()>(1);
    let (go, goes) = sync_channel::<()>(1);
    let first = {
        let threads = Arc::clone(&threads);
        tokio::spawn(async move {
            threads
                .run(move || {
                    begun.send(()).unwrap();
                    goes.recv().unwrap();
                    1
                })
                .await
        })
    };
    tokio::task::yield_now().await;
    begins.recv().unwrap();
    let (ran, runs) = sync_channel::<()>(1);
    {
        // In the queue behind the first, then given up before its turn.
        let mut second = Box::pin(threads.run(move || ran.send(()).unwrap()));
        let pending =
            std::future::poll_fn(|context| std::task::Poll::Ready(second.as_mut().poll(context).is_pending()));
        assert!(pending.await);
    }
    go.send(()).unwrap();
    assert_eq!(first.await.unwrap(), Ok(1));
    assert_eq!(threads.run(|| 3).await, Ok(3));
    assert!(runs.recv().is_err(), "the one that was given up never ran");
    threads.stop();
    assert!(threads.run(|| 4).await.is_err());
}
