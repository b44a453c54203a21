//! Builds a segment of the frames of one window: sorts their records, then writes part after part into one buffer.

use std::{cmp::Ordering, collections::HashMap, sync::Arc};

use bytes::Bytes;
use tidegate_protocol::{record::RecordView, stored::StoredFrame};

use super::{
    block::{self, Bases, Stamp},
    chunk,
    directory::{self, KeyHead},
    filter,
    footer::{Footer, HEAD_BYTES, MAGIC, VERSION},
    heads,
    topics::{self, Topic},
    varint::put,
};

/// A block is ended when it has so many bytes: one read, one CRC. It holds one record at least.
const BLOCK_BYTES: usize = 64 << 10;

/// A record of the window: all that is written of it, so that sorting and writing, which jump about in memory, jump once.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    record: RecordView<'a>,
    offset: u64,
    key_version: u64,
    /// Number in the window.
    frame: u32,
    /// Position in the frame's body.
    position: u32,
    /// Number among the topic's records of the window.
    nth: u32,
    topic: u32,
}

/// What rows are sorted by: topic, null keys first, 8 bytes of the key behind what all keys of the topic share; where
/// these do not settle it the whole key, then the row.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Topic number × 2 + 1 if there is a key.
    topic: u64,
    prefix: u64,
    /// Bytes of the key behind the shared ones if `prefix` holds them all, else `LONG`.
    length: u8,
    row: u32,
}

const PREFIX_BYTES: usize = 8;
const LONG: u8 = 9;

/// Builds a segment. The frames must follow each other.
///
/// # Panics
/// If there is no frame, they do not follow each other, or hold more than 4 GiB or 2³² records: a window is far smaller.
pub fn build(shard: u16, level: u8, frames: &[Arc<StoredFrame>]) -> Bytes {
    let (first, last) = frames.first().zip(frames.last()).expect("a window has frames");
    let follow = |pair: &[Arc<StoredFrame>]| pair[0].next_lsn() == pair[1].header.first_lsn;
    assert!(frames.windows(2).all(follow), "frames of a window follow each other");
    let bases = Bases {
        first_lsn: first.header.first_lsn,
        first_time_ms: first.header.broker_time_ms,
        generation: common_generation(frames),
    };
    let (topics, rows) = collect(frames);
    let order = sort(&rows, topics.len());
    let window_bytes: usize = frames.iter().map(|frame| frame.bytes.len()).sum();
    let mut build = Build {
        frames,
        bases,
        ranks: vec![0; rows.len()],
        rows,
        topics,
        out: Vec::with_capacity(window_bytes + window_bytes / 4 + (64 << 10)),
        block_index: Vec::new(),
        blocks: 0,
        directory: directory::Builder::default(),
        hashes: Vec::new(),
    };
    build.out.extend_from_slice(&MAGIC);
    build.out.extend_from_slice(&[VERSION, level]);
    build.out.extend_from_slice(&shard.to_le_bytes());
    build.write_blocks(&order);
    drop(order);
    let footer = Footer {
        bases,
        next_lsn: last.next_lsn(),
        last_time_ms: last.header.broker_time_ms,
        records: narrow(build.rows.len()),
        keys: narrow(build.hashes.len()),
        shard,
        level,
        ..Footer::default()
    };
    build.finish(footer)
}

#[derive(Debug)]
struct Build<'a> {
    frames: &'a [Arc<StoredFrame>],
    bases: Bases,
    rows: Vec<Row<'a>>,
    topics: Vec<Topic>,
    /// Of each topic's n-th record, topic after topic, the rank within the topic.
    ranks: Vec<u32>,
    out: Vec<u8>,
    block_index: Vec<u8>,
    blocks: u64,
    directory: directory::Builder,
    hashes: Vec<u64>,
}

impl<'a> Build<'a> {
    /// Writes all records by (topic, key, offset), and takes down ranks, keys and hashes on the way.
    fn write_blocks(&mut self, order: &[Place]) {
        let mut open: Option<OpenBlock> = None;
        let mut group = Vec::new();
        let (mut topic_before, mut rank) = (0_u32, 0_usize);
        while let Some(place) = order.get(rank) {
            let key = self.key(place.row);
            let topic = self.rows[place.row as usize].topic;
            let same = order[rank..].iter().take_while(|next| self.same_key(place, next));
            let records = same.count();
            let mut written = 0;
            while written < records {
                let block = open.get_or_insert_with(|| OpenBlock::begin(&mut self.out));
                group.clear();
                let in_group = self.fill(&order[rank + written..rank + records], rank + written, block, &mut group);
                let step = topic - if block.records == 0 { 0 } else { topic_before };
                block::put_group(&mut self.out, step, key, narrow(in_group), &group);
                block.records += narrow(in_group);
                topic_before = topic;
                written += in_group;
                if self.out.len() - block.position >= BLOCK_BYTES {
                    let block = open.take().expect("it is open");
                    self.end_block(&block);
                }
            }
            self.end_key(topic, key, &order[rank..rank + records], rank);
            rank += records;
        }
        if let Some(block) = open {
            self.end_block(&block);
        }
    }

