//! One entry of an allow list: a verb and the topics it holds for.

use tidegate_protocol::topic::{TopicError, TopicPattern};

/// What can be done with a topic, or with the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Append records.
    Produce,
    /// Read records, and name keys in conditions.
    Fetch,
    /// Create topics.
    Topics,
    /// Change plugins, see reserved topics. Needs the admin token as well.
    Admin,
}

/// Names of the verbs as the auth file writes them.
pub const VERBS: &[&str] = &["produce", "fetch", "topics", "admin"];

/// `produce:orders/>`, or `admin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allow {
    /// The verb.
    pub verb: Verb,
    /// Its topics; `None` for `admin`.
    pub pattern: Option<TopicPattern>,
}

/// Why text is no entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllowError {
    /// The verb is not one of [`VERBS`].
    #[error("unknown verb {0:?}")]
    Verb(String),
    /// A verb on topics without topics.
    #[error("{0:?} needs the topics it holds for, as in \"{0}:orders/>\"")]
    NoPattern(String),
    /// `admin` with topics.
    #[error("\"admin\" takes no topics")]
    AdminPattern,
    /// The pattern breaks a rule.
    #[error("pattern {0}")]
    Pattern(#[from] TopicError),
    /// The pattern is reserved.
    #[error("pattern {0:?}: topics of the broker itself cannot be given away")]
    Reserved(String),
}

impl Allow {
    /// Reads `VERB:PATTERN` or `admin`.
    ///
    /// # Errors
    /// If the verb is unknown, or the pattern missing, wrong or reserved.
    pub fn parse(text: &str) -> Result<Self, AllowError> {
        let (verb, pattern) = match text.split_once(':') {
            Some((verb, pattern)) => (verb, Some(pattern)),
            None => (text, None),
        };
        let kind = match verb {
            "produce" => Verb::Produce,
            "fetch" => Verb::Fetch,
            "topics" => Verb::Topics,
            "admin" => Verb::Admin,
            other => return Err(AllowError::Verb(other.to_owned())),
        };
        match (kind, pattern) {
            (Verb::Admin, None) => Ok(Self { verb: kind, pattern: None }),
            (Verb::Admin, Some(_)) => Err(AllowError::AdminPattern),
            (_, None) => Err(AllowError::NoPattern(verb.to_owned())),
            (_, Some(text)) if text.split('/').any(|level| level.starts_with("$sys")) => {
                Err(AllowError::Reserved(text.to_owned()))
            }
            (_, Some(text)) => Ok(Self { verb: kind, pattern: Some(TopicPattern::parse(text)?) }),
        }
    }

    /// The verb on every topic that is not reserved.
    pub(super) fn everything(verb: Verb) -> Self {
        Self { verb, pattern: TopicPattern::parse(">").ok() }
    }

    pub(super) fn permits(&self, verb: Verb, topic: &str) -> bool {
        self.verb == verb && self.pattern.as_ref().is_some_and(|pattern| pattern.matches(topic))
    }
}

/// Some topic that is not reserved matches both patterns.
pub(super) fn overlap(left: &TopicPattern, right: &TopicPattern) -> bool {
    let (mut left, mut right) = (left.as_str().split('/'), right.as_str().split('/'));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            // What is left on the other side has at least one level, and `>` stands for one or more.
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(left), Some(right)) if levels_overlap(left, right) => {}
            _ => return false,
        }
    }
}

fn levels_overlap(left: &str, right: &str) -> bool {
    match (left.strip_suffix('*'), right.strip_suffix('*')) {
        (None, None) => left == right,
        (Some(prefix), None) => right.starts_with(prefix),
        (None, Some(prefix)) => left.starts_with(prefix),
        (Some(left), Some(right)) => left.starts_with(right) || right.starts_with(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_meet_and_patterns_that_do_not() {
        let pattern = |text| TopicPattern::parse(text).expect("valid");
        for (left, right) in [(">", "a"), ("a/*", "*/b"), ("a/>", "a/b*"), ("re*", "red*"), ("a/b", "a/b"), (">", ">")]
        {
            assert!(overlap(&pattern(left), &pattern(right)), "{left} and {right}");
            assert!(overlap(&pattern(right), &pattern(left)), "{right} and {left}");
        }
        for (left, right) in [("a", "b"), ("a/>", "a"), ("a/*", "a/b/c"), ("red*", "blue*"), ("a/b/*", "*/c/d")] {
            assert!(!overlap(&pattern(left), &pattern(right)), "{left} and {right}");
            assert!(!overlap(&pattern(right), &pattern(left)), "{right} and {left}");
        }
    }
}
