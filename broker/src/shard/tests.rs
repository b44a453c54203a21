//! What the shard promises, on a real directory and in memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::{batch::BatchBuilder, limits::Limits, record::RecordView, stored::RefusedStatus};

use super::*;
use crate::{
    clock::Clock,
    record::{Content, Rebuilt},
    storage::{RealDisk, WalKind},
};
use tidegate_protocol::stored::Refused;

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
    dir: tempfile::TempDir,
    clock: Arc<TestClock>,
    shard: Shard,
    tenant: u32,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(TestClock::default());
        clock.set_ms(1_000_000);
        let shard = open(dir.path(), &clock, WalKind::Local);
        let tenant = shard.tenant("default").unwrap();
        Self { dir, clock, shard, tenant }
    }

    fn in_memory() -> Self {
        let mut world = Self::new();
        world.shard = open(world.dir.path(), &world.clock, WalKind::Memory);
        world.tenant = world.shard.tenant("default").unwrap();
        world
    }

    async fn reopen(&mut self) {
        self.shard.close().await;
        self.shard = open(self.dir.path(), &self.clock, WalKind::Local);
        assert_eq!(self.shard.tenant("default").unwrap(), self.tenant);
    }

    fn batch(&self, records: &[(&str, &str, &str)]) -> Append {
        batch(self.tenant, records)
    }

    async fn put(&self, records: &[(&str, &str, &str)]) -> Arc<Appended> {
        self.shard.append(self.batch(records)).unwrap().durable().await.unwrap()
    }
}

fn open(dir: &std::path::Path, clock: &Arc<TestClock>, wal: WalKind) -> Shard {
    let storage = storage::Config { wal_file_bytes: 128 << 10, wal, ..storage::Config::new(dir) };
    let clock: SharedClock = Arc::<TestClock>::clone(clock);
    Shard::open(Config::default(), storage, Arc::new(RealDisk), clock).unwrap()
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
    let offsets: Vec<_> =
        world.shard.topics(world.tenant, None, false, 10).iter().map(|topic| topic.next_offset).collect();
    assert_eq!(offsets, [6, 2]);
}
