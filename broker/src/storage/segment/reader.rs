//! A segment that is open: footer, topics, indexes and filter in memory, the rest read by range as it is wanted.

use std::{fmt, ops::Range, path::PathBuf, sync::Arc};

use bytes::Bytes;

use super::{
    block::Block,
    cache::{Cache, Part},
    chunk::{self, OVERHEAD_BYTES},
    directory, filter,
    footer::{FOOTER_BYTES, Footer, HEAD_BYTES},
    heads,
    topics::{self, Topic},
    varint::{Cursor, Fault},
};
use crate::storage::StorageError;

/// Blocks with a gap up to this between them are read together.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// And no more than this at once, unless a block alone is longer.
const READ_BYTES_MAX: u64 = 8 << 20;

/// Where a segment's bytes come from.
pub trait Ranges: fmt::Debug + Send + Sync {
    /// The bytes of a range; fewer only if the object ends there.
    ///
    /// # Errors
    /// If the store fails.
    fn read(&self, range: Range<u64>) -> Result<Bytes, StorageError>;
}

/// What a segment is expected to be: as the manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Name of the object, for errors.
    pub object: String,
    /// Its length.
    pub bytes: u64,
    /// First LSN.
    pub first_lsn: u64,
    /// LSN behind the last.
    pub next_lsn: u64,
    /// The shard.
    pub shard: u16,
}

/// A block's place: in the segment and among the ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockEntry {
    pub(super) position: u64,
    pub(super) bytes: u32,
    pub(super) first_rank: u32,
    pub(super) records: u32,
}

/// See the module. Dropped, it leaves the cache too.
#[derive(Debug)]
pub struct Segment {
    object: String,
    source: Arc<dyn Ranges>,
    cache: Arc<Cache>,
    number: u64,
    pub(super) footer: Footer,
    pub(super) topics: Vec<Topic>,
    pub(super) blocks: Vec<BlockEntry>,
    pub(super) pages: Vec<directory::Page>,
    pub(super) heads: Vec<heads::Page>,
    pub(super) filter: Bytes,
}

impl Segment {
    /// Opens a segment: two reads.
    ///
    /// # Errors
    /// If the store fails, or the bytes are not the segment that was expected.
    pub fn open(source: Arc<dyn Ranges>, cache: Arc<Cache>, expected: &Expected) -> Result<Self, StorageError> {
        let Expected { object, bytes, first_lsn, next_lsn, shard } = expected.clone();
        let corrupt = |position: u64| {
            let file = PathBuf::from(&object);
            move |what: Fault| StorageError::Corrupt { file, position, what: what.to_owned() }
        };
        let footer_at = bytes.saturating_sub(FOOTER_BYTES as u64);
        let footer = source.read(footer_at..bytes)?;
        let footer = Footer::decode(&footer, bytes).map_err(corrupt(footer_at))?;
        if (footer.bases.first_lsn, footer.next_lsn, footer.shard) != (first_lsn, next_lsn, shard) {
            return Err(corrupt(footer_at)("the footer names other LSNs, or another shard, than the manifest"));
        }
        let start = footer.parts.start(4);
        let open = source.read(start..footer_at)?;
        let part = |number: usize| -> Result<Bytes, StorageError> {
            let position = footer.parts.start(number);
            let range = [position - start, footer.parts.start(number + 1) - start];
            let range = range.map(|place| usize::try_from(place).unwrap_or(usize::MAX));
            let chunk = open.get(range[0]..range[1]).ok_or_else(|| corrupt(position)("the segment is cut"))?;
            let payload = chunk::payload(chunk, position).map_err(corrupt(position))?;
            Ok(open.slice_ref(&chunk[payload]))
        };
        let at = |number: usize| corrupt(footer.parts.start(number));
        let (topics, permutation_bytes) = topics::decode(&part(4)?).map_err(at(4))?;
        let (blocks, blocks_end) = decode_blocks(&part(5)?).map_err(at(5))?;
        let (pages, pages_end) = directory::decode_index(&part(6)?, footer.parts.start(1)).map_err(at(6))?;
        let (first_time_ms, head_at) = (footer.bases.first_time_ms, footer.parts.start(2));
        let (heads, heads_end) = heads::decode_index(&part(7)?, head_at, first_lsn, first_time_ms).map_err(at(7))?;
        let filter_bits = part(8)?;
        let records = topics.last().map_or(0, |topic| topic.ranks().end);
        let in_blocks = blocks.last().map_or(0, |block| block.first_rank + block.records);
        let keys: u64 = topics.iter().map(|topic| u64::from(topic.keys)).sum();
        let fits = [blocks_end, pages_end, heads_end] == [1, 2, 3].map(|number| footer.parts.start(number))
            && permutation_bytes + OVERHEAD_BYTES == footer.parts.permutations as usize
            && [records, in_blocks] == [footer.records; 2]
            && keys == u64::from(footer.keys)
            && keys == pages.iter().map(|page| u64::from(page.entries())).sum::<u64>()
            && pages.iter().all(|page| page.fits(&topics))
            && filter_bits.len() == filter::bytes(footer.keys as usize)
            && heads.is_empty() == (first_lsn == next_lsn);
        if !fits {
            return Err(corrupt(footer_at)("the parts of the segment do not fit together"));
        }
        let number = cache.next_segment();
        Ok(Self { object, source, cache, number, footer, topics, blocks, pages, heads, filter: filter_bits })
    }

