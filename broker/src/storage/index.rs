//! Where each frame lies in a WAL file, and which topics it touches: enough to read only what is wanted.

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

    /// LSN behind the last frame.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Number of frames.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// First LSN of the frame of a number; behind the last one, that of the next frame.
    pub(crate) fn lsn_at(&self, number: usize) -> u64 {
        self.entries.get(number).map_or(self.next_lsn, |entry| self.lsn_of(entry))
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

/// WAL files are at most 1 GiB, so places and counts in them fit 32 bits.
fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("WAL files are at most 1 GiB")
}
