//! Key heads: for every key ever written its version and last offset. They outlive records.
//!
//! In memory, some 120 bytes and the key each, in this version: ten million keys are 1.5 GB. The log engine moves them
//! into segments.

use std::sync::Arc;

use super::buckets::{Buckets, Table};

/// Where a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// Of its last record; the first is 1.
    pub(super) version: u64,
    /// Of its last record.
    pub(super) last_offset: u64,
}

/// Heads by topic and key, those of frames in flight counted.
#[derive(Debug)]
pub(super) struct Heads {
    /// By topic id (8 bytes, little endian) and key.
    map: Buckets<Arc<[u8]>, Head>,
    key_bytes: usize,
    scratch: Vec<u8>,
}

/// Some of the heads. While it lives, a change of one of them copies them all.
pub(super) struct Part(Arc<Table<Arc<[u8]>, Head>>);

impl Part {
    /// Topic, place (the topic and the key), head.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Arc<[u8]>, Head)> {
        self.0.iter().filter_map(|(place, head)| Some((u64::from_le_bytes(*place.first_chunk()?), place, *head)))
    }
}

/// The key of a place.
pub(super) fn key_of(place: &[u8]) -> &[u8] {
    place.get(size_of::<u64>()..).unwrap_or_default()
}

impl Heads {
    pub(super) fn new() -> Self {
        Self { map: Buckets::new(), key_bytes: 0, scratch: Vec::new() }
    }

    fn place(&mut self, topic: u64, key: &[u8]) {
        self.scratch.clear();
        self.scratch.extend_from_slice(&topic.to_le_bytes());
        self.scratch.extend_from_slice(key);
    }

    /// Where a key stands; `None` if it was never written.
    pub(super) fn get(&mut self, topic: u64, key: &[u8]) -> Option<Head> {
        self.place(topic, key);
        self.map.get(self.scratch.as_slice()).copied()
    }

    /// Counts a record of a key up; gives its version.
    pub(super) fn advance(&mut self, topic: u64, key: &[u8], offset: u64) -> u64 {
        self.place(topic, key);
        if let Some(head) = self.map.get_mut(self.scratch.as_slice()) {
            *head = Head { version: head.version + 1, last_offset: offset };
            return head.version;
        }
        self.key_bytes += key.len();
        self.map.insert(self.scratch.as_slice().into(), Head { version: 1, last_offset: offset });
        1
    }

    /// Takes a head as it was read back.
    pub(super) fn set(&mut self, topic: u64, key: &[u8], head: Head) {
        self.place(topic, key);
        if let Some(place) = self.map.get_mut(self.scratch.as_slice()) {
            *place = head;
            return;
        }
        self.key_bytes += key.len();
        self.map.insert(self.scratch.as_slice().into(), head);
    }

    /// All of them as they are now.
    pub(super) fn copy(&mut self) -> Self {
        Self { map: self.map.copy(), key_bytes: self.key_bytes, scratch: Vec::new() }
    }

    /// Parts that somebody holds beside this map.
    #[cfg(test)]
    pub(super) fn shared(&self) -> usize {
        self.map.shared()
    }

    /// Keys.
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// Bytes of all keys together.
    pub(super) fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// A part of the heads by number, as it is now; `None` behind the last.
    pub(super) fn part(&mut self, number: usize) -> Option<Part> {
        self.map.map(number).map(Part)
    }

    /// All heads in parts: topic, key, head.
    pub(super) fn parts(&self) -> impl Iterator<Item = impl Iterator<Item = (u64, &[u8], Head)>> {
        self.map.maps().map(|map| {
            map.iter().filter_map(|(place, head)| {
                let (topic, key) = place.split_first_chunk()?;
                Some((u64::from_le_bytes(*topic), key, *head))
            })
        })
    }
}
