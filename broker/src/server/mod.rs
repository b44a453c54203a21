//! Connections, streams, admin requests, drain: the broker as a whole.
//!
//! Owns `quinn`, the start in its right order and the end. Must not know how a verb does its work, nor files: `config` has
//! read them. Called by `cli` (`tidegate serve`) and by tests, in their own process. ADR 5 has connections and streams.

pub mod activation;
mod backup;
mod config;
mod connection;
mod endpoint;
mod http;
mod request;
mod start;
mod stream;

use std::{net::SocketAddr, sync::Arc};

use tidegate_protocol::{limits::Limits, wire::Plugins};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};
use tracing::{info, warn};

use self::activation::Activation;
pub use self::{
    config::{Bounds, Certificate, Config, ResetKey},
    start::{StartError, StartKind},
};
use crate::{
    auth::Auth,
    clock::SharedRandom,
    fetch::Fetch,
    metrics::Metrics,
    produce::{Budget, Produce},
    shard::Shard,
};

/// What all connections share.
#[derive(Debug)]
struct Broker {
    limits: Limits,
    bounds: Bounds,
    auth: Auth,
    activation: Activation,
    produce: Produce,
    fetch: Fetch,
    shard: Shard,
    budget: Budget,
    metrics: Arc<Metrics>,
    random: SharedRandom,
    /// Components on their way in: 64 MiB each, one at a time.
    large: Semaphore,
    /// Becomes true once.
    stopping: watch::Sender<bool>,
}

/// Starts brokers.
#[derive(Debug)]
pub struct Server;

/// A broker that runs.
#[derive(Debug)]
pub struct Running {
    /// Where clients connect.
    pub quic_addr: SocketAddr,
    /// Where health and metrics are served.
    pub http_addr: Option<SocketAddr>,
    /// The certificate it shows, DER.
    pub certificate: Vec<u8>,
    /// Its admin token.
    pub admin_token: String,
    broker: Arc<Broker>,
    endpoint: quinn::Endpoint,
    accepting: JoinHandle<()>,
    pages: Option<JoinHandle<()>>,
    pages_stop: watch::Sender<bool>,
}

impl Server {
    /// Starts a broker: ports first, so that one in use is told at once; then the log is read back, plugins come up, and
    /// clients get in. `/ready` tells meanwhile what is waited for.
    ///
    /// # Errors
    /// If a port, the data directory, the log, the hook runtime or the plugins do not allow it. Nothing is left behind.
    pub async fn start(config: Config) -> Result<Running, StartError> {
        start::start(config).await
    }
}

impl Running {
    /// Stops: no new connections and batches; batches in flight are answered; then connections are closed, the log is
    /// synced and closed. Takes at most the drain time and what the last sync takes.
    pub async fn shutdown(self) {
        info!("draining");
        self.broker.stopping.send_replace(true);
        let drain_time_max = self.broker.bounds.drain_time_max;
        let mut accepting = self.accepting;
        if tokio::time::timeout(drain_time_max, &mut accepting).await.is_err() {
            warn!(?drain_time_max, "clients are cut off");
            accepting.abort();
        }
        self.endpoint.close(CLOSED.into(), b"the broker has stopped");
        // Bounded like every last word: a client that is gone needs no goodbye.
        drop(tokio::time::timeout(connection::LAST_WORD_TIME, self.endpoint.wait_idle()).await);
        self.broker.shard.close().await;
        self.pages_stop.send_replace(true);
        if let Some(pages) = self.pages {
            drop(tokio::time::timeout(connection::LAST_WORD_TIME, pages).await);
        }
        info!("stopped");
    }

    /// Why the log takes nothing more, if it does not.
    pub fn failed(&self) -> Option<String> {
        self.broker.shard.failed().map(|error| error.to_string())
    }

    /// The plugins of a tenant and its live generation; `None` = it has none.
    pub fn plugins(&self, tenant: &str) -> Option<Plugins> {
        self.broker.activation.tenant(tenant).map(|tenant| self.broker.activation.list(tenant))
    }

    /// What the broker counts.
    pub fn metrics(&self) -> &Metrics {
        &self.broker.metrics
    }
}

/// Number of `SHUTTING_DOWN`, as connections are closed with.
const CLOSED: u32 = 603;

#[cfg(test)]
mod tests;
