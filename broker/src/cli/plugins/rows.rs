//! What `tidegate plugins` prints.

use std::fmt::{self, Display};

use serde::Serialize;
use tidegate_protocol::wire::{Activated, Chain, ChainPosition, OverrideEnded, PluginInfo};

/// Head of the table of plugins.
pub(super) const HEAD: &[&str] = &[
    "plugin",
    "version",
    "hooks",
    "runs",
    "calls",
    "records",
    "µs/record",
    "rejected",
    "faults",
    "memory",
    "digest",
    "state",
];

/// One plugin.
#[derive(Debug, Serialize)]
pub(super) struct Plugin {
    name: String,
    version: String,
    digest: String,
    hooks: Vec<String>,
    source: String,
    grants: Vec<String>,
    placement: String,
    calls: u64,
    records: u64,
    cpu_ns: u64,
    dropped: u64,
    rejected: u64,
    changed: u64,
    faults: u64,
    memory_bytes: u64,
    drift: Option<String>,
    fault: Option<String>,
    generation: u64,
}

impl Plugin {
    /// A plugin of the live generation.
    pub(super) fn new(info: PluginInfo, generation: u64) -> Self {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        Self {
            name: info.name,
            version: info.version,
            digest: info.digest,
            hooks: info.hooks,
            source: info.source,
            grants: info.grants,
            placement: info.placement,
            calls: info.calls,
            records: info.records,
            cpu_ns: info.cpu_ns,
            dropped: info.dropped,
            rejected: info.rejected,
            changed: info.changed,
            faults: info.faults,
            memory_bytes: info.memory_bytes,
            drift: some(info.drift),
            fault: some(info.fault),
            generation,
        }
    }

    /// Its line in the table.
    pub(super) fn cells(&self) -> Vec<String> {
        let state = match (&self.fault, &self.drift) {
            (Some(fault), _) => format!("not loaded: {fault}"),
            (None, Some(drift)) => format!("drift: {drift}"),
            (None, None) => "as in the file".to_owned(),
        };
        vec![
            self.name.clone(),
            self.version.clone(),
            self.hooks.join(","),
            self.placement.clone(),
            self.calls.to_string(),
            self.records.to_string(),
            micros_each(self.cpu_ns, self.records),
            self.rejected.to_string(),
            self.faults.to_string(),
            mebibytes(self.memory_bytes),
            short(&self.digest),
            state,
        ]
    }
}

/// Average guest CPU per record in microseconds, two decimals.
fn micros_each(cpu_ns: u64, records: u64) -> String {
    match cpu_ns.saturating_mul(100).checked_div(records.saturating_mul(1000)) {
        Some(hundredths) => format!("{}.{:02}", hundredths / 100, hundredths % 100),
        None => "-".to_owned(),
    }
}

fn mebibytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

/// The first twelve digits of a digest: enough to tell versions apart at a glance.
pub(super) fn short(digest: &str) -> String {
    const PREFIX: &str = "sha256:";
    match digest.strip_prefix(PREFIX) {
        Some(hex) => hex.chars().take(12).fold(PREFIX.to_owned(), |mut text, digit| {
            text.push(digit);
            text
        }),
        None => digest.to_owned(),
    }
}

/// A change that is live.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    generation: u64,
    unchanged: bool,
    lsn: u64,
    digest: String,
    previous_digest: String,
    connections: u32,
    topics: Vec<From>,
    overrides_ended: Vec<Ended>,
    #[serde(skip)]
    undo: Option<String>,
}

/// A swap or rollback that the file has undone.
#[derive(Debug, Serialize)]
struct Ended {
    plugin: String,
    digest: String,
    next_digest: Option<String>,
}

/// First offset of a topic under the new generation.
#[derive(Debug, Serialize)]
struct From {
    topic: String,
    first_offset: u64,
}

