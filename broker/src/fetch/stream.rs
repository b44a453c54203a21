//! One subscription from its start to its end.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_protocol::{
    error::Code,
    stored::StoredFrame,
    topic::TopicName,
    wire::{self, Failure, Gap, OpenFetch, ServerBody, ServerMessage},
};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::{
    Fetch, Sink, Subscriber,
    matcher::Matcher,
    select::{Bounds, Selected, select},
    send,
    start::Opened,
};
use crate::{
    hooks::{FetchInput, FetchOutput, HookError, ReaderInfo},
    shard::{Reader, ShardError},
};

/// The only shard of this version.
const SHARD: u16 = 0;

/// Why a subscription ends.
#[derive(Debug)]
enum End {
    /// Everything asked for was told.
    Done,
    /// The reader is told why.
    Failed(Box<Failure>),
    /// Nobody listens.
    Gone(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

/// A subscription under way.
struct Scan<'a> {
    fetch: &'a Fetch,
    subscriber: &'a Subscriber,
    reader: Reader,
    matcher: Arc<Matcher>,
    info: ReaderInfo,
    next_lsn: u64,
    from_offset: u64,
    /// Only records of this stored key.
    key: Option<Bytes>,
    /// The topic of the key, once it exists.
    key_topic: Option<u64>,
    records_left: u64,
    bytes_left: u64,
    /// A read of history ends here; `None` = follow.
    end_lsn: Option<u64>,
    /// Moves of low offsets of which the client knows what it missed by them.
    lows_seen: u64,
    /// What the client was last told of the scan, and when it last got anything.
    told: Option<(u64, bool)>,
    told_at: Duration,
    /// A frame that is being sent is sent whole: only waits are given up for a stop.
    stopping: watch::Receiver<bool>,
}

impl Fetch {
    /// Serves a subscription until it is done, fails, or `stopping` becomes true. The last thing sent tells which.
    ///
    /// # Errors
    /// If the reader is gone.
    pub async fn serve(
        &self,
        subscriber: &Subscriber,
        open: &OpenFetch,
        sink: &mut impl Sink,
        stopping: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let _open = self.metrics.subscriptions.hold();
        let reader = self.shard.reader();
        let opened = match self.open(subscriber, open, &reader).await {
            Ok(opened) => opened,
            Err(failure) => return self.fail(failure, sink).await,
        };
        let mut scan = Scan::new(self, subscriber, open, opened, reader, stopping);
        let end = scan.scan(sink).await.err().unwrap_or(End::Done);
        match end {
            End::Done => Ok(()),
            End::Gone(error) => Err(error),
            End::Failed(mut failure) => {
                failure.cursor = send::cursor(SHARD, scan.next_lsn);
                self.fail(*failure, sink).await
            }
        }
    }

    async fn fail(&self, failure: Failure, sink: &mut impl Sink) -> io::Result<()> {
        debug!(failure = %failure, "subscription ends");
        if let Some(code) = failure.known_code() {
            self.metrics.refused(code);
        }
        sink.send(vec![wire::encode_control(&ServerMessage::from(ServerBody::Failure(failure)))]).await
    }
}

impl<'a> Scan<'a> {
    fn new(
        fetch: &'a Fetch,
        subscriber: &'a Subscriber,
        open: &OpenFetch,
        opened: Opened,
        reader: Reader,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let bound = |max: u64| if max == 0 { u64::MAX } else { max };
        let principal = Arc::clone(&subscriber.principal);
        let topic = opened.pattern.as_name().and_then(|name| fetch.shard.topic(subscriber.tenant, name.as_str()));
        Self {
            fetch,
            subscriber,
            matcher: Arc::new(Matcher::new(fetch.shard.clone(), subscriber.tenant, principal, opened.pattern)),
            info: ReaderInfo {
                principal: subscriber.principal.name.as_ref().into(),
                role: subscriber.principal.role.as_ref().into(),
                group: open.group.as_str().into(),
                parameters: opened.parameters.into(),
            },
            next_lsn: opened.next_lsn,
            from_offset: opened.from_offset,
            key_topic: topic.filter(|_| opened.key.is_some()).map(|topic| topic.id),
            key: opened.key,
            records_left: bound(open.records_max),
            bytes_left: bound(open.bytes_max),
            end_lsn: (!open.follow).then(|| reader.end()),
            reader,
            lows_seen: opened.gaps_since,
            told: None,
            told_at: fetch.clock.monotonic(),
            stopping,
        }
    }