    /// Puts records of one key into a group until the block is full. Gives how many.
    fn fill(&mut self, places: &[Place], mut rank: usize, block: &OpenBlock, group: &mut Vec<u8>) -> usize {
        let room = BLOCK_BYTES.saturating_sub(self.out.len() - block.position);
        for (place, count) in places.iter().zip(1..) {
            let row = self.rows[place.row as usize];
            let frame = &self.frames[row.frame as usize];
            let topic = &self.topics[row.topic as usize];
            let stamp = Stamp {
                offset: row.offset - topic.first_offset(),
                key_version: row.key_version,
                lsn: frame.header.first_lsn + u64::from(row.position),
                broker_time_ms: frame.header.broker_time_ms,
                generation: frame.header.generation,
            };
            block::put_record(group, &self.bases, &stamp, &row.record);
            self.ranks[(topic.first_rank + row.nth) as usize] = narrow(rank) - topic.first_rank;
            rank += 1;
            if group.len() >= room {
                return count;
            }
        }
        places.len()
    }

    fn end_block(&mut self, block: &OpenBlock) {
        let bytes = chunk::end(&mut self.out, block.position);
        put(&mut self.block_index, bytes as u64);
        put(&mut self.block_index, u64::from(block.records));
        self.blocks += 1;
    }

    fn end_key(&mut self, topic: u32, key: Option<&[u8]>, places: &[Place], first_rank: usize) {
        let count = narrow(places.len());
        let Some(key) = key else {
            self.topics[topic as usize].nulls = count;
            return;
        };
        let last = places.last().map_or(0, |place| place.row) as usize;
        let row = self.rows[last];
        let deleted = row.record.value.is_none();
        let head = KeyHead { version: row.key_version, last_offset: row.offset, deleted, records: count };
        let entry = &mut self.topics[topic as usize];
        entry.keys += 1;
        self.directory.push(topic, key, narrow(first_rank), &head, entry.first_offset());
        self.hashes.push(filter::hash(entry.id, key));
    }

    /// Writes everything behind the blocks.
    fn finish(mut self, mut footer: Footer) -> Bytes {
        let parts = &mut footer.parts;
        let mut end = HEAD_BYTES as usize;
        let mut part = |out: &Vec<u8>| {
            let bytes = narrow(out.len() - end);
            end = out.len();
            bytes
        };
        let out = &mut self.out;
        parts.blocks = part(out);
        self.directory.finish();
        let directory_bytes = put_pages(out, &self.directory.payloads, &self.directory.ends);
        parts.directory = part(out);
        let mut heads = heads::Builder::default();
        for frame in self.frames {
            heads.push(frame.header.first_lsn, frame.header.broker_time_ms, frame.head_bytes());
        }
        heads.finish();
        let head_bytes = put_pages(out, &heads.payloads, &heads.ends);
        parts.heads = part(out);
        let mut permutations = Vec::new();
        for topic in &mut self.topics {
            let ranks = topic.ranks().start as usize..topic.ranks().end as usize;
            topics::pack(topic, &self.ranks[ranks], &mut permutations);
        }
        topics::pad(&mut permutations);
        chunk::put(out, &permutations);
        parts.permutations = part(out);
        chunk::put(out, &topics::encode(&self.topics));
        parts.topics = part(out);
        let mut block_index = Vec::new();
        put(&mut block_index, self.blocks);
        block_index.extend_from_slice(&self.block_index);
        chunk::put(out, &block_index);
        parts.block_index = part(out);
        chunk::put(out, &self.directory.encode_index(&directory_bytes));
        parts.directory_index = part(out);
        let Bases { first_lsn, first_time_ms, .. } = footer.bases;
        chunk::put(out, &heads.encode_index(&head_bytes, first_lsn, first_time_ms));
        parts.head_index = part(out);
        chunk::put(out, &filter::build(&self.hashes));
        parts.filter = part(out);
        footer.object_crc = crc32c::crc32c(out);
        out.extend_from_slice(&footer.encode());
        self.out.into()
    }

    fn key(&self, row: u32) -> Option<&'a [u8]> {
        self.rows[row as usize].record.key
    }

    fn same_key(&self, one: &Place, other: &Place) -> bool {
        (one.topic, one.prefix, one.length) == (other.topic, other.prefix, other.length)
            && (one.length != LONG || self.key(one.row) == self.key(other.row))
    }
}

#[derive(Debug)]
struct OpenBlock {
    position: usize,
    records: u32,
}

