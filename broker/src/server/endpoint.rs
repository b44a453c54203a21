//! The QUIC endpoint: TLS 1.3, client certificates if shown, and every bound of the transport.

use std::{net::UdpSocket, sync::Arc, time::Duration};

use quinn::{
    ConnectionId, ConnectionIdGenerator, EndpointConfig, IdleTimeout, TokioRuntime, VarInt,
    crypto::rustls::QuicServerConfig,
    rustls::{
        self, DigitallySignedStruct, DistinguishedName, SignatureScheme,
        client::danger::HandshakeSignatureValid,
        crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
        pki_types::{CertificateDer, PrivateKeyDer, UnixTime},
        server::danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use tidegate_protocol::wire::ALPN;

use super::{Bounds, Certificate, Config, ResetKey, StartError};
use crate::clock::SharedRandom;

/// Bytes of one stream that may wait unread: what a client can send ahead while its batch is in the chain.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Bytes of all streams of a connection that may wait unread.
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// Bytes sent to a client and not acknowledged yet.
const SEND_WINDOW_BYTES: u64 = 8 << 20;
/// Handshakes that wait to be looked at; behind them packets are dropped.
const INCOMING_MAX: usize = 1_024;

/// Between two resets. Clients of an earlier run ask at about the same time; an answer is smaller than its question.
const RESET_INTERVAL: Duration = Duration::from_millis(1);
/// Bytes of the broker's connection ids.
const ID_BYTES: usize = 8;

/// Opens the endpoint.
pub(super) fn open(config: &Config) -> Result<quinn::Endpoint, StartError> {
    let addr = config.listen;
    let crypto = tls(&config.certificate).map_err(|error| StartError::Tls(error.to_string()))?;
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    server.transport_config(Arc::new(transport(&config.bounds)));
    server.max_incoming(INCOMING_MAX);
    let endpoint = endpoint(&config.reset_key, &config.random);
    UdpSocket::bind(addr)
        .and_then(|socket| quinn::Endpoint::new(endpoint, Some(server), socket, Arc::new(TokioRuntime)))
        .map_err(|source| StartError::Bind { what: "QUIC", addr, source })
}

/// What belongs to no connection: how those of an earlier run are told that they are gone.
fn endpoint(key: &ResetKey, random: &SharedRandom) -> EndpointConfig {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key.0);
    let mut config = EndpointConfig::new(Arc::new(key));
    let random = Arc::clone(random);
    config.cid_generator(move || Box::new(Ids(Arc::clone(&random))));
    config.min_reset_interval(RESET_INTERVAL);
    config
}

/// Random connection ids. Those that `quinn` makes by default hold a hash under a key of the process: the next process would
/// not know them for its own, and not answer. A reset token belongs to an id, so no id may come twice.
struct Ids(SharedRandom);

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; ID_BYTES];
        self.0.fill(&mut bytes);
        ConnectionId::new(&bytes)
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

fn transport(bounds: &Bounds) -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    // The longest idle time that QUIC can tell is far beyond any sane setting.
    let idle = IdleTimeout::try_from(bounds.idle_time_max).ok();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(bounds.streams_max))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(idle)
        .keep_alive_interval(Some(bounds.idle_time_max / 3))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES);
    transport
}

fn tls(certificate: &Certificate) -> Result<QuicServerConfig, Box<dyn std::error::Error>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = certificate.chain.iter().map(|der| CertificateDer::from(der.clone())).collect();
    let key = PrivateKeyDer::try_from(certificate.key.clone())?;
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(AnyCertificate::new(&provider)))
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(QuicServerConfig::try_from(config)?)
}

/// Takes any client certificate whose key the client proves to hold: who that is says `auth`, by fingerprint. Issuer, names
/// and dates mean nothing here.
#[derive(Debug)]
struct AnyCertificate {
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyCertificate {
    fn new(provider: &CryptoProvider) -> Self {
        Self { algorithms: provider.signature_verification_algorithms }
    }
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
