//! Where each frame lies in a WAL file or segment, and which topics it touches: enough to read only what is wanted.

use bytes::{Buf as _, BufMut as _};
use tidegate_protocol::stored::StoredFrame;

/// Gaps up to this are read along with what is wanted: one read of 64 KiB costs less than two reads.
const GAP_BYTES_MAX: u32 = 64 << 10;

/// Topics that a scan asks for; `None` = every frame, also one without records.
pub(crate) type Wanted<'a> = Option<&'a dyn Fn(u64) -> bool>;

/// Frames of one file, by LSN. 16 bytes per frame and 8 per topic of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrameIndex {
    first_lsn: u64,
    next_lsn: u64,
    entries: Vec<Entry>,
    topics: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// From the index's first LSN. A file of 1 GiB holds fewer than 2³² records.
    lsn_delta: u32,
    position: u32,
    bytes: u32,
    topics_end: u32,
}

/// What to read to answer one scan.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Parts of the file to read, ascending; each holds one or more frames.
    pub(crate) reads: Vec<Read>,
    /// How far this scan goes.
    pub(crate) next_lsn: u64,
}

/// One part of a file.
#[derive(Debug)]
pub(crate) struct Read {
    /// From the start of the file.
    pub(crate) position: u32,
    /// Length.
    pub(crate) bytes: u32,
    /// Frames in it: place within the part, length, first LSN.
    pub(crate) frames: Vec<(u32, u32, u64)>,
}

impl FrameIndex {
    /// Empty, for a file that starts at an LSN.
    pub(crate) fn new(first_lsn: u64) -> Self {
        Self { first_lsn, next_lsn: first_lsn, ..Self::default() }
    }

    /// First LSN.
    pub(crate) fn first_lsn(&self) -> u64 {
        self.first_lsn
    }

