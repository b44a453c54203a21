//! Produce streams over pipes: a log in memory, no plugins, no network.

mod intake;

use bytes::{Bytes, BytesMut};
use tidegate_protocol::{
    batch::BatchBuilder,
    error::Code,
    record::RecordView,
    wire::{self, Condition, Expect, Frame, ProduceAck, ProduceHead, ServerBody, ServerMessage},
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _, DuplexStream},
    sync::watch,
    task::JoinHandle,
};

use super::*;
use crate::{
    auth::{Auth, Claim, Config as AuthConfig},
    clock::{SystemClock, SystemRandom},
    hooks::{self, Generation, Runtime, spec::TenantSpec},
    shard,
    storage::{self, RealDisk, WalKind},
};

/// A tenant whose batches go through no plugin.
struct World {
    _dir: tempfile::TempDir,
    runtime: Runtime,
    shard: Shard,
    metrics: Arc<Metrics>,
    clock: SharedClock,
    budget: Budget,
    session: Session,
}

/// A client's end of a stream.
struct Client {
    stream: DuplexStream,
    stop: watch::Sender<bool>,
    served: JoinHandle<()>,
}

impl World {
    fn new(budget: usize, wait_max: Duration) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let clock: SharedClock = Arc::new(SystemClock::default());
        let storage = storage::Config { wal: WalKind::Memory, ..storage::Config::new(dir.path()) };
        let shard =
            Shard::open(shard::Config::default(), storage, Arc::new(RealDisk), Arc::clone(&clock)).expect("a shard");
        let random = Arc::new(SystemRandom::default());
        let runtime =
            Runtime::new(hooks::Config::default(), Arc::new(GuestLog), Arc::clone(&clock), random).expect("a runtime");
        let auth = Auth::new(AuthConfig::default());
        let principal = auth.identify(&Claim { loopback: true, ..Claim::default() }).expect("local");
        let live = Arc::new(Live::new(generation(&runtime, 0)));
        let all = Budget::new(budget);
        let session = Session {
            principal: Arc::new(principal),
            tenant: shard.tenant("default").expect("a tenant"),
            live,
            budget: all.connection(budget, wait_max),
        };
        Self { _dir: dir, runtime, shard, metrics: Arc::default(), clock, budget: all, session }
    }

    fn produce(&self, config: Config) -> Produce {
        Produce::new(config, self.shard.clone(), Arc::clone(&self.metrics), Arc::clone(&self.clock))
    }

    fn connect(&self) -> Client {
        let config = Config { frame_time_max: Duration::from_millis(200), ..Config::default() };
        self.connect_as(self.session.clone(), config)
    }

    fn connect_as(&self, session: Session, config: Config) -> Client {
        let produce = self.produce(config);
        let (stream, other) = tokio::io::duplex(1 << 20);
        let (stop, stopping) = watch::channel(false);
        let served = tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(other);
            produce.serve(&session, &mut reader, &mut writer, stopping).await;
        });
        Client { stream, stop, served }
    }
}

fn generation(runtime: &Runtime, number: u64) -> Arc<Generation> {
    let spec = Arc::new(TenantSpec::default());
    runtime.generation("default", number, spec, std::collections::BTreeMap::new()).expect("no chain at all")
}

fn batch(head: &ProduceHead, key: &str, bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new();
    let value = vec![7; bytes];
    builder.push("t", RecordView { key: Some(key.as_bytes()), value: Some(&value), headers: &[], timestamp_ms: 0 });
    let body = builder.finish();
    let mut frame = BytesMut::from(wire::encode_batch_head(head, body.len()).as_ref());
    frame.extend_from_slice(&body);
    frame.freeze()
}

impl Client {
    async fn send(&mut self, frame: &[u8]) {
        self.stream.write_all(frame).await.expect("sent");
    }

    async fn message(&mut self) -> Option<ServerBody> {
        let limits = Limits::default();
        let prefix = frames::prefix(&mut self.stream, &limits, 1 << 20).await.expect("a frame")?;
        let Frame::Control(bytes) = frames::payload(&mut self.stream, prefix).await.expect("whole") else {
            panic!("a broker answers with messages");
        };
        wire::decode::<ServerMessage>(bytes).expect("a message").body
    }

    async fn ack(&mut self) -> ProduceAck {
        match self.message().await {
            Some(ServerBody::ProduceAck(ack)) => ack,
            other => panic!("no ack: {other:?}"),
        }
    }

    async fn refusal(&mut self) -> Code {
        self.ack().await.failure.expect("refused").known_code().expect("known")
    }

    async fn offset(&mut self) -> u64 {
        let ack = self.ack().await;
        assert_eq!(ack.failure, None);
        ack.runs.first().expect("one run").first_offset
    }
}

#[tokio::test]
async fn answers_come_in_the_order_of_the_batches() {
    let world = World::new(1 << 20, Duration::from_secs(5));
    let mut client = world.connect();
    let plain = ProduceHead::default();
    let stamped = ProduceHead { producer_id: 9, ..plain.clone() };
    client.send(&batch(&plain, "a", 1)).await;
    client.send(&batch(&plain, "a", 2 << 20)).await;
    client.send(&batch(&stamped, "a", 1)).await;
    client.send(&batch(&stamped, "a", 1)).await;
    client.send(&batch(&plain, "a", 1)).await;
    assert_eq!(client.offset().await, 0);
    assert_eq!(client.refusal().await, Code::RecordTooLarge);
    assert_eq!(client.offset().await, 1);
    let again = client.ack().await;
    assert_eq!((again.duplicate, again.runs.first().map(|run| run.first_offset)), (true, Some(1)));
    assert_eq!(client.offset().await, 2);
    assert_eq!(world.metrics.produce_duplicates.value(), 1);
}

