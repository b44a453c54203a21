//! The single writer: gives numbers to what the chain let through, in one short critical section, and hands it to storage.
//!
//! Must not know guests, connections or files. Called by `produce` (append), `fetch` (read), `server` (activate).
//!
//! Invariants: offsets of a topic and versions of a key are dense in LSN order; what is refused changes nothing; nothing
//! is told before all it was judged on is durable (every answer carries a [`Waiter`] or is a ticket). Key heads, dedup
//! windows and the catalog are in memory, rebuilt from the last checkpoint and the frames behind it.

mod append;
mod buckets;
mod checkpoint;
mod dedup;
mod error;
mod heads;
mod keys;
mod lows;
mod pin;
mod reader;
mod retention;
mod samples;
mod state;
mod stats;
mod system;
#[cfg(test)]
mod tests;
mod ticket;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use bytes::Bytes;
use tidegate_protocol::{
    stored::ProducerStamp,
    topic::{TopicName, TopicPattern},
};
use tokio::sync::{Notify, Semaphore, watch};

use self::{
    append::{Draft, Prepared},
    checkpoint::Checkpoints,
    lows::Lows,
    retention::{Counts, Retention, Rules},
    state::State,
};
pub use self::{
    checkpoint::CheckpointRows,
    dedup::{WINDOW, WINDOW_AGE_MS},
    error::{Refusal, ShardError},
    keys::{Key, KeyRange},
    reader::Reader,
    retention::{RetentionRule, RetentionStats, TruncateError, Truncated},
    stats::Stats,
    ticket::{AckedRun, ActivationTicket, Appended, Ticket, TopicTicket, Waiter},
};
use crate::{
    catalog::{self, Entry, SYSTEM_TENANT, TENANTS_MAX},
    clock::{SharedClock, unix_ms},
    record::{Batch, Outcome},
    storage::{self, Disk, Durable, Log, Replayed},
    threads,
};

/// Reads out of segments at once: each may hold all blocks of a window, some 64 MiB.
const HISTORY_READS_MAX: usize = 4;
/// Walks over all key heads at once: each takes a core for as long as there are keys.
const WALKS_MAX: usize = 2;
/// Bytes of a tenant's name.
const TENANT_NAME_BYTES_MAX: usize = 64;
/// Topics told with an activation: as many as a list on the wire holds.
const ACTIVATED_TOPICS_MAX: usize = 10_000;

/// Settings of the shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Of the shard's owner; 0 in this version.
    pub epoch: u64,
    /// Producers remembered. Default 100 000; more get `LIMIT_REACHED` until some have been silent for an hour.
    pub producers_max: usize,
    /// Results remembered, of all producers together. Default 4 million, 24 bytes each; above, every window is halved.
    pub dedup_results_max: usize,
    /// Samples of offset → LSN, of all topics together. Default 65 536, 24 bytes each.
    pub samples_max: usize,
    /// How often is looked at what need not be kept. Default 10 s.
    pub retention_every: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            epoch: 0,
            producers_max: 100_000,
            dedup_results_max: 4_000_000,
            samples_max: 65_536,
            retention_every: Duration::from_secs(10),
        }
    }
}

/// A batch for the sequencer.
#[derive(Debug, Clone)]
pub struct Append {
    /// As the client sent it.
    pub batch: Batch,
    /// What the chain made of it.
    pub outcome: Outcome,
    /// For dedup.
    pub producer: Option<ProducerStamp>,
    /// All must hold.
    pub conditions: Vec<Condition>,
    /// Topics that do not exist are made.
    pub create_topics: bool,
}

/// What must hold for a batch to be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// A topic of the batch's tenant; it need not exist.
    pub topic: TopicName,
    /// As stored.
    pub key: Bytes,
    /// Where the key must stand, frames in flight counted.
    pub expect: Expect,
}

/// Where a key must stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// At this version; 0 = it must not exist.
    Version(u64),
    /// Its last record must have this offset.
    LastOffset(u64),
    /// It must not exist.
    Absent,
}

