//! The sequencer: decides whether a batch is taken, numbers it, and hands its frame to the log (ADR 3, step 6).
//!
//! All checks come before the first change: what is refused leaves nothing behind. Once numbering has begun only a failed
//! log can say no, and then nothing after it is taken either.

use std::sync::Arc;

use tidegate_protocol::{
    batch::{BatchBody, BatchBuilder, BodyError},
    limits::{FRAME_BYTES_MAX, Limits},
    record::RecordView,
    stored::{FrameHeader, ProducerStamp, Refused, StoredFrame, TopicStamp},
    topic::TopicName,
};

use super::{Append, Condition, Core, Expect, Refusal, Ticket, dedup::Verdict, heads::Head, state::State, system};
use crate::{
    catalog::{self, Entry},
    record::{Content, Outcome, Rebuilt},
};

/// Bytes of a frame header before its tables, its CRC included.
const HEADER_FIXED_BYTES: usize = 88;
/// The longest LEB128 of a key version.
const KEY_VERSION_BYTES_MAX: usize = 10;
/// A refused entry without its texts.
const REFUSED_FIXED_BYTES: usize = 16;

/// A request with its content encoded, which needs no lock.
#[derive(Debug)]
pub(super) struct Prepared {
    request: Append,
    /// `None`: nothing is to be stored.
    content: Option<BatchBody>,
}

/// A frame before it has numbers.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) tenant: u32,
    pub(super) generation: u64,
    pub(super) input_count: u32,
    pub(super) producer: Option<ProducerStamp>,
    pub(super) refused: Vec<Refused>,
    pub(super) body: Option<BatchBody>,
    /// Of each topic of the body.
    pub(super) ids: Vec<u64>,
    pub(super) new_topics: Vec<Entry>,
}

impl Prepared {
    /// Encodes what is to be stored.
    ///
    /// # Errors
    /// If it is too large, or outcome and batch do not belong together.
    pub(super) fn new(request: Append) -> Result<Self, Refusal> {
        let Outcome { content, refused, .. } = &request.outcome;
        let input_count = request.batch.body.len();
        let admitted = match content {
            Content::Verbatim => input_count,
            Content::Rebuilt(records) => {
                let admitted = records.iter().take_while(|record| !record.emitted).count();
                if records.iter().skip(admitted).any(|record| !record.emitted) {
                    return Err(Refusal::Malformed("an emitted record stands before one of the client's".to_owned()));
                }
                u32::try_from(admitted).unwrap_or(u32::MAX)
            }
        };
        let ascending = refused.is_sorted_by(|one, next| one.index < next.index);
        let in_range = refused.last().is_none_or(|last| last.index < input_count);
        if !ascending || !in_range || admitted as usize + refused.len() != input_count as usize {
            let what = format!("{admitted} records and {} refused ones do not make {input_count}", refused.len());
            return Err(Refusal::Malformed(what));
        }
        let content = match content {
            Content::Verbatim if input_count == 0 => None,
            Content::Verbatim => Some(request.batch.body.clone()),
            Content::Rebuilt(records) if records.is_empty() => None,
            Content::Rebuilt(records) => Some(encode(records)?),
        };
        Ok(Self { request, content })
    }
}

impl State {
    /// Takes a batch, or says why not.
    ///
    /// # Errors
    /// See [`Refusal`]; nothing has changed then.
    pub(super) fn append(&mut self, core: &Core, prepared: Prepared) -> Result<Ticket, Refusal> {
        let Prepared { request: Append { batch, outcome, producer, conditions, create_topics }, content } = prepared;
        let (tenant, generation) = (batch.tenant, outcome.generation);
        if self.closing {
            return Err(Refusal::ShuttingDown);
        }
        if let Some(ticket) = producer.map(|stamp| self.known(core, tenant, stamp)).transpose()?.flatten() {
            return Ok(ticket);
        }
        let live = self.live_generation(tenant);
        #[cfg(mutants)]
        let live = if crate::mutants::is("stale-generation-taken") { generation } else { live };
        if generation != live {
            return Err(Refusal::StaleGeneration { live });
        }
        self.check_conditions(core, tenant, &conditions, &batch.body, &outcome.moved)?;
        if content.is_none() && producer.is_none() {
            // What it was judged on may be in flight.
            return Ok(Ticket::nothing(core.waiter(self.next_lsn), self.next_lsn, generation, outcome.refused));
        }
        self.broker_time_ms = core.now_ms().max(self.broker_time_ms);
        let (input_count, refused) = (batch.body.len(), outcome.refused);
        let mut draft = Draft { tenant, generation, input_count, producer, refused, ..Draft::default() };
        if let Some(body) = content {
            self.resolve(&mut draft, body, create_topics)?;
        }
        let frame = self.put(core, draft)?;
        Ok(Ticket::frame(core.waiter(frame.next_lsn()), frame))
    }

