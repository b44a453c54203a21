//! History by time and offset, truncation and retention, through the broker as operators and applications meet it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use tidegate_protocol::{
    error::Code,
    wire::{ClientBody, OpenFetch, Start, TopicTruncate},
};
use tidegate_tests::{
    broker::{Broker, Ended, Site},
    raw::{self, Client, Fetched, Part, Refused, Send},
    wait::{test, until},
};

const LIMIT: Duration = Duration::from_secs(120);

/// A site whose log moves into segments quickly.
fn site(more: &[&str]) -> Site {
    let mut site = Site::new();
    site.arguments(&["--tail-size", "64KiB", "--wal-file-size", "64KiB"]);
    site.arguments(more);
    site
}

fn open(pattern: &str, start: Start, follow: bool) -> OpenFetch {
    OpenFetch { pattern: pattern.to_owned(), start: Some(start), follow, ..OpenFetch::default() }
}

async fn read(client: &Client, pattern: &str, start: Start) -> Vec<Fetched> {
    client.fetch(open(pattern, start, false)).await.unwrap().rest().await.unwrap()
}

fn places(records: &[Fetched]) -> Vec<(String, u64)> {
    records.iter().map(|fetched| (fetched.topic.clone(), fetched.offset)).collect()
}

async fn tidegate(site: &Site, broker: &Broker, line: &str) -> Ended {
    site.tidegate(broker, &line.split(' ').collect::<Vec<_>>()).await
}

/// Standard output of a command that must succeed.
async fn print(site: &Site, broker: &Broker, line: &str) -> String {
    let ended = tidegate(site, broker, line).await;
    assert_eq!(ended.code, Some(0), "tidegate {line}: {ended:?}");
    ended.stdout
}

/// What a command says that must fail, and its exit code.
async fn refused(site: &Site, broker: &Broker, line: &str) -> (i32, String) {
    let ended = tidegate(site, broker, line).await;
    (ended.code.unwrap(), ended.stderr)
}

/// Puts records of 500 bytes, each a batch, turn by turn into `h/a` and `h/b`.
async fn fill(client: &Client, rounds: usize) {
    let value = "x".repeat(500);
    for _ in 0..rounds {
        for topic in ["h/a", "h/b"] {
            client.put(&[Send::keyed(topic, "k", value.clone())]).await;
        }
    }
}

fn segments(site: &Site) -> usize {
    std::fs::read_dir(site.data().join("objects/seg")).map_or(0, Iterator::count)
}

/// Records as `consume --output json` prints them: topic, offset, broker time.
fn rows(printed: &str) -> Vec<(String, u64, i64)> {
    let row = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let topic = row["topic"].as_str().unwrap().to_owned();
        (topic, row["offset"].as_u64().unwrap(), row["broker_time_ms"].as_i64().unwrap())
    };
    printed.lines().map(row).collect()
}

