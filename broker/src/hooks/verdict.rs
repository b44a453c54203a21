//! Checks a guest's verdict as a whole and turns it into a plan that cannot fail. Nothing a guest says is believed.

mod draft;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use bytes::Bytes;
use tidegate_protocol::{error::Code, limits::Limits, stored::RefusedStatus, topic::TopicName};

use self::draft::Draft;
use super::{
    Hook, abi,
    error::cut,
    grants::Grants,
    topics::{TopicPlan, Topics},
    work::{Change, Patch, Plan, Refusal, Row, Selection, View, Work},
};

/// What a verdict is judged by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) hook: Hook,
    pub(super) plugin: &'a Arc<str>,
    pub(super) grants: &'a Grants,
    pub(super) limits: &'a Limits,
    pub(super) topics: &'a Topics,
    /// The most that the verdict's lists may have together.
    pub(super) output_bytes_max: usize,
}

/// Which rule a verdict breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadVerdict {
    #[error("`at`, `op` and `arg` have {at}, {op} and {arg} entries; they are parallel")]
    Unequal { at: usize, op: usize, arg: usize },
    #[error("{bytes} bytes of output, at most {max} for this input; raise `budget.output_times` if that is meant")]
    Output { bytes: usize, max: usize },
    #[error("position {position} comes after {before}; positions never descend")]
    Descends { position: u32, before: u32 },
    #[error("position {position} in a frame of {count} records")]
    Position { position: u32, count: u32 },
    #[error("operation {op} on record {position} is not known")]
    Op { op: u8, position: u32 },
    #[error("operation {op} on record {position} is not allowed in {hook}")]
    NotHere { op: u8, position: u32, hook: Hook },
    #[error("{what} is not allowed in {hook}")]
    NotHereAtAll { what: &'static str, hook: Hook },
    #[error("record {position} is dropped or rejected and has other operations")]
    Exclusive { position: u32 },
    #[error("string {number} does not exist; there are {count}")]
    NoString { number: u32, count: usize },
    #[error("string end {number} descends or lies outside the data")]
    StringEnd { number: usize },
    #[error("rejection {number} does not exist; there are {count}")]
    NoRejection { number: u32, count: usize },
    #[error("{what} is not UTF-8")]
    NotUtf8 { what: &'static str },
    #[error("topic {0}")]
    Topic(#[from] tidegate_protocol::topic::TopicError),
    #[error("header name of {bytes} bytes; 1 to 256 are allowed")]
    HeaderName { bytes: usize },
    #[error("header {name:?} is reserved; it needs the grant \"header:{name}\"")]
    HeaderNotGranted { name: String },
    #[error("headers item is malformed: {reason}")]
    Headers { reason: String },
    #[error("{what} would be {actual}, at most {max} are allowed")]
    Limit { what: &'static str, actual: usize, max: usize },
}

impl BadVerdict {
    /// The record of the frame that it is about, where it is about one.
    pub(super) fn position(&self) -> Option<u32> {
        match self {
            Self::Op { position, .. } | Self::NotHere { position, .. } | Self::Exclusive { position } => {
                Some(*position)
            }
            _ => None,
        }
    }
}

/// Turns a verdict into a plan; `None` = all records pass as they are.
///
/// # Errors
/// If any part of it breaks a rule: then nothing of it is applied.
pub(super) fn check(
    verdict: abi::Verdict,
    work: &Work,
    selection: &Selection,
    rules: &Rules<'_>,
) -> Result<Option<Box<Plan>>, BadVerdict> {
    match verdict {
        abi::Verdict::Pass => Ok(None),
        abi::Verdict::DropAll => {
            let mut plan = Plan { refuse_all: true, refusals: vec![dropped(rules)], ..Plan::default() };
            plan.effects.dropped = selection.len();
            Ok(Some(Box::new(plan)))
        }
        abi::Verdict::RejectAll(refusal) => {
            if rules.hook != Hook::Produce {
                return Err(BadVerdict::NotHereAtAll { what: "reject-all", hook: rules.hook });
            }
            within(refusal.reason.len(), rules.output_bytes_max)?;
            let refusal = rejected(rules, refusal.code, refusal.retry_after_ms, &refusal.reason);
            let mut plan = Plan { refuse_all: true, refusals: vec![refusal], ..Plan::default() };
            plan.effects.rejected = selection.len();
            Ok(Some(Box::new(plan)))
        }
        abi::Verdict::Edit(edit) => {
            Checker::new(edit, work, selection, *rules)?.plan().map(|plan| Some(Box::new(plan)))
        }
    }
}

struct Checker<'a> {
    view: View<'a>,
    work: &'a Work,
    selection: &'a Selection,
    rules: Rules<'a>,
    edit: abi::Edit,
    strings: Bytes,
    plan: Plan,
    /// Rejections of the verdict as numbers of `plan.refusals`, made when first used.
    rejections: HashMap<u32, u32>,
    drop: Option<u32>,
    topics: HashMap<TopicName, u32>,
}

impl<'a> Checker<'a> {
    fn new(
        mut edit: abi::Edit,
        work: &'a Work,
        selection: &'a Selection,
        rules: Rules<'a>,
    ) -> Result<Self, BadVerdict> {
        let (at, op, arg) = (edit.at.len(), edit.op.len(), edit.arg.len());
        if at != op || at != arg {
            return Err(BadVerdict::Unequal { at, op, arg });
        }
        within(output_bytes(&edit), rules.output_bytes_max)?;
        let strings = Bytes::from(std::mem::take(&mut edit.string_data));
        let mut before = 0;
        for (number, end) in edit.string_ends.iter().enumerate() {
            if *end < before || *end as usize > strings.len() {
                return Err(BadVerdict::StringEnd { number });
            }
            before = *end;
        }
        if rules.hook == Hook::Fetch && !edit.emissions.is_empty() {
            return Err(BadVerdict::NotHereAtAll { what: "emitting", hook: rules.hook });
        }
        Ok(Self {
            view: work.view(),
            work,
            selection,
            rules,
            edit,
            strings,
            plan: Plan::default(),
            rejections: HashMap::new(),
            drop: None,
            topics: HashMap::new(),
        })
    }

    fn plan(mut self) -> Result<Plan, BadVerdict> {
        let edit = std::mem::take(&mut self.edit);
        let mut before = 0;
        let mut rest = edit.at.as_slice();
        let mut done = 0;
        self.edit = abi::Edit { rejections: edit.rejections, string_ends: edit.string_ends, ..abi::Edit::default() };
        while let Some(&position) = rest.first() {
            if position < before {
                return Err(BadVerdict::Descends { position, before });
            }
            before = position;
            let count = rest.iter().take_while(|at| **at == position).count();
            let ops = edit.op.get(done..done + count).unwrap_or_default();
            let args = edit.arg.get(done..done + count).unwrap_or_default();
            self.record(position, ops, args)?;
            done += count;
            rest = rest.get(count..).unwrap_or_default();
        }
        for emission in &edit.emissions {
            self.emission(emission)?;
        }
        self.bounds()?;
        Ok(self.plan)
    }

    /// All operations on one record.
    fn record(&mut self, position: u32, ops: &[u8], args: &[u32]) -> Result<(), BadVerdict> {
        let row = self.row(position)?;
        if let Some(op) = ops.iter().find(|op| **op > OP_ROUTE) {
            return Err(BadVerdict::Op { op: *op, position });
        }
        if self.rules.hook == Hook::Fetch
            && let Some(op) = ops.iter().find(|op| matches!(**op, OP_REJECT | OP_ROUTE))
        {
            return Err(BadVerdict::NotHere { op: *op, position, hook: self.rules.hook });
        }
        let change = match (ops, args) {
            ([OP_DROP], _) => {
                self.plan.effects.dropped += 1;
                Change::Refuse(self.drop())
            }
            ([OP_REJECT], [number]) => {
                self.plan.effects.rejected += 1;
                Change::Refuse(self.rejection(*number)?)
            }
            _ if ops.iter().any(|op| matches!(*op, OP_DROP | OP_REJECT)) => {
                return Err(BadVerdict::Exclusive { position });
            }
            _ => self.edits(row, ops, args)?,
        };
        self.plan.changes.push((row, change));
        Ok(())
    }

    fn edits(&mut self, row: u32, ops: &[u8], args: &[u32]) -> Result<Change, BadVerdict> {
        let old = self.work.rows().and_then(|rows| rows.get(row as usize)).and_then(|row| row.patch.as_deref());
        let mut draft = Draft::new(self.view.headers(row));
        let mut topic = None;
        for (op, arg) in ops.iter().zip(args) {
            match *op {
                OP_SET_KEY => draft.key = Some(self.string_or_null(*arg)?),
                OP_SET_VALUE => draft.value = Some(self.string_or_null(*arg)?),
                OP_ADD_HEADER => {
                    let name = self.header_name(*arg)?;
                    let value = self.string(arg.saturating_add(1))?;
                    draft.add_header(&name, &value, self.rules.limits)?;
                }
                OP_REMOVE_HEADER => draft.remove_header(&self.header_name(*arg)?)?,
                _ => topic = Some(self.topic(*arg)?),
            }
        }
        if let Some(plan) = &topic
            && !self.may_go(plan, Grants::may_route)
        {
            self.plan.effects.rejected += 1;
            return Ok(Change::Refuse(self.not_granted("routed", &plan.name)));
        }
        let patch = draft.finish(old);
        if let Some(patch) = &patch {
            let key = patch.key.as_ref().map_or_else(|| self.view.key(row), |key| key.as_deref());
            let value = patch.value.as_ref().map_or_else(|| self.view.value(row), |value| value.as_deref());
            let headers = patch.headers.as_deref().unwrap_or_else(|| self.view.headers(row));
            self.plan.bytes += record_bytes(key, value, headers, self.rules.limits)?;
            self.plan.effects.changed += 1;
        }
        self.plan.effects.routed += u32::from(topic.is_some());
        let topic = topic.map(|topic| self.topic_number(&topic));
        Ok(Change::Edit { patch: patch.map(Box::new), topic })
    }

    fn emission(&mut self, emission: &abi::Emission) -> Result<(), BadVerdict> {
        let origin = self.row(emission.origin)?;
        let topic = self.topic(emission.topic)?;
        let (key, value) = (self.string_or_null(emission.key)?, self.string_or_null(emission.value)?);
        let headers = self.string_or_null(emission.headers)?.unwrap_or_default();
        draft::check_headers(&headers, self.rules.grants, self.rules.limits)?;
        self.plan.bytes += record_bytes(key.as_deref(), value.as_deref(), &headers, self.rules.limits)?;
        if !self.may_go(&topic, Grants::may_emit) {
            let refusal = self.not_granted("emitted", &topic.name);
            self.overrule(origin, refusal);
            return Ok(());
        }
        let topic = self.topic_number(&topic);
        self.plan.effects.emitted += 1;
        self.plan.emitted.push(Row {
            at: self.view.at(origin),
            topic,
            first_topic: topic,
            emitted: true,
            passed: 0,
            patch: Some(Box::new(Patch { key: Some(key), value: Some(value), headers: Some(headers) })),
        });
        Ok(())
    }

    /// Rejects a record, whatever the plugin wanted for it.
    fn overrule(&mut self, row: u32, refusal: u32) {
        self.plan.effects.rejected += 1;
        match self.plan.changes.binary_search_by_key(&row, |(row, _)| *row) {
            Ok(i) => {
                if let Some((_, change)) = self.plan.changes.get_mut(i) {
                    *change = Change::Refuse(refusal);
                }
            }
            Err(i) => self.plan.changes.insert(i, (row, Change::Refuse(refusal))),
        }
    }

    /// Bounds of the batch as a whole.
    fn bounds(&self) -> Result<(), BadVerdict> {
        let limits = self.rules.limits;
        let records = self.work.len() as usize + self.plan.emitted.len();
        limit("records of the batch", records, limits.batch_records_max as usize)?;
        let bytes = self.work.bytes().saturating_add(self.plan.bytes);
        limit("bytes of the batch", bytes, (limits.batch_bytes_max as usize).saturating_mul(BATCH_GROWTH_TIMES))?;
        if self.work.topics().len() + self.plan.topics.len() <= TOPICS_MAX {
            return Ok(());
        }
        limit("topics of the batch", self.live_topics(), TOPICS_MAX)
    }

    /// Topics in which records would be after this verdict: those that all records left do not count.
    fn live_topics(&self) -> usize {
        let mut changes = self.plan.changes.iter().peekable();
        let mut live: HashSet<u32> = self.plan.emitted.iter().map(|row| row.topic).collect();
        for row in 0..self.work.len() {
            match changes.next_if(|(changed, _)| *changed == row) {
                Some((_, Change::Refuse(_))) => {}
                Some((_, Change::Edit { topic: Some(topic), .. })) => drop(live.insert(*topic)),
                _ => drop(live.insert(self.view.topic_number(row))),
            }
        }
        live.len()
    }

    fn row(&self, position: u32) -> Result<u32, BadVerdict> {
        let count = self.selection.len();
        self.selection.row(position).ok_or(BadVerdict::Position { position, count })
    }

    fn string(&self, number: u32) -> Result<Bytes, BadVerdict> {
        let ends = &self.edit.string_ends;
        let end = ends.get(number as usize).ok_or(BadVerdict::NoString { number, count: ends.len() })?;
        let start = number.checked_sub(1).and_then(|before| ends.get(before as usize)).copied().unwrap_or(0);
        // `new` checked that ends do not descend and lie within the data.
        Ok(self.strings.slice(start as usize..*end as usize))
    }

    fn string_or_null(&self, number: u32) -> Result<Option<Bytes>, BadVerdict> {
        if number == abi::NONE { Ok(None) } else { self.string(number).map(Some) }
    }

    fn header_name(&self, number: u32) -> Result<Bytes, BadVerdict> {
        let name = self.string(number)?;
        draft::check_name(&name, self.rules.grants)?;
        Ok(name)
    }

    fn topic(&self, number: u32) -> Result<Arc<TopicPlan>, BadVerdict> {
        let name = self.string(number)?;
        let name = std::str::from_utf8(&name).map_err(|_| BadVerdict::NotUtf8 { what: "a topic" })?;
        Ok(self.rules.topics.plan(name)?)
    }

    /// Only the broker writes to reserved topics, whatever was granted.
    fn may_go(&self, topic: &TopicPlan, granted: fn(&Grants, &str) -> bool) -> bool {
        !topic.name.is_reserved() && granted(self.rules.grants, topic.name.as_str())
    }

    fn topic_number(&mut self, topic: &Arc<TopicPlan>) -> u32 {
        let known = self.work.topics();
        if self.topics.is_empty() {
            self.topics = (0..).zip(known).map(|(i, topic)| (topic.name.clone(), i)).collect();
        }
        // The table is bounded by `TOPICS_MAX` entries per verdict that passes.
        let next = u32::try_from(known.len() + self.plan.topics.len()).unwrap_or(u32::MAX);
        *self.topics.entry(topic.name.clone()).or_insert_with(|| {
            self.plan.topics.push(Arc::clone(topic));
            next
        })
    }

    fn drop(&mut self) -> u32 {
        if let Some(number) = self.drop {
            return number;
        }
        let number = self.refusal(dropped(&self.rules));
        self.drop = Some(number);
        number
    }

    fn rejection(&mut self, number: u32) -> Result<u32, BadVerdict> {
        if let Some(known) = self.rejections.get(&number) {
            return Ok(*known);
        }
        let count = self.edit.rejections.len();
        let given = *self.edit.rejections.get(number as usize).ok_or(BadVerdict::NoRejection { number, count })?;
        let reason = self.string(given.reason)?;
        let reason = std::str::from_utf8(&reason).map_err(|_| BadVerdict::NotUtf8 { what: "a reason" })?;
        let made = self.refusal(rejected(&self.rules, given.code, given.retry_after_ms, reason));
        self.rejections.insert(number, made);
        Ok(made)
    }

    fn not_granted(&mut self, what: &str, topic: &TopicName) -> u32 {
        let grant = if what == "routed" { "route" } else { "emit" };
        let reason = format!("{what} to {topic} without the grant {grant}:{topic}");
        let mut refusal = rejected(&self.rules, 0, 0, &reason);
        refusal.code = Code::RouteNotGranted.number();
        self.refusal(refusal)
    }

    fn refusal(&mut self, refusal: Refusal) -> u32 {
        self.plan.refusals.push(refusal);
        u32::try_from(self.plan.refusals.len() - 1).unwrap_or(u32::MAX)
    }
}

fn dropped(rules: &Rules<'_>) -> Refusal {
    Refusal {
        status: RefusedStatus::Dropped,
        code: 0,
        plugin_code: 0,
        retry_after_ms: 0,
        reason: "".into(),
        plugin: Arc::clone(rules.plugin),
    }
}

fn rejected(rules: &Rules<'_>, plugin_code: u16, retry_after_ms: u32, reason: &str) -> Refusal {
    Refusal {
        status: RefusedStatus::Rejected,
        code: Code::PluginRejected.number(),
        plugin_code,
        retry_after_ms,
        reason: cut(reason, REASON_BYTES_MAX).into(),
        plugin: Arc::clone(rules.plugin),
    }
}

fn record_bytes(
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[u8],
    limits: &Limits,
) -> Result<usize, BadVerdict> {
    let key = key.map_or(0, <[u8]>::len);
    limit("bytes of a key", key, limits.key_bytes_max as usize)?;
    let bytes = key + value.map_or(0, <[u8]>::len) + headers.len();
    limit("bytes of a record", bytes, limits.record_bytes_max as usize)?;
    Ok(bytes)
}

fn limit(what: &'static str, actual: usize, max: usize) -> Result<(), BadVerdict> {
    if actual > max { Err(BadVerdict::Limit { what, actual, max }) } else { Ok(()) }
}

fn within(bytes: usize, max: usize) -> Result<(), BadVerdict> {
    if bytes > max { Err(BadVerdict::Output { bytes, max }) } else { Ok(()) }
}

/// Bytes of a verdict's lists, as they lie in the guest.
fn output_bytes(edit: &abi::Edit) -> usize {
    edit.at.len() * 4
        + edit.op.len()
        + edit.arg.len() * 4
        + edit.rejections.len() * 12
        + edit.emissions.len() * 20
        + edit.string_ends.len() * 4
        + edit.string_data.len()
}

// Operations, as wit/types.wit numbers them.
const OP_DROP: u8 = 0;
const OP_REJECT: u8 = 1;
const OP_SET_KEY: u8 = 2;
const OP_SET_VALUE: u8 = 3;
const OP_ADD_HEADER: u8 = 4;
const OP_REMOVE_HEADER: u8 = 5;
const OP_ROUTE: u8 = 6;

/// As stored frames hold it (ADR 1).
const REASON_BYTES_MAX: usize = 256;
/// Topics of a body (ADR 1).
const TOPICS_MAX: usize = 1024;
/// A batch may grow to this many times the largest one that a client may send: four plugins that each double a full
/// batch are refused, one that wraps each record is not. A stored frame has at most 64 MiB.
const BATCH_GROWTH_TIMES: usize = 4;

#[cfg(test)]
mod tests;
