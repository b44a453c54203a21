//! For the tests of this crate: a seeded source of numbers, golden files, random records, and ways to damage bytes.
#![allow(clippy::cast_possible_truncation, reason = "tests cut numbers on purpose and see what fails")]

use bytes::Bytes;

use crate::{
    batch::{BatchBody, BatchBuilder},
    limits::Limits,
    record::Record,
};

/// Xorshift64*: the same seed gives the same row of numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }
    pub(crate) fn bytes(&mut self, bytes_max: u64) -> Vec<u8> {
        (0..self.below(bytes_max + 1)).map(|_| (self.next() >> 32) as u8).collect()
    }
    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
    pub(crate) fn maybe(&mut self, bytes_max: u64) -> Option<Bytes> {
        if self.one_in(4) { None } else { Some(self.bytes(bytes_max).into()) }
    }
    pub(crate) fn record(&mut self) -> Record {
        let headers = if self.one_in(2) { 0 } else { self.below(4) };
        Record {
            key: self.maybe(12),
            value: self.maybe(40),
            headers: (0..headers).map(|at| (format!("name-{at}-ä"), self.maybe(9))).collect(),
            timestamp_ms: self.next() as i64,
        }
    }
    /// Records with their topics, over up to `topics` of them, in runs.
    pub(crate) fn records(&mut self, topics: u64) -> Vec<(String, Record)> {
        let mut topic = self.below(topics);
        (0..self.below(30))
            .map(|_| {
                if self.one_in(3) {
                    topic = self.below(topics);
                }
                (format!("t/{topic}"), self.record())
            })
            .collect()
    }
}

pub(crate) fn body_of(records: &[(String, Record)]) -> BatchBody {
    let mut builder = BatchBuilder::new();
    for (topic, record) in records {
        builder.push_record(topic, record).unwrap();
    }
    BatchBody::parse(builder.finish(), &Limits::default()).unwrap()
}

/// Bytes of a golden file: hex digits, and comment lines that start with `#`.
pub(crate) fn golden(text: &str) -> Bytes {
    let digits = text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
    digits.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect::<Vec<_>>().into()
}

/// Every beginning of the bytes, the whole left out.
pub(crate) fn cuts(bytes: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    (0..bytes.len()).map(|end| bytes.slice(..end))
}

/// The bytes with one byte changed: every place, every bit alone, and all bits at once. With the place.
pub(crate) fn mutants(bytes: &Bytes) -> impl Iterator<Item = (usize, Bytes)> + '_ {
    let masks = [1, 2, 4, 8, 16, 32, 64, 128, 255];
    (0..bytes.len()).flat_map(move |place| {
        masks.into_iter().map(move |mask| {
            let mut changed = bytes.to_vec();
            changed[place] ^= mask;
            (place, changed.into())
        })
    })
}
