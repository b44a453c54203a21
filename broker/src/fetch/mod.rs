//! Reading records: one subscription per stream, from a position on, through the fetch chain, for ever if asked.
//!
//! Owns what a subscription matches, its bounds and its progress. Must not know which transport a stream belongs to, what
//! a plugin does, or where frames lie. Called by `server`, one future per stream: a reader that does not read is waited for
//! by its own future only.

mod matcher;
mod select;
mod send;
mod start;
mod stream;
#[cfg(test)]
mod tests;

use std::{io, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tidegate_protocol::limits::Limits;

use crate::{auth::Principal, clock::SharedClock, hooks::Generation, metrics::Metrics, shard::Shard};

/// What fetching is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// What clients take: bodies over it are sent in parts.
    pub limits: Limits,
    /// Topics come into being when a batch names them: a subscription may be there before its topic.
    pub create_topics: bool,
    /// Bytes read from the log at a time, for one subscription.
    pub read_bytes: usize,
    /// How often a scan that gives nothing tells how far it is.
    pub progress_every: Duration,
    /// Waits between tries of a failing fetch chain.
    pub retry_after: Vec<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            create_topics: true,
            read_bytes: 1 << 20,
            progress_every: Duration::from_secs(1),
            retry_after: [250, 500, 1_000, 2_000, 4_000].map(Duration::from_millis).to_vec(),
        }
    }
}

/// The service: reads for all subscriptions. A cheap handle.
#[derive(Debug, Clone)]
pub struct Fetch {
    config: Arc<Config>,
    shard: Shard,
    metrics: Arc<Metrics>,
    clock: SharedClock,
}

/// Who reads.
#[derive(Debug, Clone)]
pub struct Subscriber {
    /// Who.
    pub principal: Arc<Principal>,
    /// Number of the tenant.
    pub tenant: u32,
    /// The tenant's live chain.
    pub live: Arc<ArcSwap<Generation>>,
}

/// Where a subscription's frames go.
pub trait Sink: Send {
    /// Sends the parts, one behind the other. Waits while the reader takes nothing.
    fn send(&mut self, parts: Vec<Bytes>) -> impl Future<Output = io::Result<()>> + Send;
}

impl Fetch {
    /// Over a shard.
    pub fn new(config: Config, shard: Shard, metrics: Arc<Metrics>, clock: SharedClock) -> Self {
        Self { config: Arc::new(config), shard, metrics, clock }
    }
}
