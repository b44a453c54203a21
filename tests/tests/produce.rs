//! Produce without plugins: dedup, conditions, atomic batches.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use tidegate_protocol::{
    error::Code,
    wire::{Condition, Expect, ProduceAck, ProduceHead},
};
use tidegate_tests::{
    broker::Site,
    ledger::{gaps, places},
    raw::{self, Client, Refused, Send, code},
    wait::{count, test},
};

const LIMIT: Duration = Duration::from_secs(90);

fn stamp(producer_id: u64, producer_epoch: u32, sequence: u64) -> ProduceHead {
    ProduceHead { producer_id, producer_epoch, sequence, conditions: Vec::new() }
}

fn on(topic: &str, key: &str, expect: Expect) -> Condition {
    Condition { topic: topic.to_owned(), key: key.as_bytes().to_vec(), expect: Some(expect) }
}

fn under(conditions: Vec<Condition>) -> ProduceHead {
    ProduceHead { conditions, ..ProduceHead::default() }
}

fn offsets(ack: &ProduceAck) -> Vec<u64> {
    places(ack).into_iter().map(|place| place.unwrap().offset).collect()
}

#[test]
fn a_batch_over_several_topics_is_acked_and_read_back_as_sent() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let sent = vec![
            Send::keyed("a/x", "k", "1").header("h", "v"),
            Send::new("a/y", "2"),
            Send::keyed("a/x", "k", "3"),
            Send { value: None, ..Send::keyed("a/y", "gone", "") },
            Send { headers: vec![("n".to_owned(), None), ("n".to_owned(), Some("2".into()))], ..Send::new("a/x", "") },
        ];
        let ack = client.put(&sent).await;
        let said: Vec<_> = places(&ack).into_iter().map(Option::unwrap).collect();
        let said: Vec<_> = said.iter().map(|place| (place.topic.as_str(), place.offset, place.version)).collect();
        assert_eq!(said, [("a/x", 0, 1), ("a/y", 0, 0), ("a/x", 1, 2), ("a/y", 1, 1), ("a/x", 2, 0)]);
        let read = client.all("a/*").await;
        let parts = |record: &raw::Fetched| {
            (record.topic.clone(), record.key.clone(), record.value.clone(), record.headers.clone())
        };
        let as_sent = |send: &Send| (send.topic.clone(), send.key.clone(), send.value.clone(), send.headers.clone());
        assert_eq!(read.iter().map(parts).collect::<Vec<_>>(), sent.iter().map(as_sent).collect::<Vec<_>>());
        assert_eq!(gaps(&read), Vec::<String>::new());
        broker.drain().await;
    });
}

#[test]
fn a_refused_batch_leaves_nothing_behind() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        client.put(&[Send::keyed("t", "k", "before")]).await;
        let bad =
            [Send::keyed("t", "k", "1"), Send::keyed("u", "k", "2"), Send::new("t", "3").header("tidegate-x", "y")];
        assert_eq!(code(&client.refused(ProduceHead::default(), &bad).await), Code::HeaderReserved);
        let bad = [Send::keyed("t", "k", "1"), Send::keyed("not a topic", "k", "2")];
        assert_eq!(code(&client.refused(ProduceHead::default(), &bad).await), Code::TopicInvalid);
        let bad = [Send::keyed("t", "k", "1"), Send::keyed("v", "k", "2")];
        let conflict = under(vec![on("t", "k", Expect::Version(1)), on("v", "k", Expect::Version(7))]);
        assert_eq!(code(&client.refused(conflict, &bad).await), Code::Conflict);
        let after = client.put(&[Send::keyed("t", "k", "after")]).await;
        let place = places(&after)[0].clone().unwrap();
        assert_eq!((place.offset, place.version), (1, 2), "no offset and no version was used");
        let read = client.all(">").await;
        assert_eq!(read.iter().map(raw::Fetched::text).collect::<Vec<_>>(), ["before", "after"]);
        broker.drain().await;
    });
}

