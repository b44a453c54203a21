//! The book of an outside witness: which records were sent, which were acked where, and whether the log holds just that.
//!
//! Owns no connection: `workload` writes it, tests let it judge what was read back. A record's value names its batch, its place
//! there and the batch's length (`a/3/17/0/5 …`: run, producer, sequence, place, records), so that the log explains itself.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use tidegate_protocol::wire::ProduceAck;

use crate::raw::{Fetched, Send};

/// Where an acked record stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its topic.
    pub topic: String,
    /// Its offset there.
    pub offset: u64,
    /// Version of its key.
    pub version: u64,
}

/// What was sent and acked.
#[derive(Debug, Default)]
pub struct Ledger {
    sent: HashSet<Bytes>,
    acked: HashMap<Bytes, Place>,
    /// Acked in the current life of the broker: what was read at its start cannot hold them.
    fresh: HashSet<Bytes>,
}

/// What an acked batch says of its records: `None` for those that were not appended.
pub fn places(ack: &ProduceAck) -> Vec<Option<Place>> {
    let mut places = Vec::new();
    for run in &ack.runs {
        for at in 0..run.records {
            let place = (run.status == 0).then(|| Place {
                topic: ack.topics[run.topic as usize].clone(),
                offset: run.first_offset + u64::from(at),
                version: run.key_versions.get(at as usize).copied().unwrap_or_default(),
            });
            places.push(place);
        }
    }
    places
}

impl Ledger {
    /// Notes a batch before it is sent.
    pub fn sent(&mut self, records: &[Send]) {
        self.sent.extend(records.iter().filter_map(|record| record.value.clone()));
    }

    /// Notes the ack of a batch without plugins. An ack that contradicts an earlier one is a problem, told at once.
    ///
    /// # Panics
    /// If the ack does not speak of just these records, or says something else than before.
    pub fn acked(&mut self, records: &[Send], ack: &ProduceAck) {
        let places = places(ack);
        assert_eq!(places.len(), records.len(), "one entry for each record: {ack:?}");
        for (record, place) in records.iter().zip(places) {
            let place = place.unwrap_or_else(|| panic!("nothing refuses records here: {ack:?}"));
            assert_eq!(place.topic, record.topic);
            assert_eq!(place.version == 0, record.key.is_none(), "versions are for keys: {ack:?}");
            let value = record.value.clone().expect("the workload writes values");
            if let Some(before) = self.acked.insert(value.clone(), place.clone()) {
                assert_eq!(before, place, "two acks of {value:?} differ");
            } else {
                self.fresh.insert(value);
            }
        }
    }

    /// Records acked so far.
    pub fn len(&self) -> usize {
        self.acked.len()
    }

    /// Nothing was acked.
    pub fn is_empty(&self) -> bool {
        self.acked.is_empty()
    }

    /// A life of the broker ended: what was acked so far must be there from now on.
    pub fn turn(&mut self) {
        self.fresh.clear();
    }

    /// Compares what was read at the start of the current life with what was acked before it.
    ///
    /// # Panics
    /// If there is any problem.
    pub fn check_before(&self, read: &[Fetched]) {
        fail_on(&self.problems_without(read, &self.fresh), read);
    }

    /// Compares everything that was read with what was acked. Empty = all is well.
    pub fn problems(&self, read: &[Fetched]) -> Vec<String> {
        self.problems_without(read, &HashSet::new())
    }

    fn problems_without(&self, read: &[Fetched], fresh: &HashSet<Bytes>) -> Vec<String> {
        let mut problems = Vec::new();
        let mut found: HashMap<&Bytes, &Fetched> = HashMap::new();
        for record in read {
            let Some(value) = &record.value else { continue };
            if !self.sent.contains(value) {
                problems.push(format!("made up: {value:?} at {}@{}", record.topic, record.offset));
            }
            if let Some(twin) = found.insert(value, record) {
                let (first, second) = (twin.offset, record.offset);
                problems.push(format!("doubled: {value:?} at {}@{first} and {second}", record.topic));
            }
        }
        for (value, place) in &self.acked {
            match found.get(value) {
                None if fresh.contains(value) => {}
                None => problems.push(format!("lost: {value:?}, acked at {place:?}")),
                Some(record) => {
                    let stands = Place { topic: record.topic.clone(), offset: record.offset, version: record.version };
                    if stands != *place {
                        problems.push(format!("moved: {value:?}, acked at {place:?}, stands at {stands:?}"));
                    }
                }
            }
        }
        problems.extend(gaps(read));
        problems.extend(halves(read));
        problems
    }

