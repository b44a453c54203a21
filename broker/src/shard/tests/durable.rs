//! Nothing is told before it is durable; activations; readers; the end of a shard.

use std::task::{Context, Poll, Waker};

use super::*;

#[tokio::test]
async fn while_nothing_becomes_durable_nothing_is_told() {
    let world = World::new();
    world.put(&[("a", "k", "1")]).await;
    let end = world.shard.reader().end();
    world.disk.fail_syncs(true);
    let ticket = world.shard.append(world.batch(&[("a", "k", "2"), ("b", "k", "3")])).unwrap();
    let conflict = world.shard.append(Append {
        conditions: vec![condition("a", "k", Expect::Version(1))],
        ..world.batch(&[("a", "k", "4")])
    });
    let error = ticket.durable().await.unwrap_err();
    assert_eq!(error.code().name(), "STORAGE_FAILED");
    // Either it was judged in flight and waits in vain, or the log had failed before.
    match conflict.unwrap_err() {
        Refusal::Conflict { wait, .. } => assert!(wait.durable().await.is_err()),
        refusal => assert_eq!(refusal.code().name(), "STORAGE_FAILED"),
    }
    assert_eq!(world.shard.topic(world.tenant, "b"), None);
    assert_eq!(world.next_offset("a"), 1);
    assert_eq!(world.shard.reader().end(), end);
    assert!(read(&world.shard.reader(), end, 1000, |_| true).await.frames.is_empty());
    assert!(world.shard.reader().wait(end).await.is_err());
    assert_eq!(world.shard.append(world.batch(&[("a", "k", "5")])).unwrap_err().code().name(), "STORAGE_FAILED");
    assert!(world.shard.failed().is_some());
}

#[tokio::test]
async fn a_full_disk_has_its_own_code() {
    let world = World::new();
    world.disk.limit_free_bytes(Some(0));
    let value = "x".repeat(10_000);
    let code = loop {
        match world.shard.append(world.batch(&[("a", "k", &value)])) {
            Err(refusal) => break refusal.code(),
            Ok(ticket) => {
                if let Err(error) = ticket.durable().await {
                    break error.code();
                }
            }
        }
    };
    assert_eq!(code.name(), "STORAGE_FULL");
}

#[tokio::test]
async fn an_activation_parts_the_log_and_survives_a_restart() {
    let mut world = World::new();
    let under = |generation: u64, world: &World| {
        let mut request = world.batch(&[("a", "k", "v")]);
        request.outcome.generation = generation;
        request
    };
    let before = world.shard.append(under(0, &world)).unwrap();
    let first = world.shard.activate(world.tenant, 0, Bytes::from_static(b"one")).unwrap();
    assert_eq!((first.generation(), world.shard.live_generation(world.tenant)), (1, 1));
    assert!(matches!(world.shard.append(under(0, &world)), Err(Refusal::StaleGeneration { live: 1 })));
    let behind = world.shard.append(under(1, &world)).unwrap();
    let lost = world.shard.activate(world.tenant, 7, Bytes::from_static(b"race"));
    assert!(matches!(lost, Err(Refusal::GenerationChanged { live: 1, .. })));
    let second = world.shard.activate(world.tenant, 1, Bytes::from_static(b"two")).unwrap().durable().await.unwrap();
    let (before, first, behind) =
        (before.durable().await.unwrap(), first.durable().await.unwrap(), behind.durable().await.unwrap());
    assert!(before.first_lsn < first.lsn && first.lsn < behind.first_lsn && behind.first_lsn < second.lsn);
    assert_eq!((before.generation, behind.generation), (0, 1));
    assert_eq!(first.topics[0].next_offset, 1, "the first offset under the new generation");
    for frame in world.frames().await.iter().filter(|frame| frame.header.tenant == world.tenant) {
        assert_eq!(frame.header.generation, u64::from(frame.header.first_lsn > first.lsn));
    }
    let expected = Activation { generation: 2, lsn: second.lsn, record: Bytes::from_static(b"two") };
    assert_eq!(world.shard.activation(world.tenant), Some(expected.clone()));
    let other = world.shard.tenant("other").unwrap();
    world.reopen().await;
    assert_eq!(world.shard.activation(world.tenant), Some(expected));
    assert_eq!((world.shard.live_generation(world.tenant), world.shard.live_generation(other)), (2, 0));
}

