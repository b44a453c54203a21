//! One connection: its handshake, its streams, its end.

use std::{net::IpAddr, sync::Arc, time::Duration};

use quinn::{RecvStream, SendStream, VarInt, rustls::pki_types::CertificateDer};
use tidegate_protocol::{
    error::Code,
    wire::{self, ClientBody, ClientMessage, Failure, Hello, ServerBody, ServerMessage, Welcome},
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tracing::{Instrument as _, Span, debug, debug_span, info};

use super::{Broker, activation::Tenant, stream};
use crate::{
    auth::{Claim, Principal},
    produce::{ConnectionBudget, frames, stopped},
};

/// How long a last word may take to reach a client.
pub(super) const LAST_WORD_TIME: Duration = Duration::from_secs(5);
/// A client that owes acknowledgements and from which nothing at all comes for so long is gone. Far over what a network or a
/// busy machine takes, and far under the idle time: a drain waits for it.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// The same in round trips, for clients that are far away.
const SILENCE_ROUND_TRIPS: u32 = 4;
/// Bytes kept of the name that client software gives itself.
const CLIENT_NAME_BYTES_MAX: usize = 64;

/// Who is at the other end, for the streams of a connection.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) principal: Arc<Principal>,
    pub(super) tenant: Arc<Tenant>,
    pub(super) budget: ConnectionBudget,
    pub(super) connection: quinn::Connection,
}

/// Serves a connection until it ends or the broker stops.
pub(super) async fn serve(broker: Arc<Broker>, incoming: quinn::Incoming) {
    let time_max = broker.bounds.handshake_time_max;
    let mut stopping = broker.stopping.subscribe();
    let greeted = tokio::select! {
        biased;
        () = stopped(&mut stopping) => return,
        greeted = tokio::time::timeout(time_max, greet(&broker, incoming)) => greeted,
    };
    let (connection, peer) = match greeted {
        Ok(Some(greeted)) => greeted,
        Ok(None) => return broker.metrics.connections_refused.add(1),
        Err(_) => {
            debug!(?time_max, "handshake took too long");
            return broker.metrics.connections_refused.add(1);
        }
    };
    let _open = broker.metrics.connections.hold();
    streams(&broker, &connection, &peer).await;
    close(&connection, Code::ShuttingDown, "the broker is draining");
}

/// TLS, the first stream, `Hello` and the answer to it. `None`: somebody who does not get in.
async fn greet(broker: &Broker, incoming: quinn::Incoming) -> Option<(quinn::Connection, Peer)> {
    let connection = incoming.await.inspect_err(|error| debug!(%error, "no connection")).ok()?;
    let (mut send, mut recv) = connection.accept_bi().await.ok()?;
    match hello(broker, &connection, &mut recv).await {
        Ok((peer, hello)) => {
            let principal = &peer.principal;
            let client: String = hello.client.chars().take(CLIENT_NAME_BYTES_MAX).collect();
            Span::current().record("tenant", &*principal.tenant);
            info!(principal = &*principal.name, client, "client is in");
            let welcome = Welcome {
                principal: principal.name.as_ref().to_owned(),
                tenant: principal.tenant.as_ref().to_owned(),
                admin: principal.admin,
                ..Welcome::new(env!("CARGO_PKG_VERSION"), &broker.limits)
            };
            send_last(&mut send, ServerBody::Welcome(welcome)).await.ok()?;
            Some((connection, peer))
        }
        Err(failure) => {
            info!(%failure, "client is refused");
            let code = failure.known_code().unwrap_or(Code::ProtocolViolation);
            broker.metrics.refused(code);
            let message = failure.message.clone();
            if send_last(&mut send, ServerBody::Failure(failure)).await.is_ok() {
                delivered(&connection, &send).await;
            }
            close(&connection, code, &message);
            None
        }
    }
}

