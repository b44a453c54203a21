//! A plain model of what the log must be: each frame is checked against those before it.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Fault, Sent};
use crate::{catalog, shard::tests::*};

/// The log as it was read.
#[derive(Default)]
pub(super) struct Model {
    /// Next offset by topic id.
    pub(super) offsets: HashMap<u64, u64>,
    pub(super) versions: BTreeMap<(String, Bytes), u64>,
    last_offsets: HashMap<(String, Bytes), u64>,
    sequences: HashSet<(u32, u64)>,
    pub(super) batches: HashMap<usize, Appended>,
    /// Topics of which records are gone.
    pub(super) skipped: HashSet<String>,
}

/// All records of a batch lie below the low offsets of their topics.
pub(super) fn may_be_gone(shard: &Shard, acked: &Appended) -> Result<(), Fault> {
    for run in &acked.runs {
        let AckedRun::Appended { records, topic, first_offset, .. } = run else { continue };
        let topic = &acked.topics[*topic as usize];
        let low = shard.topic(1, topic.as_str()).map_or(0, |topic| topic.low_offset);
        let end = first_offset + u64::from(*records);
        if end > low {
            return Err(format!("{topic} begins at {low}, it had records to {end}"));
        }
    }
    Ok(())
}

/// Where the head of a key stands; 0 = nowhere.
pub(super) fn head_version(shard: &Shard, topic: &str, key: &[u8]) -> u64 {
    let mut state = shard.core.lock();
    let id = state.catalog.find(1, topic).map(|entry| entry.id);
    id.and_then(|id| state.heads.get(id, key)).map_or(0, |head| head.version)
}

impl Model {
    /// Takes the next frame, and checks it.
    pub(super) fn take(&mut self, sent: &[Sent], shard: &Shard, frame: &StoredFrame) -> Result<(), Fault> {
        let body = frame.body.as_ref().ok_or("a frame without records was read")?;
        let names: Vec<&str> = body.topics().collect();
        for (stamp, name) in frame.header.topics.iter().zip(&names) {
            let next = self.offsets.entry(stamp.id).or_default();
            let low = if catalog::is_system(stamp.id) { u64::MAX } else { shard.reader().low_offset(stamp.id) };
            if stamp.base_offset > *next && stamp.base_offset <= low {
                self.skipped.insert((*name).to_owned());
                *next = stamp.base_offset;
            }
        }
        let number = body.record(0).value.and_then(number_of);
        if let Some(number) = number {
            let sent = sent.get(number).ok_or_else(|| format!("batch {number} was never sent"))?;
            self.check_batch(number, sent, frame)?;
        }
        for ((id, offset, version), (topic, record)) in frame.positions().zip(body.records()) {
            let next = self.offsets.entry(id).or_default();
            if offset != *next {
                return Err(format!("offset {offset} of topic {id} where {next} must come"));
            }
            *next += 1;
            let place = (names[topic as usize].to_owned(), Bytes::copy_from_slice(record.key.unwrap()));
            let last = self.versions.entry(place.clone()).or_default();
            *last += 1;
            if version != *last && !(version > *last && self.skipped.contains(&place.0)) {
                return Err(format!("version {version} of {place:?} where {last} must come"));
            }
            *last = version;
            self.last_offsets.insert(place, offset);
        }
        Ok(())
    }

    fn check_batch(&mut self, number: usize, sent: &Sent, frame: &StoredFrame) -> Result<(), Fault> {
        let body = frame.body.as_ref().unwrap();
        let whole = (0..sent.records).all(|at| {
            let value = body.record(at as u32).value.unwrap();
            value.starts_with(format!("{number}/{at}/{}/", sent.records).as_bytes())
        });
        if !whole || frame.client_records() as usize != sent.records {
            return Err(format!("batch {number} is not whole"));
        }
        for Condition { topic, key, expect } in &sent.conditions {
            let place = (topic.as_str().to_owned(), key.clone());
            let version = self.versions.get(&place).copied().unwrap_or_default();
            let wanted = if let Expect::Version(version) = expect { *version } else { 0 };
            // It is always on the first record's key, whose version tells also when the one before is gone.
            let version = if self.skipped.contains(&place.0) { frame.header.key_versions[0] - 1 } else { version };
            if version != wanted {
                return Err(format!("batch {number} was taken at version {version}, it asked for {wanted}"));
            }
        }
        if let Some(stamp) = frame.header.producer
            && !self.sequences.insert((stamp.epoch, stamp.sequence))
        {
            return Err(format!("sequence {} is stored twice", stamp.sequence));
        }
        if self.batches.insert(number, ticket::answer(frame)).is_some() {
            return Err(format!("batch {number} is stored twice"));
        }
        Ok(())
    }
}

fn number_of(value: &[u8]) -> Option<usize> {
    std::str::from_utf8(value).ok()?.split('/').next()?.parse().ok()
}
