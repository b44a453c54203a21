//! Requests: one message, one answer.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_protocol::{
    error::Code,
    topic::{TopicName, TopicPattern},
    wire::{
        ChainExplain, ClientBody, Failure, KeyInfo, KeyList, Keys, PluginSwap, ProducerIdGiven, ServerBody, TopicList,
        TopicTruncate, TopicTruncated, Topics,
    },
};

use tracing::info;

use super::{Broker, activation::topic_info, connection::Peer};
use crate::{
    auth::Verb,
    produce::authorise,
    shard::{KeyRange, Refusal, Truncated},
};

/// Topics in one answer.
const TOPICS_MAX: usize = 10_000;
/// Keys in one answer, and bytes of them: an answer is under 16 MiB.
const KEYS_MAX: usize = 10_000;
const KEY_BYTES_MAX: usize = 4 << 20;

/// Answers a request.
pub(super) async fn answer(broker: &Arc<Broker>, peer: &Peer, body: ClientBody) -> Result<ServerBody, Failure> {
    match body {
        ClientBody::TopicList(list) => topics(broker, peer, &list).map(ServerBody::Topics),
        ClientBody::TopicCreate(create) => topic_create(broker, peer, &create.name).await,
        ClientBody::KeyList(list) => keys(broker, peer, list).await.map(ServerBody::Keys),
        ClientBody::TopicTruncate(truncate) => {
            admin(peer, "topics truncate")?;
            topic_truncate(broker, peer, &truncate).await.map(ServerBody::TopicTruncated)
        }
        ClientBody::ProducerId(_) => Ok(ServerBody::ProducerId(ProducerIdGiven { id: producer_id(broker) })),
        ClientBody::PluginList(_) => Ok(ServerBody::Plugins(broker.activation.list(&peer.tenant))),
        ClientBody::ChainExplain(explain) => chain(broker, peer, &explain).map(ServerBody::Chain),
        ClientBody::PluginSwap(swap) => {
            admin(peer, "plugins swap")?;
            let PluginSwap { name, component, based_on } = swap;
            let swapped = broker.activation.swap(&peer.tenant, &name, Bytes::from(component), based_on).await;
            swapped.map(ServerBody::Activated).map_err(|error| error.failure())
        }
        ClientBody::PluginRollback(rollback) => {
            admin(peer, "plugins rollback")?;
            let back = broker.activation.rollback(&peer.tenant, &rollback.name, rollback.based_on).await;
            back.map(ServerBody::Activated).map_err(|error| error.failure())
        }
        ClientBody::Reload(reload) => {
            admin(peer, "plugins reload")?;
            let reloaded = broker.activation.reload(&peer.tenant, reload.based_on).await;
            reloaded.map(ServerBody::Activated).map_err(|error| error.failure())
        }
        ClientBody::Hello(_) | ClientBody::OpenProduce(_) | ClientBody::OpenFetch(_) | ClientBody::BackupBegin(_) => {
            Err(Failure::new(Code::ProtocolViolation, "this message is no request"))
        }
    }
}

pub(super) fn admin(peer: &Peer, verb: &str) -> Result<(), Failure> {
    if peer.principal.admin {
        return Ok(());
    }
    Err(Failure::new(Code::AdminRequired, format!("{verb:?} needs the admin credential")))
}

fn topics(broker: &Broker, peer: &Peer, list: &TopicList) -> Result<Topics, Failure> {
    if list.reserved {
        admin(peer, "topics --reserved")?;
    }
    let pattern = match list.pattern.as_str() {
        "" => None,
        text => Some(TopicPattern::parse(text).map_err(|error| Failure::new(Code::PatternInvalid, error.to_string()))?),
    };
    let principal = &peer.principal;
    let seen = |topic: &TopicName| {
        topic.is_reserved()
            || [Verb::Fetch, Verb::Produce, Verb::Topics].into_iter().any(|verb| principal.may(verb, topic.as_str()))
    };
    let found = broker.shard.topics(peer.tenant.number, pattern.as_ref(), list.reserved, TOPICS_MAX + 1);
    let truncated = found.len() > TOPICS_MAX;
    let topics = found.iter().take(TOPICS_MAX).filter(|topic| seen(&topic.name)).map(topic_info).collect();
    Ok(Topics { topics, truncated })
}

