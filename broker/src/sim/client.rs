//! A client that produces: several batches in flight, conditions on keys that others write too, connections that break, and
//! retries of what was not answered.

use std::{collections::VecDeque, sync::Arc};

use bytes::{Bytes, BytesMut};
use tidegate_protocol::{
    batch::BatchBuilder,
    limits::Limits,
    record::RecordView,
    stored::ProducerStamp,
    wire::{self, Condition, Expect, Frame, ProduceHead, ServerBody, ServerMessage},
};
use tokio::{
    io::{AsyncWriteExt as _, DuplexStream},
    sync::watch,
};

use super::{
    journal::{Sent, Wish},
    life::{Life, turn},
    model::{self, Record},
    tasks::Role,
};
use crate::produce::frames;

/// Batches of one client in flight.
const IN_FLIGHT_MAX: u64 = 6;
/// Bytes that a pipe between client and broker holds: all that is in flight.
const PIPE_BYTES: usize = 64 << 10;

/// What a client keeps over the lives of its broker.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    number: u64,
    epoch: u32,
    sequence: u64,
    /// Batches that were sent and not answered, oldest first.
    open: VecDeque<usize>,
    /// Batches with a stamp of this epoch that were answered.
    answered: Vec<usize>,
}

/// How a connection ended.
enum End {
    /// All was sent and answered.
    Done,
    Broken,
}

impl Memory {
    pub(super) fn new(number: u64) -> Self {
        Self { number, epoch: 0, sequence: 0, open: VecDeque::new(), answered: Vec::new() }
    }

    /// Sends so many new batches, and what is open before them. `keep` gets the memory after each step.
    pub(super) async fn run(mut self, life: Life, batches: u64, keep: Arc<std::sync::Mutex<Self>>) {
        let mut left = batches;
        loop {
            // What has no stamp is not sent again: nobody knows whether it was stored.
            let stamped = |number: &usize| life.journal().sent[*number].stamp.is_some();
            self.open.retain(stamped);
            let (stream, stop) = connect(&life);
            let end = self.connection(&life, stream, &mut left, &keep).await;
            drop(stop);
            if matches!(end, End::Done) || life.is_killed() || life.shard.failed().is_some() {
                return;
            }
        }
    }

    async fn connection(
        &mut self,
        life: &Life,
        mut stream: DuplexStream,
        left: &mut u64,
        keep: &std::sync::Mutex<Self>,
    ) -> End {
        let mut in_flight: VecDeque<usize> = VecDeque::new();
        let mut again: VecDeque<usize> = self.open.clone();
        loop {
            for _ in 0..life.below(3) {
                turn().await;
            }
            if life.one_in(60) {
                return End::Broken;
            }
            let is_more = *left > 0 || !again.is_empty();
            if !is_more && in_flight.is_empty() {
                return End::Done;
            }
            let full = in_flight.len() as u64 >= IN_FLIGHT_MAX;
            if is_more && !full && (in_flight.is_empty() || life.one_in(2)) {
                let number = match again.pop_front() {
                    Some(number) => number,
                    None => {
                        *left -= 1;
                        self.next(life)
                    }
                };
                in_flight.push_back(number);
                *keep.lock().unwrap() = self.clone();
                if self.send(life, &mut stream, number).await.is_err() {
                    return End::Broken;
                }
                continue;
            }
            let Some(ack) = answer(&mut stream).await else { return End::Broken };
            if life.is_killed() {
                return End::Broken;
            }
            let Some(number) = in_flight.pop_front() else { return End::Broken };
            self.answered(life, number, &ack);
            *keep.lock().unwrap() = self.clone();
        }
    }

    fn answered(&mut self, life: &Life, number: usize, ack: &wire::ProduceAck) {
        let (when, may_fail) = ((life.schedule.step(), life.schedule.now()), life.may_fail());
        life.schedule.note(format_args!("batch {number} is answered at {:?}: {}", when.1, told(ack)));
        let mut journal = life.journal();
        journal.answer(number, when, ack, may_fail);
        self.open.retain(|open| *open != number);
        if let Some(stamp) = journal.sent[number].stamp
            && stamp.epoch == self.epoch
            && ack.failure.is_none()
        {
            self.answered.push(number);
        }
    }

