//! Fetch results that subscribers share: what pure plugins, who do not look at the reader, made of some records.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use super::FetchOutput;

/// The last results, most recently used at the end. Few and large: a list is searched faster than a map is kept.
#[derive(Debug)]
pub(super) struct Shared {
    entries: Mutex<Entries>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Entries {
    list: VecDeque<Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    output: FetchOutput,
    bytes: usize,
}

/// What a result depends on, within one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) first_lsn: u64,
    /// Positions in the frame.
    pub(super) at: Box<[u32]>,
    /// Chain positions that the records may meet: readers of another role may skip some.
    pub(super) positions: Box<[usize]>,
}

impl Shared {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { entries: Mutex::default(), bytes_max }
    }

    pub(super) fn find(&self, key: &Key) -> Option<FetchOutput> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let at = entries.list.iter().rposition(|entry| entry.key == *key)?;
        let entry = entries.list.remove(at)?;
        let output = entry.output.clone();
        entries.list.push_back(entry);
        Some(output)
    }

    /// Keeps a result that holds on to `bytes` of memory.
    pub(super) fn keep(&self, key: Key, output: &FetchOutput, bytes: usize) {
        let bytes = bytes + key.at.len() * size_of::<u32>();
        if bytes > self.bytes_max {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.bytes += bytes;
        entries.list.push_back(Entry { key, output: output.clone(), bytes });
        while entries.bytes > self.bytes_max || entries.list.len() > ENTRIES_MAX {
            let Some(oldest) = entries.list.pop_front() else { break };
            entries.bytes -= oldest.bytes;
        }
    }
}

/// Subscribers that share a result ask for it within moments of each other.
const ENTRIES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(first_lsn: u64) -> Key {
        Key { first_lsn, at: [0, 1].into(), positions: [0].into() }
    }

    #[test]
    fn keeps_the_last_used_within_its_bounds() {
        let shared = Shared::new(1000);
        for lsn in 0..10 {
            shared.keep(key(lsn), &FetchOutput::Unchanged, 92);
        }
        assert!(shared.find(&key(0)).is_some());
        shared.keep(key(10), &FetchOutput::Unchanged, 92);
        assert!(shared.find(&key(0)).is_some(), "was used a moment ago");
        assert!(shared.find(&key(1)).is_none(), "was the oldest");
        shared.keep(key(11), &FetchOutput::Unchanged, 1001);
        assert!(shared.find(&key(11)).is_none(), "larger than all room");
        assert!(shared.find(&Key { at: [0].into(), ..key(10) }).is_none());
        assert!(shared.find(&Key { positions: [1].into(), ..key(10) }).is_none());
    }
}
