//! A client of its own: bare quinn and the wire formats, so that a test can say anything, wrong things too.
//!
//! Trusts whatever certificate the broker shows; keeps no state and retries nothing.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, crypto::rustls::QuicClientConfig};
use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tidegate_protocol::{
    batch::{BatchBody, BatchBuilder},
    error::Code,
    limits::Limits,
    record::{self, RecordView},
    wire::{
        self, ClientBody, ClientMessage, Failure, Frame, OpenFetch, ProduceAck, ProduceHead, ServerBody, ServerMessage,
    },
};

use crate::wait::within;

/// Longest wait for one answer.
pub const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Who a connection claims to be.
#[derive(Debug, Clone, Default)]
pub struct Login {
    /// Empty = `default`.
    pub tenant: String,
    /// A token, or empty.
    pub token: String,
    /// The admin credential, or empty.
    pub admin_token: String,
    /// A client certificate and its key.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
}

/// A connection that was welcomed.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    /// The connection.
    pub connection: Connection,
    /// What the broker said.
    pub welcome: wire::Welcome,
    control: (SendStream, RecvStream),
}

/// What came instead of an answer.
#[derive(Debug, Clone)]
pub enum Refused {
    /// A typed error.
    Failure(Failure),
    /// The stream or the connection ended.
    Closed(String),
}

impl Refused {
    /// The code of a typed error.
    ///
    /// # Panics
    /// If it is none.
    pub fn code(&self) -> Code {
        match self {
            Self::Failure(failure) => code(failure),
            Self::Closed(why) => panic!("no typed error but: {why}"),
        }
    }
}

/// The code of a failure.
///
/// # Panics
/// If the number is not in the table.
pub fn code(failure: &Failure) -> Code {
    let number = u16::try_from(failure.code).expect("a code has 16 bits");
    Code::from_number(number).unwrap_or_else(|| panic!("code {number} is not in the table: {failure:?}"))
}

/// A record to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Send {
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its value.
    pub value: Option<Bytes>,
    /// Its headers.
    pub headers: Vec<(String, Option<Bytes>)>,
}

impl Send {
    /// A record without key.
    pub fn new(topic: &str, value: impl Into<Bytes>) -> Self {
        Self { topic: topic.to_owned(), value: Some(value.into()), ..Self::default() }
    }
    /// A record with a key.
    pub fn keyed(topic: &str, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { key: Some(key.into()), ..Self::new(topic, value) }
    }
    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.to_owned(), Some(value.into())));
        self
    }
}

/// A record that was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Its topic.
    pub topic: String,
    /// Its offset there.
    pub offset: u64,
    /// Version of its key, 0 for a null key.
    pub version: u64,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its value.
    pub value: Option<Bytes>,
    /// Its headers.
    pub headers: Vec<(String, Option<Bytes>)>,
    /// Generation it was produced under.
    pub generation: u64,
}

impl Fetched {
    /// The value as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(self.value.as_deref().unwrap_or_default()).unwrap()
    }
    /// The first header of a name, as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(found, _)| found == name)?;
        Some(std::str::from_utf8(value.as_deref().unwrap_or_default()).unwrap())
    }
}

/// A batch body of these records.
pub fn body(records: &[Send]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for send in records {
        let mut headers = Vec::new();
        let pairs = send.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
        record::encode_headers(pairs, &mut headers).expect("tests that want broken headers write the bytes themselves");
        let view = RecordView {
            key: send.key.as_deref(),
            value: send.value.as_deref(),
            headers: &headers,
            timestamp_ms: 1_700_000_000_000,
        };
        builder.push(&send.topic, view);
    }
    builder.finish()
}

/// How long a handshake may take.
const DIAL_MAX: Duration = Duration::from_secs(10);

/// Opens a QUIC connection and says nothing.
///
/// # Errors
/// If the handshake fails.
pub async fn dial(addr: SocketAddr, login: &Login) -> Result<(Endpoint, Connection), Refused> {
    let mut endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    endpoint.set_default_client_config(client_config(login, wire::ALPN));
    let connecting = endpoint.connect(addr, "localhost").unwrap();
    // A broker that ends just now answers nobody any more: that is an end like others.
    let answer = tokio::time::timeout(DIAL_MAX, connecting).await;
    let connection = answer.unwrap_or(Err(quinn::ConnectionError::TimedOut)).map_err(closed)?;
    Ok((endpoint, connection))
}

