//! Slow, silent and vanished clients: they hold up nobody, and memory stays bounded.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests, on the real clock")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate_protocol::wire::{self, OpenFetch, ProduceHead, Start};
use tidegate_tests::{
    broker::Site,
    ledger::gaps,
    raw::{self, Client, Login, Part, Send},
    relay::Relay,
    wait::{count, test, until, within},
};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(150);
const MIB: u64 = 1 << 20;

/// Sends `batches` of 64 KiB in 64 records, 8 in flight, and gives the time of the slowest ack.
async fn pour(client: &Client, topic: &str, batches: usize) -> Duration {
    let record = Send::new(topic, vec![b'x'; 1024]);
    let body = raw::body(&vec![record; 64]);
    let mut stream = client.producer().await.unwrap();
    let (mut sent, mut slowest) = (std::collections::VecDeque::new(), Duration::ZERO);
    for at in 0..batches + 8 {
        if at < batches {
            sent.push_back(Instant::now());
            stream.push(&ProduceHead::default(), &body).await.unwrap();
        }
        if at >= 8 {
            let ack = stream.ack().await.unwrap();
            assert!(ack.failure.is_none(), "{ack:?}");
            slowest = slowest.max(sent.pop_front().unwrap().elapsed());
        }
    }
    slowest
}

fn follow(pattern: &str) -> OpenFetch {
    OpenFetch { pattern: pattern.into(), start: Some(Start::Earliest(true)), follow: true, ..OpenFetch::default() }
}

#[test]
fn a_slow_consumer_blocks_nobody_and_costs_no_memory() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.arguments(&["--tail-size", "8MiB", "--wal-file-size", "8MiB"]);
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        pour(&client, "flow/a", 16).await;
        // One who never reads, on a connection of its own and on the shared one, beside one who does.
        let lazy = Client::new(broker.addr).await;
        let mut lazy_one = lazy.fetch(follow("flow/*")).await.unwrap();
        let mut lazy_two = client.fetch(follow("flow/a")).await.unwrap();
        let mut keen = client.fetch(follow("flow/a")).await.unwrap();
        let before = broker.resident_bytes();
        let batches = count(800, 8_000);
        let total = (16 + batches) * 64;
        let (slowest, read) = tokio::join!(pour(&client, "flow/a", batches), keen.take(total));
        let read = read.unwrap();
        assert_eq!(gaps(&read), Vec::<String>::new());
        assert!(slowest < Duration::from_secs(5), "an ack took {slowest:?}");
        let grown = broker.resident_bytes().saturating_sub(before);
        assert!(grown < 150 * MIB, "{} MiB poured, {} MiB kept", batches / 16, grown / MIB);
        // The slow ones lose nothing: they read on where they stood, now far behind the tail.
        for lazy in [&mut lazy_one, &mut lazy_two] {
            let read = within(LIMIT, "the slow consumer", lazy.take(total)).await.unwrap();
            assert_eq!(gaps(&read), Vec::<String>::new());
        }
        let grown = broker.resident_bytes().saturating_sub(before);
        assert!(grown < 200 * MIB, "{} MiB kept after reading far behind", grown / MIB);
        broker.drain().await;
    });
}

#[test]
fn a_producer_that_reads_no_acks_is_held_back() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let (deaf, other) = (Client::new(broker.addr).await, Client::new(broker.addr).await);
        let mut stream = deaf.producer().await.unwrap();
        let body = raw::body(&(0..64).map(|at| Send::new("deaf", format!("{at}"))).collect::<Vec<_>>());
        let before = broker.resident_bytes();
        // Small batches whose acks nobody takes: sooner or later the broker must stop reading this stream. It may also
        // swallow the acks into flow-control windows for long, hence the bound.
        let mut pushed = 0_u64;
        while pushed < 100_000 {
            match timeout(Duration::from_millis(500), stream.push(&ProduceHead::default(), &body)).await {
                Ok(result) => result.unwrap(),
                Err(_) => break,
            }
            pushed += 1;
        }
        let slowest = pour(&other, "other", 32).await;
        assert!(slowest < Duration::from_secs(5), "others wait {slowest:?}");
        let grown = broker.resident_bytes().saturating_sub(before);
        assert!(grown < 250 * MIB, "{pushed} batches pushed, {} MiB kept", grown / MIB);
        deaf.connection.close(0_u32.into(), b"");
        assert_eq!(gaps(&other.all("deaf").await), Vec::<String>::new());
        broker.drain().await;
    });
}

/// Frames of 8 MiB that are announced and never sent, four on each of many connections: as much as half a gigabyte.
#[test]
fn stalled_frames_of_one_client_refuse_no_other() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let announced = wire::encode_batch_head(&ProduceHead::default(), (8 << 20) - 1024);
        let mut stalled = Vec::new();
        for _ in 0..16 {
            let hostile = Client::new(broker.addr).await;
            for _ in 0..4 {
                let mut stream = hostile.producer().await.unwrap();
                stream.send.write_all(&announced).await.unwrap();
                // One byte more: it has begun.
                stream.send.write_all(&[1]).await.unwrap();
                stalled.push((hostile.connection.clone(), stream));
            }
        }
        until(Duration::from_secs(30), "all of them to be read", async || {
            (broker.metric("tidegate_produce_streams", "").await >= 64.0).then_some(())
        })
        .await;
        let other = Client::new(broker.addr).await;
        pour(&other, "small", 32).await;
        other.put(&vec![Send::new("large", vec![b'x'; 1 << 20]); 7]).await;
        let refused = async || broker.metric("tidegate_refusals_total", "OVERLOADED").await;
        assert!(refused().await < 1.0, "nobody was told OVERLOADED");
        assert!(stalled.iter().all(|(connection, _)| connection.close_reason().is_none()), "they stalled all the time");
        drop(stalled);
        broker.drain().await;
    });
}

