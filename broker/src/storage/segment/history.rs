//! Reads of frame heads alone: what lies where, by time, without a record.

use tidegate_protocol::stored::FrameHead;

use super::reader::Segment;
use crate::storage::{FrameStamp, Stamps, StorageError};

impl Segment {
    /// The first LSN whose frame was taken at a time or later; that behind the segment if there is none. Reads one page.
    ///
    /// # Errors
    /// If the store fails or the segment is damaged.
    pub fn lsn_at_time(&self, time_ms: i64) -> Result<u64, StorageError> {
        let behind = self.heads.partition_point(|page| page.first_time_ms < time_ms);
        let next = self.heads.get(behind).map_or_else(|| self.next_lsn(), |page| page.first_lsn);
        let Some(page) = behind.checked_sub(1) else { return Ok(next) };
        let heads = self.head_page(page)?;
        let first = heads.partition_point(|head| head.header.broker_time_ms < time_ms);
        Ok(heads.get(first).map_or(next, |head| head.header.first_lsn))
    }

    /// Stamps of frames from the one that holds an LSN on that touch a wanted topic: those of one page.
    ///
    /// # Errors
    /// As `lsn_at_time`.
    pub fn stamps(&self, from_lsn: u64, wanted: &dyn Fn(u64) -> bool) -> Result<Stamps, StorageError> {
        let mut found = Stamps { stamps: Vec::new(), next_lsn: self.next_lsn() };
        if !self.topics.iter().any(|topic| wanted(topic.id)) {
            return Ok(found);
        }
        let page = self.heads.partition_point(|page| page.first_lsn <= from_lsn).saturating_sub(1);
        if let Some(next) = self.heads.get(page + 1) {
            found.next_lsn = next.first_lsn;
        }
        let heads = self.head_page(page)?;
        let touches = |head: &&FrameHead| head.header.topics.iter().any(|topic| wanted(topic.id));
        let heads = heads.iter().filter(|head| head.next_lsn() > from_lsn).filter(touches);
        found.stamps.extend(heads.map(FrameStamp::from));
        Ok(found)
    }

    /// Each topic, and the offset behind its last record here.
    pub fn topic_ends(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let end = |runs: &[(u64, u32)]| runs.last().map_or(0, |&(first, count)| first.saturating_add(u64::from(count)));
        self.topics.iter().map(move |topic| (topic.id, end(&topic.runs)))
    }
}
