//! Dedup: a retry gets the stored result, whatever happened in between.

use super::*;

fn from(world: &World, epoch: u32, sequence: u64, value: &str) -> Append {
    Append { producer: stamp(epoch, sequence), ..world.batch(&[("a", "k", value)]) }
}

#[tokio::test]
async fn a_retry_gets_the_stored_result_in_flight_after_a_restart_and_out_of_a_segment() {
    let mut world = World::new();
    let first = world.shard.append(from(&world, 0, 0, "1")).unwrap();
    let in_flight = world.shard.append(from(&world, 0, 0, "1")).unwrap().durable().await.unwrap();
    let first = first.durable().await.unwrap();
    let again = Appended { duplicate: true, ..Appended::clone(&first) };
    assert_eq!((*in_flight).clone(), again);
    world.reopen().await;
    let known = world.shard.known(world.tenant, stamp(0, 0).unwrap()).unwrap().unwrap();
    assert_eq!(*known.durable().await.unwrap(), again);
    world.push_out_of_memory().await;
    assert_eq!(*world.shard.append(from(&world, 0, 0, "1")).unwrap().durable().await.unwrap(), again);
    world.reopen().await;
    assert_eq!(*world.shard.append(from(&world, 0, 0, "1")).unwrap().durable().await.unwrap(), again);
    assert_eq!(world.next_offset("a"), 1);
}

#[tokio::test]
async fn a_retry_after_a_change_of_the_chain_gets_the_result_of_the_first_try() {
    let world = World::new();
    let first = world.shard.append(from(&world, 0, 0, "1")).unwrap().durable().await.unwrap();
    world.shard.activate(world.tenant, 0, Bytes::from_static(b"{}")).unwrap().durable().await.unwrap();
    let again = world.shard.append(from(&world, 0, 0, "1")).unwrap().durable().await.unwrap();
    assert_eq!((again.generation, again.first_lsn, again.duplicate), (0, first.first_lsn, true));
    let stale = world.shard.append(from(&world, 0, 1, "2"));
    assert!(matches!(stale, Err(Refusal::StaleGeneration { live: 1 })));
}

#[tokio::test]
async fn a_batch_that_admits_nothing_is_remembered_for_its_producer_and_takes_one_lsn() {
    let mut world = World::new();
    let mut request = from(&world, 0, 0, "1");
    request.outcome.content = Content::Rebuilt(vec![]);
    request.outcome.refused = vec![refused(0)];
    let anonymous = Append { producer: None, ..request.clone() };
    let before = world.shard.stats().next_lsn;
    let acked = world.shard.append(request.clone()).unwrap().durable().await.unwrap();
    assert_eq!((acked.first_lsn, world.shard.stats().next_lsn), (before, before + 1));
    assert_eq!(acked.runs, [AckedRun::Refused(refused(0))]);
    assert!(world.shard.core.log.frame(before).unwrap().body.is_none());
    let nothing = world.shard.append(anonymous).unwrap().durable().await.unwrap();
    assert_eq!((&nothing.runs, world.shard.stats().next_lsn), (&acked.runs, before + 1), "nothing to remember");
    world.reopen().await;
    let again = world.shard.append(request).unwrap().durable().await.unwrap();
    assert_eq!(*again, Appended { duplicate: true, ..Appended::clone(&acked) });
    assert_eq!(world.shard.topic(world.tenant, "a"), None);
}

#[tokio::test]
async fn old_skipped_and_fenced_sequences_are_refused_with_their_codes() {
    let mut world = World::new();
    for sequence in 0..1100 {
        drop(world.shard.append(from(&world, 1, sequence, "v")).unwrap());
    }
    world.reopen().await;
    let code = |epoch, sequence| {
        let refusal = world.shard.append(from(&world, epoch, sequence, "v")).unwrap_err();
        assert_eq!(world.shard.known(1, stamp(epoch, sequence).unwrap()).unwrap_err().code(), refusal.code());
        (refusal.code().name(), refusal.wait().is_some())
    };
    assert_eq!(code(1, 10), ("PRODUCER_SEQUENCE_EXPIRED", true));
    assert_eq!(code(1, 1100 + 1025), ("PRODUCER_SEQUENCE_GAP", true));
    assert_eq!(code(0, 1100), ("PRODUCER_FENCED", true));
    assert_eq!(code(2, 1025), ("PRODUCER_SEQUENCE_GAP", true));
    assert!(world.shard.append(from(&world, 1, 1100, "v")).unwrap().durable().await.is_ok());
    assert!(world.shard.append(from(&world, 2, 0, "v")).unwrap().durable().await.is_ok());
    assert_eq!(code(1, 1101), ("PRODUCER_FENCED", true));
}

#[tokio::test]
async fn a_result_is_kept_for_an_hour_of_broker_time() {
    let world = World::new();
    world.shard.append(from(&world, 0, 0, "1")).unwrap().durable().await.unwrap();
    world.clock.set_ms(1_000_000 + 3_600_000);
    assert!(world.shard.known(1, stamp(0, 0).unwrap()).unwrap().is_some());
    world.clock.set_ms(1_000_000 + 3_600_001);
    assert_eq!(world.shard.known(1, stamp(0, 0).unwrap()).unwrap_err().code().name(), "PRODUCER_SEQUENCE_EXPIRED");
}
