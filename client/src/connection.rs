//! One way to the broker: dialled once, dialled again when it was lost, shared by producers, consumers and requests.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::{
    limits::Limits,
    wire::{self, ClientBody, Hello, ServerBody},
};
use tokio::{net::UdpSocket, sync::Mutex, time::timeout};
use tracing::{debug, info};

use crate::{
    Address, Admin, ConnectOptions, Consumer, ConsumerOptions, Error, Producer, ProducerConfig, Stats,
    frames::{self, FrameReader},
    stats::Counters,
    tls,
};

/// Messages alone come on request streams: no batch.
const NO_BATCH: u32 = 0;

/// A way to one broker. Cheap to clone; all clones share one QUIC connection.
///
/// When the connection is lost, whoever needs it next dials again; producers and consumers do so by themselves.
#[derive(Debug, Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: ConnectOptions,
    config: quinn::ClientConfig,
    counters: Arc<Counters>,
    closed: AtomicBool,
    // The lock is held while dialling, so that many who need the connection dial once.
    current: Mutex<Current>,
}

#[derive(Debug, Default)]
struct Current {
    endpoint: Option<(bool, quinn::Endpoint)>,
    link: Option<Arc<Link>>,
}

/// A connection that stood when it was taken.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) quic: quinn::Connection,
    pub(crate) limits: Limits,
    identity: Identity,
}

/// What the broker said in its welcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Who this client is taken for.
    pub principal: String,
    /// The tenant.
    pub tenant: String,
    /// Version of the broker.
    pub broker: String,
    /// Whether it has admin rights.
    pub admin: bool,
}

impl Connection {
    /// Dials once and waits for the broker's welcome.
    ///
    /// # Errors
    /// If the settings cannot be used, the broker cannot be reached in time, or it refuses.
    pub async fn connect(options: ConnectOptions) -> Result<Self, Error> {
        let config = tls::client_config(&options)?;
        let inner = Inner {
            options,
            config,
            counters: Arc::default(),
            closed: AtomicBool::new(false),
            current: Mutex::default(),
        };
        let connection = Self { inner: Arc::new(inner) };
        connection.link().await?;
        Ok(connection)
    }

    /// As [`Self::connect`], dialling again with back-off for at most `patience` while the broker cannot be reached: for
    /// one that is just starting.
    ///
    /// # Errors
    /// As [`Self::connect`]; a refusal is told at once.
    pub async fn connect_within(options: ConnectOptions, patience: Duration) -> Result<Self, Error> {
        let until = tokio::time::Instant::now() + patience;
        let backoff = options.backoff;
        let mut attempt = 0;
        loop {
            match Self::connect(options.clone()).await {
                Err(error) if error.is_loss() && tokio::time::Instant::now() < until => {
                    tokio::time::sleep(backoff.wait(attempt)).await;
                    attempt = attempt.saturating_add(1);
                }
                done => return done,
            }
        }
    }

    /// A producer over this connection.
    ///
    /// # Errors
    /// If it is to be idempotent and no id can be had.
    pub async fn producer(&self, config: ProducerConfig) -> Result<Producer, Error> {
        Producer::open(self.clone(), config).await
    }

    /// A consumer over this connection. It opens its stream with the first read.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn consumer(&self, options: ConsumerOptions) -> Result<Consumer, Error> {
        self.check_open()?;
        Ok(Consumer::new(self.clone(), options))
    }

    /// Questions about topics and plugins, and their changes.
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// What the broker said at the last dial.
    ///
    /// # Errors
    /// If the connection is lost and cannot be dialled again.
    pub async fn identity(&self) -> Result<Identity, Error> {
        Ok(self.link().await?.identity.clone())
    }

    /// The limits the broker told at the last dial.
    ///
    /// # Errors
    /// As [`Self::identity`].
    pub async fn limits(&self) -> Result<Limits, Error> {
        Ok(self.link().await?.limits)
    }

    /// Counts since the connection was made.
    pub fn stats(&self) -> Stats {
        self.inner.counters.read()
    }

    /// How it was made.
    pub fn options(&self) -> &ConnectOptions {
        &self.inner.options
    }

    /// Closes it for all clones, and waits until the broker knows, or its patience would be over.
    pub async fn close(&self) {
        self.inner.closed.store(true, Ordering::Release);
        let mut current = self.inner.current.lock().await;
        if let Some(link) = current.link.take() {
            link.quic.close(quinn::VarInt::from_u32(0), b"closed");
        }
        if let Some((_, endpoint)) = current.endpoint.take() {
            // Ends by itself after three probe timeouts; the bound is for a network that is gone.
            timeout(Duration::from_secs(3), endpoint.wait_idle()).await.ok();
        }
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.inner.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// The link that stands, or a new one: one dial. Cancel-safe.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, Error> {
        self.check_open()?;
        let mut current = self.inner.current.lock().await;
        self.check_open()?;
        if let Some(link) = &current.link
            && link.quic.close_reason().is_none()
        {
            return Ok(Arc::clone(link));
        }
        current.link = None;
        let dialled = timeout(self.inner.options.timeouts.connect, self.dial(&mut current)).await;
        let after = self.inner.options.timeouts.connect;
        let dialled = dialled.unwrap_or(Err(Error::Timeout { what: "the dial", after }));
        let link = dialled.inspect_err(|error| {
            Counters::add(&self.inner.counters.dials_failed);
            debug!(address = %self.inner.options.address, %error, "dial failed");
        })?;
        Counters::add(&self.inner.counters.connects);
        self.watch(&link);
        current.link = Some(Arc::clone(&link));
        Ok(link)
    }

    async fn dial(&self, current: &mut Current) -> Result<Arc<Link>, Error> {
        let options = &self.inner.options;
        let address = resolve(&options.address).await?;
        let endpoint = endpoint_for(current, address)?;
        let probe = probe(address).await;
        let connecting = endpoint
            .connect_with(self.inner.config.clone(), address, options.tls_name())
            .map_err(|cause| Error::Connect { address: options.address.to_string(), cause })?;
        let quic = tokio::select! {
            connected = connecting => connected?,
            () = refused(probe) => return Err(Error::Refused { address: options.address.to_string() }),
        };
        match handshake(&quic, options).await {
            Ok((identity, limits)) => Ok(Arc::new(Link { quic, limits, identity })),
            Err(error) => {
                // The broker may have said why in its close, where it had no time to say it on the stream.
                let told = quic.close_reason().map(Error::from).filter(|told| told.failure().is_some());
                quic.close(quinn::VarInt::from_u32(0), b"no welcome");
                Err(told.unwrap_or(error))
            }
        }
    }

    /// Counts the end of a link, unless this side ends it.
    fn watch(&self, link: &Link) {
        let (quic, counters) = (link.quic.clone(), Arc::clone(&self.inner.counters));
        let address = self.inner.options.address.clone();
        tokio::spawn(async move {
            let reason = quic.closed().await;
            if reason != quinn::ConnectionError::LocallyClosed {
                Counters::add(&counters.disconnects);
                info!(%address, %reason, "connection lost");
            }
        });
    }

    /// One request on a stream of its own. Sent once: whether to repeat one that got no answer is for the caller to say.
    pub(crate) async fn request(&self, body: ClientBody, patience: Duration) -> Result<ServerBody, Error> {
        let link = self.link().await?;
        timeout(patience, request_on(&link.quic, body))
            .await
            .unwrap_or(Err(Error::Timeout { what: "a request", after: patience }))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(link) = self.current.get_mut().link.take() {
            link.quic.close(quinn::VarInt::from_u32(0), b"dropped");
        }
    }
}

