//! Who exists: tenants and topics, by name and by number. Pure data, no locks; `shard` owns it, writes it through the log
//! and rebuilds it from there. Must not know records, files or connections.

use std::collections::{BTreeMap, HashMap};

use tidegate_protocol::topic::{TopicName, TopicPattern};

/// The tenant of the broker's own topics.
pub const SYSTEM_TENANT: u32 = 0;
/// Counter of `$sys/topics`: one record per topic.
pub const TOPICS_COUNTER: u64 = 1;
/// Counter of `$sys/tenants`: one record per tenant.
pub const TENANTS_COUNTER: u64 = 2;
/// Counter of `$sys/activations`: one record per chain generation of a tenant.
pub const ACTIVATIONS_COUNTER: u64 = 3;
/// Counter of `$sys/retention`: one record per move of a topic's low offset.
pub const RETENTION_COUNTER: u64 = 4;
/// Counter of the first topic that is not the broker's own.
pub const FIRST_COUNTER: u64 = 16;
/// The broker's own topics, by counter.
pub const SYSTEM_TOPICS: [(u64, &str); 4] = [
    (TOPICS_COUNTER, "$sys/topics"),
    (TENANTS_COUNTER, "$sys/tenants"),
    (ACTIVATIONS_COUNTER, "$sys/activations"),
    (RETENTION_COUNTER, "$sys/retention"),
];
/// Topics of one tenant. Every topic is some 300 bytes of memory in this version.
pub const TOPICS_MAX: usize = 1_000_000;
/// Tenants of one broker.
pub const TENANTS_MAX: usize = 10_000;
/// Bits of a topic id that count; the shard is above them.
const COUNTER_BITS: u32 = 48;

/// The id of a topic: shard and counter.
pub fn topic_id(shard: u16, counter: u64) -> u64 {
    (u64::from(shard) << COUNTER_BITS) | counter
}

/// The counter of a topic id.
pub fn counter_of(id: u64) -> u64 {
    id & ((1 << COUNTER_BITS) - 1)
}

/// The topic belongs to the broker itself.
pub fn is_system(id: u64) -> bool {
    counter_of(id) < FIRST_COUNTER
}

/// All tenants and topics.
#[derive(Debug, Clone)]
pub struct Catalog {
    shard: u16,
    /// By number: the first is tenant 1.
    tenants: Vec<String>,
    tenant_numbers: HashMap<String, u32>,
    topics: HashMap<u64, Entry>,
    /// By tenant, then by name: lists come sorted, and a tenant never sees another's.
    names: HashMap<u32, BTreeMap<TopicName, u64>>,
    next_counter: u64,
}

/// One topic as the sequencer needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its id.
    pub id: u64,
    /// Whose it is.
    pub tenant: u32,
    /// Its name.
    pub name: TopicName,
    /// Broker time of its creation.
    pub created_ms: i64,
    /// LSN of the frame that made it: no record of it lies before.
    pub first_lsn: u64,
    /// Offset of its next record, those in flight counted.
    pub next_offset: u64,
    /// Offset of its next record as far as durable. `None`: the topic itself is not durable yet.
    pub durable_offset: Option<u64>,
    /// Its share of the bytes of all batches it ever had records in, those in flight counted.
    pub bytes: u64,
    /// Where what is kept of it begins, moves in flight counted.
    pub low: Low,
    /// The same as far as durable.
    pub durable_low: Low,
}

/// Where what is kept of a topic begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Low {
    /// Records before it are gone.
    pub offset: u64,
    /// Position behind the last record that is gone.
    pub lsn: u64,
    /// Of [`Entry::bytes`] those of what is gone.
    pub bytes: u64,
}

impl Entry {
    /// A topic that has no record yet.
    pub fn new(id: u64, tenant: u32, name: TopicName, created_ms: i64, first_lsn: u64) -> Self {
        let low = Low::default();
        Self {
            id,
            tenant,
            name,
            created_ms,
            first_lsn,
            next_offset: 0,
            durable_offset: None,
            bytes: 0,
            low,
            durable_low: low,
        }
    }
}

impl Catalog {
    /// A shard with the broker's own topics, which exist without being made.
    ///
    /// # Panics
    /// Never: the names of those topics are valid.
    pub fn new(shard: u16) -> Self {
        let mut catalog = Self {
            shard,
            tenants: Vec::new(),
            tenant_numbers: HashMap::new(),
            topics: HashMap::new(),
            names: HashMap::new(),
            next_counter: FIRST_COUNTER,
        };
        for (counter, name) in SYSTEM_TOPICS {
            let name = TopicName::parse(name).expect("the names of the broker's own topics are valid");
            let entry = Entry::new(topic_id(shard, counter), SYSTEM_TENANT, name, 0, 0);
            catalog.insert(Entry { durable_offset: Some(0), ..entry });
        }
        catalog
    }

