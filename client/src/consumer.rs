//! Reading: a subscription, or one read of history, on a stream of its own.
//!
//! The stream is read only while somebody waits in [`Consumer::next`]: a reader that is slow holds one batch and what the
//! transport's window lets in, and the broker waits.

use std::time::Duration;

use bytes::Bytes;
use tidegate_protocol::{
    batch::BatchBody,
    limits::Limits,
    wire::{self, ClientBody, FetchHead, FetchProgress, Frame, Gap, OpenFetch, ServerBody},
};
use tracing::debug;

use crate::{
    Connection, Error,
    frames::{self, FrameReader},
    stats::Counters,
};

/// Where to start reading.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Start {
    /// At the oldest record.
    #[default]
    Earliest,
    /// Behind the newest one.
    Latest,
    /// At a cursor, from [`FetchedBatch::cursor`] or [`Consumer::cursor`].
    Cursor(String),
    /// At an offset; the pattern must be one topic.
    Offset(u64),
    /// At the last record of [`ConsumerOptions::key`].
    KeyHead,
    /// At the first record that the broker took at this time or later: Unix milliseconds.
    Since(i64),
    /// The same, so long before the broker's time now.
    Ago(Duration),
}

/// What to read, and how. Make one with [`ConsumerOptions::new`] and set what differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerOptions {
    /// A topic or pattern.
    pub pattern: String,
    /// Only records of this stored key; the pattern must be one topic. Default all.
    pub key: Option<Bytes>,
    /// Where to start. Default earliest.
    pub start: Start,
    /// Go on with new records for ever. Default: end at what was durable.
    pub follow: bool,
    /// Parameters for fetch plugins: a JSON object, or empty.
    pub parameters: String,
    /// The consumer group's name, or empty.
    pub group: String,
    /// Bound on records scanned, 0 = none. After a resume it counts from the records that were delivered.
    pub records_max: u64,
    /// Bound on bytes scanned, 0 = none. After a resume it counts from the bytes that were delivered.
    pub bytes_max: u64,
    /// Dial again and go on at the cursor when the connection is lost or the broker says "later". Default yes.
    pub resume: bool,
    /// Tries in a row to resume before the error comes out. Default 20 (with the default back-off, over half a minute).
    pub resume_attempts_max: u32,
    /// The largest batch taken from the broker. Default 64 MiB, the most a frame can hold.
    pub batch_bytes_max: u32,
}

impl ConsumerOptions {
    /// Reads a topic or pattern from the oldest record to the end.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            key: None,
            start: Start::Earliest,
            follow: false,
            parameters: String::new(),
            group: String::new(),
            records_max: 0,
            bytes_max: 0,
            resume: true,
            resume_attempts_max: 20,
            batch_bytes_max: Limits::STORED.batch_bytes_max,
        }
    }

    /// Sets where to start.
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Reads one key of one topic.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Goes on with new records for ever.
    #[must_use]
    pub fn follow(mut self) -> Self {
        self.follow = true;
        self
    }
}

/// What a subscription tells.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "it is moved once to its reader, and batches are the common case")]
pub enum Event {
    /// Records.
    Batch(FetchedBatch),
    /// The scan went on, or reached the end; see [`Consumer::cursor`] and [`Consumer::at_end`].
    Progress,
    /// Records that were not read yet are gone, by retention or truncation: the read goes on behind them.
    Gaps(Vec<Gap>),
}

/// A reader of one topic or pattern.
#[derive(Debug)]
pub struct Consumer {
    connection: Connection,
    options: ConsumerOptions,
    reader: Option<FrameReader>,
    // Kept open: finishing it would tell the broker nothing, resetting it would end the subscription.
    send: Option<quinn::SendStream>,
    cursor: Option<String>,
    at_end: bool,
    /// The last frame was progress.
    told: bool,
    delivered_records: u64,
    delivered_bytes: u64,
    attempt: u32,
    opened: bool,
    ended: bool,
}

impl Consumer {
    pub(crate) fn new(connection: Connection, options: ConsumerOptions) -> Self {
        Self {
            connection,
            options,
            reader: None,
            send: None,
            cursor: None,
            at_end: false,
            told: false,
            delivered_records: 0,
            delivered_bytes: 0,
            attempt: 0,
            opened: false,
            ended: false,
        }
    }

