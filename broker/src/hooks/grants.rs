//! Grants: what a plugin may import, where it may send records, which reserved headers it may set.

use tidegate_protocol::topic::{TopicError, TopicPattern};

/// One line of `grants`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// `log`.
    Log,
    /// `clock`.
    Clock,
    /// `random`.
    Random,
    /// `counters`.
    Counters,
    /// `batch`.
    Batch,
    /// `route:PATTERN`.
    Route(TopicPattern),
    /// `emit:PATTERN`.
    Emit(TopicPattern),
    /// `header:NAME`.
    Header(String),
}

/// Why a line is not a grant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// No such grant.
    #[error(
        "`{grant}` is no grant (did you mean `{nearest}`?); there are log, clock, random, counters, batch, route:PATTERN, emit:PATTERN and header:NAME"
    )]
    Unknown {
        /// As written, cut.
        grant: String,
        /// The nearest right spelling.
        nearest: &'static str,
    },
    /// A pattern out of the rules.
    #[error("grant `{grant}`: {reason}")]
    Pattern {
        /// As written, cut.
        grant: String,
        /// Which rule.
        reason: TopicError,
    },
    /// A header name out of the rules.
    #[error("grant `{grant}`: a header name has 1 to 256 bytes")]
    Header {
        /// As written, cut.
        grant: String,
    },
    /// Too many.
    #[error("{count} grants, at most {max} are taken")]
    Many {
        /// As found.
        count: usize,
        /// The bound.
        max: usize,
    },
}

impl std::str::FromStr for Grant {
    type Err = GrantError;
    fn from_str(text: &str) -> Result<Self, GrantError> {
        let shown = || super::error::cut(text, 300).to_owned();
        let pattern = |p: &str| TopicPattern::parse(p).map_err(|reason| GrantError::Pattern { grant: shown(), reason });
        match text {
            "log" => return Ok(Self::Log),
            "clock" => return Ok(Self::Clock),
            "random" => return Ok(Self::Random),
            "counters" => return Ok(Self::Counters),
            "batch" => return Ok(Self::Batch),
            _ => {}
        }
        match text.split_once(':') {
            Some(("route", p)) => pattern(p).map(Self::Route),
            Some(("emit", p)) => pattern(p).map(Self::Emit),
            Some(("header", name)) if name.is_empty() || name.len() > HEADER_NAME_BYTES_MAX => {
                Err(GrantError::Header { grant: shown() })
            }
            Some(("header", name)) => Ok(Self::Header(name.to_owned())),
            _ => Err(GrantError::Unknown { grant: shown(), nearest: nearest(text) }),
        }
    }
}

fn nearest(text: &str) -> &'static str {
    let word = super::error::cut(text.split(':').next().unwrap_or_default(), 64);
    let known = ["log", "clock", "random", "counters", "batch", "route:PATTERN", "emit:PATTERN", "header:NAME"];
    let head = |k: &'static str| k.split(':').next().unwrap_or(k);
    known.into_iter().min_by_key(|k| strsim::damerau_levenshtein(word, head(k))).unwrap_or("log")
}

/// All grants of one plugin, ready to be asked.
#[derive(Debug, Clone, Default)]
pub(super) struct Grants {
    pub(super) log: bool,
    pub(super) clock: bool,
    pub(super) random: bool,
    pub(super) counters: bool,
    pub(super) batch: bool,
    route: Vec<TopicPattern>,
    emit: Vec<TopicPattern>,
    headers: Vec<String>,
}

impl Grants {
    pub(super) fn parse(lines: &[String]) -> Result<Self, GrantError> {
        if lines.len() > GRANTS_MAX {
            return Err(GrantError::Many { count: lines.len(), max: GRANTS_MAX });
        }
        let mut all = Self::default();
        for line in lines {
            match line.parse()? {
                Grant::Log => all.log = true,
                Grant::Clock => all.clock = true,
                Grant::Random => all.random = true,
                Grant::Counters => all.counters = true,
                Grant::Batch => all.batch = true,
                Grant::Route(pattern) => all.route.push(pattern),
                Grant::Emit(pattern) => all.emit.push(pattern),
                Grant::Header(name) => all.headers.push(name),
            }
        }
        Ok(all)
    }
    /// Whether a grant is given; of `route` and `emit` any pattern, of those that are no grants all.
    pub(super) fn has(&self, grant: &str) -> bool {
        match grant.split_once(':').map_or((grant, ""), |(name, target)| (name, target)) {
            ("log", _) => self.log,
            ("clock", _) => self.clock,
            ("random", _) => self.random,
            ("counters", _) => self.counters,
            ("batch", _) => self.batch,
            ("route", _) => !self.route.is_empty(),
            ("emit", _) => !self.emit.is_empty(),
            ("header", name) => self.may_touch_header(name),
            _ => true,
        }
    }
    pub(super) fn may_route(&self, topic: &str) -> bool {
        self.route.iter().any(|pattern| pattern.matches(topic))
    }
    pub(super) fn may_emit(&self, topic: &str) -> bool {
        self.emit.iter().any(|pattern| pattern.matches(topic))
    }
    /// Whether the plugin may set or remove a header of this name.
    pub(super) fn may_touch_header(&self, name: &str) -> bool {
        !is_reserved_header(name) || self.headers.iter().any(|granted| granted == name)
    }
}

/// Names that only the broker and granted plugins set. Readers of other systems compare header names without case, so
/// `Tidegate-` is as reserved as `tidegate-`.
pub(super) fn is_reserved_header(name: &str) -> bool {
    name.as_bytes().get(..RESERVED_HEADER.len()).is_some_and(|head| head.eq_ignore_ascii_case(RESERVED_HEADER))
}

const RESERVED_HEADER: &[u8] = b"tidegate-";
/// Longest name of a header a plugin adds.
pub(super) const HEADER_NAME_BYTES_MAX: usize = 256;
/// Each line is compared with each target; more than this is a list that belongs into a pattern.
const GRANTS_MAX: usize = 256;
