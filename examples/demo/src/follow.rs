//! A reader beside the load: it follows, or reads up to the end, and keeps what the ledger needs.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use tidegate_client::{Connection, Consumer, ConsumerOptions, FetchedBatch, FetchedRecord, Start, headers};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use crate::{ledger::Read, readback::ALL};

/// A follower in the background.
#[derive(Debug)]
pub(crate) struct Follower {
    /// How many records it is to read; 0 = not known yet.
    target: watch::Sender<usize>,
    task: JoinHandle<Result<Seen>>,
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Records in the order they came.
    pub(crate) read: Vec<Read>,
    /// Where to go on.
    pub(crate) cursor: String,
    names: HashMap<String, Arc<str>>,
}

/// A record that is durable reaches a follower within this, or counts as lost.
const LAG_MAX: Duration = Duration::from_secs(30);

impl Follower {
    /// Follows from a cursor on. `stamp` names the header that tells versions apart.
    pub(crate) fn start(connection: &Connection, cursor: &str, stamp: &str) -> Result<Self> {
        let options = ConsumerOptions::new(ALL).start(Start::Cursor(cursor.to_owned())).follow();
        let consumer = connection.consumer(options)?;
        let (target, goal) = watch::channel(0);
        Ok(Self { target, task: tokio::spawn(follow(consumer, goal, stamp.to_owned())) })
    }

    /// Waits until so many records were read.
    pub(crate) async fn finish(self, records: usize) -> Result<Seen> {
        self.target.send(records).ok();
        self.task.await.context("follower")?
    }
}

async fn follow(mut consumer: Consumer, mut goal: watch::Receiver<usize>, stamp: String) -> Result<Seen> {
    let mut seen = Seen::default();
    loop {
        let target = *goal.borrow_and_update();
        if target > 0 && seen.read.len() >= target {
            consumer.cursor().unwrap_or_default().clone_into(&mut seen.cursor);
            return Ok(seen);
        }
        let patience = if target > 0 { LAG_MAX } else { Duration::MAX };
        tokio::select! {
            changed = goal.changed(), if target == 0 => changed.context("the run ended")?,
            next = timeout(patience, consumer.next()) => match next {
                Ok(batch) => seen.take(&batch?.context("a follower's read ended")?, &stamp)?,
                Err(_) => bail!("{} of {target} records reached the follower, then none for {LAG_MAX:?}", seen.read.len()),
            }
        }
    }
}

/// Reads from a cursor to the end.
pub(crate) async fn read_to_end(connection: &Connection, cursor: &str, stamp: &str) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut consumer = connection.consumer(ConsumerOptions::new(ALL).start(Start::Cursor(cursor.to_owned())))?;
    while let Some(batch) = consumer.next().await? {
        seen.take(&batch, stamp)?;
    }
    consumer.cursor().unwrap_or(cursor).clone_into(&mut seen.cursor);
    Ok(seen)
}

impl Seen {
    fn take(&mut self, batch: &FetchedBatch, stamp: &str) -> Result<()> {
        for record in batch.records() {
            let key = record.key.and_then(|key| std::str::from_utf8(key).ok()).and_then(|key| key.parse().ok());
            let id = key.with_context(|| format!("{}@{} has a key nobody sent", record.topic, record.offset))?;
            let topic = self.name(record.topic);
            let stamp = self.name(&stamp_of(&record, stamp));
            self.read.push(Read { id, topic, offset: record.offset, stamp, generation: record.generation });
        }
        Ok(())
    }

    /// One copy of each name, however many records carry it.
    fn name(&mut self, name: &str) -> Arc<str> {
        match self.names.get(name) {
            Some(known) => Arc::clone(known),
            None => {
                let new: Arc<str> = name.into();
                self.names.insert(name.to_owned(), Arc::clone(&new));
                new
            }
        }
    }
}

/// All headers of the name, as text.
fn stamp_of(record: &FetchedRecord<'_>, name: &str) -> String {
    let values = headers(record.headers).filter_map(Result::ok).filter(|(at, _)| *at == name);
    let shown: Vec<String> =
        values.map(|(_, value)| String::from_utf8_lossy(value.unwrap_or_default()).into_owned()).collect();
    if shown.is_empty() { format!("no {name}") } else { format!("{name}={}", shown.join(",")) }
}