/// A generation of a tenant's chain that is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activation {
    /// Its number.
    pub generation: u64,
    /// LSN of its record: frames before ran under the generation before.
    pub lsn: u64,
    /// As handed to [`Shard::activate`].
    pub record: Bytes,
}

/// A generation that has just become live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activated {
    /// Its number.
    pub generation: u64,
    /// LSN of its record.
    pub lsn: u64,
    /// The tenant's topics by name (at most 10 000, reserved ones left out); `next_offset` is the first under it.
    pub topics: Vec<Topic>,
}

/// A topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Never given twice.
    pub id: u64,
    /// Its name.
    pub name: TopicName,
    /// Offset of its next record.
    pub next_offset: u64,
    /// Broker time of its creation.
    pub created_ms: i64,
    /// The first offset kept.
    pub low_offset: u64,
}

/// A handle on the shard. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shard {
    core: Arc<Core>,
    checkpoints: Arc<Checkpoints>,
    retention: Arc<Retention>,
}

/// What all handles, readers and the threads share.
#[derive(Debug)]
struct Core {
    config: Config,
    clock: SharedClock,
    log: Log,
    durable: watch::Receiver<Durable>,
    state: Mutex<State>,
    /// Tenant and name of every topic, for readers, who must not wait for the sequencer.
    names: RwLock<HashMap<u64, (u32, TopicName)>>,
    lows: Arc<Lows>,
    rules: Mutex<Rules>,
    retention: Counts,
    /// Wakes the retention thread.
    retention_wanted: Notify,
    walks: Arc<Semaphore>,
    history: Arc<Semaphore>,
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Going on with a state that is half changed would break numbering.
        self.state.lock().expect("the sequencer has panicked: its state is not to be trusted")
    }

    /// The state with all that is durable visible.
    fn settled(&self) -> MutexGuard<'_, State> {
        let durable_lsn = self.durable.borrow().next_lsn;
        let mut state = self.lock();
        state.settle(durable_lsn);
        state
    }

    fn waiter(&self, next_lsn: u64) -> Waiter {
        Waiter::new(self.durable.clone(), next_lsn)
    }

    fn now_ms(&self) -> i64 {
        unix_ms(&*self.clock)
    }

    /// Broker time: what the next frame would get.
    fn broker_now_ms(&self) -> i64 {
        let last = self.lock().broker_time_ms;
        self.now_ms().max(last)
    }

    fn name(&self, entry: &Entry) {
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        names.insert(entry.id, (entry.tenant, entry.name.clone()));
    }
}

impl Shard {
    /// Opens a shard: reads its log back and starts its threads. Blocking.
    ///
    /// # Errors
    /// As [`Log::open`], or if what was read back does not fit together.
    pub fn open(
        config: Config,
        storage: storage::Config,
        disk: Arc<dyn Disk>,
        clock: SharedClock,
    ) -> Result<Self, ShardError> {
        let shard = storage.shard;
        let mut state = State::new(shard, &config);
        let mut replayed = Ok(());
        let log = Log::open(storage, disk, Arc::clone(&clock), &mut |item| {
            if replayed.is_err() {
                return;
            }
            replayed = match item {
                Replayed::Frame(frame) => state.replay(&frame),
                Replayed::Checkpoint { lsn, state: bytes } => {
                    checkpoint::restore(shard, &config, lsn, bytes).map(|restored| state = restored)
                }
            };
        })?;
        replayed?;
        let names = state.catalog.iter().map(|entry| (entry.id, (entry.tenant, entry.name.clone()))).collect();
        let durable = log.durable();
        let lows = Arc::clone(&state.lows);
        let (state, names) = (Mutex::new(state), RwLock::new(names));
        let [walks, history] = [WALKS_MAX, HISTORY_READS_MAX].map(|max| Arc::new(Semaphore::new(max)));
        let (rules, retention, retention_wanted) = Default::default();
        let core = Core {
            config,
            clock,
            log,
            durable,
            state,
            names,
            lows,
            rules,
            retention,
            retention_wanted,
            walks,
            history,
        };
        let core = Arc::new(core);
        let checkpoints = Arc::new(Checkpoints::start(Arc::clone(&core))?);
        let retention = Arc::new(Retention::start(Arc::clone(&core))?);
        Ok(Self { core, checkpoints, retention })
    }

