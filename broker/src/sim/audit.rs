//! The auditor: what clients were told, what readers saw and what the disk holds must all be explained by the log.

use std::collections::BTreeSet;

use tidegate_protocol::wire::Start;

use super::{
    Fault,
    journal::{Answer, Journal, Seen, Stand},
    life::Life,
    reader,
    truth::Truth,
};
use crate::shard::{Key, KeyRange, Topic};

/// Files out of use that may be kept beside those in use: two kept, two made ready ahead.
const SPARES_MAX: usize = 4;

/// Checks everything that can be asked of a broker at rest; gives the records of its log.
pub(super) async fn audit(life: &Life) -> Result<Vec<(u64, Seen)>, Fault> {
    let truth = Truth::read(life).await?;
    {
        let mut journal = life.journal();
        answers(&truth, &mut journal)?;
        order(&truth, &journal)?;
        conflicts(&truth, &journal)?;
        followed(&truth, &journal)?;
    }
    catalog(life, &truth).await?;
    scans(life, &truth).await?;
    keys(life, &truth).await?;
    Ok(truth.rows)
}

/// What was acked is there as it was acked; what was refused is not there.
fn answers(truth: &Truth, journal: &mut Journal) -> Result<(), Fault> {
    let mut unacked = 0;
    let mut held = 0;
    for (number, sent) in journal.sent.iter().enumerate() {
        let stored = truth.batches.get(&number);
        held += u64::from(stored.is_some() && !sent.wishes.is_empty());
        match &sent.answer {
            Some(Answer::Taken { fates, generation }) => {
                let admits = fates.iter().any(|fate| matches!(fate, super::journal::Fate::At { .. }));
                let Some(stored) = stored else {
                    if admits {
                        return Err(format!("acked batch {number} is lost"));
                    }
                    continue;
                };
                if stored.fates != *fates || stored.generation != *generation {
                    return Err(format!("batch {number} was acked as {fates:?} under {generation} and is {stored:?}"));
                }
            }
            // A stamp says that it is the same batch: the copy that was refused is not the one that is stored.
            Some(Answer::Refused(code)) if stored.is_some() && (sent.stamp.is_none() || sent.copies < 2) => {
                return Err(format!("batch {number} was refused with {code:?} and is stored"));
            }
            Some(Answer::Refused(_)) => {}
            Some(Answer::Unknown) | None => unacked += u64::from(stored.is_some()),
        }
    }
    journal.counts.unacked_but_stored += unacked;
    journal.counts.conditions_held += held;
    Ok(())
}

/// The order of the log is a linearisation: nothing that was answered before another was sent stands behind it.
fn order(truth: &Truth, journal: &Journal) -> Result<(), Fault> {
    let mut earliest = (u64::MAX, 0);
    for &number in truth.order.iter().rev() {
        let sent = &journal.sent[number];
        if earliest.0 < sent.invoked {
            return Err(format!("batch {} was answered before {number} was sent, and stands behind it", earliest.1));
        }
        earliest = earliest.min((sent.acked().unwrap_or(u64::MAX), number));
    }
    Ok(())
}

/// A conflict told of a version that stood at some moment between question and answer.
fn conflicts(truth: &Truth, journal: &Journal) -> Result<(), Fault> {
    for conflict in &journal.conflicts {
        let writer = |version| {
            let number = truth.writers.get(&(conflict.topic.clone(), conflict.key.clone(), version));
            number.map(|&number| &journal.sent[number])
        };
        let what = format!("a conflict told of version {} of {} {}", conflict.version, conflict.topic, conflict.key);
        if conflict.version > 0 {
            match writer(conflict.version) {
                None => return Err(format!("{what}, which is not there")),
                Some(sent) if sent.invoked > conflict.answered => {
                    return Err(format!("{what}, which was sent only later"));
                }
                Some(_) => {}
            }
        }
        if let Some(next) = writer(conflict.version + 1)
            && next.acked().is_some_and(|answered| answered < conflict.invoked)
        {
            return Err(format!("{what}, and the next one was acked before the question"));
        }
    }
    Ok(())
}

/// A subscription saw its part of the log, once each and in order, from its first position to its cursor.
fn followed(truth: &Truth, journal: &Journal) -> Result<(), Fault> {
    for (number, followed) in journal.followed.iter().enumerate() {
        if followed.next_lsn > truth.end {
            return Err(format!("subscription {number} is at {}, the log ends at {}", followed.next_lsn, truth.end));
        }
        let wanted = truth.shown(&followed.pattern, followed.key.as_deref(), followed.from_lsn, followed.next_lsn);
        same(&format!("subscription {number} of {}", followed.pattern), &followed.seen, &wanted)?;
    }
    Ok(())
}

fn same(what: &str, seen: &[Seen], wanted: &[Seen]) -> Result<(), Fault> {
    if seen == wanted {
        return Ok(());
    }
    let at = seen.iter().zip(wanted).take_while(|(seen, wanted)| seen == wanted).count();
    let text = |seen: Option<&Seen>| match seen {
        None => "nothing".to_owned(),
        Some(seen) => format!("{}@{} {:?} v{}", seen.topic, seen.offset, seen.key, seen.version),
    };
    let (got, must) = (text(seen.get(at)), text(wanted.get(at)));
    let (count, all) = (seen.len(), wanted.len());
    Err(format!("{what} gave {count} records, not {all}; number {at} is {got} and must be {must}"))
}

