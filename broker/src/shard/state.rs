//! What the sequencer knows, and how a frame changes it: the same way when it is written and when it is read back.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use tidegate_protocol::stored::{FrameHeader, StoredFrame};

use super::{
    Activation, Config, ShardError,
    checkpoint::Snapshot,
    dedup::Dedup,
    heads::{Head, Heads},
    lows::Lows,
    samples::Samples,
    system,
};
use crate::{
    catalog::{self, Catalog, Entry, Low},
    storage,
};

/// Everything the sequencer decides on. Counts frames in flight, unless a field says durable.
#[derive(Debug)]
pub(super) struct State {
    pub(super) shard: u16,
    pub(super) epoch: u64,
    pub(super) catalog: Catalog,
    pub(super) heads: Heads,
    pub(super) dedup: Dedup,
    pub(super) samples: Samples,
    pub(super) chains: HashMap<u32, Chain>,
    /// Low offsets as readers see them.
    pub(super) lows: Arc<Lows>,
    pub(super) next_lsn: u64,
    pub(super) broker_time_ms: i64,
    /// What is told only when its frame is durable, oldest first. Bounded by the bytes that may be queued.
    pub(super) in_flight: VecDeque<InFlight>,
    pub(super) closing: bool,
}

/// The chain generations of one tenant.
#[derive(Debug, Clone, Default)]
pub(super) struct Chain {
    /// Under which batches are taken.
    pub(super) live: Option<Activation>,
    /// The last durable one.
    pub(super) durable: Option<Activation>,
}

/// What one frame changes for those who ask.
#[derive(Debug)]
pub(super) struct InFlight {
    next_lsn: u64,
    /// Topic id and next offset.
    topics: Vec<(u64, u64)>,
    activation: Option<(u32, Activation)>,
    /// Topic id and where what is kept of it begins.
    lows: Vec<(u64, Low)>,
}

impl State {
    pub(super) fn new(shard: u16, config: &Config) -> Self {
        Self {
            shard,
            epoch: config.epoch,
            catalog: Catalog::new(shard),
            heads: Heads::new(),
            dedup: Dedup::new(config.producers_max, config.dedup_results_max),
            samples: Samples::new(config.samples_max),
            chains: HashMap::new(),
            lows: Arc::default(),
            next_lsn: 0,
            broker_time_ms: 0,
            in_flight: VecDeque::new(),
            closing: false,
        }
    }

    /// The generation under which batches of a tenant are taken; 0 = none yet.
    pub(super) fn live_generation(&self, tenant: u32) -> u64 {
        self.chains.get(&tenant).and_then(|chain| chain.live.as_ref()).map_or(0, |live| live.generation)
    }

    /// Makes what has become durable visible.
    pub(super) fn settle(&mut self, durable_lsn: u64) {
        while let Some(frame) = self.in_flight.pop_front_if(|frame| frame.next_lsn <= durable_lsn) {
            for (id, next_offset) in frame.topics {
                if let Some(entry) = self.catalog.get_mut(id) {
                    entry.durable_offset = Some(next_offset);
                }
            }
            if let Some((tenant, activation)) = frame.activation {
                self.chains.entry(tenant).or_default().durable = Some(activation);
            }
            for (id, low) in frame.lows {
                self.settle_low(id, low);
            }
        }
    }

    /// A low offset that is durable: from here on readers are held to it.
    pub(super) fn settle_low(&mut self, id: u64, low: Low) {
        if let Some(entry) = self.catalog.get_mut(id)
            && low.offset > entry.durable_low.offset
        {
            entry.durable_low = low;
            self.lows.publish(id, low);
        }
    }

    /// A generation is live from its frame on, and durable: read back.
    pub(super) fn activated(&mut self, tenant: u32, activation: Activation) {
        self.chains.insert(tenant, Chain { live: Some(activation.clone()), durable: Some(activation) });
    }

    /// Takes a frame that was just numbered; key heads have moved already.
    pub(super) fn commit(&mut self, frame: &StoredFrame) {
        let FrameHeader { first_lsn, broker_time_ms, tenant, producer, .. } = frame.header;
        if let Some(producer) = producer {
            self.dedup.store(tenant, producer, first_lsn, broker_time_ms);
        }
        let stamps = &frame.header.topics;
        let mut topics: Vec<(u64, u64)> = stamps.iter().map(|topic| (topic.id, topic.base_offset)).collect();
        for section in frame.body.iter().flat_map(|body| body.sections()) {
            if let Some((_, next)) = topics.get_mut(usize::from(section.topic)) {
                *next += u64::from(section.records);
            }
        }
        let (bytes, records) =
            frame.body.as_ref().map_or((0, 0), |body| (body.bytes().len() as u64, u64::from(body.len())));
        for (stamp, &(id, next_offset)) in stamps.iter().zip(&topics) {
            if let Some(entry) = self.catalog.get_mut(id) {
                self.samples.note(id, stamp.base_offset, first_lsn, entry.bytes);
                let share = storage::share(bytes, next_offset.saturating_sub(stamp.base_offset), records);
                entry.bytes = entry.bytes.saturating_add(share);
                entry.next_offset = next_offset;
            }
        }
        self.broker_time_ms = self.broker_time_ms.max(broker_time_ms);
        self.next_lsn = frame.next_lsn();
        self.in_flight.push_back(InFlight { next_lsn: self.next_lsn, topics, activation: None, lows: Vec::new() });
    }

