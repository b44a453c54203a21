//! Names of topics and the patterns that match them (DESIGN section 3).
//!
//! A name has one spelling: a byte that may stand plainly is never escaped, and escapes use upper-case hex digits. So two
//! names are the same topic exactly if they are the same bytes. Broker, client, hooks and tools all ask this module; it
//! knows nothing of which topics exist.

use std::{borrow::Borrow, str::FromStr, sync::Arc};

/// Bytes of one level.
pub const LEVEL_BYTES_MAX: usize = 64;
/// Levels of a name.
pub const LEVELS_MAX: usize = 16;
/// Bytes of a name (the bound of Kafka, so that a name fits there too).
pub const NAME_BYTES_MAX: usize = 249;
/// First level of dead letters with its `/`, which counts toward neither limit.
pub const DEAD_PREFIX: &str = "$dead/";

/// A checked topic name: levels split by `/`, each 1 to 64 bytes of `[A-Za-z0-9_~-]` or `%XX`, at most 16 levels and
/// 249 bytes. `$` only as the first byte of a reserved level. A `$dead/` prefix counts toward neither limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName(Arc<str>);

/// A checked pattern: `*` stands for one level (also as a prefix, `red*`), a trailing `>` for one or more levels. No
/// wildcard matches a reserved level; after a literal first level `$dead`, wildcards match what follows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopicPattern(Arc<str>);

/// What is wrong with a name or pattern, in words for the person who wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?}: {reason}")]
pub struct TopicError {
    /// The name or pattern as given (cut to 300 bytes).
    pub name: String,
    /// Which rule it breaks.
    pub reason: &'static str,
}

impl TopicError {
    pub(crate) fn new(name: &str, reason: &'static str) -> Self {
        Self { name: crate::cut(name, 300).to_owned(), reason }
    }
}

impl TopicName {
    /// Checks a name.
    ///
    /// # Errors
    /// If a rule of the type's description is broken.
    pub fn parse(name: &str) -> Result<Self, TopicError> {
        check_name(name).map_err(|reason| TopicError::new(name, reason))?;
        Ok(Self(name.into()))
    }
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// Its levels, from left to right.
    pub fn levels(&self) -> impl DoubleEndedIterator<Item = &str> + '_ {
        self.0.split('/')
    }
    /// Some level starts with `$`: only the broker writes here.
    pub fn is_reserved(&self) -> bool {
        self.levels().any(is_reserved)
    }
}

impl TopicPattern {
    /// Checks a pattern.
    ///
    /// # Errors
    /// If a rule of the type's description is broken.
    pub fn parse(pattern: &str) -> Result<Self, TopicError> {
        check_pattern(pattern).map_err(|reason| TopicError::new(pattern, reason))?;
        Ok(Self(pattern.into()))
    }
    /// The pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// Whether the topic is one this pattern stands for.
    pub fn matches(&self, topic: &str) -> bool {
        let mut levels = topic.split('/');
        for wanted in self.0.split('/') {
            if wanted == ">" {
                let mut rest = levels.peekable();
                return rest.peek().is_some() && rest.all(is_plain);
            }
            let Some(level) = levels.next() else { return false };
            let matched = match wanted.strip_suffix('*') {
                Some(prefix) => is_plain(level) && level.starts_with(prefix),
                None => level == wanted,
            };
            if !matched {
                return false;
            }
        }
        levels.next().is_none()
    }
    /// The pattern has no wildcard: it is the name of one topic.
    pub fn is_literal(&self) -> bool {
        !self.0.contains(['*', '>'])
    }
    /// The one topic it stands for, if it has no wildcard.
    pub fn as_name(&self) -> Option<TopicName> {
        self.is_literal().then(|| TopicName(Arc::clone(&self.0)))
    }
    /// Every topic that `other` matches is matched by this pattern too: whether a right to `self` includes `other`.
    /// `false` wherever that cannot be told level by level.
    pub fn covers(&self, other: &Self) -> bool {
        let mut theirs = other.0.split('/');
        for mine in self.0.split('/') {
            if mine == ">" {
                let mut rest = theirs.peekable();
                return rest.peek().is_some() && rest.all(is_plain);
            }
            let Some(level) = theirs.next() else { return false };
            let covered = match mine.strip_suffix('*') {
                // `>` may stand for several levels, one `*` never does.
                Some(_) if level == ">" => false,
                Some(prefix) => is_plain(level) && level.strip_suffix('*').unwrap_or(level).starts_with(prefix),
                None => level == mine,
            };
            if !covered {
                return false;
            }
        }
        theirs.next().is_none()
    }
}