/// A client configuration that believes any certificate.
pub fn client_config(login: &Login, alpn: &[u8]) -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Believe(provider.clone()));
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut tls = match &login.certificate {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::try_from(key.clone()).unwrap();
            builder.with_client_auth_cert(vec![CertificateDer::from(certificate.clone())], key).unwrap()
        }
    };
    tls.alpn_protocols = vec![alpn.to_vec()];
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

impl Client {
    /// Connects and says hello.
    ///
    /// # Errors
    /// What the broker answered instead of a welcome.
    pub async fn connect(addr: SocketAddr, login: &Login) -> Result<Self, Refused> {
        let (endpoint, connection) = dial(addr, login).await?;
        let (mut send, mut receive) = connection.open_bi().await.map_err(closed)?;
        let hello = wire::Hello {
            version: wire::VERSION,
            tenant: login.tenant.clone(),
            token: login.token.clone(),
            admin_token: login.admin_token.clone(),
            client: "tests".to_owned(),
        };
        say(&mut send, ClientBody::Hello(hello)).await?;
        match hear(&mut receive).await? {
            Heard::Message(ServerBody::Welcome(welcome)) => {
                Ok(Self { endpoint, connection, welcome, control: (send, receive) })
            }
            other => Err(Refused::Closed(format!("{other:?} instead of a welcome"))),
        }
    }

    /// Connects as the default tenant without credentials.
    ///
    /// # Panics
    /// If the broker refuses.
    pub async fn new(addr: SocketAddr) -> Self {
        Self::connect(addr, &Login::default()).await.unwrap()
    }

    /// Connects with the admin credential found in a data directory.
    ///
    /// # Panics
    /// If the broker refuses.
    pub async fn admin(addr: SocketAddr, data: &std::path::Path) -> Self {
        let login = Login { admin_token: admin_token(data), ..Login::default() };
        Self::connect(addr, &login).await.unwrap()
    }

    /// A bare stream.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn open(&self) -> Result<(SendStream, RecvStream), Refused> {
        within(ANSWER_MAX, "a stream", self.connection.open_bi()).await.map_err(closed)
    }

    /// One request, one answer.
    ///
    /// # Errors
    /// A typed error, or the end of the stream.
    pub async fn ask(&self, body: ClientBody) -> Result<ServerBody, Refused> {
        let (mut send, mut receive) = self.open().await?;
        say(&mut send, body).await?;
        drop(send.finish());
        match hear(&mut receive).await? {
            Heard::Message(body) => Ok(body),
            Heard::Batch(..) => Err(Refused::Closed("a batch instead of an answer".to_owned())),
        }
    }

    /// A produce stream.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn producer(&self) -> Result<Producing, Refused> {
        let (mut send, receive) = self.open().await?;
        say(&mut send, ClientBody::OpenProduce(wire::OpenProduce {})).await?;
        Ok(Producing { send, receive })
    }

    /// One batch on a stream of its own.
    ///
    /// # Errors
    /// A typed error of the stream. A failure of the batch is in the ack.
    pub async fn produce(&self, head: ProduceHead, records: &[Send]) -> Result<ProduceAck, Refused> {
        let mut producing = self.producer().await?;
        // Whoever refuses a frame need not read it whole: the answer says more than the failed write.
        let pushed = producing.push(&head, &body(records)).await;
        match producing.ack().await {
            Err(Refused::Closed(_)) if pushed.is_err() => Err(pushed.unwrap_err()),
            answer => answer,
        }
    }

    /// One batch that must be admitted.
    ///
    /// # Panics
    /// If it is not.
    pub async fn put(&self, records: &[Send]) -> ProduceAck {
        let ack = self.produce(ProduceHead::default(), records).await.unwrap();
        assert!(ack.failure.is_none(), "{ack:?}");
        ack
    }

    /// One batch that must be refused.
    ///
    /// # Panics
    /// If it is admitted.
    pub async fn refused(&self, head: ProduceHead, records: &[Send]) -> Failure {
        match self.produce(head, records).await {
            Ok(ack) => ack.failure.clone().unwrap_or_else(|| panic!("must be refused: {ack:?}")),
            Err(Refused::Failure(failure)) => failure,
            Err(Refused::Closed(why)) => panic!("no typed error but: {why}"),
        }
    }

    /// A read.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn fetch(&self, open: OpenFetch) -> Result<Fetching, Refused> {
        let (mut send, receive) = self.open().await?;
        say(&mut send, ClientBody::OpenFetch(open)).await?;
        Ok(Fetching { _send: send, receive, cursor: String::new(), gaps: Vec::new() })
    }

    /// Everything of a pattern from the start to the durable end. A topic that does not exist holds nothing.
    ///
    /// # Panics
    /// If the read fails.
    pub async fn all(&self, pattern: &str) -> Vec<Fetched> {
        let open =
            OpenFetch { pattern: pattern.to_owned(), start: Some(wire::Start::Earliest(true)), ..OpenFetch::default() };
        match self.fetch(open).await.unwrap().rest().await {
            Ok(records) => records,
            Err(Refused::Failure(failure)) if code(&failure) == Code::TopicUnknown => Vec::new(),
            Err(refused) => panic!("read of {pattern}: {refused:?}"),
        }
    }

    /// A producer id from the broker.
    ///
    /// # Panics
    /// If it gives none.
    pub async fn producer_id(&self) -> u64 {
        match self.ask(ClientBody::ProducerId(wire::ProducerId {})).await.unwrap() {
            ServerBody::ProducerId(given) => given.id,
            other => panic!("{other:?}"),
        }
    }

    /// Closes at once.
    pub fn close(self) {
        drop(self.control);
        self.connection.close(0_u32.into(), b"");
        drop(self.endpoint);
    }
}

