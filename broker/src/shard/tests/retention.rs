//! What is old, beyond a size or truncated is gone for readers and, in time, from the disk; everything else outlives it.

use super::*;
use crate::{
    shard::retention::{Cause, Keeper},
    storage::StorageError,
};

/// What is charged for a record of 2 000 bytes, about.
const RECORD_BYTES: u64 = 2_000;

fn rule(topics: &str, age_s: u64, bytes: u64) -> RetentionRule {
    RetentionRule {
        topics: vec![TopicPattern::parse(topics).unwrap()],
        except: Vec::new(),
        age: (age_s > 0).then(|| Duration::from_secs(age_s)),
        bytes: (bytes > 0).then_some(bytes),
    }
}

impl World {
    fn name(topic: &str) -> TopicName {
        TopicName::parse(topic).unwrap()
    }

    async fn truncate(&self, topic: &str, before: u64) -> Result<Truncated, TruncateError> {
        self.shard.truncate(self.tenant, &Self::name(topic), before).await
    }

    fn low_offset(&self, topic: &str) -> u64 {
        let topic = self.shard.topic(self.tenant, topic).unwrap();
        assert_eq!(self.shard.reader().low_offset(topic.id), topic.low_offset);
        topic.low_offset
    }

    /// Looks at everything once, with a checkpoint before.
    async fn look(&self, keeper: &mut Keeper) {
        let snapshot = self.shard.core.lock().snapshot();
        self.shard.core.waiter(snapshot.lsn).durable().await.unwrap();
        self.shard.core.log.checkpoint(snapshot.lsn, snapshot.encode()).unwrap();
        keeper.look().await.unwrap();
    }

    fn keeper(&self) -> Keeper {
        Keeper::new(Arc::clone(&self.shard.core))
    }

    /// Waits until all that can lie in segments does.
    fn consolidated(&self) {
        until("two WAL files are left", || self.shard.core.log.usage().1 <= 2);
    }

    fn segments(&self) -> usize {
        self.disk.object_names().iter().filter(|name| name.starts_with("seg/")).count()
    }

    /// Records of 2 000 bytes, each a batch; a second of time between them.
    async fn fill(&self, topic: &str, records: u64) {
        let value = "x".repeat(2_000);
        for _ in 0..records {
            let now_ms = self.clock.0.load(Ordering::SeqCst);
            self.clock.set_ms(now_ms + 1_000);
            self.put(&[(topic, "k", &value)]).await;
        }
    }

    /// Offsets of a topic as a reader gets them, from the start of the log.
    async fn offsets(&self, topic: &str) -> Vec<u64> {
        let reader = self.shard.reader();
        let id = self.shard.topic(self.tenant, topic).unwrap().id;
        let mut offsets = Vec::new();
        let mut lsn = 0;
        while lsn < reader.end() {
            let run = read(&reader, lsn, 10_000, move |wanted| wanted == id).await;
            assert!(run.next_lsn > lsn, "progress at {lsn}");
            lsn = run.next_lsn;
            let positions = run.frames.iter().flat_map(|frame| frame.positions().collect::<Vec<_>>());
            offsets.extend(positions.filter(|position| position.0 == id).map(|position| position.1));
        }
        offsets.retain(|&offset| offset >= self.low_offset(topic));
        offsets
    }
}

#[tokio::test]
async fn a_time_is_an_lsn_in_memory_wal_and_segments() {
    let mut world = World::new();
    world.fill("a", 120).await;
    // Several batches of one instant, and a clock that goes back.
    for _ in 0..3 {
        world.put(&[("a", "k", "same")]).await;
    }
    world.clock.set_ms(5);
    world.put(&[("a", "k", "earlier")]).await;
    until("segments are there", || world.segments() > 0);
    for _ in 0..2 {
        let frames = world.frames().await;
        let reader = world.shard.reader();
        assert!(world.shard.core.log.tail(0, 1).is_none());
        for time_ms in (999_000..=1_125_000).step_by(500) {
            let wanted = frames.iter().find(|frame| frame.header.broker_time_ms >= time_ms);
            let wanted = wanted.map_or_else(|| reader.end(), |frame| frame.header.first_lsn);
            assert_eq!(reader.lsn_at_time(time_ms).await.unwrap(), wanted, "{time_ms}");
        }
        assert_eq!(reader.lsn_at_time(i64::MIN).await.unwrap(), reader.first_lsn());
        assert_eq!(reader.lsn_at_time(i64::MAX).await.unwrap(), reader.end());
        world.reopen().await;
    }
}

