//! The batch between calls: the client's body, untouched, and beside it what the chain made of its records so far.
//!
//! As long as nothing happened to single records there is no list of them (`whole`): a plugin that lets a batch pass costs
//! the same for 1 and for 10 000 records.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tidegate_protocol::{
    batch::{BatchBody, NULL},
    stored::{RefusedStatus, StoredFrame},
};

use super::{Hook, topics::TopicPlan};

/// A batch in the chain.
#[derive(Debug, Clone)]
pub(super) struct Work {
    body: BatchBody,
    /// The body's topics by their number, then those that the chain brought in.
    topics: Vec<Arc<TopicPlan>>,
    /// The live records in order, the client's before the emitted ones. `None` while it is whole: all of the body.
    rows: Option<Vec<Row>>,
    /// Guards that all records passed, while it is whole.
    passed: u128,
    /// For each record of the body 1 + number of its refusal, or 0. Empty while there is none.
    fates: Vec<u32>,
    refusals: Vec<Refusal>,
    /// Something was changed, dropped, rejected, routed or emitted.
    touched: bool,
    /// Bytes of the live records, at most.
    bytes: usize,
    /// On fetch, the frame that the body came in.
    frame: Option<Arc<StoredFrame>>,
    /// Offsets of the body's records in their topics, made when a plugin reads them.
    offsets: OnceLock<Vec<u64>>,
}

/// A live record.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// Position in the body; of an emitted record, that of the client's record it stems from.
    pub(super) at: u32,
    /// Number of its current topic.
    pub(super) topic: u32,
    /// Number of the topic it came with.
    pub(super) first_topic: u32,
    pub(super) emitted: bool,
    /// Guards it passed.
    pub(super) passed: u128,
    /// What differs from the body.
    pub(super) patch: Option<Box<Patch>>,
}

/// Fields that a plugin set.
#[derive(Debug, Clone, Default)]
pub(super) struct Patch {
    pub(super) key: Option<Option<Bytes>>,
    pub(super) value: Option<Option<Bytes>>,
    pub(super) headers: Option<Bytes>,
}

/// Why a record is not stored.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) status: RefusedStatus,
    pub(super) code: u16,
    pub(super) plugin_code: u16,
    pub(super) retry_after_ms: u32,
    pub(super) reason: Arc<str>,
    pub(super) plugin: Arc<str>,
}

/// Records of one call.
#[derive(Debug, Clone)]
pub(super) enum Selection {
    /// All live records; how many.
    All(u32),
    /// These rows, ascending.
    Rows(Arc<[u32]>),
}

/// A verdict, checked as a whole: applying it cannot fail.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// By ascending row, at most one each.
    pub(super) changes: Vec<(u32, Change)>,
    pub(super) refusals: Vec<Refusal>,
    pub(super) emitted: Vec<Row>,
    pub(super) topics: Vec<Arc<TopicPlan>>,
    /// Bytes that come in.
    pub(super) bytes: usize,
    pub(super) effects: super::stats::Effects,
    /// Instead of `changes`: every record of the call, by the first refusal.
    pub(super) refuse_all: bool,
}

/// What happens to one record.
#[derive(Debug)]
pub(super) enum Change {
    /// Dropped or rejected, by number of the refusal in the plan.
    Refuse(u32),
    /// Other content, another topic, or both.
    Edit { patch: Option<Box<Patch>>, topic: Option<u32> },
}

impl Selection {
    pub(super) fn len(&self) -> u32 {
        match self {
            Self::All(count) => *count,
            // A selection never has more rows than a batch has records.
            Self::Rows(rows) => u32::try_from(rows.len()).unwrap_or(u32::MAX),
        }
    }
    /// The row at a position of the frame.
    pub(super) fn row(&self, position: u32) -> Option<u32> {
        match self {
            Self::All(count) => (position < *count).then_some(position),
            Self::Rows(rows) => rows.get(position as usize).copied(),
        }
    }
    /// The rows at these positions; `None` if one is out of range.
    pub(super) fn pick(&self, positions: &[u32]) -> Option<Self> {
        positions.iter().map(|position| self.row(*position)).collect::<Option<Arc<[u32]>>>().map(Self::Rows)
    }
    pub(super) fn rows(&self) -> impl Iterator<Item = u32> + '_ {
        let (all, some) = match self {
            Self::All(count) => (0..*count, &[][..]),
            Self::Rows(rows) => (0..0, &rows[..]),
        };
        all.chain(some.iter().copied())
    }
}

