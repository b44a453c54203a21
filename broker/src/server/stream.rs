//! One stream: its first message says which verb serves it.

use std::{io, sync::Arc};

use bytes::Bytes;
use quinn::{RecvStream, SendStream, VarInt};
use tidegate_protocol::{
    error::Code,
    wire::{self, ClientBody, ClientMessage, Failure, ServerBody},
};
use tracing::debug;

use super::{
    Broker,
    activation::COMPONENT_BYTES_MAX,
    backup,
    connection::{Peer, Stopping, delivered, send_last},
    request,
};
use crate::{
    fetch::{Sink, Subscriber},
    produce::{Session, frames, stopped},
};

/// Serves a stream to its end.
pub(super) async fn serve(
    broker: &Arc<Broker>,
    peer: &Peer,
    mut send: SendStream,
    mut recv: RecvStream,
    mut stopping: Stopping,
) {
    let late = |_| Err(Failure::new(Code::ProtocolViolation, "no first message in time"));
    let first = tokio::select! {
        biased;
        () = stopped(&mut stopping) => Err(Failure::new(Code::ShuttingDown, "the broker is draining")),
        first = tokio::time::timeout(FIRST_MESSAGE_TIME, first_message(broker, peer, &mut recv)) => {
            first.unwrap_or_else(late)
        }
    };
    let body = match first {
        Ok(Some(body)) => body,
        Ok(None) => return,
        Err(failure) => return refuse(broker, peer, send, recv, failure).await,
    };
    match body {
        ClientBody::OpenProduce(_) => {
            let session = Session {
                principal: Arc::clone(&peer.principal),
                tenant: peer.tenant.number,
                live: Arc::clone(&peer.tenant.live),
                budget: peer.budget.clone(),
            };
            Box::pin(broker.produce.serve(&session, &mut recv, &mut send, stopping)).await;
            // What is still on its way is of no use to anybody.
            drop(recv.stop(code(Code::ShuttingDown)));
            end(peer, send).await;
        }
        ClientBody::OpenFetch(open) => {
            let subscriber = Subscriber {
                principal: Arc::clone(&peer.principal),
                tenant: peer.tenant.number,
                live: peer.tenant.live.watched(),
            };
            let left = send.stopped();
            let mut sink = QuicSink { send };
            tokio::select! {
                biased;
                _ = left => debug!("reader left"),
                served = Box::pin(broker.fetch.serve(&subscriber, &open, &mut sink, stopping)) => match served {
                    Ok(()) => end(peer, sink.send).await,
                    Err(error) => debug!(%error, "reader is gone"),
                },
            }
        }
        ClientBody::Hello(_) => {
            let failure = Failure::new(Code::ProtocolViolation, "Hello comes once, on the first stream");
            refuse(broker, peer, send, recv, failure).await;
        }
        ClientBody::BackupBegin(_) => {
            match Box::pin(backup::serve(broker, peer, &mut send, &mut recv, stopping)).await {
                Ok(()) => end(peer, send).await,
                Err(failure) => refuse(broker, peer, send, recv, failure).await,
            }
        }
        body => {
            let answer = match Box::pin(request::answer(broker, peer, body)).await {
                Ok(answer) => answer,
                Err(failure) => return refuse(broker, peer, send, recv, failure).await,
            };
            if send_last(&mut send, answer).await.is_ok() {
                delivered(&peer.connection, &send).await;
            }
        }
    }
}

/// The first message of a stream. One over the usual limit (a component) is taken from admins only, one at a time.
async fn first_message(broker: &Broker, peer: &Peer, recv: &mut RecvStream) -> Result<Option<ClientBody>, Failure> {
    let usual = broker.limits.control_bytes_max;
    let control_max = match u32::try_from(COMPONENT_BYTES_MAX) {
        Ok(component) if peer.principal.admin => usual.saturating_add(component),
        _ => usual,
    };
    let told =
        |error: frames::FrameError| Failure::new(error.code().unwrap_or(Code::ProtocolViolation), error.to_string());
    let Some(prefix) = frames::prefix(recv, &broker.limits, control_max).await.map_err(told)? else {
        return Ok(None);
    };
    let _large = match prefix.bytes > usual as usize {
        true => broker.large.acquire().await.ok(),
        false => None,
    };
    let wire::Frame::Control(bytes) = frames::payload(recv, prefix).await.map_err(told)? else {
        return Err(Failure::new(Code::ProtocolViolation, "a stream starts with a message, not with a batch"));
    };
    let message: ClientMessage = wire::decode(bytes).map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let empty = || Failure::new(Code::ProtocolViolation, "the message is empty or of a kind this broker does not know");
    message.body.map(Some).ok_or_else(empty)
}

/// From the opening of a stream to the end of its first message, a component included.
const FIRST_MESSAGE_TIME: std::time::Duration = std::time::Duration::from_secs(60);

async fn refuse(broker: &Broker, peer: &Peer, mut send: SendStream, mut recv: RecvStream, failure: Failure) {
    debug!(%failure, "stream is refused");
    let known = failure.known_code().unwrap_or(Code::Internal);
    broker.metrics.refused(known);
    drop(recv.stop(code(known)));
    if send_last(&mut send, ServerBody::Failure(failure)).await.is_ok() {
        delivered(&peer.connection, &send).await;
    }
}

async fn end(peer: &Peer, mut send: SendStream) {
    if send.finish().is_ok() {
        delivered(&peer.connection, &send).await;
    }
}

fn code(code: Code) -> VarInt {
    VarInt::from_u32(u32::from(code.number()))
}

/// A subscription's way out. A body goes out without being copied.
struct QuicSink {
    send: SendStream,
}

impl Sink for QuicSink {
    async fn send(&mut self, mut parts: Vec<Bytes>) -> io::Result<()> {
        self.send.write_all_chunks(&mut parts).await.map_err(io::Error::from)
    }
}