impl Change {
    /// `plugin` is the one that was swapped; a reload has none.
    pub(super) fn new(activated: Activated, plugin: Option<&str>) -> Self {
        let topics =
            activated.topics.into_iter().map(|t| From { topic: t.name, first_offset: t.next_offset }).collect();
        Self {
            generation: activated.generation,
            unchanged: activated.unchanged,
            lsn: activated.lsn,
            digest: activated.digest,
            previous_digest: activated.previous_digest,
            connections: activated.clients,
            topics,
            overrides_ended: activated.overrides_ended.into_iter().map(Ended::new).collect(),
            undo: plugin.map(|name| format!("tidegate plugins rollback {name}")),
        }
    }
}

impl Ended {
    fn new(ended: OverrideEnded) -> Self {
        let next_digest = Some(ended.next_digest).filter(|digest| !digest.is_empty());
        Self { plugin: ended.plugin, digest: ended.digest, next_digest }
    }
}

impl Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the override of {} is over: it ran {}, ", self.plugin, short(&self.digest))?;
        match &self.next_digest {
            Some(next) => {
                write!(f, "plugins.toml has {} (back: tidegate plugins rollback {})", short(next), self.plugin)
            }
            None => f.write_str("plugins.toml has no such plugin any more"),
        }
    }
}

/// Topics named in the text of a change; `--output json` has all.
const TOPICS_SHOWN: usize = 4;

impl Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unchanged {
            return write!(f, "nothing changed · generation {} stays live", self.generation);
        }
        f.write_str("live from ")?;
        match self.topics.as_slice() {
            [] => f.write_str("the next record")?,
            topics => {
                let shown: Vec<String> =
                    topics.iter().take(TOPICS_SHOWN).map(|t| format!("{}@{}", t.topic, t.first_offset)).collect();
                f.write_str(&shown.join(", "))?;
                if topics.len() > TOPICS_SHOWN {
                    write!(f, " and {} more topics", topics.len() - TOPICS_SHOWN)?;
                }
            }
        }
        // Counted when the change was live: a change disconnects nobody. A peer that vanished without a word counts until
        // its connection times out.
        write!(f, " · open connections: {} · generation {}", self.connections, self.generation)?;
        self.undo.as_ref().map_or(Ok(()), |undo| write!(f, " (rollback: {undo})"))?;
        self.overrides_ended.iter().try_for_each(|ended| write!(f, "\n{ended}"))
    }
}

/// The effective chain of a topic.
#[derive(Debug, Serialize)]
pub(super) struct Effective {
    topic: String,
    generation: u64,
    rejection: String,
    required: Vec<String>,
    /// `None`: everything is kept.
    retention: Option<String>,
    positions: Vec<Position>,
}

#[derive(Debug, Serialize)]
struct Position {
    hook: String,
    plugin: String,
    place: String,
    topics: Vec<String>,
    except: Vec<String>,
    digest: String,
    budget: String,
    policy: String,
    unless: Option<String>,
}

impl Effective {
    /// The chain of `topic`.
    pub(super) fn new(topic: &str, chain: Chain) -> Self {
        Self {
            topic: topic.to_owned(),
            generation: chain.generation,
            rejection: chain.rejection,
            required: chain.required,
            retention: Some(chain.retention).filter(|text| !text.is_empty()),
            positions: chain.positions.into_iter().map(Position::new).collect(),
        }
    }
}

impl Position {
    fn new(position: ChainPosition) -> Self {
        Self {
            hook: position.hook,
            plugin: position.plugin,
            place: position.place,
            topics: position.topics,
            except: position.except,
            digest: position.digest,
            budget: position.budget,
            policy: position.policy,
            unless: Some(position.unless).filter(|role| !role.is_empty()),
        }
    }
}

