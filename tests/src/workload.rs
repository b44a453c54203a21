//! Idempotent producers that outlive the broker: what was not acked when it died is sent again, with the same sequence, to the next
//! one. Everything sent and acked is noted in a ledger.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tidegate_protocol::wire::ProduceHead;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use crate::{
    ledger::Ledger,
    raw::{self, Client, Login, Refused, Send},
};

/// Batches of one producer that wait for their ack.
const IN_FLIGHT_MAX: usize = 8;

/// Producers with their unfinished batches.
#[derive(Debug)]
pub struct Workload {
    name: String,
    producers: Vec<Producer>,
    /// What was sent and acked so far.
    pub ledger: Arc<Mutex<Ledger>>,
    /// Batches acked so far.
    pub acks: Arc<Acks>,
    topics: usize,
    padding: usize,
}

/// Counts acks and tells who waits for them.
#[derive(Debug, Default)]
pub struct Acks {
    count: AtomicU64,
    more: Notify,
}

impl Acks {
    /// Batches acked so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }
    /// Waits until this many batches were acked.
    pub async fn reached(&self, count: u64) {
        loop {
            let more = self.more.notified();
            if self.count() >= count {
                return;
            }
            more.await;
        }
    }
    fn one(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.more.notify_waiters();
    }
}

/// Never stops a workload: the broker's end does.
pub fn never() -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    // Kept open for ever, since a closed channel would stop it too.
    std::mem::forget(sender);
    receiver
}

#[derive(Debug)]
struct Producer {
    number: usize,
    id: u64,
    next: u64,
    pending: VecDeque<(u64, Vec<Send>)>,
}

impl Workload {
    /// `producers` producers that write to `topics` topics `NAME/0`, `NAME/1`, …; values are `padding` bytes longer than their names.
    pub fn new(name: &str, producers: usize, topics: usize, padding: usize) -> Self {
        let producer = |number| Producer { number, id: 0, next: 0, pending: VecDeque::new() };
        Self {
            name: name.to_owned(),
            producers: (0..producers).map(producer).collect(),
            ledger: Arc::default(),
            acks: Arc::default(),
            topics,
            padding,
        }
    }

    /// Sends until the broker dies or drains, or `stop` holds true. The unfinished batches are kept.
    ///
    /// # Panics
    /// If the broker refuses a batch.
    pub async fn run(&mut self, addr: SocketAddr, login: &Login, stop: &watch::Receiver<bool>) {
        let mut tasks = JoinSet::new();
        for producer in std::mem::take(&mut self.producers) {
            let job = Job {
                name: self.name.clone(),
                ledger: self.ledger.clone(),
                acks: self.acks.clone(),
                topics: self.topics,
                padding: self.padding,
            };
            let (login, mut stop) = (login.clone(), stop.clone());
            tasks.spawn(async move {
                let mut producer = producer;
                tokio::select! {
                    _ = job.run(&mut producer, addr, &login) => {}
                    _ = stop.wait_for(|stop| *stop) => {}
                }
                producer
            });
        }
        while let Some(producer) = tasks.join_next().await {
            self.producers.push(producer.unwrap());
        }
        self.producers.sort_by_key(|producer| producer.number);
    }

    /// Sends what is unfinished, and waits for its acks.
    ///
    /// # Panics
    /// If the broker refuses a batch or ends.
    pub async fn finish(&mut self, addr: SocketAddr, login: &Login) {
        for producer in self.producers.iter_mut().filter(|producer| !producer.pending.is_empty()) {
            let client = Client::connect(addr, login).await.unwrap();
            let mut stream = client.producer().await.unwrap();
            while let Some((sequence, records)) = producer.pending.front() {
                stream.push(&head(producer.id, *sequence), &raw::body(records)).await.unwrap();
                let ack = stream.ack().await.unwrap();
                assert!(ack.failure.is_none(), "{ack:?}");
                self.ledger.lock().unwrap().acked(records, &ack);
                producer.pending.pop_front();
            }
            client.close();
        }
    }
}

#[derive(Debug)]
struct Job {
    name: String,
    ledger: Arc<Mutex<Ledger>>,
    acks: Arc<Acks>,
    topics: usize,
    padding: usize,
}

fn head(producer_id: u64, sequence: u64) -> ProduceHead {
    ProduceHead { producer_id, producer_epoch: 0, sequence, conditions: Vec::new() }
}

impl Job {
    async fn run(&self, producer: &mut Producer, addr: SocketAddr, login: &Login) -> Result<(), Refused> {
        let client = Client::connect(addr, login).await?;
        if producer.id == 0 {
            producer.id = match client.ask(producer_id()).await? {
                tidegate_protocol::wire::ServerBody::ProducerId(given) => given.id,
                other => panic!("{other:?}"),
            };
        }
        let mut stream = client.producer().await?;
        // First again what the broker before did not ack.
        for (sequence, records) in &producer.pending {
            stream.push(&head(producer.id, *sequence), &raw::body(records)).await?;
        }
        loop {
            while producer.pending.len() < IN_FLIGHT_MAX {
                let (sequence, records) = (producer.next, self.batch(producer));
                producer.next += 1;
                self.ledger.lock().unwrap().sent(&records);
                let body = raw::body(&records);
                producer.pending.push_back((sequence, records));
                stream.push(&head(producer.id, sequence), &body).await?;
            }
            let ack = stream.ack().await?;
            let (_, records) = producer.pending.front().expect("an ack answers a batch");
            if let Some(failure) = &ack.failure {
                // A broker that is draining, or whose disk failed, says so; anything else is a fault.
                let code = raw::code(failure);
                assert!(is_end(code), "{ack:?}");
                return Err(Refused::Failure(failure.clone()));
            }
            self.ledger.lock().unwrap().acked(records, &ack);
            producer.pending.pop_front();
            self.acks.one();
        }
    }

    /// One to five records over one or several topics, most of them keyed.
    fn batch(&self, producer: &Producer) -> Vec<Send> {
        let sequence = producer.next;
        let seed = sequence.wrapping_mul(7).wrapping_add(producer.number as u64 * 3);
        let count = 1 + seed % 5;
        let record = |at: u64| {
            let topic = format!("{}/{}", self.name, (seed + at * (seed % 2)) % self.topics as u64);
            let name = format!("{}/{}/{sequence}/{at}/{count} ", self.name, producer.number);
            let value = Bytes::from([name.into_bytes(), vec![b'x'; self.padding]].concat());
            if at == 4 {
                Send::new(&topic, value)
            } else {
                Send::keyed(&topic, format!("key-{}", (seed + at) % 17), value)
            }
        };
        (0..count).map(record).collect()
    }
}

fn is_end(code: tidegate_protocol::error::Code) -> bool {
    use tidegate_protocol::error::Code;
    matches!(code, Code::ShuttingDown | Code::StorageFailed | Code::StorageFull)
}

fn producer_id() -> tidegate_protocol::wire::ClientBody {
    tidegate_protocol::wire::ClientBody::ProducerId(tidegate_protocol::wire::ProducerId {})
}
