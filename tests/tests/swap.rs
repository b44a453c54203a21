//! A swap loses nothing: at least a million records over a hundred swaps, counted by outside clients.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout, reason = "tests, on the real clock")]

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use tidegate_protocol::wire::{self, Activated, ClientBody, OpenFetch, ProduceHead, ServerBody, Start};
use tidegate_tests::{
    broker::{Site, component},
    ledger::places,
    raw::{self, Client, Fetched, Part, Send},
    wait::{count, test, until},
};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(300);
/// Records of one batch.
const BATCH: usize = 250;
const PRODUCERS: u64 = 3;
const TOPICS: u64 = 2;
/// Batches of one producer that wait for their ack.
const IN_FLIGHT: usize = 6;

const PLUGINS: &str = r#"
# The test is about swaps: a machine that stands still for 100 ms (the wall cap of the default budget) must not end it.
[plugin.stamp]
from   = "stamp-v1.wasm"
grants = ["log"]
budget = { cpu = "1s" }

[[chain]]
topics  = "swap/*"
produce = ["stamp"]
"#;

/// What the producers have seen.
#[derive(Debug, Default)]
struct Seen {
    acked: AtomicU64,
    /// Longest time between two acks of one producer, microseconds.
    gap_us: AtomicU64,
    /// All producers are done.
    over: AtomicBool,
}

/// Sends `batches` batches; every record says who sent it and as which one.
async fn produce(client: Arc<Client>, producer: u64, batches: u64, seen: Arc<Seen>) {
    let topic = format!("swap/{}", producer % TOPICS);
    let mut stream = client.producer().await.unwrap();
    let (mut sent, mut last) = (VecDeque::new(), Instant::now());
    for batch in 0..batches + IN_FLIGHT as u64 {
        if batch < batches {
            let first = batch * BATCH as u64;
            let value = |at: u64| Bytes::from([producer.to_le_bytes(), (first + at).to_le_bytes()].concat());
            let records: Vec<Send> = (0..BATCH as u64).map(|at| Send::new(&topic, value(at))).collect();
            stream.push(&ProduceHead::default(), &raw::body(&records)).await.unwrap();
            sent.push_back(());
        }
        if batch >= IN_FLIGHT as u64 && sent.pop_front().is_some() {
            let ack = stream.ack().await.unwrap();
            assert!(ack.failure.is_none(), "{ack:?}");
            assert!(places(&ack).iter().all(Option::is_some), "{ack:?}");
            let gap = u64::try_from(last.elapsed().as_micros()).unwrap();
            seen.gap_us.fetch_max(gap, Ordering::SeqCst);
            last = Instant::now();
            seen.acked.fetch_add(BATCH as u64, Ordering::SeqCst);
        }
    }
}

/// What one follower of one topic found: each record exactly once, and at which offset each generation began.
#[derive(Debug, Default)]
struct Followed {
    /// Generation → first offset and stamp.
    began: BTreeMap<u64, (u64, String)>,
    next: u64,
    /// Producer → next number expected.
    order: BTreeMap<u64, u64>,
}

impl Followed {
    fn take(&mut self, record: &Fetched) {
        assert_eq!(record.offset, self.next, "offsets are dense");
        self.next += 1;
        let stamp = record.header("stamp").unwrap_or_default().to_owned();
        assert!(!stamp.is_empty(), "no stamp at {}@{}", record.topic, record.offset);
        let newest = self.began.last_key_value().map_or(0, |(generation, _)| *generation);
        assert!(
            record.generation >= newest,
            "{}@{}: back from {newest} to {}",
            record.topic,
            record.offset,
            record.generation
        );
        let (_, of_generation) = self.began.entry(record.generation).or_insert_with(|| (record.offset, stamp.clone()));
        assert_eq!(*of_generation, stamp, "{}@{}: two stamps in one generation", record.topic, record.offset);
        let value = record.value.as_ref().unwrap();
        let number = |from: usize| u64::from_le_bytes(value[from..from + 8].try_into().unwrap());
        let expected = self.order.entry(number(0)).or_default();
        assert_eq!(number(8), *expected, "producer {}: lost, doubled or out of order", number(0));
        *expected += 1;
    }
}

async fn follow(client: Arc<Client>, topic: String, records: u64) -> Followed {
    let open = OpenFetch { pattern: topic, start: Some(Start::Earliest(true)), follow: true, ..OpenFetch::default() };
    let mut fetching = client.fetch(open).await.unwrap();
    let mut followed = Followed::default();
    while followed.next < records {
        if let Part::Records(records) = fetching.next().await.unwrap() {
            records.iter().for_each(|record| followed.take(record));
        }
    }
    followed
}

async fn swap(admin: &Client, version: &str, based_on: u64) -> Activated {
    let component = std::fs::read(component(version)).unwrap();
    let swap = wire::PluginSwap { name: "stamp".to_owned(), component, based_on };
    match admin.ask(ClientBody::PluginSwap(swap)).await.unwrap() {
        ServerBody::Activated(activated) => activated,
        other => panic!("{other:?}"),
    }
}

