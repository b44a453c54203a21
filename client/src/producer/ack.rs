//! Answers: what the broker says of a batch, checked against what was sent.

use std::sync::Arc;

use tidegate_protocol::{
    error::Code,
    wire::{AckRun, AckStatus, ProduceAck},
};

use crate::{
    Error, Rejection,
    error::{filled, millis},
};

/// What became of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is in a topic, durably.
    Appended {
        /// The topic it ended in: the chain may have routed it.
        topic: Arc<str>,
        /// Its offset.
        offset: u64,
        /// Version of its key; 0 for a null key.
        key_version: u64,
    },
    /// A plugin let it go.
    Dropped {
        /// Which.
        plugin: Option<String>,
    },
    /// It was refused.
    Rejected(Arc<Rejection>),
    /// It lies in a dead-letter topic.
    Diverted(Arc<Rejection>),
}

/// The answer to a batch that was taken: one outcome per record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchAck {
    runs: Vec<Run>,
    topics: Vec<Arc<str>>,
    records: u32,
    /// Chain generation it ran under.
    pub generation: u64,
    /// An earlier try of the same sequence had been taken; this is its result.
    pub duplicate: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    first: u32,
    fate: Fate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    Appended { topic: Arc<str>, first_offset: u64, key_versions: Vec<u64> },
    Dropped { plugin: Option<String> },
    Rejected(Arc<Rejection>),
    Diverted(Arc<Rejection>),
}

impl BatchAck {
    /// Number of records of the batch.
    pub fn len(&self) -> u32 {
        self.records
    }

    /// The batch had no record.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// What became of the record at a position of the batch; `None` behind its end.
    pub fn outcome(&self, at: u32) -> Option<Outcome> {
        if at >= self.records {
            return None;
        }
        let behind = self.runs.partition_point(|run| run.first <= at);
        let run = self.runs.get(behind.checked_sub(1)?)?;
        let place = at - run.first;
        Some(match &run.fate {
            Fate::Appended { topic, first_offset, key_versions } => Outcome::Appended {
                topic: Arc::clone(topic),
                offset: first_offset + u64::from(place),
                key_version: key_versions.get(place as usize).copied().unwrap_or(0),
            },
            Fate::Dropped { plugin } => Outcome::Dropped { plugin: plugin.clone() },
            Fate::Rejected(rejection) => Outcome::Rejected(Arc::clone(rejection)),
            Fate::Diverted(rejection) => Outcome::Diverted(Arc::clone(rejection)),
        })
    }

    /// What became of each record, in the order of the batch.
    pub fn outcomes(&self) -> impl Iterator<Item = Outcome> + '_ {
        (0..self.records).filter_map(|at| self.outcome(at))
    }

    /// Names of the topics that records ended in.
    pub fn topics(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        self.topics.iter().map(AsRef::as_ref)
    }

    /// Reads the answer to a batch of so many records.
    pub(super) fn read(ack: ProduceAck, records: u32) -> Result<Self, Error> {
        let topics: Vec<Arc<str>> = ack.topics.into_iter().map(Arc::from).collect();
        let mut runs = Vec::with_capacity(ack.runs.len());
        let mut first: u32 = 0;
        for run in ack.runs {
            let count = run.records;
            let behind = first.checked_add(count).filter(|behind| *behind <= records);
            let Some(behind) = behind.filter(|_| count > 0) else {
                return Err(Error::Protocol { what: "an answer for more records than were sent" });
            };
            runs.push(Run { first, fate: fate(run, &topics)? });
            first = behind;
        }
        if first != records {
            return Err(Error::Protocol { what: "an answer for fewer records than were sent" });
        }
        Ok(Self { runs, topics, records, generation: ack.generation, duplicate: ack.duplicate })
    }
}

/// The records at fault among the runs of a batch that was refused as a whole, with their positions. Those that only fell
/// with them (rejected, by no plugin) are passed over, and so is whatever makes no sense: the failure itself counts.
pub(super) fn rejected(runs: Vec<AckRun>) -> Vec<(u32, Rejection)> {
    let mut rejected = Vec::new();
    let mut at: u32 = 0;
    for run in runs {
        let count = run.records;
        let fell_along = run.plugin.is_empty() && run.code == u32::from(Code::PluginRejected.number());
        if AckStatus::try_from(run.status) == Ok(AckStatus::Rejected) && count > 0 && !fell_along {
            rejected.push((at, rejection(run)));
        }
        at = at.saturating_add(count);
    }
    rejected
}

