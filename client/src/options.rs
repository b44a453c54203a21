//! How to reach a broker, and as whom.

use std::{net::SocketAddr, time::Duration};

use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Backoff;

/// Where the broker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An address.
    Socket(SocketAddr),
    /// `HOST:PORT`, looked up at every dial.
    Name(String),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Socket(address)
    }
}

impl From<&str> for Address {
    fn from(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Socket)
    }
}

impl From<String> for Address {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Whom to take for the broker.
#[derive(Debug, Clone)]
pub enum Trust {
    /// Whoever holds the key of exactly this certificate (DER), whatever name and dates are in it.
    Pinned(CertificateDer<'static>),
    /// Whoever has a certificate for the server name from one of these authorities.
    Roots(RootCertStore),
}

/// A client certificate and its key.
pub struct ClientCert {
    /// The certificate first, then those up to its authority (DER).
    pub chain: Vec<CertificateDer<'static>>,
    /// Its private key (DER).
    pub key: PrivateKeyDer<'static>,
}

impl Clone for ClientCert {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

/// Without the key.
impl std::fmt::Debug for ClientCert {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCert").field("chain", &self.chain.len()).finish_non_exhaustive()
    }
}

/// How long to wait for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first packet to `Welcome`. Default 5 s.
    pub connect: Duration,
    /// For the answer to a request. Default 30 s.
    pub request: Duration,
    /// For the answer to a swap, rollback or reload, which compile and try plugins. Default 180 s.
    pub activation: Duration,
    /// A sign of life is sent after so much silence. Default 3 s.
    pub keep_alive: Duration,
    /// The connection counts as lost after so much silence. Default 10 s.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            request: Duration::from_secs(30),
            activation: Duration::from_secs(180),
            keep_alive: Duration::from_secs(3),
            idle: Duration::from_secs(10),
        }
    }
}

/// How to reach a broker, and as whom. Make one with [`ConnectOptions::new`] and set what differs.
#[derive(Clone)]
pub struct ConnectOptions {
    /// Where.
    pub address: Address,
    /// The name asked for in TLS; `None` = the host of the address, `localhost` for a bare IP address.
    pub server_name: Option<String>,
    /// Whom to take for the broker.
    pub trust: Trust,
    /// The tenant; empty = `default`.
    pub tenant: String,
    /// A token, or empty.
    pub token: String,
    /// The admin credential, or empty.
    pub admin_token: String,
    /// A client certificate, where the broker knows clients by theirs.
    pub client_cert: Option<ClientCert>,
    /// Told to the broker for its logs.
    pub client_name: String,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// How a lost connection is dialled again.
    pub backoff: Backoff,
}

impl ConnectOptions {
    /// Tenant `default`, no credentials, default times.
    pub fn new(address: impl Into<Address>, trust: Trust) -> Self {
        Self {
            address: address.into(),
            server_name: None,
            trust,
            tenant: String::new(),
            token: String::new(),
            admin_token: String::new(),
            client_cert: None,
            client_name: concat!("tidegate-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            timeouts: Timeouts::default(),
            backoff: Backoff::default(),
        }
    }

    /// Sets the tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Sets the token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = token.into();
        self
    }

    /// Sets the admin credential.
    #[must_use]
    pub fn admin_token(mut self, admin_token: impl Into<String>) -> Self {
        self.admin_token = admin_token.into();
        self
    }

    /// Sets the client certificate.
    #[must_use]
    pub fn client_cert(mut self, client_cert: ClientCert) -> Self {
        self.client_cert = Some(client_cert);
        self
    }

    /// The name to ask for in TLS.
    pub(crate) fn tls_name(&self) -> &str {
        match (&self.server_name, &self.address) {
            (Some(name), _) => name,
            (None, Address::Socket(_)) => "localhost",
            (None, Address::Name(name)) => name.rsplit_once(':').map_or(name.as_str(), |(host, _)| host),
        }
    }
}

/// Without the credentials: options end up in logs.
impl std::fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("address", &self.address)
            .field("server_name", &self.server_name)
            .field("tenant", &self.tenant)
            .field("token", &!self.token.is_empty())
            .field("admin_token", &!self.admin_token.is_empty())
            .field("client_cert", &self.client_cert.is_some())
            .field("client_name", &self.client_name)
            .field("timeouts", &self.timeouts)
            .field("backoff", &self.backoff)
            .finish_non_exhaustive()
    }
}
