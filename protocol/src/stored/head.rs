//! A frame without its columns: what a segment keeps of it beside the records, and how both become the frame again.

use bytes::Bytes;

use super::{FrameError, FrameHeader, StoredFrame, check_against_body, codec};
use crate::{
    batch::{BODY_HEADER_BYTES, BatchBody, NULL},
    record::RecordView,
};

/// Where the body's counts lie.
const TOPICS_AT: usize = 2;
const RECORDS_AT: usize = 8;
const SECTIONS_AT: usize = 12;
const REST_AT: usize = 16;

/// The header, and of the body everything before its columns: checked as far as the header's CRC goes.
#[derive(Debug, Clone)]
pub struct FrameHead {
    /// The broker's part.
    pub header: FrameHeader,
    /// Runs of records: number of the topic in `header.topics`, and how many.
    pub runs: Vec<(u16, u32)>,
    /// Records of the body.
    pub records: u32,
    bytes: Bytes,
    body_bytes: usize,
}

impl StoredFrame {
    /// Its bytes before the columns: what [`FrameHead::parse`] takes.
    pub fn head_bytes(&self) -> &[u8] {
        let body = self.body.as_ref().map_or(0, |body| body.bytes().len() - body.head_bytes());
        &self.bytes[..self.bytes.len() - body]
    }
}

impl FrameHead {
    /// Takes exactly one head. The body's CRC is checked by [`Self::frame`], when the columns are there.
    ///
    /// # Errors
    /// If a length, a count or the header's CRC is wrong.
    pub fn parse(bytes: Bytes) -> Result<Self, FrameError> {
        let cut = FrameError::Cut { needed: super::PREFIX_BYTES, there: bytes.len() };
        let lengths = codec::lengths(&bytes)?.ok_or(cut)?;
        let Some((header, body)) = bytes.split_at_checked(lengths.header) else {
            return Err(FrameError::Cut { needed: lengths.header, there: bytes.len() });
        };
        codec::check_crc(header)?;
        if lengths.body == 0 {
            if !body.is_empty() {
                return Err(FrameError::Malformed { what: "bytes are left over behind the head" });
            }
            let header = codec::decode(header, 0)?;
            check_against_body(&header, None)?;
            return Ok(Self { header, runs: Vec::new(), records: 0, bytes, body_bytes: 0 });
        }
        if body.len() < BODY_HEADER_BYTES || lengths.body < body.len() {
            return Err(FrameError::Malformed { what: "the head of the body is cut, or longer than the body" });
        }
        let records = word(body, RECORDS_AT);
        let runs = runs(body)?;
        let told: u64 = runs.iter().map(|&(_, records)| u64::from(records)).sum();
        if told != u64::from(records) {
            return Err(FrameError::Malformed { what: "sections hold another number of records than the batch" });
        }
        let header = codec::decode(header, records)?;
        if runs.iter().any(|&(topic, _)| usize::from(topic) >= header.topics.len()) {
            return Err(FrameError::Malformed { what: "a section names a topic outside the table" });
        }
        Ok(Self { header, runs, records, bytes, body_bytes: lengths.body })
    }

    /// First LSN behind the frame.
    pub fn next_lsn(&self) -> u64 {
        self.header.first_lsn.saturating_add(u64::from(self.records.max(1)))
    }

    /// Bytes of the body.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Bytes of the whole frame.
    pub fn frame_bytes(&self) -> usize {
        self.header_bytes() + self.body_bytes
    }

    /// For each record in batch order: topic id and offset.
    pub fn positions(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut next = self.header.topics.clone();
        let topics =
            self.runs.iter().flat_map(|&(topic, records)| std::iter::repeat_n(usize::from(topic), records as usize));
        topics.filter_map(move |topic| {
            let stamp = next.get_mut(topic)?;
            let offset = stamp.base_offset;
            stamp.base_offset = offset.wrapping_add(1);
            Some((stamp.id, offset))
        })
    }