    async fn scan(&mut self, sink: &mut impl Sink) -> Result<(), End> {
        loop {
            while self.next_lsn < self.end_lsn.unwrap_or(u64::MAX).min(self.reader.end()) {
                self.read(sink).await?;
                if self.records_left == 0 || self.bytes_left == 0 {
                    return self.tell(sink, false).await;
                }
            }
            self.tell(sink, true).await?;
            if self.end_lsn.is_some_and(|end| self.next_lsn >= end) {
                return Ok(());
            }
            let reader = self.reader.clone();
            self.unless_stopped(reader.wait(self.next_lsn)).await?.map_err(|error| failed(&error))?;
        }
    }

    async fn unless_stopped<T>(&mut self, wait: impl Future<Output = T>) -> Result<T, End> {
        tokio::select! {
            biased;
            _ = self.stopping.wait_for(|stop| *stop) => {
                let failure = Failure::new(Code::ShuttingDown, "the broker is draining");
                Err(End::Failed(Box::new(failure.retry_after_ms(STOPPED_RETRY_AFTER_MS))))
            }
            done = wait => Ok(done),
        }
    }

    /// Reads and sends the next stretch of the log.
    async fn read(&mut self, sink: &mut impl Sink) -> Result<(), End> {
        let (reader, matcher) = (self.reader.clone(), Arc::clone(&self.matcher));
        let (from_lsn, bytes_max) = (self.next_lsn, self.fetch.config.read_bytes);
        let key = self.key.clone().zip(self.key_topic);
        let reads = &self.fetch.metrics.fetch_reads;
        let tail = match &key {
            Some((_, topic)) => reader.tail(from_lsn, bytes_max, |id| id == *topic),
            None => reader.tail(from_lsn, bytes_max, |topic| matcher.wants(topic)),
        };
        let run = match (tail, key) {
            (Some(run), _) => {
                reads.tail.add(1);
                run
            }
            (None, key) => {
                reads.disk.add(1);
                let run = match key {
                    Some((key, topic)) => {
                        let read = reader.disk_key(
                            from_lsn,
                            bytes_max,
                            topic,
                            key,
                            self.from_offset.max(reader.low_offset(topic)),
                        );
                        self.unless_stopped(read).await?
                    }
                    None => {
                        let read = reader.disk(from_lsn, bytes_max, move |topic| matcher.wants(topic));
                        self.unless_stopped(read).await?
                    }
                };
                run.map_err(|error| failed(&error))?
            }
        };
        #[cfg(mutants)]
        let run = self.mutated(run, from_lsn);
        // Before the position moves: it may step over what is gone.
        self.tell_gaps(sink).await?;
        for frame in run.frames {
            if frame.header.first_lsn >= self.end_lsn.unwrap_or(u64::MAX) {
                break;
            }
            self.frame(&frame, sink).await?;
            if self.records_left == 0 || self.bytes_left == 0 {
                return Ok(());
            }
        }
        // What was read behind the end was not told.
        let told = self.end_lsn.map_or(run.next_lsn, |end| end.min(run.next_lsn));
        self.next_lsn = self.next_lsn.max(told);
        let silent = self.fetch.clock.monotonic().saturating_sub(self.told_at);
        if self.next_lsn < self.reader.end() && silent >= self.fetch.config.progress_every {
            self.tell(sink, false).await?;
        }
        Ok(())
    }

    /// From the disk to the tail, a step too far.
    #[cfg(mutants)]
    fn mutated(&self, mut run: crate::storage::Run, from_lsn: u64) -> crate::storage::Run {
        let in_tail = |lsn| self.reader.tail(lsn, 1, |_| true).is_some();
        if crate::mutants::is("cursor-off-by-one-at-hand-over")
            && !in_tail(from_lsn)
            && in_tail(run.next_lsn)
            && run.next_lsn < self.reader.end()
        {
            run.next_lsn += 1;
        }
        run
    }

