//! A whole broker in this process, spoken to by the client library.

use std::{net::Ipv4Addr, path::Path, time::Duration};

use bytes::Bytes;
use tidegate_client::{
    Code, ConnectOptions, Connection, ConsumerOptions, Error, Event, Outcome, ProducerConfig, Record, Start, Trust,
};

use super::*;
use crate::config::serve::{ServeConfig, prepare};

pub(in crate::server) async fn start(dir: &Path, change: impl FnOnce(&mut ServeConfig)) -> Running {
    let mut config = ServeConfig {
        data_dir: dir.to_owned(),
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        http: Some((Ipv4Addr::LOCALHOST, 0).into()),
        ..ServeConfig::default()
    };
    change(&mut config);
    Server::start(prepare(&config).expect("a configuration")).await.expect("a broker")
}

pub(in crate::server) fn options(running: &Running) -> ConnectOptions {
    let trust = Trust::Pinned(running.certificate.clone().into());
    ConnectOptions::new(running.quic_addr, trust)
}

fn record(key: &str, value: &str) -> Record {
    Record {
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        ..Record::default()
    }
}

pub(in crate::server) async fn produce(
    connection: &Connection,
    topic: &str,
    values: impl IntoIterator<Item = String>,
) -> Vec<Outcome> {
    let producer = connection.producer(ProducerConfig::default()).await.expect("a producer");
    let mut deliveries = Vec::new();
    for value in values {
        deliveries.push(producer.send(topic, record("k", &value)).await.expect("sent"));
    }
    let mut outcomes = Vec::new();
    for delivery in deliveries {
        outcomes.push(delivery.await.expect("answered"));
    }
    producer.close().await.expect("closed");
    outcomes
}

async fn read(connection: &Connection, options: ConsumerOptions) -> Vec<(String, u64, String)> {
    let mut consumer = connection.consumer(options).expect("a consumer");
    let mut all = Vec::new();
    while let Some(batch) = consumer.next().await.expect("a batch") {
        for record in batch.records() {
            let value = String::from_utf8_lossy(record.value.unwrap_or_default()).into_owned();
            all.push((record.topic.to_owned(), record.offset, value));
        }
    }
    assert!(consumer.at_end(), "a read of history ends at the end");
    all
}