#[tokio::test]
async fn a_reader_follows_in_memory_and_one_that_fell_behind_reads_the_disk() {
    let world = World::new();
    let reader = world.shard.reader();
    let mut waiting = Box::pin(reader.wait(reader.end()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    world.put(&[("a", "k", "1"), ("b", "k", "2")]).await;
    assert!(matches!(waiting.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    world.push_out_of_memory().await;
    let id = world.shard.topic(world.tenant, "b").unwrap().id;
    let from = reader.lsn_of(id, 0).unwrap();
    let run = read(&reader, from, 1, move |topic| topic == id).await;
    assert_eq!(run.frames.len(), 1);
    let filler = world.shard.topic(world.tenant, "filler").unwrap();
    let mut offsets = Vec::new();
    let mut lsn = reader.lsn_of(filler.id, 0).unwrap();
    while lsn < reader.end() {
        let run = read(&reader, lsn, 5_000, move |topic| topic == filler.id).await;
        assert!(run.next_lsn > lsn);
        lsn = run.next_lsn;
        let positions = run.frames.iter().flat_map(|frame| frame.positions().collect::<Vec<_>>());
        offsets.extend(positions.filter(|position| position.0 == filler.id).map(|position| position.1));
    }
    assert_eq!(offsets, (0..filler.next_offset).collect::<Vec<_>>());
    assert_eq!(reader.lsn_of(999, 0), None);
}

#[tokio::test]
async fn a_closed_shard_has_made_all_it_took_durable_and_takes_no_more() {
    let mut world = World::new();
    let tickets: Vec<_> = (0..50).map(|_| world.shard.append(world.batch(&[("a", "k", "v")])).unwrap()).collect();
    world.shard.close().await;
    for ticket in tickets {
        ticket.durable().await.unwrap();
    }
    assert!(matches!(world.shard.append(world.batch(&[("a", "k", "v")])), Err(Refusal::ShuttingDown)));
    assert_eq!(world.shard.reader().wait(1 << 40).await.unwrap_err().code().name(), "SHUTTING_DOWN");
    assert_eq!(world.frames().await.len(), 51, "reads still work");
    world.reopen().await;
    assert_eq!(world.next_offset("a"), 50);
}

#[tokio::test]
async fn without_a_disk_all_works_but_nothing_stays() {
    let world = World::in_memory();
    let acked = world.put(&[("a", "k", "1"), ("a", "k", "2")]).await;
    assert_eq!(acked.runs, [appended(0, 0, &[1, 2])]);
    assert_eq!(world.frames().await.len(), 2);
    world.shard.close().await;
}

#[test]
fn open_and_close_need_no_runtime_around_them_and_mind_none() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    drop(World::new());
    runtime.block_on(async { drop(World::new()) });
}

/// The bound behind every other one: more than this never waits for a disk that is too slow.
#[tokio::test]
async fn a_full_queue_refuses_whole_batches_and_leaves_nothing_of_them() {
    let world = World::new();
    world.put(&[("t", "k", "first")]).await;
    let held = world.disk.hold_syncs();
    let value = "x".repeat(40_000);
    let mut tickets = Vec::new();
    let refusal = loop {
        match world.shard.append(world.batch(&[("t", "k", &value)])) {
            Ok(ticket) => tickets.push(ticket),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal.code().name(), "OVERLOADED");
    assert!(refusal.wait().is_none(), "told at once");
    let queued = world.shard.queued_bytes();
    assert!(queued <= QUEUE_BYTES && queued > QUEUE_BYTES - 45_000, "{queued}");
    let other = world.shard.append(world.batch(&[("other", "k", &value)])).unwrap_err();
    assert_eq!(other.code().name(), "OVERLOADED");
    drop(held);
    let mut next = 1;
    for ticket in tickets {
        let appended = ticket.durable().await.unwrap();
        assert!(matches!(appended.runs[..], [AckedRun::Appended { first_offset, .. }] if first_offset == next));
        next += 1;
    }
    world.put(&[("t", "k", "last")]).await;
    assert_eq!(world.next_offset("t"), next + 1, "what was refused took no offset");
    assert!(world.shard.topic(world.tenant, "other").is_none(), "nor a topic");
}