    /// The number of a tenant.
    pub fn tenant(&self, name: &str) -> Option<u32> {
        self.tenant_numbers.get(name).copied()
    }

    /// Names of all tenants; the first is tenant 1.
    pub fn tenants(&self) -> &[String] {
        &self.tenants
    }

    /// The number that the next tenant gets; `None` if there is no room for one.
    pub fn next_tenant(&self) -> Option<u32> {
        if self.tenants.len() >= TENANTS_MAX { None } else { u32::try_from(self.tenants.len() + 1).ok() }
    }

    /// Takes a tenant under the next number. `false` if this is not its number or the name is taken.
    pub fn insert_tenant(&mut self, number: u32, name: &str) -> bool {
        if self.next_tenant() != Some(number) || self.tenant_numbers.contains_key(name) {
            return false;
        }
        self.tenants.push(name.to_owned());
        self.tenant_numbers.insert(name.to_owned(), number);
        true
    }

    /// The id that the topic after `ahead` others gets.
    pub fn next_id(&self, ahead: u64) -> u64 {
        topic_id(self.shard, self.next_counter + ahead)
    }

    /// Topics that a tenant has.
    pub fn count(&self, tenant: u32) -> usize {
        self.names.get(&tenant).map_or(0, BTreeMap::len)
    }

    /// Number of all topics.
    pub fn len(&self) -> usize {
        self.topics.len()
    }

    /// Never: the broker's own topics are always there.
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Takes a topic, or one read back, in place of what has its id.
    pub fn insert(&mut self, entry: Entry) {
        self.next_counter = self.next_counter.max(counter_of(entry.id) + 1);
        self.names.entry(entry.tenant).or_default().insert(entry.name.clone(), entry.id);
        self.topics.insert(entry.id, entry);
    }

    /// A topic by name.
    pub fn find(&self, tenant: u32, name: &str) -> Option<&Entry> {
        self.topics.get(self.names.get(&tenant)?.get(name)?)
    }

    /// A topic by id.
    pub fn get(&self, id: u64) -> Option<&Entry> {
        self.topics.get(&id)
    }

    /// A topic by id, to change its offsets.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Entry> {
        self.topics.get_mut(&id)
    }

    /// All topics, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.topics.values()
    }

    /// A tenant's topics by name: those a pattern stands for, and of those with a reserved level only if asked for.
    pub fn list<'a>(
        &'a self,
        tenant: u32,
        pattern: Option<&'a TopicPattern>,
        reserved: bool,
    ) -> impl Iterator<Item = &'a Entry> {
        let names = self.names.get(&tenant).into_iter().flatten();
        names
            .filter(move |(name, _)| pattern.is_none_or(|pattern| pattern.matches(name.as_str())))
            .filter(move |(name, _)| reserved || !name.is_reserved())
            .filter_map(|(_, id)| self.topics.get(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(catalog: &Catalog, tenant: u32, name: &str) -> Entry {
        Entry::new(catalog.next_id(0), tenant, TopicName::parse(name).unwrap(), 5, 7)
    }

    fn names<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<&'a str> {
        entries.map(|entry| entry.name.as_str()).collect()
    }

    #[test]
    fn ids_count_up_from_16_below_the_shard_and_tenants_from_1() {
        let mut catalog = Catalog::new(3);
        for counter in 16..19 {
            let entry = entry(&catalog, 1, &format!("t/{counter}"));
            assert_eq!(entry.id, (3 << 48) | counter);
            assert!(!is_system(entry.id));
            catalog.insert(entry);
        }
        assert!(is_system(catalog.find(SYSTEM_TENANT, "$sys/topics").unwrap().id));
        assert!(catalog.insert_tenant(1, "a") && catalog.insert_tenant(2, "b"));
        assert!(!catalog.insert_tenant(3, "a") && !catalog.insert_tenant(5, "c"));
        assert_eq!((catalog.tenant("a"), catalog.tenant("b"), catalog.tenant("c")), (Some(1), Some(2), None));
    }

    #[test]
    fn a_tenant_lists_its_own_topics_only_sorted_and_filtered() {
        let mut catalog = Catalog::new(0);
        for (tenant, name) in [(1, "b/x"), (1, "a/x"), (2, "a/y"), (1, "$dead/a/x")] {
            let entry = entry(&catalog, tenant, name);
            catalog.insert(entry);
        }
        assert_eq!(names(catalog.list(1, None, false)), ["a/x", "b/x"]);
        assert_eq!(names(catalog.list(1, None, true)), ["$dead/a/x", "a/x", "b/x"]);
        let pattern = TopicPattern::parse("a/*").unwrap();
        assert_eq!(names(catalog.list(1, Some(&pattern), true)), ["a/x"]);
        assert_eq!(names(catalog.list(2, None, false)), ["a/y"]);
        assert!(catalog.find(2, "b/x").is_none());
    }
}
