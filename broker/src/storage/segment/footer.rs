//! The last bytes of a segment: what it is, where its parts lie, and the checksum of all before.
//!
//! ```text
//! 0    8  first LSN                     48  4  CRC-32C of everything before the footer
//! 8    8  next LSN                      52  4  bytes of the blocks
//! 16   8  first broker time, Unix ms    56  28 bytes of: directory pages, pages of frame heads, permutations,
//! 24   8  last broker time                     topic table, block index, directory index, frame index
//! 32   8  generation most records have  84  4  bytes of the filter
//! 40   4  records                       88  2  shard · 90  1  level · 91  1  version = 1
//! 44   4  keys in the directory         92  4  CRC-32C of bytes 0..92 · 96  4  magic "TGS1"
//! ```
//!
//! The parts lie back to back behind the 8 bytes at the start, in the order of their lengths here.

use bytes::Buf as _;

use super::{block::Bases, varint::Fault};

/// Bytes of a footer.
pub const FOOTER_BYTES: usize = 100;
/// Bytes before the first block: magic, version, level, shard.
pub(super) const HEAD_BYTES: u32 = 8;
pub(super) const MAGIC: [u8; 4] = *b"TGS1";
pub(super) const VERSION: u8 = 1;
const CRC_AT: usize = 92;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Footer {
    pub(super) bases: Bases,
    pub(super) next_lsn: u64,
    pub(super) last_time_ms: i64,
    pub(super) records: u32,
    pub(super) keys: u32,
    pub(super) object_crc: u32,
    pub(super) parts: Parts,
    pub(super) shard: u16,
    pub(super) level: u8,
}

/// Bytes of each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Parts {
    pub(super) blocks: u32,
    pub(super) directory: u32,
    pub(super) heads: u32,
    pub(super) permutations: u32,
    pub(super) topics: u32,
    pub(super) block_index: u32,
    pub(super) directory_index: u32,
    pub(super) head_index: u32,
    pub(super) filter: u32,
}

impl Parts {
    pub(super) fn all(&self) -> [u32; 9] {
        let Self { blocks, directory, heads, permutations, topics, block_index, directory_index, head_index, filter } =
            *self;
        [blocks, directory, heads, permutations, topics, block_index, directory_index, head_index, filter]
    }

    /// Where the part with a number begins; that of 9 is the footer.
    pub(super) fn start(&self, number: usize) -> u64 {
        u64::from(HEAD_BYTES) + self.all().iter().take(number).map(|&bytes| u64::from(bytes)).sum::<u64>()
    }
}

impl Footer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FOOTER_BYTES);
        out.extend_from_slice(&self.bases.first_lsn.to_le_bytes());
        out.extend_from_slice(&self.next_lsn.to_le_bytes());
        out.extend_from_slice(&self.bases.first_time_ms.to_le_bytes());
        out.extend_from_slice(&self.last_time_ms.to_le_bytes());
        out.extend_from_slice(&self.bases.generation.to_le_bytes());
        out.extend_from_slice(&self.records.to_le_bytes());
        out.extend_from_slice(&self.keys.to_le_bytes());
        out.extend_from_slice(&self.object_crc.to_le_bytes());
        self.parts.all().iter().for_each(|bytes| out.extend_from_slice(&bytes.to_le_bytes()));
        out.extend_from_slice(&self.shard.to_le_bytes());
        out.extend_from_slice(&[self.level, VERSION]);
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&MAGIC);
        out
    }

    /// Reads the last bytes of a segment of `object_bytes`.
    pub(super) fn decode(bytes: &[u8], object_bytes: u64) -> Result<Self, Fault> {
        let Ok(footer) = <&[u8; FOOTER_BYTES]>::try_from(bytes) else { return Err("the segment ends too early") };
        if footer[FOOTER_BYTES - 4..] != MAGIC {
            return Err("the segment does not end with its magic");
        }
        if footer[CRC_AT - 1] != VERSION {
            return Err("the version of the segment is not read by this build; it reads 1");
        }
        if footer[CRC_AT..CRC_AT + 4] != crc32c::crc32c(&footer[..CRC_AT]).to_le_bytes() {
            return Err("the CRC of the footer does not match");
        }
        let mut fields = &footer[..];
        let (first_lsn, next_lsn) = (fields.get_u64_le(), fields.get_u64_le());
        let (first_time_ms, last_time_ms) = (fields.get_i64_le(), fields.get_i64_le());
        let bases = Bases { first_lsn, first_time_ms, generation: fields.get_u64_le() };
        let (records, keys, object_crc) = (fields.get_u32_le(), fields.get_u32_le(), fields.get_u32_le());
        let [blocks, directory, heads, permutations, topics, block_index, directory_index, head_index, filter] =
            std::array::from_fn(|_| fields.get_u32_le());
        let parts =
            Parts { blocks, directory, heads, permutations, topics, block_index, directory_index, head_index, filter };
        let (shard, level) = (fields.get_u16_le(), fields.get_u8());
        if parts.start(9) + FOOTER_BYTES as u64 != object_bytes {
            return Err("the parts of the segment are not as long as the segment");
        }
        Ok(Self { bases, next_lsn, last_time_ms, records, keys, object_crc, parts, shard, level })
    }
}
