//! The task of a producer: it owns the stream, sends batches in the order of their numbers, matches answers to them in
//! that order, and sends again what has none.
//!
//! A batch gets its sequence when it goes out for the first time and keeps it for all its tries.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tidegate_protocol::{
    error::Code,
    wire::{self, ClientBody, OpenProduce, ProduceAck, ProduceHead, ServerBody},
};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use super::{
    BatchAck,
    ack::rejected,
    numbering::Numbering,
    queue::{FILLER, Job, Queue},
};
use crate::{
    Connection, Error, Failure,
    frames::{self, FrameReader},
    stats::Counters,
};

/// No batches come on a produce stream.
const NO_BATCH: u32 = 0;
/// How long a stream is waited for before batches that are too old get their error.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// How long answers are still awaited on a stream that takes nothing more: one of them may say why.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Driver {
    queue: Arc<Queue>,
    connection: Connection,
    /// Unless batches go without numbers.
    numbering: Option<Numbering>,
    /// On the stream, without an answer, in the order they were written.
    sent: VecDeque<Job>,
    /// To be sent again, by number.
    again: BTreeMap<u64, Job>,
    /// Times in a row that the way to the broker failed.
    losses: u32,
}

struct Stream {
    send: quinn::SendStream,
    reader: FrameReader,
    /// What is left of the frame being written.
    writing: VecDeque<Bytes>,
    /// Why nothing can be written any more, and until when answers are awaited.
    broken: Option<(Error, Instant)>,
}

enum End {
    Closed,
    /// Another producer id is needed, and nothing waits for an answer.
    Forgotten,
    Lost(Error),
    Unopened(Error),
}

impl Driver {
    pub(super) fn new(queue: Arc<Queue>, connection: Connection, numbering: Option<Numbering>) -> Self {
        Self { queue, connection, numbering, sent: VecDeque::new(), again: BTreeMap::new(), losses: 0 }
    }

    pub(super) async fn run(mut self) {
        while !self.queue.has_ended() {
            if self.again.is_empty() && !self.queue.has_work() {
                self.queue.work().await;
                continue;
            }
            // A connection all of whose streams are taken lets nobody in.
            let opened = timeout(OPEN_MAX, self.open()).await;
            let opened = opened.unwrap_or(Err(Error::Timeout { what: "opening a produce stream", after: OPEN_MAX }));
            let end = match opened {
                Ok(mut stream) => {
                    let end = self.serve(&mut stream).await;
                    if matches!(end, End::Lost(_)) {
                        // It may be half-way through a frame. It fails only on a stream that has ended.
                        stream.send.reset(quinn::VarInt::from_u32(0)).ok();
                    }
                    end
                }
                Err(error) => End::Unopened(error),
            };
            let error = match end {
                End::Closed => break,
                End::Forgotten => continue,
                End::Lost(error) => error,
                End::Unopened(error) => {
                    if !error.is_retriable() {
                        // No try can change it: what waits is told now. What comes later is tried anew.
                        self.give_up(&error, |_| true);
                    }
                    error
                }
            };
            self.lost(error).await;
        }
    }

    async fn open(&mut self) -> Result<Stream, Error> {
        if let Some(numbering) = self.numbering.as_mut().filter(|numbering| numbering.is_forgotten()) {
            numbering.renew(self.connection.admin().producer_id().await?);
        }
        let link = self.connection.link().await?;
        let (mut send, receive) = link.quic.open_bi().await?;
        send.write_all(&frames::encode(ClientBody::OpenProduce(OpenProduce {}))).await?;
        let reader = FrameReader::new(receive, NO_BATCH);
        Ok(Stream { send, reader, writing: VecDeque::new(), broken: None })
    }

    async fn serve(&mut self, stream: &mut Stream) -> End {
        loop {
            if self.queue.has_ended() {
                // It fails only on a stream the broker has stopped.
                stream.send.finish().ok();
                return End::Closed;
            }
            if self.sent.is_empty() && self.numbering.as_ref().is_some_and(Numbering::is_forgotten) {
                // It fails only on a stream the broker has stopped.
                stream.send.finish().ok();
                return End::Forgotten;
            }
            let now = Instant::now();
            if stream.writing.is_empty()
                && stream.broken.is_none()
                && let Some(job) = self.next_job(now)
            {
                stream.writing = self.frame(&job);
                self.sent.push_back(job);
            }
            let wake = self.wake(stream, now);
            let can_write = !stream.writing.is_empty() && stream.broken.is_none();
            tokio::select! {
                message = stream.reader.next_message() => {
                    if let Err(error) = self.take_message(message) {
                        return End::Lost(stream.broken.take().map_or(error, |(cause, _)| cause));
                    }
                }
                written = stream.send.write_chunks(stream.writing.make_contiguous()), if can_write => match written {
                    Ok(written) => drop(stream.writing.drain(..written.chunks)),
                    Err(error) => stream.broken = Some((error.into(), now + LAST_WORDS)),
                },
                () = sleep_until(wake) => {
                    if let Some(error) = self.overdue(stream) {
                        return End::Lost(error);
                    }
                }
                () = self.queue.work() => {}
            }
        }
    }

