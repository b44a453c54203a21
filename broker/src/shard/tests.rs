//! What the shard promises, on a real directory and in memory.

#![allow(clippy::cast_possible_truncation, reason = "small numbers of tests")]

mod conditions;
mod crash;
mod durable;
mod fsck;
mod keys;
mod producers;
mod replay;
mod retention;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::{
    batch::BatchBuilder,
    limits::Limits,
    record::RecordView,
    stored::{Refused, RefusedStatus, StoredFrame},
};

use super::{reader::blocking, *};
use crate::{
    clock::Clock,
    record::{Content, Rebuilt},
    storage::{
        RealDisk, Run, WalKind,
        sim::{Mutant, SimDisk},
    },
};

/// A clock that stands where it is put.
#[derive(Debug, Default)]
struct TestClock(AtomicU64);

impl TestClock {
    fn set_ms(&self, ms: u64) {
        self.0.store(ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn unix(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
    fn monotonic(&self) -> Duration {
        self.unix()
    }
}

struct World {
    disk: SimDisk,
    clock: Arc<TestClock>,
    shard: Shard,
    tenant: u32,
}

impl World {
    fn new() -> Self {
        Self::on(SimDisk::new(1, Mutant::None), WalKind::Local)
    }

    fn in_memory() -> Self {
        Self::on(SimDisk::new(1, Mutant::None), WalKind::Memory)
    }

    fn on(disk: SimDisk, wal: WalKind) -> Self {
        let clock = Arc::new(TestClock::default());
        clock.set_ms(1_000_000);
        let shard = open(Arc::new(disk.clone()), "/data".into(), &clock, wal);
        let tenant = shard.tenant("default").unwrap();
        Self { disk, clock, shard, tenant }
    }

    async fn reopen(&mut self) {
        self.shard.close().await;
        self.shard = open(Arc::new(self.disk.clone()), "/data".into(), &self.clock, WalKind::Local);
        assert_eq!(self.shard.tenant("default").unwrap(), self.tenant);
    }

    /// Writes until the first frames have left memory and WAL.
    async fn push_out_of_memory(&self) {
        let value = "x".repeat(2000);
        for _ in 0..120 {
            self.put(&[("filler", "f", &value)]).await;
        }
        until("segments are there", || self.disk.object_names().iter().any(|name| name.starts_with("seg/")));
        assert!(self.shard.core.log.tail(0, 1).is_none());
    }

    /// Every frame of the log.
    async fn frames(&self) -> Vec<Arc<StoredFrame>> {
        let reader = self.shard.reader();
        let mut frames = Vec::new();
        let mut lsn = 0;
        while lsn < reader.end() {
            let run = read(&reader, lsn, 10_000, |_| true).await;
            lsn = run.next_lsn;
            frames.extend(run.frames);
        }
        frames
    }

    fn next_offset(&self, topic: &str) -> u64 {
        self.shard.topic(self.tenant, topic).map_or(0, |topic| topic.next_offset)
    }

    fn batch(&self, records: &[(&str, &str, &str)]) -> Append {
        batch(self.tenant, records)
    }

    async fn put(&self, records: &[(&str, &str, &str)]) -> Arc<Appended> {
        self.shard.append(self.batch(records)).unwrap().durable().await.unwrap()
    }
}

fn open(disk: Arc<dyn Disk>, dir: PathBuf, clock: &Arc<TestClock>, wal: WalKind) -> Shard {
    let small = storage::Config {
        wal_file_bytes: 64 << 10,
        wal_files_full_max: 1,
        tail_bytes: 16 << 10,
        queue_bytes_max: QUEUE_BYTES,
        ..storage::Config::new(dir)
    };
    let clock: SharedClock = Arc::<TestClock>::clone(clock);
    Shard::open(Config::default(), storage::Config { wal, ..small }, disk, clock).unwrap()
}

/// Bytes that may wait for the disk.
const QUEUE_BYTES: usize = 1 << 20;

/// What a reader reads: from memory if it is there.
async fn read(
    reader: &Reader,
    lsn: u64,
    bytes_max: usize,
    wanted: impl Fn(u64) -> bool + Send + Sync + 'static,
) -> Run {
    match reader.tail(lsn, bytes_max, &wanted) {
        Some(run) => run,
        None => reader.disk(lsn, bytes_max, wanted).await.unwrap(),
    }
}

/// The same for one key.
async fn read_key(reader: &Reader, (lsn, bytes_max): (u64, usize), topic: u64, key: &str, from_offset: u64) -> Run {
    match reader.tail(lsn, bytes_max, |id| id == topic) {
        Some(run) => run,
        None => reader.disk_key(lsn, bytes_max, topic, key.to_owned().into(), from_offset).await.unwrap(),
    }
}

/// Waits for another thread without sleeping.
fn until(what: &str, reached: impl Fn() -> bool) {
    let clock = crate::clock::SystemClock::default();
    while !reached() {
        std::thread::yield_now();
        assert!(clock.monotonic() < Duration::from_secs(20), "waited too long: {what}");
    }
}

/// A batch of (topic, key, value); an empty key is null.
fn batch(tenant: u32, records: &[(&str, &str, &str)]) -> Append {
    let mut builder = BatchBuilder::new();
    for (topic, key, value) in records {
        let key = Some(key.as_bytes()).filter(|key| !key.is_empty());
        builder.push(topic, RecordView { key, value: Some(value.as_bytes()), headers: &[], timestamp_ms: 5 });
    }
    let body = builder.finish_body(&Limits::default()).unwrap();
    Append {
        batch: Batch { tenant, principal: "test".into(), body },
        outcome: Outcome { generation: 0, content: Content::Verbatim, refused: Vec::new(), moved: Vec::new() },
        producer: None,
        conditions: Vec::new(),
        create_topics: true,
    }
}

fn stamp(epoch: u32, sequence: u64) -> Option<ProducerStamp> {
    Some(ProducerStamp { id: 42, epoch, sequence })
}

fn condition(topic: &str, key: &str, expect: Expect) -> Condition {
    Condition { topic: TopicName::parse(topic).unwrap(), key: Bytes::copy_from_slice(key.as_bytes()), expect }
}

fn appended(topic: u32, first_offset: u64, key_versions: &[u64]) -> AckedRun {
    let records = u32::try_from(key_versions.len()).unwrap();
    AckedRun::Appended { records, topic, first_offset, key_versions: key_versions.to_vec() }
}

fn refused(index: u32) -> Refused {
    let (reason, plugin) = ("no".to_owned(), "filter".to_owned());
    Refused { index, status: RefusedStatus::Rejected, code: 500, plugin_code: 7, retry_after_ms: 0, reason, plugin }
}

fn rebuilt(topic: &str, key: &str, value: &str, emitted: bool) -> Rebuilt {
    let key = Some(Bytes::copy_from_slice(key.as_bytes())).filter(|key| !key.is_empty());
    let value = Some(Bytes::copy_from_slice(value.as_bytes()));
    let (topic, headers) = (TopicName::parse(topic).unwrap(), Bytes::new());
    Rebuilt { topic, key, value, headers, timestamp_ms: 5, emitted }
}

fn names(appended: &Appended) -> Vec<&str> {
    appended.topics.iter().map(TopicName::as_str).collect()
}

#[tokio::test]
async fn offsets_and_versions_are_dense_over_topics_batches_and_a_restart() {
    let mut world = World::new();
    let first = world.put(&[("a", "k", "1"), ("b", "k", "2"), ("a", "k", "3"), ("a", "", "4")]).await;
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first.runs, [appended(0, 0, &[1]), appended(1, 0, &[1]), appended(0, 1, &[2, 0])]);
    let second = world.put(&[("a", "k", "5"), ("a", "l", "6")]).await;
    assert_eq!(second.runs, [appended(0, 3, &[3, 1])]);
    assert!(second.first_lsn > first.first_lsn);
    world.reopen().await;
    let third = world.put(&[("b", "k", "7"), ("a", "k", "8")]).await;
    assert_eq!(third.runs, [appended(0, 1, &[2]), appended(1, 5, &[4])]);
    assert_eq!((world.next_offset("a"), world.next_offset("b")), (6, 2));
}

#[tokio::test]
async fn a_panic_beside_the_sequencer_is_an_internal_fault() {
    let failed = blocking(&threads::SystemThreads, "a test", None, || assert_eq!(1, 2)).await.unwrap_err();
    assert_eq!(failed.code(), tidegate_protocol::error::Code::Internal, "{failed}");
}

#[tokio::test]
async fn a_verbatim_batch_is_stored_byte_for_byte() {
    let world = World::new();
    world.put(&[("a", "k", "1")]).await;
    let request = world.batch(&[("a", "k", "2")]);
    let body = request.batch.body.bytes().clone();
    let acked = world.shard.append(request).unwrap().durable().await.unwrap();
    let frame = world.shard.core.log.frame(acked.first_lsn).unwrap();
    assert_eq!(*frame.body.as_ref().unwrap().bytes(), body);
    assert_eq!((frame.header.tenant, frame.header.broker_time_ms), (world.tenant, 1_000_000));
}

#[tokio::test]
async fn a_topic_is_made_by_the_last_records_of_the_batch_that_needs_it_first() {
    let mut world = World::new();
    let acked = world.put(&[("a", "k", "1"), ("b", "k", "2")]).await;
    assert_eq!(acked.runs, [appended(0, 0, &[1]), appended(1, 0, &[1])], "the answer is of the client's records");
    let frame = world.shard.core.log.frame(acked.first_lsn).unwrap();
    let body = frame.body.as_ref().unwrap();
    assert_eq!(body.topics().collect::<Vec<_>>(), ["a", "b", "$sys/topics"]);
    assert_eq!((body.len(), frame.header.input_count, frame.client_records()), (4, 2, 2));
    let made: serde_json::Value = serde_json::from_slice(body.record(3).value.unwrap()).unwrap();
    assert_eq!(
        (&made["name"], &made["tenant"], &made["created_ms"]),
        (&"b".into(), &world.tenant.into(), &1_000_000.into())
    );
    let ids: Vec<_> = ["a", "b"].map(|name| world.shard.topic(world.tenant, name).unwrap().id).into();
    assert_eq!(ids, [16, 17]);
    world.reopen().await;
    assert_eq!(world.shard.topic(world.tenant, "b").unwrap().id, 17);
    assert_eq!(world.shard.topic_by_id(17).unwrap().1.as_str(), "b");
    let create = world.shard.create_topic(world.tenant, &TopicName::parse("c").unwrap()).unwrap();
    assert_eq!(create.durable().await.unwrap().id, 18, "ids are never given twice");
}

#[tokio::test]
async fn topics_are_unknown_existing_or_reserved_and_said_so() {
    let world = World::new();
    let unknown = Append { create_topics: false, ..world.batch(&[("a", "k", "1")]) };
    assert!(matches!(world.shard.append(unknown), Err(Refusal::TopicUnknown(name)) if name.as_str() == "a"));
    let name = TopicName::parse("a").unwrap();
    let topic = world.shard.create_topic(world.tenant, &name).unwrap().durable().await.unwrap();
    assert_eq!((topic.next_offset, topic.created_ms), (0, 1_000_000));
    assert!(matches!(world.shard.create_topic(world.tenant, &name), Err(Refusal::TopicExists { .. })));
    for reserved in ["$sys/topics", "$sys/mine"] {
        let refused = world.shard.append(world.batch(&[(reserved, "k", "1")]));
        assert!(matches!(refused, Err(Refusal::TopicReserved(_))), "{reserved}");
    }
    let dead = TopicName::parse("$dead/a").unwrap();
    assert!(matches!(world.shard.create_topic(world.tenant, &dead), Err(Refusal::TopicReserved(_))));
}

#[tokio::test]
async fn tenants_have_their_own_topics_keys_and_numbers() {
    let mut world = World::new();
    let other = world.shard.tenant("other").unwrap();
    assert_eq!((world.tenant, other), (1, 2));
    world.put(&[("a", "k", "1")]).await;
    let theirs = world.shard.append(batch(other, &[("a", "k", "2")])).unwrap().durable().await.unwrap();
    assert_eq!(theirs.runs, [appended(0, 0, &[1])]);
    assert_ne!(world.shard.topic(world.tenant, "a").unwrap().id, world.shard.topic(other, "a").unwrap().id);
    world.reopen().await;
    assert_eq!(world.shard.tenant("other").unwrap(), 2);
    assert_eq!(world.shard.tenant_name(2).as_deref(), Some("other"));
    assert!(matches!(world.shard.tenant(""), Err(ShardError::TenantInvalid { .. })));
}

#[tokio::test]
async fn an_answer_maps_dropped_rejected_routed_and_emitted_records() {
    let mut world = World::new();
    let mut request = world.batch(&[("a", "k", "0"), ("a", "k", "1"), ("a", "k", "2"), ("a", "k", "3")]);
    request.producer = stamp(0, 0);
    request.outcome.content = Content::Rebuilt(vec![
        rebuilt("b", "k", "0", false),
        rebuilt("a", "k", "3", false),
        rebuilt("a", "k", "emitted", true),
    ]);
    request.outcome.refused = vec![refused(1), Refused { status: RefusedStatus::Dropped, ..refused(2) }];
    request.outcome.moved = vec![0];
    let retry = request.clone();
    let acked = world.shard.append(request).unwrap().durable().await.unwrap();
    assert_eq!(names(&acked), ["b", "a"]);
    let dropped = Refused { status: RefusedStatus::Dropped, ..refused(2) };
    let runs = [appended(0, 0, &[1]), AckedRun::Refused(refused(1)), AckedRun::Refused(dropped), appended(1, 0, &[1])];
    assert_eq!(acked.runs, runs);
    assert_eq!((world.next_offset("b"), world.next_offset("a")), (1, 2), "the emitted record has an offset too");
    world.reopen().await;
    let again = world.shard.append(retry).unwrap().durable().await.unwrap();
    assert_eq!(*again, Appended { duplicate: true, ..Appended::clone(&acked) });
}

#[tokio::test]
async fn an_outcome_that_does_not_fit_its_batch_is_refused() {
    let world = World::new();
    let request = world.batch(&[("a", "k", "0"), ("a", "k", "1")]);
    let with = |content: Content, refused: Vec<Refused>| {
        let mut request = request.clone();
        (request.outcome.content, request.outcome.refused) = (content, refused);
        request
    };
    let one = || vec![rebuilt("a", "k", "0", false)];
    for bad in [
        with(Content::Verbatim, vec![refused(0)]),
        with(Content::Rebuilt(one()), vec![]),
        with(Content::Rebuilt(one()), vec![refused(2)]),
        with(Content::Rebuilt(vec![]), vec![refused(1), refused(0)]),
        with(Content::Rebuilt(vec![rebuilt("a", "k", "e", true), rebuilt("a", "k", "0", false)]), vec![refused(1)]),
    ] {
        assert!(matches!(world.shard.append(bad), Err(Refusal::Malformed(_))));
    }
    let huge = "x".repeat(1 << 20);
    let records = (0..80).map(|_| rebuilt("a", "k", &huge, true)).collect();
    let grown = with(Content::Rebuilt(records), vec![refused(0), refused(1)]);
    assert!(matches!(world.shard.append(grown), Err(Refusal::TooLarge { .. })));
    assert_eq!(world.shard.topic(world.tenant, "a"), None, "nothing of them is left");
}

#[tokio::test]
async fn a_real_directory_keeps_what_was_acked() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let open = || open(Arc::new(RealDisk), dir.path().join("data"), &clock, WalKind::Local);
    let mut acked = Vec::new();
    for round in 0..3_u64 {
        let shard = open();
        let tenant = shard.tenant("default").unwrap();
        for at in 0..150 {
            let value = format!("{round}/{at}/{}", "x".repeat(1000));
            let ticket = shard.append(batch(tenant, &[("a", "k", &value)])).unwrap();
            acked.push((ticket.durable().await.unwrap().first_lsn, value));
        }
        shard.close().await;
    }
    let shard = open();
    let log = shard.core.log.clone();
    for (offset, (lsn, value)) in acked.into_iter().enumerate() {
        let frame = log.frame(lsn).unwrap();
        assert_eq!(frame.body.as_ref().unwrap().record(0).value, Some(value.as_bytes()));
        assert_eq!(frame.positions().next(), Some((16, offset as u64, offset as u64 + 1)));
    }
    assert!(RealDisk.list(&dir.path().join("data/objects/seg")).unwrap().len() > 2);
    shard.close().await;
}
