//! A broker for these tests: real QUIC on loopback, the protocol crate's formats, and faults on demand. It keeps batches
//! in memory, knows repeated sequences, and records what it saw.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use quinn::crypto::rustls::QuicServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_client::{BatchBody, BatchBuilder, ConnectOptions, Record, Trust};
use tidegate_protocol::{
    cursor::Cursor,
    error::Code,
    limits::Limits,
    wire::{
        self, AckRun, ClientBody, ClientMessage, FetchHead, FetchProgress, Frame, Hello, OpenFetch, ProduceAck,
        ProduceHead, ProducerIdGiven, ServerBody, ServerMessage, Welcome,
    },
};
use tokio::sync::Notify;

/// What a subscription does next.
pub(crate) enum Step {
    /// Sends bytes as they are.
    Bytes(Bytes),
    /// Sends so many bytes of zeros' batch frames until the stream takes no more for a while; tells how many went.
    Flood(Bytes),
    /// Closes the whole connection once the test says so.
    Cut,
    /// Keeps the stream open until the reader leaves.
    Hold,
}

#[derive(Default)]
pub(crate) struct State {
    /// Batches by (producer, epoch, sequence), and by arrival.
    pub(crate) stored: BTreeMap<(u64, u32, u64), ProduceAck>,
    pub(crate) log: Vec<Vec<u8>>,
    /// Sequences in the order they came, repeated ones too.
    pub(crate) seen: Vec<u64>,
    /// How to answer a sequence instead of storing it, once each.
    pub(crate) refusals: HashMap<u64, VecDeque<wire::Failure>>,
    /// How to answer a sequence that is stored already, instead of with its result.
    pub(crate) refuse_known: HashMap<u64, wire::Failure>,
    /// No batch with records is taken while set.
    pub(crate) refuse_records: bool,
    /// Sequences after whose storing the connection is cut before the answer.
    pub(crate) cut_at: Vec<u64>,
    /// No produced batch is answered while set.
    pub(crate) withhold: bool,
    /// Frames of a produce stream read while answers are withheld.
    pub(crate) unanswered: usize,
    /// What the next subscriptions do, one list each.
    pub(crate) scripts: VecDeque<Vec<Step>>,
    pub(crate) opened: Vec<OpenFetch>,
    pub(crate) hellos: Vec<Hello>,
    pub(crate) flooded: Vec<usize>,
    /// Answers to requests, in order; then the defaults.
    pub(crate) answers: VecDeque<ServerBody>,
    pub(crate) requests: Vec<ClientBody>,
    pub(crate) refuse_hello: Option<wire::Failure>,
    pub(crate) client_certs: usize,
}

pub(crate) struct Broker {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) released: Arc<Notify>,
    pub(crate) flooded: Arc<Notify>,
    pub(crate) seen: Arc<Notify>,
    pub(crate) cut: Arc<Notify>,
    pub(crate) address: SocketAddr,
    pub(crate) certificate: CertificateDer<'static>,
    endpoint: quinn::Endpoint,
}

impl Broker {
    pub(crate) fn start() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(Arc::new(any_client::AnyClient))
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        tls.alpn_protocols = vec![wire::ALPN.to_vec()];
        let config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        let endpoint = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
        let broker = Self {
            state: Arc::default(),
            released: Arc::default(),
            flooded: Arc::default(),
            seen: Arc::default(),
            cut: Arc::default(),
            address: endpoint.local_addr().unwrap(),
            certificate,
            endpoint: endpoint.clone(),
        };
        let shared = broker.shared();
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let shared = shared.clone();
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        shared.connection(connection).await;
                    }
                });
            }
        });
        broker
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new(self.address, Trust::Pinned(self.certificate.clone()));
        options.backoff.first = std::time::Duration::from_millis(5);
        options
    }

    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    /// Waits until what was seen satisfies `wanted`.
    pub(crate) async fn until(&self, wanted: impl Fn(&State) -> bool) {
        loop {
            let seen = self.seen.notified();
            if self.with(|state| wanted(state)) {
                return;
            }
            seen.await;
        }
    }

    pub(crate) fn release(&self) {
        self.with(|state| state.withhold = false);
        self.released.notify_waiters();
    }

    pub(crate) fn stop(&self) {
        self.endpoint.close(603_u32.into(), b"the broker is draining");
    }

    fn shared(&self) -> Shared {
        Shared {
            state: Arc::clone(&self.state),
            released: Arc::clone(&self.released),
            flooded: Arc::clone(&self.flooded),
            seen: Arc::clone(&self.seen),
            cut: Arc::clone(&self.cut),
        }
    }
}

#[derive(Clone)]
struct Shared {
    state: Arc<Mutex<State>>,
    released: Arc<Notify>,
    flooded: Arc<Notify>,
    seen: Arc<Notify>,
    cut: Arc<Notify>,
}

