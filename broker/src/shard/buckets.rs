//! A map that can be copied in an instant while it goes on changing: a checkpoint must not stop the sequencer.
//!
//! The map is many small ones. A copy shares them all; a change afterwards copies the one small map it touches, once, and
//! only while a copy is alive. A key is hashed once for both choices, and one that nobody shares is changed without a look at
//! reference counts: the sequencer does this for every record.

use std::{
    borrow::Borrow,
    hash::{BuildHasher as _, Hash, RandomState},
    sync::Arc,
};

use hashbrown::{HashTable, hash_table::Entry};

/// Small maps: of a million keys each holds a thousand, which are copied in some 30 µs.
const COUNT: usize = 1024;

/// A small map.
pub(super) type Table<K, V> = HashTable<(K, V)>;

/// See the module.
#[derive(Debug)]
pub(super) struct Buckets<K, V> {
    maps: Vec<Small<K, V>>,
    /// Keyed at random: keys come from clients, who must not be able to make them collide.
    hasher: RandomState,
    len: usize,
}

#[derive(Debug)]
enum Small<K, V> {
    Own(Table<K, V>),
    /// A copy may hold it too.
    Shared(Arc<Table<K, V>>),
}

impl<K: Clone, V: Clone> Small<K, V> {
    fn read(&self) -> &Table<K, V> {
        match self {
            Self::Own(table) => table,
            Self::Shared(table) => table,
        }
    }

    fn own(&mut self) -> &mut Table<K, V> {
        if let Self::Shared(shared) = self {
            *self = Self::Own(Arc::unwrap_or_clone(std::mem::take(shared)));
        }
        match self {
            Self::Own(table) => table,
            Self::Shared(_) => unreachable!("it was just taken"),
        }
    }

    fn share(&mut self) -> Arc<Table<K, V>> {
        if let Self::Own(own) = self {
            *self = Self::Shared(Arc::new(std::mem::take(own)));
        }
        match self {
            Self::Shared(shared) => Arc::clone(shared),
            Self::Own(_) => unreachable!("it was just given"),
        }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Buckets<K, V> {
    pub(super) fn new() -> Self {
        Self { maps: (0..COUNT).map(|_| Small::Own(Table::new())).collect(), hasher: RandomState::new(), len: 0 }
    }

    /// All of it as it is now.
    pub(super) fn copy(&mut self) -> Self {
        let maps = self.maps.iter_mut().map(|map| Small::Shared(map.share())).collect();
        Self { maps, hasher: self.hasher.clone(), len: self.len }
    }

    /// Hash, and number of the small map. That choice takes bits which choose nothing within it.
    fn place<Q: Hash + ?Sized>(&self, key: &Q) -> (u64, usize) {
        let hash = self.hasher.hash_one(key);
        (hash, usize::try_from((hash >> 40) % COUNT as u64).unwrap_or_default())
    }

    pub(super) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (hash, at) = self.place(key);
        self.maps[at].read().find(hash, |(known, _)| known.borrow() == key).map(|(_, value)| value)
    }

    pub(super) fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (hash, at) = self.place(key);
        self.maps[at].own().find_mut(hash, |(known, _)| known.borrow() == key).map(|(_, value)| value)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        let (hash, at) = self.place(&key);
        let hasher = &self.hasher;
        match self.maps[at].own().entry(hash, |(known, _)| *known == key, |(known, _)| hasher.hash_one(known)) {
            Entry::Occupied(mut entry) => entry.get_mut().1 = value,
            Entry::Vacant(entry) => {
                entry.insert((key, value));
                self.len += 1;
            }
        }
    }

    /// Keeps the entries that `keep` says yes to; it may change them.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.len = 0;
        for map in &mut self.maps {
            let map = map.own();
            map.retain(|(key, value)| keep(key, value));
            self.len += map.len();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A small map by number, as it is now; `None` behind the last.
    pub(super) fn map(&mut self, number: usize) -> Option<Arc<Table<K, V>>> {
        self.maps.get_mut(number).map(Small::share)
    }

    /// Small maps that somebody holds beside this one.
    #[cfg(test)]
    pub(super) fn shared(&self) -> usize {
        let is_shared = |map: &&Small<K, V>| matches!(map, Small::Shared(map) if Arc::strong_count(map) > 1);
        self.maps.iter().filter(is_shared).filter(|map| !map.read().is_empty()).count()
    }

    /// The small maps, so that a writer may go through them one by one.
    pub(super) fn maps(&self) -> impl Iterator<Item = &Table<K, V>> {
        self.maps.iter().map(Small::read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stays_as_it_was() {
        let mut buckets = Buckets::new();
        (0..5000_u64).for_each(|key| buckets.insert(key, key));
        let copy = buckets.copy();
        assert!(buckets.shared() > 900, "almost all hold something");
        for key in 0..5000 {
            *buckets.get_mut(&key).unwrap() += 1;
        }
        assert_eq!(buckets.shared(), 0);
        buckets.insert(9999, 0);
        assert!((0..5000).all(|key| copy.get(&key) == Some(&key) && buckets.get(&key) == Some(&(key + 1))));
        assert_eq!((copy.len(), buckets.len()), (5000, 5001));
        buckets.insert(9999, 1);
        assert_eq!((buckets.len(), buckets.get(&9999)), (5001, Some(&1)));
        buckets.retain(|key, _| key % 2 == 0);
        assert_eq!((copy.len(), buckets.len()), (5000, 2500));
        let listed: usize = buckets.maps().map(|map| map.iter().count()).sum();
        assert_eq!(listed, 2500);
    }
}
