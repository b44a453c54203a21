//! What a server is told: plain data, filled by `config`.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use tidegate_protocol::limits::Limits;

use super::activation::DesiredSource;
use crate::{
    auth,
    clock::{SharedClock, SharedRandom},
};

/// Everything a server needs.
#[derive(Debug, Clone)]
pub struct Config {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The log lives in memory only.
    pub memory: bool,
    /// Length of a WAL file; see `storage::Config`.
    pub wal_file_bytes: u64,
    /// How often is looked at what need not be kept; see `shard::Config`.
    pub retention_every: Duration,
    /// Bytes of the last frames kept in memory; see `storage::Config`.
    pub tail_bytes: usize,
    /// Address for clients (UDP). Port 0 = a free one.
    pub listen: SocketAddr,
    /// Address for health and metrics (TCP); `None` = not served.
    pub http: Option<SocketAddr>,
    /// What the broker shows.
    pub certificate: Certificate,
    /// What it tells clients of an earlier run by.
    pub reset_key: ResetKey,
    /// Who may connect.
    pub auth: auth::Config,
    /// The admin token itself, for whoever starts a server in its own process. Its hash is in `auth`.
    pub admin_token: String,
    /// Where the plugins come from; `None` = only what an earlier run activated.
    pub plugins: Option<Arc<dyn DesiredSource>>,
    /// The program that compiles plugins; see `hooks::Config`. `None` = this process does.
    pub compiler: Option<PathBuf>,
    /// Topics come into being when a batch names them.
    pub create_topics: bool,
    /// What clients may send.
    pub limits: Limits,
    /// What clients may occupy.
    pub bounds: Bounds,
    /// Where time comes from.
    pub clock: SharedClock,
    /// Where randomness comes from.
    pub random: SharedRandom,
}

/// A certificate chain and its key in DER form.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The broker's own first.
    pub chain: Vec<Vec<u8>>,
    /// The private key.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for Certificate {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").field("chain", &self.chain.len()).finish_non_exhaustive()
    }
}

/// Key of the stateless resets (RFC 9000, 10.3): the same over restarts, so that clients of a broker that was killed hear from
/// the next one at the same address that their connections are gone. Who has it can end connections.
#[derive(Clone, PartialEq, Eq)]
pub struct ResetKey(pub [u8; 32]);

impl std::fmt::Debug for ResetKey {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResetKey").finish_non_exhaustive()
    }
}

/// What clients may occupy of a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at a time. Default 1 024.
    pub connections_max: usize,
    /// Streams of one connection at a time. Default 256.
    pub streams_max: u32,
    /// From the first packet to `Hello`. Default 5 s.
    pub handshake_time_max: Duration,
    /// A connection without a sign of life. Default 30 s.
    pub idle_time_max: Duration,
    /// Batch bytes between socket and disk, of all connections. Default 256 MiB.
    pub produce_bytes_max: usize,
    /// Batch bytes between socket and disk, of one connection. Default 32 MiB.
    pub connection_bytes_max: usize,
    /// How long a batch waits for the two before it is refused. Default 5 s.
    pub produce_wait_max: Duration,
    /// Batches of one stream that wait for their ack. Default 64.
    pub stream_in_flight_max: usize,
    /// From the wish to stop until connections are cut. Default 20 s.
    pub drain_time_max: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections_max: 1_024,
            streams_max: 256,
            handshake_time_max: Duration::from_secs(5),
            idle_time_max: Duration::from_secs(30),
            produce_bytes_max: 256 << 20,
            connection_bytes_max: 32 << 20,
            produce_wait_max: Duration::from_secs(5),
            stream_in_flight_max: 64,
            drain_time_max: Duration::from_secs(20),
        }
    }
}
