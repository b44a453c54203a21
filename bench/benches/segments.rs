//! Segments: what building costs, what is written, and how fast a key and the whole come back.
//!
//! `cargo bench -p tidegate-bench --bench segments [-- quick]`. CPU of this thread and wall time; files in a temporary
//! directory, in the page cache. `quick` builds a tenth of the large log.
#![allow(clippy::print_stdout, reason = "a benchmark reports to the person who runs it")]

use std::{
    fs::File,
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use tidegate::storage::{
    StorageError,
    segment::{Cache, Expected, Ranges, Segment, build},
};
use tidegate_bench::{Samples, row, thread_cpu, wall};
use tidegate_protocol::{
    batch::BatchBuilder,
    limits::Limits,
    record::RecordView,
    stored::{FrameHeader, StoredFrame, TopicStamp},
};

const TOPIC: u64 = 16;
/// An entry's own header in the WAL, and the padding behind it on average.
const WAL_ENTRY_BYTES: usize = 32 + 4;
const ROUNDS: usize = 7;
/// Keys that are asked for, each in this many segments.
const PROBES: u64 = 200;
const PROBE_SEGMENTS: usize = 10;

fn main() -> Result<()> {
    let quick = std::env::args().any(|argument| argument == "quick");
    let dir = tempfile::tempdir()?;
    println!("-- one window of 64 MiB");
    window(dir.path(), "100 B x 1000, keys over a million", 1_000, 100, 480_000, 1_000_000)?;
    window(dir.path(), "1 KB x 100, keys over a million", 100, 1_000, 60_000, 1_000_000)?;
    println!("-- replay of a key of {PROBE_SEGMENTS} records, each in another segment; 100 B");
    let scale = if quick { 10 } else { 1 };
    let small = keys(dir.path(), 1_000_000 / scale, 10)?;
    let large = keys(dir.path(), 10_000_000 / scale, 20)?;
    println!("from {} to {} keys: warm p50 {:.2} x", 1_000_000 / scale, 10_000_000 / scale, large / small);
    Ok(())
}

/// Numbers frames as a shard with one topic does.
struct Log {
    next: u64,
    random: u64,
}

impl Log {
    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn frame(
        &mut self,
        records: u64,
        value_bytes: usize,
        mut key: impl FnMut(&mut Self) -> String,
    ) -> Result<Arc<StoredFrame>> {
        let mut builder = BatchBuilder::new();
        let mut value = vec![0; value_bytes];
        for _ in 0..records {
            for word in value.chunks_mut(8) {
                let bytes = self.random().to_le_bytes();
                word.copy_from_slice(&bytes[..word.len()]);
            }
            let key = key(self);
            let record = RecordView {
                key: Some(key.as_bytes()),
                value: Some(&value),
                headers: &[],
                timestamp_ms: 1_700_000_000_000,
            };
            builder.push("orders/eu", record);
        }
        let header = FrameHeader {
            first_lsn: self.next,
            broker_time_ms: 1_700_000_000_000 + i64::try_from(self.next / 1_000)?,
            generation: 1,
            tenant: 1,
            input_count: u32::try_from(records)?,
            topics: vec![TopicStamp { id: TOPIC, base_offset: self.next }],
            key_versions: vec![1; usize::try_from(records)?],
            ..FrameHeader::default()
        };
        self.next += records;
        Ok(Arc::new(StoredFrame::from_parts(header, Some(builder.finish_body(&Limits::STORED)?))?))
    }
}

/// A segment's file; counts reads.
#[derive(Debug)]
struct Source {
    file: File,
    reads: AtomicU64,
}

impl Ranges for Source {
    fn read(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or_default()];
        self.file.read_exact_at(&mut bytes, range.start).map_err(StorageError::io("read", "segment"))?;
        Ok(bytes.into())
    }
}

fn store(dir: &Path, frames: &[Arc<StoredFrame>], bytes: &Bytes) -> Result<(Arc<Source>, Expected)> {
    let (first, last) = frames.first().zip(frames.last()).context("a window has frames")?;
    let object = format!("{}", first.header.first_lsn);
    let path = dir.join(&object);
    std::fs::write(&path, bytes)?;
    let expected = Expected {
        object,
        bytes: bytes.len() as u64,
        first_lsn: first.header.first_lsn,
        next_lsn: last.next_lsn(),
        shard: 0,
    };
    Ok((Arc::new(Source { file: File::open(path)?, reads: AtomicU64::new(0) }), expected))
}