impl Work {
    /// A body on its way in; `topics` are the plans of the body's topics, in order.
    pub(super) fn new(body: BatchBody, topics: Vec<Arc<TopicPlan>>) -> Self {
        let bytes = body.bytes().len();
        Self {
            body,
            topics,
            rows: None,
            passed: 0,
            fates: Vec::new(),
            refusals: Vec::new(),
            touched: false,
            bytes,
            frame: None,
            offsets: OnceLock::new(),
        }
    }

    /// Records of a body on their way out: those at the ascending positions `at`.
    pub(super) fn some(
        body: BatchBody,
        topics: Vec<Arc<TopicPlan>>,
        at: &[u32],
        frame: Option<Arc<StoredFrame>>,
    ) -> Self {
        debug_assert!(at.is_sorted_by(|a, b| a < b), "positions ascend");
        let mut work = Self::new(body, topics);
        work.frame = frame;
        if at.len() < work.body.len() as usize {
            let mut wanted = at.iter().copied().peekable();
            let rows = work.rows_mut();
            rows.retain(|row| wanted.next_if_eq(&row.at).is_some());
        }
        work
    }

    pub(super) fn body(&self) -> &BatchBody {
        &self.body
    }
    pub(super) fn into_body(self) -> BatchBody {
        self.body
    }
    pub(super) fn touched(&self) -> bool {
        self.touched
    }
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
    pub(super) fn topics(&self) -> &[Arc<TopicPlan>] {
        &self.topics
    }
    /// The rows, unless it is whole.
    pub(super) fn rows(&self) -> Option<&[Row]> {
        self.rows.as_deref()
    }
    pub(super) fn len(&self) -> u32 {
        self.rows.as_ref().map_or(self.body.len(), |rows| u32::try_from(rows.len()).unwrap_or(u32::MAX))
    }
    pub(super) fn view(&self) -> View<'_> {
        View {
            work: self,
            keys: Column::new(self.body.key_column()),
            values: Column::new(self.body.value_column()),
            headers: Column::new(self.body.header_column()),
            timestamps: self.body.timestamp_column(),
        }
    }

    /// All records, if the batch is whole and all of them meet a chain position.
    pub(super) fn select_all(&self, hook: Hook, position: usize) -> Option<Selection> {
        let whole = self.rows.is_none() && self.topics.iter().all(|topic| topic.meets(hook, position));
        (whole && !self.body.is_empty()).then_some(Selection::All(self.body.len()))
    }

    /// The live records whose current topic meets a chain position; `None` if there are none.
    pub(super) fn select(&mut self, hook: Hook, position: usize) -> Option<Selection> {
        let meets = |topic: &Arc<TopicPlan>| topic.meets(hook, position);
        if self.rows.is_none() && !self.topics.iter().any(meets) {
            return None;
        }
        let met: Vec<bool> = self.topics.iter().map(meets).collect();
        let rows = self.rows_mut();
        let chosen: Arc<[u32]> = (0_u32..)
            .zip(rows.iter())
            .filter(|(_, row)| met.get(row.topic as usize).copied().unwrap_or(false))
            .map(|(i, _)| i)
            .collect();
        (!chosen.is_empty()).then_some(Selection::Rows(chosen))
    }

    /// Notes that the records of a call passed a guarded position.
    pub(super) fn pass(&mut self, selection: &Selection, guard: u128) {
        if guard == 0 {
            return;
        }
        match (&mut self.rows, selection) {
            (None, _) => self.passed |= guard,
            (Some(rows), Selection::All(_)) => rows.iter_mut().for_each(|row| row.passed |= guard),
            (Some(rows), Selection::Rows(chosen)) => {
                for i in chosen.iter() {
                    if let Some(row) = rows.get_mut(*i as usize) {
                        row.passed |= guard;
                    }
                }
            }
        }
    }

    /// Applies a checked verdict to the records it was made for.
    pub(super) fn apply(&mut self, selection: &Selection, plan: Plan) {
        if !plan.refuse_all && plan.changes.is_empty() && plan.emitted.is_empty() {
            return;
        }
        self.touched = true;
        self.bytes = self.bytes.saturating_add(plan.bytes);
        self.topics.extend(plan.topics);
        let first_refusal = self.refusals.len();
        self.refusals.extend(plan.refusals);
        let refusal = |number: u32| u32::try_from(first_refusal).unwrap_or(u32::MAX).saturating_add(number);
        let mut rows = std::mem::take(self.rows_mut());
        let mut gone = vec![false; rows.len()];
        let mut refuse = |work: &mut Self, i: u32, row: &Row, number: u32| {
            work.refuse(row, refusal(number));
            if let Some(gone) = gone.get_mut(i as usize) {
                *gone = true;
            }
        };
        if plan.refuse_all {
            for i in selection.rows() {
                if let Some(row) = rows.get(i as usize) {
                    refuse(self, i, row, 0);
                }
            }
        }
        for (i, change) in plan.changes {
            let Some(row) = rows.get_mut(i as usize) else { continue };
            match change {
                Change::Refuse(number) => refuse(self, i, row, number),
                Change::Edit { patch, topic } => {
                    row.topic = topic.unwrap_or(row.topic);
                    row.patch = patch.or_else(|| row.patch.take());
                }
            }
        }
        rows.extend(plan.emitted);
        gone.resize(rows.len(), false);
        self.keep(&mut rows, &gone);
        self.rows = Some(rows);
    }

    /// Rejects records at the end of the chain; `reject` gives the reason for those it concerns.
    pub(super) fn reject_where(&mut self, reject: impl Fn(&Row, &TopicPlan) -> Option<Refusal>) {
        let mut rows = std::mem::take(self.rows_mut());
        let mut gone = vec![false; rows.len()];
        for (row, gone) in rows.iter().zip(&mut gone) {
            let refusal = self.topics.get(row.topic as usize).and_then(|topic| reject(row, topic));
            if let Some(refusal) = refusal {
                let number = u32::try_from(self.refusals.len()).unwrap_or(u32::MAX);
                self.refusals.push(refusal);
                self.refuse(row, number);
                *gone = true;
            }
        }
        self.touched |= gone.contains(&true);
        self.keep(&mut rows, &gone);
        self.rows = Some(rows);
    }

    /// Guards that all records passed, while it is whole.
    pub(super) fn passed_by_all(&self) -> u128 {
        self.passed
    }

    /// Records of the body that are not stored, ascending, with the reason.
    pub(super) fn refused(&self) -> impl Iterator<Item = (u32, &Refusal)> {
        (0_u32..).zip(&self.fates).filter_map(|(at, fate)| {
            let number = fate.checked_sub(1)?;
            Some((at, self.refusals.get(number as usize)?))
        })
    }

    /// A list of rows from here on.
    fn rows_mut(&mut self) -> &mut Vec<Row> {
        let (body, passed) = (&self.body, self.passed);
        self.rows.get_or_insert_with(|| {
            let mut rows = Vec::with_capacity(body.len() as usize);
            for section in body.sections() {
                let topic = u32::from(section.topic);
                rows.extend((section.first..section.first.saturating_add(section.records)).map(|at| Row {
                    at,
                    topic,
                    first_topic: topic,
                    emitted: false,
                    passed,
                    patch: None,
                }));
            }
            rows
        })
    }

    /// Marks the record of the client that a refused row stems from. An emitted record that is dropped goes alone; one
    /// that is rejected takes its origin along, so that nothing of it is lost in silence.
    fn refuse(&mut self, row: &Row, number: u32) {
        let Some(refusal) = self.refusals.get(number as usize) else { return };
        if row.emitted && refusal.status == RefusedStatus::Dropped {
            return;
        }
        let rejected = |work: &Self| work.is_rejected(row.at);
        if rejected(self) {
            return;
        }
        if self.fates.is_empty() {
            self.fates = vec![0; self.body.len() as usize];
        }
        if let Some(fate) = self.fates.get_mut(row.at as usize) {
            *fate = number.saturating_add(1);
        }
    }

    fn is_rejected(&self, at: u32) -> bool {
        let fate = self.fates.get(at as usize).and_then(|fate| fate.checked_sub(1));
        fate.and_then(|number| self.refusals.get(number as usize))
            .is_some_and(|refusal| refusal.status == RefusedStatus::Rejected)
    }

    /// Keeps the rows that are not gone and do not stem from a rejected record.
    fn keep(&self, rows: &mut Vec<Row>, gone: &[bool]) {
        let mut gone = gone.iter();
        rows.retain(|row| !gone.next().copied().unwrap_or(false) && !self.is_rejected(row.at));
    }
}

