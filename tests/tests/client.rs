//! The client library over brokers that die: what it was given is there exactly once, and a reader goes on where it stood.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use tidegate_client::{
    BatchBuilder, Code, Condition, ConnectOptions, Connection, ConsumerOptions, Expect, Outcome, ProducerConfig,
    Record, Timeouts, TopicName, Trust,
};
use tidegate_protocol::{limits::Limits, wire::ProduceHead};
use tidegate_tests::{
    broker::Site,
    raw::{Client, Send, body},
    relay::Relay,
    wait::{count, test, until, within},
};

const LIMIT: Duration = Duration::from_secs(150);

fn options(site: &Site, relay: &Relay) -> ConnectOptions {
    let mut options = direct(site, relay.addr);
    // A broker that was killed sends no word: who waits long for it tests waiting.
    let (keep_alive, idle) = (Duration::from_millis(200), Duration::from_millis(800));
    options.timeouts = Timeouts { keep_alive, idle, ..Timeouts::default() };
    options
}

fn direct(site: &Site, addr: SocketAddr) -> ConnectOptions {
    let certificate = CertificateDer::from_pem_file(site.data().join("dev/cert.pem")).unwrap();
    ConnectOptions::new(addr, Trust::Pinned(certificate))
}

#[test]
fn producer_and_consumer_outlive_brokers() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let (producing, consuming) = (Relay::new(broker.addr).await, Relay::new(broker.addr).await);
        let lives = count(6, 60);
        let total = 4_000 * lives as u64;
        let acked = Arc::new(AtomicU64::new(0));

        let connection = Connection::connect(options(&site, &producing)).await.unwrap();
        let (sent, seen) = (acked.clone(), total);
        let producer = tokio::spawn(async move {
            let config = ProducerConfig { batch_records_max: 20, in_flight_max: 8, ..ProducerConfig::default() };
            let producer = connection.producer(config).await.unwrap();
            let (deliveries, mut answers) = tokio::sync::mpsc::channel(1_000);
            let answers = tokio::spawn(async move {
                let mut places = HashMap::new();
                while let Some((number, delivery)) = answers.recv().await {
                    let delivery: tidegate_client::Delivery = delivery;
                    match delivery.await.unwrap() {
                        Outcome::Appended { offset, .. } => assert!(places.insert(number, offset).is_none()),
                        other => panic!("{other:?}"),
                    }
                    sent.fetch_add(1, Ordering::SeqCst);
                }
                places
            });
            for number in 0..seen {
                let record = Record { value: Some(format!("{number}").into()), ..Record::default() };
                deliveries.send((number, producer.send("t", record).await.unwrap())).await.unwrap();
            }
            drop(deliveries);
            producer.close().await.unwrap();
            answers.await.unwrap()
        });

        let connection = Connection::connect(options(&site, &consuming)).await.unwrap();
        let consumer = tokio::spawn(async move {
            let mut consumer = connection.consumer(ConsumerOptions::new("t*").follow()).unwrap();
            let mut read = Vec::new();
            while (read.len() as u64) < total {
                let batch = consumer.next().await.unwrap().unwrap();
                for record in batch.records() {
                    assert_eq!(record.offset, read.len() as u64, "each record once, in order");
                    read.push(std::str::from_utf8(record.value.unwrap()).unwrap().parse::<u64>().unwrap());
                }
            }
            read
        });

        for life in 1..=lives as u64 {
            let share = life * total / (lives as u64 + 2);
            until(LIMIT, format!("{share} acks"), async || (acked.load(Ordering::SeqCst) >= share).then_some(())).await;
            broker.kill();
            broker = site.start().await;
            producing.target(broker.addr);
            consuming.target(broker.addr);
        }
        let places = within(LIMIT, "the producer", producer).await.unwrap();
        let read = within(LIMIT, "the consumer", consumer).await.unwrap();
        assert_eq!(places.len() as u64, total);
        for (offset, number) in read.iter().enumerate() {
            assert_eq!(places[number], offset as u64, "record {number} stands where its ack says");
        }
        let client = Client::new(broker.addr).await;
        assert_eq!(client.all("t").await.len() as u64, total, "nothing was sent twice");
        broker.drain().await;
    });
}

/// A broker that was killed said nothing. The next one at its address knows the connections for those of the one before, and
/// ends them: no client waits for its idle time.
#[test]
fn connections_of_a_killed_broker_are_ended_by_the_next() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let addr = broker.addr;
        let client = Client::new(addr).await;
        let mut stream = client.producer().await.unwrap();
        broker.kill();
        // Unacknowledged: the client's transport asks again and again whether anybody is there.
        stream.push(&ProduceHead::default(), &body(&[Send::new("t", "x")])).await.unwrap();
        let broker = site.start_at(&addr.to_string()).await;
        let end = within(LIMIT, "the end of the connection", client.connection.closed()).await;
        assert_eq!(end, quinn::ConnectionError::Reset);
        Client::new(addr).await.put(&[Send::new("t", "y")]).await;
        broker.drain().await;
    });
}

/// A broker that drains says so: its clients go on with the next one, and nothing is in doubt.
#[test]
fn a_drain_is_no_loss_to_clients() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let relay = Relay::new(broker.addr).await;
        let connection = Connection::connect(options(&site, &relay)).await.unwrap();
        let producer = connection.producer(ProducerConfig::default()).await.unwrap();
        let mut offsets = Vec::new();
        for round in 0..3 {
            let mut deliveries = Vec::new();
            for number in 0..500 {
                let record = Record { value: Some(format!("{round}-{number}").into()), ..Record::default() };
                deliveries.push(producer.send("t", record).await.unwrap());
            }
            broker.drain().await;
            broker = site.start().await;
            relay.target(broker.addr);
            for delivery in deliveries {
                match delivery.await.unwrap() {
                    Outcome::Appended { offset, .. } => offsets.push(offset),
                    other => panic!("{other:?}"),
                }
            }
        }
        offsets.sort_unstable();
        assert_eq!(offsets, (0..1_500).collect::<Vec<_>>());
        producer.close().await.unwrap();
        broker.drain().await;
    });
}

#[test]
fn a_client_whose_conditions_fail_however_often_goes_on() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let connection = Connection::connect(direct(&site, broker.addr)).await.unwrap();
        let producer = connection.producer(ProducerConfig::default()).await.unwrap();
        let topic = TopicName::parse("t").unwrap();
        let mut builder = BatchBuilder::new();
        let mut body = |value: &'static str| {
            builder
                .push_record("t", &Record { key: Some("k".into()), value: Some(value.into()), ..Record::default() })
                .unwrap();
            builder.finish_body(&Limits::default()).unwrap()
        };
        producer.send_batch(body("first"), Vec::new()).await.unwrap();
        for _ in 0..1_300 {
            let taken = vec![Condition::new(&topic, "k", Expect::Version(0))];
            let error = producer.send_batch(body("late"), taken).await.unwrap_err();
            assert_eq!(error.code(), Some(Code::Conflict));
        }
        let ack = producer.send_batch(body("second"), Vec::new()).await.unwrap();
        assert!(matches!(ack.outcome(0), Some(Outcome::Appended { offset: 1, key_version: 2, .. })), "{ack:?}");
        producer.close().await.unwrap();
        broker.drain().await;
    });
}