/// Swaps again and again, each after its share of the records.
async fn swap_all(
    admin: &Client,
    mut generation: u64,
    swaps: u64,
    total: u64,
    clients: usize,
    seen: &Seen,
) -> Vec<Activated> {
    let mut activations: Vec<Activated> = Vec::new();
    for at in 0..swaps {
        let share = at * total / (swaps + 1);
        until(LIMIT, format!("{share} records"), async || {
            (seen.acked.load(Ordering::SeqCst) >= share || seen.over.load(Ordering::SeqCst)).then_some(())
        })
        .await;
        let activated = swap(admin, if at % 2 == 0 { "stamp-v2" } else { "stamp-v1" }, generation).await;
        assert_eq!(activated.generation, generation + 1, "{activated:?}");
        assert!(!activated.unchanged && activated.digest != activated.previous_digest, "{activated:?}");
        assert_eq!(activated.clients as usize, clients, "nobody was disconnected");
        generation = activated.generation;
        activations.push(activated);
    }
    activations
}

/// What all tasks give. Panics as soon as one of them does.
async fn all<T: 'static>(tasks: &mut JoinSet<T>) -> Vec<T> {
    let mut done = Vec::new();
    while let Some(task) = tasks.join_next().await {
        done.push(task.unwrap());
    }
    done
}

#[test]
fn a_swap_under_load_loses_and_doubles_nothing() {
    test(LIMIT, async {
        let site = Site::new();
        site.install("stamp-v1");
        site.plugins(PLUGINS);
        let broker = site.start().await;
        let (swaps, total) = (count(100, 1_000) as u64, count(1_000_000, 10_000_000) as u64);
        let batches = total.div_ceil(PRODUCERS * BATCH as u64);
        let records =
            |topic: u64| (0..PRODUCERS).filter(|at| at % TOPICS == topic).count() as u64 * batches * BATCH as u64;

        let seen = Arc::new(Seen::default());
        let (mut clients, mut producers, mut followers) = (Vec::new(), JoinSet::new(), JoinSet::new());
        for producer in 0..PRODUCERS {
            let client = Arc::new(Client::new(broker.addr).await);
            clients.push(client.clone());
            producers.spawn(produce(client, producer, batches, seen.clone()));
        }
        for topic in 0..TOPICS {
            let client = Arc::new(Client::new(broker.addr).await);
            clients.push(client.clone());
            let records = records(topic);
            followers.spawn(async move { (topic, follow(client, format!("swap/{topic}"), records).await) });
        }

        let start = Instant::now();
        let admin = Client::admin(broker.addr, &site.data()).await;
        let swapping = swap_all(&admin, broker.generation, swaps, total, clients.len() + 1, &seen);
        // A task that fails ends the test there and then: nobody waits for records that will not come.
        let producing = async {
            all(&mut producers).await;
            seen.over.store(true, Ordering::SeqCst);
            start.elapsed().as_secs_f64()
        };
        let (activations, seconds, mut followed) = tokio::join!(swapping, producing, all(&mut followers));
        for client in &clients {
            assert!(client.connection.close_reason().is_none(), "a client was disconnected");
        }
        followed.sort_by_key(|(topic, _)| *topic);
        let followed: Vec<Followed> = followed.into_iter().map(|(_, followed)| followed).collect();
        check(&followed, &activations, batches);
        let gap = Duration::from_micros(seen.gap_us.load(Ordering::SeqCst));
        assert!(gap < Duration::from_secs(10), "an ack took {gap:?}");
        println!("{total} records, {swaps} swaps in {seconds:.1} s; longest ack gap {gap:?} (no benchmark)");
        admin.close();
        broker.drain().await;
    });
}

/// Per topic one step at the told offset, and every record there exactly once.
fn check(followed: &[Followed], activations: &[Activated], batches: u64) {
    let mut told = 0;
    for (topic, followed) in followed.iter().enumerate() {
        for (producer, numbers) in &followed.order {
            assert_eq!(*numbers, batches * BATCH as u64, "producer {producer}");
        }
        let name = format!("swap/{topic}");
        for activated in activations {
            let Some(info) = activated.topics.iter().find(|info| info.name == name) else { continue };
            told += 1;
            // The first record of this generation or a later one stands at just that offset; none = the topic ends there.
            let step = followed.began.range(activated.generation..).next();
            let first = step.map_or(followed.next, |(_, (first, _))| *first);
            assert_eq!(first, info.next_offset, "{name}: one step at the offset told for {}", activated.generation);
        }
        let stamps: std::collections::BTreeSet<_> = followed.began.values().map(|(_, stamp)| stamp).collect();
        assert_eq!(stamps.len(), 2, "both versions ran: {stamps:?}");
        assert!(followed.began.len() > activations.len() / 2, "swaps met the load: {}", followed.began.len());
        for pair in followed.began.iter().collect::<Vec<_>>().windows(2) {
            let [(one, (_, a)), (two, (_, b))] = pair else { continue };
            assert_eq!((*two - *one) % 2 == 0, a == b, "generations alternate: {pair:?}");
        }
    }
    assert!(told >= activations.len(), "every activation tells where its topics changed");
}
