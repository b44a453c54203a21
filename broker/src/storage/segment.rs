//! Segments, version 0: frames of one WAL file as they are, with a footer that tells where each lies (ADR 4).
//!
//! ```text
//! 0  4  magic "TGS0"
//! 4  1  version = 0
//! 5  1  0
//! 6  2  shard
//! 8     stored frames, back to back
//!       footer (see `index`): u64 first LSN, u64 next LSN, u32 frames, then per frame { u32 position, u32 length,
//!       u64 first LSN, u16 topics, topics × u64 id }
//!       u32 length of the footer, u32 CRC-32C of the footer, magic "TGS0"
//! ```

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use object_store::PutPayload;

use super::{
    Run, StorageError,
    index::{FrameIndex, Wanted},
    manifest::{SEGMENTS, SegmentRef},
    objects::Objects,
    wal::files::{WalFile, read_planned},
};

const MAGIC: [u8; 4] = *b"TGS0";
const VERSION: u8 = 0;
const HEAD_BYTES: u32 = 8;
const TAIL_BYTES: u64 = 12;
/// Footers kept in memory, bytes of all together: some dozens of segments that are read right now.
const FOOTER_BYTES_MAX: usize = 16 << 20;
/// Read from a WAL file at once.
const COPY_BYTES: usize = 4 << 20;

/// Copies a full WAL file into a new segment, checking every frame.
///
/// # Errors
/// If the file cannot be read or is damaged, or the store fails.
pub(crate) fn write(objects: &Objects, shard: u16, wal: &WalFile) -> Result<SegmentRef, StorageError> {
    let index = wal.index();
    let mut head = Vec::from(MAGIC);
    head.extend_from_slice(&[VERSION, 0]);
    head.extend_from_slice(&shard.to_le_bytes());
    let mut parts = vec![Bytes::from(head)];
    let mut lsn = index.first_lsn();
    while lsn < index.next_lsn() {
        let run = wal.read(lsn, COPY_BYTES, None)?;
        parts.extend(run.frames.iter().map(|frame| frame.bytes.clone()));
        lsn = run.next_lsn;
    }
    let mut position = HEAD_BYTES;
    let footer = index.encode(|bytes| {
        position += bytes;
        position - bytes
    });
    let crc = crc32c::crc32c(&footer);
    let mut tail = footer;
    let footer_bytes = u32::try_from(tail.len()).expect("the footer of a file of 1 GiB fits 32 bits");
    tail.extend_from_slice(&footer_bytes.to_le_bytes());
    tail.extend_from_slice(&crc.to_le_bytes());
    tail.extend_from_slice(&MAGIC);
    parts.push(Bytes::from(tail));
    let bytes = parts.iter().map(|part| part.len() as u64).sum();
    let (first_lsn, next_lsn) = (index.first_lsn(), index.next_lsn());
    let object = format!("{SEGMENTS}/{first_lsn:016}-{next_lsn:016}");
    let segment = SegmentRef { first_lsn, next_lsn, bytes, object };
    match objects.create(&segment.object, parts.into_iter().collect::<PutPayload>()) {
        // An earlier try wrote it, and then the disk was too full for the manifest. Same frames, same bytes.
        Err(StorageError::Object { source, .. }) if matches!(*source, object_store::Error::AlreadyExists { .. }) => {
            load_footer(objects, &segment)?;
        }
        put => put?,
    }
    Ok(segment)
}

/// Reads segments; keeps the footers of those read last.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    footers: Mutex<Vec<(String, Arc<FrameIndex>)>>,
}

impl Segments {
    /// Reads frames that touch a wanted topic.
    ///
    /// # Errors
    /// If the store fails or the segment is damaged.
    pub(crate) fn read(
        &self,
        objects: &Objects,
        segment: &SegmentRef,
        from_lsn: u64,
        bytes_max: usize,
        wanted: Wanted<'_>,
    ) -> Result<Run, StorageError> {
        let plan = self.footer(objects, segment)?.plan(from_lsn, bytes_max, wanted);
        read_planned(&plan, &PathBuf::from(&segment.object), |position, bytes| {
            let start = u64::from(position);
            objects.get_range(&segment.object, start..start + u64::from(bytes))
        })
    }

    fn footer(&self, objects: &Objects, segment: &SegmentRef) -> Result<Arc<FrameIndex>, StorageError> {
        let cached = {
            let mut footers = self.footers.lock().unwrap_or_else(PoisonError::into_inner);
            footers.iter().position(|(object, _)| *object == segment.object).map(|at| {
                let hit = footers.remove(at);
                let index = Arc::clone(&hit.1);
                footers.push(hit);
                index
            })
        };
        if let Some(index) = cached {
            return Ok(index);
        }
        let index = Arc::new(load_footer(objects, segment)?);
        let mut footers = self.footers.lock().unwrap_or_else(PoisonError::into_inner);
        footers.push((segment.object.clone(), Arc::clone(&index)));
        let mut bytes: usize = footers.iter().map(|(_, index)| index.memory_bytes()).sum();
        // The one just read stays even if it alone is over.
        while bytes > FOOTER_BYTES_MAX && footers.len() > 1 {
            bytes -= footers.remove(0).1.memory_bytes();
        }
        Ok(index)
    }
}

fn load_footer(objects: &Objects, segment: &SegmentRef) -> Result<FrameIndex, StorageError> {
    let corrupt = |position: u64, what: &str| StorageError::Corrupt {
        file: PathBuf::from(&segment.object),
        position,
        what: what.to_owned(),
    };
    let tail = objects.get_suffix(&segment.object, TAIL_BYTES)?;
    let tail_start = segment.bytes.saturating_sub(TAIL_BYTES);
    let Some((&length, &crc, &magic)) = tail
        .first_chunk::<4>()
        .zip(tail.get(4..).and_then(|rest| rest.first_chunk::<4>()))
        .zip(tail.get(8..).and_then(|rest| rest.first_chunk::<4>()))
        .map(|((length, crc), magic)| (length, crc, magic))
    else {
        return Err(corrupt(0, "the segment is shorter than its tail"));
    };
    if magic != MAGIC {
        return Err(corrupt(tail_start, "the segment does not end with its magic"));
    }
    let length = u64::from(u32::from_le_bytes(length));
    let Some(start) = tail_start.checked_sub(length) else {
        return Err(corrupt(tail_start, "the footer is longer than the segment"));
    };
    let footer = objects.get_range(&segment.object, start..tail_start)?;
    if crc32c::crc32c(&footer) != u32::from_le_bytes(crc) {
        return Err(corrupt(start, "the CRC of the footer does not match"));
    }
    let index = FrameIndex::decode(&footer).map_err(|what| corrupt(start, what))?;
    if (index.first_lsn(), index.next_lsn()) != (segment.first_lsn, segment.next_lsn) {
        return Err(corrupt(start, "the footer names other LSNs than the manifest"));
    }
    Ok(index)
}
