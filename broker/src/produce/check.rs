//! What is refused before anything else looks at a batch: names, rights, reserved headers.

use bytes::Bytes;
use tidegate_protocol::{
    batch::BatchBody,
    error::Code,
    limits::Limits,
    record::headers,
    stored::ProducerStamp,
    topic::TopicName,
    wire::{self, Failure, ProduceHead},
};

use crate::{
    auth::{Principal, Verb},
    shard::{Condition, Expect},
};

/// Start of header names that only the broker and granted plugins may set.
const HEADER_RESERVED: &[u8] = b"tidegate-";

/// A batch that may go on.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) body: BatchBody,
    pub(super) producer: Option<ProducerStamp>,
    pub(super) conditions: Vec<Condition>,
}

/// Reads and checks a batch; the body's CRC is checked here, once.
pub(super) fn check(head: Bytes, body: Bytes, limits: &Limits, principal: &Principal) -> Result<Checked, Failure> {
    let head: ProduceHead = wire::decode(head).map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let body = BatchBody::parse(body, limits).map_err(|error| {
        let failure = Failure::new(error.code(), error.to_string());
        match error.record() {
            Some(at) => failure.at_record(at),
            None => failure,
        }
    })?;
    for topic in body.topics() {
        may(principal, Verb::Produce, topic)?;
    }
    // It names no topic and is stored all the same, where it has a producer.
    if body.is_empty() && !principal.may_any(Verb::Produce) {
        return Err(Failure::new(Code::Forbidden, format!("principal {:?} may not produce", &*principal.name)));
    }
    reserved_headers(&body)?;
    let producer = (head.producer_id != 0).then_some(ProducerStamp {
        id: head.producer_id,
        epoch: head.producer_epoch,
        sequence: head.sequence,
    });
    Ok(Checked { body, producer, conditions: conditions(head.conditions, limits, principal)? })
}

/// Refuses a topic that is no name, reserved, or not this principal's. Nothing is said about whether it exists.
///
/// # Errors
/// As said.
pub fn may(principal: &Principal, verb: Verb, topic: &str) -> Result<TopicName, Failure> {
    let name = TopicName::parse(topic).map_err(|error| Failure::new(Code::TopicInvalid, error.to_string()))?;
    if name.is_reserved() {
        return Err(Failure::new(Code::TopicReserved, format!("{topic:?} has a reserved level")));
    }
    if principal.may(verb, topic) {
        return Ok(name);
    }
    let verb = match verb {
        Verb::Produce => "produce",
        Verb::Fetch => "fetch",
        Verb::Topics => "topics",
        Verb::Admin => "admin",
    };
    Err(Failure::new(Code::Forbidden, format!("principal {:?} may not {verb} {topic:?}", &*principal.name)))
}

fn reserved_headers(body: &BatchBody) -> Result<(), Failure> {
    let (_, bytes) = body.header_column();
    // Almost no batch has the word at all; only then are its records looked at.
    if bytes.len() < HEADER_RESERVED.len() || !bytes.windows(HEADER_RESERVED.len()).any(|part| part == HEADER_RESERVED)
    {
        return Ok(());
    }
    for (at, (_, record)) in (0_u32..).zip(body.records()) {
        for (name, _) in headers(record.headers).flatten() {
            if name.as_bytes().starts_with(HEADER_RESERVED) {
                let message = format!("header {name:?} is reserved for the broker and its plugins");
                return Err(Failure::new(Code::HeaderReserved, message).at_record(at));
            }
        }
    }
    Ok(())
}

fn conditions(
    conditions: Vec<wire::Condition>,
    limits: &Limits,
    principal: &Principal,
) -> Result<Vec<Condition>, Failure> {
    if conditions.len() > limits.conditions_max as usize {
        let message = format!("{} conditions, at most {} are allowed", conditions.len(), limits.conditions_max);
        return Err(Failure::new(Code::BatchTooLarge, message));
    }
    let read = |condition: wire::Condition| {
        let (topic, key, expect) =
            condition.into_parts().map_err(|error| Failure::new(error.code(), error.to_string()))?;
        may(principal, Verb::Fetch, topic.as_str())?;
        if key.len() > limits.key_bytes_max as usize {
            let message =
                format!("key of a condition is {} bytes, at most {} are allowed", key.len(), limits.key_bytes_max);
            return Err(Failure::new(Code::RecordTooLarge, message));
        }
        let expect = match expect {
            wire::Expect::Version(version) => Expect::Version(version),
            wire::Expect::LastOffset(offset) => Expect::LastOffset(offset),
            wire::Expect::Absent(_) => Expect::Absent,
        };
        Ok(Condition { topic, key, expect })
    };
    conditions.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests;
