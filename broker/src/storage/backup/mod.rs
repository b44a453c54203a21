//! Copies of the log: `backup` takes what a cut names out of a data directory whose broker runs, `restore` makes a data
//! directory of it (ADR 10).
//!
//! The broker's pin keeps what is copied in its place; that the copy is true is checked here: every file against its own
//! checksums while it is read, and against its hash when it is read back from the disk. Called by `cli`.

mod book;
mod restore;
#[cfg(test)]
mod tests;
mod vault;

use std::{
    collections::{BTreeSet, HashMap},
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

pub use self::{
    book::BackupError,
    restore::{Restored, restore},
};
use self::{
    book::{Book, Entry},
    vault::Vault,
};
use super::{
    Blobs, Cut, CutFile, Disk, StorageError,
    blobs::is_hex,
    directory::{self, FORMAT},
    manifest::{self, Manifest, SegmentRef},
    objects::Objects,
    segment::{self, Expected, Ranges},
    store::{CHECKPOINT_HEAD_BYTES, checkpoint_head},
    wal::{
        entry::HeaderRead,
        walk::{self, Step, Walk, Window},
    },
};

/// Copied at once.
const COPY_BYTES: u64 = 1 << 20;

/// Where segments lie.
const SEGMENT_PATHS: &str = "objects/seg/";

/// How a backup is taken.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Unix time told in the backup.
    pub time_ms: i64,
    /// Files that are there from a backup before are read back too.
    pub verify: bool,
}

/// What a backup holds, and what it cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backup {
    /// Everything before this LSN is in it.
    pub next_lsn: u64,
    /// Segments in it.
    pub segments: u64,
    /// Of these, copied now.
    pub segments_copied: u64,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes copied now.
    pub bytes_copied: u64,
    /// Files that the backup before had and this one does not need.
    pub removed: u64,
}

/// Told how many bytes are done of how many.
pub type Tell<'a> = dyn FnMut(u64, u64) + 'a;

/// Refuses a directory that is not a data directory of this build.
///
/// # Errors
/// [`StorageError::NotOurs`], [`StorageError::Format`], or as the disk says.
pub fn check_source(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    directory::check_format_of(disk, dir)
}

/// Copies a cut of the log in `source` into `dest`, which is made if need be. What `dest` held before counts until the very
/// end. Blocking.
///
/// # Errors
/// See [`BackupError`]; nothing that counts has changed then.
pub fn backup(
    disk: &dyn Disk,
    source: &Path,
    dest: &Path,
    cut: &Cut,
    options: Options,
    tell: &mut Tell<'_>,
) -> Result<Backup, BackupError> {
    check_source(disk, source)?;
    let manifest = match cut.manifest_number {
        0 => None,
        number => Some(manifest::parse(&manifest::object_of(number), &cut.manifest)?),
    };
    let vault = Vault::open(disk, dest)?;
    let before = vault.book()?;
    if let Some(before) = before.as_ref().filter(|before| before.next_lsn > cut.next_lsn) {
        let (path, backup) = (dest.to_path_buf(), before.next_lsn);
        return Err(BackupError::OlderCut { path, backup, cut: cut.next_lsn });
    }
    let objects = disk.objects_to_read(&source.join("objects"));
    let objects = objects.map_err(StorageError::io("open object store", source))?;
    let objects = Arc::new(Objects::offline(objects)?);
    let known = vault.segments()?;
    let total = manifest.iter().flat_map(|manifest| &manifest.segments).map(|segment| segment.bytes).sum();
    let done = Backup { next_lsn: cut.next_lsn, ..Backup::default() };
    let book = Book::new(cut, FORMAT.trim_end(), options.time_ms);
    let mut copy = Copy { source, disk, objects, vault, before, known, options, book, done, tell, total };
    // The WAL first: it is what a broker wants back soonest.
    cut.wal.iter().enumerate().try_for_each(|(at, file)| copy.wal(file, cut.wal.get(at + 1), cut.next_lsn))?;
    copy.blobs()?;
    if let Some(manifest) = &manifest {
        copy.store(cut, manifest)?;
    }
    let Copy { book, mut done, vault, .. } = copy;
    vault.commit(&book)?;
    let named: BTreeSet<&str> = book.files.iter().map(|entry| entry.blake3.as_str()).collect();
    done.removed = vault.retain(&named)?;
    Ok(done)
}

