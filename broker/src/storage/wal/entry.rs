//! Layout of a WAL file: its header and the entries behind it (ADR 4). Pure: bytes in, values out.
//!
//! ```text
//! file header, 4 096 bytes, little endian
//!  0  4  magic "TGW1"
//!  4  1  version = 1
//!  5  1  0
//!  6  2  shard
//!  8  8  file generation: a counter (high 32 bits) and salt (low 32 bits), new for each use of the file
//! 16  8  first LSN
//! 24  4  CRC-32C of bytes 0..24
//! 28     0
//!
//! entry, 8-aligned
//!  0  4  magic "TGE1"
//!  4  4  length of the stored frame
//!  8  8  file generation
//! 16  8  first LSN of the frame
//! 24  4  place in the file, divided by 8, where the group began that this entry was written with
//! 28  4  CRC-32C of bytes 0..28
//! 32     the stored frame, then zeros up to the next multiple of 8
//! ```
//!
//! The salt is there because records are bytes of strangers: without it a record could hold what looks like a later
//! entry of the file, and make a torn tail look like corruption.

/// Bytes before the first entry: one page, so that entries start on a page of their own.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Bytes before an entry's frame.
pub(crate) const ENTRY_BYTES: usize = 32;
/// Entries start at multiples of this.
pub(crate) const ALIGN: usize = 8;

const FILE_MAGIC: [u8; 4] = *b"TGW1";
const FILE_VERSION: u8 = 1;
/// Starts every entry.
pub(crate) const ENTRY_MAGIC: [u8; 4] = *b"TGE1";

/// Header of a WAL file in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHeader {
    /// The shard whose log this is.
    pub(crate) shard: u16,
    /// New for each use of the file, ascending.
    pub(crate) generation: u64,
    /// LSN of the first entry.
    pub(crate) first_lsn: u64,
}

/// What the first bytes of a WAL file say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderRead {
    /// A file in use.
    Known(FileHeader),
    /// All zero, or torn while it was written: not in use.
    Blank,
    /// Whole, but of another version.
    Version(u8),
}

/// Header of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryHeader {
    /// Length of the frame.
    pub(crate) frame_bytes: u32,
    /// The file's.
    pub(crate) generation: u64,
    /// The frame's.
    pub(crate) first_lsn: u64,
    /// Where the group began, in bytes from the start of the file.
    pub(crate) group_position: u64,
}

impl FileHeader {
    /// The whole first page.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&FILE_MAGIC);
        bytes.extend_from_slice(&[FILE_VERSION, 0]);
        bytes.extend_from_slice(&self.shard.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.first_lsn.to_le_bytes());
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes
    }

    /// Reads the first bytes of a file.
    pub(crate) fn decode(bytes: &[u8]) -> HeaderRead {
        let Some((head, crc)) = bytes.split_at_checked(24).and_then(|(head, rest)| Some((head, u32_at(rest, 0)?)))
        else {
            return HeaderRead::Blank;
        };
        if head[..4] != FILE_MAGIC || crc32c::crc32c(head) != crc {
            return HeaderRead::Blank;
        }
        if head[4] != FILE_VERSION {
            return HeaderRead::Version(head[4]);
        }
        HeaderRead::Known(Self {
            shard: u16::from_le_bytes([head[6], head[7]]),
            generation: u64_at(head, 8).unwrap_or_default(),
            first_lsn: u64_at(head, 16).unwrap_or_default(),
        })
    }
}

impl EntryHeader {
    /// Appends the header's bytes.
    ///
    /// # Panics
    /// If the group's place is not a multiple of 8 below 32 GiB: WAL files are at most 1 GiB.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let group = u32::try_from(self.group_position / ALIGN as u64).expect("WAL files are at most 1 GiB");
        out.extend_from_slice(&ENTRY_MAGIC);
        out.extend_from_slice(&self.frame_bytes.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.first_lsn.to_le_bytes());
        out.extend_from_slice(&group.to_le_bytes());
        let crc = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
    }

    /// Reads an entry's header. `None` if these bytes are not one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.get(..4)? != ENTRY_MAGIC || crc32c::crc32c(bytes.get(..28)?) != u32_at(bytes, 28)? {
            return None;
        }
        Some(Self {
            frame_bytes: u32_at(bytes, 4)?,
            generation: u64_at(bytes, 8)?,
            first_lsn: u64_at(bytes, 16)?,
            group_position: u64::from(u32_at(bytes, 24)?) * ALIGN as u64,
        })
    }
}

/// Bytes an entry takes in the file, padding included.
pub(crate) fn entry_bytes(frame_bytes: usize) -> usize {
    (ENTRY_BYTES + frame_bytes).next_multiple_of(ALIGN)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileHeader = FileHeader { shard: 7, generation: 0x0000_0002_dead_beef, first_lsn: 99 };

    #[test]
    fn a_file_header_survives_the_round_trip_and_no_flipped_bit() {
        let bytes = FILE.encode();
        assert_eq!(bytes.len(), HEADER_BYTES);
        assert_eq!(FileHeader::decode(&bytes), HeaderRead::Known(FILE));
        for bit in 0..28 * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FileHeader::decode(&bad), HeaderRead::Blank, "bit {bit}");
        }
        for cut in 0..28 {
            assert_eq!(FileHeader::decode(&bytes[..cut]), HeaderRead::Blank, "cut {cut}");
        }
    }

    #[test]
    fn an_entry_header_survives_the_round_trip_and_no_flipped_bit() {
        let entry = EntryHeader { frame_bytes: 1000, generation: 5, first_lsn: 77, group_position: 4096 };
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        assert_eq!(bytes.len(), ENTRY_BYTES);
        assert_eq!(EntryHeader::decode(&bytes), Some(entry));
        for bit in 0..ENTRY_BYTES * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(EntryHeader::decode(&bad), None, "bit {bit}");
        }
        for cut in 0..ENTRY_BYTES {
            assert_eq!(EntryHeader::decode(&bytes[..cut]), None, "cut {cut}");
        }
    }

    #[test]
    fn a_later_version_is_told_apart_from_noise() {
        let mut bytes = FILE.encode();
        bytes[4] = 2;
        let crc = crc32c::crc32c(&bytes[..24]);
        bytes[24..28].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(FileHeader::decode(&bytes), HeaderRead::Version(2));
    }

    #[test]
    fn golden_bytes() {
        let mut entry = Vec::new();
        EntryHeader { frame_bytes: 16, generation: 1, first_lsn: 2, group_position: 4096 }.encode(&mut entry);
        assert_eq!(hex(&FILE.encode()[..32]), "5447573101000700efbeadde02000000630000000000000045991eb300000000");
        assert_eq!(hex(&entry), "5447453110000000010000000000000002000000000000000002000076b47a6d");
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
