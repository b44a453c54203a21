//! The shard's state as bytes, and the thread that hands it to storage when that asks.
//!
//! Protobuf, because its messages may be cut in parts and put back together by laying them end to end: the state is
//! written bucket by bucket without a second copy of it in memory.

mod rows;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::{Bytes, BytesMut};
use prost::Message;
use tidegate_protocol::topic::TopicName;
use tokio::sync::Notify;

pub use self::rows::CheckpointRows;
use super::{
    Activation, Config, Core, ShardError,
    dedup::{Dedup, Stored, Window},
    heads::{Head, Heads},
    samples::{Sample, Samples},
    state::State,
};
use crate::{
    catalog::{Catalog, Entry, Low},
    threads::{self, Running, SharedThreads},
};

/// Version of the message.
const VERSION: u32 = 2;

/// A part of a checkpoint; all parts end to end are the whole.
#[derive(Clone, PartialEq, Message)]
struct Part {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(int64, tag = "2")]
    broker_time_ms: i64,
    #[prost(string, repeated, tag = "3")]
    tenants: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    topics: Vec<TopicRow>,
    #[prost(message, repeated, tag = "5")]
    heads: Vec<HeadRow>,
    #[prost(message, repeated, tag = "6")]
    producers: Vec<ProducerRow>,
    #[prost(message, repeated, tag = "7")]
    activations: Vec<ActivationRow>,
    #[prost(message, repeated, tag = "8")]
    samples: Vec<SampleRow>,
    #[prost(uint64, tag = "9")]
    sample_stride: u64,
}

#[derive(Clone, PartialEq, Message)]
struct TopicRow {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint32, tag = "2")]
    tenant: u32,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(int64, tag = "4")]
    created_ms: i64,
    #[prost(uint64, tag = "5")]
    first_lsn: u64,
    #[prost(uint64, tag = "6")]
    next_offset: u64,
    #[prost(uint64, tag = "7")]
    bytes: u64,
    #[prost(uint64, tag = "8")]
    low_offset: u64,
    #[prost(uint64, tag = "9")]
    low_lsn: u64,
    #[prost(uint64, tag = "10")]
    low_bytes: u64,
}

#[derive(Clone, PartialEq, Message)]
struct HeadRow {
    #[prost(uint64, tag = "1")]
    topic: u64,
    #[prost(bytes = "bytes", tag = "2")]
    key: Bytes,
    #[prost(uint64, tag = "3")]
    version: u64,
    #[prost(uint64, tag = "4")]
    last_offset: u64,
}

#[derive(Clone, PartialEq, Message)]
struct ProducerRow {
    #[prost(uint32, tag = "1")]
    tenant: u32,
    #[prost(uint64, tag = "2")]
    id: u64,
    #[prost(uint32, tag = "3")]
    epoch: u32,
    #[prost(uint64, tag = "4")]
    floor: u64,
    #[prost(uint64, tag = "5")]
    next: u64,
    #[prost(int64, tag = "6")]
    touched_ms: i64,
    #[prost(uint64, repeated, tag = "7")]
    sequences: Vec<u64>,
    #[prost(uint64, repeated, tag = "8")]
    lsns: Vec<u64>,
    #[prost(int64, repeated, tag = "9")]
    times_ms: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct ActivationRow {
    #[prost(uint32, tag = "1")]
    tenant: u32,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(uint64, tag = "3")]
    lsn: u64,
    #[prost(bytes = "bytes", tag = "4")]
    record: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct SampleRow {
    #[prost(uint64, tag = "1")]
    topic: u64,
    #[prost(uint64, tag = "2")]
    offset: u64,
    #[prost(uint64, tag = "3")]
    lsn: u64,
    #[prost(uint64, tag = "4")]
    bytes: u64,
}

/// The state at an LSN, copied in an instant.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Everything before is in it.
    pub(super) lsn: u64,
    pub(super) broker_time_ms: i64,
    pub(super) catalog: Catalog,
    pub(super) heads: Heads,
    pub(super) dedup: Dedup,
    pub(super) samples: Samples,
    /// The last one of each tenant.
    pub(super) activations: HashMap<u32, Activation>,
}

