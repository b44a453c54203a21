//! A producer against a broker that cuts, refuses and stalls.

use std::{collections::VecDeque, time::Duration};

use tidegate_client::{BatchBuilder, Code, Condition, Connection, Error, Expect, Outcome, ProducerConfig, TopicName};
use tidegate_protocol::{batch::BodyError, limits::Limits, wire::Failure};

use crate::support::{Broker, record};

/// A batch per record, at once.
fn single() -> ProducerConfig {
    ProducerConfig { linger: Duration::ZERO, batch_records_max: 1, ..ProducerConfig::default() }
}

/// Batches close only when full or flushed.
fn patient() -> ProducerConfig {
    ProducerConfig { linger: Duration::from_secs(3_600), ..ProducerConfig::default() }
}

fn offset(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Appended { offset, .. } => *offset,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn records_are_gathered_and_answered_one_by_one() {
    let broker = Broker::start();
    let connection = Connection::connect(broker.options()).await.unwrap();
    let producer = connection.producer(patient()).await.unwrap();
    let mut deliveries = Vec::new();
    for at in 0..2_500 {
        deliveries
            .push(producer.send(if at % 2 == 0 { "even" } else { "odd/er" }, record(at.to_string())).await.unwrap());
    }
    producer.flush().await.unwrap();
    for (at, delivery) in deliveries.into_iter().enumerate() {
        let Outcome::Appended { topic, offset, key_version } = delivery.await.unwrap() else { panic!("{at}") };
        assert_eq!((&*topic, offset, key_version), (if at % 2 == 0 { "even" } else { "odd/er" }, at as u64, 1));
    }
    let (seen, values) = broker.with(|state| (state.seen.clone(), state.log.clone()));
    assert_eq!(seen, [0, 1, 2], "1000 records to a batch");
    assert!(values.iter().enumerate().all(|(at, value)| *value == at.to_string().into_bytes()));
    assert_eq!(connection.stats().batches_resent, 0);
    producer.close().await.unwrap();
}

#[tokio::test]
async fn a_batch_goes_when_its_linger_is_over_or_it_is_full_of_bytes() {
    let broker = Broker::start();
    let connection = Connection::connect(broker.options()).await.unwrap();
    let lingering = ProducerConfig { linger: Duration::from_millis(20), ..ProducerConfig::default() };
    let producer = connection.producer(lingering).await.unwrap();
    let first = producer.send("a", record("x")).await.unwrap();
    let second = producer.send("a", record("y")).await.unwrap();
    assert_eq!((offset(&first.await.unwrap()), offset(&second.await.unwrap())), (0, 1));
    assert_eq!(broker.with(|state| state.seen.len()), 1);

    let small = ProducerConfig { batch_bytes_max: 10_000, ..patient() };
    let producer = connection.producer(small).await.unwrap();
    for _ in 0..8 {
        producer.send("a", record(vec![7; 4_000])).await.unwrap();
    }
    // A record that is larger than a batch goes alone.
    producer.send("a", record(vec![7; 50_000])).await.unwrap();
    producer.close().await.unwrap();
    assert_eq!(broker.with(|state| state.seen.len()), 1 + 4 + 1);
}

#[tokio::test]
async fn after_a_cut_everything_unanswered_goes_again_under_the_same_sequences() {
    let broker = Broker::start();
    broker.with(|state| state.cut_at = vec![3, 40, 41, 99]);
    let connection = Connection::connect(broker.options()).await.unwrap();
    let producer = connection.producer(single()).await.unwrap();
    let mut deliveries = Vec::new();
    for at in 0..100 {
        deliveries.push(producer.send("a", record(at.to_string())).await.unwrap());
    }
    for (at, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(offset(&delivery.await.unwrap()), at as u64);
    }
    let (seen, values) = broker.with(|state| (state.seen.clone(), state.log.clone()));
    assert_eq!(values, (0..100).map(|at: u32| at.to_string().into_bytes()).collect::<Vec<_>>(), "each once, in order");
    for cut in [3, 40, 41, 99] {
        assert!(seen.iter().filter(|sequence| **sequence == cut).count() >= 2, "{cut} was sent again");
    }
    let stats = connection.stats();
    assert_eq!((stats.disconnects, stats.reconnects), (4, 4));
    assert!(stats.batches_resent >= 4);
    producer.close().await.unwrap();
}

#[tokio::test]
async fn a_batch_larger_than_the_window_survives_a_cut_in_its_middle() {
    let broker = Broker::start();
    broker.with(|state| state.cut_at = vec![0]);
    let connection = Connection::connect(broker.options()).await.unwrap();
    let producer = connection.producer(single()).await.unwrap();
    let value: Vec<u8> = (0..900_000_u32).map(|at| (at % 251) as u8).collect();
    let mut deliveries = Vec::new();
    for _ in 0..12 {
        deliveries.push(producer.send("a", record(value.clone())).await.unwrap());
    }
    for (at, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(offset(&delivery.await.unwrap()), at as u64);
    }
    assert!(broker.with(|state| state.log.len() == 12 && state.log.iter().all(|stored| *stored == value)));
}

#[tokio::test]
async fn a_retriable_refusal_is_tried_again_under_its_sequence_and_blocks_nobody() {
    let broker = Broker::start();
    let later = Failure::new(Code::PluginRetry, "later").retry_after_ms(30);
    broker.with(|state| state.refusals.insert(1, VecDeque::from([later.clone(), later])));
    let connection = Connection::connect(broker.options()).await.unwrap();
    let producer = connection.producer(single()).await.unwrap();
    let mut deliveries = Vec::new();
    for at in 0..5 {
        deliveries.push(producer.send("a", record(at.to_string())).await.unwrap());
    }
    for delivery in deliveries {
        delivery.await.unwrap();
    }
    let (seen, mut values) = broker.with(|state| (state.seen.clone(), state.log.clone()));
    assert_eq!(seen.iter().filter(|sequence| **sequence == 1).count(), 3);
    assert_eq!(values.last().unwrap(), b"1", "the others did not wait");
    values.sort();
    assert_eq!(values, [b"0", b"1", b"2", b"3", b"4"]);
    assert_eq!(connection.stats().disconnects, 0);
}

#[tokio::test]
async fn a_final_refusal_is_told_and_the_next_batches_go_on() {
    let broker = Broker::start();
    let failure = Failure::new(Code::PluginFault, "trap").by_plugin("schema").at_record(0);
    broker.with(|state| state.refusals.insert(1, VecDeque::from([failure])));
    let connection = Connection::connect(broker.options()).await.unwrap();
    let producer = connection.producer(single()).await.unwrap();
    let topic = TopicName::parse("a").unwrap();
    let mut builder = BatchBuilder::new();
    let mut answers = Vec::new();
    for at in 0..3 {
        builder.push_record("a", &record(at.to_string())).unwrap();
        let body = builder.finish_body(&Limits::default()).unwrap();
        let condition = Condition::new(&topic, "k", Expect::Version(at));
        answers.push(producer.send_batch(body, vec![condition]).await);
    }
    assert_eq!(offset(&answers[0].as_ref().unwrap().outcome(0).unwrap()), 0);
    let failure = answers[1].as_ref().unwrap_err().failure().unwrap();
    assert_eq!(
        (failure.code, failure.plugin.as_deref(), failure.record),
        (Some(Code::PluginFault), Some("schema"), Some(0))
    );
    assert!(!answers[1].as_ref().unwrap_err().is_retriable());
    assert_eq!(offset(&answers[2].as_ref().unwrap().outcome(0).unwrap()), 1);
    assert_eq!(broker.with(|state| state.seen.clone()), [0, 1, 2], "the refused sequence is used up");
}

/// Sends single records until so many have their answer, which must be a refusal of the broker's chain.
async fn refused(producer: &tidegate_client::Producer, count: usize) {
    let mut deliveries = Vec::new();
    for at in 0..count {
        deliveries.push(producer.send("a", record(at.to_string())).await.unwrap());
    }
    for delivery in deliveries {
        assert_eq!(delivery.await.unwrap_err().code(), Some(Code::PluginFault));
    }
}

#[tokio::test]
async fn however_many_batches_in_a_row_are_refused_the_next_is_taken() {
    for in_flight_max in [1, 512] {
        let broker = Broker::start();
        broker.with(|state| state.refuse_records = true);
        let connection = Connection::connect(broker.options()).await.unwrap();
        let producer = connection.producer(ProducerConfig { in_flight_max, ..single() }).await.unwrap();
        refused(&producer, 3_000).await;
        let identity = producer.identity().unwrap();
        broker.with(|state| {
            state.refuse_records = false;
            assert!(state.log.is_empty());
            let fillers =
                state.stored.keys().filter(|stamp| (stamp.0, stamp.1) == (identity.id, identity.epoch)).count();
            assert!((3..=12).contains(&fillers), "{fillers}: one per some hundred refused batches");
        });
        producer.send("a", record("taken")).await.unwrap().await.unwrap();
        assert_eq!(broker.with(|state| state.log.clone()), [b"taken"]);
        producer.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_filler_whose_answer_is_lost_goes_again_under_its_sequence() {
    let broker = Broker::start();
    broker.with(|state| {
        state.refuse_records = true;
        // The first filler comes behind 256 refused batches.
        state.cut_at = vec![256];
    });
    let connection = Connection::connect(broker.options()).await.unwrap();
    let producer = connection.producer(ProducerConfig { in_flight_max: 1, ..single() }).await.unwrap();
    refused(&producer, 1_500).await;
    broker.with(|state| {
        assert!(state.cut_at.is_empty(), "the filler came");
        assert_eq!(state.seen.iter().filter(|sequence| **sequence == 256).count(), 2);
        state.refuse_records = false;
    });
    producer.send("a", record("taken")).await.unwrap().await.unwrap();
}

#[tokio::test]
async fn a_producer_that_the_broker_has_forgotten_goes_on_under_another_id() {
    let broker = Broker::start();
    let connection = Connection::connect(broker.options()).await.unwrap();
    let producer = connection.producer(single()).await.unwrap();
    for at in 0..1_100 {
        producer.send("a", record(at.to_string())).await.unwrap().await.unwrap();
    }
    broker.with(|state| state.stored.clear());
    let mut deliveries = Vec::new();
    for at in 1_100..1_200 {
        deliveries.push(producer.send("a", record(at.to_string())).await.unwrap());
    }
    for delivery in deliveries {
        delivery.await.unwrap();
    }
    let log = broker.with(|state| state.log.clone());
    assert_eq!(log, (0..1_200).map(|at: u32| at.to_string().into_bytes()).collect::<Vec<_>>(), "each once, in order");
    assert_eq!(connection.stats().disconnects, 0);

    // An id that was given to us is somebody's way to tell instances apart: it is not changed behind their back.
    let identity = tidegate_client::ProducerIdentity { id: 99, epoch: 3, next_sequence: 5_000 };
    let given = connection.producer(ProducerConfig { identity: Some(identity), ..single() }).await.unwrap();
    for at in 0..600 {
        let error = given.send("a", record(at.to_string())).await.unwrap().await.unwrap_err();
        assert_eq!(error.code(), Some(Code::SequenceGap));
    }
}

#[tokio::test]
async fn a_refusal_of_a_retry_says_nothing_of_the_try_whose_answer_was_lost() {
    for (code, is_known) in [(Code::ProducerFenced, false), (Code::Forbidden, false), (Code::PluginFault, true)] {
        let broker = Broker::start();
        broker.with(|state| {
            state.cut_at = vec![0];
            state.refuse_known.insert(0, Failure::new(code, "no"));
        });
        let connection = Connection::connect(broker.options()).await.unwrap();
        let producer = connection.producer(single()).await.unwrap();
        let error = producer.send("a", record("0")).await.unwrap().await.unwrap_err();
        // What the broker says after it has looked for the sequence is said of all tries.
        assert_eq!(error.code().is_some(), is_known, "{error}");
        assert_eq!(matches!(&error, Error::Unanswered { cause } if cause.code() == Some(code)), !is_known, "{error}");
    }
}

#[tokio::test]
async fn the_result_of_somebody_elses_batch_is_not_taken_for_ones_own() {
    let broker = Broker::start();
    let connection = Connection::connect(broker.options()).await.unwrap();
    let first = connection.producer(single()).await.unwrap();
    for at in 0..3 {
        first.send("a", record(at.to_string())).await.unwrap().await.unwrap();
    }
    let config = ProducerConfig { identity: first.identity(), ..single() };
    let second = connection.producer(config).await.unwrap();
    let error = second.send("a", record("other")).await.unwrap().await.unwrap_err();
    assert!(matches!(error, Error::IdentityInUse), "{error}");
    let later = loop {
        match second.send("a", record("other")).await {
            Ok(delivery) => assert!(delivery.await.is_err()),
            Err(error) => break error,
        }
    };
    assert!(matches!(later, Error::IdentityInUse), "{later}");
    assert_eq!(broker.with(|state| state.log.clone()), [b"0", b"1", b"2"]);
}

#[tokio::test]
async fn a_fenced_producer_ends_and_says_so() {
    let broker = Broker::start();
    let failure = Failure::new(Code::ProducerFenced, "a higher epoch is known");
    broker.with(|state| state.refusals.insert(1, VecDeque::from([failure])));
    let connection = Connection::connect(broker.options()).await.unwrap();
    let producer = connection.producer(single()).await.unwrap();
    producer.send("a", record("0")).await.unwrap().await.unwrap();
    let fenced = producer.send("a", record("1")).await.unwrap().await.unwrap_err();
    assert_eq!(fenced.code(), Some(Code::ProducerFenced));
    let later = loop {
        match producer.send("a", record("2")).await {
            Ok(delivery) => assert!(delivery.await.is_err()),
            Err(error) => break error,
        }
    };
    assert_eq!(later.code(), Some(Code::ProducerFenced));
    assert_eq!(broker.with(|state| state.log.len()), 1);
}

#[tokio::test]
async fn sends_wait_while_too_much_is_in_flight() {
    let broker = Broker::start();
    broker.with(|state| state.withhold = true);
    let connection = Connection::connect(broker.options()).await.unwrap();
    let producer = connection.producer(ProducerConfig { in_flight_max: 4, ..single() }).await.unwrap();
    let mut deliveries = Vec::new();
    for at in 0..5 {
        deliveries.push(producer.send("a", record(at.to_string())).await.unwrap());
    }
    broker.until(|state| state.unanswered == 4).await;
    assert_eq!(producer.in_flight(), 4);
    let stuck = producer.send("a", record("5"));
    assert!(tokio::time::timeout(Duration::from_millis(100), stuck).await.is_err(), "the sixth has no room");
    assert_eq!(broker.with(|state| state.unanswered), 4);
    broker.release();
    for (at, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(offset(&delivery.await.unwrap()), at as u64);
    }
    producer.send("a", record("5")).await.unwrap().await.unwrap();
    assert_eq!(broker.with(|state| state.log.len()), 6, "the send that was given up put nothing");
}

#[tokio::test]
async fn without_numbers_a_batch_whose_answer_is_lost_is_not_sent_again() {
    let broker = Broker::start();
    broker.with(|state| state.cut_at = vec![0]);
    let connection = Connection::connect(broker.options()).await.unwrap();
    let config = ProducerConfig { idempotent: false, ..single() };
    let producer = connection.producer(config).await.unwrap();
    let lost = producer.send("a", record("0")).await.unwrap().await.unwrap_err();
    assert!(matches!(lost, Error::Unanswered { .. }), "{lost}");
    producer.send("a", record("1")).await.unwrap().await.unwrap();
    assert_eq!(broker.with(|state| state.log.clone()), [b"0", b"1"]);
    assert_eq!(connection.stats().batches_resent, 0);
}

#[tokio::test]
async fn a_batch_without_an_answer_is_given_up_in_time() {
    let broker = Broker::start();
    broker.with(|state| state.withhold = true);
    let connection = Connection::connect(broker.options()).await.unwrap();
    let config = ProducerConfig { retry_for: Duration::from_millis(150), ..single() };
    let producer = connection.producer(config).await.unwrap();
    let error = producer.send("a", record("0")).await.unwrap().await.unwrap_err();
    assert!(matches!(error, Error::Unanswered { .. }), "{error}");
    broker.release();
    producer.send("a", record("1")).await.unwrap().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_here() {
    let broker = Broker::start();
    let connection = Connection::connect(broker.options()).await.unwrap();
    let producer = connection.producer(single()).await.unwrap();
    let invalid = |error: Error| match error {
        Error::Invalid(error) => error,
        other => panic!("{other}"),
    };
    let error = producer.send("no//name", record("x")).await.unwrap_err();
    assert!(matches!(invalid(error), BodyError::Topic(_)));
    let error = producer.send("a", record(vec![0; (1 << 20) + 1])).await.unwrap_err();
    assert_eq!(invalid(error).code(), Code::RecordTooLarge);
    let mut nameless = record("x");
    nameless.headers.push((String::new(), None));
    assert!(matches!(producer.send("a", nameless).await.unwrap_err(), Error::InvalidHeaders(_)));
    producer.send("a", record("fine")).await.unwrap().await.unwrap();
    assert_eq!(broker.with(|state| state.log.clone()), [b"fine"]);
}

#[tokio::test]
async fn closing_waits_and_dropping_gives_up() {
    let broker = Broker::start();
    let connection = Connection::connect(broker.options()).await.unwrap();
    let producer = connection.producer(patient()).await.unwrap();
    let delivery = producer.send("a", record("0")).await.unwrap();
    producer.close().await.unwrap();
    assert_eq!(offset(&delivery.await.unwrap()), 0);

    let producer = connection.producer(patient()).await.unwrap();
    let delivery = producer.send("a", record("1")).await.unwrap();
    drop(producer);
    assert!(matches!(delivery.await, Err(Error::Closed)));

    let producer = connection.producer(patient()).await.unwrap();
    let delivery = producer.send("a", record("2")).await.unwrap();
    connection.close().await;
    assert!(producer.flush().await.is_err());
    assert!(matches!(delivery.await, Err(Error::Closed)));
    assert_eq!(broker.with(|state| state.log.clone()), [b"0"]);
}
