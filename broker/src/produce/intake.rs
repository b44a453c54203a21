//! Takes one frame off a stream, step by step: what has come is charged to the budget before more is read, so that a frame holds
//! what was sent of it, whatever length it announced.

use bytes::BytesMut;
use tidegate_protocol::wire::Frame;
use tokio::{io::AsyncRead, time::Instant};

use super::{
    Config,
    budget::{ConnectionBudget, Overloaded, Permit},
    frames::{self, FrameError, Prefix},
};

/// Bytes of a step, read before they are charged: what a stream may hold unasked. Most batches are one step, which is
/// charged once and never waits for batches that are half there.
const STEP_BYTES: usize = 64 << 10;
/// Bytes allocated at first: the usual batch of a client, which then need not be copied as it grows.
const FIRST_BYTES: usize = 256 << 10;

/// Why a frame was not taken.
#[derive(Debug)]
pub(super) enum NotTaken {
    /// It is none, or it did not come.
    Frame(FrameError),
    /// There was no room for it; `left` bytes of it are still on the stream.
    Overloaded { overloaded: Overloaded, left: usize },
}

impl From<FrameError> for NotTaken {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

/// Reads the payload within the budget. Not cancel-safe.
pub(super) async fn frame(
    reader: &mut (impl AsyncRead + Unpin),
    prefix: Prefix,
    budget: &ConnectionBudget,
    config: &Config,
) -> Result<(Frame, Permit), NotTaken> {
    let mut permit = budget.permit();
    let mut bytes = BytesMut::with_capacity(prefix.bytes.min(FIRST_BYTES));
    // Only the client's time counts: how long it was made to wait is not its doing.
    let mut time_left = config.frame_time_max;
    loop {
        let is_charged = !bytes.is_empty();
        let step = STEP_BYTES.min(prefix.bytes - bytes.len());
        let length = bytes.len() + step;
        if bytes.capacity() < length {
            // Twice what is there, at most: memory follows what was sent, too.
            bytes.reserve(bytes.len().min(prefix.bytes - bytes.len()));
        }
        let begun = Instant::now();
        tokio::select! {
            biased;
            filled = tokio::time::timeout(time_left, frames::fill(reader, &mut bytes, length)) => {
                filled.unwrap_or(Err(FrameError::Stalled(config.frame_time_max)))?;
            }
            // Who was charged nothing yet holds nothing that another waits for.
            () = budget.pressed(config.step_time_max), if is_charged => {
                return Err(FrameError::Crowded(config.step_time_max).into());
            }
        }
        time_left = time_left.saturating_sub(begun.elapsed());
        let left = prefix.bytes - length;
        let overloaded = |overloaded: Overloaded| NotTaken::Overloaded {
            overloaded: Overloaded { bytes: prefix.bytes, ..overloaded },
            left,
        };
        if left == 0 {
            budget.take_last(&mut permit, step).await.map_err(overloaded)?;
            return Ok((prefix.frame(bytes.freeze())?, permit));
        }
        budget.take(&mut permit, step).await.map_err(overloaded)?;
    }
}
