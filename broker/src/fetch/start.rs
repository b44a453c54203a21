//! Where a subscription starts, and whether it may.

use bytes::Bytes;
use tidegate_protocol::{
    cursor::Cursor,
    error::Code,
    topic::TopicPattern,
    wire::{Failure, OpenFetch, Start},
};

use super::{Fetch, Subscriber, matcher::Matcher};
use crate::{
    auth::Verb,
    shard::{Reader, Topic},
};

/// An opened subscription.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) pattern: TopicPattern,
    /// The first position to scan.
    pub(super) next_lsn: u64,
    /// Offsets of the topic before it are not told.
    pub(super) from_offset: u64,
    /// The fetch chain's parameters: a JSON object.
    pub(super) parameters: String,
    /// Only records of this stored key; the pattern is one topic then.
    pub(super) key: Option<Bytes>,
    /// Records that are gone are told of if they went after so many moves of low offsets.
    pub(super) gaps_since: u64,
}

impl Fetch {
    /// Checks pattern, rights and start. A resume is authorised like a first start.
    pub(super) async fn open(
        &self,
        subscriber: &Subscriber,
        open: &OpenFetch,
        reader: &Reader,
    ) -> Result<Opened, Failure> {
        let pattern = TopicPattern::parse(&open.pattern)
            .map_err(|error| Failure::new(Code::PatternInvalid, error.to_string()))?;
        let principal = &subscriber.principal;
        if pattern.as_name().is_some_and(|name| name.is_reserved()) || !principal.may_some(Verb::Fetch, &pattern) {
            let message = format!("principal {:?} may not fetch {:?}", &*principal.name, open.pattern);
            return Err(Failure::new(Code::Forbidden, message));
        }
        // Before the topic is looked for: what makes it meanwhile lies behind.
        let end = reader.end();
        let topic = pattern.as_name().map(|name| self.shard.topic(subscriber.tenant, name.as_str()));
        if let Some(None) = topic
            && !(open.follow && self.config.create_topics)
        {
            return Err(Failure::new(Code::TopicUnknown, format!("topic {:?} does not exist", open.pattern)));
        }
        let parameters = parameters(&open.parameters)?;
        if open.key.is_some() && !pattern.is_literal() {
            let message = format!("a key belongs to one topic, {:?} is a pattern", pattern.as_str());
            return Err(Failure::new(Code::PatternInvalid, message));
        }
        // Who resumes is told what it missed; who starts at what there is misses nothing.
        let gaps_since = if matches!(open.start, Some(Start::Cursor(_))) { 0 } else { reader.low_changes() };
        let (next_lsn, from_offset) = match &open.start {
            None | Some(Start::Earliest(_)) => (earliest(topic.as_ref().and_then(Option::as_ref), reader), 0),
            Some(Start::Latest(_)) => (reader.end(), 0),
            Some(Start::Since(time_ms)) => (since(*time_ms, reader).await?, 0),
            Some(Start::Ago(ago_ms)) => {
                let ago_ms = i64::try_from(*ago_ms).unwrap_or(i64::MAX);
                (since(reader.broker_time_ms().saturating_sub(ago_ms), reader).await?, 0)
            }
            Some(Start::Cursor(text)) => self.at_cursor(text, subscriber, &pattern, reader)?,
            Some(Start::Offset(offset)) => at_offset(*offset, &pattern, topic.flatten().as_ref(), reader)?,
            Some(Start::KeyHead(_)) => at_head(open.key.as_deref(), topic.flatten().as_ref(), end, reader).await?,
        };
        let key = open.key.clone().map(Bytes::from);
        Ok(Opened { pattern, next_lsn, from_offset, parameters, key, gaps_since })
    }