pub(in crate::server) fn code(error: Error) -> Code {
    match error {
        Error::Broker(failure) => failure.code.expect("a known code"),
        other => panic!("not refused by the broker: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_come_back_in_order_also_after_a_restart() {
    let dir = tempfile::tempdir().expect("dir");
    let running = start(dir.path(), |_| {}).await;
    let connection = Connection::connect(options(&running)).await.expect("connected");
    let sent: Vec<String> = (0..1_000).map(|at| at.to_string()).collect();
    let outcomes = produce(&connection, "orders/eu", sent.clone()).await;
    for (at, outcome) in outcomes.iter().enumerate() {
        let Outcome::Appended { topic, offset, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!((&**topic, *offset), ("orders/eu", at as u64));
    }
    produce(&connection, "orders/us", ["x".to_owned()]).await;
    let expected: Vec<_> =
        sent.iter().enumerate().map(|(at, value)| ("orders/eu".to_owned(), at as u64, value.clone())).collect();
    assert_eq!(read(&connection, ConsumerOptions::new("orders/eu")).await, expected);
    connection.close().await;
    running.shutdown().await;

    let running = start(dir.path(), |_| {}).await;
    let connection = Connection::connect(options(&running)).await.expect("the same certificate");
    assert_eq!(read(&connection, ConsumerOptions::new("orders/eu")).await, expected);
    let both = read(&connection, ConsumerOptions::new("orders/*")).await;
    assert_eq!(both.len(), 1_001);
    let from = ConsumerOptions::new("orders/eu").start(Start::Offset(990));
    assert_eq!(read(&connection, from).await, expected.get(990..).expect("ten"));
    let topics = connection.admin().topics("").await.expect("topics");
    let told: Vec<_> = topics.topics.iter().map(|topic| (topic.name.as_str(), topic.next_offset)).collect();
    assert_eq!(told, [("orders/eu", 1_000), ("orders/us", 1)]);
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_sees_what_comes_and_goes_on_at_its_cursor() {
    let dir = tempfile::tempdir().expect("dir");
    let running = start(dir.path(), |config| config.memory = true).await;
    let connection = Connection::connect(options(&running)).await.expect("connected");
    let mut consumer = connection.consumer(ConsumerOptions::new("a/>").follow()).expect("a consumer");
    while !consumer.at_end() {
        assert!(matches!(consumer.next_event().await.expect("an event"), Some(Event::Progress)));
    }
    produce(&connection, "a/1", ["one".to_owned()]).await;
    let batch = consumer.next().await.expect("a batch").expect("no end");
    assert_eq!(batch.len(), 1);
    let cursor = batch.cursor().to_owned();
    consumer.close();
    produce(&connection, "b", ["other".to_owned()]).await;
    produce(&connection, "a/2", ["two".to_owned()]).await;
    let rest = read(&connection, ConsumerOptions::new("a/*").start(Start::Cursor(cursor))).await;
    assert_eq!(rest, [("a/2".to_owned(), 0, "two".to_owned())]);
    let latest = read(&connection, ConsumerOptions::new("a/*").start(Start::Latest)).await;
    assert_eq!(latest, []);
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bounds_of_a_read_cut_inside_a_frame() {
    let dir = tempfile::tempdir().expect("dir");
    let running = start(dir.path(), |config| config.memory = true).await;
    let connection = Connection::connect(options(&running)).await.expect("connected");
    produce(&connection, "t", (0..10).map(|at| at.to_string())).await;
    let mut options = ConsumerOptions::new("t");
    options.records_max = 3;
    let mut seen = Vec::new();
    loop {
        let mut consumer = connection.consumer(options.clone()).expect("a consumer");
        let before = seen.len();
        while let Some(batch) = consumer.next().await.expect("a batch") {
            seen.extend(batch.records().map(|record| record.offset));
        }
        if seen.len() == before {
            break;
        }
        assert!(seen.len() - before <= 3);
        options.start = Start::Cursor(consumer.cursor().expect("told").to_owned());
    }
    assert_eq!(seen, (0..10).collect::<Vec<u64>>());
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_requests_get_their_codes() {
    let dir = tempfile::tempdir().expect("dir");
    let running = start(dir.path(), |config| config.create_topics = false).await;
    let connection = Connection::connect(options(&running)).await.expect("connected");
    let admin = connection.admin();
    let created = admin.create_topic("here").await.expect("created");
    assert_eq!((created.name.as_str(), created.next_offset), ("here", 0));
    assert_eq!(code(admin.create_topic("here").await.expect_err("refused")), Code::TopicExists);
    assert_eq!(code(admin.create_topic("$sys/x").await.expect_err("refused")), Code::TopicReserved);
    assert_eq!(code(admin.reload(0).await.expect_err("refused")), Code::AdminRequired);
    assert_eq!(code(admin.topics_with_reserved("").await.expect_err("refused")), Code::AdminRequired);
    let refused = |pattern: &str| {
        let mut consumer = connection.consumer(ConsumerOptions::new(pattern)).expect("a consumer");
        async move { code(consumer.next().await.expect_err("refused")) }
    };
    assert_eq!(refused("a//b").await, Code::PatternInvalid);
    assert_eq!(refused("there").await, Code::TopicUnknown);
    assert_eq!(refused("$sys/topics").await, Code::Forbidden);
    let mut behind = connection.consumer(ConsumerOptions::new("here").start(Start::Offset(1))).expect("a consumer");
    assert_eq!(code(behind.next().await.expect_err("refused")), Code::OffsetOutOfRange);
    let producer = connection.producer(ProducerConfig::default()).await.expect("a producer");
    let delivery = producer.send("there", record("k", "v")).await.expect("sent");
    assert_eq!(code(delivery.await.expect_err("refused")), Code::TopicUnknown);
    let options = options(&running).admin_token(running.admin_token.clone());
    let operator = Connection::connect(options).await.expect("connected");
    assert_eq!(code(operator.admin().reload(0).await.expect_err("no file")), Code::ConfigInvalid);
    assert_eq!(code(operator.admin().rollback("x", 0).await.expect_err("none")), Code::PluginUnknown);
    let reserved = operator.admin().topics_with_reserved("").await.expect("topics");
    assert!(reserved.topics.iter().any(|topic| topic.name == "here"));
    running.shutdown().await;
    // A topic without records is one, also after a restart.
    let running = start(dir.path(), |config| config.create_topics = false).await;
    let connection = Connection::connect(self::options(&running)).await.expect("connected");
    let topics = connection.admin().topics("").await.expect("topics").topics;
    assert_eq!(topics.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["here"]);
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_do_not_see_each_other() {
    let dir = tempfile::tempdir().expect("dir");
    let auth = dir.path().join("auth.toml");
    let principal = |tenant: &str| {
        let hash: String = crate::auth::hash(tenant.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "[[principal]]\nname = \"app\"\ntenant = \"{tenant}\"\ntoken_sha256 = \"{hash}\"\n\
             allow = [\"produce:>\", \"fetch:>\"]\n"
        )
    };
    std::fs::write(&auth, principal("red") + &principal("blue")).expect("written");
    let running = start(&dir.path().join("data"), |config| config.auth = Some(auth)).await;
    let connect = |tenant: &str, token: &str| Connection::connect(options(&running).tenant(tenant).token(token));
    let red = connect("red", "red").await.expect("connected");
    let blue = connect("blue", "blue").await.expect("connected");
    produce(&red, "t", ["red".to_owned()]).await;
    produce(&blue, "t", ["blue".to_owned()]).await;
    assert_eq!(read(&red, ConsumerOptions::new(">")).await, [("t".to_owned(), 0, "red".to_owned())]);
    assert_eq!(read(&blue, ConsumerOptions::new(">")).await, [("t".to_owned(), 0, "blue".to_owned())]);
    for (tenant, token) in [("red", "blue"), ("green", "red"), ("", "red"), ("red", "")] {
        let error = connect(tenant, token).await.expect_err("refused");
        assert_eq!(code(error), Code::Unauthenticated, "{tenant} {token}");
    }
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_is_answered_before_the_end() {
    let dir = tempfile::tempdir().expect("dir");
    let running = start(dir.path(), |_| {}).await;
    let mut impatient = options(&running);
    impatient.timeouts.connect = Duration::from_millis(100);
    let connection = Connection::connect(impatient).await.expect("connected");
    let config =
        ProducerConfig { retry_for: Duration::from_secs(1), batch_records_max: 10, ..ProducerConfig::default() };
    let producer = connection.producer(config).await.expect("a producer");
    producer.send("t", record("k", "first")).await.expect("sent").await.expect("answered");
    let mut deliveries = Vec::new();
    for at in 0..1_000 {
        deliveries.push(producer.send("t", record("k", &at.to_string())).await.expect("sent"));
    }
    running.shutdown().await;
    let mut acked = 1;
    for delivery in deliveries {
        match delivery.await {
            Ok(Outcome::Appended { .. }) => acked += 1,
            Ok(other) => panic!("{other:?}"),
            Err(_) => {}
        }
    }
    let running = start(dir.path(), |_| {}).await;
    let connection = Connection::connect(options(&running)).await.expect("connected");
    let stored = read(&connection, ConsumerOptions::new("t")).await.len();
    assert_eq!(stored, acked, "whatever is in the log was answered");
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_or_directory_in_use_is_told_at_once() {
    let dir = tempfile::tempdir().expect("dir");
    let running = start(dir.path(), |_| {}).await;
    let mut config = ServeConfig {
        data_dir: dir.path().to_owned(),
        listen: running.quic_addr,
        http: None,
        ..ServeConfig::default()
    };
    let start = async |config: &ServeConfig| Server::start(prepare(config).expect("holds")).await.expect_err("refused");
    let error = start(&config).await;
    assert_eq!(error.kind(), StartKind::Unavailable);
    assert!(error.to_string().starts_with("cannot listen on 127.0.0.1:"), "{error}");
    config.listen.set_port(0);
    let error = start(&config).await;
    assert_eq!(error.kind(), StartKind::Unavailable);
    assert!(error.to_string().contains("is in use by another broker"), "{error}");
    running.shutdown().await;
}

/// One page, as whoever asks for it gets it.
async fn get(running: &Running, path: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let addr = running.http_addr.expect("served");
    let mut stream = tokio::net::TcpStream::connect(addr).await.expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_documented_and_nothing_else_is() {
    let dir = tempfile::tempdir().expect("dir");
    let running = start(dir.path(), |config| config.memory = true).await;
    let page = get(&running, "/metrics").await;
    let mut served: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).map(str::to_owned).collect();
    // Rows of a table: name, type, unit, labels, meaning.
    let rows = include_str!("../../../docs/metrics.md").lines().filter_map(|line| line.strip_prefix("| `tidegate_"));
    let mut documented: Vec<_> = rows
        .map(|row| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            assert_eq!(cells.len(), 6, "{row}");
            assert!(cells.iter().take(5).all(|cell| !cell.is_empty()), "{row}");
            format!("tidegate_{} {}", cells.first().expect("six").trim_matches('`'), cells.get(1).expect("six"))
        })
        .collect();
    served.sort_unstable();
    documented.sort_unstable();
    assert_eq!(served, documented, "docs/metrics.md against /metrics");
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_keep_up_are_told_from_those_that_do_not() {
    let dir = tempfile::tempdir().expect("dir");
    let running = start(dir.path(), |config| (config.tail_bytes, config.wal_file_bytes) = (64 << 10, 64 << 10)).await;
    let connection = Connection::connect(options(&running)).await.expect("connected");
    let reads = &running.metrics().fetch_reads;
    produce(&connection, "t", ["first".to_owned()]).await;
    assert_eq!(read(&connection, ConsumerOptions::new("t")).await.len(), 1);
    assert_eq!((reads.tail.value(), reads.disk.value()), (1, 0));
    for _ in 0..10 {
        produce(&connection, "t", (0..10).map(|at| format!("{at} {}", "x".repeat(1_000)))).await;
    }
    assert_eq!(read(&connection, ConsumerOptions::new("t")).await.len(), 101);
    assert!(reads.disk.value() > 0, "its first records are not in memory");
    assert_eq!(running.metrics().fetch_records.value(), 102);
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_for_probes() {
    let dir = tempfile::tempdir().expect("dir");
    let running = start(dir.path(), |_| {}).await;
    let connection = Connection::connect(options(&running)).await.expect("connected");
    produce(&connection, "t", ["v".to_owned()]).await;
    assert!(get(&running, "/health").await.starts_with("HTTP/1.1 200"));
    let ready = get(&running, "/ready").await;
    assert!(ready.starts_with("HTTP/1.1 200") && ready.contains("\"ready\":true"), "{ready}");
    let metrics = get(&running, "/metrics").await;
    for line in ["tidegate_produce_records_total{status=\"appended\"} 1", "tidegate_connections 1", "tidegate_ready 1"]
    {
        assert!(metrics.lines().any(|there| there == line), "{line} in {metrics}");
    }
    running.shutdown().await;
}