#[tokio::test]
async fn without_a_disk_a_time_is_found_in_memory() {
    let world = World::in_memory();
    world.fill("a", 5).await;
    let reader = world.shard.reader();
    let frames = world.frames().await;
    let third = &frames[frames.len() - 3];
    assert_eq!(reader.lsn_at_time(third.header.broker_time_ms).await.unwrap(), third.header.first_lsn);
    assert_eq!(reader.lsn_at_time(i64::MAX).await.unwrap(), reader.end());
}

#[tokio::test]
async fn what_is_truncated_is_gone_and_stays_gone_and_the_rest_goes_on() {
    let mut world = World::new();
    world.put(&[("a", "old", "1"), ("b", "k", "2"), ("a", "k", "3"), ("a", "k", "4")]).await;
    let cut = world.truncate("a", 2).await.unwrap();
    assert_eq!((cut.low_offset_before, cut.topic.low_offset, cut.topic.next_offset), (0, 2, 3));
    for _ in 0..2 {
        assert_eq!((world.offsets("a").await, world.offsets("b").await), (vec![2], vec![0]));
        // Versions, conditions and offsets know nothing of it.
        let conditions = vec![condition("a", "old", Expect::Version(1)), condition("a", "old", Expect::LastOffset(0))];
        let refused =
            Append { conditions: vec![condition("a", "old", Expect::Absent)], ..world.batch(&[("a", "old", "x")]) };
        assert!(matches!(world.shard.append(refused), Err(Refusal::Conflict { version: 1, .. })));
        drop(
            world
                .shard
                .append(Append { conditions, ..world.batch(&[("c", "k", "x")]) })
                .unwrap()
                .durable()
                .await
                .unwrap(),
        );
        world.reopen().await;
    }
    assert_eq!(world.put(&[("a", "old", "5")]).await.runs, [appended(0, 3, &[2])]);
    // Less than is gone already changes nothing; all is no error; more is.
    let end = world.shard.reader().end();
    let cut = world.truncate("a", 1).await.unwrap();
    assert_eq!((cut.low_offset_before, cut.topic.low_offset), (2, 2));
    assert_eq!(world.shard.reader().end(), end, "nothing was written");
    assert_eq!(world.truncate("a", 4).await.unwrap().topic.low_offset, 4);
    assert_eq!(world.offsets("a").await.len(), 0);
    let beyond = world.truncate("a", 5).await.unwrap_err();
    assert_eq!((beyond.code().name(), beyond.to_string().contains("ends at offset 4")), ("OFFSET_OUT_OF_RANGE", true));
    assert_eq!(world.truncate("nowhere", 0).await.unwrap_err().code().name(), "TOPIC_UNKNOWN");
    assert_eq!(world.shard.retention_stats().moves[Cause::Truncate as usize], 1, "since the last start");
}

#[tokio::test]
async fn a_gap_begins_exactly_where_records_are_gone() {
    let world = World::new();
    let first = world.put(&[("a", "k", "1"), ("b", "k", "2"), ("a", "k", "3"), ("b", "k", "4")]).await.first_lsn;
    let reader = world.shard.reader();
    let id = world.shard.topic(world.tenant, "a").unwrap().id;
    let seen = reader.low_changes();
    world.truncate("a", 1).await.unwrap();
    let gaps = |from_lsn, seen| reader.gaps(from_lsn, seen, 10, |topic, _| topic == id);
    assert_eq!(gaps(first, seen), [(World::name("a"), 1)]);
    assert!(gaps(first + 1, seen).is_empty(), "the only record that is gone lies before");
    world.truncate("a", 2).await.unwrap();
    assert_eq!(gaps(first + 1, seen), [(World::name("a"), 2)]);
    assert_eq!((gaps(first + 3, seen).len(), gaps(first, reader.low_changes()).len()), (0, 0));
    assert!(reader.gaps(first, seen, 0, |_, _| true).is_empty());
}