#[test]
fn a_time_an_offset_and_the_end_are_places_to_start_at() {
    test(LIMIT, async {
        let site = site(&[]);
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        fill(&client, 400).await;
        until(LIMIT, "segments", async || (segments(&site) > 2).then_some(())).await;
        let all = rows(&print(&site, &broker, "consume h/* --output json").await);
        assert_eq!(all.len(), 800);
        assert!(all.is_sorted_by_key(|row| row.2), "broker time never goes back");
        for at in [0, 1, 250, 799] {
            let time_ms = all[at].2;
            let since: Vec<_> = all.iter().filter(|row| row.2 >= time_ms).map(|row| (row.0.clone(), row.1)).collect();
            assert_eq!(places(&read(&client, "h/*", Start::Since(time_ms)).await), since, "record {at}");
            let of_one: Vec<_> = since.iter().filter(|place| place.0 == "h/b").cloned().collect();
            assert_eq!(places(&read(&client, "h/b", Start::Since(time_ms)).await), of_one, "record {at}");
        }
        let printed = async |line: &str| print(&site, &broker, line).await.lines().count();
        assert_eq!(printed("consume h/* --since 1h").await, 800);
        assert_eq!(printed("consume h/* --since 2020-01-01T00:00:00Z").await, 800);
        assert_eq!(printed("consume h/* --since 2999-01-01T00:00:00+01:00").await, 0, "the future is the end");
        assert_eq!(printed("consume h/* --from latest").await, 0);
        assert_eq!(printed("consume h/b --key k --since 1h").await, 400);
        let some = print(&site, &broker, "consume h/a --from-offset 398").await;
        assert!(some.starts_with("h/a@398 k x") && some.lines().count() == 2, "{some}");
        // What makes no sense says so, and what to do.
        for (line, exit, code, told) in [
            ("consume h/* --from-offset 3", 64, "PATTERN_INVALID", "Name one topic"),
            ("consume h/a --from-offset 401", 1, "OFFSET_OUT_OF_RANGE", "the next one is 400"),
            ("consume h/a --since yesterday", 64, "error: ", "neither an age, as in 90s, 2h or 7d"),
            ("consume h/a --since 2020-01-01", 64, "error: ", "write date, time and zone"),
            ("consume h/a --since 2h --from-offset 1", 64, "error: ", "cannot be used with"),
            ("consume h/a --key k --latest --since 2h", 64, "error: ", "cannot be used with"),
        ] {
            let (ended, text) = refused(&site, &broker, line).await;
            assert_eq!(ended, exit, "{line}: {text}");
            assert!(text.contains(code) && text.contains(told), "{line}: {text}");
        }
        broker.drain().await;
    });
}

#[test]
fn a_wildcard_read_of_history_meets_the_live_tail_and_resumes_anywhere() {
    test(LIMIT, async {
        let site = site(&[]);
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        fill(&client, 400).await;
        until(LIMIT, "segments", async || (segments(&site) > 2).then_some(())).await;
        let writer = Client::new(broker.addr).await;
        let writing = tokio::spawn(async move { fill(&writer, 200).await });
        // It begins in segments, passes the WAL and ends in memory, while records come.
        let mut follower = client.fetch(open("h/*", Start::Ago(3_600_000), true)).await.unwrap();
        let followed = follower.take(1_200).await.unwrap();
        writing.await.unwrap();
        let all = read(&client, "h/*", Start::Earliest(true)).await;
        assert_eq!(places(&followed), places(&all), "the shard's order, once each");
        for topic in ["h/a", "h/b"] {
            let offsets: Vec<u64> =
                all.iter().filter(|record| record.topic == topic).map(|record| record.offset).collect();
            assert_eq!(offsets, (0..600).collect::<Vec<_>>(), "{topic}");
        }
        // A resume at any cursor goes on behind it.
        let mut reader = client.fetch(open("h/*", Start::Earliest(true), false)).await.unwrap();
        let mut seen = 0;
        while seen < 1_100 {
            if let Part::Records(records) = reader.next().await.unwrap() {
                seen += records.len();
            }
            if seen % 97 == 0 && seen > 0 {
                let rest = read(&client, "h/*", Start::Cursor(reader.cursor.clone())).await;
                assert_eq!(places(&rest), places(&all[seen..]), "from {seen} on");
            }
        }
        // Nothing more came to the follower, and what comes now does.
        client.put(&[Send::keyed("h/c", "k", "new"), Send::keyed("other", "k", "-")]).await;
        assert_eq!(places(&follower.take(1).await.unwrap()), [("h/c".to_owned(), 0)]);
        broker.drain().await;
    });
}