async fn keys(broker: &Broker, peer: &Peer, list: KeyList) -> Result<Keys, Failure> {
    let name = authorise(&peer.principal, Verb::Fetch, &list.topic)?;
    let Some(topic) = broker.shard.topic(peer.tenant.number, name.as_str()) else {
        return Err(Failure::new(Code::TopicUnknown, format!("topic {:?} does not exist", name.as_str())));
    };
    // Keys come as stored, past the fetch chain: not to those from whom it may keep them.
    if !peer.principal.admin && peer.tenant.live.now().has_fetch_for(name.as_str(), &peer.principal.role) {
        let message = format!(
            "a fetch chain may change or drop records of {:?} for this reader, and \"keys list\" tells keys as they are \
             stored: it needs the admin credential there",
            name.as_str()
        );
        return Err(Failure::new(Code::AdminRequired, message));
    }
    let asked = usize::try_from(list.keys_max).unwrap_or(KEYS_MAX);
    let range = KeyRange {
        prefix: list.prefix.into(),
        after: list.after.map(Bytes::from),
        keys_max: if asked == 0 { KEYS_MAX } else { asked.min(KEYS_MAX) },
        bytes_max: KEY_BYTES_MAX,
    };
    let (keys, truncated) =
        broker.shard.keys(topic.id, range).await.map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let info =
        |key: crate::shard::Key| KeyInfo { key: key.key.into(), version: key.version, last_offset: key.last_offset };
    Ok(Keys { keys: keys.into_iter().map(info).collect(), truncated })
}

async fn topic_create(broker: &Broker, peer: &Peer, name: &str) -> Result<ServerBody, Failure> {
    let name = authorise(&peer.principal, Verb::Topics, name)?;
    let refused = |refusal: &Refusal| Failure::new(refusal.code(), refusal.to_string());
    let ticket = match broker.shard.create_topic(peer.tenant.number, &name) {
        Ok(ticket) => ticket,
        Err(refusal) => {
            // That it exists may be told once that is durable.
            if let Some(wait) = refusal.wait() {
                wait.durable().await.map_err(|error| Failure::new(error.code(), error.to_string()))?;
            }
            return Err(refused(&refusal));
        }
    };
    let topic = ticket.durable().await.map_err(|error| Failure::new(error.code(), error.to_string()))?;
    Ok(ServerBody::TopicCreated(topic_info(&topic)))
}

async fn topic_truncate(broker: &Broker, peer: &Peer, truncate: &TopicTruncate) -> Result<TopicTruncated, Failure> {
    let name =
        TopicName::parse(&truncate.topic).map_err(|error| Failure::new(Code::TopicInvalid, error.to_string()))?;
    if name.is_reserved() {
        let message = format!("topic {:?} has a reserved level: only the broker removes records there", name.as_str());
        return Err(Failure::new(Code::TopicReserved, message));
    }
    let done = broker.shard.truncate(peer.tenant.number, &name, truncate.before).await;
    let Truncated { topic, low_offset_before } = done.map_err(|error| Failure::new(error.code(), error.to_string()))?;
    info!(
        tenant = &*peer.tenant.name,
        topic = name.as_str(),
        principal = &*peer.principal.name,
        low_offset = topic.low_offset,
        low_offset_before,
        "topic is truncated"
    );
    Ok(TopicTruncated { topic: Some(topic_info(&topic)), low_offset_before })
}

fn chain(broker: &Broker, peer: &Peer, explain: &ChainExplain) -> Result<tidegate_protocol::wire::Chain, Failure> {
    let topic =
        TopicName::parse(&explain.topic).map_err(|error| Failure::new(Code::TopicInvalid, error.to_string()))?;
    Ok(broker.activation.explain(&peer.tenant, topic.as_str()))
}

/// 63 random bits, never 0.
fn producer_id(broker: &Broker) -> u64 {
    let mut bytes = [0; 8];
    broker.random.fill(&mut bytes);
    (u64::from_le_bytes(bytes) >> 1).max(1)
}