#[tokio::test]
async fn what_is_too_old_goes_with_the_segments_it_lies_in() {
    let mut world = World::new();
    world.fill("a/x", 100).await;
    world.fill("keep", 1).await;
    world.fill("a/x", 100).await;
    world.consolidated();
    let (reader, before) = (world.shard.reader(), world.segments());
    world.shard.set_retention(world.tenant, vec![rule("a/*", 150, 0)]);
    let mut keeper = world.keeper();
    world.look(&mut keeper).await;
    // Broker time stands at the last record: those of 150 seconds before it are young enough.
    assert_eq!((world.low_offset("a/x"), world.low_offset("keep")), (50, 0));
    assert_eq!(world.offsets("a/x").await, (50..200).collect::<Vec<_>>());
    assert!(world.segments() < before, "{before}");
    let stats = world.shard.retention_stats();
    assert_eq!(stats.segments_dropped, (before - world.segments()) as u64);
    assert!(stats.bytes_dropped > 0 && stats.segments as usize == world.segments());
    assert_eq!(stats.moves[Cause::Age as usize], 1);
    assert!(reader.first_lsn() > 0 && reader.lsn_at_time(0).await.unwrap() == reader.first_lsn());
    // The segment of the topic that keeps for ever stays, with a hole behind it.
    let now_ms = world.clock.0.load(Ordering::SeqCst);
    world.clock.set_ms(now_ms + 120_000);
    world.look(&mut keeper).await;
    assert_eq!((world.low_offset("a/x"), world.offsets("keep").await), (169, vec![0]));
    for _ in 0..2 {
        assert_eq!(world.offsets("a/x").await, (169..200).collect::<Vec<_>>());
        let key: Vec<_> = keys_of(&world, "keep", "k").await;
        assert_eq!(key, [0]);
        world.reopen().await;
        assert_eq!(world.low_offset("a/x"), 169, "also after a restart");
    }
    world.fill("a/x", 1).await;
    assert_eq!(world.offsets("a/x").await.last(), Some(&200), "and offsets go on");
}

/// Offsets of a key, read by key from the start of the log.
async fn keys_of(world: &World, topic: &str, key: &str) -> Vec<u64> {
    let reader = world.shard.reader();
    let id = world.shard.topic(world.tenant, topic).unwrap().id;
    let mut offsets = Vec::new();
    let mut lsn = 0;
    while lsn < reader.end() {
        let run = read_key(&reader, (lsn, 10_000), id, key, 0).await;
        assert!(run.next_lsn > lsn, "progress at {lsn}");
        lsn = run.next_lsn;
        let positions = run.frames.iter().flat_map(|frame| frame.positions().collect::<Vec<_>>());
        offsets.extend(positions.filter(|position| position.0 == id).map(|position| position.1));
    }
    offsets
}

#[tokio::test]
async fn what_is_beyond_a_size_goes_and_the_size_is_kept() {
    let mut world = World::new();
    world.fill("a", 200).await;
    world.fill("b", 10).await;
    let max = 60 * RECORD_BYTES;
    world.shard.set_retention(world.tenant, vec![rule(">", 0, max)]);
    let mut keeper = world.keeper();
    for round in 0..3 {
        world.look(&mut keeper).await;
        let kept = world.next_offset("a") - world.low_offset("a");
        // A record has a frame around it: a little fewer fit.
        assert!((50..=60).contains(&kept), "{kept} records are kept");
        assert_eq!(world.low_offset("b"), 0, "a topic under its size is left alone");
        let kept: Vec<u64> = (world.low_offset("a")..world.next_offset("a")).collect();
        assert_eq!(world.offsets("a").await, kept);
        let low = world.low_offset("a");
        world.fill("a", 1).await;
        world.look(&mut keeper).await;
        assert_eq!(world.low_offset("a"), low, "a little over is left alone");
        world.fill("a", 40).await;
        if round == 1 {
            world.reopen().await;
            world.shard.set_retention(world.tenant, vec![rule(">", 0, max)]);
            keeper = world.keeper();
        }
    }
    assert!(world.shard.retention_stats().segments_dropped > 0);
}

#[tokio::test]
async fn the_first_rule_that_matches_decides_and_new_rules_and_topics_count() {
    let world = World::new();
    world.fill("a/x", 20).await;
    world.shard.set_retention(world.tenant, vec![rule("a/x", 1_000, 0), rule("a/>", 5, 0)]);
    let mut keeper = world.keeper();
    keeper.look().await.unwrap();
    assert_eq!(world.low_offset("a/x"), 0);
    world.fill("a/y", 20).await;
    keeper.look().await.unwrap();
    assert_eq!((world.low_offset("a/x"), world.low_offset("a/y")), (0, 14), "records of the last 5 seconds stay");
    let mut excepted = rule("a/>", 5, 0);
    excepted.except = vec![TopicPattern::parse("a/y").unwrap()];
    world.shard.set_retention(world.tenant, vec![excepted]);
    world.fill("b", 20).await;
    keeper.look().await.unwrap();
    assert_eq!((world.low_offset("a/x"), world.low_offset("a/y")), (20, 14));
    let other = world.shard.tenant("other").unwrap();
    world.shard.set_retention(other, vec![rule(">", 1, 0)]);
    world.shard.set_retention(world.tenant, Vec::new());
    world.fill("b", 20).await;
    keeper.look().await.unwrap();
    assert_eq!(world.low_offset("b"), 0, "nobody says anything of it");
}

