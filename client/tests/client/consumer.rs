//! A consumer against a broker that scripts every byte it sends.

use std::time::Duration;

use bytes::Bytes;
use tidegate_client::{Code, Connection, Consumer, ConsumerOptions, Error, Event, Start, headers};
use tidegate_protocol::wire::{self, Failure, FetchProgress, Gap, ServerBody, WireError};

use crate::support::{Broker, Step, batch, cursor, encode, progress};

async fn reading(script: Vec<Vec<Step>>, options: ConsumerOptions) -> (Broker, Connection, Consumer) {
    let broker = Broker::start();
    broker.with(|state| state.scripts = script.into());
    let connection = Connection::connect(broker.options()).await.unwrap();
    let consumer = connection.consumer(options).unwrap();
    (broker, connection, consumer)
}

fn failing(failure: Failure) -> Step {
    Step::Bytes(encode(ServerBody::Failure(failure)))
}

async fn next_offsets(consumer: &mut Consumer) -> Vec<u64> {
    let batch = consumer.next().await.unwrap().unwrap();
    batch.records().map(|record| record.offset).collect()
}

async fn offsets(consumer: &mut Consumer) -> Result<Vec<u64>, Error> {
    let mut offsets = Vec::new();
    while let Some(batch) = consumer.next().await? {
        offsets.extend(batch.records().map(|record| record.offset));
    }
    Ok(offsets)
}

#[tokio::test]
async fn records_come_with_all_that_belongs_to_them() {
    let script = vec![Step::Bytes(batch(7, &[b"one", b"two"])), progress(12, true)];
    let (broker, _, mut consumer) = reading(vec![script], ConsumerOptions::new("a/*")).await;
    assert_eq!((consumer.cursor(), consumer.at_end()), (None, false));
    let batch = consumer.next().await.unwrap().unwrap();
    let record = batch.records().next().unwrap();
    assert_eq!((record.topic, record.offset, record.key_version), ("a/b", 7, 8));
    assert_eq!((record.key, record.value), (Some(&b"k"[..]), Some(&b"one"[..])));
    assert_eq!((record.broker_time_ms, record.generation, headers(record.headers).count()), (5, 2, 0));
    assert_eq!((batch.len(), batch.cursor(), consumer.cursor()), (2, &*cursor(9), Some(&*cursor(9))));
    assert!(!consumer.at_end());
    assert!(consumer.next().await.unwrap().is_none());
    assert_eq!((consumer.cursor(), consumer.at_end()), (Some(&*cursor(12)), true));
    assert!(consumer.next().await.unwrap().is_none(), "it stays at its end");
    let opened = broker.with(|state| state.opened.clone());
    assert_eq!((opened.len(), opened[0].pattern.as_str()), (1, "a/*"));
    assert_eq!(opened[0].start, Some(wire::Start::Earliest(true)));
}

#[tokio::test]
async fn progress_is_seen_without_a_record() {
    let script = vec![progress(3, false), progress(5, true), Step::Hold];
    let (_broker, _, mut consumer) =
        reading(vec![script], ConsumerOptions::new(">").start(Start::Latest).follow()).await;
    assert!(matches!(consumer.next_event().await.unwrap(), Some(Event::Progress)));
    assert_eq!((consumer.cursor(), consumer.at_end()), (Some(&*cursor(3)), false));
    assert!(matches!(consumer.next_event().await.unwrap(), Some(Event::Progress)));
    assert_eq!((consumer.cursor(), consumer.at_end()), (Some(&*cursor(5)), true));
    let waiting = tokio::time::timeout(Duration::from_millis(50), consumer.next()).await;
    assert!(waiting.is_err(), "a follower waits");
}

#[tokio::test]
async fn a_gap_is_told_and_is_not_the_end_of_a_read() {
    let gaps = |next_lsn| {
        let gaps = vec![Gap { topic: "a/b".to_owned(), low_offset: 4 }];
        Step::Bytes(encode(ServerBody::FetchProgress(FetchProgress { cursor: cursor(next_lsn), at_end: false, gaps })))
    };
    let rest = || vec![gaps(1), Step::Bytes(batch(4, &[b"4"])), progress(5, true)];
    let script = vec![vec![gaps(0)], rest(), rest()];
    let options = ConsumerOptions::new("a/b").start(Start::Ago(Duration::from_secs(7_200)));
    let (broker, connection, mut consumer) = reading(script, options).await;
    let told = consumer.next_event().await.unwrap();
    assert!(matches!(told, Some(Event::Gaps(gaps)) if gaps[0].topic == "a/b" && gaps[0].low_offset == 4));
    assert_eq!(offsets(&mut consumer).await.unwrap(), [4], "behind a stream that was cut after it");
    let starts: Vec<_> = broker.with(|state| state.opened.iter().map(|open| open.start.clone().unwrap()).collect());
    assert_eq!(starts, [wire::Start::Ago(7_200_000), wire::Start::Cursor(cursor(0))]);
    let since = ConsumerOptions::new("a/b").start(Start::Since(-1));
    assert_eq!(
        offsets(&mut connection.consumer(since).unwrap()).await.unwrap(),
        [4],
        "stepped over by who does not ask"
    );
    assert_eq!(broker.with(|state| state.opened[2].start.clone()), Some(wire::Start::Since(-1)));
}

