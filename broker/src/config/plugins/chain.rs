//! One `[[chain]]`.

use std::time::Duration;

use tidegate_protocol::topic::TopicPattern;

use super::{TENANT_DEFAULT, name_holds};
use crate::{
    config::{
        ConfigError,
        document::{Item, Section},
        units,
    },
    hooks::spec::{ChainEntry, Rejection, Retention, Use},
};

/// Patterns of one entry.
const PATTERNS_MAX: usize = 256;
/// Positions of one list.
const POSITIONS_MAX: usize = 64;

/// The least age and size that are kept: a slip of the unit must not empty a topic.
const AGE_MIN: Duration = Duration::from_secs(1);
const SIZE_MIN: u64 = 64 << 10;

/// Reads an entry and gives its tenant.
pub(super) fn read(
    section: &Section<'_>,
    plugins: &[&str],
    warnings: &mut Vec<String>,
) -> Result<(String, ChainEntry), ConfigError> {
    section.only(
        &["tenant", "topics", "except", "produce", "fetch", "rejection", "enforced", "retention"],
        &["encrypted", "compact", "apply", "key-token", "key_token"],
    )?;
    let tenant = match section.string("tenant")? {
        None => TENANT_DEFAULT.to_owned(),
        Some((name, _)) if name_holds(name) => name.to_owned(),
        Some((name, item)) => {
            let reason = format!("tenant {name:?} must be 1 to 64 of letters, digits, `_` and `-`");
            return Err(section.error("tenant", item, reason));
        }
    };
    let topics_item = section.needed("topics", "topics = \"orders/>\"")?;
    let topics = patterns(section, "topics")?;
    if topics.is_empty() {
        return Err(section.error(
            "topics",
            topics_item,
            "\"topics\" is empty: this entry would match nothing".to_owned(),
        ));
    }
    let except = patterns(section, "except")?;
    let produce = uses(section, "produce", plugins)?;
    let fetch = uses(section, "fetch", plugins)?;
    let retention = section.section("retention")?.map(|section| retention(&section)).transpose()?;
    if produce.is_empty() && fetch.is_empty() && retention.is_none() {
        let reason =
            "this chain entry says nothing: give it a \"produce\" or \"fetch\" list, or \"retention\"".to_owned();
        return Err(section.source().error(section.span(), section.key("produce"), reason));
    }
    let enforced = section.flag("enforced")?.unwrap_or_default();
    if enforced && produce.is_empty() {
        let item = section.needed("enforced", "enforced = false")?;
        return Err(section.error("enforced", item, "\"enforced\" needs a \"produce\" list to enforce".to_owned()));
    }
    let rejection = rejection(section)?;
    let place = section.place();
    warn_dead(&place, &topics, &except, warnings);
    let text = |patterns: Vec<TopicPattern>| patterns.iter().map(|pattern| pattern.as_str().to_owned()).collect();
    let (topics, except) = (text(topics), text(except));
    let entry = ChainEntry { topics, except, produce, fetch, rejection, enforced, retention, place };
    Ok((tenant, entry))
}

/// `{ age = "7d", size = "10GiB" }`.
fn retention(section: &Section<'_>) -> Result<Retention, ConfigError> {
    section.only(&["age", "size"], &[])?;
    let told = |key: &str| section.string(key);
    let age = match told("age")? {
        None => None,
        Some((text, item)) => match units::duration(text) {
            Ok(age) if age >= AGE_MIN => Some(age),
            Ok(_) => {
                return Err(section.error("age", item, format!("an age of {text} is under the least, {AGE_MIN:?}")));
            }
            Err(reason) => return Err(section.error("age", item, reason)),
        },
    };
    let bytes = match told("size")? {
        None => None,
        Some((text, item)) => match units::bytes(text) {
            Ok(bytes) if bytes >= SIZE_MIN => Some(bytes),
            Ok(_) => {
                let reason = format!("a size of {text} is under the least, {} KiB", SIZE_MIN >> 10);
                return Err(section.error("size", item, reason));
            }
            Err(reason) => return Err(section.error("size", item, reason)),
        },
    };
    if age.is_none() && bytes.is_none() {
        let reason = "\"retention\" says nothing: give it an \"age\", a \"size\" or both".to_owned();
        return Err(section.source().error(section.span(), section.key("age"), reason));
    }
    Ok(Retention { age, bytes })
}

