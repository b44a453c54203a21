//! The keys of a topic and where they stand.
//!
//! Out of the heads in memory: every call walks all of them (some 20 ns each), on a copy and beside the sequencer. Segments
//! list keys by prefix without that; they take over when heads leave memory.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    Shard, ShardError,
    heads::{Head, Heads},
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
    /// Keys of a topic in their order, once all of it is durable, and whether there are more. Cancel-safe.
    ///
    /// # Errors
    /// If the log failed before.
    pub async fn keys(&self, topic_id: u64, range: KeyRange) -> Result<(Vec<Key>, bool), ShardError> {
        let (heads, wait) = {
            let state = self.core.lock();
            (state.heads.clone(), self.core.waiter(state.next_lsn))
        };
        wait.durable().await?;
        let walk = tokio::task::spawn_blocking(move || range.of(&heads, topic_id));
        walk.await.map_err(|_| ShardError::ShuttingDown)
    }
}

impl KeyRange {
    fn of(&self, heads: &Heads, topic_id: u64) -> (Vec<Key>, bool) {
        let mut first: BTreeMap<&[u8], Head> = BTreeMap::new();
        let mut truncated = false;
        for (topic, key, head) in heads.parts().flatten() {
            let wanted = topic == topic_id
                && key.starts_with(&self.prefix)
                && self.after.as_ref().is_none_or(|after| key > &after[..]);
            let full = first.len() >= self.keys_max;
            truncated |= wanted && full;
            if !wanted || (full && first.last_key_value().is_none_or(|(&last, _)| key > last)) {
                continue;
            }
            first.insert(key, head);
            if first.len() > self.keys_max {
                first.pop_last();
            }
        }
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for (key, head) in first {
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
