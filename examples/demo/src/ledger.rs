//! What was acked, what was read, and whether the two agree.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use anyhow::{Result, bail, ensure};

/// An ack: record `id` lies at `offset` of `topic`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acked {
    /// Chosen by the producer, unique in the run: the record's key.
    pub(crate) id: u64,
    /// Where it went.
    pub(crate) topic: Arc<str>,
    /// Its offset there.
    pub(crate) offset: u64,
}

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Read {
    /// From the record's key.
    pub(crate) id: u64,
    /// Where it lies.
    pub(crate) topic: Arc<str>,
    /// Its offset there.
    pub(crate) offset: u64,
    /// Its headers, as one text: what a stamp left behind.
    pub(crate) stamp: Arc<str>,
    /// The chain generation it was produced under.
    pub(crate) generation: u64,
}

/// Every acked record was read at its place, exactly once, and nothing else was.
pub(crate) fn agree(acked: &[Acked], read: &[Read]) -> Result<()> {
    let mut places: HashMap<u64, (&str, u64)> = HashMap::with_capacity(read.len());
    for record in read {
        if let Some((topic, offset)) = places.insert(record.id, (&record.topic, record.offset)) {
            bail!("record {} is there twice: {topic}@{offset} and {}@{}", record.id, record.topic, record.offset);
        }
    }
    for ack in acked {
        let Some((topic, offset)) = places.remove(&ack.id) else {
            bail!("record {} was acked at {}@{} and is not there", ack.id, ack.topic, ack.offset);
        };
        ensure!(
            (topic, offset) == (&*ack.topic, ack.offset),
            "record {} was acked at {}@{} and lies at {topic}@{offset}",
            ack.id,
            ack.topic,
            ack.offset
        );
    }
    match places.iter().next() {
        Some((id, (topic, offset))) => bail!("record {id} at {topic}@{offset} was never acked"),
        None => Ok(()),
    }
}

/// In each topic the records came with offsets that rise by one, from `first` on (0 for a topic not named).
pub(crate) fn dense(read: &[Read], first: &BTreeMap<Arc<str>, u64>) -> Result<usize> {
    let mut next: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    for record in read {
        let expected = next
            .entry(Arc::clone(&record.topic))
            .or_insert_with(|| first.get(&record.topic).copied().unwrap_or_default());
        ensure!(record.offset == *expected, "{}@{} came where {expected} was due", record.topic, record.offset);
        *expected += 1;
    }
    Ok(next.len())
}

/// What a swap looked like from outside.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    /// Topics with records of both versions.
    pub(crate) both: usize,
    /// Records of the old version.
    pub(crate) old: usize,
    /// Records of the new version.
    pub(crate) new: usize,
}

/// In each topic, all records before its activation offset carry one stamp and the old generation, all from it on another
/// stamp and the new generation: one step, where the broker said.
pub(crate) fn one_step(read: &[Read], activation: &BTreeMap<Arc<str>, u64>, generation: u64) -> Result<Steps> {
    let (mut old_stamp, mut new_stamp): (Option<&str>, Option<&str>) = (None, None);
    let mut seen: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for record in read {
        // A topic that came into being after the activation is wholly new.
        let new = record.offset >= activation.get(&record.topic).copied().unwrap_or_default();
        let place = format!("{}@{}", record.topic, record.offset);
        let expected = if new { &mut new_stamp } else { &mut old_stamp };
        let stamp = *expected.get_or_insert(&record.stamp);
        ensure!(*record.stamp == *stamp, "{place} carries {}, not {stamp}", record.stamp);
        ensure!(
            (record.generation >= generation) == new,
            "{place} was produced under generation {}",
            record.generation
        );
        let (before, after) = seen.entry(&record.topic).or_default();
        *(if new { after } else { before }) += 1;
    }
    ensure!(old_stamp != new_stamp, "both versions leave the same stamp: {}", old_stamp.unwrap_or("none"));
    let steps = seen.values().fold(Steps::default(), |steps, (before, after)| Steps {
        both: steps.both + usize::from(*before > 0 && *after > 0),
        old: steps.old + before,
        new: steps.new + after,
    });
    ensure!(steps.both > 0, "no topic holds records of both versions");
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(topic: &str, offset: u64, stamp: &str, generation: u64) -> Read {
        Read { id: offset, topic: topic.into(), offset, stamp: stamp.into(), generation }
    }

    fn acked(read: &Read) -> Acked {
        Acked { id: read.id, topic: Arc::clone(&read.topic), offset: read.offset }
    }

    #[test]
    fn lost_doubled_moved_and_unknown_records_are_found() {
        let there = [read("a", 0, "", 1), read("a", 1, "", 1)];
        let acks: Vec<Acked> = there.iter().map(acked).collect();
        agree(&acks, &there).unwrap();
        let doubled = Read { offset: 2, ..there[0].clone() };
        for (acks, there, why) in [
            (acks.as_slice(), &there[..1], "is not there"),
            (&acks[..1], &there[..], "never acked"),
            (&acks[..], &[there[0].clone(), there[1].clone(), doubled][..], "twice"),
            (&acks[..1], &[Read { offset: 5, ..there[0].clone() }][..], "lies at a@5"),
        ] {
            assert!(agree(acks, there).unwrap_err().to_string().contains(why), "{why}");
        }
    }

    #[test]
    fn a_gap_or_a_wrong_start_is_found() {
        let first = BTreeMap::from([(Arc::from("a"), 3)]);
        assert_eq!(dense(&[read("a", 3, "", 1), read("b", 0, "", 1), read("a", 4, "", 1)], &first).unwrap(), 2);
        assert!(dense(&[read("a", 3, "", 1), read("a", 5, "", 1)], &first).is_err());
        assert!(dense(&[read("a", 4, "", 1)], &first).is_err());
        assert!(dense(&[read("a", 3, "", 1), read("a", 3, "", 1)], &first).is_err());
    }

    #[test]
    fn one_step_at_the_activation_offset_and_no_other() {
        let activation = BTreeMap::from([(Arc::from("a"), 1), (Arc::from("b"), 0)]);
        let good = [read("a", 0, "v1", 1), read("a", 1, "v2", 2), read("b", 0, "v2", 2), read("c", 0, "v2", 2)];
        assert_eq!(one_step(&good, &activation, 2).unwrap(), Steps { both: 1, old: 1, new: 3 });
        for bad in [
            [read("a", 0, "v1", 1), read("a", 1, "v1", 2)],
            [read("a", 0, "v2", 1), read("a", 1, "v2", 2)],
            [read("a", 0, "v1", 2), read("a", 1, "v2", 2)],
            [read("a", 0, "v1", 1), read("a", 1, "v2", 1)],
            [read("b", 0, "v2", 2), read("b", 1, "v2", 2)],
        ] {
            assert!(one_step(&bad, &activation, 2).is_err(), "{bad:?}");
        }
    }
}
