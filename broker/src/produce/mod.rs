//! Appending records: from a frame on a stream to its ack, in the order of ADR 3.
//!
//! Owns the byte budget between socket and disk, what is refused before the chain, and the answers. Must not know which
//! transport a stream belongs to, what a plugin does, or how the log is written. Called by `server`, one future per stream.

mod ack;
mod budget;
mod check;
pub mod frames;
mod host;
mod intake;
mod live;
mod stream;

use std::{sync::Arc, time::Duration};

use tidegate_protocol::limits::Limits;

pub use budget::{Budget, ConnectionBudget, Overloaded, Permit};
pub use check::may as authorise;
pub use host::GuestLog;
pub use live::Live;
pub use stream::stopped;

use crate::{auth::Principal, clock::SharedClock, metrics::Metrics, shard::Shard};

/// What producing is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// What clients may send.
    pub limits: Limits,
    /// Topics come into being when a batch names them.
    pub create_topics: bool,
    /// Batches of one stream that wait for their ack.
    pub in_flight_max: usize,
    /// How long a client may take for a frame: what has come of it holds budget.
    pub frame_time_max: Duration,
    /// How long a client may take for 64 KiB of a frame while others wait for the room that half frames hold.
    pub step_time_max: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            create_topics: true,
            in_flight_max: 64,
            frame_time_max: Duration::from_secs(30),
            step_time_max: Duration::from_secs(2),
        }
    }
}

/// The service: appends batches of all streams. A cheap handle.
#[derive(Debug, Clone)]
pub struct Produce {
    config: Arc<Config>,
    shard: Shard,
    metrics: Arc<Metrics>,
    clock: SharedClock,
}

/// For whom a stream produces.
#[derive(Debug, Clone)]
pub struct Session {
    /// Who.
    pub principal: Arc<Principal>,
    /// Number of the tenant.
    pub tenant: u32,
    /// The tenant's chain.
    pub live: Arc<Live>,
    /// Budget of the connection.
    pub budget: ConnectionBudget,
}

impl Produce {
    /// Over a shard.
    pub fn new(config: Config, shard: Shard, metrics: Arc<Metrics>, clock: SharedClock) -> Self {
        Self { config: Arc::new(config), shard, metrics, clock }
    }
}

#[cfg(test)]
mod tests;
