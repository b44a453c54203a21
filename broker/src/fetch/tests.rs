//! Subscriptions into a list: a log in memory, no plugins, no network.

use tidegate_protocol::{
    batch::BatchBuilder,
    record::RecordView,
    topic::TopicName,
    wire::{self, OpenFetch, ServerBody, ServerMessage, Start},
};
use tokio::sync::watch;

use super::*;
use crate::{
    auth::{Auth, Claim, Config as AuthConfig},
    clock::{SystemClock, SystemRandom},
    hooks::{self, Host, Level, Runtime, spec::TenantSpec},
    record::{Batch, Content, Outcome},
    shard::{self, Append},
    storage::{self, RealDisk, WalKind},
};

#[derive(Debug)]
struct NoLog;

impl Host for NoLog {
    fn guest_log(&self, _: &str, _: &str, _: Level, _: &str) {}
}

struct World {
    _dir: tempfile::TempDir,
    shard: Shard,
    fetch: Fetch,
    subscriber: Subscriber,
}

impl World {
    fn new(read_bytes: usize) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let clock: SharedClock = Arc::new(SystemClock::default());
        let storage = storage::Config { wal: WalKind::Memory, ..storage::Config::new(dir.path()) };
        let shard =
            Shard::open(shard::Config::default(), storage, Arc::new(RealDisk), Arc::clone(&clock)).expect("a shard");
        let random = Arc::new(SystemRandom::default());
        let runtime =
            Runtime::new(hooks::Config::default(), Arc::new(NoLog), Arc::clone(&clock), random).expect("a runtime");
        let spec = Arc::new(TenantSpec::default());
        let generation =
            runtime.generation("default", 0, spec, std::collections::BTreeMap::new()).expect("no chain at all");
        let auth = Auth::new(AuthConfig::default());
        let principal = auth.identify(&Claim { loopback: true, ..Claim::default() }).expect("local");
        let tenant = shard.tenant("default").expect("a tenant");
        let live = Arc::new(ArcSwap::new(generation));
        let config = Config { read_bytes, ..Config::default() };
        let fetch = Fetch::new(config, shard.clone(), Arc::default(), clock);
        Self { _dir: dir, shard, fetch, subscriber: Subscriber { principal: Arc::new(principal), tenant, live } }
    }

    async fn put(&self, bytes: usize) {
        let mut builder = BatchBuilder::new();
        let value = vec![7; bytes];
        builder.push("t", RecordView { key: None, value: Some(&value), headers: &[], timestamp_ms: 0 });
        let body = builder.finish_body(&Limits::default()).expect("a body");
        let append = Append {
            batch: Batch { tenant: self.subscriber.tenant, principal: "test".into(), body },
            outcome: Outcome { generation: 0, content: Content::Verbatim, refused: Vec::new(), moved: Vec::new() },
            producer: None,
            conditions: Vec::new(),
            create_topics: true,
        };
        self.shard.append(append).expect("taken").durable().await.expect("durable");
    }

    async fn truncate(&self, before: u64) {
        let name = TopicName::parse("t").expect("a name");
        self.shard.truncate(self.subscriber.tenant, &name, before).await.expect("truncated");
    }

    /// Reads topic `t` to its end; a record of so many bytes comes after each batch told.
    async fn read(&self, start: Start, bytes_after_each: Option<usize>) -> Seen<'_> {
        self.read_as(start, Seen { bytes_after_each, ..Seen::of(self) }).await
    }

    async fn read_as<'a>(&self, start: Start, mut seen: Seen<'a>) -> Seen<'a> {
        let open = OpenFetch { pattern: "t".to_owned(), start: Some(start), ..OpenFetch::default() };
        let (_stop, stopping) = watch::channel(false);
        self.fetch.serve(&self.subscriber, &open, &mut seen, stopping).await.expect("served");
        seen
    }
}

/// What a subscription told: batches, and the cursor at its end.
struct Seen<'a> {
    world: &'a World,
    bytes_after_each: Option<usize>,
    /// Offset before which all is removed when the first batch was told.
    truncate: Option<u64>,
    batches: usize,
    /// Batches told before it, and the first offset kept.
    gaps: Vec<(usize, u64)>,
    offsets: Vec<u64>,
    failure: Option<wire::Failure>,
    end: String,
}

impl<'a> Seen<'a> {
    fn of(world: &'a World) -> Self {
        let (bytes_after_each, truncate, batches, end) = Default::default();
        let (gaps, offsets, failure) = Default::default();
        Self { world, bytes_after_each, truncate, batches, gaps, offsets, failure, end }
    }
}