    /// Fails the test if the log does not hold what was acked.
    ///
    /// # Panics
    /// If there is any problem.
    pub fn check(&self, read: &[Fetched]) {
        fail_on(&self.problems(read), read);
    }
}

fn fail_on(problems: &[String], read: &[Fetched]) {
    let shown = problems.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(problems.is_empty(), "{} problems in {} records:\n{shown}", problems.len(), read.len());
}

/// Offsets are dense from 0 and in order, versions of each key dense from 1 and in order.
pub fn gaps(read: &[Fetched]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut offsets: BTreeMap<&str, u64> = BTreeMap::new();
    let mut versions: HashMap<(&str, &Bytes), u64> = HashMap::new();
    for record in read {
        let next = offsets.entry(&record.topic).or_default();
        if record.offset != *next {
            problems.push(format!("gap: {}@{} follows offset {} expected", record.topic, record.offset, *next));
        }
        *next = record.offset + 1;
        let Some(key) = &record.key else { continue };
        let version = versions.entry((&record.topic, key)).or_default();
        if record.version != *version + 1 {
            let (topic, is, was) = (&record.topic, record.version, *version);
            problems.push(format!("version gap: {topic} key {key:?}: {is} follows {was}"));
        }
        *version = record.version;
    }
    problems
}

/// Batches that are there in part.
fn halves(read: &[Fetched]) -> Vec<String> {
    let mut batches: HashMap<&[u8], (usize, usize)> = HashMap::new();
    for value in read.iter().filter_map(|record| record.value.as_deref()) {
        let name = value.split(|byte| *byte == b' ').next().unwrap_or_default();
        let parts: Vec<&[u8]> = name.rsplitn(3, |byte| *byte == b'/').collect();
        let [length, _, batch] = parts[..] else { continue };
        let length = std::str::from_utf8(length).unwrap_or_default().parse().unwrap_or(0);
        batches.entry(batch).or_insert((0, length)).0 += 1;
    }
    let halves = batches.into_iter().filter(|(_, (found, length))| found != length);
    halves
        .map(|(batch, (found, length))| {
            format!("half a batch: {found} of {length} of {}", String::from_utf8_lossy(batch))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::wire::AckRun;

    use super::*;

    fn batch(sequence: u64, records: usize) -> Vec<Send> {
        (0..records).map(|at| Send::keyed("t", "k", format!("a/0/{sequence}/{at}/{records} x"))).collect()
    }

    fn ack(first_offset: u64, records: u32) -> ProduceAck {
        let key_versions = (first_offset + 1..=first_offset + u64::from(records)).collect();
        let run = AckRun { records, first_offset, key_versions, ..AckRun::default() };
        ProduceAck { runs: vec![run], topics: vec!["t".to_owned()], ..ProduceAck::default() }
    }

    fn log(batches: &[Vec<Send>]) -> Vec<Fetched> {
        let records = batches.iter().flatten().enumerate();
        records
            .map(|(at, send)| Fetched {
                topic: send.topic.clone(),
                offset: at as u64,
                version: at as u64 + 1,
                key: send.key.clone(),
                value: send.value.clone(),
                headers: Vec::new(),
                generation: 0,
            })
            .collect()
    }

    /// The judge must be able to say no: each fault alone is found and named.
    #[test]
    fn every_fault_is_found() {
        let (one, two, three) = (batch(0, 2), batch(1, 2), batch(2, 2));
        let mut ledger = Ledger::default();
        for sent in [&one, &two, &three] {
            ledger.sent(sent);
        }
        ledger.acked(&one, &ack(0, 2));
        ledger.acked(&two, &ack(2, 2));
        let whole = log(&[one.clone(), two.clone(), three.clone()]);
        assert_eq!(ledger.problems(&whole), Vec::<String>::new());
        assert_eq!(ledger.problems(&log(&[one.clone(), two.clone()])), Vec::<String>::new(), "the third was not acked");
        let told = |read: &[Fetched], text: &str| {
            let problems = ledger.problems(read);
            assert!(problems.iter().any(|problem| problem.starts_with(text)), "{text}: {problems:?}");
        };
        told(&log(std::slice::from_ref(&one)), "lost");
        told(&log(&[one.clone(), two.clone(), two.clone()]), "doubled");
        told(&log(&[two.clone(), one.clone()]), "moved");
        told(&log(&[one.clone(), two.clone(), batch(9, 1)]), "made up");
        told(&log(&[one, two, vec![three[0].clone()]]), "half a batch");
        let mut gap = whole.clone();
        gap.remove(4);
        told(&gap, "gap");
        let mut versions = whole;
        versions[5].version = 9;
        told(&versions, "version gap");
    }
}