impl Snapshot {
    /// The bytes that [`restore`] reads. Equal states may give different bytes: maps have no order.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        let mut add = |part: Part| part.encode(&mut out).expect("a growing buffer has room");
        add(Part {
            version: VERSION,
            broker_time_ms: self.broker_time_ms,
            tenants: self.catalog.tenants().to_vec(),
            topics: self.catalog.iter().map(topic_row).collect(),
            activations: self
                .activations
                .iter()
                .map(|(&tenant, activation)| activation_row(tenant, activation))
                .collect(),
            samples: self.samples.iter().map(sample_row).collect(),
            sample_stride: self.samples.stride(),
            ..Part::default()
        });
        for (tenant, id, window) in self.dedup.iter() {
            add(Part { producers: vec![producer_row(tenant, id, window)], ..Part::default() });
        }
        for heads in self.heads.parts() {
            let heads = heads.map(|(topic, key, head)| HeadRow {
                topic,
                key: Bytes::copy_from_slice(key),
                version: head.version,
                last_offset: head.last_offset,
            });
            add(Part { heads: heads.collect(), ..Part::default() });
        }
        out.freeze()
    }
}

/// Puts a state back together.
///
/// # Errors
/// If the bytes are not a checkpoint of this version.
pub(super) fn restore(shard: u16, config: &Config, lsn: u64, state: Bytes) -> Result<State, ShardError> {
    let fault = |what: String| ShardError::Replay { lsn, what: format!("checkpoint: {what}") };
    let whole = Part::decode(state).map_err(|error| fault(error.to_string()))?;
    if whole.version != VERSION {
        return Err(fault(format!("version {} is not read by this build; it reads {VERSION}", whole.version)));
    }
    let mut restored = State::new(shard, config);
    restored.next_lsn = lsn;
    restored.broker_time_ms = whole.broker_time_ms;
    for (name, number) in whole.tenants.iter().zip(1..) {
        if !restored.catalog.insert_tenant(number, name) {
            return Err(fault(format!("tenant {number} is there twice")));
        }
    }
    for row in whole.topics {
        let name = TopicName::parse(&row.name).map_err(|error| fault(error.to_string()))?;
        let low = Low { offset: row.low_offset, lsn: row.low_lsn, bytes: row.low_bytes };
        restored.catalog.insert(Entry {
            next_offset: row.next_offset,
            durable_offset: Some(row.next_offset),
            bytes: row.bytes,
            low,
            ..Entry::new(row.id, row.tenant, name, row.created_ms, row.first_lsn)
        });
        restored.settle_low(row.id, low);
    }
    let heads = whole.heads.into_iter();
    #[cfg(mutants)]
    let heads = heads.skip(usize::from(crate::mutants::is("head-forgotten")));
    for row in heads {
        restored.heads.set(row.topic, &row.key, Head { version: row.version, last_offset: row.last_offset });
    }
    restored.dedup.restore(whole.producers.into_iter().map(window_of));
    for row in whole.activations {
        let activation = Activation { generation: row.generation, lsn: row.lsn, record: row.record };
        restored.activated(row.tenant, activation);
    }
    let sample = |row: SampleRow| (row.topic, Sample { offset: row.offset, lsn: row.lsn, bytes: row.bytes });
    let samples = whole.samples.into_iter().map(sample);
    restored.samples = Samples::restore(config.samples_max, whole.sample_stride, samples);
    Ok(restored)
}

