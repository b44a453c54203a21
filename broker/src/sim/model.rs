//! What the simulation's hooks do, as plain functions: the hooks call them, and the auditor asks them what must be there.

use std::sync::Arc;

use super::schedule::Schedule;
use crate::{
    hooks::{
        Hook,
        native::{Judgement, Native, NativeRecord},
    },
    threads::Threads as _,
};

/// Records with this key are left out by the chain.
pub(super) const KEY_DROPPED: &str = "drop";
/// Records with this key are rejected by the chain.
pub(super) const KEY_REJECTED: &str = "bad";
/// Records of this topic are routed.
pub(super) const ROUTED: &str = "in/route";
/// To this one.
pub(super) const ROUTED_TO: &str = "in/0";
/// Where emitted records go.
pub(super) const EMITTED_TO: &str = "out/e";
/// Of this topic readers do not get the records with this key.
pub(super) const HIDDEN: (&str, &str) = ("in/2", "k1");

/// A record of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) topic: String,
    pub(super) key: Option<String>,
    /// `NUMBER:INDEX:…`, the batch's number and the record's place in it.
    pub(super) value: String,
}

/// What becomes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Stored,
    Dropped,
    Rejected,
}

/// What a chain makes of a batch: a fate for each record, and what is stored, emitted records last.
pub(super) fn outcome(records: &[Record], generation: u64) -> (Vec<Expected>, Vec<Record>) {
    let (mut fates, mut stored, mut emitted) = (Vec::new(), Vec::new(), Vec::new());
    for record in records {
        let key = record.key.as_deref().map(str::as_bytes);
        let judgement = match record.topic.starts_with("in/") {
            true => judge(generation, &record.topic, key, record.value.as_bytes()),
            false => Judgement::Pass,
        };
        fates.push(match judgement {
            Judgement::Drop => Expected::Dropped,
            Judgement::Reject(_) => Expected::Rejected,
            Judgement::Pass => {
                stored.push(record.clone());
                Expected::Stored
            }
            Judgement::Edit { value, topic, emit } => {
                let topic = topic.unwrap_or_else(|| record.topic.clone());
                stored.push(Record { topic, key: record.key.clone(), value: text(value) });
                emitted.extend(emit.map(|(topic, key, value)| Record {
                    topic,
                    key: Some(text(key)),
                    value: text(value),
                }));
                Expected::Stored
            }
        });
    }
    stored.extend(emitted);
    (fates, stored)
}

/// Whether readers get a record.
pub(super) fn is_shown(topic: &str, key: Option<&str>) -> bool {
    topic != HIDDEN.0 || key != Some(HIDDEN.1)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// On the way in: a generation leaves its mark on every record.
fn judge(generation: u64, topic: &str, key: Option<&[u8]>, value: &[u8]) -> Judgement {
    if key == Some(KEY_DROPPED.as_bytes()) {
        return Judgement::Drop;
    }
    if key == Some(KEY_REJECTED.as_bytes()) {
        return Judgement::Reject(7);
    }
    let mark = format!("@{generation}");
    let marked = [value, mark.as_bytes()].concat();
    let name = value.split(|byte| *byte == b':').take(2).collect::<Vec<_>>().join(&b':');
    let emits = value.len().is_multiple_of(7);
    let emit = emits.then(|| {
        let value = [&name[..], b":emitted", mark.as_bytes()].concat();
        (EMITTED_TO.to_owned(), key.unwrap_or(b"none").to_vec(), value)
    });
    Judgement::Edit { value: marked, topic: (topic == ROUTED).then(|| ROUTED_TO.to_owned()), emit }
}

/// The plugin of one generation.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) generation: u64,
    pub(super) schedule: Schedule,
}

impl Gate {
    pub(super) fn shared(generation: u64, schedule: &Schedule) -> Arc<dyn Native> {
        Arc::new(Self { generation, schedule: schedule.clone() })
    }
}

impl Native for Gate {
    fn judge(&self, hook: Hook, records: &[NativeRecord<'_>]) -> Vec<Judgement> {
        // A guest takes its time, and other threads go on meanwhile.
        self.schedule.pause("hook");
        let judgement = |record: &NativeRecord<'_>| match hook {
            Hook::Produce => judge(self.generation, record.topic, record.key, record.value.unwrap_or_default()),
            Hook::Fetch => {
                let key = record.key.map(|key| std::str::from_utf8(key).unwrap());
                if is_shown(record.topic, key) { Judgement::Pass } else { Judgement::Drop }
            }
        };
        records.iter().map(judgement).collect()
    }
}
