//! The manifest: which segments and which checkpoint are the log's, and which stretches of it are gone. One numbered object
//! per change, made with create-if-absent: the loser of a race finds the number taken. The highest number counts.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{StorageError, objects::Objects};

/// Version of the manifest's text.
const VERSION: u32 = 2;
/// Directory of the manifests.
pub(crate) const DIR: &str = "manifest";
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
    /// By LSN. With the holes they cover the log from LSN 0 on without a gap: a segment that is lost is not taken for one
    /// that was dropped.
    pub(crate) segments: Vec<SegmentRef>,
    /// By LSN, none next to another.
    pub(crate) holes: Vec<Hole>,
    pub(crate) checkpoint: Option<CheckpointRef>,
}

/// A segment that counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SegmentRef {
    pub(crate) first_lsn: u64,
    pub(crate) next_lsn: u64,
    /// Broker time of its first frame, Unix milliseconds.
    pub(crate) first_time_ms: i64,
    /// Broker time of its last frame.
    pub(crate) last_time_ms: i64,
    pub(crate) bytes: u64,
    pub(crate) object: String,
}

/// A stretch of the log of which nothing is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hole {
    pub(crate) first_lsn: u64,
    pub(crate) next_lsn: u64,
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
    /// Of a log that has neither segments nor a checkpoint.
    pub(crate) fn empty() -> Self {
        Self { version: VERSION, epoch: 0, segments: Vec::new(), holes: Vec::new(), checkpoint: None }
    }

    /// LSN up to which segments hold everything that is kept.
    pub(crate) fn consolidated(&self) -> u64 {
        let segments = self.segments.last().map_or(0, |segment| segment.next_lsn);
        segments.max(self.holes.last().map_or(0, |hole| hole.next_lsn))
    }

    /// Puts holes in place of some segments.
    pub(crate) fn drop_segments(&mut self, dropped: impl Fn(&SegmentRef) -> bool) {
        let gone = self.segments.extract_if(.., |segment| dropped(segment));
        self.holes.extend(gone.map(|gone| Hole { first_lsn: gone.first_lsn, next_lsn: gone.next_lsn }));
        self.holes.sort_unstable_by_key(|hole| hole.first_lsn);
        self.holes.dedup_by(|next, before| {
            let joined = before.next_lsn == next.first_lsn;
            if joined {
                before.next_lsn = next.next_lsn;
            }
            joined
        });
    }

    /// What does not fit together in it.
    fn fault(&self) -> Option<String> {
        let (mut lsn, mut time_ms) = (0, i64::MIN);
        let mut holes = self.holes.iter().peekable();
        for segment in &self.segments {
            if let Some(hole) = holes.next_if(|hole| hole.first_lsn == lsn && hole.next_lsn > lsn) {
                lsn = hole.next_lsn;
            }
            if segment.first_lsn != lsn || segment.next_lsn <= lsn {
                return Some(format!("segment {} does not go on at LSN {lsn}", segment.object));
            }
            if segment.first_time_ms < time_ms || segment.last_time_ms < segment.first_time_ms {
                return Some(format!("the times of segment {} go back", segment.object));
            }
            (lsn, time_ms) = (segment.next_lsn, segment.last_time_ms);
        }
        let fits = |hole: &Hole| hole.first_lsn == lsn && hole.next_lsn > lsn;
        match (holes.next(), holes.next()) {
            (None, _) => None,
            (Some(last), None) if fits(last) => None,
            (Some(hole), _) => Some(format!("the hole at LSN {} does not stand between segments", hole.first_lsn)),
        }
    }

    /// As it is written.
    ///
    /// # Errors
    /// Never: plain data is JSON.
    pub(crate) fn text(&self) -> Result<Bytes, StorageError> {
        let text = serde_json::to_vec(self);
        text.map(Bytes::from).map_err(|error| StorageError::Encode { what: "manifest", source: error.into() })
    }
}

impl Current {
    /// Reads the newest manifest.
    ///
    /// # Errors
    /// If the store fails, or the newest manifest cannot be read.
    pub(crate) fn load(objects: &Objects) -> Result<Self, StorageError> {
        let numbers = objects.list(DIR)?.into_iter().filter_map(|object| number_of(&object));
        Ok(match numbers.max() {
            None => Self { number: 0, manifest: Manifest::empty() },
            Some(number) => Self { number, manifest: read(objects, number)? },
        })
    }