/// The admin credential of a data directory.
///
/// # Panics
/// If the broker has not made one yet.
pub fn admin_token(data: &std::path::Path) -> String {
    std::fs::read_to_string(data.join("dev/admin-token")).unwrap().trim().to_owned()
}

/// A produce stream.
#[derive(Debug)]
pub struct Producing {
    /// To the broker.
    pub send: SendStream,
    /// From the broker.
    pub receive: RecvStream,
}

impl Producing {
    /// Sends one batch.
    ///
    /// # Errors
    /// If the stream ended.
    pub async fn push(&mut self, head: &ProduceHead, body: &Bytes) -> Result<(), Refused> {
        self.send.write_all(&wire::encode_batch_head(head, body.len())).await.map_err(closed)?;
        self.send.write_all(body).await.map_err(closed)
    }

    /// The next answer.
    ///
    /// # Errors
    /// A typed error that ends the stream, or its end.
    pub async fn ack(&mut self) -> Result<ProduceAck, Refused> {
        ack(&mut self.receive).await
    }
}

/// The next answer on a produce stream.
///
/// # Errors
/// A typed error that ends the stream, or its end.
pub async fn ack(receive: &mut RecvStream) -> Result<ProduceAck, Refused> {
    match hear(receive).await? {
        Heard::Message(ServerBody::ProduceAck(ack)) => Ok(ack),
        other => Err(Refused::Closed(format!("{other:?} instead of an ack"))),
    }
}

/// A read.
#[derive(Debug)]
pub struct Fetching {
    _send: SendStream,
    /// From the broker.
    pub receive: RecvStream,
    /// The newest cursor.
    pub cursor: String,
    /// What the broker said is gone, as it said it: topic and first offset kept.
    pub gaps: Vec<(String, u64)>,
}

/// What a read gives.
#[derive(Debug, Clone)]
pub enum Part {
    /// Records of one stored frame.
    Records(Vec<Fetched>),
    /// How far the scan is; whether it reached the end.
    Progress(bool),
}

impl Fetching {
    /// The next message.
    ///
    /// # Errors
    /// A typed error, or the end of the stream.
    pub async fn next(&mut self) -> Result<Part, Refused> {
        match hear(&mut self.receive).await? {
            Heard::Message(ServerBody::FetchProgress(progress)) => {
                self.cursor = progress.cursor;
                self.gaps.extend(progress.gaps.into_iter().map(|gap| (gap.topic, gap.low_offset)));
                Ok(Part::Progress(progress.at_end))
            }
            Heard::Batch(head, bytes) => {
                let head: wire::FetchHead = wire::decode(head).unwrap();
                self.cursor.clone_from(&head.cursor);
                Ok(Part::Records(fetched(&head, bytes)))
            }
            Heard::Message(other) => Err(Refused::Closed(format!("{other:?} on a read"))),
        }
    }

