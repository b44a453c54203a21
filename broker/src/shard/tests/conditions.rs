//! Conditions: exactly one winner, judged on what is in flight, answered when that is durable.

use super::*;

fn on(world: &World, key: &str, expect: Expect) -> Append {
    Append { conditions: vec![condition("a", key, expect)], ..world.batch(&[("a", key, "v")]) }
}

#[tokio::test]
async fn of_many_with_the_same_expectation_one_wins_also_before_anything_is_durable() {
    let world = World::new();
    for version in 0..20 {
        let tries: Vec<_> = (0..8).map(|_| world.shard.append(on(&world, "k", Expect::Version(version)))).collect();
        assert_eq!(tries.iter().filter(|tried| tried.is_ok()).count(), 1, "version {version}");
        for refusal in tries.into_iter().filter_map(Result::err) {
            let Refusal::Conflict { version: stands, last_offset, wait, .. } = refusal else { panic!("{refusal}") };
            assert_eq!((stands, last_offset), (version + 1, Some(version)));
            wait.durable().await.unwrap();
            assert!(world.next_offset("a") > version, "a conflict is told when its cause is durable");
        }
    }
}

#[tokio::test]
async fn each_kind_of_expectation_holds_or_tells_what_stands() {
    let mut world = World::new();
    world.put(&[("a", "other", "0"), ("a", "k", "1"), ("a", "k", "2")]).await;
    world.reopen().await;
    for (expect, holds) in [
        (Expect::Version(2), true),
        (Expect::Version(1), false),
        (Expect::Version(0), false),
        (Expect::LastOffset(2), true),
        (Expect::LastOffset(0), false),
        (Expect::Absent, false),
    ] {
        // A batch that admits nothing judges and changes nothing.
        let mut request = on(&world, "k", expect);
        request.outcome.content = Content::Rebuilt(vec![]);
        request.outcome.refused = vec![refused(0)];
        match world.shard.append(request) {
            Ok(ticket) => {
                assert!(holds, "{expect:?}");
                assert_eq!(ticket.durable().await.unwrap().runs, [AckedRun::Refused(refused(0))]);
            }
            Err(Refusal::Conflict { version: 2, last_offset: Some(2), .. }) => assert!(!holds, "{expect:?}"),
            Err(other) => panic!("{other}"),
        }
    }
    for expect in [Expect::Absent, Expect::Version(0)] {
        world.shard.append(on(&world, &format!("new {expect:?}"), expect)).unwrap().durable().await.unwrap();
    }
    let refused = world.shard.append(on(&world, "never", Expect::LastOffset(0)));
    assert!(matches!(refused, Err(Refusal::Conflict { version: 0, last_offset: None, .. })));
    let nowhere =
        Append { conditions: vec![condition("no/topic", "k", Expect::Absent)], ..world.batch(&[("a", "k", "v")]) };
    world.shard.append(nowhere).unwrap().durable().await.unwrap();
    assert_eq!(world.shard.topic(world.tenant, "no/topic"), None, "a condition makes no topic");
}

#[tokio::test]
async fn a_condition_on_a_record_that_the_chain_moved_is_refused_by_name() {
    let world = World::new();
    let mut request = world.batch(&[("a", "k", "1"), ("a", "l", "2")]);
    request.conditions = vec![condition("a", "l", Expect::Absent)];
    request.outcome.content = Content::Rebuilt(vec![rebuilt("a", "k", "1", false), rebuilt("b", "l", "2", false)]);
    request.outcome.moved = vec![1];
    let Err(Refusal::TargetMoved { topic, key }) = world.shard.append(request.clone()) else { panic!("it was taken") };
    assert_eq!((topic.as_str(), &key[..]), ("a", &b"l"[..]));
    // Another record was moved, or another key is named: that is fine.
    request.conditions = vec![condition("a", "k", Expect::Absent), condition("b", "l", Expect::Absent)];
    world.shard.append(request).unwrap().durable().await.unwrap();
}

#[tokio::test]
async fn what_is_refused_changes_nothing() {
    let world = World::new();
    world.put(&[("a", "k", "1")]).await;
    let mut fenced = world.batch(&[("new/1", "k", "v")]);
    fenced.producer = stamp(1, 0);
    world.shard.append(fenced).unwrap().durable().await.unwrap();
    let before = (world.shard.stats(), world.shard.topics(world.tenant, None, true, 100));
    let new = || world.batch(&[("new/2", "n", "v"), ("a", "k", "v")]);
    let mut stale = new();
    stale.outcome.generation = 9;
    for request in [
        Append { conditions: vec![condition("a", "k", Expect::Absent)], ..new() },
        Append { create_topics: false, ..new() },
        Append { producer: stamp(0, 0), ..new() },
        Append { producer: stamp(1, 5000), ..new() },
        Append { ..world.batch(&[("new/3", "n", "v"), ("$sys/topics", "k", "v")]) },
        stale,
    ] {
        assert!(world.shard.append(request).is_err());
        assert_eq!((world.shard.stats(), world.shard.topics(world.tenant, None, true, 100)), before);
    }
    assert_eq!(world.put(&[("a", "k", "2")]).await.runs, [appended(0, 1, &[2])]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counters_kept_by_conditions_from_many_tasks_lose_no_step() {
    let world = Arc::new(World::new());
    let count = async |world: Arc<World>, key: &'static str| {
        let mut version = 0;
        for _ in 0..50 {
            loop {
                match world.shard.append(on(&world, key, Expect::Version(version))) {
                    Ok(ticket) => {
                        ticket.durable().await.unwrap();
                        version += 1;
                        break;
                    }
                    Err(Refusal::Conflict { version: stands, wait, .. }) => {
                        wait.durable().await.unwrap();
                        assert!(stands > version, "only a version that was passed is refused");
                        version = stands;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    };
    let tasks: Vec<_> = ["k", "l", "k", "l", "k", "l"].map(|key| tokio::spawn(count(Arc::clone(&world), key))).into();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(world.next_offset("a"), 300, "every success is one record");
    for key in ["k", "l"] {
        world.shard.append(on(&world, key, Expect::Version(150))).unwrap().durable().await.unwrap();
    }
}
