//! Frames off and onto a QUIC stream.

use bytes::{Bytes, BytesMut};
use tidegate_protocol::{
    limits::SERVER_CONTROL_BYTES_MAX,
    wire::{self, ClientBody, ClientMessage, Frame, ServerBody, ServerMessage},
};

use crate::Error;

/// Memory reserved for a payload before its bytes come; a broker that only talks of a large frame gets no more.
const RESERVED_BYTES_MAX: usize = 256 << 10;

/// Takes frames off a stream. Whatever was read of a frame stays here, so a wait may be given up and taken up again.
#[derive(Debug)]
pub(crate) struct FrameReader {
    stream: quinn::RecvStream,
    batch_max: u32,
    prefix: [u8; wire::PREFIX_BYTES],
    prefix_filled: usize,
    payload: Option<Payload>,
}

#[derive(Debug)]
struct Payload {
    kind: u8,
    bytes: usize,
    read: BytesMut,
}

impl FrameReader {
    /// Takes frames whose batches are at most `batch_max` bytes.
    pub(crate) fn new(stream: quinn::RecvStream, batch_max: u32) -> Self {
        Self { stream, batch_max, prefix: [0; wire::PREFIX_BYTES], prefix_filled: 0, payload: None }
    }

    /// The next frame; `None` where the stream ends between frames. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>, Error> {
        loop {
            if let Some(payload) = &mut self.payload {
                let left = payload.bytes - payload.read.len();
                if left == 0 {
                    let (kind, bytes) = (payload.kind, std::mem::take(&mut payload.read).freeze());
                    self.payload = None;
                    return Ok(Some(wire::parse_payload(kind, bytes)?));
                }
                let Some(chunk) = self.stream.read_chunk(left, true).await? else { return Err(CUT) };
                if chunk.bytes.len() == payload.bytes {
                    // The whole payload came as one: no copy.
                    let (kind, bytes) = (payload.kind, chunk.bytes);
                    self.payload = None;
                    return Ok(Some(wire::parse_payload(kind, bytes)?));
                }
                payload.read.extend_from_slice(&chunk.bytes);
                continue;
            }
            while let Some(open) = self.prefix.get_mut(self.prefix_filled..).filter(|open| !open.is_empty()) {
                match self.stream.read(open).await? {
                    Some(read) => self.prefix_filled += read,
                    None if self.prefix_filled == 0 => return Ok(None),
                    None => return Err(CUT),
                }
            }
            self.prefix_filled = 0;
            let (kind, bytes) = wire::parse_prefix(self.prefix, SERVER_CONTROL_BYTES_MAX, self.batch_max)?;
            let read = BytesMut::with_capacity(bytes.min(RESERVED_BYTES_MAX));
            self.payload = Some(Payload { kind, bytes, read });
        }
    }

    /// The next frame, which must be a message; `None` at the end of the stream. Cancel-safe.
    pub(crate) async fn next_message(&mut self) -> Result<Option<ServerBody>, Error> {
        match self.next().await? {
            None => Ok(None),
            Some(Frame::Control(bytes)) => message(bytes).map(Some),
            Some(Frame::Batch { .. }) => Err(Error::Protocol { what: "a batch where a message belongs" }),
        }
    }

    /// Tells the broker that nothing more is wanted.
    pub(crate) fn stop(&mut self) {
        // It fails only on a stream that has ended.
        self.stream.stop(quinn::VarInt::from_u32(0)).ok();
    }
}

const CUT: Error = Error::StreamEnded { what: "in the middle of a frame" };

/// Decodes what a control frame from the broker holds.
pub(crate) fn message(bytes: Bytes) -> Result<ServerBody, Error> {
    wire::decode::<ServerMessage>(bytes)?.body.ok_or(Error::Protocol { what: "a message this client does not know" })
}

/// One message as a frame.
pub(crate) fn encode(body: ClientBody) -> Bytes {
    wire::encode_control(&ClientMessage::from(body))
}
