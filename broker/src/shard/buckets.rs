//! A map that can be copied in an instant while it goes on changing: a checkpoint must not stop the sequencer.
//!
//! The map is many small ones behind `Arc`. A copy takes the `Arc`s; a change afterwards copies the one small map it
//! touches, and only while a copy is alive.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    sync::Arc,
};

/// Small maps: of a million keys each holds a thousand, which are copied in some 30 µs.
const COUNT: usize = 1024;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Buckets<K, V> {
    maps: Vec<Arc<HashMap<K, V>>>,
    hasher: RandomState,
    len: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Buckets<K, V> {
    pub(super) fn new() -> Self {
        Self { maps: vec![Arc::default(); COUNT], hasher: RandomState::new(), len: 0 }
    }

    fn at<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        usize::try_from(self.hasher.hash_one(key) % COUNT as u64).unwrap_or_default()
    }

    pub(super) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.maps[self.at(key)].get(key)
    }

    pub(super) fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.at(key);
        Arc::make_mut(&mut self.maps[at]).get_mut(key)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        let at = self.at(&key);
        if Arc::make_mut(&mut self.maps[at]).insert(key, value).is_none() {
            self.len += 1;
        }
    }

    /// Keeps the entries that `keep` says yes to; it may change them.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.len = 0;
        for map in &mut self.maps {
            let map = Arc::make_mut(map);
            map.retain(&mut keep);
            self.len += map.len();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A small map by number, as it is now; `None` behind the last.
    pub(super) fn map(&self, number: usize) -> Option<Arc<HashMap<K, V>>> {
        self.maps.get(number).cloned()
    }

    /// Small maps that somebody holds beside this one; those without entries are one at first.
    #[cfg(test)]
    pub(super) fn shared(&self) -> usize {
        self.maps.iter().filter(|map| !map.is_empty() && Arc::strong_count(map) > 1).count()
    }

    /// The small maps, so that a writer may go through them one by one.
    pub(super) fn maps(&self) -> impl Iterator<Item = &HashMap<K, V>> {
        self.maps.iter().map(|map| &**map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stays_as_it_was() {
        let mut buckets = Buckets::new();
        (0..5000_u64).for_each(|key| buckets.insert(key, key));
        let copy = buckets.clone();
        for key in 0..5000 {
            *buckets.get_mut(&key).unwrap() += 1;
        }
        buckets.insert(9999, 0);
        assert!((0..5000).all(|key| copy.get(&key) == Some(&key) && buckets.get(&key) == Some(&(key + 1))));
        assert_eq!((copy.len(), buckets.len()), (5000, 5001));
        buckets.retain(|key, _| key % 2 == 0);
        assert_eq!((copy.len(), buckets.len()), (5000, 2500));
    }
}
