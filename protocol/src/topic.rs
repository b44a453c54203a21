//! Names of topics and the patterns that match them (DESIGN section 3).

/// A checked topic name: levels split by `/`, each 1 to 64 bytes of `[A-Za-z0-9_~-]` or `%XX`, at most 16 levels and
/// 249 bytes. `$` only as the first byte of a reserved level. A `$dead/` prefix counts toward neither limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName(std::sync::Arc<str>);

/// A checked pattern: `*` stands for one level (also as a prefix, `red*`), a trailing `>` for one or more levels. No
/// wildcard matches a reserved level; after a literal first level `$dead`, wildcards match what follows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopicPattern(std::sync::Arc<str>);

/// What is wrong with a name or pattern, in words for the person who wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?}: {reason}")]
pub struct TopicError {
    /// The name or pattern as given (cut to 300 bytes).
    pub name: String,
    /// Which rule it breaks.
    pub reason: &'static str,
}

impl TopicName {
    /// # Errors
    /// If a rule of the type's description is broken.
    pub fn parse(name: &str) -> Result<Self, TopicError> {
        let _ = name;
        unimplemented!()
    }
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// Some level starts with `$`: only the broker writes here.
    pub fn is_reserved(&self) -> bool {
        self.0.split('/').any(|level| level.starts_with('$'))
    }
}

impl TopicPattern {
    /// # Errors
    /// If a rule of the type's description is broken.
    pub fn parse(pattern: &str) -> Result<Self, TopicError> {
        let _ = pattern;
        unimplemented!()
    }
    /// The pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// Whether the topic is one this pattern stands for.
    pub fn matches(&self, topic: &str) -> bool {
        let _ = topic;
        unimplemented!()
    }
    /// The pattern has no wildcard: it is the name of one topic.
    pub fn is_literal(&self) -> bool {
        unimplemented!()
    }
    /// Some topic could match both: what `allow` lists and route checks ask.
    pub fn covers(&self, other: &TopicPattern) -> bool {
        let _ = other;
        unimplemented!()
    }
}

impl std::fmt::Display for TopicName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
