//! The bare QUIC sink: a quinn server that throws away what it gets and answers eight bytes per batch. What the broker adds
//! to the transport is measured against it; TLS, windows and the child's runtime are the broker's
//! (`broker/src/server/endpoint.rs`) and the client library's (`client/src/tls.rs`).

use std::{
    collections::VecDeque,
    path::Path,
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use quinn::{
    VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tidegate_protocol::wire::ALPN;

use crate::{
    broker::Broker,
    load::{IN_FLIGHT, Load},
    micros,
    process::Process,
    wall,
};

/// Tells a child that it is to be the sink; a data directory whose certificate it shows comes next.
const ARGUMENT: &str = "sink";
/// Bytes before each batch: its length.
const PREFIX_BYTES: usize = 8;
const ANSWER: [u8; 8] = [7; 8];

/// Plays the part of the sink if this process was started as one. To be called first in `main`.
pub fn child() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(ARGUMENT) {
        return None;
    }
    let mut served = || -> Result<()> {
        let data = arguments.next().context("the data directory")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(serve(Path::new(&data)))
    };
    Some(match served() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

async fn serve(data: &Path) -> Result<()> {
    let chain = vec![CertificateDer::from_pem_file(data.join("dev/cert.pem"))?];
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(data.join("dev/key.pem"))?)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    let mut transport = quinn::TransportConfig::default();
    transport
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(4 << 20))
        .receive_window(VarInt::from_u32(8 << 20))
        .send_window(8 << 20);
    config.transport_config(Arc::new(transport));
    let endpoint = quinn::Endpoint::server(config, "127.0.0.1:0".parse()?)?;
    println!("{}", endpoint.local_addr()?);
    while let Some(incoming) = endpoint.accept().await {
        let connection = incoming.await?;
        let (send, recv) = connection.accept_bi().await?;
        tokio::spawn(swallow(send, recv));
    }
    Ok(())
}

/// Reads batch after batch and keeps none.
async fn swallow(mut send: quinn::SendStream, mut recv: quinn::RecvStream) -> Result<()> {
    let mut prefix = [0; PREFIX_BYTES];
    while recv.read_exact(&mut prefix).await.is_ok() {
        let mut left = usize::try_from(u64::from_le_bytes(prefix))?;
        while left > 0 {
            let chunk = recv.read_chunk(left, true).await?.context("the stream ended inside a batch")?;
            left -= chunk.bytes.len();
        }
        send.write_all(&ANSWER).await?;
    }
    Ok(())
}

/// A sink as a child, and the stream to it.
#[derive(Debug)]
pub struct Sink {
    /// Its process.
    pub process: Process,
    send: quinn::SendStream,
    recv: quinn::RecvStream,
    _connection: quinn::Connection,
}

impl Sink {
    /// Starts one that shows the certificate of a broker, and connects to it.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start(broker: &Broker) -> Result<Self> {
        let (process, addr) = Process::start(Command::new(std::env::current_exe()?).arg(ARGUMENT).arg(broker.data()))?;
        let addr = addr.parse().with_context(|| addr.clone())?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(broker.certificate()?)?;
        let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let mut transport = quinn::TransportConfig::default();
        transport
            .keep_alive_interval(Some(Duration::from_secs(3)))
            .stream_receive_window(VarInt::from_u32(4 << 20))
            .send_window(16 << 20);
        config.transport_config(Arc::new(transport));
        let endpoint = quinn::Endpoint::client("0.0.0.0:0".parse()?)?;
        let connection = endpoint.connect_with(config, addr, "localhost")?.await?;
        let (send, recv) = connection.open_bi().await?;
        Ok(Self { process, send, recv, _connection: connection })
    }

    /// Sends bytes so many times, with as many batches in flight as a producer has, and waits for the last answer.
    ///
    /// # Errors
    /// If the sink is gone.
    pub async fn swallow(&mut self, body: &Bytes, batches: u64) -> Result<Load> {
        let Self { send, recv, .. } = self;
        let start = wall();
        let mut acks = Vec::new();
        let mut sent = VecDeque::new();
        let mut writing: VecDeque<Bytes> = VecDeque::new();
        let (mut answer, mut have) = ([0; ANSWER.len()], 0);
        let mut left = batches;
        while (acks.len() as u64) < batches {
            if writing.is_empty() && left > 0 && sent.len() < IN_FLIGHT {
                left -= 1;
                sent.push_back(wall());
                let prefix = (body.len() as u64).to_le_bytes();
                writing.extend([Bytes::copy_from_slice(&prefix), body.clone()]);
            }
            tokio::select! {
                read = recv.read(&mut answer[have..]) => {
                    have += read?.context("the sink has ended")?;
                    if have == answer.len() {
                        ensure!(answer == ANSWER, "not the sink's answer");
                        have = 0;
                        acks.extend(sent.pop_front().map(|since| micros(wall() - since)));
                    }
                }
                written = send.write_chunks(writing.make_contiguous()), if !writing.is_empty() => {
                    drop(writing.drain(..written?.chunks));
                }
            }
        }
        Ok(Load { took: wall() - start, acks })
    }
}