    fn at_cursor(
        &self,
        text: &str,
        subscriber: &Subscriber,
        pattern: &TopicPattern,
        reader: &Reader,
    ) -> Result<(u64, u64), Failure> {
        let invalid = |reason: String| Failure::new(Code::CursorInvalid, reason);
        match text.parse::<Cursor>().map_err(|error| invalid(error.to_string()))? {
            // Cursors are only given out for durable positions: one behind the end is from elsewhere.
            Cursor::Shard { shard: 0, next_lsn } if next_lsn <= reader.end() => Ok((next_lsn, 0)),
            Cursor::Shard { shard, next_lsn } => {
                Err(invalid(format!("position {next_lsn} of shard {shard} is not one of this log")))
            }
            Cursor::Topic { topic_id, next_offset } => {
                let matcher = Matcher::new(
                    self.shard.clone(),
                    subscriber.tenant,
                    std::sync::Arc::clone(&subscriber.principal),
                    pattern.clone(),
                );
                // Not telling a topic of somebody else from one that is not there.
                let wanted = pattern.is_literal() && matcher.wants(topic_id);
                let lsn = wanted.then(|| reader.lsn_of(topic_id, next_offset)).flatten();
                Ok((lsn.ok_or_else(|| invalid("it belongs to another topic".to_owned()))?, next_offset))
            }
        }
    }
}

/// Where the last record of a key stands; if there is none, where the first one will stand at the earliest: `end` if there
/// was no topic then.
async fn at_head(key: Option<&[u8]>, topic: Option<&Topic>, end: u64, reader: &Reader) -> Result<(u64, u64), Failure> {
    let Some(key) = key else {
        return Err(Failure::new(Code::ProtocolViolation, "a read from a key's last record names no key"));
    };
    let Some(topic) = topic else { return Ok((end, 0)) };
    let last = reader.last_offset(topic.id, key).await;
    Ok(match last.map_err(|error| Failure::new(error.code(), error.to_string()))? {
        (None, next_lsn) => (next_lsn, 0),
        (Some(offset), _) => (reader.lsn_of(topic.id, offset).unwrap_or_else(|| reader.first_lsn()), offset),
    })
}

/// Where the first record that is kept may stand: of one topic not before its low offset.
fn earliest(topic: Option<&Topic>, reader: &Reader) -> u64 {
    let of_topic = topic.and_then(|topic| reader.lsn_of(topic.id, topic.low_offset));
    of_topic.unwrap_or_default().max(reader.first_lsn())
}

/// Where the first record stands that was taken at a time or later.
async fn since(time_ms: i64, reader: &Reader) -> Result<u64, Failure> {
    reader.lsn_at_time(time_ms).await.map_err(|error| Failure::new(error.code(), error.to_string()))
}

fn at_offset(
    offset: u64,
    pattern: &TopicPattern,
    topic: Option<&Topic>,
    reader: &Reader,
) -> Result<(u64, u64), Failure> {
    if !pattern.is_literal() {
        let message = format!("an offset belongs to one topic, {:?} is a pattern", pattern.as_str());
        return Err(Failure::new(Code::PatternInvalid, message));
    }
    let next_offset = topic.map_or(0, |topic| topic.next_offset);
    if offset > next_offset {
        let message = format!("offset {offset} of {:?}: the next one is {next_offset}", pattern.as_str());
        return Err(Failure::new(Code::OffsetOutOfRange, message));
    }
    let low_offset = topic.map_or(0, |topic| topic.low_offset);
    if offset < low_offset {
        let message = format!("offset {offset} of {:?} is gone: the first one kept is {low_offset}", pattern.as_str());
        return Err(Failure::new(Code::OffsetOutOfRange, message));
    }
    let lsn = topic.and_then(|topic| reader.lsn_of(topic.id, offset));
    Ok((lsn.unwrap_or_else(|| reader.first_lsn()), offset))
}

/// Parameters of a subscription as a JSON object; what is no object is refused here, so that no guest meets it.
fn parameters(text: &str) -> Result<String, Failure> {
    if text.trim().is_empty() {
        return Ok("{}".to_owned());
    }
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(serde_json::Value::Object(_)) => Ok(text.to_owned()),
        _ => Err(Failure::new(Code::ProtocolViolation, "subscription parameters are not a JSON object")),
    }
}

#[cfg(test)]
mod tests {
    use super::parameters;

    #[test]
    fn parameters_are_an_object() {
        assert_eq!(parameters(" ").as_deref(), Ok("{}"));
        assert_eq!(parameters("{\"a\":1}").as_deref(), Ok("{\"a\":1}"));
        assert!(parameters("[1]").is_err() && parameters("{").is_err());
    }
}