#[tokio::test]
async fn after_a_cut_it_goes_on_at_its_cursor() {
    let long = vec![9; 3_000];
    let script = vec![
        vec![Step::Bytes(batch(0, &[b"0", b"1"])), Step::Bytes(batch(2, &[&long])), Step::Cut],
        vec![failing(Failure::new(Code::PluginFailed, "redact").retry_after_ms(1))],
        vec![Step::Bytes(batch(3, &[b"3"])), Step::Cut],
        vec![Step::Bytes(batch(4, &[b"4"])), progress(5, true)],
    ];
    let (broker, connection, mut consumer) = reading(script, ConsumerOptions::new("a/b")).await;
    assert_eq!(next_offsets(&mut consumer).await, [0, 1]);
    assert_eq!(next_offsets(&mut consumer).await, [2]);
    broker.cut.notify_one();
    assert_eq!(next_offsets(&mut consumer).await, [3]);
    broker.cut.notify_one();
    assert_eq!(offsets(&mut consumer).await.unwrap(), [4]);
    let starts: Vec<_> = broker.with(|state| state.opened.iter().map(|open| open.start.clone().unwrap()).collect());
    let at = |lsn| wire::Start::Cursor(cursor(lsn));
    assert_eq!(starts, [wire::Start::Earliest(true), at(3), at(3), at(4)]);
    let stats = connection.stats();
    assert_eq!((stats.disconnects, stats.subscriptions_resumed), (2, 3));
}

#[tokio::test]
async fn without_resume_the_loss_comes_out_and_a_later_call_goes_on() {
    let again = vec![Step::Bytes(batch(1, &[b"1"])), progress(2, true)];
    let script = vec![vec![Step::Bytes(batch(0, &[b"0"])), Step::Cut], again];
    let options = ConsumerOptions { resume: false, ..ConsumerOptions::new("a/b") };
    let (broker, _, mut consumer) = reading(script, options).await;
    consumer.next().await.unwrap().unwrap();
    broker.cut.notify_one();
    let lost = consumer.next().await.unwrap_err();
    assert!(lost.is_loss(), "{lost}");
    assert_eq!(offsets(&mut consumer).await.unwrap(), [1]);
}

/// A broker whose task dies ends its streams in good order; taking that for the end of the read would lose records.
#[tokio::test]
async fn a_stream_that_ends_without_a_word_was_cut() {
    let again = vec![Step::Bytes(batch(1, &[b"1"])), progress(2, true)];
    let (_broker, connection, mut consumer) =
        reading(vec![vec![Step::Bytes(batch(0, &[b"0"]))], vec![], again], ConsumerOptions::new("a/b")).await;
    assert_eq!(offsets(&mut consumer).await.unwrap(), [0, 1]);
    let stats = connection.stats();
    assert_eq!((stats.subscriptions_resumed, stats.disconnects), (2, 0));
}

#[tokio::test]
async fn a_refusal_is_typed_and_final() {
    let mut failure = Failure::new(Code::Forbidden, "no right to a/b");
    failure.cursor = cursor(4);
    let (broker, _, mut consumer) = reading(vec![vec![failing(failure)]], ConsumerOptions::new("a/b")).await;
    assert_eq!(consumer.next().await.unwrap_err().code(), Some(Code::Forbidden));
    assert_eq!(consumer.cursor(), Some(&*cursor(4)));
    assert!(consumer.next().await.unwrap().is_none());
    assert_eq!(broker.with(|state| state.opened.len()), 1);
}

#[tokio::test]
async fn bounds_shrink_by_what_was_delivered() {
    let again = vec![Step::Bytes(batch(2, &[b"2"])), progress(3, false)];
    let script = vec![vec![Step::Bytes(batch(0, &[b"0", b"1"])), Step::Cut], again];
    let options = ConsumerOptions { records_max: 3, ..ConsumerOptions::new("a/b").follow() };
    let (broker, _, mut consumer) = reading(script, options).await;
    assert_eq!(next_offsets(&mut consumer).await, [0, 1]);
    broker.cut.notify_one();
    assert_eq!(offsets(&mut consumer).await.unwrap(), [2], "a bounded follower ends");
    assert_eq!(broker.with(|state| state.opened.iter().map(|open| open.records_max).collect::<Vec<_>>()), [3, 1]);
}