#[tokio::test]
async fn a_condition_that_does_not_hold_tells_what_stands() {
    let world = World::new(1 << 20, Duration::from_secs(5));
    let mut client = world.connect();
    let expect = |version| {
        let condition = Condition { topic: "t".to_owned(), key: b"a".to_vec(), expect: Some(Expect::Version(version)) };
        ProduceHead { conditions: vec![condition], ..ProduceHead::default() }
    };
    for head in [expect(0), expect(1), expect(1)] {
        client.send(&batch(&head, "a", 1)).await;
    }
    assert_eq!((client.offset().await, client.offset().await), (0, 1));
    let failure = client.ack().await.failure.expect("refused");
    assert_eq!(failure.known_code(), Some(Code::Conflict));
    let stands = failure.conflict.expect("told");
    assert_eq!((stands.version, stands.last_offset, stands.key.as_slice()), (2, Some(1), b"a".as_slice()));
}

#[tokio::test]
async fn a_full_budget_refuses_and_keeps_the_order() {
    let world = World::new(100, Duration::from_millis(20));
    let mut held = world.session.budget.permit();
    world.session.budget.take_last(&mut held, 100).await.expect("free");
    let mut client = world.connect();
    let plain = ProduceHead::default();
    client.send(&batch(&plain, "a", 10)).await;
    let failure = client.ack().await.failure.expect("refused");
    assert_eq!(failure.known_code(), Some(Code::Overloaded));
    assert!(failure.retry_after_ms > 0);
    drop(held);
    client.send(&batch(&plain, "a", 10)).await;
    assert_eq!(client.offset().await, 0, "what was refused left nothing behind");
}

#[tokio::test]
async fn broken_frames_end_the_stream_with_a_word() {
    let world = World::new(1 << 20, Duration::from_secs(5));
    let oversized = [0xff, 0xff, 0xff, 0x7f, wire::KIND_BATCH].as_slice();
    let unknown = [2, 0, 0, 0, 9, 0].as_slice();
    let empty = [0, 0, 0, 0, wire::KIND_BATCH].as_slice();
    let message = wire::encode_control(&wire::OpenProduce {});
    // Says 100 bytes and gives none: the rest does not come.
    let stalled = [101, 0, 0, 0, wire::KIND_BATCH].as_slice();
    for (bytes, code) in [
        (oversized, Code::FrameTooLarge),
        (unknown, Code::ProtocolViolation),
        (empty, Code::ProtocolViolation),
        (message.as_ref(), Code::ProtocolViolation),
        (stalled, Code::ProtocolViolation),
    ] {
        let mut client = world.connect();
        client.send(&batch(&ProduceHead::default(), "a", 1)).await;
        client.send(bytes).await;
        client.offset().await;
        match client.message().await {
            Some(ServerBody::Failure(failure)) => assert_eq!(failure.known_code(), Some(code), "{failure}"),
            other => panic!("no last word: {other:?}"),
        }
        assert_eq!(client.message().await, None);
    }
}

#[tokio::test]
async fn a_stop_answers_what_was_taken_and_nothing_more() {
    let world = World::new(1 << 20, Duration::from_secs(5));
    let mut client = world.connect();
    client.send(&batch(&ProduceHead::default(), "a", 1)).await;
    assert_eq!(client.offset().await, 0);
    client.stop.send_replace(true);
    match client.message().await {
        Some(ServerBody::Failure(failure)) => assert_eq!(failure.known_code(), Some(Code::ShuttingDown)),
        other => panic!("no last word: {other:?}"),
    }
    client.served.await.expect("ended");
    assert_eq!(world.shard.topic(world.session.tenant, "t").map(|topic| topic.next_offset), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_meets_an_activation_runs_again() {
    let world = World::new(1 << 20, Duration::from_secs(5));
    let (live, shard, metrics) = (Arc::clone(&world.session.live), world.shard.clone(), Arc::clone(&world.metrics));
    let (next, tenant) = (generation(&world.runtime, 1), world.session.tenant);
    let (sequenced, mut told) = watch::channel(false);
    let change = tokio::spawn(async move {
        let publish = || {
            shard.activate(tenant, 0, Bytes::from_static(b"{}")).map(|_| ())?;
            sequenced.send_replace(true);
            // The batch is stale now, and must be called so before the new generation is there to be found.
            while metrics.produce_reruns.value() == 0 {
                std::thread::yield_now();
            }
            Ok::<_, shard::Refusal>((next, ()))
        };
        live.change(publish).await
    });
    told.wait_for(|told| *told).await.map(|_| ()).expect("sequenced");
    let mut client = world.connect();
    client.send(&batch(&ProduceHead::default(), "a", 1)).await;
    let ack = client.ack().await;
    assert_eq!((ack.failure, ack.generation), (None, 1));
    assert_eq!(world.metrics.produce_reruns.value(), 1);
    change.await.expect("ran").expect("changed");
}

#[tokio::test]
async fn a_chain_behind_the_log_is_a_bug_and_no_endless_loop() {
    let world = World::new(1 << 20, Duration::from_secs(5));
    world.shard.activate(world.session.tenant, 0, Bytes::from_static(b"{}")).expect("sequenced");
    let mut client = world.connect();
    client.send(&batch(&ProduceHead::default(), "a", 1)).await;
    assert_eq!(client.refusal().await, Code::Internal);
    assert_eq!(world.metrics.produce_reruns.value(), 4);
}
