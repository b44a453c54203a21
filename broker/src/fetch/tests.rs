//! Subscriptions into a list: a log in memory, no plugins, no network.

use tidegate_protocol::{
    batch::BatchBuilder,
    record::RecordView,
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

    /// Reads topic `t` to its end; a record of so many bytes comes after each batch told.
    async fn read(&self, start: Start, bytes_after_each: Option<usize>) -> Seen<'_> {
        let open = OpenFetch { pattern: "t".to_owned(), start: Some(start), ..OpenFetch::default() };
        let mut seen = Seen { world: self, bytes_after_each, batches: 0, end: String::new() };
        let (_stop, stopping) = watch::channel(false);
        self.fetch.serve(&self.subscriber, &open, &mut seen, stopping).await.expect("served");
        seen
    }
}

/// What a subscription told: batches, and the cursor at its end.
struct Seen<'a> {
    world: &'a World,
    bytes_after_each: Option<usize>,
    batches: usize,
    end: String,
}

impl Sink for Seen<'_> {
    async fn send(&mut self, parts: Vec<Bytes>) -> io::Result<()> {
        let frame = parts.first().expect("a frame");
        if frame.get(4) == Some(&wire::KIND_BATCH) {
            self.batches += 1;
            if let Some(bytes) = self.bytes_after_each {
                self.world.put(bytes).await;
            }
            return Ok(());
        }
        match wire::decode::<ServerMessage>(frame.slice(5..)).expect("a message").body {
            Some(ServerBody::FetchProgress(progress)) if progress.at_end => self.end = progress.cursor,
            Some(ServerBody::FetchProgress(_)) => {}
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
