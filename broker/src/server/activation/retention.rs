//! What a generation says of how long topics are kept, as the shard takes it.

use tidegate_protocol::topic::TopicPattern;

use crate::{
    hooks::spec::{ChainEntry, Retention, TenantSpec},
    shard::RetentionRule,
};

/// The rules of a tenant, in the order of its entries.
pub(super) fn rules(spec: &TenantSpec) -> Vec<RetentionRule> {
    spec.chain.iter().filter_map(rule).collect()
}

fn rule(entry: &ChainEntry) -> Option<RetentionRule> {
    let Retention { age, bytes } = entry.retention.clone()?;
    // Both lists were checked when they came from the file.
    let patterns = |texts: &[String]| texts.iter().filter_map(|text| TopicPattern::parse(text).ok()).collect();
    Some(RetentionRule { topics: patterns(&entry.topics), except: patterns(&entry.except), age, bytes })
}

/// What is kept of a topic, for people: `7d, 10 GiB`; empty = everything.
pub(super) fn told(spec: &TenantSpec, topic: &str) -> String {
    let rule = rules(spec).into_iter().find(|rule| rule.matches(topic));
    let age = rule.as_ref().and_then(|rule| rule.age).map(|age| duration(age.as_secs()));
    let size = rule.and_then(|rule| rule.bytes).map(size_of);
    [age, size].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn duration(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let unit = units.into_iter().find(|(length, _)| seconds.is_multiple_of(*length) && seconds > 0);
    unit.map_or_else(|| format!("{seconds}s"), |(length, unit)| format!("{}{unit}", seconds / length))
}

fn size_of(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(bits, _)| bytes.is_multiple_of(1 << bits));
    unit.map_or_else(|| format!("{bytes} B"), |(bits, unit)| format!("{} {unit}", bytes >> bits))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn entry(topics: &str, except: &[&str], retention: Option<Retention>) -> ChainEntry {
        ChainEntry {
            topics: vec![topics.to_owned()],
            except: except.iter().map(|&text| text.to_owned()).collect(),
            retention,
            ..ChainEntry::default()
        }
    }

    #[test]
    fn the_first_entry_that_says_something_decides() {
        let age = |secs| Some(Retention { age: Some(Duration::from_secs(secs)), bytes: None });
        let size = Some(Retention { age: Some(Duration::from_secs(90)), bytes: Some(10 << 30) });
        let chain = vec![
            entry("a/>", &[], None),
            entry("a/*", &["a/x"], age(7 * 86_400)),
            entry("a/>", &[], size),
            entry("a/b", &[], age(3_600)),
        ];
        let spec = TenantSpec { chain, ..TenantSpec::default() };
        assert_eq!(rules(&spec).len(), 3);
        let told = ["a/b", "a/x", "a/b/c", "b"].map(|topic| told(&spec, topic));
        assert_eq!(told, ["7d", "90s, 10 GiB", "90s, 10 GiB", ""]);
        assert_eq!([duration(0), duration(7_200), size_of(1_500), size_of(3 << 10)], ["0s", "2h", "1500 B", "3 KiB"]);
    }
}
