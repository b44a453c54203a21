//! Which chain positions a topic's records meet: matched once per topic name and generation, then remembered.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use tidegate_protocol::topic::{TopicError, TopicName, TopicPattern};

use super::{Hook, spec::Rejection};

/// The patterns of one chain entry.
#[derive(Debug)]
pub(super) struct EntryPatterns {
    pub(super) topics: Vec<TopicPattern>,
    pub(super) except: Vec<TopicPattern>,
    pub(super) rejection: Rejection,
    /// Guard bits of the entry's produce positions, where it is `enforced`.
    pub(super) guard: u128,
}

impl EntryPatterns {
    pub(super) fn matches(&self, topic: &str) -> bool {
        self.topics.iter().any(|p| p.matches(topic)) && !self.except.iter().any(|p| p.matches(topic))
    }
}

/// What a topic means in one generation.
#[derive(Debug)]
pub(super) struct TopicPlan {
    pub(super) name: TopicName,
    produce: Positions,
    fetch: Positions,
    /// Guard bits that a record ending here must have.
    pub(super) required: u128,
    pub(super) rejection: Rejection,
}

impl TopicPlan {
    /// Whether records of this topic are called with at this position.
    pub(super) fn meets(&self, hook: Hook, position: usize) -> bool {
        self.positions(hook).contains(position)
    }
    /// No position at all.
    pub(super) fn is_free(&self, hook: Hook) -> bool {
        self.positions(hook).is_empty()
    }
    fn positions(&self, hook: Hook) -> &Positions {
        match hook {
            Hook::Produce => &self.produce,
            Hook::Fetch => &self.fetch,
        }
    }
}

/// A set of chain positions.
#[derive(Debug)]
struct Positions(Box<[u64]>);

impl Positions {
    fn collect(matches: impl Iterator<Item = bool>) -> Self {
        let mut words = Vec::new();
        for (i, matched) in matches.enumerate() {
            if i % 64 == 0 {
                words.push(0);
            }
            if let Some(word) = words.last_mut() {
                *word |= u64::from(matched) << (i % 64);
            }
        }
        Self(words.into())
    }
    fn contains(&self, position: usize) -> bool {
        self.0.get(position / 64).is_some_and(|word| word >> (position % 64) & 1 == 1)
    }
    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

/// The entries of a generation, and what is known of topics so far.
#[derive(Debug, Default)]
pub(super) struct Topics {
    entries: Vec<EntryPatterns>,
    /// For each position of a hook its entry.
    produce: Vec<usize>,
    fetch: Vec<usize>,
    known: RwLock<HashMap<Box<str>, Arc<TopicPlan>>>,
}

impl Topics {
    pub(super) fn new(entries: Vec<EntryPatterns>, produce: Vec<usize>, fetch: Vec<usize>) -> Self {
        Self { entries, produce, fetch, known: RwLock::default() }
    }

    /// The plan of a topic.
    ///
    /// # Errors
    /// If the name breaks the rules for topics.
    pub(super) fn plan(&self, name: &str) -> Result<Arc<TopicPlan>, TopicError> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(name).map(Arc::clone);
        if let Some(plan) = known {
            return Ok(plan);
        }
        let plan = Arc::new(self.make(TopicName::parse(name)?));
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            // Matching again costs microseconds; remembering every name that a client may think of costs memory.
            known.clear();
        }
        Ok(Arc::clone(known.entry(name.into()).or_insert(plan)))
    }

    /// Entries that match, by number.
    pub(super) fn entries_of<'a>(&'a self, topic: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.entries.iter().enumerate().filter(move |(_, e)| e.matches(topic)).map(|(i, _)| i)
    }

    fn make(&self, name: TopicName) -> TopicPlan {
        let matched: Vec<bool> = self.entries.iter().map(|entry| entry.matches(name.as_str())).collect();
        let of = |entry: &usize| matched.get(*entry).copied().unwrap_or(false);
        let mine = || self.entries.iter().zip(&matched).filter_map(|(entry, matched)| matched.then_some(entry));
        TopicPlan {
            produce: Positions::collect(self.produce.iter().map(of)),
            fetch: Positions::collect(self.fetch.iter().map(of)),
            required: mine().fold(0, |bits, entry| bits | entry.guard),
            rejection: if mine().any(|entry| entry.rejection == Rejection::All) {
                Rejection::All
            } else {
                Rejection::PerRecord
            },
            name,
        }
    }
}

/// Topics whose plan is kept, per generation: 64 Ki of some 200 bytes.
const KNOWN_MAX: usize = 64 << 10;
