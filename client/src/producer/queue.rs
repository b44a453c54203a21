//! What handle and driver share: the open batch, the batches ready to go, and who waits for what.
//!
//! Bounds: one open batch, and at most `in_flight_max` batches that were closed and have no answer.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tidegate_protocol::{
    batch::{BatchBody, BatchBuilder, BodyError},
    limits::Limits,
    record::Record,
    stored::ProducerStamp,
    wire::Condition,
};
use tokio::{
    sync::{Notify, futures::Notified, watch},
    time::Instant,
};

use super::{BatchAck, ProducerConfig};
use crate::Error;

/// Once there, it stays.
pub(super) type Answer = Option<Result<Arc<BatchAck>, Error>>;

/// No batch is closed that lies further than this ahead of the oldest without an answer: the broker knows 1024 sequences.
const SEQUENCE_SPAN_MAX: u64 = 1_000;
/// The number of a filler, of which there is one at a time: batches never come so far.
pub(super) const FILLER: u64 = u64::MAX;
/// Bound on `retry_for`: a retry must come while the broker surely knows the producer, which is an hour.
const RETRY_FOR_MAX: Duration = Duration::from_secs(50 * 60);
/// Bound on `in_flight_max`, well inside what the broker remembers.
const IN_FLIGHT_MAX: usize = 512;

/// A closed batch on its way.
#[derive(Debug)]
pub(super) struct Job {
    /// Its place among the batches of this producer.
    pub(super) number: u64,
    /// Given when it goes out for the first time.
    pub(super) stamp: Option<ProducerStamp>,
    pub(super) body: Bytes,
    pub(super) records: u32,
    pub(super) conditions: Vec<Condition>,
    /// Tries that ended without a final answer.
    pub(super) attempt: u32,
    /// When it is given up.
    pub(super) deadline: Instant,
    /// When it may be sent.
    pub(super) due: Instant,
    /// It went out at least once.
    pub(super) sent: bool,
    /// A try of it has no answer and never will: it may be stored.
    pub(super) uncertain: bool,
    done: watch::Sender<Answer>,
}

/// What became of a push.
pub(super) enum Pushed {
    /// The record is in the open batch.
    In { done: watch::Receiver<Answer>, at: u32 },
    /// Too much is in flight: wait for space.
    Full,
}

#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Told when something can be pushed again.
    space: Notify,
    /// Told when the driver has something to look at.
    work: Notify,
    /// Bounds of a batch that gathers records.
    gather: Limits,
    /// The broker's bounds.
    limits: Limits,
    linger: Duration,
    retry_for: Duration,
    in_flight_max: usize,
}

#[derive(Debug)]
struct State {
    builder: BatchBuilder,
    open: Option<Open>,
    ready: VecDeque<Job>,
    unanswered: BTreeMap<u64, watch::Receiver<Answer>>,
    next_number: u64,
    /// Takes no more.
    closed: bool,
    /// Nobody waits any more.
    abandoned: bool,
    /// Why it takes no more, if the broker said so.
    fault: Option<Error>,
}

/// The batch that gathers records.
#[derive(Debug)]
struct Open {
    done: watch::Sender<Answer>,
    since: Instant,
    /// To be closed as soon as there is room.
    full: bool,
}

impl Queue {
    pub(super) fn new(config: &ProducerConfig, limits: Limits) -> Self {
        let gather = Limits {
            batch_bytes_max: config.batch_bytes_max.min(limits.batch_bytes_max),
            batch_records_max: config.batch_records_max.clamp(1, limits.batch_records_max.max(1)),
            ..limits
        };
        let state = State {
            builder: BatchBuilder::new(),
            open: None,
            ready: VecDeque::new(),
            unanswered: BTreeMap::new(),
            next_number: 0,
            closed: false,
            abandoned: false,
            fault: None,
        };
        Self {
            state: Mutex::new(state),
            space: Notify::new(),
            work: Notify::new(),
            gather,
            limits,
            linger: config.linger,
            retry_for: config.retry_for.min(RETRY_FOR_MAX),
            in_flight_max: config.in_flight_max.clamp(1, IN_FLIGHT_MAX),
        }
    }