impl Shared {
    async fn connection(self, connection: quinn::Connection) {
        let Ok((mut send, mut receive)) = connection.accept_bi().await else { return };
        let Some(ClientBody::Hello(hello)) = message(&mut receive).await else { return };
        let refused = {
            let mut state = self.state.lock().unwrap();
            state.client_certs += usize::from(connection.peer_identity().is_some());
            state.hellos.push(hello.clone());
            state.refuse_hello.clone()
        };
        if let Some(failure) = refused {
            answer(&mut send, ServerBody::Failure(failure)).await;
            send.stopped().await.ok();
            return;
        }
        let welcome = Welcome {
            principal: "tester".to_owned(),
            tenant: if hello.tenant.is_empty() { "default".to_owned() } else { hello.tenant },
            admin: !hello.admin_token.is_empty(),
            ..Welcome::new("test", &Limits::default())
        };
        answer(&mut send, ServerBody::Welcome(welcome)).await;
        while let Ok((send, receive)) = connection.accept_bi().await {
            tokio::spawn(self.clone().stream(connection.clone(), send, receive));
        }
    }

    async fn stream(self, connection: quinn::Connection, mut send: quinn::SendStream, mut receive: quinn::RecvStream) {
        match message(&mut receive).await {
            Some(ClientBody::OpenProduce(_)) => self.produce(connection, send, receive).await,
            Some(ClientBody::OpenFetch(open)) => self.fetch(connection, open, send).await,
            Some(request) => {
                let (scripted, id) = {
                    let mut state = self.state.lock().unwrap();
                    state.requests.push(request.clone());
                    let asked = |request: &&ClientBody| matches!(request, ClientBody::ProducerId(_));
                    let id = 76 + state.requests.iter().filter(asked).count() as u64;
                    (state.answers.pop_front(), id)
                };
                let given = ServerBody::ProducerId(ProducerIdGiven { id });
                let nothing = ServerBody::Failure(wire::Failure::new(Code::Internal, "no script"));
                let default = if matches!(request, ClientBody::ProducerId(_)) { given } else { nothing };
                answer(&mut send, scripted.unwrap_or(default)).await;
                send.stopped().await.ok();
            }
            None => {}
        }
    }

    async fn produce(self, connection: quinn::Connection, mut send: quinn::SendStream, mut receive: quinn::RecvStream) {
        let (answers, mut waiting) = tokio::sync::mpsc::channel::<ProduceAck>(4_096);
        let released = self.clone();
        tokio::spawn(async move {
            while let Some(ack) = waiting.recv().await {
                loop {
                    let go = released.released.notified();
                    if !released.state.lock().unwrap().withhold {
                        break;
                    }
                    go.await;
                }
                if send.write_all(&encode(ServerBody::ProduceAck(ack))).await.is_err() {
                    return;
                }
            }
        });
        while let Some(Frame::Batch { head, body }) = frame(&mut receive).await {
            let head: ProduceHead = wire::decode(head).unwrap();
            let body = BatchBody::parse(body, &Limits::default()).unwrap();
            let (ack, cut) = self.state.lock().unwrap().take(&head, &body);
            self.seen.notify_waiters();
            if cut {
                connection.close(0_u32.into(), b"cut");
                return;
            }
            answers.send(ack).await.ok();
        }
    }

