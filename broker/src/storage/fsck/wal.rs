//! The WAL: which files count, what they hold, and whether what ends it is a torn tail or damage. The rules are those of
//! recovery (ADR 4); nothing is wiped.

use std::{io, path::PathBuf, sync::Arc};

use super::{
    Check, Go,
    objects::{self, Named},
    order::Order,
};
use crate::storage::{
    StorageError,
    disk::DiskFile,
    wal::{
        entry::{ENTRY_BYTES, EntryHeader, FileHeader, HEADER_BYTES, HeaderRead},
        spare::slot_of,
        walk::{self, Step, Walk, Window},
    },
};

/// The files of a WAL, before their entries are read.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// By generation.
    files: Vec<Found>,
    /// Files without a header: where their first entry, if they have one, begins in the log.
    blank: Vec<(PathBuf, u64)>,
    /// Whose log it is.
    pub(super) shard: Option<u16>,
}

#[derive(Debug, Clone)]
struct Found {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    bytes: u64,
    header: FileHeader,
}

impl Listed {
    /// The files that hold what no segment holds: all frames of a file lie in segments if the next one starts no later than
    /// they end.
    fn needed(&self, consolidated: u64) -> impl Iterator<Item = &Found> {
        let next = move |at: usize| self.files.get(at + 1).map(|next| next.header.first_lsn);
        let needed = move |at: usize| next(at).is_none_or(|next| next > consolidated);
        self.files.iter().enumerate().filter(move |(at, _)| needed(*at)).map(|(_, found)| found)
    }

    /// There is no WAL file at all.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Bytes of these.
    pub(super) fn needed_bytes(&self, consolidated: u64) -> u64 {
        self.needed(consolidated).map(|found| found.bytes).sum()
    }
}

/// Reads the header of every file.
pub(super) fn list(check: &mut Check<'_, '_>) -> Go<Listed> {
    let dir = check.dir.join("wal");
    let mut listed = Listed::default();
    let mut names = match check.disk.list(&dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(listed),
        Err(error) => {
            check.failed(&dir, &StorageError::io("list", &dir)(error))?;
            return Ok(listed);
        }
    };
    names.sort_unstable();
    for name in names {
        let path = dir.join(&name);
        if slot_of(&name).is_none() {
            check.orphan(&path, "the broker does not know a file of this name")?;
            continue;
        }
        if let Err(error) = read_header(check, &path, &mut listed)? {
            check.failed(&path, &error)?;
        }
    }
    listed.files.sort_unstable_by_key(|found| found.header.generation);
    Ok(listed)
}

fn read_header(check: &mut Check<'_, '_>, path: &PathBuf, listed: &mut Listed) -> Go<Result<(), StorageError>> {
    let read = || {
        let file = walk::open(check.disk, path)?;
        let fail = |error| StorageError::io("read", path)(error);
        let mut window = Window::new(&*file).map_err(fail)?;
        let header = walk::header(&mut window).map_err(fail)?;
        let entry = window.at(HEADER_BYTES as u64, ENTRY_BYTES).map_err(fail)?.and_then(EntryHeader::decode);
        let bytes = window.bytes();
        Ok((file, header, entry, bytes))
    };
    let (file, header, entry, bytes) = match read() {
        Ok(read) => read,
        Err(error) => return Ok(Err(error)),
    };
    match header {
        HeaderRead::Known(header) => {
            let shard = *listed.shard.get_or_insert(header.shard);
            if header.shard != shard {
                check.fault(path, 6, format!("the file is of shard {}, others are of {shard}", header.shard))?;
            } else {
                listed.files.push(Found { path: path.clone(), file, bytes, header });
            }
        }
        HeaderRead::Version(version) => {
            check.fault(path, 4, format!("WAL file version {version} is not read by this build; it reads 1"))?;
        }
        HeaderRead::Blank => {
            if let Some(entry) = entry {
                listed.blank.push((path.clone(), entry.first_lsn));
            }
        }
    }
    Ok(Ok(()))
}

