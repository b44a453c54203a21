//! What goes over a QUIC stream (docs/wire.md; ALPN `tidegate/1`).
//!
//! A stream is a row of frames: u32 length of what follows (little endian, at least 1), u8 kind, payload. Kind 1: one
//! protobuf `ClientMessage` (to the broker) or `ServerMessage` (from it). Kind 2: u32 length of a head, the head (a
//! protobuf `ProduceHead` or `FetchHead`), and a batch body to the end of the frame.
//!
//! The client opens the first bidirectional stream and sends `Hello`; the broker answers `Welcome` or `Failure`. Every
//! other bidirectional stream starts with one `ClientMessage`: `OpenProduce` (then batches of kind 2 to the broker and one
//! `ProduceAck` for each, in order), `OpenFetch` (then batches of kind 2 and `FetchProgress` from the broker), or a
//! request (one `ServerMessage` back, then the stream ends).
//!
//! Owns framing and messages. Must not know QUIC: whoever reads a stream calls [`parse_prefix`] with its first bytes, then
//! reads so many more and calls [`parse_payload`].

mod admin;
mod backup;
mod convert;
mod messages;
#[cfg(test)]
mod tests;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

pub use self::{
    admin::*,
    backup::*,
    convert::{AckStatus, ConditionError},
    messages::*,
};
use crate::error::Code;

/// ALPN of this protocol.
pub const ALPN: &[u8] = b"tidegate/1";
/// Version told in `Hello` and `Welcome`.
pub const VERSION: u32 = 1;
/// Bytes before a frame's payload: length and kind.
pub const PREFIX_BYTES: usize = 5;
/// Kind of a frame that is one message.
pub const KIND_CONTROL: u8 = 1;
/// Kind of a frame that is a head and a batch body.
pub const KIND_BATCH: u8 = 2;

/// One frame, taken off a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Kind 1: a protobuf message, not decoded yet.
    Control(Bytes),
    /// Kind 2.
    Batch {
        /// The head, not decoded yet.
        head: Bytes,
        /// The batch body, not parsed yet.
        body: Bytes,
    },
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A kind this version does not know.
    #[error("frame kind {0} is not known")]
    Kind(u8),
    /// Not even a kind.
    #[error("frame of 0 bytes")]
    Empty,
    /// Over the limit for its kind.
    #[error("frame of {bytes} bytes, at most {max} are allowed")]
    TooLarge {
        /// Length told.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The head is longer than the frame.
    #[error("head of {head} bytes in a frame of {frame}")]
    Head {
        /// Length of the head.
        head: u64,
        /// Length of the frame.
        frame: u64,
    },
    /// Not the protobuf message expected.
    #[error("message cannot be read: {0}")]
    Message(String),
}

impl WireError {
    /// The code the other side is told.
    pub fn code(&self) -> Code {
        match self {
            Self::TooLarge { .. } => Code::FrameTooLarge,
            Self::Kind(_) | Self::Empty | Self::Head { .. } | Self::Message(_) => Code::ProtocolViolation,
        }
    }
}

/// Kind and length of the payload, from the first `PREFIX_BYTES`. The limits bound the payload: a message by
/// `control_max`, a batch by `batch_max` for its body and `control_max` for its head, together.
///
/// # Errors
/// If the kind is not known, or the length 0 or over its limit.
pub fn parse_prefix(prefix: [u8; PREFIX_BYTES], control_max: u32, batch_max: u32) -> Result<(u8, usize), WireError> {
    let [a, b, c, d, kind] = prefix;
    let told = u32::from_le_bytes([a, b, c, d]);
    let Some(payload) = told.checked_sub(1) else { return Err(WireError::Empty) };
    let max = match kind {
        KIND_CONTROL => u64::from(control_max),
        KIND_BATCH => HEAD_LENGTH_BYTES as u64 + u64::from(control_max) + u64::from(batch_max),
        other => return Err(WireError::Kind(other)),
    };
    let bytes = u64::from(payload);
    if bytes > max {
        return Err(WireError::TooLarge { bytes, max });
    }
    Ok((kind, payload as usize))
}

/// Splits a payload of a known kind.
///
/// # Errors
/// If the head does not fit.
pub fn parse_payload(kind: u8, payload: Bytes) -> Result<Frame, WireError> {
    match kind {
        KIND_CONTROL => Ok(Frame::Control(payload)),
        KIND_BATCH => {
            let frame = payload.len() as u64;
            let Some((length, rest)) = payload.split_first_chunk::<HEAD_LENGTH_BYTES>() else {
                return Err(WireError::Head { head: HEAD_LENGTH_BYTES as u64, frame });
            };
            let head = u32::from_le_bytes(*length);
            if u64::from(head) > rest.len() as u64 {
                return Err(WireError::Head { head: u64::from(head), frame });
            }
            let split = HEAD_LENGTH_BYTES + head as usize;
            Ok(Frame::Batch { head: payload.slice(HEAD_LENGTH_BYTES..split), body: payload.slice(split..) })
        }
        other => Err(WireError::Kind(other)),
    }
}

/// A frame of kind 1, prefix included.
pub fn encode_control(message: &impl Message) -> Bytes {
    let message_bytes = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + message_bytes);
    put_prefix(&mut out, KIND_CONTROL, message_bytes);
    message.encode_raw(&mut out);
    out.freeze()
}

/// Prefix and head of a frame of kind 2; the body of `body_bytes` bytes follows.
pub fn encode_batch_head(head: &impl Message, body_bytes: usize) -> Bytes {
    let head_bytes = head.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + HEAD_LENGTH_BYTES + head_bytes);
    put_prefix(&mut out, KIND_BATCH, HEAD_LENGTH_BYTES.saturating_add(head_bytes).saturating_add(body_bytes));
    out.put_u32_le(u32::try_from(head_bytes).unwrap_or(u32::MAX));
    head.encode_raw(&mut out);
    out.freeze()
}

/// Decodes a message.
///
/// # Errors
/// If the bytes are not one.
pub fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, WireError> {
    M::decode(bytes).map_err(|error| WireError::Message(error.to_string()))
}

/// A payload that cannot be told in u32 is told as the largest: every reader refuses it, over its limit by far.
fn put_prefix(out: &mut BytesMut, kind: u8, payload_bytes: usize) {
    out.put_u32_le(u32::try_from(payload_bytes.saturating_add(1)).unwrap_or(u32::MAX));
    out.put_u8(kind);
}

/// Bytes of the length before a head.
const HEAD_LENGTH_BYTES: usize = 4;