/// Reads fields of live records.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    work: &'a Work,
    pub(super) keys: Column<'a>,
    pub(super) values: Column<'a>,
    pub(super) headers: Column<'a>,
    pub(super) timestamps: &'a [u8],
}

/// A column of a checked body: end words as little-endian bytes, and the items.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column<'a> {
    pub(super) ends: &'a [u8],
    pub(super) data: &'a [u8],
}

impl<'a> Column<'a> {
    fn new((ends, data): (&'a [u8], &'a [u8])) -> Self {
        Self { ends, data }
    }
    fn word(&self, at: usize) -> Option<u32> {
        let word = self.ends.get(at.checked_mul(4)?..)?.first_chunk()?;
        Some(u32::from_le_bytes(*word))
    }
    /// The item of a record, `None` for null.
    pub(super) fn item(&self, at: u32) -> Option<&'a [u8]> {
        let at = at as usize;
        let end = self.word(at)?;
        let start = at.checked_sub(1).map_or(Some(0), |before| self.word(before))? & !NULL;
        if end & NULL != 0 {
            return None;
        }
        self.data.get(start as usize..end as usize)
    }
}

impl<'a> View<'a> {
    fn row(&self, row: u32) -> Option<&'a Row> {
        self.work.rows.as_ref()?.get(row as usize)
    }
    fn patch(&self, row: u32) -> Option<&'a Patch> {
        self.row(row)?.patch.as_deref()
    }
    /// Position in the body.
    pub(super) fn at(&self, row: u32) -> u32 {
        if self.work.rows.is_none() { row } else { self.row(row).map_or(u32::MAX, |row| row.at) }
    }
    pub(super) fn key(&self, row: u32) -> Option<&'a [u8]> {
        match self.patch(row).and_then(|patch| patch.key.as_ref()) {
            Some(key) => key.as_deref(),
            None => self.keys.item(self.at(row)),
        }
    }
    pub(super) fn value(&self, row: u32) -> Option<&'a [u8]> {
        match self.patch(row).and_then(|patch| patch.value.as_ref()) {
            Some(value) => value.as_deref(),
            None => self.values.item(self.at(row)),
        }
    }
    /// The headers item; empty for none.
    pub(super) fn headers(&self, row: u32) -> &'a [u8] {
        match self.patch(row).and_then(|patch| patch.headers.as_ref()) {
            Some(headers) => headers,
            None => self.headers.item(self.at(row)).unwrap_or_default(),
        }
    }
    /// Number of the current topic.
    pub(super) fn topic_number(&self, row: u32) -> u32 {
        match self.row(row) {
            Some(row) => row.topic,
            None => {
                let sections = self.work.body.sections();
                let next = sections.partition_point(|section| section.first <= row);
                next.checked_sub(1).and_then(|i| sections.get(i)).map_or(0, |section| u32::from(section.topic))
            }
        }
    }
    pub(super) fn topic(&self, row: u32) -> &'a str {
        let number = self.topic_number(row) as usize;
        self.work.topics.get(number).map_or("", |topic| topic.name.as_str())
    }
    /// Little-endian bytes of the producer's time.
    pub(super) fn timestamp(&self, row: u32) -> [u8; 8] {
        let start = (self.at(row) as usize).saturating_mul(8);
        self.timestamps.get(start..).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or_default()
    }
    /// The offset on fetch, the position in the client's batch on produce.
    pub(super) fn offset(&self, row: u32) -> u64 {
        let at = self.at(row);
        let Some(frame) = &self.work.frame else { return u64::from(at) };
        let offsets = self.work.offsets.get_or_init(|| frame.positions().map(|(_, offset, _)| offset).collect());
        offsets.get(at as usize).copied().unwrap_or(u64::MAX)
    }
}