    async fn fetch(self, connection: quinn::Connection, open: OpenFetch, mut send: quinn::SendStream) {
        let script = {
            let mut state = self.state.lock().unwrap();
            state.opened.push(open);
            state.scripts.pop_front().unwrap_or_default()
        };
        self.seen.notify_waiters();
        for step in script {
            match step {
                Step::Bytes(bytes) => {
                    if send.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Step::Flood(frame) => self.flood(&mut send, &frame).await,
                Step::Cut => {
                    self.cut.notified().await;
                    connection.close(0_u32.into(), b"cut");
                    return;
                }
                Step::Hold => {
                    send.stopped().await.ok();
                    return;
                }
            }
        }
        send.finish().ok();
        send.stopped().await.ok();
    }

    /// Writes the frame again and again until nothing moves any more.
    async fn flood(&self, send: &mut quinn::SendStream, frame: &Bytes) {
        let mut written = 0;
        let mut rest = frame.clone();
        let quiet = std::time::Duration::from_millis(500);
        while let Ok(Ok(bytes)) = tokio::time::timeout(quiet, send.write(&rest)).await {
            written += bytes;
            rest = if bytes == rest.len() { frame.clone() } else { rest.slice(bytes..) };
        }
        self.state.lock().unwrap().flooded.push(written);
        self.flooded.notify_one();
        send.write_all(&rest).await.ok();
    }
}

impl State {
    /// Stores a batch, or knows it, or refuses it; and whether to cut the connection now.
    fn take(&mut self, head: &ProduceHead, body: &BatchBody) -> (ProduceAck, bool) {
        self.seen.push(head.sequence);
        self.unanswered += usize::from(self.withhold);
        if let Some(failure) = self.refusals.get_mut(&head.sequence).and_then(VecDeque::pop_front) {
            return (ProduceAck { failure: Some(failure), ..ProduceAck::default() }, false);
        }
        let stamp = (head.producer_id, head.producer_epoch, head.sequence);
        let producer = (head.producer_id, head.producer_epoch, 0)..=(head.producer_id, head.producer_epoch, u64::MAX);
        let next = self.stored.range(producer).next_back().map_or(0, |(last, _)| last.2 + 1);
        if head.producer_id != 0 && head.sequence > next + 1_024 {
            let failure = wire::Failure::new(Code::SequenceGap, format!("sequence {next} is expected"));
            return (ProduceAck { failure: Some(failure), ..ProduceAck::default() }, false);
        }
        if self.refuse_records && !body.is_empty() {
            let failure = wire::Failure::new(Code::PluginFault, "trap").by_plugin("schema");
            return (ProduceAck { failure: Some(failure), ..ProduceAck::default() }, false);
        }
        if let Some(ack) = self.stored.get(&stamp).filter(|_| head.producer_id != 0) {
            if let Some(failure) = self.refuse_known.remove(&head.sequence) {
                return (ProduceAck { failure: Some(failure), ..ProduceAck::default() }, false);
            }
            return (ProduceAck { duplicate: true, ..ack.clone() }, false);
        }
        let topics: Vec<String> = body.topics().map(str::to_owned).collect();
        let runs = body.records().map(|(topic, view)| {
            self.log.push(view.value.unwrap_or_default().to_vec());
            AckRun::appended(topic.into(), self.log.len() as u64 - 1, vec![u64::from(view.key.is_some())])
        });
        let ack = ProduceAck { runs: runs.collect(), topics, generation: 1, ..ProduceAck::default() };
        self.stored.insert(stamp, ack.clone());
        let cut = self.cut_at.iter().position(|at| *at == head.sequence).map(|at| self.cut_at.remove(at)).is_some();
        (ack, cut)
    }
}

async fn frame(receive: &mut quinn::RecvStream) -> Option<Frame> {
    let mut prefix = [0; wire::PREFIX_BYTES];
    receive.read_exact(&mut prefix).await.ok()?;
    let (kind, bytes) = wire::parse_prefix(prefix, 8 << 20, 16 << 20).unwrap();
    let mut payload = vec![0; bytes];
    receive.read_exact(&mut payload).await.ok()?;
    Some(wire::parse_payload(kind, payload.into()).unwrap())
}

async fn message(receive: &mut quinn::RecvStream) -> Option<ClientBody> {
    match frame(receive).await? {
        Frame::Control(bytes) => wire::decode::<ClientMessage>(bytes).unwrap().body,
        Frame::Batch { .. } => None,
    }
}

async fn answer(send: &mut quinn::SendStream, body: ServerBody) {
    send.write_all(&encode(body)).await.ok();
    send.finish().ok();
}

pub(crate) fn encode(body: ServerBody) -> Bytes {
    wire::encode_control(&ServerMessage::from(body))
}

pub(crate) fn record(value: impl Into<Bytes>) -> Record {
    Record { key: Some("k".into()), value: Some(value.into()), ..Record::default() }
}

pub(crate) fn cursor(next_lsn: u64) -> String {
    Cursor::Shard { shard: 0, next_lsn }.to_string()
}

pub(crate) fn progress(next_lsn: u64, at_end: bool) -> Step {
    Step::Bytes(encode(ServerBody::FetchProgress(FetchProgress { cursor: cursor(next_lsn), at_end, gaps: Vec::new() })))
}

/// A batch frame with a record per value, at LSNs and offsets from `first` on.
pub(crate) fn batch(first: u64, values: &[&[u8]]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for value in values {
        builder.push_record("a/b", &record(value.to_vec())).unwrap();
    }
    let body = builder.finish();
    let end = first + values.len() as u64;
    let head = FetchHead {
        offsets: (first..end).collect(),
        key_versions: (first + 1..=end).collect(),
        broker_time_ms: 5,
        generation: 2,
        cursor: cursor(end),
    };
    let mut frame = wire::encode_batch_head(&head, body.len()).to_vec();
    frame.extend_from_slice(&body);
    frame.into()
}

/// Takes any client certificate, and none.
mod any_client {
    use rustls::{
        DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
        client::danger::HandshakeSignatureValid,
        crypto::{ring, verify_tls13_signature},
        server::danger::{ClientCertVerified, ClientCertVerifier},
    };
    use rustls_pki_types::{CertificateDer, UnixTime};

    #[derive(Debug)]
    pub(super) struct AnyClient;

    impl ClientCertVerifier for AnyClient {
        fn client_auth_mandatory(&self) -> bool {
            false
        }
        fn root_hint_subjects(&self) -> &[DistinguishedName] {
            &[]
        }
        fn verify_client_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: UnixTime,
        ) -> Result<ClientCertVerified, Error> {
            Ok(ClientCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("TLS 1.3 only".to_owned()))
        }
        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = ring::default_provider().signature_verification_algorithms;
            verify_tls13_signature(message, cert, dss, &algorithms)
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            ring::default_provider().signature_verification_algorithms.supported_schemes()
        }
    }
}
