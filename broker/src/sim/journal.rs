//! What clients sent and were told, readers saw, and when: all that the auditor knows.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use tidegate_protocol::{
    error::Code,
    stored::ProducerStamp,
    wire::{AckRun, AckStatus, Expect, ProduceAck},
};

use super::{Fault, model::Record};

/// How long the result of a batch is kept at least, whatever the wall clock does.
const KEPT_FOR: Duration = Duration::from_secs(3_600 - 1_200);

/// What a key is expected to stand at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) topic: String,
    pub(super) key: String,
    pub(super) expect: Expect,
}

/// Where a key stands: version and offset of its last record, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Stand {
    pub(super) version: u64,
    pub(super) last_offset: Option<u64>,
}

impl Wish {
    pub(super) fn holds(&self, stand: Stand) -> bool {
        match self.expect {
            Expect::Version(version) => stand.version == version,
            Expect::LastOffset(offset) => stand.last_offset == Some(offset),
            Expect::Absent(_) => stand.version == 0,
        }
    }
}

/// What became of a record, as its client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    At { topic: String, offset: u64, version: u64 },
    Dropped,
    Rejected,
}

/// The last word on a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Taken {
        fates: Vec<Fate>,
        generation: u64,
    },
    /// Nothing of it is stored.
    Refused(Code),
    /// It may be stored or not: the log failed.
    Unknown,
}

/// A batch.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) frame: Bytes,
    pub(super) records: Vec<Record>,
    pub(super) wishes: Vec<Wish>,
    pub(super) stamp: Option<ProducerStamp>,
    /// Step in which it was sent first.
    pub(super) invoked: u64,
    /// Time at which it was.
    pub(super) sent_at: Duration,
    /// Step in which its client read the answer.
    pub(super) answered: Option<u64>,
    pub(super) answer: Option<Answer>,
    /// How often it was sent. A copy on a connection that is gone may come to its turn behind the answer to a later one.
    pub(super) copies: u32,
}

impl Sent {
    /// Step in which its client read that it was taken.
    pub(super) fn acked(&self) -> Option<u64> {
        self.answered.filter(|_| matches!(self.answer, Some(Answer::Taken { .. })))
    }
}

/// A conflict that a client was told of.
#[derive(Debug, Clone)]
pub(super) struct Conflict {
    pub(super) topic: String,
    pub(super) key: String,
    /// Where the key stood.
    pub(super) version: u64,
    pub(super) invoked: u64,
    pub(super) answered: u64,
}

/// A record as a reader gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) topic: String,
    pub(super) offset: u64,
    pub(super) version: u64,
    pub(super) key: Option<String>,
    pub(super) value: String,
    pub(super) generation: u64,
}

/// A subscription over all lives of the broker.
#[derive(Debug, Clone)]
pub(super) struct Followed {
    pub(super) pattern: String,
    pub(super) key: Option<String>,
    /// The first position it asked for.
    pub(super) from_lsn: u64,
    /// All before it was looked at.
    pub(super) next_lsn: u64,
    pub(super) seen: Vec<Seen>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Journal {
    pub(super) sent: Vec<Sent>,
    pub(super) conflicts: Vec<Conflict>,
    pub(super) followed: Vec<Followed>,
    /// Where each key stood last, as somebody was told.
    pub(super) known: BTreeMap<(String, String), Stand>,
    /// Highest generation that was told to be durable.
    pub(super) generation: u64,
    /// The first thing that must not be.
    pub(super) fault: Option<Fault>,
    pub(super) counts: Counts,
}

/// What the worlds came across: a checker that meets nothing finds nothing.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub(super) taken: u64,
    pub(super) duplicates: u64,
    pub(super) conflicts: u64,
    pub(super) conditions_held: u64,
    pub(super) unacked_but_stored: u64,
    pub(super) swaps: u64,
    pub(super) read: u64,
    pub(super) read_by_key: u64,
    pub(super) resumed: u64,
    pub(super) segments: u64,
    pub(super) kills: u64,
    pub(super) kills_while_opening: u64,
    pub(super) failed_logs: u64,
    pub(super) refused_flips: u64,
}

impl Counts {
    fn fields(&mut self) -> [(&'static str, &mut u64); 14] {
        [
            ("taken batches", &mut self.taken),
            ("duplicates", &mut self.duplicates),
            ("conflicts", &mut self.conflicts),
            ("conditions that held", &mut self.conditions_held),
            ("batches stored and never acked", &mut self.unacked_but_stored),
            ("swaps", &mut self.swaps),
            ("records read", &mut self.read),
            ("keys read", &mut self.read_by_key),
            ("resumed subscriptions", &mut self.resumed),
            ("segments", &mut self.segments),
            ("deaths", &mut self.kills),
            ("deaths while a broker starts", &mut self.kills_while_opening),
            ("failed logs", &mut self.failed_logs),
            ("refused flips", &mut self.refused_flips),
        ]
    }

    pub(super) fn add(&mut self, other: &Self) {
        let mut other = *other;
        for ((_, sum), (_, more)) in self.fields().into_iter().zip(other.fields()) {
            *sum += *more;
        }
    }

    /// What every few seeds must have met.
    ///
    /// # Errors
    /// What they did not.
    pub(super) fn is_enough(mut self, seeds: u64) -> Result<(), Fault> {
        for (what, met) in self.fields() {
            if *met < seeds.div_ceil(20) {
                return Err(format!("{seeds} seeds came across {met} {what}, too few to prove anything"));
            }
        }
        Ok(())
    }
}

impl Journal {
    pub(super) fn fault(&mut self, fault: impl Into<Fault>) {
        self.fault.get_or_insert_with(|| fault.into());
    }