    /// The number of a tenant. A new one is durable with the first frame that is its own: its record lies before.
    ///
    /// # Errors
    /// If the name breaks the rules, there are too many, or the log takes nothing.
    pub fn tenant(&self, name: &str) -> Result<u32, ShardError> {
        let mut state = self.core.settled();
        if let Some(number) = state.catalog.tenant(name) {
            return Ok(number);
        }
        if name.is_empty() || name.len() > TENANT_NAME_BYTES_MAX {
            return Err(ShardError::TenantInvalid { name: name.chars().take(100).collect() });
        }
        let number = state.catalog.next_tenant().ok_or(ShardError::TenantsFull { max: TENANTS_MAX })?;
        let (key, value) = system::tenant_record(number, name);
        let put = state.put_system(&self.core, system::TENANTS, catalog::TENANTS_COUNTER, (&key, &value), 0);
        put.map_err(|refusal| match refusal {
            Refusal::Overloaded(error) | Refusal::Failed(error) => error.into(),
            _ => ShardError::ShuttingDown,
        })?;
        state.catalog.insert_tenant(number, name);
        Ok(number)
    }

    /// The name of a tenant.
    pub fn tenant_name(&self, tenant: u32) -> Option<String> {
        let at = usize::try_from(tenant).ok()?.checked_sub(1)?;
        self.core.lock().catalog.tenants().get(at).cloned()
    }

    /// The generation under which batches of a tenant are taken now; 0 = none yet.
    pub fn live_generation(&self, tenant: u32) -> u64 {
        self.core.lock().live_generation(tenant)
    }

    /// The last durable activation of a tenant, also after a restart.
    pub fn activation(&self, tenant: u32) -> Option<Activation> {
        self.core.settled().chains.get(&tenant)?.durable.clone()
    }

    /// The last durable activation of every tenant that ever had one.
    pub fn activations(&self) -> Vec<Activation> {
        self.core.settled().chains.values().filter_map(|chain| chain.durable.clone()).collect()
    }

    /// Looks a batch up before its chain runs: a known one gets the stored result.
    ///
    /// # Errors
    /// [`Refusal::Expired`], [`Refusal::Gap`], [`Refusal::Fenced`], or no room for another producer.
    pub fn known(&self, tenant: u32, stamp: ProducerStamp) -> Result<Option<Ticket>, Refusal> {
        self.core.lock().known(&self.core, tenant, stamp)
    }

    /// Takes a batch: checks, numbers, queues. Never blocks on the disk.
    ///
    /// # Errors
    /// See [`Refusal`]; nothing has changed then. Answer only when [`Refusal::wait`] is durable.
    pub fn append(&self, request: Append) -> Result<Ticket, Refusal> {
        let prepared = Prepared::new(request)?;
        self.core.settled().append(&self.core, prepared)
    }

    /// Makes a new generation of a tenant's chain live: at once for batches that come behind it, told when durable.
    ///
    /// # Errors
    /// [`Refusal::GenerationChanged`] if `based_on` is neither 0 nor the live one, or if the log takes nothing.
    pub fn activate(&self, tenant: u32, based_on: u64, record: Bytes) -> Result<ActivationTicket, Refusal> {
        let mut state = self.core.settled();
        let live = state.live_generation(tenant);
        if based_on != 0 && based_on != live {
            return Err(Refusal::GenerationChanged { live, wait: self.core.waiter(state.next_lsn) });
        }
        let generation = live + 1;
        let key = system::activation_key(tenant);
        let content = (&key[..], &record[..]);
        let lsn =
            state.put_system(&self.core, system::ACTIVATIONS, catalog::ACTIVATIONS_COUNTER, content, generation)?;
        state.commit_activation(tenant, Activation { generation, lsn, record });
        let topics = state.catalog.list(tenant, None, false).take(ACTIVATED_TOPICS_MAX);
        let topics = topics.map(|entry| topic_of(entry, entry.next_offset)).collect();
        let wait = self.core.waiter(state.next_lsn);
        Ok(ActivationTicket { wait, activated: Activated { generation, lsn, topics } })
    }

