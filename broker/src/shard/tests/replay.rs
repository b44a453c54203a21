//! What a restart puts back together is what was there.

use super::*;

/// Everything a restart must know, in an order that can be compared.
fn normal(shard: &Shard) -> String {
    let snapshot = shard.core.lock().snapshot();
    let mut topics: Vec<_> = snapshot
        .catalog
        .iter()
        .map(|entry| Entry { durable_offset: None, durable_low: entry.low, ..entry.clone() })
        .collect();
    topics.sort_unstable_by_key(|entry| entry.id);
    let mut heads: Vec<_> = snapshot
        .heads
        .parts()
        .flat_map(|part| {
            part.map(|(topic, key, head)| (topic, key.to_vec(), head.version, head.last_offset)).collect::<Vec<_>>()
        })
        .collect();
    heads.sort_unstable();
    let mut windows: Vec<_> = snapshot.dedup.iter().map(|(tenant, id, window)| (tenant, id, window.clone())).collect();
    windows.sort_unstable_by_key(|(tenant, id, _)| (*tenant, *id));
    let mut samples: Vec<_> = snapshot.samples.iter().collect();
    samples.sort_unstable_by_key(|(topic, sample)| (*topic, sample.offset));
    let mut activations: Vec<_> = snapshot.activations.iter().collect();
    activations.sort_unstable_by_key(|(tenant, _)| **tenant);
    format!(
        "{} {} {:?} {topics:#?} {heads:#?} {windows:#?} {samples:#?} {} {activations:#?}",
        snapshot.lsn,
        snapshot.broker_time_ms,
        snapshot.catalog.tenants(),
        snapshot.samples.stride()
    )
}

async fn busy(world: &World, rounds: std::ops::Range<u64>) {
    let other = world.shard.tenant("other").unwrap();
    let value = "x".repeat(300);
    for round in rounds {
        world.clock.set_ms(1_000_000 + round * 7);
        let (topic, key) = (format!("t/{}", round % 5), format!("k{}", round % 17));
        let mut request =
            batch(if round % 3 == 0 { other } else { world.tenant }, &[(&topic, &key, &value), ("t", "", "v")]);
        request.outcome.generation = world.shard.live_generation(request.batch.tenant);
        request.producer =
            Some(ProducerStamp { id: 1 + round % 4, epoch: (round / 200) as u32, sequence: round % 200 });
        let ticket = world.shard.append(request).unwrap();
        if round % 10 == 0 {
            ticket.durable().await.unwrap();
        }
        if round % 50 == 0 {
            drop(world.shard.activate(other, 0, Bytes::from(format!("{round}"))).unwrap());
        }
    }
}

#[tokio::test]
async fn a_replayed_state_equals_the_one_that_was_written() {
    let mut world = World::new();
    busy(&world, 0..100).await;
    let before = normal(&world.shard);
    world.reopen().await;
    assert_eq!(normal(&world.shard), before);
}

#[tokio::test]
async fn a_state_from_a_checkpoint_equals_the_one_that_was_written() {
    let mut world = World::new();
    for life in 0..3 {
        busy(&world, life * 600..(life + 1) * 600).await;
        let checkpoints = || world.disk.object_names().iter().any(|name| name.starts_with("checkpoint/"));
        until("a checkpoint is there", checkpoints);
        let before = normal(&world.shard);
        world.reopen().await;
        assert_eq!(normal(&world.shard), before);
    }
}

#[tokio::test]
async fn a_checkpoint_of_another_version_or_cut_is_refused() {
    let world = World::new();
    busy(&world, 0..30).await;
    let snapshot = world.shard.core.lock().snapshot();
    let state = snapshot.encode();
    let restore = |state: Bytes| checkpoint::restore(0, &Config::default(), snapshot.lsn, state);
    assert!(restore(state.clone()).is_ok());
    assert!(matches!(restore(Bytes::new()), Err(ShardError::Replay { .. })));
    let cut = state.slice(..state.len() - 1);
    assert!(matches!(restore(cut), Err(ShardError::Replay { .. })));
}

#[tokio::test]
async fn a_frame_that_does_not_follow_is_refused() {
    let world = World::new();
    world.put(&[("a", "k", "1")]).await;
    world.put(&[("a", "k", "2")]).await;
    let frames = world.frames().await;
    let mut state = State::new(0, &Config::default());
    state.replay(&frames[0]).unwrap();
    assert!(matches!(state.replay(&frames[2]), Err(ShardError::Replay { .. })), "LSNs are left out");
    state.next_lsn = frames[2].header.first_lsn;
    assert!(matches!(state.replay(&frames[2]), Err(ShardError::Replay { .. })), "its topic was never made");
}