impl Sink for Seen<'_> {
    async fn send(&mut self, parts: Vec<Bytes>) -> io::Result<()> {
        let frame = parts.first().expect("a frame");
        if frame.get(4) == Some(&wire::KIND_BATCH) {
            self.batches += 1;
            let head = wire::parse_payload(wire::KIND_BATCH, frame.slice(5..)).expect("a batch");
            let wire::Frame::Batch { head, .. } = head else { panic!("no batch") };
            self.offsets.extend(wire::decode::<wire::FetchHead>(head).expect("a head").offsets);
            if let Some(before) = self.truncate.take() {
                self.world.truncate(before).await;
            }
            if let Some(bytes) = self.bytes_after_each {
                self.world.put(bytes).await;
            }
            return Ok(());
        }
        match wire::decode::<ServerMessage>(frame.slice(5..)).expect("a message").body {
            Some(ServerBody::FetchProgress(progress)) if progress.at_end => self.end = progress.cursor,
            Some(ServerBody::FetchProgress(progress)) => {
                assert!(progress.gaps.iter().all(|gap| gap.topic == "t"));
                self.gaps.extend(progress.gaps.iter().map(|gap| (self.batches, gap.low_offset)));
            }
            Some(ServerBody::Failure(failure)) => self.failure = Some(failure),
            other => panic!("{other:?}"),
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_read_of_history_ends_at_a_cursor_that_leaves_nothing_out() {
    // The first record fills a read; what comes while it is told is read together with the second.
    let world = World::new(2_000);
    world.put(3_000).await;
    world.put(10).await;
    let seen = world.read(Start::Earliest(true), Some(10)).await;
    assert_eq!(seen.batches, 2, "what was there");
    let rest = world.read(Start::Cursor(seen.end), None).await;
    assert_eq!(rest.batches, 2, "what came meanwhile");
    assert_eq!(world.read(Start::Cursor(rest.end), None).await.batches, 0);
}

#[tokio::test]
async fn who_starts_at_what_is_left_misses_nothing_and_who_resumes_is_told_what_is_gone() {
    let world = World::new(1 << 20);
    world.put(10).await;
    let cursor = world.read(Start::Earliest(true), None).await.end;
    for _ in 0..5 {
        world.put(10).await;
    }
    let third = world.read(Start::Offset(3), None).await;
    assert_eq!(third.offsets, [3, 4, 5]);
    world.truncate(3).await;
    for start in [Start::Earliest(true), Start::Since(0), Start::Ago(3_600_000), Start::Offset(3)] {
        let seen = world.read(start.clone(), None).await;
        assert_eq!((seen.offsets.as_slice(), seen.gaps.len()), ([3, 4, 5].as_slice(), 0), "{start:?}");
    }
    let seen = world.read(Start::Cursor(cursor), None).await;
    assert_eq!((seen.offsets.as_slice(), seen.gaps.as_slice()), ([3, 4, 5].as_slice(), [(0, 3)].as_slice()));
    assert!(world.read(Start::Cursor(seen.end), None).await.gaps.is_empty(), "nothing behind it is gone");
    let gone = world.read(Start::Offset(2), None).await.failure.expect("refused");
    assert_eq!(gone.known_code(), Some(tidegate_protocol::error::Code::OffsetOutOfRange));
    assert!(gone.message.contains("the first one kept is 3"), "{}", gone.message);
    let future = world.read(Start::Since(i64::MAX), None).await;
    assert_eq!((future.batches, future.gaps.len()), (0, 0));
}

#[tokio::test]
async fn a_reader_that_is_overtaken_is_told_before_it_goes_on() {
    // Each record fills a read.
    let world = World::new(100);
    for _ in 0..6 {
        world.put(200).await;
    }
    let seen = world.read_as(Start::Earliest(true), Seen { truncate: Some(4), ..Seen::of(&world) }).await;
    assert_eq!((seen.offsets.as_slice(), seen.gaps.as_slice()), ([0, 4, 5].as_slice(), [(1, 4)].as_slice()));
    // All that is gone was read before.
    let seen = world.read_as(Start::Earliest(true), Seen { truncate: Some(5), ..Seen::of(&world) }).await;
    assert_eq!((seen.offsets.as_slice(), seen.gaps.len()), ([4, 5].as_slice(), 0));
}
