//! Whether a data directory is whole, judged offline: every checksum and index, and that they say the same of each other
//! (ADR 10).
//!
//! Takes the directory's lock, reads everything, writes nothing. Must not know what a checkpoint's bytes mean: whoever owns
//! that form brings [`States`]. Called by `cli`. Memory is bounded whatever the size: one WAL window, one open segment and
//! its cache, a number per topic, and at most [`KEYS_AT_ONCE`] keys.

mod directory;
mod objects;
mod order;
#[cfg(test)]
mod tests;
mod wal;

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use self::order::Order;
use super::{Disk, StorageError};

/// Keys compared in one reading of the log: some 250 MiB of memory. With more the log is read again for the rest.
pub const KEYS_AT_ONCE: usize = 4 << 20;

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: PathBuf,
    /// Where in it.
    pub position: u64,
    /// What is wrong there.
    pub what: String,
}

/// What is told while a directory is checked.
#[derive(Debug)]
pub enum Event<'a> {
    /// Something is wrong. To break ends the check.
    Fault(&'a Fault),
    /// Something is worth knowing and not wrong: a file, and what of it.
    Remark(&'a Path, &'a str),
    /// So many bytes were read of so many.
    Progress {
        /// So far; may grow over the total where the log is read again.
        bytes: u64,
        /// All files.
        total: u64,
    },
}

/// Who listens.
pub type Tell<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// What a checkpoint says, item by item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateItem<'a> {
    /// A topic and where it stands.
    Topic {
        /// Its id.
        id: u64,
        /// Its name.
        name: &'a str,
        /// Whose it is.
        tenant: u32,
        /// Offset of its next record.
        next_offset: u64,
    },
    /// Where a key stands.
    Head {
        /// The topic's id.
        topic: u64,
        /// As stored.
        key: &'a [u8],
        /// Of its last record.
        version: u64,
        /// Of its last record.
        last_offset: u64,
    },
    /// A tenant's name.
    Tenant(&'a str),
    /// A producer's window, with so many results.
    Producer(usize),
    /// A live chain generation of a tenant.
    Activation {
        /// Whose.
        tenant: u32,
        /// Its number.
        generation: u64,
        /// Of its record.
        lsn: u64,
    },
    /// A sample offset → LSN.
    Sample,
}

/// Reads the form of a checkpoint's state.
pub trait States: std::fmt::Debug {
    /// Calls `each` for every item of a state at an LSN, in bounded memory.
    ///
    /// # Errors
    /// What is wrong with it, or what `each` says.
    fn walk(
        &self,
        lsn: u64,
        state: &mut dyn io::Read,
        each: &mut dyn FnMut(StateItem<'_>) -> Result<(), String>,
    ) -> Result<(), String>;
}

/// What was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Segments that the manifest names.
    pub segments: u64,
    /// WAL files that count.
    pub wal_files: u64,
    /// Frames of both.
    pub frames: u64,
    /// Records in them.
    pub records: u64,
    /// Stored components and settings.
    pub blobs: u64,
    /// Bytes of all that was checked.
    pub bytes: u64,
    /// First LSN of the log.
    pub first_lsn: u64,
    /// LSN behind its last frame.
    pub next_lsn: u64,
    /// LSN of the checkpoint.
    pub checkpoint_lsn: Option<u64>,
    /// Things that are wrong.
    pub faults: u64,
    /// Things that nobody names.
    pub orphans: u64,
    /// The check was ended before everything was looked at.
    pub stopped: bool,
}

/// The listener has heard enough.
#[derive(Debug)]
struct Stop;

type Go<T = ()> = Result<T, Stop>;

/// What a check carries along.
struct Check<'a, 'tell> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    states: &'a dyn States,
    tell: &'a mut Tell<'tell>,
    total: u64,
    read: u64,
    report: Report,
    /// Number of the reading: from the second on only what is new is told.
    part: u32,
    told: HashSet<u64>,
}

/// Checks a data directory. Blocking.
///
/// # Errors
/// [`StorageError::InUse`], [`StorageError::Format`], or if it is not there. What is wrong inside is told, and no error.
pub fn run(disk: &dyn Disk, dir: &Path, states: &dyn States, tell: &mut Tell<'_>) -> Result<Report, StorageError> {
    run_bounded(disk, dir, states, tell, KEYS_AT_ONCE)
}

/// As [`run`], with another bound on the keys compared at once.
pub(crate) fn run_bounded(
    disk: &dyn Disk,
    dir: &Path,
    states: &dyn States,
    tell: &mut Tell<'_>,
    keys_max: usize,
) -> Result<Report, StorageError> {
    let _lock = directory::take(disk, dir)?;
    let mut check =
        Check { disk, dir, states, tell, total: 0, read: 0, report: Report::default(), part: 0, told: HashSet::new() };
    check.report.stopped = check.all(keys_max).is_err();
    Ok(check.report)
}

impl Check<'_, '_> {
    fn all(&mut self, keys_max: usize) -> Go {
        let wal = wal::list(self)?;
        let named = objects::list(self, &wal)?;
        self.total += wal.needed_bytes(named.consolidated);
        directory::blobs(self)?;
        let mut order = Order::new(keys_max);
        loop {
            objects::segments(self, &named, &mut order)?;
            wal::read(self, &wal, &named, &mut order)?;
            self.end(&named, &mut order)?;
            // What was read once is read again for the keys that found no room.
            if !order.next_part() {
                return Ok(());
            }
            self.part = order.part();
        }
    }

    /// What only the end of the log can tell.
    fn end(&mut self, named: &objects::Named, order: &mut Order) -> Go {
        if order.part() > 0 {
            return Ok(());
        }
        (self.report.first_lsn, self.report.next_lsn) = order.range();
        (self.report.frames, self.report.records) = order.counts();
        let next_lsn = order.range().1;
        let reaches = named.consolidated.max(named.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.lsn));
        if next_lsn < reaches && !order.is_broken() {
            let what = format!(
                "the WAL ends at LSN {next_lsn}, behind it more was durable, up to {reaches}: files are missing"
            );
            self.fault(&self.dir.join("wal"), 0, what)?;
        }
        Ok(())
    }

    fn fault(&mut self, file: &Path, position: u64, what: impl Into<String>) -> Go {
        let fault = Fault { file: file.to_path_buf(), position, what: what.into() };
        let mut hasher = DefaultHasher::new();
        (&fault.file, fault.position, &fault.what).hash(&mut hasher);
        if !self.told.insert(hasher.finish()) {
            return Ok(());
        }
        self.report.faults += 1;
        self.hear(Event::Fault(&fault))
    }

    /// An error of the disk or the store is a fault of what was read.
    fn failed(&mut self, file: &Path, error: &StorageError) -> Go {
        match error {
            StorageError::Corrupt { position, what, .. } => self.fault(file, *position, what.as_str()),
            other => self.fault(file, 0, other.to_string()),
        }
    }

    fn orphan(&mut self, file: &Path, what: &str) -> Go {
        self.report.orphans += 1;
        self.remark(file, what)
    }

    fn remark(&mut self, file: &Path, what: &str) -> Go {
        if self.part > 0 {
            return Ok(());
        }
        self.hear(Event::Remark(file, what))
    }

    /// So many more bytes were read.
    fn progress(&mut self, bytes: u64) -> Go {
        self.read += bytes;
        self.hear(Event::Progress { bytes: self.read, total: self.total })
    }

    fn hear(&mut self, event: Event<'_>) -> Go {
        match (self.tell)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Stop),
        }
    }
}