#[tokio::test]
async fn a_result_that_may_be_asked_for_holds_its_segment() {
    let mut world = World::new();
    let request = |world: &World| Append { producer: stamp(0, 0), ..world.batch(&[("a", "k", "1"), ("b", "k", "2")]) };
    let first = world.shard.append(request(&world)).unwrap().durable().await.unwrap();
    world.fill("a", 120).await;
    until("segments are there", || world.segments() > 0);
    world.consolidated();
    world.truncate("a", 121).await.unwrap();
    world.truncate("b", 1).await.unwrap();
    let mut keeper = world.keeper();
    world.look(&mut keeper).await;
    assert_eq!(world.offsets("b").await.len(), 0, "for readers it is gone");
    let held = world.shard.retention_stats().held_bytes;
    assert!(held > 0 && world.shard.core.log.first_lsn() == 0);
    for _ in 0..2 {
        let again = world.shard.append(request(&world)).unwrap().durable().await.unwrap();
        assert_eq!(*again, Appended { duplicate: true, ..Appended::clone(&first) });
        world.reopen().await;
    }
    // An hour later it is not told any more, and need not be kept.
    world.clock.set_ms(1_000_000 + WINDOW_AGE_MS as u64 + 1_000_000);
    let mut keeper = world.keeper();
    world.look(&mut keeper).await;
    assert!(world.shard.core.log.first_lsn() > 0);
    assert!(matches!(world.shard.append(request(&world)), Err(Refusal::Expired { .. })));
}

#[tokio::test]
async fn a_reader_in_a_segment_that_is_dropped_goes_on_behind_it() {
    let world = World::new();
    world.fill("a", 200).await;
    world.consolidated();
    let log = world.shard.core.log.clone();
    // Open, and none of its blocks in memory.
    let id = world.shard.topic(world.tenant, "a").unwrap().id;
    assert!(!log.stamps(0, &|topic| topic == id).unwrap().stamps.is_empty());
    world.truncate("a", 199).await.unwrap();
    let mut keeper = world.keeper();
    world.look(&mut keeper).await;
    let first = log.first_lsn();
    assert!(first > 0);
    let run = log.read(0, 10_000, &|_| true).unwrap();
    assert_eq!((run.frames.len(), run.next_lsn), (0, first));
    let stamps = log.stamps(1, &|_| true).unwrap();
    assert_eq!((stamps.stamps.len(), stamps.next_lsn), (0, first));
    assert!(matches!(log.frame(0), Err(StorageError::Gone { lsn: 0, .. })));
    assert_eq!(world.offsets("a").await, [199]);
}

#[tokio::test]
async fn a_log_in_memory_is_truncated_too() {
    let world = World::in_memory();
    world.fill("a", 5).await;
    assert_eq!(world.truncate("a", 3).await.unwrap().topic.low_offset, 3);
    assert_eq!(world.low_offset("a"), 3);
    world.keeper().look().await.unwrap();
}

/// The walk counted bytes from where the other had left off, and cut off all that was left.
#[tokio::test]
async fn two_that_cut_one_topic_at_once_do_not_cut_twice() {
    for _ in 0..8 {
        let world = World::new();
        world.fill("a", 200).await;
        world.consolidated();
        let max = 60 * RECORD_BYTES;
        world.shard.set_retention(world.tenant, vec![rule(">", 0, max)]);
        let snapshot = world.shard.core.lock().snapshot();
        world.shard.core.log.checkpoint(snapshot.lsn, snapshot.encode()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let mut keeper = world.keeper();
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    runtime.block_on(keeper.look()).unwrap();
                });
            }
        });
        let kept = world.next_offset("a") - world.low_offset("a");
        assert!((50..=60).contains(&kept), "{kept} records are kept");
    }
}

#[tokio::test]
async fn a_shard_that_ends_does_not_wait_for_a_look() {
    let world = World::new();
    world.fill("a", 20).await;
    // The rule comes when the shard's own thread has ended: it must not be faster.
    world.shard.close().await;
    world.shard.set_retention(world.tenant, vec![rule(">", 5, 0)]);
    let looked = world.keeper().look().await;
    assert!(looked.is_err(), "{looked:?}");
    let low = world.truncate("a", 20).await;
    assert_eq!(low.unwrap_err().code().name(), "SHUTTING_DOWN");
}
