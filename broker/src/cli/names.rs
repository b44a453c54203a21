//! Arguments that must be names or patterns of topics: judged here, so that a typing error reads nothing, sends nothing and
//! needs no broker.

use tidegate_protocol::{
    error::Code,
    topic::{TopicName, TopicPattern},
};

use super::Error;

/// A topic, whoever writes to it.
pub(super) fn topic(text: &str) -> Result<TopicName, Error> {
    TopicName::parse(text).map_err(|error| Error::argument(Code::TopicInvalid, error))
}

/// A topic that clients may create and write to.
pub(super) fn own_topic(text: &str) -> Result<TopicName, Error> {
    let name = topic(text)?;
    if name.is_reserved() {
        return Err(Error::argument(Code::TopicReserved, format!("{text:?} has a reserved level")));
    }
    Ok(name)
}

/// A topic or a pattern.
pub(super) fn pattern(text: &str) -> Result<TopicPattern, Error> {
    TopicPattern::parse(text).map_err(|error| Error::argument(Code::PatternInvalid, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_rule_is_wrong_usage_with_the_rule_and_its_code() {
        for (refused, told) in [
            (own_topic("bad topic!").map(drop), "TOPIC_INVALID: \"bad topic!\": has a byte outside [A-Za-z0-9_~-]"),
            (own_topic("a/*").map(drop), "TOPIC_INVALID: \"a/*\": has a wildcard"),
            (own_topic("$sys/topics").map(drop), "TOPIC_RESERVED: \"$sys/topics\" has a reserved level"),
            (topic("a//b").map(drop), "TOPIC_INVALID: \"a//b\": has an empty level"),
            (pattern("a/>/b").map(drop), "PATTERN_INVALID: \"a/>/b\": `>` stands only at the end"),
        ] {
            let error = refused.unwrap_err();
            assert!(error.text().starts_with(told), "{}", error.text());
            assert_eq!(error.exit_code(), 64);
        }
        assert!(topic("$dead/a").is_ok() && own_topic("a/b").is_ok() && pattern("$dead/>").is_ok());
    }
}