/// A backup under way.
struct Copy<'a, 'tell> {
    source: &'a Path,
    disk: &'a dyn Disk,
    objects: Arc<Objects>,
    vault: Vault<'a>,
    before: Option<Book>,
    /// Segments that are in the vault, by length and footer.
    known: HashMap<(u64, Bytes), String>,
    options: Options,
    book: Book,
    done: Backup,
    tell: &'a mut Tell<'tell>,
    total: u64,
}

/// An object while it is copied.
#[derive(Debug)]
struct Object {
    objects: Arc<Objects>,
    object: String,
}

impl Ranges for Object {
    fn read(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        self.objects.get_range(&self.object, range)
    }
}

impl Copy<'_, '_> {
    /// Notes a file of the backup.
    fn add(&mut self, path: String, (blake3, bytes): (String, u64), copied: bool) {
        self.done.bytes += bytes;
        self.done.bytes_copied += if copied { bytes } else { 0 };
        // Segments are in it from the start; how long all else is shows on the way.
        self.total += if path.starts_with(SEGMENT_PATHS) { 0 } else { bytes };
        self.book.files.push(Entry { path, bytes, blake3 });
        (self.tell)(self.done.bytes, self.total);
    }

    /// A WAL file up to the cut, each entry checked.
    fn wal(&mut self, cut: &CutFile, next: Option<&CutFile>, next_lsn: u64) -> Result<(), BackupError> {
        let path = self.source.join("wal").join(&cut.name);
        let other = || BackupError::OtherBroker { path: path.clone() };
        if super::wal::spare::slot_of(&cut.name).is_none() {
            return Err(other());
        }
        let fail = |error| StorageError::io("read", &path)(error);
        let file = match self.disk.open_to_read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(other()),
            opened => opened.map_err(StorageError::io("open", &path))?,
        };
        let mut window = Window::new(&*file).map_err(fail)?;
        let HeaderRead::Known(header) = walk::header(&mut window).map_err(fail)? else { return Err(other()) };
        // The salt in it is known to this broker and this directory alone.
        if (header.generation, header.first_lsn) != (cut.generation, cut.first_lsn) {
            return Err(other());
        }
        let mut walk = Walk::new(window, &header);
        let end = next.map_or(next_lsn, |next| next.first_lsn.min(next_lsn));
        while walk.next_lsn() < end {
            let what = match walk.step().map_err(fail)? {
                Step::Entry { .. } => continue,
                Step::Misplaced(what) => what,
                Step::End(bad) => bad.to_owned(),
            };
            return Err(StorageError::Corrupt { file: path, position: walk.position(), what }.into());
        }
        let bytes = walk.position();
        let mut window = Window::new(&*file).map_err(fail)?;
        let copied = self.vault.put(|sink| {
            let mut at = 0;
            while at < bytes {
                let length = usize::try_from(COPY_BYTES.min(bytes - at)).unwrap_or(usize::MAX);
                let part = window.at(at, length).map_err(fail)?;
                sink.write(part.ok_or_else(|| StorageError::io("read", &path)(io::ErrorKind::UnexpectedEof.into()))?)?;
                at += length as u64;
            }
            // What was copied is what was checked: a file that was taken for another use meanwhile is noticed.
            let written = sink.open()?;
            let mut window = Window::new(&*written).map_err(fail)?;
            let same = matches!(walk::header(&mut window).map_err(fail)?, HeaderRead::Known(read) if read == header);
            let mut walk = Walk::new(window, &header);
            while same && walk.position() < bytes && matches!(walk.step().map_err(fail)?, Step::Entry { .. }) {}
            if !same || (walk.position(), walk.next_lsn()) != (bytes, end) {
                let (file, what) = (path.clone(), "the file changed while it was copied".to_owned());
                return Err(StorageError::Corrupt { file, position: walk.position(), what });
            }
            Ok(())
        })?;
        self.add(format!("wal/{}", cut.name), copied, true);
        Ok(())
    }

    /// Components and settings: all that are there, which are those of the cut and maybe newer ones.
    fn blobs(&mut self) -> Result<(), BackupError> {
        let dir = self.source.join("plugins");
        let mut names = match self.disk.list(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            listed => listed.map_err(StorageError::io("list", &dir))?,
        };
        names.retain(|name| is_hex(name));
        names.sort_unstable();
        for name in names {
            let path = format!("plugins/{name}");
            // The name is a hash of the content: one that is there is the same.
            let before = self.before.as_ref().and_then(|before| before.files.iter().find(|entry| entry.path == path));
            if let Some(Entry { blake3, bytes, .. }) = before.cloned()
                && self.vault.holds(&blake3, bytes, self.options.verify)?
            {
                self.add(path, (blake3, bytes), false);
                continue;
            }
            let bytes = Blobs::read(self.disk, &dir, &name)?;
            let copied = self.vault.put(|sink| sink.write(&bytes))?;
            self.add(path, copied, true);
        }
        Ok(())
    }

    /// Manifest, checkpoint, segments.
    fn store(&mut self, cut: &Cut, manifest: &Manifest) -> Result<(), BackupError> {
        let copied = self.vault.put(|sink| sink.write(&cut.manifest))?;
        self.add(format!("objects/{}", manifest::object_of(cut.manifest_number)), copied, true);
        if let Some(checkpoint) = &manifest.checkpoint {
            let copied = self.checkpoint(&checkpoint.object, checkpoint.lsn)?;
            self.add(format!("objects/{}", checkpoint.object), copied, true);
        }
        manifest.segments.iter().try_for_each(|segment| self.segment(cut.shard, segment))
    }

    fn checkpoint(&mut self, object: &str, lsn: u64) -> Result<(String, u64), BackupError> {
        let objects = Arc::clone(&self.objects);
        let corrupt =
            |position: u64, what: &str| StorageError::Corrupt { file: object.into(), position, what: what.to_owned() };
        let bytes = objects.length(object)?;
        let copied = self.vault.put(|sink| {
            let head = objects.get_range(object, 0..bytes.min(CHECKPOINT_HEAD_BYTES as u64))?;
            let (_, stored) = checkpoint_head(&head)
                .filter(|(of, _)| *of == lsn)
                .ok_or_else(|| corrupt(0, "it is not the checkpoint that the manifest names"))?;
            sink.write(&head)?;
            let mut crc = crc32c::crc32c(&lsn.to_le_bytes());
            let mut at = head.len() as u64;
            while at < bytes {
                let part = objects.get_range(object, at..bytes.min(at + COPY_BYTES))?;
                crc = crc32c::crc32c_append(crc, &part);
                sink.write(&part)?;
                at += part.len() as u64;
            }
            if crc == stored { Ok(()) } else { Err(corrupt(12, "the CRC of the checkpoint does not match")) }
        })?;
        Ok(copied)
    }

    fn segment(&mut self, shard: u16, at: &SegmentRef) -> Result<(), BackupError> {
        let path = format!("objects/{}", at.object);
        let source = Object { objects: Arc::clone(&self.objects), object: at.object.clone() };
        let expected = Expected {
            object: at.object.clone(),
            bytes: at.bytes,
            first_lsn: at.first_lsn,
            next_lsn: at.next_lsn,
            shard,
        };
        let footer = segment::footer_of(&source, &expected)?;
        self.done.segments += 1;
        if let Some(blake3) = self.known.get(&(at.bytes, footer)).cloned()
            && self.vault.holds(&blake3, at.bytes, self.options.verify)?
        {
            self.add(path, (blake3, at.bytes), false);
            return Ok(());
        }
        let copied = self.vault.put(|sink| {
            let mut from = 0;
            while from < at.bytes {
                let part = source.read(from..at.bytes.min(from + COPY_BYTES))?;
                if part.is_empty() {
                    break;
                }
                sink.write(&part)?;
                from += part.len() as u64;
            }
            segment::check_whole(&sink.ranges()?, &expected)
        })?;
        self.done.segments_copied += 1;
        self.add(path, copied, true);
        Ok(())
    }
}

/// `DIR/wal` and so on: where a path of the book lies below a directory.
fn below(dir: &Path, path: &str) -> PathBuf {
    path.split('/').fold(dir.to_path_buf(), |dir, part| dir.join(part))
}
