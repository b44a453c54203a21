//! What a broker wrote and synced at once: its groups, read back from its WAL files, whose entries name the place where
//! their group began (ADR 4), and the same bytes written by a bare loop.

use std::{
    fs::{self, File},
    hint::black_box,
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::wall;

const HEADER_BYTES: usize = 4_096;
const ENTRY_BYTES: usize = 32;

/// The groups a broker wrote since an earlier look, in order.
#[derive(Debug, Default)]
pub struct Groups {
    /// The bytes of each.
    pub groups: Vec<Vec<u8>>,
    /// Frames in them.
    pub frames: usize,
    /// First LSN of the last frame seen.
    pub last_lsn: u64,
}

/// Reads the groups behind a frame. The broker must be idle.
///
/// # Errors
/// If the files cannot be read or are not WAL files of version 1.
pub fn groups_since(data: &Path, last_lsn: u64) -> Result<Groups> {
    let dir = data.join("wal");
    let mut files: Vec<(u64, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let mut head = [0; ENTRY_BYTES];
        File::open(&path)?.read_exact_at(&mut head, 0)?;
        if head.starts_with(b"TGW1\x01") {
            files.push((u64_at(&head, 8), u64_at(&head, 16), path));
        }
    }
    files.sort();
    let mut found = Groups { last_lsn, ..Groups::default() };
    for (at, (generation, _, path)) in files.iter().enumerate() {
        let next_first = files.get(at + 1).map(|(_, first, _)| *first);
        if next_first.is_none_or(|first| first > last_lsn) {
            found.take(&fs::read(path)?, *generation);
        }
    }
    ensure!(found.frames > 0, "no new frame lies in {}", dir.display());
    Ok(found)
}

impl Groups {
    /// Takes the new entries of a file.
    fn take(&mut self, bytes: &[u8], generation: u64) {
        let mut position = HEADER_BYTES;
        let mut group = usize::MAX;
        while let Some(entry) = bytes.get(position..position + ENTRY_BYTES)
            && entry.starts_with(b"TGE1")
            && u64_at(entry, 8) == generation
        {
            let length = ENTRY_BYTES + u32_at(entry, 4) as usize;
            let end = position + length.next_multiple_of(8);
            let (lsn, began) = (u64_at(entry, 16), u32_at(entry, 24) as usize * 8);
            if lsn > self.last_lsn {
                if began != group {
                    self.groups.push(Vec::new());
                    group = began;
                }
                if let Some(last) = self.groups.last_mut() {
                    last.extend_from_slice(&bytes[position..end]);
                }
                self.frames += 1;
                self.last_lsn = lsn;
            }
            position = end;
        }
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// A file full of zeros, and where the next group goes.
#[derive(Debug)]
pub struct Bare {
    file: File,
    bytes: u64,
    position: u64,
}

impl Bare {
    /// Makes the file; its blocks are written and durable.
    ///
    /// # Errors
    /// As the disk says.
    pub fn new(directory: &Path, mib: u64) -> Result<Self> {
        let mut file = File::create_new(directory.join("bare"))?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..mib {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        Ok(Self { file, bytes: mib << 20, position: HEADER_BYTES as u64 })
    }

    /// One `pwrite` and one `fdatasync` for each group.
    ///
    /// # Errors
    /// As the disk says.
    pub fn write(&mut self, groups: &Groups) -> Result<Duration> {
        self.write_groups(groups, |_| {})
    }

    /// The same, and before that a CRC-32C over the group.
    ///
    /// # Errors
    /// As the disk says.
    pub fn write_checked(&mut self, groups: &Groups) -> Result<Duration> {
        self.write_groups(groups, |group| {
            black_box(crc32c::crc32c(group));
        })
    }

    fn write_groups(&mut self, groups: &Groups, before: impl Fn(&[u8])) -> Result<Duration> {
        let start = wall();
        for group in &groups.groups {
            before(group);
            if self.position + group.len() as u64 > self.bytes {
                self.position = HEADER_BYTES as u64;
            }
            self.file.write_all_at(group, self.position)?;
            self.file.sync_data()?;
            self.position += group.len() as u64;
        }
        Ok(wall() - start)
    }
}