    /// The batch to send now: those for another try first, then a filler, then new ones. It has its sequence.
    fn next_job(&mut self, now: Instant) -> Option<Job> {
        let takes_new = self.takes_new();
        let is_due = |job: &Job| job.due <= now && (takes_new || job.stamp.is_some());
        let due = self.again.iter().find(|(_, job)| is_due(job)).map(|(number, _)| *number);
        if let Some(job) = due.and_then(|number| self.again.remove(&number)) {
            return Some(self.numbered(job));
        }
        if let Some((stamp, body)) = self.numbering.as_mut().and_then(Numbering::fill) {
            debug!(sequence = stamp.sequence, "many batches were refused: an empty one keeps the window moving");
            return Some(self.queue.filler(stamp, body));
        }
        if !takes_new {
            return None;
        }
        let job = self.queue.take(now)?;
        Some(self.numbered(job))
    }

    /// Whether a batch without a sequence may go out.
    fn takes_new(&self) -> bool {
        self.numbering.as_ref().is_none_or(Numbering::has_room)
    }

    fn numbered(&mut self, mut job: Job) -> Job {
        job.stamp = job.stamp.or_else(|| self.numbering.as_mut().map(Numbering::number));
        job
    }

    fn frame(&self, job: &Job) -> VecDeque<Bytes> {
        let head = ProduceHead {
            producer_id: job.stamp.map_or(0, |stamp| stamp.id),
            producer_epoch: job.stamp.map_or(0, |stamp| stamp.epoch),
            sequence: job.stamp.map_or(0, |stamp| stamp.sequence),
            conditions: job.conditions.clone(),
        };
        if job.sent {
            Counters::add(&self.connection.counters().batches_resent);
        }
        VecDeque::from([wire::encode_batch_head(&head, job.body.len()), job.body.clone()])
    }

    /// When to look again if nothing happens.
    fn wake(&self, stream: &Stream, now: Instant) -> Instant {
        // Far enough; `sleep_until` needs some instant.
        let mut wake = now + Duration::from_secs(3_600);
        wake = self.sent.iter().map(|job| job.deadline).fold(wake, Instant::min);
        if let Some((_, until)) = &stream.broken {
            return wake.min(*until);
        }
        if stream.writing.is_empty() {
            let takes_new = self.takes_new();
            let again = self.again.values().filter(|job| takes_new || job.stamp.is_some()).map(|job| job.due);
            let new = self.queue.due().filter(|_| takes_new);
            wake = again.chain(new).fold(wake, Instant::min);
        }
        wake
    }

    /// Why the stream is to be given up now, if it is.
    fn overdue(&self, stream: &mut Stream) -> Option<Error> {
        let now = Instant::now();
        if let Some((error, _)) = stream.broken.take_if(|(_, until)| *until <= now) {
            return Some(error);
        }
        let late = self.sent.iter().find(|job| job.deadline <= now)?;
        debug!(batch = late.number, "no answer in time, the stream is given up");
        Some(Error::Timeout { what: "a batch", after: now.duration_since(late.due) })
    }

    /// An error ends the stream.
    fn take_message(&mut self, message: Result<Option<ServerBody>, Error>) -> Result<(), Error> {
        match message? {
            Some(ServerBody::ProduceAck(ack)) => match self.sent.pop_front() {
                Some(job) => {
                    self.losses = 0;
                    self.take_ack(job, ack)
                }
                None => Err(Error::Protocol { what: "an answer without a batch" }),
            },
            Some(ServerBody::Failure(failure)) => {
                let error = Error::broker(failure);
                if !error.is_retriable()
                    && let Some(job) = self.sent.pop_front()
                {
                    // The stream ends with the batch that broke it; those behind it are tried on another.
                    self.answer(job, Err(error.clone()));
                }
                Err(error)
            }
            Some(_) => Err(Error::Protocol { what: "a message that belongs to no producer" }),
            None => Err(Error::StreamEnded { what: "before all batches had an answer" }),
        }
    }