#[test]
fn half_open_connections_do_not_pile_up() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let connections = async || broker.metric("tidegate_connections", "").await;
        let witness = Client::new(broker.addr).await;
        let before = connections().await;
        // Those that never say hello, those that say half of it, and those that say it and vanish.
        let mut silent = Vec::new();
        for at in 0..40 {
            let (endpoint, connection) = raw::dial(broker.addr, &Login::default()).await.unwrap();
            let mut stream = None;
            if at % 2 == 0 {
                let (mut send, receive) = connection.open_bi().await.unwrap();
                send.write_all(&[50, 0, 0, 0, 1]).await.unwrap();
                stream = Some((send, receive));
            }
            silent.push((endpoint, connection, stream));
        }
        let mut vanished = Vec::new();
        for _ in 0..20 {
            let relay = Relay::new(broker.addr).await;
            let client = Client::new(relay.addr).await;
            client.put(&[Send::new("t", "x")]).await;
            let follower = client.fetch(follow("t")).await.unwrap();
            relay.cut().await;
            vanished.push((client, follower));
        }
        for (_, connection, _) in &silent {
            within(Duration::from_secs(20), "the end of a connection without hello", connection.closed()).await;
        }
        until(Duration::from_secs(60), "vanished clients to be forgotten", async || {
            (connections().await <= before).then_some(())
        })
        .await;
        witness.put(&[Send::new("t", "still here")]).await;
        broker.drain().await;
    });
}

/// A connection on which packets flow for longer than the idle time, without any from the application, stays.
#[test]
fn a_quiet_follower_stays_connected() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let (quiet, other) = (Client::new(broker.addr).await, Client::new(broker.addr).await);
        let mut follower = quiet.fetch(follow("t")).await.unwrap();
        loop {
            if matches!(follower.next().await.unwrap(), Part::Progress(true)) {
                break;
            }
        }
        other.put(&[Send::new("t", "one")]).await;
        assert_eq!(follower.take(1).await.unwrap()[0].text(), "one");
        broker.drain().await;
    });
}

#[test]
fn a_scan_bound_is_kept_and_a_cursor_goes_on() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        for at in 0..40 {
            let topic = if at % 4 == 0 { "scan/wanted" } else { "scan/other" };
            client.put(&[Send::new(topic, format!("{at}"))]).await;
        }
        let (mut cursor, mut found, mut reads) = (String::new(), Vec::new(), 0);
        loop {
            let start = if cursor.is_empty() { Start::Earliest(true) } else { Start::Cursor(cursor.clone()) };
            let open =
                OpenFetch { pattern: "scan/want*".into(), start: Some(start), records_max: 3, ..OpenFetch::default() };
            let mut fetching = client.fetch(open).await.unwrap();
            let mut at_end = false;
            let mut got = 0;
            while let Ok(part) = fetching.next().await {
                match part {
                    Part::Records(records) => {
                        got += records.len();
                        found.extend(records);
                    }
                    Part::Progress(end) => at_end = end,
                }
            }
            assert!(got <= 3, "the bound is on what is scanned: {got}");
            assert_ne!(fetching.cursor, cursor, "every read gets on, also when nothing matched");
            cursor = fetching.cursor.clone();
            reads += 1;
            if at_end {
                break;
            }
        }
        assert_eq!(found.len(), 10);
        assert_eq!(gaps(&found), Vec::<String>::new());
        assert!(reads >= 4, "10 records at 3 a read took {reads}");
        broker.drain().await;
    });
}

/// Topics that come into being while a wildcard is followed belong to it.
#[test]
fn a_wildcard_follows_topics_that_come_later() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let mut star = client.fetch(follow("w/*")).await.unwrap();
        let mut prefix = client.fetch(follow("w/red*")).await.unwrap();
        let mut all = client.fetch(follow("w/>")).await.unwrap();
        for topic in ["w/red", "w/redder", "w/blue", "w/red/deep", "x/red"] {
            client.put(&[Send::new(topic, Bytes::from(topic))]).await;
        }
        client.put(&[Send::new("w/red", "end")]).await;
        let texts = |read: Vec<raw::Fetched>| read.iter().map(|record| record.text().to_owned()).collect::<Vec<_>>();
        assert_eq!(texts(star.take(4).await.unwrap()), ["w/red", "w/redder", "w/blue", "end"]);
        assert_eq!(texts(prefix.take(3).await.unwrap()), ["w/red", "w/redder", "end"]);
        assert_eq!(texts(all.take(5).await.unwrap()), ["w/red", "w/redder", "w/blue", "w/red/deep", "end"]);
        broker.drain().await;
    });
}