    /// The ticket of a batch that an earlier try stored.
    ///
    /// # Errors
    /// If the window says no.
    pub(super) fn known(&self, core: &Core, tenant: u32, stamp: ProducerStamp) -> Result<Option<Ticket>, Refusal> {
        let wait = || core.waiter(self.next_lsn);
        match self.dedup.judge(tenant, stamp, core.now_ms().max(self.broker_time_ms)) {
            Verdict::New => Ok(None),
            #[cfg(mutants)]
            Verdict::Known(lsn) if crate::mutants::is("duplicate-not-waited-for") => {
                Ok(Some(Ticket::earlier(core.waiter(0), core.log.clone(), lsn)))
            }
            Verdict::Known(lsn) => Ok(Some(Ticket::earlier(core.waiter(lsn + 1), core.log.clone(), lsn))),
            Verdict::Expired => Err(Refusal::Expired { wait: wait() }),
            Verdict::Gap { expected } => Err(Refusal::Gap { expected, wait: wait() }),
            Verdict::Fenced { epoch } => Err(Refusal::Fenced { epoch, wait: wait() }),
            Verdict::Full => Err(Refusal::LimitReached { what: "producers", max: core.config.producers_max }),
        }
    }

    fn check_conditions(
        &mut self,
        core: &Core,
        tenant: u32,
        conditions: &[Condition],
        input: &BatchBody,
        moved: &[u32],
    ) -> Result<(), Refusal> {
        for condition in conditions {
            let names = |&index: &u32| {
                let topic = input.topic_at(index).and_then(|number| input.topic(number));
                topic == Some(condition.topic.as_str()) && input.record(index).key == Some(&condition.key[..])
            };
            if moved.iter().filter(|&&index| index < input.len()).any(names) {
                let (topic, key) = (condition.topic.clone(), condition.key.clone());
                return Err(Refusal::TargetMoved { topic, key });
            }
        }
        for Condition { topic, key, expect } in conditions {
            let id = self.catalog.find(tenant, topic.as_str()).map(|entry| entry.id);
            let head = id.and_then(|id| self.heads.get(id, key));
            #[cfg(mutants)]
            let head = head.and_then(|head| self.before_in_flight(id, head));
            let holds = match *expect {
                Expect::Version(version) => head.map_or(0, |head| head.version) == version,
                Expect::LastOffset(offset) => head.is_some_and(|head| head.last_offset == offset),
                Expect::Absent => head.is_none(),
            };
            if !holds {
                let (topic, key, wait) = (topic.clone(), key.clone(), core.waiter(self.next_lsn));
                #[cfg(mutants)]
                let wait = if crate::mutants::is("conflict-not-waited-for") { core.waiter(0) } else { wait };
                let Head { version, .. } = head.unwrap_or(Head { version: 0, last_offset: 0 });
                return Err(Refusal::Conflict {
                    topic,
                    key,
                    version,
                    last_offset: head.map(|head| head.last_offset),
                    wait,
                });
            }
        }
        Ok(())
    }

    /// Where a key stood before what is not durable yet.
    #[cfg(mutants)]
    fn before_in_flight(&self, topic: Option<u64>, head: Head) -> Option<Head> {
        let durable = topic.and_then(|id| self.catalog.get(id)).and_then(|entry| entry.durable_offset).unwrap_or(0);
        if !crate::mutants::is("condition-before-in-flight") || head.last_offset < durable {
            return Some(head);
        }
        (head.version > 1).then_some(Head { version: head.version - 1, ..head })
    }

    /// Finds the topics of a body; those that do not exist are made by records in a last section of the same frame.
    fn resolve(&self, draft: &mut Draft, body: BatchBody, create: bool) -> Result<(), Refusal> {
        let mut missing = Vec::new();
        for name in body.topics() {
            if let Some(entry) = self.catalog.find(draft.tenant, name) {
                draft.ids.push(entry.id);
                continue;
            }
            let name = TopicName::parse(name).map_err(|error| Refusal::Malformed(error.to_string()))?;
            if name.as_str() == "$sys" || name.as_str().starts_with("$sys/") {
                return Err(Refusal::TopicReserved(name));
            }
            if !create {
                return Err(Refusal::TopicUnknown(name));
            }
            let entry = self.new_topic(draft.tenant, name, missing.len() as u64);
            draft.ids.push(entry.id);
            missing.push(entry);
        }
        if self.catalog.count(draft.tenant) + missing.len() > catalog::TOPICS_MAX {
            return Err(Refusal::LimitReached { what: "topics", max: catalog::TOPICS_MAX });
        }
        draft.body = Some(if missing.is_empty() { body } else { self.with_topics(&body, &missing)? });
        if !missing.is_empty() {
            draft.ids.push(catalog::topic_id(self.shard, catalog::TOPICS_COUNTER));
        }
        draft.new_topics = missing;
        Ok(())
    }

    /// A topic that the next frame makes, behind `ahead` others.
    pub(super) fn new_topic(&self, tenant: u32, name: TopicName, ahead: u64) -> Entry {
        Entry::new(self.catalog.next_id(ahead), tenant, name, self.broker_time_ms, self.next_lsn)
    }

