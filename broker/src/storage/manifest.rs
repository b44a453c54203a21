//! The manifest: which segments and which checkpoint are the log's. One numbered object per change, made with
//! create-if-absent: the loser of a race finds the number taken. The highest number counts.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{StorageError, objects::Objects};

/// Version of the manifest's text.
const VERSION: u32 = 1;
const DIR: &str = "manifest";
/// Directory of the segments.
pub(crate) const SEGMENTS: &str = "seg";
/// Directory of the checkpoints.
pub(crate) const CHECKPOINTS: &str = "checkpoint";

/// What the log consists of beside the WAL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) version: u32,
    /// Of the shard's owner; 0 in this version.
    pub(crate) epoch: u64,
    /// By LSN, without gap.
    pub(crate) segments: Vec<SegmentRef>,
    pub(crate) checkpoint: Option<CheckpointRef>,
}

/// A segment that counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SegmentRef {
    pub(crate) first_lsn: u64,
    pub(crate) next_lsn: u64,
    pub(crate) bytes: u64,
    pub(crate) object: String,
}

/// The checkpoint that counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckpointRef {
    pub(crate) lsn: u64,
    pub(crate) object: String,
}

/// The manifest as it stands, and its number.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) number: u64,
    pub(crate) manifest: Manifest,
}

impl Manifest {
    fn empty() -> Self {
        Self { version: VERSION, epoch: 0, segments: Vec::new(), checkpoint: None }
    }

    /// LSN up to which segments hold everything.
    pub(crate) fn consolidated(&self) -> u64 {
        self.segments.last().map_or(0, |segment| segment.next_lsn)
    }
}

impl Current {
    /// Reads the newest manifest and removes every object that it does not name.
    ///
    /// # Errors
    /// If the store fails, or the newest manifest cannot be read.
    pub(crate) fn load(objects: &Objects) -> Result<Self, StorageError> {
        let mut numbers: Vec<u64> = objects.list(DIR)?.iter().filter_map(|object| number_of(object)).collect();
        numbers.sort_unstable();
        let current = match numbers.pop() {
            None => Self { number: 0, manifest: Manifest::empty() },
            Some(number) => Self { number, manifest: read(objects, number)? },
        };
        for number in numbers {
            objects.remove(&object_of(number))?;
        }
        let named = |object: &String| {
            let manifest = &current.manifest;
            manifest.segments.iter().any(|segment| segment.object == *object)
                || manifest.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.object == *object)
        };
        #[cfg(mutants)]
        if crate::mutants::is("orphans-kept") {
            return Ok(current);
        }
        for dir in [SEGMENTS, CHECKPOINTS] {
            for orphan in objects.list(dir)?.iter().filter(|object| !named(object)) {
                objects.remove(orphan)?;
            }
        }
        Ok(current)
    }

    /// Makes a changed manifest the one that counts; durable when this returns.
    ///
    /// # Errors
    /// If somebody else changed it, or as the store says; the old one counts then.
    pub(crate) fn replace(&mut self, objects: &Objects, manifest: Manifest) -> Result<(), StorageError> {
        let number = self.number + 1;
        let text = serde_json::to_vec(&manifest)
            .map_err(|error| StorageError::Encode { what: "manifest", source: error.into() })?;
        objects.create(&object_of(number), Bytes::from(text).into())?;
        let before = std::mem::replace(self, Self { number, manifest });
        if before.number > 0
            && let Err(error) = objects.remove(&object_of(before.number))
        {
            tracing::warn!(%error, "cannot remove the manifest before this one; the next start does");
        }
        Ok(())
    }
}

fn read(objects: &Objects, number: u64) -> Result<Manifest, StorageError> {
    let object = object_of(number);
    let text = objects.get(&object)?;
    let corrupt = |what: String| StorageError::Corrupt { file: object.clone().into(), position: 0, what };
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| corrupt(error.to_string()))?;
    if manifest.version != VERSION {
        return Err(corrupt(format!(
            "manifest version {} is not read by this build; it reads {VERSION}",
            manifest.version
        )));
    }
    let mut lsn = 0;
    for segment in &manifest.segments {
        if segment.first_lsn != lsn || segment.next_lsn <= lsn {
            return Err(corrupt(format!("segment {} does not go on at LSN {lsn}", segment.object)));
        }
        lsn = segment.next_lsn;
    }
    Ok(manifest)
}

fn object_of(number: u64) -> String {
    format!("{DIR}/{number:016}")
}

fn number_of(object: &str) -> Option<u64> {
    let digits = object.strip_prefix(DIR)?.strip_prefix('/')?;
    if digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}