#[test]
fn a_retry_gets_the_stored_answer_also_after_a_restart() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let id = client.producer_id().await;
        assert_ne!(id, 0);
        let records = [Send::keyed("t", "k", "one"), Send::new("u", "two")];
        let first = client.produce(stamp(id, 0, 0), &records).await.unwrap();
        assert!(!first.duplicate && first.failure.is_none(), "{first:?}");
        // Another connection, then other lives of the broker: after a drain and after a SIGKILL.
        for end in ["same", "drain", "kill"] {
            match end {
                "drain" => {
                    broker = {
                        broker.drain().await;
                        site.start().await
                    }
                }
                "kill" => {
                    broker = {
                        broker.kill();
                        site.start().await
                    }
                }
                _ => {}
            }
            let client = Client::new(broker.addr).await;
            let again = client.produce(stamp(id, 0, 0), &records).await.unwrap();
            assert!(again.duplicate, "{end}: {again:?}");
            assert_eq!((again.runs, again.topics), (first.runs.clone(), first.topics.clone()), "{end}");
            assert_eq!(client.all(">").await.len(), 2, "{end}");
        }
        let client = Client::new(broker.addr).await;
        let next = client.produce(stamp(id, 0, 1), &[Send::new("t", "three")]).await.unwrap();
        assert_eq!((next.duplicate, offsets(&next)), (false, vec![1]));
        broker.drain().await;
    });
}

#[test]
fn sequences_are_dense_fenced_and_expire() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let id = client.producer_id().await;
        let one = [Send::new("t", "x")];
        // Small holes are normal (a refused batch leaves one); who skips more than the window has lost batches.
        assert_eq!(code(&client.refused(stamp(id, 0, 2_000), &one).await), Code::SequenceGap);
        let mut stream = client.producer().await.unwrap();
        let body = raw::body(&one);
        let sends = 1100;
        // Acks are taken while batches are sent: the broker need not hold more answers than it likes.
        for sequence in 0..sends {
            stream.push(&stamp(id, 0, sequence), &body).await.unwrap();
            if sequence >= 16 {
                assert!(stream.ack().await.unwrap().failure.is_none());
            }
        }
        for _ in 0..16 {
            assert!(stream.ack().await.unwrap().failure.is_none());
        }
        assert_eq!(code(&client.refused(stamp(id, 0, sends + 2_000), &one).await), Code::SequenceGap);
        assert_eq!(code(&client.refused(stamp(id, 0, 0), &one).await), Code::SequenceExpired);
        let known = client.produce(stamp(id, 0, sends - 1000), &one).await.unwrap();
        assert_eq!((known.duplicate, offsets(&known)), (true, vec![sends - 1000]));
        // A new epoch starts at 0 and fences the one before.
        let fresh = client.produce(stamp(id, 1, 0), &one).await.unwrap();
        assert_eq!((fresh.duplicate, offsets(&fresh)), (false, vec![sends]));
        assert_eq!(code(&client.refused(stamp(id, 0, sends), &one).await), Code::ProducerFenced);
        assert_eq!(client.all("t").await.len() as u64, sends + 1);
        broker.drain().await;
    });
}

#[test]
fn a_refused_batch_does_not_use_its_sequence() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let id = client.producer_id().await;
        let mut head = stamp(id, 0, 0);
        head.conditions = vec![on("t", "k", Expect::Version(3))];
        let one = [Send::keyed("t", "k", "x")];
        assert_eq!(code(&client.refused(head, &one).await), Code::Conflict);
        let retried = client.produce(stamp(id, 0, 0), &one).await.unwrap();
        assert_eq!((retried.duplicate, offsets(&retried)), (false, vec![0]));
        broker.drain().await;
    });
}

#[test]
fn the_same_sequence_on_many_connections_at_once_is_one_batch() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(Client::new(broker.addr).await);
        }
        let id = clients[0].producer_id().await;
        for sequence in 0..50 {
            let records = [Send::keyed("t", "k", format!("{sequence}"))];
            let tries = clients.iter().map(|client| client.produce(stamp(id, 0, sequence), &records));
            let acks = futures_join(tries).await;
            let first = acks.iter().filter(|ack| !ack.duplicate).count();
            assert_eq!(first, 1, "exactly one try appends: {acks:?}");
            assert!(acks.iter().all(|ack| ack.failure.is_none() && ack.runs == acks[0].runs), "{acks:?}");
        }
        let read = clients[0].all("t").await;
        assert_eq!(read.len(), 50);
        assert_eq!(gaps(&read), Vec::<String>::new());
        broker.drain().await;
    });
}

/// Runs requests at once and gives their answers in order.
async fn futures_join(
    requests: impl Iterator<Item = impl Future<Output = Result<ProduceAck, Refused>>>,
) -> Vec<ProduceAck> {
    let acks = futures::future::join_all(requests).await;
    acks.into_iter().map(Result::unwrap).collect()
}