    /// Segments and checkpoints that the manifest does not name.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn orphans(&self, objects: &Objects) -> Result<Vec<String>, StorageError> {
        let manifest = &self.manifest;
        let named = |object: &String| {
            manifest.segments.iter().any(|segment| segment.object == *object)
                || manifest.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.object == *object)
        };
        let mut orphans = Vec::new();
        for dir in [SEGMENTS, CHECKPOINTS] {
            orphans.extend(objects.list(dir)?.into_iter().filter(|object| !named(object)));
        }
        Ok(orphans)
    }

    /// Removes what an earlier run has left: older manifests, and every object that this one does not name. Only for a log
    /// that was found whole: the manifest might not be the one that counts.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn tidy(&self, objects: &Objects) -> Result<(), StorageError> {
        for number in objects.list(DIR)?.iter().filter_map(|object| number_of(object)) {
            if number < self.number {
                objects.remove(&object_of(number))?;
            }
        }
        #[cfg(mutants)]
        if crate::mutants::is("orphans-kept") {
            return Ok(());
        }
        self.orphans(objects)?.iter().try_for_each(|orphan| objects.remove(orphan))
    }

    /// Makes a changed manifest the one that counts; durable when this returns.
    ///
    /// # Errors
    /// If somebody else changed it, or as the store says; the old one counts then.
    pub(crate) fn replace(&mut self, objects: &Objects, manifest: Manifest) -> Result<(), StorageError> {
        let number = self.number + 1;
        objects.create(&object_of(number), manifest.text()?.into())?;
        let before = std::mem::replace(self, Self { number, manifest });
        if before.number > 0
            && let Err(error) = objects.remove(&object_of(before.number))
        {
            tracing::warn!(%error, "cannot remove the manifest before this one; the next start does");
        }
        Ok(())
    }
}

/// What every version of the text begins with.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Reads the manifest of a number.
///
/// # Errors
/// If the store fails, or it cannot be read.
pub(crate) fn read(objects: &Objects, number: u64) -> Result<Manifest, StorageError> {
    let object = object_of(number);
    parse(&object, &objects.get(&object)?)
}

/// Reads the text of a manifest; `object` is its name for errors.
///
/// # Errors
/// If it is none that this build reads, or its segments leave a gap.
pub(crate) fn parse(object: &str, text: &[u8]) -> Result<Manifest, StorageError> {
    let corrupt = |what: String| StorageError::Corrupt { file: object.into(), position: 0, what };
    let Versioned { version } = serde_json::from_slice(text).map_err(|error| corrupt(error.to_string()))?;
    if version != VERSION {
        return Err(corrupt(format!("manifest version {version} is not read by this build; it reads {VERSION}")));
    }
    let manifest: Manifest = serde_json::from_slice(text).map_err(|error| corrupt(error.to_string()))?;
    if let Some(fault) = manifest.fault() {
        return Err(corrupt(fault));
    }
    Ok(manifest)
}

/// Name of the manifest of a number.
pub(crate) fn object_of(number: u64) -> String {
    format!("{DIR}/{number:016}")
}

/// The number of a manifest's name.
pub(crate) fn number_of(object: &str) -> Option<u64> {
    let digits = object.strip_prefix(DIR)?.strip_prefix('/')?;
    if digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(first_lsn: u64, next_lsn: u64) -> SegmentRef {
        let (first_time_ms, last_time_ms) = (first_lsn.cast_signed(), next_lsn.cast_signed() - 1);
        SegmentRef { first_lsn, next_lsn, first_time_ms, last_time_ms, bytes: 1, object: format!("{first_lsn}") }
    }

    fn manifest() -> Manifest {
        let segments = (0..6).map(|at| segment(at * 10, at * 10 + 10)).collect();
        Manifest { segments, ..Manifest::empty() }
    }

    #[test]
    fn what_is_dropped_becomes_holes_and_the_whole_stays_without_a_gap() {
        for dropped in 0..64_u64 {
            let mut manifest = manifest();
            let is_dropped = |segment: &SegmentRef| dropped >> (segment.first_lsn / 10) & 1 == 1;
            // In two steps, as time goes on.
            manifest.drop_segments(|segment| is_dropped(segment) && segment.first_lsn % 20 == 0);
            manifest.drop_segments(is_dropped);
            assert_eq!(manifest.fault(), None, "{dropped:b}");
            assert_eq!(manifest.consolidated(), 60, "{dropped:b}");
            assert_eq!(manifest.segments.len(), 6 - dropped.count_ones() as usize);
            let begins = (dropped & !(dropped << 1)).count_ones() as usize;
            assert_eq!(manifest.holes.len(), begins, "neighbours are one hole: {dropped:b}");
        }
    }

    #[test]
    fn a_lost_segment_a_hole_too_many_and_times_that_go_back_are_told() {
        for at in 0..6 {
            let mut lost = manifest();
            lost.segments.remove(at);
            // The last one is missed by the WAL, which does not go on there.
            assert_eq!(lost.fault().is_some(), at < 5, "{at}");
        }
        for hole in [(0, 10), (5, 10), (60, 60), (70, 80)] {
            let holes = vec![Hole { first_lsn: hole.0, next_lsn: hole.1 }];
            assert!(Manifest { holes, ..manifest() }.fault().is_some(), "{hole:?}");
        }
        let mut back = manifest();
        back.segments[3].first_time_ms = 0;
        assert!(back.fault().is_some());
        let two = [(0, 5), (5, 10)].map(|(first_lsn, next_lsn)| Hole { first_lsn, next_lsn }).to_vec();
        let mut split = Manifest { holes: two, ..manifest() };
        split.segments.remove(0);
        assert!(split.fault().is_some(), "neighbours are one hole");
    }
}