    /// The frame just committed makes topics: those without a record yet are told of when it is durable, like the others.
    pub(super) fn commit_topics(&mut self, made: &[u64]) {
        let Some(frame) = self.in_flight.back_mut() else { return };
        for &id in made {
            if !frame.topics.iter().any(|(known, _)| *known == id) {
                frame.topics.push((id, 0));
            }
        }
    }

    /// The frame just committed moves low offsets.
    pub(super) fn commit_lows(&mut self, lows: Vec<(u64, Low)>) {
        for &(id, low) in &lows {
            if let Some(entry) = self.catalog.get_mut(id)
                && low.offset > entry.low.offset
            {
                entry.low = low;
                self.samples.forget(id, low.offset);
            }
        }
        if let Some(frame) = self.in_flight.back_mut() {
            frame.lows = lows;
        }
    }

    /// The frame just committed makes a generation live.
    pub(super) fn commit_activation(&mut self, tenant: u32, activation: Activation) {
        self.chains.entry(tenant).or_default().live = Some(activation.clone());
        if let Some(frame) = self.in_flight.back_mut() {
            frame.activation = Some((tenant, activation));
        }
    }

    /// Takes a frame that was read back.
    ///
    /// # Errors
    /// If it does not follow, or a record of the broker's own cannot be read.
    pub(super) fn replay(&mut self, frame: &StoredFrame) -> Result<(), ShardError> {
        let header = &frame.header;
        let fault = |what: String| ShardError::Replay { lsn: header.first_lsn, what };
        if header.first_lsn != self.next_lsn {
            return Err(fault(format!("LSN {} must come here", self.next_lsn)));
        }
        // A topic is made by the last records of the frame that needs it first.
        let lows = self.replay_system(frame).map_err(fault)?;
        let records = frame.body.iter().flat_map(|body| body.records());
        for ((id, offset, version), (_, record)) in frame.positions().zip(records) {
            let Some(entry) = self.catalog.get(id) else { return Err(fault(format!("topic {id} was never made"))) };
            if offset < entry.next_offset {
                let expected = entry.next_offset;
                return Err(fault(format!("offset {offset} of topic {id} is taken, {expected} comes next")));
            }
            if let Some(key) = record.key {
                self.heads.set(id, key, Head { version, last_offset: offset });
            }
        }
        #[cfg(mutants)]
        let frame = &without_producer(frame);
        self.commit(frame);
        self.commit_lows(lows);
        self.settle(self.next_lsn);
        Ok(())
    }

    /// Takes the broker's own records of a frame; gives the low offsets that it moves.
    fn replay_system(&mut self, frame: &StoredFrame) -> Result<Vec<(u64, Low)>, String> {
        let mut lows = Vec::new();
        let Some(body) = &frame.body else { return Ok(lows) };
        let stamps = &frame.header.topics;
        if !stamps.iter().any(|stamp| catalog::is_system(stamp.id)) {
            return Ok(lows);
        }
        for (topic, record) in body.records() {
            let Some(stamp) = stamps.get(usize::from(topic)) else { continue };
            let value = record.value.unwrap_or_default();
            match catalog::counter_of(stamp.id) {
                catalog::TOPICS_COUNTER => {
                    let entry = system::topic_of(value, frame.header.first_lsn)?;
                    // What is read back is durable, records or none.
                    self.catalog.insert(Entry { durable_offset: Some(0), ..entry });
                }
                catalog::TENANTS_COUNTER => {
                    let (number, name) = system::tenant_of(value)?;
                    if !self.catalog.insert_tenant(number, &name) {
                        return Err(format!("tenant {number} cannot be {name:?}"));
                    }
                }
                catalog::ACTIVATIONS_COUNTER => {
                    let tenant = system::activation_tenant(record.key.unwrap_or_default())?;
                    let (generation, lsn) = (frame.header.generation, frame.header.first_lsn);
                    self.activated(tenant, Activation { generation, lsn, record: Bytes::copy_from_slice(value) });
                }
                catalog::RETENTION_COUNTER => {
                    let (id, low) = system::low_of(value)?;
                    if self.catalog.get(id).is_none_or(|entry| entry.next_offset < low.offset) {
                        return Err(format!("topic {id} cannot begin at offset {}", low.offset));
                    }
                    lows.push((id, low));
                }
                _ => {}
            }
        }
        Ok(lows)
    }

    /// A copy of all that a restart needs, at `next_lsn`.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        let live = |(&tenant, chain): (&u32, &Chain)| Some((tenant, chain.live.clone()?));
        Snapshot {
            lsn: self.next_lsn,
            broker_time_ms: self.broker_time_ms,
            catalog: self.catalog.clone(),
            heads: self.heads.copy(),
            dedup: self.dedup.copy(),
            samples: self.samples.clone(),
            activations: self.chains.iter().filter_map(live).collect(),
        }
    }
}

/// The frame as a producer's window does not know it.
#[cfg(mutants)]
fn without_producer(frame: &StoredFrame) -> StoredFrame {
    let mut frame = frame.clone();
    if crate::mutants::is("dedup-not-rebuilt") {
        frame.header.producer = None;
    }
    frame
}