    /// Names of the topics of `header.topics`, as the body has them; fewer where one is none.
    pub fn topic_names(&self) -> impl Iterator<Item = &str> + '_ {
        let mut rest = self.bytes.get(self.header_bytes() + BODY_HEADER_BYTES..).unwrap_or_default();
        (0..self.header.topics.len()).map_while(move |_| {
            let (length, behind) = rest.split_first_chunk::<2>()?;
            let (name, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            rest = behind;
            std::str::from_utf8(name).ok()
        })
    }

    /// The frame as it was, byte for byte, of its records in batch order: the CRC of the body is checked again.
    ///
    /// # Errors
    /// If these are not the frame's records.
    pub fn frame(&self, records: &[RecordView<'_>]) -> Result<StoredFrame, FrameError> {
        let head_bytes = self.bytes.len() - self.header_bytes();
        let items: usize = records.iter().map(RecordView::bytes).sum();
        let whole = head_bytes + records.len() * crate::batch::RECORD_FIXED_BYTES + items;
        if records.len() != self.records as usize || (self.body_bytes > 0 && whole != self.body_bytes) {
            return Err(FrameError::Malformed { what: "the records are not those of the frame" });
        }
        let mut out = Vec::with_capacity(self.frame_bytes());
        out.extend_from_slice(&self.bytes);
        if self.body_bytes > 0 {
            ends(&mut out, records.iter().map(|record| record.key));
            ends(&mut out, records.iter().map(|record| record.value));
            ends(&mut out, records.iter().map(|record| Some(record.headers)));
            records.iter().for_each(|record| out.extend_from_slice(&record.timestamp_ms.to_le_bytes()));
            records.iter().for_each(|record| out.extend_from_slice(record.key.unwrap_or_default()));
            records.iter().for_each(|record| out.extend_from_slice(record.value.unwrap_or_default()));
            records.iter().for_each(|record| out.extend_from_slice(record.headers));
        }
        StoredFrame::parse(out.into())
    }

    fn header_bytes(&self) -> usize {
        word(&self.bytes, 8) as usize
    }
}

impl BatchBody {
    /// Bytes before the columns.
    pub(crate) fn head_bytes(&self) -> usize {
        BODY_HEADER_BYTES + self.topics().map(|name| 2 + name.len()).sum::<usize>() + self.sections().len() * 8
    }
}

/// The section table, which ends the head of a body; the topic table is stepped over.
fn runs(body: &[u8]) -> Result<Vec<(u16, u32)>, FrameError> {
    const CUT: FrameError = FrameError::Malformed { what: "the head of the body is not as long as its tables" };
    let topics = usize::from(u16::from_le_bytes([body[TOPICS_AT], body[TOPICS_AT + 1]]));
    let mut rest = &body[BODY_HEADER_BYTES..];
    for _ in 0..topics {
        let (length, behind) = rest.split_first_chunk::<2>().ok_or(CUT)?;
        rest = behind.get(usize::from(u16::from_le_bytes(*length))..).ok_or(CUT)?;
    }
    if rest.len() as u64 != u64::from(word(body, SECTIONS_AT)) * 8 {
        return Err(CUT);
    }
    let run = |entry: &[u8]| {
        let topic = u16::try_from(word(entry, 0));
        topic.map(|topic| (topic, word(entry, 4))).map_err(|_| CUT)
    };
    if word(body, REST_AT) as usize + BODY_HEADER_BYTES < body.len() {
        return Err(CUT);
    }
    rest.chunks_exact(8).map(run).collect()
}

fn ends<'a>(out: &mut Vec<u8>, items: impl Iterator<Item = Option<&'a [u8]>>) {
    let mut end: u32 = 0;
    for item in items {
        // The frame told its length in a u32, and `frame` has compared: no end is over it.
        end = end.wrapping_add(u32::try_from(item.map_or(0, <[u8]>::len)).unwrap_or(u32::MAX));
        let null = if item.is_none() { NULL } else { 0 };
        out.extend_from_slice(&(end | null).to_le_bytes());
    }
}

/// Little-endian u32 at a place the caller has checked; 0 if it is not there.
fn word(bytes: &[u8], place: usize) -> u32 {
    bytes.get(place..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}