async fn resolve(address: &Address) -> Result<SocketAddr, Error> {
    let unknown = |cause| Error::Address { address: address.to_string(), cause: Arc::new(cause) };
    match address {
        Address::Socket(address) => Ok(*address),
        Address::Name(name) => tokio::net::lookup_host(name.as_str())
            .await
            .map_err(unknown)?
            .next()
            .ok_or_else(|| unknown(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"))),
    }
}

/// Asks whether anybody listens at an address of this machine: the system says so if nobody does. QUIC itself may not believe
/// such a word, since anybody could have sent it; on loopback it can be trusted, and spares who dials the whole timeout.
///
/// Sent before the dial: whoever passes datagrams on and knows one client only then knows the right one.
async fn probe(address: SocketAddr) -> Option<UdpSocket> {
    if !address.ip().is_loopback() {
        return None;
    }
    let socket = UdpSocket::bind(SocketAddr::new(address.ip(), 0)).await.ok()?;
    socket.connect(address).await.ok()?;
    // No packet of any version of QUIC: a broker drops it unseen.
    socket.send(&[0]).await.ok()?;
    Some(socket)
}

/// Resolves when a probe was refused; else never.
async fn refused(probe: Option<UdpSocket>) {
    if let Some(probe) = probe
        && let Err(error) = probe.recv(&mut [0]).await
        && error.kind() == std::io::ErrorKind::ConnectionRefused
    {
        return;
    }
    std::future::pending().await
}

/// The endpoint of the right family, made at the first dial and kept for the next.
fn endpoint_for(current: &mut Current, remote: SocketAddr) -> Result<quinn::Endpoint, Error> {
    if let Some((is_ipv6, endpoint)) = &current.endpoint
        && *is_ipv6 == remote.is_ipv6()
    {
        return Ok(endpoint.clone());
    }
    let local: SocketAddr =
        if remote.is_ipv6() { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() };
    let endpoint = quinn::Endpoint::client(local).map_err(|error| Error::Socket(Arc::new(error)))?;
    current.endpoint = Some((remote.is_ipv6(), endpoint.clone()));
    Ok(endpoint)
}

async fn handshake(quic: &quinn::Connection, options: &ConnectOptions) -> Result<(Identity, Limits), Error> {
    let hello = Hello {
        version: wire::VERSION,
        tenant: options.tenant.clone(),
        token: options.token.clone(),
        admin_token: options.admin_token.clone(),
        client: options.client_name.clone(),
    };
    let ServerBody::Welcome(welcome) = request_on(quic, ClientBody::Hello(hello)).await? else {
        return Err(Error::Protocol { what: "no welcome" });
    };
    if welcome.version != wire::VERSION {
        return Err(Error::Protocol { what: "a welcome of another version" });
    }
    let limits = welcome.limits();
    let identity =
        Identity { principal: welcome.principal, tenant: welcome.tenant, broker: welcome.broker, admin: welcome.admin };
    Ok((identity, limits))
}

async fn request_on(quic: &quinn::Connection, body: ClientBody) -> Result<ServerBody, Error> {
    let (mut send, receive) = quic.open_bi().await?;
    let mut reader = FrameReader::new(receive, NO_BATCH);
    let sent = send.write_all(&frames::encode(body)).await;
    if sent.is_ok() {
        // It fails only on a stream the broker has stopped already; then the answer says why.
        send.finish().ok();
    }
    // An answer may be there although the request was not taken whole: it says why.
    match reader.next_message().await {
        Ok(Some(ServerBody::Failure(failure))) => Err(Error::broker(failure)),
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(sent.map_or_else(Error::from, |()| Error::StreamEnded { what: "without an answer" })),
        Err(error) => Err(error),
    }
}
