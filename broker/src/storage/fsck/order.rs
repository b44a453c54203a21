//! The order of the log: LSNs, offsets and key versions from frame to frame, and what a checkpoint says at its LSN.
//!
//! Keys are compared by 128 bits of a hash of topic and key. Where there are more of them than may be in memory at once, the
//! log is read several times, each time for a part of the hash space: a part is halved whenever it grows over the bound.

use std::collections::{HashMap, hash_map::Entry};

use tidegate_protocol::stored::StoredFrame;

use super::StateItem;

/// See the module.
#[derive(Debug)]
pub(super) struct Order {
    keys_max: usize,
    /// Number of the reading, from 0.
    part: u32,
    /// Hashes of this reading: from, and up to and with.
    from: u128,
    to: u128,
    first_lsn: Option<u64>,
    next_lsn: u64,
    broker_time_ms: i64,
    frames: u64,
    records: u64,
    /// The log starts at LSN 0 and no part of it was left out: what comes first of anything is its very first.
    complete: bool,
    broken: bool,
    /// By topic: the next offset.
    topics: HashMap<u64, u64>,
    keys: HashMap<u128, Key>,
}

#[derive(Debug, Clone, Copy)]
struct Key {
    version: u64,
    last_offset: u64,
    /// The checkpoint at hand names it.
    named: bool,
}

impl Order {
    pub(super) fn new(keys_max: usize) -> Self {
        Self {
            keys_max: keys_max.max(1),
            part: 0,
            from: 0,
            to: u128::MAX,
            first_lsn: None,
            next_lsn: 0,
            broker_time_ms: i64::MIN,
            frames: 0,
            records: 0,
            complete: true,
            broken: false,
            topics: HashMap::new(),
            keys: HashMap::new(),
        }
    }

    /// Number of the reading, from 0.
    pub(super) fn part(&self) -> u32 {
        self.part
    }

    /// First LSN, and the one behind the last frame.
    pub(super) fn range(&self) -> (u64, u64) {
        (self.first_lsn.unwrap_or(self.next_lsn), self.next_lsn)
    }