async fn hello(
    broker: &Broker,
    connection: &quinn::Connection,
    recv: &mut RecvStream,
) -> Result<(Peer, Hello), Failure> {
    let told = |code, reason: String| Failure::new(code, reason);
    let bytes = frames::message(recv, &broker.limits, broker.limits.control_bytes_max)
        .await
        .map_err(|error| told(error.code().unwrap_or(Code::ProtocolViolation), error.to_string()))?
        .ok_or_else(|| told(Code::ProtocolViolation, "the first stream ended before Hello".to_owned()))?;
    let message: ClientMessage = wire::decode(bytes).map_err(|error| told(error.code(), error.to_string()))?;
    let Some(ClientBody::Hello(hello)) = message.body else {
        return Err(told(Code::ProtocolViolation, "a connection starts with Hello".to_owned()));
    };
    if hello.version != wire::VERSION {
        let reason = format!("client speaks version {}, this broker version {}", hello.version, wire::VERSION);
        return Err(told(Code::UnsupportedVersion, reason));
    }
    let certificate = certificate(connection);
    let principal = broker.auth.identify(&Claim {
        tenant: &hello.tenant,
        token: &hello.token,
        admin_token: &hello.admin_token,
        certificate: certificate.as_deref(),
        loopback: is_loopback(connection.remote_address().ip()),
    });
    let unknown = |reason: String| told(Code::Unauthenticated, reason);
    let principal = principal.map_err(|error| unknown(error.to_string()))?;
    // Every tenant that `auth` knows is up; the answer is the same in any case.
    let tenant =
        broker.activation.tenant(&principal.tenant).ok_or_else(|| unknown(crate::auth::Unknown.to_string()))?;
    let bounds = &broker.bounds;
    let budget = broker.budget.connection(bounds.connection_bytes_max, bounds.produce_wait_max);
    let (tenant, connection) = (Arc::clone(tenant), connection.clone());
    Ok((Peer { principal: Arc::new(principal), tenant, budget, connection }, hello))
}

/// The client's certificate in DER form, if it showed one.
fn certificate(connection: &quinn::Connection) -> Option<Vec<u8>> {
    let identity = connection.peer_identity()?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    chain.first().map(|certificate| certificate.to_vec())
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Takes streams until the connection ends or the broker stops, then waits for those under way.
async fn streams(broker: &Arc<Broker>, connection: &quinn::Connection, peer: &Peer) {
    let mut stopping = broker.stopping.subscribe();
    let mut running = JoinSet::new();
    // QUIC counts a stream as ended once its data is; its task may have more to do.
    let places = Arc::new(Semaphore::new(broker.bounds.streams_max as usize));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        let (send, recv) = tokio::select! {
            biased;
            () = stopped(&mut stopping) => break,
            // Reaps what is done, so that the set holds what runs and nothing else.
            Some(_) = running.join_next() => continue,
            accepted = connection.accept_bi() => match accepted {
                Ok(stream) => stream,
                Err(ended) => {
                    debug!(%ended, "connection ended");
                    running.shutdown().await;
                    return;
                }
            },
        };
        let span = debug_span!("stream", id = %recv.id());
        let (broker, peer, stopping) = (Arc::clone(broker), peer.clone(), stopping.clone());
        let task = async move {
            stream::serve(&broker, &peer, send, recv, stopping).await;
            drop(place);
        };
        running.spawn(task.instrument(span));
    }
    tokio::select! {
        () = async { while running.join_next().await.is_some() {} } => {}
        _ = connection.closed() => running.shutdown().await,
    }
}

/// Sends a message and ends the stream.
pub(super) async fn send_last(send: &mut SendStream, body: ServerBody) -> Result<(), quinn::WriteError> {
    send.write_chunk(wire::encode_control(&ServerMessage::from(body))).await?;
    // Fails only where the client stopped the stream: then nobody waits for its end.
    drop(send.finish());
    Ok(())
}

/// Waits until the client has everything that was sent; not for ever, and not for a client that is gone.
pub(super) async fn delivered(connection: &quinn::Connection, send: &SendStream) {
    tokio::select! {
        biased;
        _ = send.stopped() => {}
        () = silent(connection) => debug!("client is gone: nothing comes from it"),
        () = tokio::time::sleep(LAST_WORD_TIME) => debug!("client does not take its last word"),
    }
}

/// Resolves when nothing came from the client for a while. Says something only where the client owes an answer, as
/// transports acknowledge what they get.
async fn silent(connection: &quinn::Connection) {
    let heard = || connection.stats().udp_rx.datagrams;
    let mut before = heard();
    loop {
        tokio::time::sleep(SILENCE_MAX.max(connection.rtt() * SILENCE_ROUND_TRIPS)).await;
        let now = heard();
        if now == before {
            return;
        }
        before = now;
    }
}

fn close(connection: &quinn::Connection, code: Code, reason: &str) {
    let reason = reason.as_bytes();
    connection
        .close(VarInt::from_u32(u32::from(code.number())), reason.get(..CLOSE_REASON_BYTES_MAX).unwrap_or(reason));
}

/// A reason must fit one packet.
const CLOSE_REASON_BYTES_MAX: usize = 512;

/// Tells a stream when to stop.
pub(super) type Stopping = watch::Receiver<bool>;