    /// LSN behind the last frame.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Bytes of memory it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.topics.capacity() * size_of::<u64>()
    }

    /// Adds the frame behind the last one.
    ///
    /// # Panics
    /// If it does not follow the last one, or lies behind 4 GiB: our own files never do that.
    pub(crate) fn push(&mut self, frame: &StoredFrame, position: u64) {
        let header = &frame.header;
        assert_eq!(header.first_lsn, self.next_lsn, "frames are indexed in LSN order");
        self.topics.extend(header.topics.iter().map(|topic| topic.id));
        self.entries.push(Entry {
            lsn_delta: narrow(header.first_lsn - self.first_lsn),
            position: narrow(position),
            bytes: narrow(frame.bytes.len() as u64),
            topics_end: narrow(self.topics.len() as u64),
        });
        self.next_lsn = frame.next_lsn();
    }

    /// What to read for a scan from an LSN within the index: frames that touch a wanted topic, up to a number of bytes,
    /// at least one frame of progress.
    pub(crate) fn plan(&self, from_lsn: u64, bytes_max: usize, wanted: Wanted<'_>) -> Plan {
        let mut plan = Plan { next_lsn: self.next_lsn, ..Plan::default() };
        let mut planned_bytes = 0;
        for at in self.position_of(from_lsn)..self.entries.len() {
            let entry = self.entries[at];
            if wanted.is_some_and(|wanted| !self.topics_of(at).iter().any(|id| wanted(*id))) {
                continue;
            }
            if planned_bytes > 0 && planned_bytes + entry.bytes as usize > bytes_max {
                plan.next_lsn = self.lsn_of(&entry);
                break;
            }
            planned_bytes += entry.bytes as usize;
            plan.add(&entry, self.lsn_of(&entry));
        }
        plan
    }

    /// Number of the last frame that starts at or before an LSN.
    fn position_of(&self, lsn: u64) -> usize {
        self.entries.partition_point(|entry| self.lsn_of(entry) <= lsn).saturating_sub(1)
    }

    fn lsn_of(&self, entry: &Entry) -> u64 {
        self.first_lsn + u64::from(entry.lsn_delta)
    }

    fn topics_of(&self, at: usize) -> &[u64] {
        let start = at.checked_sub(1).map_or(0, |before| self.entries[before].topics_end as usize);
        &self.topics[start..self.entries[at].topics_end as usize]
    }

    /// Writes a segment's footer: u64 first LSN, u64 next LSN, u32 count, then per frame { u32 position, u32 length,
    /// u64 first LSN, u16 topics, topics × u64 id }. `moved` gives each frame's place there.
    pub(crate) fn encode(&self, mut moved: impl FnMut(u32) -> u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(20 + self.entries.len() * 18 + self.topics.len() * 8);
        out.put_u64_le(self.first_lsn);
        out.put_u64_le(self.next_lsn);
        out.put_u32_le(narrow(self.entries.len() as u64));
        for (at, entry) in self.entries.iter().enumerate() {
            let topics = self.topics_of(at);
            out.put_u32_le(moved(entry.bytes));
            out.put_u32_le(entry.bytes);
            out.put_u64_le(self.lsn_of(entry));
            out.put_u16_le(u16::try_from(topics.len()).expect("a frame has at most 65 535 topics"));
            topics.iter().for_each(|id| out.put_u64_le(*id));
        }
        out
    }

    /// Reads a footer whose CRC holds. `Err` names the rule that is broken.
    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Self, &'static str> {
        const CUT: &str = "the footer ends too early";
        let first_lsn = bytes.try_get_u64_le().map_err(|_| CUT)?;
        let next_lsn = bytes.try_get_u64_le().map_err(|_| CUT)?;
        let count = bytes.try_get_u32_le().map_err(|_| CUT)? as usize;
        if count > bytes.len() / 18 {
            return Err(CUT);
        }
        let mut index = Self { first_lsn, next_lsn, entries: Vec::with_capacity(count), topics: Vec::new() };
        let mut last = None;
        let mut end = 0;
        for _ in 0..count {
            let position = bytes.try_get_u32_le().map_err(|_| CUT)?;
            let frame_bytes = bytes.try_get_u32_le().map_err(|_| CUT)?;
            let lsn = bytes.try_get_u64_le().map_err(|_| CUT)?;
            if last.map_or(lsn != first_lsn, |last| lsn <= last) || lsn >= next_lsn {
                return Err("LSNs of the footer do not ascend");
            }
            last = Some(lsn);
            if position < end {
                return Err("frames of the footer overlap");
            }
            end = position.checked_add(frame_bytes).ok_or("a frame of the footer ends behind 4 GiB")?;
            for _ in 0..bytes.try_get_u16_le().map_err(|_| CUT)? {
                index.topics.push(bytes.try_get_u64_le().map_err(|_| CUT)?);
            }
            let lsn_delta = u32::try_from(lsn - first_lsn).map_err(|_| "LSNs of the footer are too far apart")?;
            let topics_end = u32::try_from(index.topics.len()).map_err(|_| "the footer has too many topics")?;
            index.entries.push(Entry { lsn_delta, position, bytes: frame_bytes, topics_end });
        }
        if bytes.is_empty() { Ok(index) } else { Err("bytes are left over behind the footer") }
    }
}

impl Plan {
    fn add(&mut self, entry: &Entry, lsn: u64) {
        if let Some(last) = self.reads.last_mut()
            && let Some(gap) = entry.position.checked_sub(last.position + last.bytes)
            && gap <= GAP_BYTES_MAX
        {
            last.frames.push((entry.position - last.position, entry.bytes, lsn));
            last.bytes = entry.position - last.position + entry.bytes;
            return;
        }
        self.reads.push(Read { position: entry.position, bytes: entry.bytes, frames: vec![(0, entry.bytes, lsn)] });
    }
}

/// WAL files and segments are at most 1 GiB, so places and counts in them fit 32 bits.
fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("WAL files and segments are at most 1 GiB")
}