    /// Frames and records.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.frames, self.records)
    }

    /// A part of the log was left out.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Goes on with the keys that found no room. `false` if there are none.
    pub(super) fn next_part(&mut self) -> bool {
        if self.to == u128::MAX {
            return false;
        }
        let (part, from) = (self.part + 1, self.to + 1);
        *self = Self { part, from, ..Self::new(self.keys_max) };
        true
    }

    /// The log starts at an LSN: what lay before was dropped on purpose.
    pub(super) fn start_at(&mut self, lsn: u64) {
        self.complete &= lsn == 0;
        self.next_lsn = lsn;
        self.first_lsn = Some(lsn);
    }

    /// Nothing is kept of what lies before an LSN, on purpose: what comes behind goes on anywhere.
    pub(super) fn skip_to(&mut self, lsn: u64) {
        if lsn > self.next_lsn {
            self.complete = false;
            self.next_lsn = lsn;
            self.topics.clear();
            self.keys.clear();
        }
    }

    /// A part of the log cannot be read: nothing is known of what comes behind it.
    pub(super) fn leave_out(&mut self, next_lsn: u64) {
        (self.complete, self.broken) = (false, true);
        self.next_lsn = next_lsn;
        self.topics.clear();
        self.keys.clear();
    }

    /// Takes the next frame.
    ///
    /// # Errors
    /// How it does not follow.
    pub(super) fn frame(&mut self, frame: &StoredFrame) -> Result<(), String> {
        let header = &frame.header;
        let lsn = header.first_lsn;
        if lsn != self.next_lsn {
            return Err(format!("a frame of LSN {lsn} stands where LSN {} must", self.next_lsn));
        }
        if header.broker_time_ms < self.broker_time_ms {
            return Err(format!("the broker time of LSN {lsn} is before that of the frame before"));
        }
        self.broker_time_ms = header.broker_time_ms;
        self.first_lsn.get_or_insert(lsn);
        self.next_lsn = frame.next_lsn();
        self.frames += 1;
        let records = frame.body.iter().flat_map(|body| body.records());
        for ((id, offset, version), (_, record)) in frame.positions().zip(records) {
            self.records += 1;
            match self.topics.entry(id) {
                Entry::Vacant(_) if self.complete && offset != 0 => {
                    return Err(format!("topic {id} begins at offset {offset} (LSN {lsn})"));
                }
                Entry::Vacant(entry) => drop(entry.insert(offset + 1)),
                Entry::Occupied(next) if *next.get() != offset => {
                    let next = next.get();
                    return Err(format!("offset {offset} of topic {id} stands where {next} must (LSN {lsn})"));
                }
                Entry::Occupied(mut next) => *next.get_mut() = offset + 1,
            }
            match record.key {
                Some(key) => self.key(id, key, version, offset).map_err(|what| format!("{what} (LSN {lsn})"))?,
                None if version != 0 => return Err(format!("a null key has version {version} (LSN {lsn})")),
                None => {}
            }
        }
        Ok(())
    }

    fn key(&mut self, topic: u64, key: &[u8], version: u64, last_offset: u64) -> Result<(), String> {
        let hash = hash(topic, key);
        if !(self.from..=self.to).contains(&hash) {
            return Ok(());
        }
        let before = self.keys.insert(hash, Key { version, last_offset, named: false }).map(|key| key.version);
        let wanted = before.map(|before| before + 1).or_else(|| self.complete.then_some(1));
        if version == 0 || wanted.is_some_and(|wanted| wanted != version) {
            let wanted = wanted.unwrap_or(1);
            return Err(format!("version {version} of a key of topic {topic} stands where {wanted} must"));
        }
        while self.keys.len() > self.keys_max && self.from < self.to {
            self.to = self.from + (self.to - self.from) / 2;
            let to = self.to;
            self.keys.retain(|hash, _| *hash <= to);
        }
        Ok(())
    }

    /// Compares an item of the checkpoint at this very LSN.
    ///
    /// # Errors
    /// How it contradicts the log.
    pub(super) fn item(&mut self, item: &StateItem<'_>) -> Result<(), String> {
        match *item {
            StateItem::Topic { id, next_offset, name, .. } => match self.topics.get(&id) {
                Some(next) if *next != next_offset => {
                    Err(format!("topic {id} ({name}) is said to stand at offset {next_offset}, the log is at {next}"))
                }
                None if self.complete && next_offset != 0 => {
                    Err(format!("topic {id} ({name}) is said to stand at offset {next_offset}, the log has none of it"))
                }
                _ => Ok(()),
            },
            StateItem::Head { topic, key, version, last_offset } => {
                let hash = hash(topic, key);
                if !(self.from..=self.to).contains(&hash) {
                    return Ok(());
                }
                let told = (version, last_offset);
                match self.keys.get_mut(&hash) {
                    Some(known) if (known.version, known.last_offset) != told => Err(format!(
                        "a key of topic {topic} is said to stand at version {version}, offset {last_offset}, the log is at \
                         version {}, offset {}",
                        known.version, known.last_offset
                    )),
                    Some(known) if known.named => Err(format!("a key of topic {topic} is there twice")),
                    Some(known) => {
                        known.named = true;
                        Ok(())
                    }
                    None if self.complete => Err(format!(
                        "a key of topic {topic} is said to stand at version {version}, the log has none of it"
                    )),
                    // Heads outlive records.
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// The checkpoint has named all its keys.
    ///
    /// # Errors
    /// How many it lacks.
    pub(super) fn all_named(&mut self) -> Result<(), String> {
        let lacking = self.keys.values_mut().map(|key| usize::from(!std::mem::take(&mut key.named))).sum::<usize>();
        if lacking > 0 { Err(format!("the heads of {lacking} keys that the log has are missing")) } else { Ok(()) }
    }
}

fn hash(topic: u64, key: &[u8]) -> u128 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&topic.to_le_bytes()).update(key);
    let hash = hasher.finalize();
    u128::from_le_bytes(hash.as_bytes().first_chunk().copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(order: &mut Order, keys: u64) -> Result<(), String> {
        (0..keys).try_for_each(|key| {
            order.key(16, &key.to_le_bytes(), 1, key)?;
            order.key(16, &key.to_le_bytes(), 2, key + keys)
        })
    }

    #[test]
    fn more_keys_than_fit_are_compared_in_parts_and_each_in_one_of_them() {
        let mut order = Order::new(10);
        let mut compared = 0;
        loop {
            // A part may be halved on the way: what is held at its end was compared from its first version on.
            versions(&mut order, 200).unwrap();
            assert!(order.keys.len() <= 10);
            compared += order.keys.len();
            if !order.next_part() {
                break;
            }
        }
        assert_eq!(compared, 200);
        assert!(order.part() >= 20);
    }

    #[test]
    fn a_version_that_is_skipped_repeated_or_not_the_first_is_found() {
        let mut order = Order::new(10);
        order.key(16, b"a", 1, 0).unwrap();
        for version in [0, 1, 3] {
            let mut order = Order::new(10);
            order.key(16, b"a", 1, 0).unwrap();
            assert!(order.key(16, b"a", version, 1).is_err(), "{version}");
        }
        assert!(order.key(16, b"b", 2, 1).is_err());
        order.leave_out(9);
        order.key(16, b"b", 2, 1).unwrap();
    }
}