fn fate(run: AckRun, topics: &[Arc<str>]) -> Result<Fate, Error> {
    let status =
        AckStatus::try_from(run.status).map_err(|_| Error::Protocol { what: "an answer of an unknown status" })?;
    match status {
        AckStatus::Appended => {
            let topic = usize::try_from(run.topic).ok().and_then(|number| topics.get(number));
            let topic = topic.ok_or(Error::Protocol { what: "an answer that names no topic" })?;
            if run.key_versions.len() != run.records as usize {
                return Err(Error::Protocol { what: "an answer whose key versions are not one per record" });
            }
            if run.first_offset.checked_add(run.records.into()).is_none() {
                return Err(Error::Protocol { what: "an answer whose offsets overflow" });
            }
            let (first_offset, key_versions) = (run.first_offset, run.key_versions);
            Ok(Fate::Appended { topic: Arc::clone(topic), first_offset, key_versions })
        }
        AckStatus::Dropped => Ok(Fate::Dropped { plugin: filled(run.plugin) }),
        AckStatus::Rejected => Ok(Fate::Rejected(Arc::new(rejection(run)))),
        AckStatus::Diverted => Ok(Fate::Diverted(Arc::new(rejection(run)))),
    }
}

fn rejection(run: AckRun) -> Rejection {
    Rejection {
        code: u16::try_from(run.code).ok().and_then(Code::from_number),
        number: run.code,
        plugin_code: run.plugin_code,
        reason: run.reason,
        plugin: filled(run.plugin),
        retry_after: millis(run.retry_after_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(runs: Vec<AckRun>) -> ProduceAck {
        ProduceAck { runs, topics: vec!["a".to_owned(), "b".to_owned()], generation: 3, ..ProduceAck::default() }
    }

    fn run(records: u32, status: u32) -> AckRun {
        AckRun { records, status, reason: "why".to_owned(), code: 500, ..AckRun::default() }
    }

    #[test]
    fn every_record_has_its_outcome() {
        let runs =
            vec![AckRun::appended(1, 10, vec![1, 0]), run(2, 2), AckRun::appended(0, 5, vec![7]), run(1, 1), run(1, 3)];
        let read = BatchAck::read(ack(runs), 7).unwrap();
        let appended =
            |topic: &str, offset, key_version| Outcome::Appended { topic: topic.into(), offset, key_version };
        let outcomes: Vec<_> = read.outcomes().collect();
        assert_eq!(outcomes[..2], [appended("b", 10, 1), appended("b", 11, 0)]);
        assert!(matches!(&outcomes[2], Outcome::Rejected(rejection) if rejection.code == Some(Code::PluginRejected)));
        assert_eq!(outcomes[3], outcomes[2]);
        assert_eq!(outcomes[4], appended("a", 5, 7));
        assert_eq!(outcomes[5], Outcome::Dropped { plugin: None });
        assert!(matches!(&outcomes[6], Outcome::Diverted(_)));
        assert_eq!((outcomes.len(), read.outcome(7)), (7, None));
    }

    #[test]
    fn wrong_answers_are_errors() {
        let overflow = AckRun::appended(0, u64::MAX, vec![1, 2]);
        let unversioned = AckRun { key_versions: vec![1], ..AckRun::appended(0, 0, vec![1, 2]) };
        for runs in [
            vec![],
            vec![run(1, 1)],
            vec![run(3, 1)],
            vec![run(2, 4)],
            vec![run(2, 1), run(0, 1)],
            vec![run(1, 1), run(u32::MAX, 1)],
            vec![AckRun::appended(2, 0, vec![1, 2])],
            vec![overflow],
            vec![unversioned],
        ] {
            assert!(matches!(BatchAck::read(ack(runs), 2), Err(Error::Protocol { .. })));
        }
        assert!(BatchAck::read(ack(vec![]), 0).unwrap().is_empty());
    }

    #[test]
    fn the_guilty_of_a_refused_batch_are_named() {
        let guilty = || AckRun { plugin: "schema".to_owned(), ..run(1, 2) };
        let named = rejected(vec![run(3, 2), guilty(), run(1, 9), guilty(), run(u32::MAX, 1), guilty()]);
        assert_eq!(named.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [3, 5, u32::MAX]);
    }
}
