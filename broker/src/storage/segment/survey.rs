//! What can be told of a segment file as it lies there, whole or damaged: for `tidegate inspect`.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Cache, Expected, Ranges, Segment, StoredRecord,
    block::Block,
    check::{self, Fault},
    chunk,
    footer::{FOOTER_BYTES, Footer, HEAD_BYTES, MAGIC, VERSION},
    keys::stored,
    reader::{BlockEntry, decode_blocks},
    topics::{self, Topic},
};
use crate::storage::StorageError;

/// Names of the parts, in their order.
pub const PART_NAMES: [&str; 9] = [
    "blocks",
    "directory",
    "frame heads",
    "permutations",
    "topics",
    "block index",
    "directory index",
    "frame index",
    "filter",
];
/// Number of the first part that is one chunk: those before have an index.
const FIRST_TABLE: usize = 3;
/// Numbers of two tables.
const TOPICS: usize = 4;
const BLOCK_INDEX: usize = 5;
/// Blocks and heads of a segment that is looked at once.
const CACHE_BYTES: usize = 96 << 20;

/// One topic of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicSurvey {
    /// As its frames name it; empty where they cannot be read.
    pub name: String,
    /// Records.
    pub records: u64,
    /// Keys in the directory.
    pub keys: u64,
    /// First and last offset.
    pub offsets: Option<(u64, u64)>,
    /// First and last LSN, as far as frame heads can be read.
    pub lsns: Option<(u64, u64)>,
    /// First and last broker time, Unix milliseconds, likewise.
    pub times_ms: Option<(i64, i64)>,
}

/// See the module.
#[derive(Debug)]
pub struct Survey {
    source: Arc<dyn Ranges>,
    expected: Expected,
    footer: Footer,
    /// Level told by the first bytes.
    pub level: u8,
    topics: Vec<Topic>,
    blocks: Vec<BlockEntry>,
    segment: Option<Segment>,
}

impl Survey {
    /// Looks at a segment of so many bytes. Every fault found on the way is told. `None` without a footer: nothing else says
    /// what lies where.
    pub fn of(source: Arc<dyn Ranges>, object: &str, bytes: u64, told: &mut Vec<Fault>) -> Option<Self> {
        let mut fault = |position: u64, what: &str| told.push(Fault { position, what: what.to_owned() });
        let head = source.read(0..bytes.min(u64::from(HEAD_BYTES))).unwrap_or_default();
        if head.get(..5) != Some(&[&MAGIC[..], &[VERSION]].concat()[..]) {
            fault(0, "the first bytes are not those of a segment that this build reads");
        }
        let footer_at = bytes.saturating_sub(FOOTER_BYTES as u64);
        let footer = source.read(footer_at..bytes).map_err(|error| error.to_string());
        let footer = footer.and_then(|footer| Footer::decode(&footer, bytes).map_err(str::to_owned));
        let footer = match footer {
            Ok(footer) => footer,
            Err(what) => {
                fault(footer_at, &what);
                return None;
            }
        };
        let expected = Expected {
            object: object.to_owned(),
            bytes,
            first_lsn: footer.bases.first_lsn,
            next_lsn: footer.next_lsn,
            shard: footer.shard,
        };
        let level = head.get(5).copied().unwrap_or(footer.level);
        let cache = Arc::new(Cache::new(CACHE_BYTES));
        let mut survey =
            Self { source, expected, footer, level, topics: Vec::new(), blocks: Vec::new(), segment: None };
        match Segment::open(Arc::clone(&survey.source), cache, &survey.expected) {
            Ok(segment) => {
                (survey.topics, survey.blocks) = (segment.topics.clone(), segment.blocks.clone());
                survey.segment = Some(segment);
                survey.check(told);
            }
            Err(error) => survey.tables(&error, told),
        }
        Some(survey)
    }

    /// All that is wrong with a segment that opens.
    fn check(&self, told: &mut Vec<Fault>) {
        let cache = Arc::new(Cache::new(CACHE_BYTES));
        let each = &mut |_: &_| Ok::<_, std::convert::Infallible>(());
        match check::check(&self.source, &cache, &self.expected, each) {
            Ok(faults) => {
                // The first bytes were looked at already.
                let known = !told.is_empty();
                told.extend(faults.into_iter().filter(|fault| fault.position > 0 || !known));
            }
            Err(never) => match never {},
        }
    }