impl Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} · generation {} · rejection {}", self.topic, self.generation, self.rejection)?;
        if !self.required.is_empty() {
            write!(f, " · must have passed {}", self.required.join(", "))?;
        }
        if let Some(retention) = &self.retention {
            write!(f, " · keeps {retention}")?;
        }
        if self.positions.is_empty() {
            f.write_str("\n  no plugin stands on its way")?;
        }
        for p in &self.positions {
            write!(f, "\n  {:<7}  {}  {}  {}", p.hook, p.plugin, short(&p.digest), p.place)?;
            write!(f, "\n           topics {}", p.topics.join(" "))?;
            if !p.except.is_empty() {
                write!(f, " except {}", p.except.join(" "))?;
            }
            write!(f, " · {} · on failure {}", p.budget, p.policy)?;
            p.unless.as_ref().map_or(Ok(()), |role| write!(f, " · unless {role}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_protocol::wire::TopicInfo;

    fn activated(topics: &[(&str, u64)]) -> Activated {
        let info = |(name, next_offset): &(&str, u64)| TopicInfo {
            name: (*name).into(),
            next_offset: *next_offset,
            ..Default::default()
        };
        Activated { generation: 12, clients: 3, topics: topics.iter().map(info).collect(), ..Default::default() }
    }

    #[test]
    fn a_swap_says_where_it_is_live_and_how_to_undo_it() {
        assert_eq!(
            Change::new(activated(&[("github/push", 81220)]), Some("mask")).to_string(),
            "live from github/push@81220 · open connections: 3 · generation 12 (rollback: tidegate plugins rollback mask)"
        );
        let many: Vec<(&str, u64)> = ["a", "b", "c", "d", "e", "f"].into_iter().map(|name| (name, 1)).collect();
        assert!(
            Change::new(activated(&many), None)
                .to_string()
                .starts_with("live from a@1, b@1, c@1, d@1 and 2 more topics ·")
        );
        assert_eq!(
            Change::new(Activated { unchanged: true, generation: 4, ..Default::default() }, None).to_string(),
            "nothing changed · generation 4 stays live"
        );
    }

    #[test]
    fn a_reload_names_the_overrides_it_ends() {
        let ended = |plugin: &str, next_digest: &str| OverrideEnded {
            plugin: plugin.into(),
            digest: "sha256:0123456789abcdef".into(),
            next_digest: next_digest.into(),
        };
        let overrides_ended = vec![ended("mask", "sha256:ffffffffffffffff"), ended("gate", "")];
        let change = Change::new(Activated { overrides_ended, ..activated(&[("a", 1)]) }, None);
        assert_eq!(
            change.to_string(),
            "live from a@1 · open connections: 3 · generation 12\n\
             the override of mask is over: it ran sha256:0123456789ab, plugins.toml has sha256:ffffffffffff \
             (back: tidegate plugins rollback mask)\n\
             the override of gate is over: it ran sha256:0123456789ab, plugins.toml has no such plugin any more"
        );
        let json = serde_json::to_value(&change).expect("plain data");
        assert_eq!(json["overrides_ended"][0]["plugin"], "mask");
        assert_eq!(json["overrides_ended"][1]["next_digest"], serde_json::Value::Null);
    }

    #[test]
    fn costs_are_per_record() {
        assert_eq!(micros_each(0, 0), "-");
        assert_eq!(micros_each(1_234_567, 100), "12.34");
        assert_eq!(micros_each(60_000, 10_000), "0.00");
        assert_eq!(mebibytes(3 << 19), "1.5 MiB");
    }

    #[test]
    fn a_plugin_that_is_not_loaded_says_why() {
        let info = PluginInfo { name: "mask".into(), fault: "component is gone".into(), ..Default::default() };
        assert!(Plugin::new(info, 1).cells().contains(&"not loaded: component is gone".to_owned()));
    }

    #[test]
    fn an_empty_chain_is_said_to_be_empty() {
        let text = Effective::new("a/b", Chain { generation: 2, rejection: "per-record".into(), ..Default::default() })
            .to_string();
        assert_eq!(text, "a/b · generation 2 · rejection per-record\n  no plugin stands on its way");
        let keeps = Chain { retention: "7d, 10 GiB".into(), ..Default::default() };
        assert!(Effective::new("a/b", keeps).to_string().contains(" · keeps 7d, 10 GiB\n"));
    }
}