    /// The next records; `None` where the read ends (never when following). Cancel-safe. Steps over gaps in silence:
    /// [`Self::next_event`] tells them.
    ///
    /// # Errors
    /// If the broker refuses or ends the read, or the connection is lost and may not or cannot be resumed. Where to go on
    /// is in [`Self::cursor`]; a later call tries again from there, unless the broker's refusal was final.
    pub async fn next(&mut self) -> Result<Option<FetchedBatch>, Error> {
        loop {
            match self.next_event().await? {
                Some(Event::Batch(batch)) => return Ok(Some(batch)),
                Some(Event::Progress | Event::Gaps(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// As [`Self::next`], and comes back also when only the cursor moved, records are gone or the end was reached. Cancel-safe.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_event(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if self.ended {
                return Ok(None);
            }
            let error = match self.read().await {
                Ok(Some(event)) => {
                    self.attempt = 0;
                    return Ok(Some(event));
                }
                Ok(None) if self.told && (!self.options.follow || self.is_bounded()) => {
                    self.leave();
                    self.ended = true;
                    return Ok(None);
                }
                // A read ends with the word how far it came; without it, it was cut.
                Ok(None) => Error::StreamEnded { what: "before the read was at its end" },
                Err(error) => error,
            };
            self.leave();
            self.check_resume(error)?;
            let wait = self.connection.options().backoff.wait(self.attempt.saturating_sub(1));
            tokio::time::sleep(wait).await;
        }
    }

    /// Where to go on: behind everything that [`Self::next`] gave. `None` before the broker told.
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// Whether the broker had nothing more when it last told.
    pub fn at_end(&self) -> bool {
        self.at_end
    }

    /// Ends the subscription; the connection stays.
    pub fn close(mut self) {
        self.leave();
    }

    /// Lets the error out, or counts one more try.
    fn check_resume(&mut self, error: Error) -> Result<(), Error> {
        if let Some(cursor) = error.failure().and_then(|failure| failure.cursor.clone()) {
            self.cursor = Some(cursor);
        }
        let retriable = error.is_retriable();
        if self.options.resume && retriable && self.attempt < self.options.resume_attempts_max {
            debug!(pattern = %self.options.pattern, %error, attempt = self.attempt, "subscription is resumed");
            self.attempt += 1;
            return Ok(());
        }
        self.attempt = 0;
        self.ended = error.failure().is_some() && !retriable;
        Err(error)
    }

    async fn read(&mut self) -> Result<Option<Event>, Error> {
        if self.reader.is_none() {
            self.open().await?;
        }
        let Some(reader) = &mut self.reader else { return Err(Error::Closed) };
        match reader.next().await? {
            None => Ok(None),
            Some(Frame::Batch { head, body }) => self.batch(head, body).map(|batch| Some(Event::Batch(batch))),
            Some(Frame::Control(bytes)) => match frames::message(bytes)? {
                ServerBody::FetchProgress(FetchProgress { cursor, at_end, gaps }) => {
                    self.move_to(cursor);
                    self.at_end = at_end;
                    // A word about gaps is never the last one.
                    self.told = gaps.is_empty();
                    Ok(Some(if gaps.is_empty() { Event::Progress } else { Event::Gaps(gaps) }))
                }
                ServerBody::Failure(failure) => Err(Error::broker(failure)),
                _ => Err(Error::Protocol { what: "a message that belongs to no subscription" }),
            },
        }
    }

    async fn open(&mut self) -> Result<(), Error> {
        let link = self.connection.link().await?;
        let start = match &self.cursor {
            Some(cursor) => Start::Cursor(cursor.clone()),
            None => self.options.start.clone(),
        };
        let open = OpenFetch {
            pattern: self.options.pattern.clone(),
            start: Some(match start {
                Start::Earliest => wire::Start::Earliest(true),
                Start::Latest => wire::Start::Latest(true),
                Start::Cursor(cursor) => wire::Start::Cursor(cursor),
                Start::Offset(offset) => wire::Start::Offset(offset),
                Start::KeyHead => wire::Start::KeyHead(true),
                Start::Since(time_ms) => wire::Start::Since(time_ms),
                Start::Ago(ago) => wire::Start::Ago(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)),
            }),
            follow: self.options.follow,
            records_max: left(self.options.records_max, self.delivered_records),
            bytes_max: left(self.options.bytes_max, self.delivered_bytes),
            parameters: self.options.parameters.clone(),
            group: self.options.group.clone(),
            key: self.options.key.as_ref().map(|key| key.to_vec()),
        };
        let (mut send, receive) = link.quic.open_bi().await?;
        send.write_all(&frames::encode(ClientBody::OpenFetch(open))).await?;
        if self.opened {
            Counters::add(&self.connection.counters().subscriptions_resumed);
        }
        self.opened = true;
        self.told = false;
        self.reader = Some(FrameReader::new(receive, self.options.batch_bytes_max));
        self.send = Some(send);
        Ok(())
    }

    fn batch(&mut self, head: Bytes, body: Bytes) -> Result<FetchedBatch, Error> {
        let head: FetchHead = wire::decode(head)?;
        let limits = Limits { batch_bytes_max: self.options.batch_bytes_max, ..Limits::STORED };
        let body = BatchBody::parse(body, &limits).map_err(Error::BadBatch)?;
        let records = body.len() as usize;
        if head.offsets.len() != records || head.key_versions.len() != records {
            return Err(Error::Protocol { what: "offsets or key versions are not one per record" });
        }
        self.move_to(head.cursor.clone());
        self.at_end = false;
        self.told = false;
        self.delivered_records = self.delivered_records.saturating_add(records as u64);
        self.delivered_bytes = self.delivered_bytes.saturating_add(body.bytes().len() as u64);
        Ok(FetchedBatch { head, body })
    }

    fn move_to(&mut self, cursor: String) {
        if !cursor.is_empty() {
            self.cursor = Some(cursor);
        }
    }

    /// The read ends by itself even when following.
    fn is_bounded(&self) -> bool {
        self.options.records_max > 0 || self.options.bytes_max > 0
    }

    fn leave(&mut self) {
        if let Some(mut reader) = self.reader.take() {
            reader.stop();
        }
        if let Some(mut send) = self.send.take() {
            // It fails only on a stream the broker has stopped.
            send.finish().ok();
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.leave();
    }
}

/// What is left of a bound; never 0, which would mean "none".
fn left(max: u64, delivered: u64) -> u64 {
    if max == 0 { 0 } else { max.saturating_sub(delivered).max(1) }
}

/// The records of one stored batch that match and passed the chain.
#[derive(Debug, Clone)]
pub struct FetchedBatch {
    head: FetchHead,
    body: BatchBody,
}

/// One record as it was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchedRecord<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its offset in the topic.
    pub offset: u64,
    /// `None` is a null key.
    pub key: Option<&'a [u8]>,
    /// Version of the key; 0 for a null key.
    pub key_version: u64,
    /// `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// A headers item; read it with [`crate::headers`].
    pub headers: &'a [u8],
    /// The producer's time, Unix milliseconds.
    pub timestamp_ms: i64,
    /// The broker's time, Unix milliseconds.
    pub broker_time_ms: i64,
    /// Chain generation under which it was produced.
    pub generation: u64,
}

impl FetchedRecord<'_> {
    /// Value of the first header of a name; `None` if there is none, `Some(None)` if it is null.
    pub fn header(&self, name: &str) -> Option<Option<&[u8]>> {
        crate::headers(self.headers).filter_map(Result::ok).find(|(at, _)| *at == name).map(|(_, value)| value)
    }
}

impl FetchedBatch {
    /// Its records, in order.
    pub fn records(&self) -> impl ExactSizeIterator<Item = FetchedRecord<'_>> + '_ {
        let positions = self.head.offsets.iter().zip(&self.head.key_versions);
        self.body.records().zip(positions).map(|((topic, view), (offset, key_version))| FetchedRecord {
            topic: self.body.topic(topic).unwrap_or_default(),
            offset: *offset,
            key: view.key,
            key_version: *key_version,
            value: view.value,
            headers: view.headers,
            timestamp_ms: view.timestamp_ms,
            broker_time_ms: self.head.broker_time_ms,
            generation: self.head.generation,
        })
    }

    /// Number of records.
    pub fn len(&self) -> u32 {
        self.body.len()
    }

    /// No record in it.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// Where to go on behind it.
    pub fn cursor(&self) -> &str {
        &self.head.cursor
    }

    /// Unix milliseconds.
    pub fn broker_time_ms(&self) -> i64 {
        self.head.broker_time_ms
    }

    /// Chain generation under which the records were produced.
    pub fn generation(&self) -> u64 {
        self.head.generation
    }

    /// The records in their columns.
    pub fn body(&self) -> &BatchBody {
        &self.body
    }
}