    /// The tables of a segment that does not open, each alone.
    fn tables(&mut self, error: &StorageError, told: &mut Vec<Fault>) {
        let before = told.len();
        for (number, name) in PART_NAMES.iter().enumerate().skip(FIRST_TABLE) {
            let position = self.footer.parts.start(number);
            let payload = self.chunk(position, u64::from(self.footer.parts.all()[number]));
            let read = payload.and_then(|payload| match number {
                TOPICS => topics::decode(&payload).map(|(topics, _)| self.topics = topics).map_err(str::to_owned),
                BLOCK_INDEX => decode_blocks(&payload).map(|(blocks, _)| self.blocks = blocks).map_err(str::to_owned),
                _ => Ok(()),
            });
            if let Err(what) = read {
                told.push(Fault { position, what: format!("{name}: {what}") });
            }
        }
        if told.len() == before {
            told.push(Fault { position: 0, what: error.to_string() });
        }
    }

    fn chunk(&self, position: u64, bytes: u64) -> Result<bytes::Bytes, String> {
        let chunk = self.source.read(position..position + bytes).map_err(|error| error.to_string())?;
        let payload = chunk::payload(&chunk, position).map_err(str::to_owned)?;
        Ok(chunk.slice(payload))
    }

    /// First LSN, and the one behind the last.
    pub fn lsns(&self) -> (u64, u64) {
        (self.expected.first_lsn, self.expected.next_lsn)
    }

    /// First and last broker time, Unix milliseconds.
    pub fn times_ms(&self) -> (i64, i64) {
        (self.footer.bases.first_time_ms, self.footer.last_time_ms)
    }

    /// The shard.
    pub fn shard(&self) -> u16 {
        self.footer.shard
    }

    /// The generation most records have.
    pub fn generation(&self) -> u64 {
        self.footer.bases.generation
    }

    /// Records, keys, blocks.
    pub fn counts(&self) -> (u32, u32, usize) {
        (self.footer.records, self.footer.keys, self.blocks.len())
    }

    /// Position and bytes of each part.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, u64, u32)> + '_ {
        let bytes = self.footer.parts.all();
        PART_NAMES.into_iter().zip(bytes).enumerate().map(|(number, (name, bytes))| {
            let position = self.footer.parts.start(number);
            (name, position, bytes)
        })
    }

    /// The topics by id.
    pub fn topics(&self) -> BTreeMap<u64, TopicSurvey> {
        let of = |topic: &Topic| {
            let last = topic.runs.last().map(|&(first, count)| first + u64::from(count).saturating_sub(1));
            let (records, keys) = (u64::from(topic.records), u64::from(topic.keys));
            let offsets = last.map(|last| (topic.first_offset(), last));
            (topic.id, TopicSurvey { records, keys, offsets, ..TopicSurvey::default() })
        };
        let mut topics: BTreeMap<u64, TopicSurvey> = self.topics.iter().map(of).collect();
        let Some(segment) = &self.segment else { return topics };
        for page in 0..segment.heads.len() {
            // What is wrong with it was told.
            let Ok(heads) = segment.head_page(page) else { continue };
            for head in heads.iter() {
                let time_ms = head.header.broker_time_ms;
                for ((id, _), lsn) in head.positions().zip(head.header.first_lsn..) {
                    let Some(topic) = topics.get_mut(&id) else { continue };
                    topic.lsns = Some((topic.lsns.map_or(lsn, |(first, _)| first), lsn));
                    topic.times_ms = Some((topic.times_ms.map_or(time_ms, |(first, _)| first), time_ms));
                }
                for (stamp, name) in head.header.topics.iter().zip(head.topic_names()) {
                    if let Some(topic) = topics.get_mut(&stamp.id).filter(|topic| topic.name.is_empty()) {
                        name.clone_into(&mut topic.name);
                    }
                }
            }
        }
        topics
    }

    /// Calls `each` with the records as they lie, by topic, key and offset, until it gives `false`. Blocks that cannot be
    /// read are left out: that was told.
    pub fn records(&self, each: &mut dyn FnMut(&StoredRecord) -> bool) {
        for entry in &self.blocks {
            let Ok(payload) = self.chunk(entry.position, u64::from(entry.bytes)) else { continue };
            let block = Block::new(payload);
            let mut wanted = true;
            let walked = block.walk(&self.footer.bases, |number, record, stamp| {
                let Some(topic) = self.topics.get(number as usize) else {
                    return Err("it names no topic that is there");
                };
                let offset = topic.first_offset().saturating_add(stamp.offset);
                wanted = wanted && each(&stored(&block, topic, record, stamp, offset));
                if wanted { Ok(()) } else { Err("enough") }
            });
            if walked.is_err() && !wanted {
                return;
            }
        }
    }
}
