//! Which topics a subscription gets: its pattern, its tenant, its principal's rights. Asked per topic id and remembered:
//! neither the name of an id nor the rights of a principal change during a connection.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tidegate_protocol::topic::TopicPattern;

use crate::{
    auth::{Principal, Verb},
    shard::Shard,
};

/// Topic ids remembered by one subscription; beyond it they are asked for anew.
const MEMO_MAX: usize = 65_536;

/// See the module.
#[derive(Debug)]
pub(super) struct Matcher {
    shard: Shard,
    tenant: u32,
    principal: Arc<Principal>,
    pattern: TopicPattern,
    memo: Mutex<HashMap<u64, bool>>,
}

impl Matcher {
    pub(super) fn new(shard: Shard, tenant: u32, principal: Arc<Principal>, pattern: TopicPattern) -> Self {
        Self { shard, tenant, principal, pattern, memo: Mutex::default() }
    }

    /// Whether the subscription gets the records of a topic.
    pub(super) fn wants(&self, topic_id: u64) -> bool {
        let memo = || self.memo.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = memo().get(&topic_id) {
            return *known;
        }
        // An id without a name yet is no answer to remember.
        let Some((tenant, name)) = self.shard.topic_by_id(topic_id) else { return false };
        let wanted = tenant == self.tenant
            && !name.is_reserved()
            && self.pattern.matches(name.as_str())
            && self.principal.may(Verb::Fetch, name.as_str());
        let mut memo = memo();
        if memo.len() >= MEMO_MAX {
            memo.clear();
        }
        memo.insert(topic_id, wanted);
        wanted
    }
}