    /// Makes a topic.
    ///
    /// # Errors
    /// If it exists, is the broker's own, is one too many, or the log takes nothing.
    pub fn create_topic(&self, tenant: u32, name: &TopicName) -> Result<TopicTicket, Refusal> {
        let mut state = self.core.settled();
        if state.catalog.find(tenant, name.as_str()).is_some() {
            return Err(Refusal::TopicExists { topic: name.clone(), wait: self.core.waiter(state.next_lsn) });
        }
        if name.is_reserved() {
            return Err(Refusal::TopicReserved(name.clone()));
        }
        if state.catalog.count(tenant) >= catalog::TOPICS_MAX {
            return Err(Refusal::LimitReached { what: "topics", max: catalog::TOPICS_MAX });
        }
        state.broker_time_ms = self.core.now_ms().max(state.broker_time_ms);
        let entry = state.new_topic(tenant, name.clone(), 0);
        let topic = topic_of(&entry, 0);
        let (key, value) = system::topic_record(&entry);
        let body = append::system_body(system::TOPICS, [(&key[..], &value[..])], state.broker_time_ms)?;
        let ids = vec![catalog::topic_id(state.shard, catalog::TOPICS_COUNTER)];
        let draft = Draft { body: Some(body), ids, new_topics: vec![entry], ..Draft::default() };
        state.put(&self.core, draft)?;
        Ok(TopicTicket { wait: self.core.waiter(state.next_lsn), topic })
    }

    /// A tenant's durable topics by name: those that a pattern stands for, reserved ones only if asked for.
    pub fn topics(&self, tenant: u32, pattern: Option<&TopicPattern>, reserved: bool, max: usize) -> Vec<Topic> {
        let state = self.core.settled();
        let durable = state.catalog.list(tenant, pattern, reserved).filter_map(durable_topic);
        durable.take(max).collect()
    }

    /// A durable topic by name.
    pub fn topic(&self, tenant: u32, name: &str) -> Option<Topic> {
        self.core.settled().catalog.find(tenant, name).and_then(durable_topic)
    }

    /// Tenant and name of a topic. Does not wait for the sequencer.
    pub fn topic_by_id(&self, id: u64) -> Option<(u32, TopicName)> {
        self.core.names.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// A handle for reading.
    pub fn reader(&self) -> Reader {
        Reader { core: Arc::clone(&self.core), durable: self.core.durable.clone() }
    }

    /// Takes nothing more, makes all that was taken durable, gives the directory free. Reads still work.
    pub async fn close(&self) {
        self.core.lock().closing = true;
        let Self { core, checkpoints, retention } = self.clone();
        let threads = Arc::clone(core.log.threads());
        let closed = threads::blocking(&*threads, move || {
            retention.close();
            checkpoints.close();
            core.log.close();
        });
        if closed.await.is_err() {
            tracing::error!("closing the shard was cut short");
        }
    }
}

impl State {
    /// Puts a frame with one record of the broker's own; gives its LSN.
    fn put_system(
        &mut self,
        core: &Core,
        topic: &str,
        counter: u64,
        content: (&[u8], &[u8]),
        generation: u64,
    ) -> Result<u64, Refusal> {
        if self.closing {
            return Err(Refusal::ShuttingDown);
        }
        let body = append::system_body(topic, [content], core.now_ms().max(self.broker_time_ms))?;
        let ids = vec![catalog::topic_id(self.shard, counter)];
        let draft = Draft { tenant: SYSTEM_TENANT, generation, body: Some(body), ids, ..Draft::default() };
        self.put(core, draft).map(|frame| frame.header.first_lsn)
    }
}

fn topic_of(entry: &Entry, next_offset: u64) -> Topic {
    let low_offset = entry.durable_low.offset;
    Topic { id: entry.id, name: entry.name.clone(), next_offset, created_ms: entry.created_ms, low_offset }
}

fn durable_topic(entry: &Entry) -> Option<Topic> {
    entry.durable_offset.map(|next_offset| topic_of(entry, next_offset))
}
