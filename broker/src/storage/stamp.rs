//! A frame without its records: when it was taken, and which offsets it gave. Enough to find a record or a time, and to say
//! what is older or beyond a size.

use tidegate_protocol::stored::{FrameHead, FrameHeader, StoredFrame};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameStamp {
    /// Position of its first record.
    pub first_lsn: u64,
    /// Position behind it.
    pub next_lsn: u64,
    /// Unix milliseconds.
    pub broker_time_ms: i64,
    /// Bytes of its records as they were stored.
    pub bytes: u64,
    /// Id and first offset of each topic.
    topics: Vec<(u64, u64)>,
    /// In batch order: number of the topic, and how many records.
    runs: Vec<(u16, u32)>,
}

/// Stamps of a stretch of the log, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stamps {
    /// Those of frames that touch a wanted topic; others may be among them.
    pub stamps: Vec<FrameStamp>,
    /// Everything before it was looked at.
    pub next_lsn: u64,
}

/// Of a number of bytes those that some of the records stand for.
pub fn share(bytes: u64, records: u64, of: u64) -> u64 {
    let part = u128::from(bytes) * u128::from(records) / u128::from(of.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

impl FrameStamp {
    fn new(header: &FrameHeader, next_lsn: u64, bytes: usize, runs: Vec<(u16, u32)>) -> Self {
        let topics = header.topics.iter().map(|topic| (topic.id, topic.base_offset)).collect();
        let FrameHeader { first_lsn, broker_time_ms, .. } = *header;
        Self { first_lsn, next_lsn, broker_time_ms, bytes: bytes as u64, topics, runs }
    }

    /// For each topic that it gave offsets: id, first offset, number of records.
    pub fn parts(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let records = |number: usize| {
            let of_topic = self.runs.iter().filter(move |(topic, _)| usize::from(*topic) == number);
            of_topic.map(|&(_, records)| u64::from(records)).sum::<u64>()
        };
        self.topics.iter().enumerate().map(move |(number, &(id, first))| (id, first, records(number)))
    }

    /// Position of the record at an offset of a topic, if it is one of this frame.
    pub fn lsn_of(&self, id: u64, offset: u64) -> Option<u64> {
        let (number, &(_, first)) = self.topics.iter().enumerate().find(|(_, (topic, _))| *topic == id)?;
        let mut left = offset.checked_sub(first)?;
        let mut lsn = self.first_lsn;
        for &(topic, records) in &self.runs {
            let records = u64::from(records);
            if usize::from(topic) == number {
                if left < records {
                    return lsn.checked_add(left);
                }
                left -= records;
            }
            lsn = lsn.checked_add(records)?;
        }
        None
    }

    /// The bytes that so many of its records stand for.
    pub fn share(&self, records: u64) -> u64 {
        share(self.bytes, records, self.runs.iter().map(|&(_, records)| u64::from(records)).sum())
    }
}

impl From<&FrameHead> for FrameStamp {
    fn from(head: &FrameHead) -> Self {
        Self::new(&head.header, head.next_lsn(), head.body_bytes(), head.runs.clone())
    }
}

impl From<&StoredFrame> for FrameStamp {
    fn from(frame: &StoredFrame) -> Self {
        let sections = frame.body.iter().flat_map(|body| body.sections());
        let runs = sections.map(|section| (section.topic, section.records)).collect();
        let bytes = frame.body.as_ref().map_or(0, |body| body.bytes().len());
        Self::new(&frame.header, frame.next_lsn(), bytes, runs)
    }
}