#[tokio::test]
async fn an_oversized_frame_is_refused_before_it_is_read() {
    // 3 GiB are told; none is sent.
    let mut told = (3_u32 << 30).to_le_bytes().to_vec();
    told.push(wire::KIND_BATCH);
    let script = vec![vec![Step::Bytes(told.into()), Step::Hold]];
    let (_broker, connection, mut consumer) = reading(script, ConsumerOptions::new("a/b")).await;
    let error = consumer.next().await.unwrap_err();
    assert!(matches!(error, Error::Wire(WireError::TooLarge { .. })), "{error}");
    assert_eq!(connection.stats().disconnects, 0, "the connection stays");

    let small = ConsumerOptions { batch_bytes_max: 100, ..ConsumerOptions::new("a/b") };
    let script = vec![vec![Step::Bytes(batch(0, &[&[7; 200]])), Step::Hold]];
    let (_broker, _, mut consumer) = reading(script, small).await;
    assert!(matches!(consumer.next().await.unwrap_err(), Error::BadBatch(_) | Error::Wire(_)));
}

#[tokio::test]
async fn no_bytes_of_a_broker_make_the_client_panic() {
    let whole = batch(0, &[b"some value", b"another"]);
    let mut scripts: Vec<Vec<Step>> = Vec::new();
    for at in 0..whole.len() {
        let mut changed = whole.to_vec();
        changed[at] ^= 0x55;
        scripts.push(vec![Step::Bytes(changed.into())]);
        scripts.push(vec![Step::Bytes(whole.slice(..at))]);
    }
    scripts.push(vec![Step::Bytes(Bytes::from_static(&[1, 0, 0, 0, 1]))]);
    scripts.push(vec![Step::Bytes(Bytes::from_static(&[0, 0, 0, 0, 1]))]);
    scripts.push(vec![Step::Bytes(encode(ServerBody::Welcome(wire::Welcome::default())))]);
    let broker = Broker::start();
    let connection = Connection::connect(broker.options()).await.unwrap();
    let (mut errors, mut cut, count) = (0, 0, scripts.len());
    for script in scripts {
        broker.with(|state| state.scripts.push_back(script));
        let options = ConsumerOptions { resume: false, ..ConsumerOptions::new("a/b") };
        let mut consumer = connection.consumer(options).unwrap();
        match offsets(&mut consumer).await.unwrap_err() {
            Error::Wire(_) | Error::BadBatch(_) | Error::Protocol { .. } => errors += 1,
            // Cut, or a few bytes of the head say something else that is well formed; then the end comes too early.
            Error::StreamEnded { .. } => cut += 1,
            other => panic!("{other}"),
        }
    }
    assert!(errors > count / 3 && cut > count / 3, "{errors} errors and {cut} cuts of {count}");
    assert_eq!(connection.stats().disconnects, 0);
}

#[tokio::test]
async fn a_slow_reader_holds_no_more_than_its_window() {
    let frame = batch(0, &[&[1; 100_000]]);
    let script = vec![vec![Step::Flood(frame.clone()), Step::Hold]];
    let (broker, _, mut consumer) = reading(script, ConsumerOptions::new("a/b").follow()).await;
    consumer.next().await.unwrap().unwrap();
    broker.flooded.notified().await;
    let flooded = broker.with(|state| state.flooded[0]);
    // The client's window of 4 MiB and what the broker's own transport buffers.
    assert!(flooded < 24 << 20, "{flooded} bytes were taken from a broker nobody listened to");
    let frames = flooded / frame.len();
    for _ in 0..frames {
        consumer.next().await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_wait_given_up_loses_nothing() {
    let value = vec![5; 400_000];
    let mut script: Vec<_> = (0..20).map(|at| Step::Bytes(batch(at, &[&value]))).collect();
    script.push(progress(20, true));
    let (_broker, _, mut consumer) = reading(vec![script], ConsumerOptions::new("a/b")).await;
    let mut offsets = Vec::new();
    loop {
        // Each wait is given up after the first moment without progress.
        tokio::select! {
            biased;
            next = consumer.next() => match next.unwrap() {
                Some(batch) => offsets.extend(batch.records().map(|record| record.offset)),
                None => break,
            },
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(offsets, (0..20).collect::<Vec<_>>());
}
