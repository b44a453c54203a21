//! Taking wire frames off a byte stream. The length is checked before anything is allocated for it.

use std::io;

use bytes::{Bytes, BytesMut};
use tidegate_protocol::{
    error::Code,
    limits::Limits,
    wire::{self, Frame, PREFIX_BYTES, WireError},
};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Bytes thrown away at a time when a frame is skipped.
const SKIP_BYTES: usize = 16 << 10;

/// What a frame's first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    kind: u8,
    /// Bytes of the payload that follows, within the limits.
    pub bytes: usize,
}

/// Why no frame could be taken.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The bytes are not a frame, or one over the limits.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The stream ended inside a frame, or the connection is gone.
    #[error("stream ended: {0}")]
    Ended(#[from] io::Error),
    /// The rest of a frame did not come in time.
    #[error("the rest of a frame did not come within {0:?}")]
    Stalled(std::time::Duration),
    /// Next to nothing of a frame came, while others waited for the room it holds.
    #[error("nearly nothing of a frame came for {0:?}, and others wait for its room")]
    Crowded(std::time::Duration),
}

impl Prefix {
    /// The frame with its payload.
    ///
    /// # Errors
    /// If it is not one.
    pub fn frame(self, payload: Bytes) -> Result<Frame, FrameError> {
        Ok(wire::parse_payload(self.kind, payload)?)
    }
}

impl FrameError {
    /// The code the other side is told, if it can still be told anything.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Wire(error) => Some(error.code()),
            Self::Ended(error) if error.kind() == io::ErrorKind::UnexpectedEof => Some(Code::ProtocolViolation),
            Self::Ended(_) => None,
            Self::Stalled(_) => Some(Code::ProtocolViolation),
            Self::Crowded(_) => Some(Code::Overloaded),
        }
    }
}

/// Reads the first bytes of the next frame; `None` where the stream ends between frames. `control_max` bounds a message
/// and the head of a batch. Not cancel-safe: after a cancel the place in the stream is lost.
///
/// # Errors
/// If the bytes are no frame, or the stream ends inside them.
pub async fn prefix(
    reader: &mut (impl AsyncRead + Unpin),
    limits: &Limits,
    control_max: u32,
) -> Result<Option<Prefix>, FrameError> {
    let mut bytes = [0; PREFIX_BYTES];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest).await? {
            0 if filled == 0 => return Ok(None),
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => filled += count,
        }
    }
    let (kind, bytes) = wire::parse_prefix(bytes, control_max, limits.batch_bytes_max)?;
    Ok(Some(Prefix { kind, bytes }))
}

/// Reads the payload. Not cancel-safe.
///
/// # Errors
/// If it is not one, or the stream ends inside it.
pub async fn payload(reader: &mut (impl AsyncRead + Unpin), prefix: Prefix) -> Result<Frame, FrameError> {
    let mut bytes = BytesMut::with_capacity(prefix.bytes);
    fill(reader, &mut bytes, prefix.bytes).await?;
    prefix.frame(bytes.freeze())
}

/// Reads until there are so many bytes. After a cancel, those that came are there.
///
/// # Errors
/// If the stream ends before.
pub async fn fill(
    reader: &mut (impl AsyncRead + Unpin),
    bytes: &mut BytesMut,
    length: usize,
) -> Result<(), FrameError> {
    let mut limited = reader.take(length.saturating_sub(bytes.len()) as u64);
    while bytes.len() < length {
        if limited.read_buf(bytes).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
    Ok(())
}

/// Throws bytes of a payload away without holding more than a little of them. Not cancel-safe.
///
/// # Errors
/// If the stream ends inside them.
pub async fn skip(reader: &mut (impl AsyncRead + Unpin), bytes: usize) -> Result<(), FrameError> {
    let mut waste = vec![0; SKIP_BYTES.min(bytes)];
    let mut left = bytes;
    while left > 0 {
        let part = waste.get_mut(..left.min(SKIP_BYTES)).unwrap_or_default();
        match reader.read(part).await? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => left -= count,
        }
    }
    Ok(())
}

/// Reads a whole message frame, or `None` where the stream ends before it.
///
/// # Errors
/// If there is none, or a batch in its place.
pub async fn message(
    reader: &mut (impl AsyncRead + Unpin),
    limits: &Limits,
    control_max: u32,
) -> Result<Option<Bytes>, FrameError> {
    let Some(prefix) = prefix(reader, limits, control_max).await? else { return Ok(None) };
    if prefix.kind != wire::KIND_CONTROL {
        return Err(WireError::Kind(prefix.kind).into());
    }
    match payload(reader, prefix).await? {
        Frame::Control(bytes) => Ok(Some(bytes)),
        Frame::Batch { .. } => Err(WireError::Kind(wire::KIND_BATCH).into()),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::wire::{OpenProduce, encode_control};

    use super::*;

    #[tokio::test]
    async fn an_announced_length_allocates_nothing_over_the_limit() {
        let mut bytes: &[u8] = &[0xff, 0xff, 0xff, 0x7f, 1];
        let error = prefix(&mut bytes, &Limits::default(), 64 << 10).await.expect_err("refused");
        assert_eq!(error.code(), Some(Code::FrameTooLarge));
    }

    #[tokio::test]
    async fn a_stream_may_end_between_frames_only() {
        let limits = Limits::default();
        let frame = encode_control(&OpenProduce {});
        let two = [frame.as_ref(), &[9]].concat();
        let mut reader = two.as_slice();
        assert!(message(&mut reader, &limits, 1 << 10).await.is_ok());
        let error = message(&mut reader, &limits, 1 << 10).await.expect_err("cut");
        assert_eq!(error.code(), Some(Code::ProtocolViolation));
        let mut reader: &[u8] = &[];
        assert!(message(&mut reader, &limits, 1 << 10).await.expect("an end").is_none());
    }

    #[tokio::test]
    async fn what_is_skipped_leaves_the_next_frame_in_place() {
        let limits = Limits::default();
        let mut bytes = (1_u32 + 40_000).to_le_bytes().to_vec();
        bytes.push(wire::KIND_BATCH);
        bytes.extend(std::iter::repeat_n(7, 40_000));
        bytes.extend_from_slice(&encode_control(&OpenProduce {}));
        let mut reader = bytes.as_slice();
        let first = prefix(&mut reader, &limits, 1 << 10).await.expect("a frame").expect("one");
        skip(&mut reader, first.bytes).await.expect("skipped");
        assert!(message(&mut reader, &limits, 1 << 10).await.expect("a message").is_some());
        assert!(reader.is_empty());
    }
}