    async fn send(&self, life: &Life, stream: &mut DuplexStream, number: usize) -> std::io::Result<()> {
        life.schedule.note(format_args!("client {} sends batch {number}", self.number));
        let frame = {
            let sent = &mut life.journal().sent[number];
            sent.copies += 1;
            sent.frame.clone()
        };
        if life.one_in(5) {
            let cut = usize::try_from(life.below(frame.len() as u64)).unwrap();
            stream.write_all(&frame[..cut]).await?;
            turn().await;
            if life.one_in(6) {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            return stream.write_all(&frame[cut..]).await;
        }
        stream.write_all(&frame).await
    }

    /// A batch to send: mostly a new one, sometimes one that was answered before.
    fn next(&mut self, life: &Life) -> usize {
        if !self.answered.is_empty() && life.one_in(8) {
            let recent = self.answered.len().min(20) as u64;
            let back = usize::try_from(life.below(recent)).unwrap();
            return self.answered[self.answered.len() - 1 - back];
        }
        if life.one_in(50) {
            (self.epoch, self.sequence) = (self.epoch + 1, 0);
            self.answered.clear();
        }
        let number = life.journal().sent.len();
        let records = records(life, number);
        let wishes = wishes(life, &records);
        let stamp = (!self.number.is_multiple_of(3)).then(|| {
            let stamp = ProducerStamp { id: 100 + self.number, epoch: self.epoch, sequence: self.sequence };
            self.sequence += 1;
            stamp
        });
        let frame = encode(&records, &wishes, stamp);
        let (invoked, sent_at) = (life.schedule.step(), life.schedule.now());
        let (answered, answer) = (None, None);
        let sent = Sent { frame, records, wishes, stamp, invoked, sent_at, answered, answer, copies: 0 };
        life.journal().sent.push(sent);
        self.open.push_back(number);
        number
    }
}

fn told(ack: &wire::ProduceAck) -> String {
    match &ack.failure {
        Some(failure) => format!("{:?} {}", failure.known_code(), failure.message),
        None => {
            let runs = ack.runs.iter().map(|run| format!("{}x{}@{}", run.records, run.status, run.first_offset));
            format!("{} duplicate={} @{}", runs.collect::<Vec<_>>().join(" "), ack.duplicate, ack.generation)
        }
    }
}

/// A pipe to the broker, and what keeps its other end open.
fn connect(life: &Life) -> (DuplexStream, watch::Sender<bool>) {
    let (stream, other) = tokio::io::duplex(PIPE_BYTES);
    let (stop, stopping) = watch::channel(false);
    let (produce, session) = (life.produce.clone(), life.session.clone());
    life.tasks.spawn("produce".to_owned(), Role::Server, async move {
        let (mut reader, mut writer) = tokio::io::split(other);
        produce.serve(&session, &mut reader, &mut writer, stopping).await;
    });
    (stream, stop)
}

async fn answer(stream: &mut DuplexStream) -> Option<wire::ProduceAck> {
    let limits = Limits::default();
    let prefix = frames::prefix(stream, &limits, 1 << 20).await.ok()??;
    let Frame::Control(bytes) = frames::payload(stream, prefix).await.ok()? else { return None };
    match wire::decode::<ServerMessage>(bytes).ok()?.body? {
        ServerBody::ProduceAck(ack) => Some(ack),
        _ => None,
    }
}

fn records(life: &Life, number: usize) -> Vec<Record> {
    let count = 1 + life.below(4);
    let record = |at: u64| {
        let topic = match life.below(12) {
            0 => model::ROUTED.to_owned(),
            1..4 => "raw/0".to_owned(),
            _ => format!("in/{}", life.below(3)),
        };
        let key = match life.below(24) {
            0 => Some(model::KEY_DROPPED.to_owned()),
            1 => Some(model::KEY_REJECTED.to_owned()),
            2 => None,
            _ => Some(format!("k{}", life.below(4))),
        };
        let padding = usize::try_from(life.below(1_400)).unwrap();
        Record { topic, key, value: format!("{number}:{at}:{}", "x".repeat(padding)) }
    };
    (0..count).map(record).collect()
}

/// What the client believes of a key of its batch, or of others.
fn wishes(life: &Life, records: &[Record]) -> Vec<Wish> {
    if !life.one_in(3) {
        return Vec::new();
    }
    let (topic, key) = match records.first() {
        Some(Record { topic, key: Some(key), .. }) if !life.one_in(5) => (topic.clone(), key.clone()),
        _ => ("raw/0".to_owned(), "k0".to_owned()),
    };
    let mut wishes = vec![wish(life, topic, key)];
    if life.one_in(4) {
        wishes.push(wish(life, "in/1".to_owned(), "k3".to_owned()));
    }
    wishes
}

fn wish(life: &Life, topic: String, key: String) -> Wish {
    let known = life.journal().known.get(&(topic.clone(), key.clone())).copied().unwrap_or_default();
    let expect = match (life.below(6), known.last_offset) {
        (0, _) => Expect::Version(known.version + life.below(2)),
        (1, Some(offset)) => Expect::LastOffset(offset),
        (2, None) => Expect::Absent(true),
        _ => Expect::Version(known.version),
    };
    Wish { topic, key, expect }
}

fn encode(records: &[Record], wishes: &[Wish], stamp: Option<ProducerStamp>) -> Bytes {
    let mut builder = BatchBuilder::new();
    for Record { topic, key, value } in records {
        let (key, value) = (key.as_deref().map(str::as_bytes), Some(value.as_bytes()));
        builder.push(topic, RecordView { key, value, headers: &[], timestamp_ms: 0 });
    }
    let body = builder.finish();
    let conditions = wishes.iter().map(|wish| Condition {
        topic: wish.topic.clone(),
        key: wish.key.clone().into_bytes(),
        expect: Some(wish.expect),
    });
    let (producer_id, producer_epoch, sequence) =
        stamp.map_or((0, 0, 0), |stamp| (stamp.id, stamp.epoch, stamp.sequence));
    let head = ProduceHead { producer_id, producer_epoch, sequence, conditions: conditions.collect() };
    let mut frame = BytesMut::from(wire::encode_batch_head(&head, body.len()).as_ref());
    frame.extend_from_slice(&body);
    frame.freeze()
}
