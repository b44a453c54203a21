//! Reads a WAL file entry by entry in bounded memory, and changes nothing: for offline tools and backups. Recovery has its
//! own reader; that the two are not one makes this a second opinion.

use bytes::Bytes;
use tidegate_protocol::{limits::FRAME_BYTES_MAX, stored::StoredFrame};

use super::entry::{ALIGN, ENTRY_BYTES, ENTRY_MAGIC, EntryHeader, FileHeader, HEADER_BYTES, HeaderRead, entry_bytes};
use crate::storage::{StorageError, disk::DiskFile};

/// Read at once; a longer entry is read whole.
const WINDOW_BYTES: usize = 1 << 20;

/// A file, and the part of it that is in memory.
#[derive(Debug)]
pub(crate) struct Window<'a> {
    file: &'a dyn DiskFile,
    bytes: u64,
    start: u64,
    held: Vec<u8>,
}

impl<'a> Window<'a> {
    /// # Errors
    /// As the system says.
    pub(crate) fn new(file: &'a dyn DiskFile) -> std::io::Result<Self> {
        Ok(Self { file, bytes: file.length()?, start: 0, held: Vec::new() })
    }

    /// Length of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes from a place on; `None` where the file ends before.
    ///
    /// # Errors
    /// As the system says.
    pub(crate) fn at(&mut self, position: u64, length: usize) -> std::io::Result<Option<&[u8]>> {
        let end = position.saturating_add(length as u64);
        if end > self.bytes {
            return Ok(None);
        }
        if position < self.start || end > self.start + self.held.len() as u64 {
            let left = usize::try_from(self.bytes - position).unwrap_or(usize::MAX);
            self.held.resize(length.max(WINDOW_BYTES).min(left), 0);
            self.start = position;
            self.file.read_at(&mut self.held, position)?;
        }
        let from = usize::try_from(position - self.start).unwrap_or(usize::MAX);
        Ok(self.held.get(from..from + length))
    }
}

/// Why no entry counts at a place.
pub(crate) type Bad = &'static str;

/// What stands at a place of a WAL file.
#[derive(Debug)]
pub(crate) enum Step {
    /// A whole entry.
    Entry {
        /// Checked.
        frame: Box<StoredFrame>,
        /// Where the entry begins.
        position: u64,
    },
    /// A whole entry that cannot follow: damage, never a torn write.
    Misplaced(String),
    /// No entry that counts.
    End(Bad),
}

/// What stands behind the first place without an entry that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Traces {
    /// An entry of a later group: what is before it was durable once.
    pub(crate) later_group: Option<u64>,
    /// Remains of the same group: a torn tail.
    pub(crate) torn: bool,
    /// The next place behind that looks like an entry of this use of the file, and its LSN.
    pub(crate) next_entry: Option<(u64, u64)>,
}

/// A walk through the entries of a file in use.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    window: Window<'a>,
    generation: u64,
    position: u64,
    next_lsn: u64,
}

/// The header of a file.
///
/// # Errors
/// As the system says.
pub(crate) fn header(window: &mut Window<'_>) -> std::io::Result<HeaderRead> {
    let length = HEADER_BYTES.min(usize::try_from(window.bytes()).unwrap_or(usize::MAX));
    Ok(FileHeader::decode(window.at(0, length)?.unwrap_or_default()))
}

impl<'a> Walk<'a> {
    /// Before the first entry.
    pub(crate) fn new(window: Window<'a>, header: &FileHeader) -> Self {
        let (generation, next_lsn) = (header.generation, header.first_lsn);
        Self { window, generation, position: HEADER_BYTES as u64, next_lsn }
    }

    /// Where the next entry would begin.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// LSN it would have.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Length of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.window.bytes()
    }

    /// Takes the next entry; at an end it stays there.
    ///
    /// # Errors
    /// As the system says.
    pub(crate) fn step(&mut self) -> std::io::Result<Step> {
        let position = self.position;
        let Some(header) = self.window.at(position, ENTRY_BYTES)?.and_then(EntryHeader::decode) else {
            return Ok(Step::End("no entry stands here"));
        };
        if header.generation != self.generation {
            return Ok(Step::End("an entry of an earlier use of the file stands here"));
        }
        if header.first_lsn != self.next_lsn {
            let (found, wanted) = (header.first_lsn, self.next_lsn);
            return Ok(Step::Misplaced(format!("an entry of LSN {found} stands where LSN {wanted} must")));
        }
        if header.frame_bytes as usize > FRAME_BYTES_MAX {
            return Ok(Step::End("the entry tells of a frame that is longer than any"));
        }
        let Some(frame) = self.window.at(position + ENTRY_BYTES as u64, header.frame_bytes as usize)? else {
            return Ok(Step::End("the entry ends behind the file"));
        };
        let Ok(frame) = StoredFrame::parse(Bytes::copy_from_slice(frame)) else {
            return Ok(Step::End("the frame of the entry is damaged"));
        };
        if frame.header.first_lsn != header.first_lsn {
            return Ok(Step::End("the frame and its entry name different LSNs"));
        }
        let group_position = header.group_position;
        if group_position < HEADER_BYTES as u64 || group_position > position {
            return Ok(Step::End("the entry names a group that begins behind it"));
        }
        self.position += entry_bytes(frame.bytes.len()) as u64;
        self.next_lsn = frame.next_lsn();
        Ok(Step::Entry { frame: Box::new(frame), position })
    }

    /// What stands from here to the end of the file.
    ///
    /// # Errors
    /// As the system says.
    pub(crate) fn traces(&mut self) -> std::io::Result<Traces> {
        let mut traces = Traces::default();
        let mut at = self.position;
        while let Some(entry) = self.window.at(at, ENTRY_BYTES)? {
            if entry.starts_with(&ENTRY_MAGIC)
                && let Some(header) = EntryHeader::decode(entry)
                && header.generation == self.generation
            {
                if at > self.position {
                    traces.next_entry.get_or_insert((at, header.first_lsn));
                }
                if header.group_position > self.position {
                    traces.later_group = Some(at);
                    return Ok(traces);
                }
                traces.torn = true;
            }
            at += ALIGN as u64;
        }
        Ok(traces)
    }

    /// Goes on at an entry behind damage, as [`Self::traces`] found it.
    pub(crate) fn skip_to(&mut self, (position, lsn): (u64, u64)) {
        (self.position, self.next_lsn) = (position, lsn);
    }

    /// The first byte that is not 0 between the header and the first entry.
    ///
    /// # Errors
    /// As the system says.
    pub(crate) fn header_padding(&mut self) -> std::io::Result<Option<u64>> {
        let page = self.window.at(0, HEADER_BYTES)?.unwrap_or_default();
        let at = page.iter().skip(HEADER_FIELDS_BYTES).position(|byte| *byte != 0);
        Ok(at.map(|at| (HEADER_FIELDS_BYTES + at) as u64))
    }
}

/// Bytes of the header's page that its CRC covers, and the CRC.
const HEADER_FIELDS_BYTES: usize = 28;

/// Opens a file for reading only.
///
/// # Errors
/// As the system says, with the path.
pub(crate) fn open(
    disk: &dyn crate::storage::Disk,
    path: &std::path::Path,
) -> Result<std::sync::Arc<dyn DiskFile>, StorageError> {
    disk.open_to_read(path).map_err(StorageError::io("open", path))
}