impl OpenBlock {
    fn begin(out: &mut Vec<u8>) -> Self {
        Self { position: chunk::begin(out), records: 0 }
    }
}

/// The topics by id, and the records in shard order.
fn collect(frames: &[Arc<StoredFrame>]) -> (Vec<Topic>, Vec<Row<'_>>) {
    let mut ids: Vec<u64> = frames.iter().flat_map(|frame| frame.header.topics.iter().map(|topic| topic.id)).collect();
    ids.sort_unstable();
    ids.dedup();
    let numbers: HashMap<u64, u32> = ids.iter().copied().zip(0..).collect();
    let mut topics: Vec<Topic> = ids.into_iter().map(Topic::new).collect();
    let records = frames.iter().filter_map(|frame| frame.body.as_ref()).map(|body| body.len() as usize).sum();
    let mut rows = Vec::with_capacity(records);
    for (frame, number) in frames.iter().zip(0..) {
        let mut last = None;
        let body = frame.body.iter().flat_map(|body| body.records());
        for (((id, offset, key_version), (_, record)), position) in frame.positions().zip(body).zip(0..) {
            let topic = match last {
                Some((last, topic)) if last == id => topic,
                _ => numbers[&id],
            };
            last = Some((id, topic));
            let entry = &mut topics[topic as usize];
            rows.push(Row { record, offset, key_version, frame: number, position, nth: entry.records, topic });
            entry.push(offset);
        }
    }
    let mut rank = 0_u32;
    for topic in &mut topics {
        topic.first_rank = rank;
        rank = rank.checked_add(topic.records).expect("a window has fewer than 2³² records");
    }
    (topics, rows)
}

/// Rows by topic, key, offset: offsets ascend with the rows of a topic.
fn sort(rows: &[Row<'_>], topics: usize) -> Vec<Place> {
    let shared = shared_bytes(rows, topics);
    let place = |(row, number): (&Row<'_>, u32)| {
        let topic = u64::from(row.topic) << 1 | u64::from(row.record.key.is_some());
        let rest = row.record.key.map_or(&[][..], |key| &key[shared[row.topic as usize]..]);
        let mut prefix = [0; PREFIX_BYTES];
        let bytes = rest.len().min(PREFIX_BYTES);
        prefix[..bytes].copy_from_slice(&rest[..bytes]);
        let length = if rest.len() > PREFIX_BYTES { LONG } else { u8::try_from(bytes).unwrap_or(LONG) };
        Place { topic, prefix: u64::from_be_bytes(prefix), length, row: number }
    };
    let mut order: Vec<Place> = rows.iter().zip(0..).map(place).collect();
    // A key that ends within the prefix is before all that go on with zeros: so is its length.
    order.sort_unstable_by(|one, other| match one.topic.cmp(&other.topic).then(one.prefix.cmp(&other.prefix)) {
        Ordering::Equal if one.length == LONG && other.length == LONG => {
            let keys = [one, other].map(|place| rows[place.row as usize].record.key);
            keys[0].cmp(&keys[1]).then(one.row.cmp(&other.row))
        }
        Ordering::Equal => (one.length, one.row).cmp(&(other.length, other.row)),
        unequal => unequal,
    });
    order
}

/// Of each topic how many bytes all its keys begin with.
fn shared_bytes(rows: &[Row<'_>], topics: usize) -> Vec<usize> {
    let mut first: Vec<Option<&[u8]>> = vec![None; topics];
    for row in rows {
        let Some(key) = row.record.key else { continue };
        let shared = &mut first[row.topic as usize];
        *shared = Some(match *shared {
            None => key,
            Some(shared) if key.starts_with(shared) => shared,
            Some(shared) => &shared[..shared.iter().zip(key).take_while(|(one, other)| one == other).count()],
        });
    }
    first.into_iter().map(|shared| shared.map_or(0, <[u8]>::len)).collect()
}

/// The generation under which most frames ran: records of another one spell it out.
fn common_generation(frames: &[Arc<StoredFrame>]) -> u64 {
    let mut counts = HashMap::new();
    frames.iter().for_each(|frame| *counts.entry(frame.header.generation).or_insert(0_usize) += 1);
    counts.into_iter().max_by_key(|&(generation, count)| (count, generation)).map_or(0, |(generation, _)| generation)
}

/// Puts pages that lie back to back as chunks. Gives the bytes of each.
fn put_pages(out: &mut Vec<u8>, payloads: &[u8], ends: &[usize]) -> Vec<usize> {
    let mut start = 0;
    let put = |&end: &usize| {
        let bytes = chunk::put(out, &payloads[start..end]);
        start = end;
        bytes
    };
    ends.iter().map(put).collect()
}

/// A window is some dozens of MiB, a frame at most 64 MiB: what is counted in it fits 32 bits.
fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("a window has under 4 GiB")
}