fn window(dir: &Path, name: &str, batch: u64, value_bytes: usize, records: u64, keys: u64) -> Result<()> {
    let mut log = Log { next: 0, random: 7 };
    let make = |_| log.frame(batch, value_bytes, |log| format!("customer-{:07}", log.random() % keys));
    let frames = (0..records / batch).map(make).collect::<Result<Vec<_>>>()?;
    let payload: usize = frames
        .iter()
        .filter_map(|frame| frame.body.as_ref())
        .flat_map(|body| body.records())
        .map(|(_, record)| record.bytes())
        .sum();
    let wal: usize = frames.iter().map(|frame| frame.bytes.len() + WAL_ENTRY_BYTES).sum();
    let (mut building, mut scanning, mut scanning_wall) = (Samples::default(), Samples::default(), Samples::default());
    let mut bytes = Bytes::new();
    for _ in 0..ROUNDS {
        let start = thread_cpu();
        bytes = build(0, 1, &frames);
        building.add(thread_cpu() - start, payload as u64);
        let (source, expected) = store(dir, &frames, &bytes)?;
        let (start, start_wall) = (thread_cpu(), wall());
        let segment = Segment::open(source, Arc::new(Cache::new(256 << 20)), &expected)?;
        let mut lsn = expected.first_lsn;
        let mut scanned = 0;
        while lsn < expected.next_lsn {
            let run = segment.scan(lsn, 1 << 20, None)?;
            scanned += run.frames.iter().map(|frame| frame.lsn_count()).sum::<u64>();
            lsn = run.next_lsn;
        }
        anyhow::ensure!(scanned == records, "{scanned} of {records} records");
        scanning.add(thread_cpu() - start, payload as u64);
        scanning_wall.add(wall() - start_wall, payload as u64);
    }
    // ns per byte = ms per MB.
    row(&format!("{name}: build"), &building, "ms CPU/MB", None);
    row(&format!("{name}: ordered scan"), &scanning, "ms CPU/MB", None);
    println!(
        "{:<44} {:>12.0} MB/s of CPU, {:.0} MB/s of wall time",
        "",
        1_000.0 / scanning.median(),
        1_000.0 / scanning_wall.median()
    );
    let ratio = |bytes: usize| bytes as f64 / payload as f64;
    println!(
        "{:<44} written per payload byte: WAL {:.3} + segment {:.3} = {:.3}",
        "",
        ratio(wal),
        ratio(bytes.len()),
        ratio(wal + bytes.len())
    );
    Ok(())
}

/// A log of so many keys, each written once, and probe keys in some segments. Gives the warm p50 in nanoseconds.
fn keys(dir: &Path, keys: u64, segments: usize) -> Result<f64> {
    let dir = dir.join(format!("{keys}"));
    std::fs::create_dir(&dir)?;
    let mut log = Log { next: 0, random: 11 };
    let (mut sources, mut object_bytes, mut next_key) = (Vec::new(), 0, 0_u64);
    for number in 0..segments {
        let holds_probes = number % (segments / PROBE_SEGMENTS) == 0;
        let mut frames = Vec::new();
        if holds_probes {
            let mut probe = 0;
            frames.push(log.frame(PROBES, 100, |_| {
                probe += 1;
                probe_key(probe - 1)
            })?);
        }
        for _ in 0..keys / segments as u64 / 1_000 {
            frames.push(log.frame(1_000, 100, |_| {
                next_key += 1;
                // Spread over the key space, so that windows do not hold ranges of their own.
                format!("customer-{:08}x", next_key.wrapping_mul(0x9e37_79b1) % 100_000_000)
            })?);
        }
        let bytes = build(0, 1, &frames);
        object_bytes += bytes.len();
        sources.push(store(&dir, &frames, &bytes)?);
    }
    let open = |cache_bytes: usize| -> Result<Vec<Segment>> {
        let cache = Arc::new(Cache::new(cache_bytes));
        let open = sources.iter().map(|(source, expected)| {
            Ok(Segment::open(Arc::clone(source) as Arc<dyn Ranges>, Arc::clone(&cache), expected)?)
        });
        open.collect()
    };
    let reads = || sources.iter().map(|(source, _)| source.reads.load(Ordering::Relaxed)).sum::<u64>();
    let warm = open(1 << 30)?;
    let memory: usize = warm.iter().map(Segment::memory_bytes).sum();
    println!(
        "{keys} keys, {segments} segments, {} MiB; {} KiB of memory for what is open",
        object_bytes >> 20,
        memory >> 10
    );
    let before = reads();
    let first = probe_all(&warm)?;
    let cold_reads = reads() - before;
    let answered = PROBES * PROBE_SEGMENTS as u64 + false_answers(&warm);
    row("  first time (page cache only)", &first, "ns", None);
    println!("  {:.3} reads per segment whose filter answers", cold_reads as f64 / answered as f64);
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        samples = probe_all(&warm)?;
    }
    row("  warm p50", &samples, "ns", None);
    println!("  warm p99 {:.1} µs; reads {}", samples.quantile(0.99) / 1_000.0, reads() - before - cold_reads);
    let absent = (0..100_000_u64).flat_map(|number| warm.iter().map(move |segment| (number, segment)));
    let false_ones =
        absent.filter(|(number, segment)| segment.may_hold(TOPIC, format!("absent-{number}").as_bytes())).count();
    println!("  false answers of the filters: {:.3} %", false_ones as f64 / (100_000 * segments) as f64 * 100.0);
    Ok(samples.median())
}

/// Spread over the key space.
fn probe_key(number: u64) -> String {
    format!("customer-{:08}", number * (100_000_000 / PROBES))
}

/// Replays every probe key; a sample each.
fn probe_all(segments: &[Segment]) -> Result<Samples> {
    let mut samples = Samples::default();
    for number in 0..PROBES {
        let key = probe_key(number);
        let start = wall();
        let mut records = 0;
        for segment in segments {
            records += segment.replay(TOPIC, key.as_bytes(), 0, 1 << 20)?.records.len();
        }
        let took: Duration = wall() - start;
        anyhow::ensure!(records == PROBE_SEGMENTS, "{records} records of {key}");
        samples.add(took, 1);
    }
    Ok(samples)
}

/// Segments that do not hold a probe key and say they may.
fn false_answers(segments: &[Segment]) -> u64 {
    let may = |number: u64| {
        let key = probe_key(number);
        segments.iter().filter(|segment| segment.may_hold(TOPIC, key.as_bytes())).count() as u64
    };
    (0..PROBES).map(|number| may(number).saturating_sub(PROBE_SEGMENTS as u64)).sum()
}