    /// A client read the answer to a batch.
    pub(super) fn answer(&mut self, number: usize, (step, now): (u64, Duration), ack: &ProduceAck, may_fail: bool) {
        let answer = match self.judged(number, (step, now), ack, may_fail) {
            Ok(answer) => answer,
            Err(fault) => return self.fault(fault),
        };
        if let Answer::Taken { fates, .. } = &answer {
            self.counts.taken += 1;
            self.counts.duplicates += u64::from(ack.duplicate);
            for (fate, record) in fates.iter().zip(self.sent[number].records.clone()) {
                if let (&Fate::At { ref topic, version, offset }, Some(key)) = (fate, record.key) {
                    self.knows((topic.clone(), key), Stand { version, last_offset: Some(offset) });
                }
            }
        }
        let sent = &mut self.sent[number];
        match &sent.answer {
            None | Some(Answer::Unknown) => {
                sent.answered = Some(step);
                sent.answer = Some(answer);
            }
            Some(before) if *before == answer && ack.duplicate => {}
            Some(_) if answer == Answer::Unknown => {}
            Some(before) => {
                let fault = format!("batch {number} was answered {before:?}, and {answer:?} when it came again");
                self.fault(fault);
            }
        }
    }

    fn judged(
        &mut self,
        number: usize,
        (step, now): (u64, Duration),
        ack: &ProduceAck,
        may_fail: bool,
    ) -> Result<Answer, Fault> {
        let Some(failure) = &ack.failure else {
            let fates = fates(ack).ok_or_else(|| format!("batch {number}: an answer that says nothing: {ack:?}"))?;
            let wanted = self.sent[number].records.len();
            if fates.len() != wanted {
                return Err(format!("batch {number} of {wanted} records got {} answers", fates.len()));
            }
            return Ok(Answer::Taken { fates, generation: ack.generation });
        };
        let sent = &self.sent[number];
        match failure.known_code() {
            Some(Code::Conflict) => {
                let told = failure.conflict.clone().ok_or("a conflict that names nothing")?;
                let (topic, key) = (told.topic, String::from_utf8(told.key).unwrap());
                let stand = Stand { version: told.version, last_offset: told.last_offset };
                let named = sent.wishes.iter().filter(|wish| wish.topic == topic && wish.key == key);
                if named.into_iter().all(|wish| wish.holds(stand)) {
                    return Err(format!("batch {number} met no conflict: {topic} {key} stands at {}", told.version));
                }
                let (version, invoked, answered) = (told.version, sent.invoked, step);
                self.conflicts.push(Conflict { topic: topic.clone(), key: key.clone(), version, invoked, answered });
                self.counts.conflicts += 1;
                self.knows((topic, key), stand);
                Ok(Answer::Refused(Code::Conflict))
            }
            Some(code @ (Code::ConditionTargetMoved | Code::PluginRejected)) if !sent.wishes.is_empty() => {
                Ok(Answer::Refused(code))
            }
            // Results are kept for an hour.
            Some(Code::SequenceExpired) if sent.stamp.is_some() && now >= sent.sent_at + KEPT_FOR => {
                Ok(Answer::Unknown)
            }
            // An earlier try may have stored it before the client began its next epoch.
            Some(Code::ProducerFenced) if sent.stamp.is_some() => Ok(Answer::Unknown),
            Some(Code::StorageFailed | Code::StorageFull | Code::ShuttingDown) if may_fail => Ok(Answer::Unknown),
            _ => Err(format!("batch {number} was refused: {failure:?}")),
        }
    }

    fn knows(&mut self, key: (String, String), stand: Stand) {
        let known = self.known.entry(key).or_default();
        *known = stand.max(*known);
    }
}

/// What an answer says of each record.
fn fates(ack: &ProduceAck) -> Option<Vec<Fate>> {
    let mut fates = Vec::new();
    for AckRun { records, status, topic, first_offset, key_versions, .. } in &ack.runs {
        for at in 0..*records {
            fates.push(match *status {
                status if status == u32::from(AckStatus::Appended) => Fate::At {
                    topic: ack.topics.get(*topic as usize)?.clone(),
                    offset: first_offset + u64::from(at),
                    version: *key_versions.get(at as usize)?,
                },
                status if status == u32::from(AckStatus::Dropped) => Fate::Dropped,
                _ => Fate::Rejected,
            });
        }
    }
    Some(fates)
}