    /// To be taken before a push is tried, so that no space is missed.
    pub(super) fn space(&self) -> Notified<'_> {
        self.space.notified()
    }

    pub(super) fn push(&self, topic: &str, record: &Record) -> Result<Pushed, Error> {
        let mut state = self.lock();
        state.check()?;
        if !state.builder.is_empty() {
            match state.builder.check(topic, record, &self.gather) {
                Ok(()) => {}
                // The batch is full, and the record may still fit into the next.
                Err(BodyError::Limit { record: None, .. }) => {
                    if !self.seal(&mut state) {
                        state.mark_full();
                        return Ok(Pushed::Full);
                    }
                }
                Err(error) => return Err(Error::Invalid(error)),
            }
        }
        if state.builder.is_empty() {
            // Alone, a record may be larger than a batch that gathers.
            state.builder.check(topic, record, &self.limits).map_err(Error::Invalid)?;
        }
        state.builder.push_record(topic, record)?;
        let at = state.builder.len() - 1;
        let full = state.builder.len() >= self.gather.batch_records_max
            || state.builder.encoded_bytes() >= self.gather.batch_bytes_max as usize;
        let is_first = state.open.is_none();
        let open = state.open.get_or_insert_with(|| Open {
            done: watch::Sender::new(None),
            since: Instant::now(),
            full: false,
        });
        open.full |= full;
        let done = open.done.subscribe();
        let sealed = full && self.seal(&mut state);
        if is_first || sealed {
            self.work.notify_one();
        }
        Ok(Pushed::In { done, at })
    }

    /// Takes the batch out of `job` once there is room for it.
    pub(super) fn submit(
        &self,
        job: &mut Option<(BatchBody, Vec<Condition>)>,
    ) -> Result<Option<watch::Receiver<Answer>>, Error> {
        let mut state = self.lock();
        state.check()?;
        if let Some((body, conditions)) = job {
            self.check_batch(body, conditions)?;
        }
        if state.open.is_some() && !self.seal(&mut state) {
            state.mark_full();
            return Ok(None);
        }
        if !self.has_room(&state) {
            return Ok(None);
        }
        let Some((body, conditions)) = job.take() else { return Err(Error::Closed) };
        let done = watch::Sender::new(None);
        let receiver = done.subscribe();
        self.enqueue(&mut state, body.bytes().clone(), body.len(), conditions, done);
        self.work.notify_one();
        Ok(Some(receiver))
    }

    /// Closes what is open, and gives all that have no answer.
    pub(super) fn flush(&self) -> Vec<watch::Receiver<Answer>> {
        let mut state = self.lock();
        let mut waiting: Vec<_> = Vec::new();
        if state.open.is_some() && !self.seal(&mut state) {
            state.mark_full();
            waiting.extend(state.open.as_ref().map(|open| open.done.subscribe()));
        }
        waiting.extend(state.unanswered.values().cloned());
        self.work.notify_one();
        waiting
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.space.notify_waiters();
        self.work.notify_one();
    }

    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.abandoned = true;
        self.work.notify_one();
    }

    pub(super) fn in_flight(&self) -> usize {
        self.lock().unanswered.len()
    }

    // For the driver.

    /// The next batch that was never sent; closes the open one if its time has come.
    pub(super) fn take(&self, now: Instant) -> Option<Job> {
        let mut state = self.lock();
        if state.ready.is_empty() {
            let due = state.open.as_ref().is_some_and(|open| open.full || now >= open.since + self.linger);
            if due && self.seal(&mut state) {
                self.space.notify_waiters();
            }
        }
        state.ready.pop_front()
    }

    /// When the open batch is to be closed; `None` if there is none, or no room to close it.
    pub(super) fn due(&self) -> Option<Instant> {
        let state = self.lock();
        let open = state.open.as_ref().filter(|_| self.has_room(&state))?;
        Some(if open.full { open.since } else { open.since + self.linger })
    }

    /// Waits for anything that could change what `take`, `due` or `has_ended` say.
    pub(super) async fn work(&self) {
        self.work.notified().await;
    }

    /// Something is open or ready.
    pub(super) fn has_work(&self) -> bool {
        let state = self.lock();
        state.open.is_some() || !state.ready.is_empty()
    }

    /// Closed, and nothing waits for an answer; or nobody does.
    pub(super) fn has_ended(&self) -> bool {
        let state = self.lock();
        state.abandoned || (state.closed && state.open.is_none() && state.unanswered.is_empty())
    }

    /// A batch that nobody waits for.
    pub(super) fn filler(&self, stamp: ProducerStamp, body: Bytes) -> Job {
        Job { stamp: Some(stamp), ..self.job(FILLER, body, 0, Vec::new(), watch::Sender::new(None)) }
    }

    /// Gives a batch its answer.
    pub(super) fn answer(&self, job: Job, answer: Result<Arc<BatchAck>, Error>) {
        self.lock().unanswered.remove(&job.number);
        job.done.send_replace(Some(answer));
        self.space.notify_waiters();
    }

    /// Takes no more, and fails what was not taken by the driver.
    pub(super) fn fail(&self, fault: &Error) {
        let (ready, open) = {
            let mut state = self.lock();
            state.fault = Some(fault.clone());
            state.builder.clear();
            (std::mem::take(&mut state.ready), state.open.take())
        };
        for job in ready {
            self.answer(job, Err(fault.clone()));
        }
        if let Some(open) = open {
            open.done.send_replace(Some(Err(fault.clone())));
        }
        self.space.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics half-way: every step leaves a state that holds.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self, state: &State) -> bool {
        let oldest = state.unanswered.keys().next().copied().unwrap_or(state.next_number);
        state.unanswered.len() < self.in_flight_max && state.next_number - oldest < SEQUENCE_SPAN_MAX
    }

    /// Closes the open batch if there is room for one more.
    fn seal(&self, state: &mut State) -> bool {
        if !self.has_room(state) {
            return false;
        }
        if let Some(open) = state.open.take() {
            let records = state.builder.len();
            let body = state.builder.finish();
            self.enqueue(state, body, records, Vec::new(), open.done);
        }
        true
    }

    fn enqueue(
        &self,
        state: &mut State,
        body: Bytes,
        records: u32,
        conditions: Vec<Condition>,
        done: watch::Sender<Answer>,
    ) {
        let number = state.next_number;
        state.next_number += 1;
        state.unanswered.insert(number, done.subscribe());
        state.ready.push_back(self.job(number, body, records, conditions, done));
    }

    fn job(
        &self,
        number: u64,
        body: Bytes,
        records: u32,
        conditions: Vec<Condition>,
        done: watch::Sender<Answer>,
    ) -> Job {
        let now = Instant::now();
        let (stamp, attempt, sent, uncertain) = Default::default();
        let deadline = now + self.retry_for;
        Job { number, stamp, body, records, conditions, attempt, deadline, due: now, sent, uncertain, done }
    }

    fn check_batch(&self, body: &BatchBody, conditions: &[Condition]) -> Result<(), Error> {
        for (what, actual, max) in [
            ("batch bytes", body.bytes().len(), self.limits.batch_bytes_max),
            ("records of the batch", body.len() as usize, self.limits.batch_records_max),
            ("conditions", conditions.len(), self.limits.conditions_max),
        ] {
            let (actual, max) = (actual as u64, u64::from(max));
            if actual > max {
                return Err(Error::Invalid(BodyError::Limit { what, actual, max, record: None }));
            }
        }
        Ok(())
    }
}

impl State {
    fn check(&self) -> Result<(), Error> {
        match &self.fault {
            Some(fault) => Err(fault.clone()),
            None if self.closed => Err(Error::Closed),
            None => Ok(()),
        }
    }

    fn mark_full(&mut self) {
        if let Some(open) = &mut self.open {
            open.full = true;
        }
    }
}