    /// All records up to the durable end.
    ///
    /// # Errors
    /// A typed error, or an early end of the stream.
    pub async fn rest(&mut self) -> Result<Vec<Fetched>, Refused> {
        let mut found = Vec::new();
        loop {
            match self.next().await? {
                Part::Records(records) => found.extend(records),
                Part::Progress(true) => return Ok(found),
                Part::Progress(false) => {}
            }
        }
    }

    /// At least this many records.
    ///
    /// # Errors
    /// A typed error, or an early end of the stream.
    pub async fn take(&mut self, count: usize) -> Result<Vec<Fetched>, Refused> {
        let mut found = Vec::new();
        while found.len() < count {
            if let Part::Records(records) = self.next().await? {
                found.extend(records);
            }
        }
        Ok(found)
    }
}

fn fetched(head: &wire::FetchHead, bytes: Bytes) -> Vec<Fetched> {
    let limits = Limits { batch_bytes_max: u32::MAX, record_bytes_max: u32::MAX, ..Limits::default() };
    let body = BatchBody::parse(bytes, &limits).expect("the broker sends whole bodies");
    let topics: Vec<String> = body.topics().map(str::to_owned).collect();
    assert_eq!(head.offsets.len(), body.len() as usize, "one offset for each record");
    assert_eq!(head.key_versions.len(), body.len() as usize, "one key version for each record");
    let copy = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
    body.records()
        .enumerate()
        .map(|(at, (topic, record))| Fetched {
            topic: topics[usize::from(topic)].clone(),
            offset: head.offsets[at],
            version: head.key_versions[at],
            key: record.key.map(copy),
            value: record.value.map(copy),
            headers: record::headers(record.headers)
                .map(|header| header.map(|(name, value)| (name.to_owned(), value.map(copy))).unwrap())
                .collect(),
            generation: head.generation,
        })
        .collect()
}

/// One frame from the broker.
#[derive(Debug, Clone)]
pub enum Heard {
    /// A message that is no failure.
    Message(ServerBody),
    /// Head and body of a batch.
    Batch(Bytes, Bytes),
}

/// Sends one message.
///
/// # Errors
/// If the stream ended.
pub async fn say(send: &mut SendStream, body: ClientBody) -> Result<(), Refused> {
    let message = ClientMessage { body: Some(body) };
    send.write_all(&wire::encode_control(&message)).await.map_err(closed)
}

/// Receives one frame.
///
/// # Errors
/// A typed error, or the end of the stream.
pub async fn hear(receive: &mut RecvStream) -> Result<Heard, Refused> {
    within(ANSWER_MAX, "an answer", hear_unbounded(receive)).await
}

/// As [`hear`], however long it takes.
///
/// # Errors
/// A typed error, or the end of the stream.
pub async fn hear_unbounded(receive: &mut RecvStream) -> Result<Heard, Refused> {
    let mut prefix = [0; wire::PREFIX_BYTES];
    receive.read_exact(&mut prefix).await.map_err(closed)?;
    let (kind, bytes) = wire::parse_prefix(prefix, 64 << 20, 64 << 20).expect("the broker sends known frames");
    let mut payload = vec![0; bytes];
    receive.read_exact(&mut payload).await.map_err(closed)?;
    match wire::parse_payload(kind, payload.into()).expect("the broker sends whole frames") {
        Frame::Batch { head, body } => Ok(Heard::Batch(head, body)),
        Frame::Control(bytes) => match wire::decode::<ServerMessage>(bytes).unwrap().body {
            Some(ServerBody::Failure(failure)) => Err(Refused::Failure(failure)),
            Some(body) => Ok(Heard::Message(body)),
            None => panic!("an empty message from the broker"),
        },
    }
}

/// Turns an error of quinn into the end of a stream.
pub fn closed(error: impl std::fmt::Display) -> Refused {
    Refused::Closed(error.to_string())
}

/// Believes any certificate; checks signatures, so that the handshake is a real one.
#[derive(Debug)]
struct Believe(Arc<CryptoProvider>);

impl ServerCertVerifier for Believe {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