    /// First LSN.
    pub fn first_lsn(&self) -> u64 {
        self.footer.bases.first_lsn
    }

    /// LSN behind the last.
    pub fn next_lsn(&self) -> u64 {
        self.footer.next_lsn
    }

    /// Records, and keys in the directory.
    pub fn counts(&self) -> (u32, u32) {
        (self.footer.records, self.footer.keys)
    }

    /// Bytes of memory while it is open, what the cache holds of it left out.
    pub fn memory_bytes(&self) -> usize {
        let runs: usize = self.topics.iter().map(|topic| topic.runs.len() * 16 + size_of::<Topic>()).sum();
        let pages: usize = self.pages.iter().map(directory::Page::memory_bytes).sum();
        let heads = self.heads.len() * size_of::<heads::Page>();
        runs + pages + heads + self.blocks.len() * size_of::<BlockEntry>() + self.filter.len() + size_of::<Self>()
    }

    /// The object's name, for errors.
    pub(super) fn name(&self) -> PathBuf {
        PathBuf::from(&self.object)
    }

    pub(super) fn corrupt(&self, position: u64) -> impl FnOnce(Fault) -> StorageError {
        let file = PathBuf::from(&self.object);
        move |what| StorageError::Corrupt { file, position, what: what.to_owned() }
    }

    /// Number and entry of a topic.
    pub(super) fn topic(&self, id: u64) -> Option<(u32, &Topic)> {
        let at = self.topics.binary_search_by_key(&id, |topic| topic.id).ok()?;
        Some((u32::try_from(at).ok()?, &self.topics[at]))
    }

    /// Number of the block that holds a rank.
    pub(super) fn block_of(&self, rank: u32) -> usize {
        self.blocks.partition_point(|block| block.first_rank <= rank).saturating_sub(1)
    }

    /// A page of the directory.
    pub(super) fn page(&self, page: &directory::Page) -> Result<Bytes, StorageError> {
        self.payload(page.position, u64::from(page.bytes))
    }

    pub(super) fn permutations(&self) -> Result<Bytes, StorageError> {
        self.payload(self.footer.parts.start(3), u64::from(self.footer.parts.permutations))
    }

    fn payload(&self, position: u64, bytes: u64) -> Result<Bytes, StorageError> {
        if let Some(Part::Payload(payload)) = self.cache.find(self.number, position) {
            return Ok(payload);
        }
        let payload = self.read_chunk(position, bytes)?;
        self.cache.keep(self.number, position, Part::Payload(payload.clone()), payload.len());
        Ok(payload)
    }