/// The rules of [`TopicName`], without taking the name.
///
/// # Errors
/// The rule that is broken.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    for level in bounded_levels(name)? {
        check_level(level)?;
    }
    Ok(())
}

fn check_pattern(pattern: &str) -> Result<(), &'static str> {
    let (mut wildcard, mut reserved) = (false, false);
    let mut levels = bounded_levels(pattern)?.peekable();
    while let Some(level) = levels.next() {
        if level == ">" {
            if levels.peek().is_some() {
                return Err("`>` stands only at the end");
            }
            wildcard = true;
        } else if let Some(prefix) = level.strip_suffix('*') {
            wildcard = true;
            if prefix.starts_with('$') {
                return Err("no wildcard matches a reserved level");
            }
            if !prefix.is_empty() {
                check_level(prefix)?;
            }
        } else {
            check_level(level)?;
            reserved |= is_reserved(level);
        }
    }
    if wildcard && reserved {
        return Err("of the reserved levels, only a first level `$dead` goes together with wildcards");
    }
    Ok(())
}

/// Levels behind a `$dead/` prefix, once length and number are checked.
fn bounded_levels(name: &str) -> Result<std::str::Split<'_, char>, &'static str> {
    let counted = name.strip_prefix(DEAD_PREFIX).unwrap_or(name);
    if counted.is_empty() {
        return Err("is empty");
    }
    if counted.len() > NAME_BYTES_MAX {
        return Err("is longer than 249 bytes");
    }
    if counted.split('/').count() > LEVELS_MAX {
        return Err("has more than 16 levels");
    }
    Ok(counted.split('/'))
}

fn check_level(level: &str) -> Result<(), &'static str> {
    if level.is_empty() {
        return Err("has an empty level: no `/` at the start or end, and no two in a row");
    }
    if level.len() > LEVEL_BYTES_MAX {
        return Err("has a level of more than 64 bytes");
    }
    let body = level.strip_prefix('$').unwrap_or(level);
    if body.is_empty() {
        return Err("`$` alone is no level");
    }
    let mut bytes = body.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            _ if stands_plainly(byte) => {}
            b'%' => check_escape(bytes.next(), bytes.next())?,
            b'$' => return Err("has a `$` that is not the first byte of its level"),
            b'*' | b'>' => return Err("has a wildcard (`*`, `>`) where none may stand"),
            _ => return Err("has a byte outside [A-Za-z0-9_~-]; write others as %XX"),
        }
    }
    Ok(())
}

fn check_escape(high: Option<u8>, low: Option<u8>) -> Result<(), &'static str> {
    let (Some(high), Some(low)) = (high.and_then(hex), low.and_then(hex)) else {
        return Err("has a `%` without two upper-case hex digits behind it");
    };
    if stands_plainly(high << 4 | low) {
        return Err("escapes a byte that stands plainly: every name has one spelling");
    }
    Ok(())
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn stands_plainly(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'~' | b'-')
}

fn is_reserved(level: &str) -> bool {
    level.starts_with('$')
}

/// A level that a wildcard may match.
fn is_plain(level: &str) -> bool {
    !level.is_empty() && !is_reserved(level)
}

impl FromStr for TopicName {
    type Err = TopicError;
    fn from_str(name: &str) -> Result<Self, TopicError> {
        Self::parse(name)
    }
}

impl FromStr for TopicPattern {
    type Err = TopicError;
    fn from_str(pattern: &str) -> Result<Self, TopicError> {
        Self::parse(pattern)
    }
}

impl From<&TopicName> for TopicPattern {
    fn from(name: &TopicName) -> Self {
        Self(Arc::clone(&name.0))
    }
}

impl AsRef<str> for TopicName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for TopicPattern {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

// Sound because the derived `Hash`, `Eq` and `Ord` of the name are those of its text.
impl Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
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

#[cfg(test)]
mod tests;
