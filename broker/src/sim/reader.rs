//! Readers: one-time reads for the auditor, and subscriptions that follow, break and go on from their cursor.

use std::io;

use bytes::{Bytes, BytesMut};
use tidegate_protocol::{
    batch::BatchBody,
    cursor::Cursor,
    limits::Limits,
    wire::{self, FetchHead, Frame, OpenFetch, PREFIX_BYTES, ServerBody, ServerMessage, Start},
};
use tokio::sync::watch;

use super::{
    Fault,
    journal::Seen,
    life::{Life, turn},
};
use crate::fetch::Sink;

/// Something a reader is sent.
enum Told {
    Records(Vec<Seen>, u64),
    Progress(u64),
    Failed(String),
}

fn told(parts: &[Bytes]) -> Result<Told, Fault> {
    let mut bytes = BytesMut::new();
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    let kind = *bytes.get(4).ok_or("a frame without a kind")?;
    let frame = wire::parse_payload(kind, bytes.split_off(PREFIX_BYTES).freeze()).map_err(|error| error.to_string())?;
    match frame {
        Frame::Batch { head, body } => {
            let head: FetchHead = wire::decode(head).map_err(|error| error.to_string())?;
            let body = BatchBody::parse(body, &Limits::default()).map_err(|error| error.to_string())?;
            if body.len() as usize != head.offsets.len() || head.offsets.len() != head.key_versions.len() {
                return Err("a batch whose head counts others".to_owned());
            }
            let names: Vec<&str> = body.topics().collect();
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let records = body.records().zip(head.offsets.iter().zip(&head.key_versions));
            let seen = records.map(|((topic, record), (offset, version))| Seen {
                topic: names[usize::from(topic)].to_owned(),
                offset: *offset,
                version: *version,
                key: record.key.map(text),
                value: text(record.value.unwrap_or_default()),
                generation: head.generation,
            });
            Ok(Told::Records(seen.collect(), position(&head.cursor)?))
        }
        Frame::Control(bytes) => match wire::decode::<ServerMessage>(bytes).map_err(|error| error.to_string())?.body {
            Some(ServerBody::FetchProgress(progress)) => Ok(Told::Progress(position(&progress.cursor)?)),
            Some(ServerBody::Failure(failure)) => Ok(Told::Failed(failure.to_string())),
            other => Err(format!("a reader was sent {other:?}")),
        },
    }
}

fn position(cursor: &str) -> Result<u64, Fault> {
    match cursor.parse::<Cursor>() {
        Ok(Cursor::Shard { next_lsn, .. }) => Ok(next_lsn),
        other => Err(format!("a cursor of a subscription is {other:?}")),
    }
}

/// Where a read of history begins.
pub(super) fn at(next_lsn: u64) -> Start {
    Start::Cursor(Cursor::Shard { shard: 0, next_lsn }.to_string())
}

/// One read to the end of the log; the records, and the position behind.
pub(super) async fn read(
    life: &Life,
    pattern: &str,
    key: Option<&str>,
    start: Start,
) -> Result<(Vec<Seen>, u64), Fault> {
    let open = OpenFetch {
        pattern: pattern.to_owned(),
        start: Some(start),
        key: key.map(|key| key.as_bytes().to_vec()),
        ..OpenFetch::default()
    };
    let mut sink = Collect::default();
    let (_stop, stopping) = watch::channel(false);
    let served = life.fetch.serve(&life.subscriber, &open, &mut sink, stopping).await;
    served.map_err(|error| error.to_string())?;
    match sink.fault {
        Some(fault) => Err(format!("a read of {pattern} {key:?}: {fault}")),
        None => Ok((sink.seen, sink.next_lsn)),
    }
}

#[derive(Default)]
struct Collect {
    seen: Vec<Seen>,
    next_lsn: u64,
    fault: Option<Fault>,
}

impl Sink for Collect {
    async fn send(&mut self, parts: Vec<Bytes>) -> io::Result<()> {
        match told(&parts) {
            Ok(Told::Records(seen, next_lsn)) => {
                self.seen.extend(seen);
                self.next_lsn = next_lsn;
            }
            Ok(Told::Progress(next_lsn)) => self.next_lsn = next_lsn,
            Ok(Told::Failed(fault)) | Err(fault) => self.fault = Some(fault),
        }
        Ok(())
    }
}

/// Follows a subscription of the journal until the broker ends.
pub(super) async fn follow(life: Life, number: usize) {
    loop {
        let followed = life.journal().followed[number].clone();
        let open = OpenFetch {
            pattern: followed.pattern,
            start: Some(at(followed.next_lsn)),
            follow: true,
            key: followed.key.map(String::into_bytes),
            ..OpenFetch::default()
        };
        let parts_left = 1 + life.below(60);
        let mut sink = Follower { life: life.clone(), number, parts_left };
        let (_stop, stopping) = watch::channel(false);
        let served = life.fetch.serve(&life.subscriber, &open, &mut sink, stopping).await;
        if life.is_killed() || life.shard.failed().is_some() || life.journal().fault.is_some() {
            return;
        }
        // A read that was made to fail is tried again, as by any client.
        assert!(served.is_err() || life.may_fail(), "a subscription ended");
        life.journal().counts.resumed += 1;
        turn().await;
    }
}

struct Follower {
    life: Life,
    number: usize,
    /// Then the reader goes away.
    parts_left: u64,
}

impl Sink for Follower {
    async fn send(&mut self, parts: Vec<Bytes>) -> io::Result<()> {
        for _ in 0..self.life.below(3) {
            turn().await;
        }
        if self.life.is_killed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let told = told(&parts);
        let may_fail = self.life.may_fail();
        let mut journal = self.life.journal();
        match told {
            Ok(Told::Records(seen, next_lsn)) => {
                let followed = &mut journal.followed[self.number];
                followed.seen.extend(seen);
                followed.next_lsn = next_lsn;
            }
            Ok(Told::Progress(next_lsn)) => journal.followed[self.number].next_lsn = next_lsn,
            Ok(Told::Failed(_)) if may_fail => {}
            Ok(Told::Failed(fault)) | Err(fault) => journal.fault(format!("subscription {}: {fault}", self.number)),
        }
        drop(journal);
        self.parts_left = self.parts_left.saturating_sub(1);
        if self.parts_left == 0 { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}
