//! The keys of a topic and where they stand.
//!
//! Out of the heads in memory: every call walks all of them (some 20 ns each) beside the sequencer, part by part, so that a
//! write never copies more than the part that is looked at. Segments list keys by prefix without that; they take over when
//! heads leave memory.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{
    Shard, ShardError,
    heads::{Head, Part, key_of},
    reader::blocking,
};

/// A key of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// As stored.
    pub key: Bytes,
    /// Of its last record.
    pub version: u64,
    /// Of its last record.
    pub last_offset: u64,
}

/// Which keys are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// They begin with it.
    pub prefix: Bytes,
    /// They stand behind it.
    pub after: Option<Bytes>,
    /// At most so many.
    pub keys_max: usize,
    /// And of so many bytes, but one at least.
    pub bytes_max: usize,
}

impl Shard {
    /// Keys of a topic in their order, once all of it is durable, and whether there are more. What is written meanwhile may
    /// be among them or not. Few walk at once, the others wait. Cancel-safe.
    ///
    /// # Errors
    /// If the log failed before, or the walk panics.
    pub async fn keys(&self, topic_id: u64, range: KeyRange) -> Result<(Vec<Key>, bool), ShardError> {
        let turn = Arc::clone(&self.core.walks).acquire_owned().await.map_err(|_| ShardError::ShuttingDown)?;
        let core = Arc::clone(&self.core);
        let walk = move || range.of(topic_id, |number| core.lock().heads.part(number));
        let found = blocking(&**self.core.log.threads(), "a walk over the keys", Some(turn), walk).await?;
        // Behind the walk: all that it saw lies before.
        let next_lsn = self.core.lock().next_lsn;
        self.core.waiter(next_lsn).durable().await?;
        Ok(found)
    }
}

impl KeyRange {
    /// The first keys of the range in all parts, one part at a time.
    fn of(&self, topic_id: u64, part: impl Fn(usize) -> Option<Part>) -> (Vec<Key>, bool) {
        // By place: one topic's are in the order of their keys.
        let mut first: BTreeMap<Arc<[u8]>, Head> = BTreeMap::new();
        let mut truncated = false;
        for part in (0..).map_while(part) {
            for (topic, place, head) in part.iter() {
                let key = key_of(place);
                let wanted = topic == topic_id
                    && key.starts_with(&self.prefix)
                    && self.after.as_ref().is_none_or(|after| key > &after[..]);
                let full = first.len() >= self.keys_max;
                truncated |= wanted && full;
                if !wanted || (full && first.last_key_value().is_none_or(|(last, _)| key > key_of(last))) {
                    continue;
                }
                first.insert(Arc::clone(place), head);
                if first.len() > self.keys_max {
                    first.pop_last();
                }
            }
        }
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for (place, head) in first {
            let key = key_of(&place);
            if bytes > 0 && bytes + key.len() > self.bytes_max {
                truncated = true;
                break;
            }
            bytes += key.len();
            let Head { version, last_offset } = head;
            keys.push(Key { key: Bytes::copy_from_slice(key), version, last_offset });
        }
        (keys, truncated)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::shard::heads::Heads;

    fn next(heads: &mut Heads, topic: u64, key: &[u8], offset: u64) {
        let hash = heads.hash(topic, key);
        heads.advance(hash, topic, key, offset);
    }

    #[test]
    fn a_walk_holds_one_part_at_a_time_and_sees_what_stays() {
        let heads = RefCell::new(Heads::new());
        for number in 0..3_000_u64 {
            next(&mut heads.borrow_mut(), number % 2, format!("{number:04}").as_bytes(), number);
        }
        let range = |after: &str, keys_max| KeyRange {
            prefix: Bytes::from_static(b"1"),
            after: Some(Bytes::copy_from_slice(after.as_bytes())),
            keys_max,
            bytes_max: usize::MAX,
        };
        let part = |number: usize| {
            // Nobody holds the parts before: a change of one of them copies nothing.
            let mut heads = heads.borrow_mut();
            assert!(number == 0 || heads.shared() == 0, "part {number}");
            next(&mut heads, 7, b"1", number as u64);
            heads.part(number)
        };
        let (keys, truncated) = range("1100", 3).of(0, part);
        let names: Vec<_> = keys.iter().map(|key| &key.key[..]).collect();
        assert_eq!((names.as_slice(), truncated), ([b"1102", b"1104", b"1106"].map(|key| &key[..]).as_slice(), true));
        let (keys, truncated) = range("1100", 1_000).of(0, part);
        assert_eq!((keys.len(), truncated), (449, false));
    }
}
