//! TLS 1.3 by rustls: the broker's certificate pinned or from authorities, the client's if there is one.

use std::{sync::Arc, time::Duration};

use quinn::crypto::rustls::QuicClientConfig;
use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tidegate_protocol::wire::ALPN;

use crate::{ConnectOptions, Error, Timeouts, Trust};

/// A reader that does not read holds at most so much per subscription, on top of the one batch it is at.
const STREAM_RECEIVE_WINDOW_BYTES: u32 = 4 << 20;
/// What may be sent and not yet acknowledged by the other side's transport.
const SEND_WINDOW_BYTES: u64 = 16 << 20;

/// What quinn needs to dial with these options.
pub(crate) fn client_config(options: &ConnectOptions) -> Result<quinn::ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(tls)?
        .dangerous()
        .with_custom_certificate_verifier(verifier(&options.trust, provider)?);
    let mut config = match options.client_cert.clone() {
        Some(cert) => config.with_client_auth_cert(cert.chain, cert.key).map_err(tls)?,
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    let config = QuicClientConfig::try_from(config)
        .map_err(|_| tls(rustls::Error::General("no cipher suite for QUIC".to_owned())))?;
    let mut config = quinn::ClientConfig::new(Arc::new(config));
    config.transport_config(Arc::new(transport(&options.timeouts)));
    Ok(config)
}

fn transport(timeouts: &Timeouts) -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    let idle = timeouts.idle.max(Duration::from_millis(1));
    let longest = quinn::VarInt::from_u32(u32::MAX);
    let idle = quinn::IdleTimeout::try_from(idle).unwrap_or_else(|_| longest.into());
    transport.max_idle_timeout(Some(idle));
    transport.keep_alive_interval(Some(timeouts.keep_alive));
    transport.stream_receive_window(STREAM_RECEIVE_WINDOW_BYTES.into());
    transport.send_window(SEND_WINDOW_BYTES);
    // The broker opens no streams.
    transport.max_concurrent_bidi_streams(0_u32.into());
    transport.max_concurrent_uni_streams(0_u32.into());
    transport
}

fn verifier(trust: &Trust, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    match trust {
        Trust::Pinned(certificate) => Ok(Arc::new(Pinned { certificate: certificate.clone(), provider })),
        Trust::Roots(roots) => {
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots.clone()), provider)
                .build()
                .map_err(|error| tls(rustls::Error::General(error.to_string())))?;
            Ok(verifier)
        }
    }
}

fn tls(error: rustls::Error) -> Error {
    Error::Tls(Arc::new(error))
}

/// Takes one certificate and no other. The handshake's signature still proves that the broker holds its key.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if end_entity.as_ref() == self.certificate.as_ref() {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
