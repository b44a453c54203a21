//! Reads by key: out of segments, the WAL and memory they are the filtered scan.

use super::*;

/// What a reader of one key sees: offset, version, value.
type Seen = Vec<(u64, u64, Bytes)>;

fn seen(frames: &[Arc<StoredFrame>], topic: u64, key: &[u8], from_lsn: u64) -> Seen {
    let mut seen = Seen::new();
    for frame in frames {
        let body = frame.body.iter().flat_map(|body| body.records());
        for (((id, offset, version), (_, record)), lsn) in frame.positions().zip(body).zip(frame.header.first_lsn..) {
            if id == topic && record.key == Some(key) && lsn >= from_lsn {
                seen.push((offset, version, Bytes::copy_from_slice(record.value.unwrap())));
            }
        }
    }
    seen
}

/// Reads a key from a position to the end, as a subscription does.
async fn read(world: &World, topic: u64, key: &'static str, from_lsn: u64, bytes_max: usize) -> Seen {
    let reader = world.shard.reader();
    let (mut lsn, mut from_offset, mut all) = (from_lsn, 0, Seen::new());
    while lsn < reader.end() {
        let run = read_key(&reader, (lsn, bytes_max), topic, key, from_offset).await;
        assert!(run.next_lsn > lsn, "progress at {lsn}");
        all.extend(seen(&run.frames, topic, key.as_bytes(), lsn));
        from_offset = all.last().map_or(0, |(offset, ..)| offset + 1);
        lsn = run.next_lsn;
    }
    all
}

#[tokio::test]
async fn a_key_is_the_filtered_scan_wherever_its_records_lie() {
    let mut world = World::new();
    let value = "x".repeat(400);
    for round in 0..700_u32 {
        let (hot, rare) = (format!("hot{}", round % 7), format!("rare{}", round / 100));
        let own = format!("{round}/{value}");
        world.put(&[("t", &hot, &own), ("other", &hot, "elsewhere"), ("t", &rare, &own), ("t", "", &own)]).await;
    }
    until("segments are there", || world.shard.stats().wal_files <= 2);
    let topic = world.shard.topic(world.tenant, "t").unwrap().id;
    for life in 0..2 {
        let frames = world.frames().await;
        let end = world.shard.reader().end();
        for key in ["hot0", "hot6", "rare0", "rare3", "rare6", "absent"] {
            let wanted = seen(&frames, topic, key.as_bytes(), 0);
            assert_eq!(wanted.is_empty(), key == "absent");
            assert!(wanted.iter().map(|(_, version, _)| *version).eq(1..=wanted.len() as u64), "dense versions");
            for bytes_max in [1, 2_000, 1 << 20] {
                assert_eq!(read(&world, topic, key, 0, bytes_max).await, wanted, "life {life}, {key}, {bytes_max}");
            }
            for lsn in (0..end).step_by(331) {
                let rest = seen(&frames, topic, key.as_bytes(), lsn);
                assert_eq!(read(&world, topic, key, lsn, 5_000).await, rest, "life {life}, {key} from LSN {lsn}");
            }
            let (last, _) = world.shard.reader().last_offset(topic, key.as_bytes()).await.unwrap();
            assert_eq!(last, wanted.last().map(|(offset, ..)| *offset));
        }
        world.reopen().await;
    }
}

#[tokio::test]
async fn a_key_in_history_costs_its_records_and_not_the_topic() {
    let world = World::new();
    world.put(&[("filler", "first", "1")]).await;
    world.push_out_of_memory().await;
    let topic = world.shard.topic(world.tenant, "filler").unwrap().id;
    let run = read_key(&world.shard.reader(), (0, 1 << 20), topic, "first", 0).await;
    assert_eq!(run.frames.len(), 1, "one record, one frame");
    assert!(run.next_lsn > 20, "and all segments were looked into");
}

#[tokio::test]
async fn few_read_history_at_once_and_nobody_waits_for_them_at_the_end() {
    let world = World::new();
    world.put(&[("filler", "first", "1")]).await;
    world.push_out_of_memory().await;
    let topic = world.shard.topic(world.tenant, "filler").unwrap().id;
    let reader = world.shard.reader();
    let history = &world.shard.core.history;
    let turns = history.acquire_many(HISTORY_READS_MAX as u32).await.unwrap();
    let mut read = Box::pin(reader.disk(0, 1, |_| true));
    let mut read_key = Box::pin(reader.disk_key(0, 1, topic, "first".into(), 0));
    assert!(poll_once(&mut read).is_none() && poll_once(&mut read_key).is_none());
    super::read(&reader, reader.end() - 1, 1, |_| true).await;
    drop(turns);
    assert_eq!((read.await.unwrap().frames.len(), read_key.await.unwrap().frames.len()), (1, 1));
    assert_eq!(history.available_permits(), HISTORY_READS_MAX);
}

/// Looks at a future once.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut context) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn a_record_that_comes_while_its_key_is_looked_for_lies_behind_the_answer() {
    let world = World::new();
    world.put(&[("t", "other", "1")]).await;
    let topic = world.shard.topic(world.tenant, "t").unwrap().id;
    let reader = world.shard.reader();
    for round in 0..20 {
        let key = format!("new{round}");
        // Something to wait for, so that the record comes during the wait.
        let before = world.shard.append(world.batch(&[("t", "other", "2")])).unwrap();
        let looked_for = reader.last_offset(topic, key.as_bytes());
        let append = async { world.put(&[("t", &key, "3")]).await };
        let (answer, acked) = tokio::join!(biased; looked_for, append);
        let (last, next_lsn) = answer.unwrap();
        assert_eq!((last, next_lsn), (None, acked.first_lsn));
        assert!(reader.end() > next_lsn, "the end is no place to start from");
        before.durable().await.unwrap();
    }
}