#[test]
fn racing_writers_have_exactly_one_winner_for_each_version() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let mut writers = Vec::new();
        for _ in 0..3 {
            writers.push(Client::new(broker.addr).await);
        }
        let rounds = count(100, 2_000) as u64;
        for version in 0..rounds {
            let tries = writers.iter().enumerate().map(|(writer, client)| {
                let records = [Send::keyed("race", "k", format!("{version} by {writer}"))];
                let expect = if version == 0 { Expect::Absent(true) } else { Expect::Version(version) };
                async move { client.produce(under(vec![on("race", "k", expect)]), &records).await }
            });
            let acks = futures_join(tries).await;
            let winners = acks.iter().filter(|ack| ack.failure.is_none()).count();
            assert_eq!(winners, 1, "version {version}: {acks:?}");
            for failure in acks.iter().filter_map(|ack| ack.failure.as_ref()) {
                assert_eq!(code(failure), Code::Conflict);
                let stands = failure.conflict.as_ref().unwrap();
                assert_eq!((stands.topic.as_str(), stands.key.as_slice()), ("race", b"k".as_slice()));
                assert_eq!((stands.version, stands.last_offset), (version + 1, Some(version)));
            }
        }
        let read = writers[0].all("race").await;
        assert_eq!(read.len() as u64, rounds);
        assert_eq!(gaps(&read), Vec::<String>::new());
        broker.drain().await;
    });
}

#[test]
fn every_kind_of_condition_also_after_a_restart() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let client = Client::new(broker.addr).await;
        client.put(&[Send::keyed("t", "k", "1"), Send::new("t", "no key"), Send::keyed("t", "k", "2")]).await;
        for life in 0..2 {
            let client = Client::new(broker.addr).await;
            let (version, offset) = (2 + life, 2 + life);
            let other = |expect| under(vec![on("t", "k", expect)]);
            let write = [Send::keyed("other", "o", "x")];
            for wrong in [
                Expect::Version(0),
                Expect::Version(version - 1),
                Expect::Version(version + 1),
                Expect::LastOffset(offset - 1),
                Expect::LastOffset(offset + 1),
                Expect::Absent(true),
            ] {
                let failure = client.refused(other(wrong), &write).await;
                assert_eq!(code(&failure), Code::Conflict, "{wrong:?}");
                let stands = failure.conflict.unwrap();
                assert_eq!((stands.version, stands.last_offset), (version, Some(offset)), "{wrong:?}");
            }
            // A condition may name a key the batch does not write, and several must hold at once.
            let all = under(vec![
                on("t", "k", Expect::Version(version)),
                on("t", "k", Expect::LastOffset(offset)),
                on("t", "nobody", Expect::Absent(true)),
                on("nowhere", "k", Expect::Version(0)),
            ]);
            let ack =
                client.produce(all, &[Send::keyed("t", "k", "next"), Send::keyed("other", "o", "y")]).await.unwrap();
            assert!(ack.failure.is_none(), "{ack:?}");
            assert_eq!(places(&ack)[0].clone().unwrap().version, version + 1);
            if life == 0 {
                broker.kill();
                broker = site.start().await;
            }
        }
        let client = Client::new(broker.addr).await;
        assert_eq!(gaps(&client.all(">").await), Vec::<String>::new());
        assert!(client.all("nowhere").await.is_empty(), "a condition creates no records");
        broker.drain().await;
    });
}

#[test]
fn batches_of_one_stream_are_sequenced_in_its_order() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let mut stream = client.producer().await.unwrap();
        // Large and small ones in turn: the small must not overtake.
        for at in 0..40 {
            let padding = if at % 2 == 0 { 200_000 } else { 1 };
            let record = Send::new("t", format!("{at} {}", "x".repeat(padding)));
            stream.push(&ProduceHead::default(), &raw::body(&[record])).await.unwrap();
        }
        for at in 0..40 {
            assert_eq!(offsets(&stream.ack().await.unwrap()), [at]);
        }
        let read = client.all("t").await;
        let order: Vec<_> = read.iter().map(|record| record.text().split(' ').next().unwrap().to_owned()).collect();
        assert_eq!(order, (0..40).map(|at| at.to_string()).collect::<Vec<_>>());
        broker.drain().await;
    });
}