/// Says when the retention of an entry never counts, because one before it speaks of the same topics.
pub(super) fn warn_hidden(chain: &[ChainEntry], warnings: &mut Vec<String>) {
    let patterns =
        |texts: &[String]| texts.iter().filter_map(|text| TopicPattern::parse(text).ok()).collect::<Vec<_>>();
    for (at, entry) in chain.iter().enumerate().filter(|(_, entry)| entry.retention.is_some()) {
        let mut before = chain[..at].iter().filter(|before| before.retention.is_some() && before.except.is_empty());
        let topics = patterns(&entry.topics);
        let hides = |before: &&ChainEntry| {
            let hiders = patterns(&before.topics);
            topics.iter().all(|topic| hiders.iter().any(|hider| hider.covers(topic)))
        };
        if let Some(hider) = before.find(hides) {
            let place = &entry.place;
            warnings
                .push(format!("{place}: its retention never counts: {} speaks of all its topics before", hider.place));
        }
    }
}

fn rejection(section: &Section<'_>) -> Result<Rejection, ConfigError> {
    match section.string("rejection")? {
        None | Some(("per-record", _)) => Ok(Rejection::PerRecord),
        Some(("all", _)) => Ok(Rejection::All),
        Some((other, item)) => Err(section.spelling("rejection", item, "rejection", other, &["per-record", "all"])),
    }
}

fn patterns(section: &Section<'_>, key: &str) -> Result<Vec<TopicPattern>, ConfigError> {
    let items = section.one_or_many(key)?;
    if let Some(item) = items.get(PATTERNS_MAX) {
        return Err(section.error(key, item, format!("more than {PATTERNS_MAX} patterns in {key:?}")));
    }
    let mut found: Vec<TopicPattern> = Vec::new();
    for item in items {
        let text = section.text(key, item)?;
        let pattern = TopicPattern::parse(text)
            .map_err(|error| section.error(key, item, format!("pattern {text:?}: {}", error.reason)))?;
        if found.contains(&pattern) {
            return Err(section.error(key, item, format!("pattern {text:?} stands twice in {key:?}")));
        }
        found.push(pattern);
    }
    Ok(found)
}

fn uses(section: &Section<'_>, key: &str, plugins: &[&str]) -> Result<Vec<Use>, ConfigError> {
    let items = section.array(key)?;
    if section.item(key).is_some_and(|item| items.is_empty() && item.get_ref().is_array()) {
        let item = section.needed(key, "")?;
        return Err(section.error(key, item, format!("{key:?} is empty: leave it out, or name a plugin")));
    }
    if let Some(item) = items.get(POSITIONS_MAX) {
        return Err(section.error(key, item, format!("more than {POSITIONS_MAX} plugins in {key:?}")));
    }
    let mut found: Vec<Use> = Vec::new();
    for item in items {
        let position = position(section, key, item, plugins)?;
        if found.contains(&position) {
            let reason = format!("plugin {:?} stands twice in {key:?}", position.plugin);
            return Err(section.error(key, item, reason));
        }
        found.push(position);
    }
    Ok(found)
}

fn position(section: &Section<'_>, key: &str, item: &Item<'_>, plugins: &[&str]) -> Result<Use, ConfigError> {
    let (name, unless) = if item.get_ref().is_table() {
        let table = Section::of(section.source(), &section.key(key), item.span(), item)?;
        if key != "fetch" {
            return Err(section.error(key, item, format!("{key:?} takes names only; \"unless\" is for \"fetch\"")));
        }
        table.only(&["use", "unless"], &[])?;
        let name = table.text("use", table.needed("use", "use = \"mask\"")?)?.to_owned();
        let unless = match table.string("unless")? {
            None => String::new(),
            Some((text, at)) => {
                if !text.strip_prefix("role:").is_some_and(name_holds) {
                    let reason = format!("\"unless\" must be a role, as in \"role:auditor\", not {text:?}");
                    return Err(table.error("unless", at, reason));
                }
                text.to_owned()
            }
        };
        (name, unless)
    } else {
        (section.text(key, item)?.to_owned(), String::new())
    };
    if !plugins.contains(&name.as_str()) {
        return Err(section.spelling(key, item, "plugin", &name, plugins));
    }
    Ok(Use { plugin: name, unless })
}

/// Says when no topic can ever reach the entry.
fn warn_dead(place: &str, topics: &[TopicPattern], except: &[TopicPattern], warnings: &mut Vec<String>) {
    for topic in topics {
        if let Some(hider) = except.iter().find(|pattern| pattern.covers(topic)) {
            warnings.push(format!(
                "{place}: topics {:?} never match: except {:?} covers all of them",
                topic.as_str(),
                hider.as_str()
            ));
        }
    }
}
