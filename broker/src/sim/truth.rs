//! The log as it is, read frame by frame and checked against itself and against what clients sent.

use std::{collections::BTreeMap, sync::Arc};

use tidegate_protocol::stored::StoredFrame;

use super::{
    Fault,
    journal::{Fate, Journal, Seen, Stand},
    life::Life,
    model::{self, Expected, Record},
};
use crate::catalog;

/// The log as a plain list.
#[derive(Debug, Default)]
pub(super) struct Truth {
    /// Every record that is not the broker's own, in order, with its position.
    pub(super) rows: Vec<(u64, Seen)>,
    /// Batches by number.
    pub(super) batches: BTreeMap<usize, Stored>,
    /// Numbers of batches, in order.
    pub(super) order: Vec<usize>,
    /// The batch that wrote a version of a key.
    pub(super) writers: BTreeMap<(String, String, u64), usize>,
    pub(super) next_offsets: BTreeMap<String, u64>,
    pub(super) end: u64,
    /// Where every key stands.
    pub(super) stands: BTreeMap<(String, String), Stand>,
    generation: u64,
}

/// A batch in the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) fates: Vec<Fate>,
    pub(super) generation: u64,
}

impl Truth {
    /// Reads the whole log.
    pub(super) async fn read(life: &Life) -> Result<Self, Fault> {
        let reader = life.shard.reader();
        let mut truth = Self { end: reader.end(), ..Self::default() };
        let mut lsn = 0;
        while lsn < truth.end {
            let run = reader.disk(lsn, 20_000, |_| true).await.map_err(|error| format!("a read at {lsn}: {error}"))?;
            if run.next_lsn <= lsn {
                return Err(format!("a read at {lsn} gets nowhere, {} is the end", truth.end));
            }
            for frame in &run.frames {
                truth.take(life, frame)?;
            }
            lsn = run.next_lsn;
        }
        Ok(truth)
    }

    fn take(&mut self, life: &Life, frame: &Arc<StoredFrame>) -> Result<(), Fault> {
        let first_lsn = frame.header.first_lsn;
        let body = frame.body.as_ref().ok_or("a frame without records was read")?;
        if frame.header.topics.iter().any(|topic| topic.id == catalog::topic_id(0, catalog::ACTIVATIONS_COUNTER)) {
            self.generation = frame.header.generation;
        }
        let (mut records, mut places) = (Vec::new(), Vec::new());
        for ((lsn, (id, offset, version)), (_, record)) in (first_lsn..).zip(frame.positions()).zip(body.records()) {
            if catalog::is_system(id) {
                continue;
            }
            let (_, name) = life.shard.topic_by_id(id).ok_or_else(|| format!("topic {id} has no name"))?;
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let (key, value) = (record.key.map(text), text(record.value.unwrap_or_default()));
            let topic = name.as_str().to_owned();
            places.push((topic.clone(), offset, version));
            records.push(Record { topic: topic.clone(), key: key.clone(), value: value.clone() });
            let generation = frame.header.generation;
            self.rows.push((lsn, Seen { topic, offset, version, key, value, generation }));
        }
        if records.is_empty() {
            return Ok(());
        }
        self.batch(&life.journal(), frame, &records, &places)?;
        let numbered = places.iter().zip(&records);
        numbered.into_iter().try_for_each(|((topic, offset, version), record)| {
            self.number(topic, *offset, record.key.as_ref(), *version)
        })
    }

    /// Offsets and versions are dense.
    fn number(&mut self, topic: &str, offset: u64, key: Option<&String>, version: u64) -> Result<(), Fault> {
        let next = self.next_offsets.entry(topic.to_owned()).or_default();
        if offset != *next {
            return Err(format!("offset {offset} of {topic} where {next} must come"));
        }
        *next += 1;
        let next = match key {
            Some(key) => {
                let stand = self.stands.entry((topic.to_owned(), key.clone())).or_default();
                *stand = Stand { version: stand.version + 1, last_offset: Some(offset) };
                stand.version
            }
            None => 0,
        };
        if version != next {
            return Err(format!("version {version} of {topic} {key:?} where {next} must come"));
        }
        Ok(())
    }

    /// A batch is what its client sent and one generation made of it, whole and once, where its conditions hold.
    fn batch(
        &mut self,
        journal: &Journal,
        frame: &StoredFrame,
        records: &[Record],
        places: &[(String, u64, u64)],
    ) -> Result<(), Fault> {
        let generation = frame.header.generation;
        let number = records[0].value.split(':').next().and_then(|number| number.parse().ok());
        let number: usize = number.ok_or_else(|| format!("a record of nobody: {:?}", records[0]))?;
        let sent = journal.sent.get(number).ok_or_else(|| format!("batch {number} was never sent"))?;
        if generation != self.generation {
            return Err(format!("batch {number} ran under generation {generation}, {} was live", self.generation));
        }
        let (expected, stored) = model::outcome(&sent.records, generation);
        if stored != records {
            let values = |records: &[Record]| records.iter().map(shown).collect::<Vec<_>>().join(", ");
            return Err(format!("batch {number} is [{}], not [{}]", values(records), values(&stored)));
        }
        if frame.header.producer != sent.stamp {
            return Err(format!("batch {number} has the stamp {:?}", frame.header.producer));
        }
        for wish in &sent.wishes {
            let stand = self.stands.get(&(wish.topic.clone(), wish.key.clone())).copied().unwrap_or_default();
            if !wish.holds(stand) {
                return Err(format!("batch {number} was taken at {stand:?}, it asked for {wish:?}"));
            }
        }
        if !sent.wishes.is_empty() && expected.contains(&Expected::Rejected) {
            return Err(format!("batch {number} has conditions and is stored in part"));
        }
        let mut stored = places.iter();
        let mut fates = Vec::new();
        for fate in expected {
            fates.push(match fate {
                Expected::Dropped => Fate::Dropped,
                Expected::Rejected => Fate::Rejected,
                Expected::Stored => {
                    let (topic, offset, version) = stored.next().cloned().unwrap();
                    Fate::At { topic, offset, version }
                }
            });
        }
        if self.batches.insert(number, Stored { fates, generation }).is_some() {
            return Err(format!("batch {number} is stored twice"));
        }
        self.order.push(number);
        for ((topic, _, version), record) in places.iter().zip(records) {
            if let Some(key) = &record.key {
                self.writers.insert((topic.clone(), key.clone(), *version), number);
            }
        }
        Ok(())
    }

    /// What a reader gets of the log between two positions.
    pub(super) fn shown(&self, pattern: &str, key: Option<&str>, from_lsn: u64, next_lsn: u64) -> Vec<Seen> {
        let pattern = tidegate_protocol::topic::TopicPattern::parse(pattern).unwrap();
        let rows = self.rows.iter().filter(|(lsn, _)| (from_lsn..next_lsn).contains(lsn)).map(|(_, seen)| seen);
        let wanted = rows.filter(|seen| pattern.matches(&seen.topic) && (key.is_none() || seen.key.as_deref() == key));
        wanted.filter(|seen| model::is_shown(&seen.topic, seen.key.as_deref())).cloned().collect()
    }
}

fn shown(record: &Record) -> String {
    let head: String = record.value.chars().take(12).collect();
    format!("{} {:?} {head}…{}", record.topic, record.key, record.value.len())
}