fn topic_row(entry: &Entry) -> TopicRow {
    TopicRow {
        id: entry.id,
        tenant: entry.tenant,
        name: entry.name.as_str().to_owned(),
        created_ms: entry.created_ms,
        first_lsn: entry.first_lsn,
        next_offset: entry.next_offset,
        bytes: entry.bytes,
        low_offset: entry.low.offset,
        low_lsn: entry.low.lsn,
        low_bytes: entry.low.bytes,
    }
}

fn sample_row((topic, sample): (u64, Sample)) -> SampleRow {
    let Sample { offset, lsn, bytes } = sample;
    SampleRow { topic, offset, lsn, bytes }
}

fn activation_row(tenant: u32, activation: &Activation) -> ActivationRow {
    let Activation { generation, lsn, record } = activation.clone();
    ActivationRow { tenant, generation, lsn, record }
}

fn producer_row(tenant: u32, id: u64, window: &Window) -> ProducerRow {
    let results = &window.results;
    ProducerRow {
        tenant,
        id,
        epoch: window.epoch,
        floor: window.floor,
        next: window.next,
        touched_ms: window.touched_ms,
        sequences: results.iter().map(|stored| stored.sequence).collect(),
        lsns: results.iter().map(|stored| stored.lsn).collect(),
        times_ms: results.iter().map(|stored| stored.time_ms).collect(),
    }
}

fn window_of(row: ProducerRow) -> (u32, u64, Window) {
    let results = row.sequences.into_iter().zip(row.lsns).zip(row.times_ms);
    let results = results.map(|((sequence, lsn), time_ms)| Stored { sequence, lsn, time_ms }).collect();
    let window = Window { epoch: row.epoch, floor: row.floor, next: row.next, touched_ms: row.touched_ms, results };
    (row.tenant, row.id, window)
}

/// The thread that hands checkpoints over. Ends when dropped.
#[derive(Debug)]
pub(super) struct Checkpoints {
    stop: Arc<Notify>,
    thread: Mutex<Option<Box<dyn Running>>>,
}

impl Checkpoints {
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn start(core: Arc<Core>) -> Result<Self, ShardError> {
        let stop = Arc::new(Notify::new());
        let (stopped, threads) = (Arc::clone(&stop), Arc::clone(core.log.threads()));
        let run = {
            let threads = Arc::clone(&threads);
            move || work(&core, &threads, &stopped)
        };
        let thread = threads.spawn("shard-checkpoint", Box::new(run));
        let thread = thread.map_err(crate::storage::StorageError::io("start a thread for", "checkpoints"))?;
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread; one under way is finished. Blocking.
    pub(super) fn close(&self) {
        self.stop.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the checkpoint thread has panicked");
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.close();
    }
}

fn work(core: &Core, threads: &SharedThreads, stopped: &Notify) {
    let wanted = core.log.checkpoint_wanted();
    let asked = async || {
        tokio::select! {
            biased;
            () = stopped.notified() => false,
            () = wanted.notified() => true,
        }
    };
    while threads::block_on(&**threads, asked()) {
        let taken = threads::block_on(&**threads, async {
            tokio::select! {
                biased;
                // Kept for the loop above.
                () = stopped.notified() => { stopped.notify_one(); None }
                taken = take(core) => taken,
            }
        });
        if let Some(snapshot) = taken {
            hand_over(core, &snapshot);
        }
    }
}

/// Copies the state and waits until all of it is durable. `None` if it never will be.
async fn take(core: &Core) -> Option<Snapshot> {
    let snapshot = core.lock().snapshot();
    let durable = core.waiter(snapshot.lsn).durable().await;
    durable.is_ok().then_some(snapshot)
}

fn hand_over(core: &Core, snapshot: &Snapshot) {
    let state = snapshot.encode();
    let bytes = state.len();
    match core.log.checkpoint(snapshot.lsn, state) {
        Ok(()) => tracing::debug!(lsn = snapshot.lsn, bytes, "checkpoint"),
        // The next one tries again; until then a start replays more.
        Err(error) => tracing::warn!(%error, "cannot store a checkpoint"),
    }
}
