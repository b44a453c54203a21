//! One produce stream: one part takes batches up to the sequencer, one after the other; one waits until they are durable and
//! gives their bytes free; one tells the answers. All keep the order. While batch k waits for its fdatasync, k + 1 is in its
//! chain, and a client that takes no answers holds no bytes of batches.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_protocol::{
    error::Code,
    stored::{ProducerStamp, RefusedStatus},
    wire::{self, Failure, Frame, ProduceAck, ServerBody, ServerMessage},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
};
use tracing::{Instrument as _, debug, debug_span, error};

use super::{
    Produce, Session, ack,
    budget::Permit,
    check::{self, Checked},
    frames,
    intake::{self, NotTaken},
};
use crate::{
    hooks::{Generation, spec::Rejection},
    record::{Batch, Outcome},
    shard::{Append, Refusal, Ticket},
};

/// Runs of a batch that may be called stale before a change is held back.
const STALE_RUNS_MAX: u32 = 3;

/// What the answering half waits for.
#[derive(Debug)]
enum Pending {
    /// A batch in the log; its answer when it is durable.
    Ticket(Ticket),
    /// A conflict or the like; what it was judged on must be durable first.
    Refused(Refusal),
    /// An answer that depends on nothing.
    Ready(ProduceAck),
    /// The last word on this stream.
    Final(Failure),
}

/// What came of reading.
#[derive(Debug)]
enum Read {
    /// The stream ended between frames, or is gone.
    End,
    /// Something to tell without a batch.
    Answer(Pending),
    /// A frame that is a batch by its outside.
    Batch { head: Bytes, body: Bytes, permit: Permit },
}

impl Read {
    fn broken(error: &frames::FrameError) -> Self {
        let last = |code| Self::Answer(Pending::Final(ack::retry(Failure::new(code, error.to_string()))));
        error.code().map_or(Self::End, last)
    }
}

/// A batch on its way to its answer.
#[derive(Debug)]
struct InFlight {
    pending: Pending,
    /// Given back when the batch is durable, or refused.
    permit: Option<Permit>,
    place: Place,
}

/// An answer on its way to the client.
#[derive(Debug)]
struct Answer {
    body: ServerBody,
    place: Place,
}

/// One of the batches of a stream that wait for their ack.
#[derive(Debug)]
struct Place {
    _permit: OwnedSemaphorePermit,
    taken_at: Duration,
}

impl Produce {
    /// Serves a produce stream until the client ends it, breaks the protocol, or `stopping` becomes true. Everything taken
    /// is answered before this returns. Dropping the future answers nothing more; what is in the log stays.
    pub async fn serve(
        &self,
        session: &Session,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
        stopping: watch::Receiver<bool>,
    ) {
        let in_flight_max = self.config.in_flight_max.max(1);
        let (taken, settling) = mpsc::channel(in_flight_max);
        let (settled, answers) = mpsc::channel(in_flight_max);
        let _open = self.metrics.produce_streams.hold();
        let work = async {
            tokio::join!(self.take(session, reader, taken, stopping), self.settle(settling, settled));
            std::future::pending::<()>().await;
        };
        // When the answers end early, the connection is gone: then the other parts have nobody to work for.
        tokio::select! {
            biased;
            () = self.answer(answers, writer) => {}
            () = work => {}
        }
    }