    fn take_ack(&mut self, mut job: Job, mut ack: ProduceAck) -> Result<(), Error> {
        let Some(failure) = ack.failure.take() else {
            if ack.duplicate && !job.sent {
                // The answer is to a batch of somebody else's, who goes by our id, epoch and sequence.
                let error = Error::IdentityInUse;
                self.answer(job, Err(error.clone()));
                self.fail_all(&error);
                return Err(error);
            }
            let answer = BatchAck::read(ack, job.records);
            if let Some((numbering, stamp)) = self.numbering.as_mut().zip(job.stamp) {
                numbering.store(stamp);
            }
            self.answer(job, answer.map(Arc::new));
            return Ok(());
        };
        let failure = Failure { rejected: rejected(ack.runs), ..Failure::from(failure) };
        let wait = self.connection.options().backoff.wait(job.attempt);
        let due = Instant::now() + failure.retry_after.unwrap_or_default().max(wait);
        if failure.is_retriable() && due < job.deadline {
            debug!(batch = job.number, %failure, "batch is sent again later");
            job.attempt = job.attempt.saturating_add(1);
            job.due = due;
            job.sent = true;
            self.again.insert(job.number, job);
            return Ok(());
        }
        // All tries have an answer and none is stored, so it may go out again as somebody else's.
        if failure.code == Some(Code::SequenceGap)
            && !job.uncertain
            && let Some((numbering, stamp)) = self.numbering.as_mut().zip(job.stamp)
            && numbering.forget(stamp)
        {
            debug!(batch = job.number, "the broker has forgotten this producer, it goes on under another id");
            job.stamp = None;
            job.due = Instant::now();
            if job.number == FILLER {
                numbering.filled();
            } else {
                self.again.insert(job.number, job);
            }
            return Ok(());
        }
        let fenced = failure.code == Some(Code::ProducerFenced);
        let error = Error::Broker(Box::new(failure));
        self.answer(job, Err(error.clone()));
        if fenced {
            // Another instance has taken over: whatever is left must not be tried again.
            self.fail_all(&error);
            return Err(error);
        }
        Ok(())
    }

    /// Makes what is on the way ready to go again, gives up what is too old, and waits a little.
    async fn lost(&mut self, error: Error) {
        debug!(%error, unanswered = self.sent.len(), "produce stream lost");
        let now = Instant::now();
        for mut job in std::mem::take(&mut self.sent) {
            (job.sent, job.uncertain) = (true, true);
            job.due = now;
            if self.numbering.is_some() {
                self.again.insert(job.number, job);
            } else {
                self.answer(job, Err(Error::Unanswered { cause: Box::new(error.clone()) }));
            }
        }
        self.give_up(&error, |job| job.deadline <= now);
        if self.again.is_empty() && !self.queue.has_work() {
            return;
        }
        let wait = self.connection.options().backoff.wait(self.losses);
        self.losses = self.losses.saturating_add(1);
        let until = now + wait;
        while Instant::now() < until && !self.queue.has_ended() {
            tokio::select! {
                () = sleep_until(until) => {}
                () = self.queue.work() => {}
            }
        }
    }

    fn give_up(&mut self, cause: &Error, wanted: impl Fn(&Job) -> bool) {
        let now = Instant::now();
        while let Some(job) = self.queue.take(now) {
            self.again.insert(job.number, job);
        }
        let given_up: Vec<Job> = self.again.extract_if(.., |_, job| wanted(job)).map(|(_, job)| job).collect();
        for job in given_up {
            self.answer(job, Err(cause.clone()));
        }
    }

    /// The last word on a batch. What refuses this try says nothing of an earlier one that has no answer, unless the broker
    /// looked for that one first.
    fn answer(&mut self, job: Job, answer: Result<Arc<BatchAck>, Error>) {
        let answer = answer.map_err(|error| match error {
            error @ Error::Unanswered { .. } => error,
            error if job.uncertain && !error.code().is_some_and(is_behind_look_up) => {
                Error::Unanswered { cause: Box::new(error) }
            }
            error => error,
        });
        if job.number == FILLER
            && let Some(numbering) = &mut self.numbering
        {
            numbering.filled();
        }
        self.queue.answer(job, answer);
    }

    fn fail_all(&mut self, fault: &Error) {
        self.queue.fail(fault);
        for job in std::mem::take(&mut self.sent).into_iter().chain(std::mem::take(&mut self.again).into_values()) {
            self.answer(job, Err(fault.clone()));
        }
    }
}

/// Whether a batch gets this code only after the broker has looked whether its sequence is stored.
fn is_behind_look_up(code: Code) -> bool {
    matches!(
        code,
        Code::Conflict
            | Code::ConditionTargetMoved
            | Code::PluginRejected
            | Code::PluginRetry
            | Code::PluginFault
            | Code::PluginDeadline
            | Code::PluginUnavailable
            | Code::PluginFailed
            | Code::EnforcementMissing
            | Code::RouteNotGranted
    )
}