    /// The body with the records that make topics behind all others: an answer counts the client's from the front.
    fn with_topics(&self, body: &BatchBody, topics: &[Entry]) -> Result<BatchBody, Refusal> {
        let mut builder = BatchBuilder::new();
        let names: Vec<&str> = body.topics().collect();
        for (topic, record) in body.records() {
            if let Some(name) = names.get(usize::from(topic)) {
                builder.push(name, record);
            }
        }
        for entry in topics {
            let (key, value) = system::topic_record(entry);
            builder.push(system::TOPICS, system_record(&key, &value, self.broker_time_ms));
        }
        finish(builder)
    }

    /// Numbers a frame and hands it to the log.
    ///
    /// # Errors
    /// If it is too large, too much is queued, or the log has failed.
    pub(super) fn put(&mut self, core: &Core, draft: Draft) -> Result<Arc<StoredFrame>, Refusal> {
        let most = bytes_max(&draft);
        if most > FRAME_BYTES_MAX {
            return Err(Refusal::TooLarge { bytes: most as u64, max: FRAME_BYTES_MAX as u64 });
        }
        core.log.room(most)?;
        self.broker_time_ms = core.now_ms().max(self.broker_time_ms);
        let made: Vec<u64> = draft.new_topics.iter().map(|entry| entry.id).collect();
        for entry in draft.new_topics {
            core.name(&entry);
            self.catalog.insert(entry);
        }
        let (topics, key_versions) = self.number(draft.body.as_ref(), &draft.ids);
        let header = FrameHeader {
            shard: self.shard,
            epoch: self.epoch,
            first_lsn: self.next_lsn,
            broker_time_ms: self.broker_time_ms,
            generation: draft.generation,
            tenant: draft.tenant,
            input_count: draft.input_count,
            producer: draft.producer,
            topics,
            key_versions,
            refused: draft.refused,
        };
        let frame = StoredFrame::from_parts(header, draft.body);
        let frame = Arc::new(frame.expect("counts, order and size were checked before anything was numbered"));
        core.log.append(Arc::clone(&frame))?;
        self.commit(&frame);
        self.commit_topics(&made);
        Ok(frame)
    }

    /// Gives offsets and key versions, in the order of the body. Key heads move here.
    fn number(&mut self, body: Option<&BatchBody>, ids: &[u64]) -> (Vec<TopicStamp>, Vec<u64>) {
        let base = |id: u64| self.catalog.get(id).map_or(0, |entry| entry.next_offset);
        let stamps: Vec<TopicStamp> = ids.iter().map(|&id| TopicStamp { id, base_offset: base(id) }).collect();
        let mut next = stamps.clone();
        let keyed = body.iter().flat_map(|body| body.records());
        let keyed = keyed.filter_map(|(topic, record)| Some((stamps.get(usize::from(topic))?.id, record.key?)));
        let hashes: Vec<u64> = keyed.map(|(topic, key)| self.heads.hash(topic, key)).collect();
        let mut hashes = hashes.into_iter();
        let mut key_versions = Vec::with_capacity(body.map_or(0, |body| body.len() as usize));
        for (topic, record) in body.iter().flat_map(|body| body.records()) {
            let stamp = next.get_mut(usize::from(topic)).expect("every topic of the body was resolved");
            let version = record.key.map_or(0, |key| {
                let hash = hashes.next().expect("every key was hashed");
                self.heads.advance(hash, stamp.id, key, stamp.base_offset)
            });
            key_versions.push(version);
            stamp.base_offset += 1;
        }
        (stamps, key_versions)
    }
}

/// Records of the broker's own: key and value of each.
pub(super) fn system_body<'a>(
    topic: &str,
    records: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    now_ms: i64,
) -> Result<BatchBody, Refusal> {
    let mut builder = BatchBuilder::new();
    for (key, value) in records {
        builder.push(topic, system_record(key, value, now_ms));
    }
    finish(builder)
}

fn system_record<'a>(key: &'a [u8], value: &'a [u8], timestamp_ms: i64) -> RecordView<'a> {
    RecordView { key: Some(key), value: Some(value), headers: &[], timestamp_ms }
}

fn encode(records: &[Rebuilt]) -> Result<BatchBody, Refusal> {
    let mut builder = BatchBuilder::new();
    for record in records {
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        let view = RecordView { key, value, headers: &record.headers, timestamp_ms: record.timestamp_ms };
        builder.push(record.topic.as_str(), view);
    }
    finish(builder)
}

fn finish(mut builder: BatchBuilder) -> Result<BatchBody, Refusal> {
    builder.finish_body(&Limits::STORED).map_err(|error| match error {
        BodyError::Limit { actual, max, .. } => Refusal::TooLarge { bytes: actual, max },
        other => Refusal::Malformed(other.to_string()),
    })
}

/// Most bytes the frame can have.
fn bytes_max(draft: &Draft) -> usize {
    let body = draft.body.as_ref();
    let refused: usize =
        draft.refused.iter().map(|refused| REFUSED_FIXED_BYTES + refused.reason.len() + refused.plugin.len()).sum();
    HEADER_FIXED_BYTES
        + draft.ids.len() * size_of::<TopicStamp>()
        + body.map_or(0, |body| body.len() as usize * KEY_VERSION_BYTES_MAX + body.bytes().len())
        + refused
}