    async fn frame(&mut self, frame: &Arc<StoredFrame>, sink: &mut impl Sink) -> Result<(), End> {
        let bounds = Bounds {
            from_lsn: self.next_lsn,
            from_offset: self.from_offset,
            records_max: self.records_left,
            key: self.key.as_deref(),
        };
        let wants = |topic| self.matcher.wants(topic).then(|| self.reader.low_offset(topic));
        let selected = select(frame, bounds, wants);
        self.tell_gaps(sink).await?;
        if !selected.at.is_empty() {
            let output = self.chain(frame, &selected).await?;
            for part in send::parts(frame, &selected, &output, &self.fetch.config.limits) {
                let metrics = &self.fetch.metrics;
                metrics.fetch_batches.add(1);
                metrics.fetch_records.add(part.head.offsets.len() as u64);
                metrics.fetch_bytes.add(part.body.len() as u64);
                let next_lsn = part.next_lsn;
                sink.send(part.into_frame()).await?;
                self.next_lsn = next_lsn;
                self.told = None;
                self.told_at = self.fetch.clock.monotonic();
            }
            if self.key.is_some() {
                // One topic: what comes behind has higher offsets, and segments are asked from there.
                self.from_offset = selected.offsets.last().map_or(self.from_offset, |last| last.saturating_add(1));
            }
            self.records_left = self.records_left.saturating_sub(selected.at.len() as u64);
            self.bytes_left = self.bytes_left.saturating_sub(frame.bytes.len() as u64);
        }
        self.next_lsn = selected.next_lsn;
        Ok(())
    }

    /// Runs the fetch chain; a failing one is tried again for a while, with whatever is live then.
    async fn chain(&mut self, frame: &Arc<StoredFrame>, selected: &Selected) -> Result<FetchOutput, End> {
        let mut waits = self.fetch.config.retry_after.clone().into_iter();
        loop {
            let generation = self.subscriber.live.load_full();
            let topics = frame.body.iter().flat_map(|body| body.topics());
            if !topics.into_iter().any(|topic| generation.has_fetch(topic)) {
                return Ok(FetchOutput::Unchanged);
            }
            let input = FetchInput { frame: Arc::clone(frame), at: selected.at.clone(), reader: self.info.clone() };
            let error = match generation.fetch(input).await {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            let Some(wait) = waits.next() else { return Err(plugin_failed(&error)) };
            warn!(plugin = %error.plugin, error = %error, retry_after = ?wait, "fetch chain failed");
            self.fetch.metrics.fetch_retries.add(1);
            self.unless_stopped(tokio::time::sleep(wait)).await?;
        }
    }

    /// Tells of which topics records at or behind the position are gone, since it was last told.
    async fn tell_gaps(&mut self, sink: &mut impl Sink) -> Result<(), End> {
        let changes = self.reader.low_changes();
        if changes == self.lows_seen {
            return Ok(());
        }
        let missed = |topic, low_offset| self.matcher.wants(topic) && low_offset > self.from_offset;
        let gaps = self.reader.gaps(self.next_lsn, self.lows_seen, GAPS_MAX, missed);
        self.lows_seen = changes;
        if gaps.is_empty() {
            return Ok(());
        }
        let gap = |(topic, low_offset): (TopicName, u64)| Gap { topic: topic.as_str().to_owned(), low_offset };
        let gaps = gaps.into_iter().map(gap).collect();
        self.told = None;
        sink.send(send::progress(SHARD, self.next_lsn, false, gaps)).await.map_err(End::from)
    }

    /// Tells how far the scan is, unless the client knows.
    async fn tell(&mut self, sink: &mut impl Sink, at_end: bool) -> Result<(), End> {
        if self.told == Some((self.next_lsn, at_end)) {
            return Ok(());
        }
        self.told = Some((self.next_lsn, at_end));
        self.told_at = self.fetch.clock.monotonic();
        sink.send(send::progress(SHARD, self.next_lsn, at_end, Vec::new())).await.map_err(End::from)
    }
}

fn failed(error: &ShardError) -> End {
    End::Failed(Box::new(Failure::new(error.code(), error.to_string())))
}

fn plugin_failed(error: &HookError) -> End {
    let failure = Failure::new(Code::PluginFailed, error.to_string()).by_plugin(error.plugin.clone());
    End::Failed(Box::new(failure.retry_after_ms(RETRY_AFTER_MS)))
}

/// Topics named in one word about gaps; of more the client is not told.
const GAPS_MAX: usize = 1_000;

/// When a reader should come back to a broker that restarts.
const STOPPED_RETRY_AFTER_MS: u32 = 500;

/// When a reader should come back after a plugin kept failing: an operator is needed.
const RETRY_AFTER_MS: u32 = 5_000;