    /// Takes batches. Ends, and with it the channel, when no more come.
    async fn take(
        &self,
        session: &Session,
        reader: &mut (impl AsyncRead + Unpin),
        taken: mpsc::Sender<InFlight>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let places = Arc::new(Semaphore::new(taken.max_capacity()));
        // A place for the answer first: a client with too many batches in flight is not read.
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            // Only reading is given up for a stop: a batch that may be in the log gets its own answer.
            let read = tokio::select! {
                biased;
                () = stopped(&mut stopping) => {
                    let failure = Failure::new(Code::ShuttingDown, "the broker is draining");
                    Read::Answer(Pending::Final(ack::retry(failure)))
                }
                read = self.read(session, reader) => read,
            };
            let (pending, permit) = match read {
                Read::End => return,
                Read::Answer(pending) => (pending, None),
                Read::Batch { head, body, permit } => (self.batch(session, head, body).await, Some(permit)),
            };
            let last = matches!(pending, Pending::Final(_));
            let place = Place { _permit: place, taken_at: self.clock.monotonic() };
            if taken.send(InFlight { pending, permit, place }).await.is_err() || last {
                return;
            }
        }
    }

    /// Reads one batch, within the budget.
    async fn read(&self, session: &Session, reader: &mut (impl AsyncRead + Unpin)) -> Read {
        let limits = &self.config.limits;
        let prefix = match frames::prefix(reader, limits, limits.control_bytes_max).await {
            Ok(Some(prefix)) => prefix,
            Ok(None) => return Read::End,
            Err(error) => return Read::broken(&error),
        };
        match intake::frame(reader, prefix, &session.budget, &self.config).await {
            Ok((Frame::Batch { head, body }, permit)) => {
                self.metrics.produce_batches.add(1);
                self.metrics.produce_bytes.add(body.len() as u64);
                Read::Batch { head, body, permit }
            }
            Ok((Frame::Control(_), _)) => {
                let failure = Failure::new(Code::ProtocolViolation, "a produce stream carries batches only");
                Read::Answer(Pending::Final(failure))
            }
            Err(NotTaken::Frame(error)) => Read::broken(&error),
            Err(NotTaken::Overloaded { overloaded, left }) => {
                let failure = ack::retry(Failure::new(Code::Overloaded, overloaded.to_string()));
                let skipped = self.in_time(frames::skip(reader, left)).await;
                let answer = |()| Read::Answer(Pending::Ready(ack::failed(failure)));
                skipped.map_or_else(|error| Read::broken(&error), answer)
            }
        }
    }

    async fn in_time<T>(
        &self,
        frame: impl Future<Output = Result<T, frames::FrameError>>,
    ) -> Result<T, frames::FrameError> {
        let time_max = self.config.frame_time_max;
        tokio::time::timeout(time_max, frame).await.unwrap_or(Err(frames::FrameError::Stalled(time_max)))
    }

    /// Checks, looks the sequence up, runs the chain, sequences: ADR 3, steps 3 to 6.
    async fn batch(&self, session: &Session, head: Bytes, body: Bytes) -> Pending {
        let checked = match check::check(head, body, &self.config.limits, &session.principal) {
            Ok(checked) => checked,
            Err(failure) => return Pending::Ready(ack::failed(failure)),
        };
        let topic = checked.body.topic(0).unwrap_or_default();
        let span = debug_span!("produce", topic, records = checked.body.len());
        self.admit(session, &checked).instrument(span).await
    }

    async fn admit(&self, session: &Session, checked: &Checked) -> Pending {
        if let Some(known) = checked.producer.and_then(|stamp| self.known(session, stamp)) {
            return known;
        }
        for _ in 0..STALE_RUNS_MAX {
            match self.run(session, checked).await {
                Ok(pending) => return pending,
                Err(live) => self.stale(live),
            }
            // Gets through once the change that made this run stale is published.
            drop(session.live.hold().await);
        }
        // Now no change may come between chain and sequencer.
        let _held = session.live.hold().await;
        self.run(session, checked).await.unwrap_or_else(|live| {
            self.stale(live);
            let message = format!("generation {live} is live in the log and its chain is not");
            Pending::Ready(ack::failed(Failure::new(Code::Internal, message)))
        })
    }

    fn stale(&self, live: u64) {
        debug!(live, "batch met an activation");
        self.metrics.produce_reruns.add(1);
    }

    fn known(&self, session: &Session, stamp: ProducerStamp) -> Option<Pending> {
        match self.shard.known(session.tenant, stamp) {
            Ok(ticket) => ticket.map(Pending::Ticket),
            Err(refusal) => Some(Pending::Refused(refusal)),
        }
    }

    /// One run of the chain and the sequencer behind it. `Err`: the generation is no longer live.
    async fn run(&self, session: &Session, checked: &Checked) -> Result<Pending, u64> {
        let generation = session.live.now();
        let batch = Batch {
            tenant: session.tenant,
            principal: Arc::clone(&session.principal.name),
            body: checked.body.clone(),
        };
        let (batch, outcome) = match generation.produce(batch).await {
            Ok(done) => done,
            Err(error) => return Ok(Pending::Ready(ack::failed(ack::hook(&error)))),
        };
        if let Some(why) = refused_whole(&generation, &batch, &outcome, !checked.conditions.is_empty()) {
            let ack = ack::rejected(batch.body.len(), &outcome.refused, why, outcome.generation);
            return Ok(Pending::Ready(ack));
        }
        let append = Append {
            batch,
            outcome,
            producer: checked.producer,
            conditions: checked.conditions.clone(),
            create_topics: self.config.create_topics,
        };
        match self.shard.append(append) {
            Ok(ticket) => Ok(Pending::Ticket(ticket)),
            Err(Refusal::StaleGeneration { live }) => Err(live),
            Err(refusal) => Ok(Pending::Refused(refusal)),
        }
    }

    /// Waits until batches are durable, and gives their bytes free.
    async fn settle(&self, mut taken: mpsc::Receiver<InFlight>, settled: mpsc::Sender<Answer>) {
        while let Some(InFlight { pending, permit, place }) = taken.recv().await {
            let body = match pending {
                Pending::Ready(ack) => ServerBody::ProduceAck(ack),
                Pending::Final(failure) => ServerBody::Failure(failure),
                Pending::Refused(refusal) => ServerBody::ProduceAck(self.refused(refusal).await),
                Pending::Ticket(ticket) => ServerBody::ProduceAck(match ticket.durable().await {
                    Ok(appended) => ack::appended(&appended),
                    Err(failed) => {
                        error!(error = %failed, "batch is not durable");
                        ack::failed(Failure::new(failed.code(), failed.to_string()))
                    }
                }),
            };
            drop(permit);
            match &body {
                ServerBody::ProduceAck(ack) => ack::count(ack, &self.metrics),
                ServerBody::Failure(failure) => {
                    failure.known_code().into_iter().for_each(|code| self.metrics.refused(code))
                }
                _ => {}
            }
            if settled.send(Answer { body, place }).await.is_err() {
                return;
            }
        }
    }

    /// Tells the answers. Ends when there are no more, or the client is gone.
    async fn answer(&self, mut answers: mpsc::Receiver<Answer>, writer: &mut (impl AsyncWrite + Unpin)) {
        while let Some(Answer { body, place }) = answers.recv().await {
            let frame = wire::encode_control(&ServerMessage::from(body));
            if let Err(gone) = writer.write_all(&frame).await {
                debug!(error = %gone, "client left before its ack");
                return;
            }
            self.metrics.produce_seconds.record(self.clock.monotonic().saturating_sub(place.taken_at));
            drop(place);
        }
    }

    /// A refusal that names state which is not durable yet waits until it is: it may not be told otherwise.
    async fn refused(&self, refusal: Refusal) -> ProduceAck {
        let failure = ack::refusal(&refusal);
        if let Some(wait) = refusal.wait()
            && let Err(failed) = wait.durable().await
        {
            return ack::failed(Failure::new(failed.code(), failed.to_string()));
        }
        ack::failed(failure)
    }
}

/// Why a batch with rejected records is refused whole, if it is.
fn refused_whole(generation: &Generation, batch: &Batch, outcome: &Outcome, conditions: bool) -> Option<&'static str> {
    let mut rejected = outcome.refused.iter().filter(|entry| entry.status == RefusedStatus::Rejected).peekable();
    rejected.peek()?;
    if conditions {
        return Some("a batch with conditions is taken whole or not at all");
    }
    let all = rejected.any(|entry| {
        let topic = batch.body.topic_at(entry.index).and_then(|number| batch.body.topic(number));
        topic.is_some_and(|topic| generation.rejection(topic) == Rejection::All)
    });
    all.then_some("the topic takes batches whole or not at all: rejection = \"all\"")
}

/// Resolves when the broker is to stop. Cancel-safe.
pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    if stopping.wait_for(|stop| *stop).await.is_err() {
        // Whoever could tell us to stop is gone: nobody will.
        std::future::pending::<()>().await;
    }
}
