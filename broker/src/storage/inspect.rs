//! What a file of ours holds, wherever it lies: segment, WAL file, manifest or checkpoint, known by its first bytes. A
//! damaged one is told as far as it can be read. Changes nothing. Called by `cli`.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, ops::Range, path::Path, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_protocol::stored::StoredFrame;

use super::{
    Disk, DiskFile, StorageError,
    fsck::{StateItem, States},
    manifest,
    segment::{Ranges, StoredRecord, Survey, TopicSurvey},
    store::{CHECKPOINT_HEAD_BYTES, checkpoint_head},
    wal::{
        entry::{HEADER_BYTES, HeaderRead},
        walk::{self, Step, Walk, Window},
    },
};

/// A manifest that is longer is none of ours: some 100 bytes for a segment of 64 MiB.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// Bytes by which a kind is known.
const MAGIC_BYTES: usize = 4;

/// What is told of a file.
#[derive(Debug)]
pub enum Item<'a> {
    /// What it is, or a part of it: a name, and its fields.
    Fields(&'static str, Vec<(&'static str, Value)>),
    /// A topic that has records in it.
    Topic(u64, &'a TopicSurvey),
    /// A record.
    Record(&'a StoredRecord),
    /// Something that is wrong: where, and what.
    Fault(u64, &'a str),
}

/// Who listens; an error ends it.
pub type Tell<'a> = dyn FnMut(Item<'_>) -> std::io::Result<()> + 'a;

/// Why a file is not told.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// It cannot be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Its first bytes are not those of any file of ours.
    #[error("{path} is no segment, WAL file, manifest or checkpoint")]
    Unknown {
        /// The file.
        path: String,
    },
    /// The listener failed.
    #[error(transparent)]
    Tell(#[from] std::io::Error),
}

/// Tells what a file holds, and of its records or items as many as asked for. Blocking.
///
/// # Errors
/// See [`InspectError`]. Damage is told, and no error.
pub fn run(
    disk: &dyn Disk,
    path: &Path,
    states: &dyn States,
    records_max: u64,
    tell: &mut Tell<'_>,
) -> Result<(), InspectError> {
    let file = walk::open(disk, path)?;
    let bytes = file.length().map_err(StorageError::io("read", path))?;
    let read = |range: Range<u64>| -> Result<Bytes, StorageError> {
        Lying { file: Arc::clone(&file), bytes, path: path.into() }.read(range)
    };
    let magic = read(0..bytes.min(MAGIC_BYTES as u64))?;
    let tail = read(bytes.saturating_sub(MAGIC_BYTES as u64)..bytes)?;
    // An entry stands behind the page of the header, be that damaged.
    let entry = read(bytes.min(HEADER_BYTES as u64)..bytes.min((HEADER_BYTES + MAGIC_BYTES) as u64))?;
    match (&magic[..], &tail[..], &entry[..]) {
        (b"TGS1", ..) | (_, b"TGS1", _) => segment(&file, bytes, path, records_max, tell),
        (b"TGW1", ..) | (_, _, b"TGE1") => wal(&*file, path, records_max, tell),
        (b"TGC1", ..) => checkpoint(&read, bytes, states, records_max, tell),
        ([0, 0, 0, 0], ..) if bytes >= HEADER_BYTES as u64 && is_zero(&read(0..HEADER_BYTES as u64)?) => {
            Ok(tell(Item::Fields("wal", vec![("bytes", json!(bytes)), ("in_use", json!(false))]))?)
        }
        ([b'{', ..], ..) if bytes <= MANIFEST_BYTES_MAX => tell_manifest(&read(0..bytes)?, path, tell),
        _ => Err(InspectError::Unknown { path: path.display().to_string() }),
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// A file as it lies there.
#[derive(Debug)]
struct Lying {
    file: Arc<dyn DiskFile>,
    bytes: u64,
    path: std::path::PathBuf,
}

impl Ranges for Lying {
    fn read(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        let end = range.end.min(self.bytes);
        let length = end.saturating_sub(range.start);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        self.file.read_at(&mut bytes, range.start.min(end)).map_err(StorageError::io("read", &self.path))?;
        Ok(bytes.into())
    }
}

fn segment(
    file: &Arc<dyn DiskFile>,
    bytes: u64,
    path: &Path,
    records_max: u64,
    tell: &mut Tell<'_>,
) -> Result<(), InspectError> {
    let source = Arc::new(Lying { file: Arc::clone(file), bytes, path: path.to_path_buf() });
    let mut faults = Vec::new();
    let survey = Survey::of(source, &path.display().to_string(), bytes, &mut faults);
    if let Some(survey) = &survey {
        let ((first_lsn, next_lsn), (first_time_ms, last_time_ms)) = (survey.lsns(), survey.times_ms());
        let (records, keys, blocks) = survey.counts();
        let fields = vec![
            ("version", json!(1)),
            ("level", json!(survey.level)),
            ("shard", json!(survey.shard())),
            ("bytes", json!(bytes)),
            ("first_lsn", json!(first_lsn)),
            ("next_lsn", json!(next_lsn)),
            ("first_time_ms", json!(first_time_ms)),
            ("last_time_ms", json!(last_time_ms)),
            ("generation", json!(survey.generation())),
            ("records", json!(records)),
            ("keys", json!(keys)),
            ("blocks", json!(blocks)),
        ];
        tell(Item::Fields("segment", fields))?;
        for (name, position, bytes) in survey.parts() {
            let fields = vec![("name", json!(name)), ("position", json!(position)), ("bytes", json!(bytes))];
            tell(Item::Fields("part", fields))?;
        }
        for (id, topic) in &survey.topics() {
            tell(Item::Topic(*id, topic))?;
        }
    } else {
        tell(Item::Fields("segment", vec![("bytes", json!(bytes))]))?;
    }
    for fault in &faults {
        tell(Item::Fault(fault.position, &fault.what))?;
    }
    let (mut left, mut told) = (records_max, Ok(()));
    if let Some(survey) = survey.filter(|_| records_max > 0) {
        survey.records(&mut |record| {
            told = tell(Item::Record(record));
            left -= 1;
            told.is_ok() && left > 0
        });
    }
    Ok(told?)
}

fn wal(file: &dyn DiskFile, path: &Path, records_max: u64, tell: &mut Tell<'_>) -> Result<(), InspectError> {
    let fail = |error| StorageError::io("read", path)(error);
    let mut window = Window::new(file).map_err(fail)?;
    let bytes = window.bytes();
    let header = match walk::header(&mut window).map_err(fail)? {
        HeaderRead::Known(header) => header,
        HeaderRead::Version(version) => {
            tell(Item::Fields("wal", vec![("bytes", json!(bytes)), ("version", json!(version))]))?;
            let what = format!("WAL file version {version} is not read by this build; it reads 1");
            return Ok(tell(Item::Fault(4, &what))?);
        }
        HeaderRead::Blank => {
            tell(Item::Fields("wal", vec![("bytes", json!(bytes))]))?;
            tell(Item::Fault(
                0,
                "the header of the file is damaged; without it nobody knows which entries are of one use",
            ))?;
            return Ok(());
        }
    };
    let fields = vec![
        ("version", json!(1)),
        ("shard", json!(header.shard)),
        ("bytes", json!(bytes)),
        ("generation", json!(header.generation)),
        ("first_lsn", json!(header.first_lsn)),
    ];
    tell(Item::Fields("wal", fields))?;
    let mut walk = Walk::new(window, &header);
    if let Some(at) = walk.header_padding().map_err(fail)? {
        tell(Item::Fault(at, "bytes of the header's page that must be 0 are not"))?;
    }
    let (mut topics, mut frames) = (BTreeMap::new(), 0_u64);
    while let Some(met) = next(&mut walk).map_err(fail)? {
        match met {
            Met::Frame(frame) => {
                frames += 1;
                add(&frame, &mut topics);
            }
            Met::Damage(position, what) => tell(Item::Fault(position, &what))?,
        }
    }
    let end = vec![
        ("frames", json!(frames)),
        ("next_lsn", json!(walk.next_lsn())),
        ("position", json!(walk.position())),
        ("free_bytes", json!(bytes.saturating_sub(walk.position()))),
    ];
    tell(Item::Fields("end", end))?;
    for (id, topic) in &topics {
        tell(Item::Topic(*id, topic))?;
    }
    // Read again for the records, so that none of them is held meanwhile.
    let mut walk = Walk::new(Window::new(file).map_err(fail)?, &header);
    let mut left = usize::try_from(records_max).unwrap_or(usize::MAX);
    while left > 0
        && let Some(met) = next(&mut walk).map_err(fail)?
    {
        let Met::Frame(frame) = met else { continue };
        for record in records_of(&frame).take(left) {
            left -= 1;
            tell(Item::Record(&record))?;
        }
    }
    Ok(())
}

/// What a walk meets.
enum Met {
    Frame(Box<StoredFrame>),
    /// Where, and what; the walk goes on behind it.
    Damage(u64, String),
}

/// The next frame, or damage that has entries behind it. `None` at the end.
fn next(walk: &mut Walk<'_>) -> std::io::Result<Option<Met>> {
    let bad = match walk.step()? {
        Step::Entry { frame, .. } => return Ok(Some(Met::Frame(frame))),
        Step::Misplaced(what) => what,
        Step::End(bad) => bad.to_owned(),
    };
    let (position, traces) = (walk.position(), walk.traces()?);
    let Some(next) = traces.next_entry else { return Ok(None) };
    walk.skip_to(next);
    let torn = if traces.later_group.is_none() { "; it may be a torn write that was never acked" } else { "" };
    Ok(Some(Met::Damage(position, format!("{bad}; the next entry stands at byte {}{torn}", next.0))))
}

/// Adds a frame's records to what is known of their topics. Keys are not counted: a WAL file has no directory of them.
fn add(frame: &StoredFrame, topics: &mut BTreeMap<u64, TopicSurvey>) {
    let header = &frame.header;
    for ((id, offset, _), lsn) in frame.positions().zip(header.first_lsn..) {
        let topic: &mut TopicSurvey = topics.entry(id).or_default();
        topic.records += 1;
        topic.offsets = Some((topic.offsets.map_or(offset, |(first, _)| first), offset));
        topic.lsns = Some((topic.lsns.map_or(lsn, |(first, _)| first), lsn));
        let time_ms = header.broker_time_ms;
        topic.times_ms = Some((topic.times_ms.map_or(time_ms, |(first, _)| first), time_ms));
    }
    let names = frame.body.iter().flat_map(|body| body.topics());
    for (stamp, name) in header.topics.iter().zip(names) {
        if let Some(topic) = topics.get_mut(&stamp.id).filter(|topic| topic.name.is_empty()) {
            name.clone_into(&mut topic.name);
        }
    }
}

fn records_of(frame: &StoredFrame) -> impl Iterator<Item = StoredRecord> + '_ {
    let header = &frame.header;
    let records = frame.body.iter().flat_map(|body| body.records());
    let all = frame.positions().zip(records).zip(header.first_lsn..);
    all.map(|(((topic_id, offset, key_version), (_, record)), lsn)| StoredRecord {
        topic_id,
        offset,
        key_version,
        lsn,
        broker_time_ms: header.broker_time_ms,
        generation: header.generation,
        timestamp_ms: record.timestamp_ms,
        key: record.key.map(Bytes::copy_from_slice),
        value: record.value.map(Bytes::copy_from_slice),
        headers: Bytes::copy_from_slice(record.headers),
    })
}

fn tell_manifest(text: &[u8], path: &Path, tell: &mut Tell<'_>) -> Result<(), InspectError> {
    tell(Item::Fields("manifest", vec![("bytes", json!(text.len()))]))?;
    let manifest = match manifest::parse(&path.display().to_string(), text) {
        Ok(manifest) => manifest,
        Err(StorageError::Corrupt { position, what, .. }) => return Ok(tell(Item::Fault(position, &what))?),
        Err(other) => return Err(other.into()),
    };
    let checkpoint = manifest.checkpoint.as_ref();
    let fields = vec![
        ("version", json!(manifest.version)),
        ("epoch", json!(manifest.epoch)),
        ("segments", json!(manifest.segments.len())),
        ("next_lsn", json!(manifest.consolidated())),
        ("checkpoint_lsn", json!(checkpoint.map(|checkpoint| checkpoint.lsn))),
        ("checkpoint", json!(checkpoint.map(|checkpoint| &checkpoint.object))),
    ];
    tell(Item::Fields("content", fields))?;
    for segment in &manifest.segments {
        let fields = vec![
            ("object", json!(segment.object)),
            ("bytes", json!(segment.bytes)),
            ("first_lsn", json!(segment.first_lsn)),
            ("next_lsn", json!(segment.next_lsn)),
        ];
        tell(Item::Fields("segment", fields))?;
    }
    Ok(())
}

/// Counts of a checkpoint's items.
#[derive(Debug, Default)]
struct Counts {
    tenants: u64,
    topics: u64,
    keys: u64,
    producers: u64,
    results: u64,
    activations: u64,
    samples: u64,
}

fn checkpoint(
    read: &dyn Fn(Range<u64>) -> Result<Bytes, StorageError>,
    bytes: u64,
    states: &dyn States,
    items_max: u64,
    tell: &mut Tell<'_>,
) -> Result<(), InspectError> {
    let head = read(0..bytes.min(CHECKPOINT_HEAD_BYTES as u64))?;
    let Some((lsn, stored)) = checkpoint_head(&head) else {
        tell(Item::Fields("checkpoint", vec![("bytes", json!(bytes))]))?;
        return Ok(tell(Item::Fault(0, "the file ends inside the checkpoint's first bytes"))?);
    };
    tell(Item::Fields("checkpoint", vec![("bytes", json!(bytes)), ("lsn", json!(lsn))]))?;
    let mut state = State { read, at: CHECKPOINT_HEAD_BYTES as u64, bytes, crc: crc32c::crc32c(&lsn.to_le_bytes()) };
    let (mut counts, mut left, mut told) = (Counts::default(), items_max, Ok(()));
    let walked = states.walk(lsn, &mut state, &mut |item| {
        if let Some((name, fields)) = count(&item, &mut counts)
            && left > 0
            && told.is_ok()
        {
            left -= 1;
            told = tell(Item::Fields(name, fields));
        }
        Ok(())
    });
    told?;
    // The rest of what could not be walked, for its checksum.
    std::io::copy(&mut state, &mut std::io::sink())?;
    if state.crc != stored {
        tell(Item::Fault(12, "the CRC of the checkpoint does not match"))?;
    }
    if let Err(what) = walked {
        tell(Item::Fault(CHECKPOINT_HEAD_BYTES as u64, &what))?;
    }
    let fields = vec![
        ("tenants", json!(counts.tenants)),
        ("topics", json!(counts.topics)),
        ("keys", json!(counts.keys)),
        ("producers", json!(counts.producers)),
        ("results", json!(counts.results)),
        ("activations", json!(counts.activations)),
        ("samples", json!(counts.samples)),
    ];
    Ok(tell(Item::Fields("content", fields))?)
}

/// Counts an item; topics and heads are told too.
fn count(item: &StateItem<'_>, counts: &mut Counts) -> Option<(&'static str, Vec<(&'static str, Value)>)> {
    match *item {
        StateItem::Tenant(_) => counts.tenants += 1,
        StateItem::Producer(results) => {
            counts.producers += 1;
            counts.results += results as u64;
        }
        StateItem::Activation { .. } => counts.activations += 1,
        StateItem::Sample => counts.samples += 1,
        StateItem::Topic { id, name, tenant, next_offset } => {
            counts.topics += 1;
            let fields = vec![
                ("id", json!(id)),
                ("name", json!(name)),
                ("tenant", json!(tenant)),
                ("next_offset", json!(next_offset)),
            ];
            return Some(("topic", fields));
        }
        StateItem::Head { topic, key, version, last_offset } => {
            counts.keys += 1;
            let fields = vec![
                ("topic", json!(topic)),
                ("key", json!(String::from_utf8_lossy(key))),
                ("version", json!(version)),
                ("last_offset", json!(last_offset)),
            ];
            return Some(("head", fields));
        }
    }
    None
}

/// The state of a checkpoint, with the checksum of what was read.
struct State<'a> {
    read: &'a dyn Fn(Range<u64>) -> Result<Bytes, StorageError>,
    at: u64,
    bytes: u64,
    crc: u32,
}

impl std::io::Read for State<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let end = self.bytes.min(self.at + buffer.len() as u64);
        let part = (self.read)(self.at..end).map_err(std::io::Error::other)?;
        buffer.iter_mut().zip(&part).for_each(|(to, from)| *to = *from);
        self.crc = crc32c::crc32c_append(self.crc, &part);
        self.at += part.len() as u64;
        Ok(part.len())
    }
}
