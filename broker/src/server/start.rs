//! The start of a broker, in its right order.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tracing::{Instrument as _, debug, field::Empty, info, info_span, warn};

use super::{
    Broker, Config, Running,
    activation::{self, Activation, ActivationError},
    connection, endpoint, http,
};
use crate::{
    auth::Auth,
    fetch::{self, Fetch},
    hooks::{self, Runtime, RuntimeError},
    metrics::Metrics,
    produce::{self, Budget, GuestLog, Produce, stopped},
    shard::{self, Shard, ShardError},
    storage::{self, Blobs, RealDisk, StorageError, WalKind},
};

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be used.
    #[error("cannot listen on {addr} ({what}): {source}; is another broker running? Give another address, or stop it")]
    Bind {
        /// `QUIC`, `HTTP`.
        what: &'static str,
        /// As configured.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Certificate and key do not make a TLS endpoint.
    #[error("certificate or key cannot be used: {0}")]
    Tls(String),
    /// The log cannot be opened.
    #[error("{0}")]
    Shard(#[from] ShardError),
    /// The stored components cannot be opened.
    #[error("{0}")]
    Blobs(#[from] StorageError),
    /// The hook runtime does not start.
    #[error("{0}")]
    Runtime(#[from] RuntimeError),
    /// Plugins cannot be brought up, and there is no earlier generation to go on with.
    #[error("{0}")]
    Plugins(#[from] ActivationError),
    /// A thread of the start ended.
    #[error("the start was interrupted")]
    Interrupted,
}

/// What kind of failure a [`StartError`] is, for exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartKind {
    /// A setting or file must be changed.
    Config,
    /// Something is in use, or not to be had now.
    Unavailable,
    /// A disk or file fails, or what it holds is damaged.
    Io,
    /// A bug, or a system that does not allow what is needed.
    Internal,
}

impl StartError {
    /// What kind of failure this is.
    pub fn kind(&self) -> StartKind {
        match self {
            Self::Bind { .. } => StartKind::Unavailable,
            Self::Tls(_) => StartKind::Config,
            Self::Shard(ShardError::Storage(error)) | Self::Blobs(error) => storage_kind(error),
            Self::Shard(ShardError::Replay { .. }) => StartKind::Io,
            Self::Shard(ShardError::TenantInvalid { .. } | ShardError::TenantsFull { .. }) => StartKind::Config,
            Self::Plugins(ActivationError::Blob(error)) => storage_kind(error),
            Self::Plugins(ActivationError::NotDurable(_) | ActivationError::Refused { .. }) => StartKind::Io,
            Self::Plugins(ActivationError::Interrupted) => StartKind::Internal,
            Self::Plugins(_) => StartKind::Config,
            Self::Shard(_) | Self::Runtime(_) | Self::Interrupted => StartKind::Internal,
        }
    }
}

fn storage_kind(error: &StorageError) -> StartKind {
    match error {
        StorageError::InUse { .. } => StartKind::Unavailable,
        StorageError::Setting { .. } => StartKind::Config,
        _ => StartKind::Io,
    }
}

/// What is read and made on a thread that may block.
struct Opened {
    shard: Shard,
    runtime: Runtime,
    blobs: Blobs,
}

/// See [`super::Server::start`].
pub(super) async fn start(config: Config) -> Result<Running, StartError> {
    let metrics = Arc::new(Metrics::default());
    let listener = match config.http {
        None => None,
        Some(addr) => {
            Some(TcpListener::bind(addr).await.map_err(|source| StartError::Bind { what: "HTTP", addr, source })?)
        }
    };
    let http_addr = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let endpoint = endpoint::open(&config)?;
    let quic_addr =
        endpoint.local_addr().map_err(|source| StartError::Bind { what: "QUIC", addr: config.listen, source })?;
    let pages = Arc::new(http::Pages::new(Arc::clone(&metrics)));
    let (pages_stop, mut stop) = watch::channel(false);
    let serving = listener.map(|listener| {
        let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
        tokio::spawn(http::serve(listener, Arc::clone(&pages), stopped))
    });
    pages.phase("the log is being read back");
    let broker = match up(&config, metrics, &pages).await {
        Ok(broker) => Arc::new(broker),
        Err(error) => {
            // Nothing may be left behind: the next try needs the port.
            if let Some(serving) = serving {
                serving.abort();
            }
            return Err(error);
        }
    };
    let accepting = tokio::spawn(accept(Arc::clone(&broker), endpoint.clone()));
    pages.up(Arc::clone(&broker));
    info!(listen = %quic_addr, http = ?http_addr, data = %config.data_dir.display(), "ready");
    Ok(Running {
        quic_addr,
        http_addr,
        certificate: config.certificate.chain.first().cloned().unwrap_or_default(),
        admin_token: config.admin_token,
        broker,
        endpoint,
        accepting,
        pages: serving,
        pages_stop,
    })
}

/// Brings log, runtime and plugins up.
async fn up(config: &Config, metrics: Arc<Metrics>, pages: &http::Pages) -> Result<Broker, StartError> {
    let opening = config.clone();
    let Opened { shard, runtime, blobs } =
        tokio::task::spawn_blocking(move || open(&opening)).await.map_err(|_| StartError::Interrupted)??;
    pages.phase("plugins are being loaded");
    let auth = Auth::new(config.auth.clone());
    let names = auth.tenants().into_iter().map(str::to_owned).collect();
    let source = config.plugins.clone();
    let unused = if config.memory { activation::Unused::Keep } else { activation::Unused::Remove };
    let parts =
        activation::Parts { shard: shard.clone(), runtime, blobs, unused, source, metrics: Arc::clone(&metrics) };
    let activation = match Activation::start(parts, names).await {
        Ok(activation) => activation,
        Err(error) => {
            shard.close().await;
            return Err(error.into());
        }
    };
    let produce = produce::Config {
        limits: config.limits,
        create_topics: config.create_topics,
        in_flight_max: config.bounds.stream_in_flight_max,
        ..produce::Config::default()
    };
    let fetch =
        fetch::Config { limits: config.limits, create_topics: config.create_topics, ..fetch::Config::default() };
    Ok(Broker {
        limits: config.limits,
        bounds: config.bounds,
        auth,
        activation,
        produce: Produce::new(produce, shard.clone(), Arc::clone(&metrics), Arc::clone(&config.clock)),
        fetch: Fetch::new(fetch, shard.clone(), Arc::clone(&metrics), Arc::clone(&config.clock)),
        shard,
        budget: Budget::new(config.bounds.produce_bytes_max),
        metrics,
        random: Arc::clone(&config.random),
        large: Semaphore::new(1),
        stopping: watch::Sender::new(false),
    })
}

/// Blocking.
fn open(config: &Config) -> Result<Opened, StartError> {
    let disk: Arc<dyn storage::Disk> = Arc::new(RealDisk);
    let storage = storage::Config {
        wal: if config.memory { WalKind::Memory } else { WalKind::Local },
        // The byte budget is what slows clients down; the queue behind it takes what a chain may add.
        queue_bytes_max: config.bounds.produce_bytes_max.saturating_mul(QUEUE_TIMES),
        wal_file_bytes: config.wal_file_bytes,
        tail_bytes: config.tail_bytes,
        ..storage::Config::new(&config.data_dir)
    };
    let shard = shard::Config { retention_every: config.retention_every, ..shard::Config::default() };
    let shard = Shard::open(shard, storage, Arc::clone(&disk), Arc::clone(&config.clock))?;
    let blobs = Blobs::open(config.data_dir.join("plugins"), disk)?;
    let hooks = hooks::Config {
        cache_dir: Some(config.data_dir.join("cache")),
        compiler: config.compiler.clone(),
        limits: config.limits,
        ..hooks::Config::default()
    };
    let runtime = Runtime::new(hooks, Arc::new(GuestLog), Arc::clone(&config.clock), Arc::clone(&config.random))?;
    Ok(Opened { shard, runtime, blobs })
}

/// A chain may double what clients send before the queue refuses.
const QUEUE_TIMES: usize = 2;

/// Takes connections until the broker stops, then waits for those that are open.
async fn accept(broker: Arc<Broker>, endpoint: quinn::Endpoint) {
    let mut stopping = broker.stopping.subscribe();
    let mut running = JoinSet::new();
    let mut warned = false;
    loop {
        let incoming = tokio::select! {
            biased;
            () = stopped(&mut stopping) => break,
            Some(_) = running.join_next() => continue,
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => incoming,
                None => break,
            },
        };
        if running.len() >= broker.bounds.connections_max {
            if !warned {
                warn!(connections = running.len(), "too many connections: new ones are refused");
                warned = true;
            }
            broker.metrics.connections_refused.add(1);
            incoming.refuse();
            continue;
        }
        warned = false;
        // With many strangers at the door, only those who can hear us are let in.
        if running.len() >= broker.bounds.connections_max / 2 && incoming.may_retry() {
            if let Err(error) = incoming.retry() {
                debug!(%error, "no retry");
            }
            continue;
        }
        let span = info_span!("connection", remote = %incoming.remote_address(), tenant = Empty);
        running.spawn(Box::pin(connection::serve(Arc::clone(&broker), incoming)).instrument(span));
    }
    endpoint.set_server_config(None);
    while running.join_next().await.is_some() {}
}