/// Reads the files that count.
pub(super) fn read(check: &mut Check<'_, '_>, listed: &Listed, named: &Named, order: &mut Order) -> Go {
    let consolidated = named.consolidated;
    let first_reading = order.part() == 0;
    if first_reading {
        for (path, _) in listed.blank.iter().filter(|(_, first_lsn)| *first_lsn >= consolidated) {
            check.fault(path, 0, "the header of the file is damaged, entries stand behind it")?;
        }
    }
    let needed: Vec<&Found> = listed.needed(consolidated).collect();
    let dir = check.dir.join("wal");
    match needed.first() {
        None if consolidated > 0 => {
            let what = format!("no WAL file is there, but segments reach to LSN {consolidated}");
            check.fault(&dir, 0, what)?;
        }
        Some(first) if first.header.first_lsn > consolidated => {
            let found = first.header.first_lsn;
            let what = format!(
                "the WAL starts at LSN {found}, but segments end at {consolidated}: a file is missing before it"
            );
            check.fault(&first.path, 16, what)?;
            order.leave_out(found);
        }
        _ => {}
    }
    for (at, found) in needed.iter().enumerate() {
        let next = needed.get(at + 1).map(|next| next.header.first_lsn);
        if first_reading {
            check.report.wal_files += 1;
        }
        match file(check, found, next, named, order)? {
            Ok(bytes) => {
                check.report.bytes += if first_reading { bytes } else { 0 };
                check.progress(bytes)?;
            }
            Err(error) => {
                check.failed(&found.path, &error)?;
                order.leave_out(next.unwrap_or_else(|| order.range().1));
            }
        }
    }
    Ok(())
}

/// Reads one file. Gives its length.
fn file(
    check: &mut Check<'_, '_>,
    found: &Found,
    next_file_lsn: Option<u64>,
    named: &Named,
    order: &mut Order,
) -> Go<Result<u64, StorageError>> {
    let fail = |error| StorageError::io("read", &found.path)(error);
    let window = match Window::new(&*found.file) {
        Ok(window) => window,
        Err(error) => return Ok(Err(fail(error))),
    };
    let mut walk = Walk::new(window, &found.header);
    match walk.header_padding() {
        Ok(Some(at)) => check.fault(&found.path, at, "bytes of the header's page that must be 0 are not")?,
        Ok(None) => {}
        Err(error) => return Ok(Err(fail(error))),
    }
    loop {
        let step = match walk.step() {
            Ok(step) => step,
            Err(error) => return Ok(Err(fail(error))),
        };
        match step {
            // A crash between manifest and reuse leaves a file whose frames lie in a segment already.
            Step::Entry { frame, .. } if frame.next_lsn() <= order.range().1 => {}
            Step::Entry { frame, position, .. } => {
                if let Err(what) = order.frame(&frame) {
                    check.fault(&found.path, position, what)?;
                    order.leave_out(frame.next_lsn());
                }
                objects::compare(check, named, order)?;
            }
            Step::Misplaced(what) => {
                check.fault(&found.path, walk.position(), what)?;
                order.leave_out(next_file_lsn.unwrap_or_else(|| walk.next_lsn()));
                return Ok(Ok(walk.bytes()));
            }
            Step::End(bad) => {
                return end(check, found, next_file_lsn, (&mut walk, bad), order)
                    .map(|judged| judged.map(|()| walk.bytes()).map_err(fail));
            }
        }
    }
}

/// Judges what ends a file.
fn end(
    check: &mut Check<'_, '_>,
    found: &Found,
    next_file_lsn: Option<u64>,
    (walk, bad): (&mut Walk<'_>, walk::Bad),
    order: &mut Order,
) -> Go<io::Result<()>> {
    let (position, lsn) = (walk.position(), walk.next_lsn());
    match next_file_lsn {
        Some(next) if next == lsn => {}
        Some(next) => {
            check.fault(&found.path, position, format!("{bad}, and the next file goes on at LSN {next}, not {lsn}"))?;
            order.leave_out(next);
        }
        None => {
            let traces = match walk.traces() {
                Ok(traces) => traces,
                Err(error) => return Ok(Err(error)),
            };
            if let Some(at) = traces.later_group {
                check.fault(&found.path, position, format!("{bad}, but a later group was written at byte {at}"))?;
                order.leave_out(lsn);
            } else if traces.torn {
                let what = format!(
                    "the log ends at byte {position} (LSN {lsn}) with the remains of a write that was never acked, or of \
                     the last one, damaged: the two look alike; the next start wipes them"
                );
                check.remark(&found.path, &what)?;
            }
        }
    }
    Ok(Ok(()))
}