async fn catalog(life: &Life, truth: &Truth) -> Result<(), Fault> {
    let live = life.shard.live_generation(life.tenant);
    let told = life.journal().generation;
    if live < told {
        return Err(format!("generation {told} was told to be live, {live} is"));
    }
    for topic in life.shard.topics(life.tenant, None, false, 1_000) {
        let next = truth.next_offsets.get(topic.name.as_str()).copied().unwrap_or_default();
        if next != topic.next_offset {
            return Err(format!("{} goes on at {}, the log holds {next}", topic.name, topic.next_offset));
        }
        listed(life, truth, &topic).await?;
    }
    Ok(())
}

/// The keys of a topic stand where the log says.
async fn listed(life: &Life, truth: &Truth, topic: &Topic) -> Result<(), Fault> {
    let range = KeyRange { keys_max: 1_000, bytes_max: 1 << 20, ..KeyRange::default() };
    let (keys, _) = life.shard.keys(topic.id, range).await.map_err(|error| error.to_string())?;
    let stand = |key: &Key| Stand { version: key.version, last_offset: Some(key.last_offset) };
    let told: Vec<(String, Stand)> =
        keys.iter().map(|key| (String::from_utf8(key.key.to_vec()).unwrap(), stand(key))).collect();
    let wanted = truth.stands.iter().filter(|((name, _), _)| name == topic.name.as_str());
    let wanted: Vec<(String, Stand)> = wanted.map(|((_, key), stand)| (key.clone(), *stand)).collect();
    if told == wanted { Ok(()) } else { Err(format!("keys of {} are {told:?}, not {wanted:?}", topic.name)) }
}

/// A scan of a pattern is a filter of the log, from anywhere.
async fn scans(life: &Life, truth: &Truth) -> Result<(), Fault> {
    let middle = life.below(truth.end + 1);
    for (pattern, start) in [(">", 0), ("in/*", middle), ("raw/0", middle), ("in/2", 0), ("out/>", 0)] {
        if pattern.contains(['*', '>']) || life.shard.topic(life.tenant, pattern).is_some() {
            let (seen, next_lsn) = reader::read(life, pattern, None, reader::at(start)).await?;
            if next_lsn != truth.end {
                return Err(format!("a scan of {pattern} ended at {next_lsn}, the log at {}", truth.end));
            }
            same(&format!("a scan of {pattern} from {start}"), &seen, &truth.shown(pattern, None, start, truth.end))?;
            life.journal().counts.read += seen.len() as u64;
        }
    }
    let Some(next) = truth.next_offsets.get("in/0").copied() else { return Ok(()) };
    let offset = life.below(next + 1);
    let (seen, _) = reader::read(life, "in/0", None, Start::Offset(offset)).await?;
    let mut wanted = truth.shown("in/0", None, 0, truth.end);
    wanted.retain(|seen| seen.offset >= offset);
    same(&format!("a scan of in/0 from offset {offset}"), &seen, &wanted)
}

/// A read by key is a filter of the scan, and so is its head.
async fn keys(life: &Life, truth: &Truth) -> Result<(), Fault> {
    let named = truth.rows.iter().filter_map(|(_, seen)| Some((seen.topic.clone(), seen.key.clone()?)));
    let named: BTreeSet<(String, String)> = named.collect();
    for (topic, key) in named {
        let (seen, _) = reader::read(life, &topic, Some(&key), Start::Earliest(true)).await?;
        let wanted = truth.shown(&topic, Some(&key), 0, truth.end);
        same(&format!("the replay of {topic} {key}"), &seen, &wanted)?;
        life.journal().counts.read_by_key += 1;
        if life.one_in(3) {
            let (head, _) = reader::read(life, &topic, Some(&key), Start::KeyHead(true)).await?;
            same(&format!("the head of {topic} {key}"), &head, &wanted[wanted.len().saturating_sub(1)..])?;
        }
    }
    Ok(())
}

/// At rest the object store holds what the manifest names, and the WAL no more files than it needs.
pub(super) fn at_rest(
    life: &Life,
    objects: &[String],
    manifest: &[u8],
    wal_files: usize,
    full_max: usize,
) -> Result<u64, Fault> {
    let manifest: serde_json::Value = serde_json::from_slice(manifest).map_err(|error| error.to_string())?;
    let of = |value: &serde_json::Value| value["object"].as_str().map(str::to_owned);
    let mut named: BTreeSet<String> = manifest["segments"].as_array().into_iter().flatten().filter_map(of).collect();
    let segments = named.len() as u64;
    named.extend(of(&manifest["checkpoint"]));
    let here: BTreeSet<String> = objects.iter().filter(|name| !name.starts_with("manifest/")).cloned().collect();
    if here != named {
        return Err(format!("the store holds {here:?}, the manifest names {named:?}"));
    }
    if objects.len() != here.len() + 1 {
        return Err(format!("there is more than one manifest: {objects:?}"));
    }
    let in_use = life.shard.stats().wal_files;
    if in_use > full_max + 1 || wal_files > in_use + SPARES_MAX {
        return Err(format!("{in_use} WAL files are in use and {wal_files} there, {full_max} may be full"));
    }
    Ok(segments)
}