    /// The frame heads of a page.
    pub(super) fn head_page(&self, at: usize) -> Result<Arc<Vec<tidegate_protocol::stored::FrameHead>>, StorageError> {
        let page = &self.heads[at];
        if let Some(Part::Heads(heads)) = self.cache.find(self.number, page.position) {
            return Ok(heads);
        }
        let payload = self.read_chunk(page.position, u64::from(page.bytes))?;
        let next_lsn = self.heads.get(at + 1).map_or(self.footer.next_lsn, |next| next.first_lsn);
        let heads = heads::decode(page, &payload, next_lsn).map_err(self.corrupt(page.position))?;
        let heads = Arc::new(heads);
        let parsed: usize =
            heads.iter().map(|head| 256 + head.header.key_versions.len() * 8 + head.runs.len() * 8).sum();
        self.cache.keep(self.number, page.position, Part::Heads(Arc::clone(&heads)), payload.len() + parsed);
        Ok(heads)
    }

    fn read_chunk(&self, position: u64, bytes: u64) -> Result<Bytes, StorageError> {
        let chunk = self.source.read(position..position + bytes)?;
        if chunk.len() as u64 != bytes {
            return Err(self.corrupt(position)("the segment is cut"));
        }
        let payload = chunk::payload(&chunk, position).map_err(self.corrupt(position))?;
        Ok(chunk.slice(payload))
    }

    /// Blocks by ascending number; those that are not in memory are read, neighbours at once.
    pub(super) fn read_blocks(
        &self,
        numbers: impl IntoIterator<Item = usize>,
        mut each: impl FnMut(usize, Arc<Block>),
    ) -> Result<(), StorageError> {
        let mut missing: Vec<usize> = Vec::new();
        for number in numbers {
            match self.cache.find(self.number, self.blocks[number].position) {
                Some(Part::Block(block)) => each(number, block),
                _ => missing.push(number),
            }
        }
        let mut rest = &missing[..];
        while let Some(&first) = rest.first() {
            let start = self.blocks[first].position;
            let mut end = start;
            let together = rest.iter().take_while(|&&number| {
                let entry = &self.blocks[number];
                let behind = entry.position + u64::from(entry.bytes);
                let near = end == start || (entry.position - end <= GAP_BYTES_MAX && behind - start <= READ_BYTES_MAX);
                end = if near { behind } else { end };
                near
            });
            let (now, later) = rest.split_at(together.count());
            let bytes = self.source.read(start..end)?;
            for &number in now {
                // A block that shares memory with others would keep all of it once they have left the cache.
                let copied = now.len() > 1;
                each(number, self.take_block(number, &bytes, start, copied)?);
            }
            rest = later;
        }
        Ok(())
    }

    /// A block out of bytes that were read from `start`.
    fn take_block(&self, number: usize, bytes: &Bytes, start: u64, copied: bool) -> Result<Arc<Block>, StorageError> {
        let entry = &self.blocks[number];
        let from = usize::try_from(entry.position - start).unwrap_or(usize::MAX);
        let chunk = bytes.get(from..from.saturating_add(entry.bytes as usize));
        let chunk = chunk.ok_or("the segment is cut").map_err(self.corrupt(entry.position))?;
        let payload = chunk::payload(chunk, entry.position).map_err(self.corrupt(entry.position))?;
        let payload = &chunk[payload];
        let payload = if copied { Bytes::copy_from_slice(payload) } else { bytes.slice_ref(payload) };
        let block = Arc::new(Block::new(payload));
        let memory_bytes = block.memory_bytes(entry.records);
        self.cache.keep(self.number, entry.position, Part::Block(Arc::clone(&block)), memory_bytes);
        Ok(block)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.cache.forget(self.number);
    }
}

/// Reads the block index: blocks, then per block: bytes of the chunk · records. Gives the position behind the last block.
pub(super) fn decode_blocks(payload: &[u8]) -> Result<(Vec<BlockEntry>, u64), Fault> {
    let mut cursor = Cursor::new(payload);
    let count = cursor.count(2)?;
    let mut blocks = Vec::with_capacity(count);
    let (mut position, mut rank) = (u64::from(HEAD_BYTES), 0_u32);
    for _ in 0..count {
        let (bytes, records) = (cursor.u32()?, cursor.u32()?);
        if records == 0 || records > bytes {
            return Err("a block has no records, or more than bytes");
        }
        blocks.push(BlockEntry { position, bytes, first_rank: rank, records });
        position += u64::from(bytes);
        rank = rank.checked_add(records).ok_or("records are over 32 bits")?;
    }
    if cursor.is_empty() { Ok((blocks, position)) } else { Err("bytes are left over behind the block index") }
}