#[test]
fn what_is_truncated_is_gone_at_once_for_good_and_from_the_disk() {
    test(LIMIT, async {
        let site = site(&["--retention-every", "100ms"]);
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        fill(&client, 400).await;
        until(LIMIT, "segments", async || (segments(&site) > 3).then_some(())).await;
        let mut reader = client.fetch(open("h/*", Start::Earliest(true), false)).await.unwrap();
        reader.take(10).await.unwrap();
        let cursor = reader.cursor.clone();
        let told = print(&site, &broker, "topics truncate h/a --before 390").await;
        assert_eq!(told, "h/a truncated · 390 offsets gone · first offset 390 · next offset 400\n");
        let told = print(&site, &broker, "topics truncate h/a --before 17").await;
        assert_eq!(told, "h/a unchanged · first offset 390 · next offset 400\n");
        let offsets = async |client: &Client, topic: &str| -> Vec<u64> {
            read(client, topic, Start::Earliest(true)).await.iter().map(|record| record.offset).collect()
        };
        assert_eq!(offsets(&client, "h/a").await, (390..400).collect::<Vec<_>>());
        assert_eq!(offsets(&client, "h/b").await.len(), 400, "the other topic is whole");
        let table = print(&site, &broker, "topics h/a").await;
        assert!(table.lines().next().unwrap().contains("first offset") && table.contains("390"), "{table}");
        // Segments hold both topics: they go with the second one.
        assert_eq!(broker.metric("tidegate_retention_segments_dropped_total", "").await, 0.0);
        let before = segments(&site);
        print(&site, &broker, "topics truncate h/b --before 400").await;
        until(LIMIT, "segments to go", async || {
            let dropped = broker.metric("tidegate_retention_segments_dropped_total", "").await;
            (dropped > 0.0 && segments(&site) < before).then_some(())
        })
        .await;
        assert!(broker.metric("tidegate_retention_bytes_dropped_total", "").await > 60_000.0);
        assert_eq!(broker.metric("tidegate_retention_moves_total", "truncate").await, 2.0);
        // Who resumes before it is told, and goes on.
        let mut resumed = client.fetch(open("h/*", Start::Cursor(cursor.clone()), false)).await.unwrap();
        let rest = resumed.rest().await.unwrap();
        assert_eq!(resumed.gaps, [("h/a".to_owned(), 390), ("h/b".to_owned(), 400)]);
        assert_eq!(places(&rest), places(&read(&client, "h/a", Start::Earliest(true)).await));
        let ended = tidegate(&site, &broker, &format!("consume h/* --from {cursor}")).await;
        assert!(ended.stderr.contains("h/a: records before offset 390 are gone"), "{}", ended.stderr);
        let json = print(&site, &broker, &format!("consume h/* --from {cursor} --output json")).await;
        assert_eq!(json.lines().next(), Some(r#"{"gap":{"low_offset":390,"topic":"h/a"}}"#));
        let (exit, text) = refused(&site, &broker, "consume h/a --from-offset 389").await;
        assert!(
            exit == 1 && text.contains("OFFSET_OUT_OF_RANGE") && text.contains("the first one kept is 390"),
            "{text}"
        );
        // After a kill it is as gone; keys and offsets go on.
        broker.kill();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        assert_eq!(offsets(&client, "h/a").await, (390..400).collect::<Vec<_>>());
        assert_eq!(offsets(&client, "h/b").await.len(), 0);
        client.put(&[Send::keyed("h/b", "k", "new")]).await;
        let new = read(&client, "h/b", Start::Earliest(true)).await;
        assert_eq!((new[0].offset, new[0].version), (400, 401));
        let listed = print(&site, &broker, "keys list h/b").await;
        assert!(listed.contains("401"), "{listed}");
        broker.drain().await;
    });
}

#[test]
fn what_cannot_be_truncated_says_why_and_changes_nothing() {
    test(LIMIT, async {
        let site = site(&[]);
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        client.put(&[Send::keyed("orders", "k", "1"), Send::keyed("orders", "k", "2")]).await;
        for (line, exit, code, told) in [
            ("topics truncate orders --before 3", 1, "OFFSET_OUT_OF_RANGE", "ends at offset 2"),
            ("topics truncate nowhere --before 0", 1, "TOPIC_UNKNOWN", "does not exist"),
            ("topics truncate $sys/topics --before 1", 64, "TOPIC_RESERVED", "reserved level"),
            ("topics truncate orders/* --before 1", 64, "TOPIC_INVALID", "wildcard"),
            ("topics truncate orders", 64, "error: ", "--before"),
            ("topics truncate orders --before -1", 64, "error: ", "--before"),
        ] {
            let (ended, text) = refused(&site, &broker, line).await;
            assert_eq!(ended, exit, "{line}: {text}");
            assert!(text.contains(code) && text.contains(told), "{line}: {text}");
        }
        // Past the command line the broker says the same.
        let admin = Client::admin(broker.addr, &site.data()).await;
        for (client, topic, code) in [
            (&client, "orders", Code::AdminRequired),
            (&admin, "$sys/topics", Code::TopicReserved),
            (&admin, "a//b", Code::TopicInvalid),
        ] {
            let truncate = TopicTruncate { topic: topic.to_owned(), before: 1 };
            match client.ask(ClientBody::TopicTruncate(truncate)).await {
                Err(Refused::Failure(failure)) => assert_eq!(raw::code(&failure), code, "{topic}"),
                Ok(tidegate_protocol::wire::ServerBody::Failure(failure)) => {
                    assert_eq!(raw::code(&failure), code, "{topic}")
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(read(&client, "orders", Start::Earliest(true)).await.len(), 2);
        broker.drain().await;
    });
}

#[test]
fn what_a_topic_declares_is_kept_and_no_more_also_after_a_restart_without_the_file() {
    test(LIMIT, async {
        let mut site = site(&["--retention-every", "100ms"]);
        site.plugins(
            "[[chain]]\ntopics = \"h/a\"\nretention = { size = \"256KiB\" }\n\
             [[chain]]\ntopics = \"brief/>\"\nretention = { age = \"1s\", size = \"1GiB\" }\n",
        );
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        client.put(&[Send::keyed("keep", "k", "1"), Send::keyed("brief/a", "k", "1")]).await;
        let told = print(&site, &broker, "plugins explain h/a").await;
        assert!(told.contains("keeps 256 KiB"), "{told}");
        let value = "x".repeat(2_000);
        for _ in 0..500 {
            client.put(&[Send::keyed("h/a", "k", value.clone())]).await;
        }
        let kept = async |client: &Client, topic: &str| read(client, topic, Start::Earliest(true)).await;
        until(LIMIT, "h/a to be cut to its size", async || {
            let records = kept(&client, "h/a").await;
            assert_eq!(records.last().unwrap().offset, 499);
            (records.len() < 140).then(|| assert!(records.len() > 100, "{} records are kept", records.len()))
        })
        .await;
        until(LIMIT, "brief/a to grow old", async || kept(&client, "brief/a").await.is_empty().then_some(())).await;
        until(LIMIT, "segments to go", async || {
            (broker.metric("tidegate_retention_segments_dropped_total", "").await > 0.0).then_some(())
        })
        .await;
        assert_eq!(kept(&client, "keep").await.len(), 1);
        assert!(broker.metric("tidegate_retention_moves_total", "age").await > 0.0);
        assert!(broker.metric("tidegate_retention_moves_total", "size").await > 0.0);
        assert_eq!(broker.metric("tidegate_retention_failures_total", "").await, 0.0);
        broker.kill();
        // What was activated goes on without the file.
        site.plugins_nowhere();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let first = kept(&client, "h/a").await[0].offset;
        for _ in 0..200 {
            client.put(&[Send::keyed("h/a", "k", value.clone())]).await;
        }
        until(LIMIT, "h/a to be cut further", async || (kept(&client, "h/a").await[0].offset > first).then_some(()))
            .await;
        assert_eq!(kept(&client, "keep").await.len(), 1);
        broker.drain().await;
    });
}
