//! The byte budget against clients that announce, stall, and take no answers.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use super::*;

/// Nothing here waits so long.
const NEVER: Duration = Duration::from_secs(3_600);
/// Room for two large batches that arrive, and for a third that is whole.
const BUDGET: usize = 1 << 20;
const LARGE: usize = 350 << 10;

fn patient() -> Config {
    Config { frame_time_max: NEVER, step_time_max: NEVER, ..Config::default() }
}

/// A client with a budget of its own, as each connection has.
fn connect(world: &World, config: Config) -> Client {
    let mut session = world.session.clone();
    session.budget = world.budget.connection(BUDGET, NEVER);
    world.connect_as(session, config)
}

fn large() -> Bytes {
    batch(&ProduceHead::default(), "a", LARGE)
}

/// The first part of a frame, and the rest.
fn cut(frame: &Bytes, at: usize) -> (&[u8], &[u8]) {
    frame.split_at(at)
}

/// Waits until the stalled frames of so many clients are read as far as they go.
async fn taken(world: &World, bytes: usize) {
    while world.budget.taken() < bytes {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_frame_that_was_announced_and_not_sent_holds_nothing() {
    let world = World::new(BUDGET, NEVER);
    let (frame, mut stalled) = (large(), Vec::new());
    for _ in 0..64 {
        let mut client = connect(&world, patient());
        client.send(cut(&frame, 100).0).await;
        stalled.push(client);
    }
    let mut client = connect(&world, patient());
    client.send(&frame).await;
    assert_eq!(client.offset().await, 0);
    assert!(stalled.iter().all(|client| !client.served.is_finished()), "they stalled all the time");
}

#[tokio::test]
async fn small_batches_pass_while_half_ones_fill_their_share() {
    let world = World::new(BUDGET, NEVER);
    let (frame, mut stalled) = (large(), Vec::new());
    for _ in 0..8 {
        let mut client = connect(&world, patient());
        client.send(cut(&frame, LARGE - 1).0).await;
        stalled.push(client);
    }
    taken(&world, BUDGET / 2).await;
    let mut client = connect(&world, patient());
    for offset in 0..100 {
        client.send(&batch(&ProduceHead::default(), "a", 60 << 10)).await;
        assert_eq!(client.offset().await, offset);
    }
    assert!(stalled.iter().all(|client| !client.served.is_finished()), "they stalled all the time");
}

#[tokio::test]
async fn half_frames_that_fill_the_budget_are_all_completed() {
    let world = World::new(BUDGET, NEVER);
    let (frame, mut clients) = (large(), Vec::new());
    for _ in 0..16 {
        let mut client = connect(&world, patient());
        client.send(cut(&frame, LARGE / 2).0).await;
        clients.push(client);
    }
    taken(&world, BUDGET / 2).await;
    for client in &mut clients {
        client.send(cut(&frame, LARGE / 2).1).await;
    }
    let mut offsets = Vec::new();
    for client in &mut clients {
        offsets.push(client.offset().await);
    }
    offsets.sort_unstable();
    assert_eq!(offsets, (0..16).collect::<Vec<_>>());
    world.budget.idle().await;
}

#[tokio::test]
async fn a_frame_that_stalls_makes_way_for_those_that_wait() {
    let world = World::new(BUDGET, NEVER);
    let config = Config { step_time_max: Duration::from_millis(50), ..patient() };
    let (frame, mut stalled) = (large(), Vec::new());
    // They fill what half frames may hold, the seat included.
    for _ in 0..4 {
        let mut client = connect(&world, config.clone());
        client.send(cut(&frame, LARGE - 1).0).await;
        stalled.push(client);
    }
    taken(&world, BUDGET / 2).await;
    let mut client = connect(&world, config.clone());
    for offset in 0..8 {
        client.send(&frame).await;
        assert_eq!(client.offset().await, offset);
    }
    let mut ended = 0;
    for mut client in stalled {
        client.stop.send_replace(true);
        match client.message().await {
            Some(ServerBody::Failure(failure)) if failure.known_code() == Some(Code::Overloaded) => {
                assert!(failure.retry_after_ms > 0, "the client tries again");
                ended += 1;
            }
            Some(ServerBody::Failure(failure)) => assert_eq!(failure.known_code(), Some(Code::ShuttingDown)),
            other => panic!("no last word: {other:?}"),
        }
    }
    assert!(ended > 0, "one made way");
}

#[tokio::test]
async fn a_small_batch_that_comes_slowly_need_not_make_way() {
    let world = World::new(BUDGET, NEVER);
    let config = Config { step_time_max: Duration::from_millis(50), ..patient() };
    let small = batch(&ProduceHead::default(), "a", 20 << 10);
    let mut slow = connect(&world, config.clone());
    slow.send(cut(&small, 100).0).await;
    let (frame, mut stalled) = (large(), Vec::new());
    for _ in 0..4 {
        let mut client = connect(&world, config.clone());
        client.send(cut(&frame, LARGE - 1).0).await;
        stalled.push(client);
    }
    taken(&world, BUDGET / 2).await;
    let mut client = connect(&world, config);
    client.send(&frame).await;
    assert_eq!(client.offset().await, 0, "somebody made way");
    slow.send(cut(&small, 100).1).await;
    assert_eq!(slow.offset().await, 1, "who holds nothing did not");
}

/// A way to a client that takes nothing.
struct NoRoom;

impl AsyncWrite for NoRoom {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Pending
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn answers_that_nobody_takes_hold_no_budget() {
    let world = World::new(BUDGET, NEVER);
    let config = Config { in_flight_max: 8, ..patient() };
    let produce = world.produce(config);
    let frames = large().repeat(12);
    let (_stop, stopping) = watch::channel(false);
    let session = world.session.clone();
    let deaf = tokio::spawn(async move {
        let mut reader = frames.as_slice();
        produce.serve(&session, &mut reader, &mut NoRoom, stopping).await;
    });
    // As many as may wait for their ack are in the log, and no more.
    while world.shard.topic(world.session.tenant, "t").is_none_or(|topic| topic.next_offset < 8) {
        tokio::task::yield_now().await;
    }
    world.budget.idle().await;
    assert_eq!(world.metrics.produce_batches.value(), 8);
    assert!(!deaf.is_finished());
    deaf.abort();
}
