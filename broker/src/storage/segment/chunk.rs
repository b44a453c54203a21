//! What is read at once: a codec byte, a payload, and a CRC that knows where in the segment it stands.
//!
//! ```text
//! 0      1  codec: 0 = none (the only one read and written now)
//! 1         payload
//! end-4  4  CRC-32C of the chunk's position in the segment (u64, little endian), then of all before
//! ```

use super::varint::Fault;

/// Bytes of a chunk beside its payload.
pub(super) const OVERHEAD_BYTES: usize = 5;
const CODEC_NONE: u8 = 0;
const CRC_BYTES: usize = 4;

/// Starts a chunk behind what is in `out`; its payload follows. Gives its position.
pub(super) fn begin(out: &mut Vec<u8>) -> usize {
    out.push(CODEC_NONE);
    out.len() - 1
}

/// Ends the chunk that began at a position. Gives its bytes.
pub(super) fn end(out: &mut Vec<u8>, position: usize) -> usize {
    let crc = crc(position as u64, &out[position..]);
    out.extend_from_slice(&crc.to_le_bytes());
    out.len() - position
}

/// Appends a whole chunk. Gives its bytes.
pub(super) fn put(out: &mut Vec<u8>, payload: &[u8]) -> usize {
    let position = begin(out);
    out.extend_from_slice(payload);
    end(out, position)
}

/// The payload's place in a chunk that was read from a position.
pub(super) fn payload(chunk: &[u8], position: u64) -> Result<std::ops::Range<usize>, Fault> {
    let Some((covered, stored)) = chunk.split_last_chunk::<CRC_BYTES>() else { return Err("a chunk is cut") };
    if crc(position, covered) != u32::from_le_bytes(*stored) {
        return Err("the CRC of a chunk does not match");
    }
    match covered.first() {
        Some(&CODEC_NONE) => Ok(1..covered.len()),
        Some(_) => Err("the codec of a chunk is not served by this build"),
        None => Err("a chunk is cut"),
    }
}

fn crc(position: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&position.to_le_bytes()), bytes)
}
