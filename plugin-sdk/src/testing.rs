//! Runs a plugin natively through the frames and verdicts of the contract, and tells per record what became of it.
//!
//! ```
//! # use tidegate_plugin::{Batch, Failure, Fields, Manifest, Needs, Plugin, Settings, Verdict};
//! # struct NoTests;
//! # impl Plugin for NoTests {
//! #     const MANIFEST: Manifest = Manifest::new("no-tests", "0.1.0").produces();
//! #     fn new(_: &Settings) -> Result<Self, Failure> { Ok(Self) }
//! #     fn needs(&self) -> Needs { Needs::produce(Fields::KEY) }
//! #     fn on_produce(&mut self, batch: &Batch<'_>, out: &mut Verdict) -> Result<(), Failure> {
//! #         for record in batch.records() {
//! #             if record.key() == Some(b"test-1") { out.drop(record.at()); }
//! #         }
//! #         Ok(())
//! #     }
//! # }
//! use tidegate_plugin::testing::{Fate, Harness, Record};
//!
//! let mut plugin = Harness::<NoTests>::new("{}").unwrap();
//! let run = plugin.produce(&[Record::new("orders").key("test-1"), Record::new("orders").key("4711")]).unwrap();
//! assert_eq!(run.fates[0], Fate::Dropped);
//! assert_eq!(run.fates[1], Fate::Kept(Record::new("orders").key("4711")));
//! ```
//!
//! The plugin gets only the fields that its `needs` asks for, and a verdict that the broker would not accept panics
//! with what is wrong. The capabilities are doubles that belong to the thread: see [`log_lines`], [`set_clock`],
//! [`set_instance`].

mod apply;
mod harness;

pub use harness::{Harness, Run, counter, log_lines, set_clock, set_instance};

use crate::{Fields, bindings::tidegate::plugin::types as wit, verdict::headers_item};

/// One record of a test.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Its topic.
    pub topic: String,
    /// Its key, or none.
    pub key: Option<Vec<u8>>,
    /// Its value; none is a tombstone.
    pub value: Option<Vec<u8>>,
    /// Its headers in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// The producer's timestamp in Unix milliseconds.
    pub timestamp_ms: i64,
}

impl Record {
    /// A record without key, value and headers.
    pub fn new(topic: &str) -> Self {
        Self { topic: topic.to_owned(), ..Self::default() }
    }

    /// With this key.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.key = Some(key.as_ref().to_vec());
        self
    }

    /// With this value.
    #[must_use]
    pub fn value(mut self, value: impl AsRef<[u8]>) -> Self {
        self.value = Some(value.as_ref().to_vec());
        self
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), Some(value.as_ref().to_vec())));
        self
    }

    /// The value as text, for messages and comparisons.
    pub fn text(&self) -> &str {
        self.value.as_deref().and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default()
    }

    /// The first header of that name, as text.
    pub fn header_text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(other, _)| other == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }
}

/// What became of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It goes on, as it now is.
    Kept(Record),
    /// It went.
    Dropped,
    /// It was refused.
    Rejected {
        /// The plugin's own code.
        code: u16,
        /// 0 = do not retry.
        retry_after_ms: u32,
        /// What the producer is told.
        reason: String,
    },
}

impl Fate {
    /// The record, if it goes on.
    pub fn kept(&self) -> Option<&Record> {
        match self {
            Self::Kept(record) => Some(record),
            _ => None,
        }
    }

    /// The reason, if the record was refused.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Rejected { reason, .. } => Some(reason),
            _ => None,
        }
    }
}

/// The frame of some records in the layout of the contract.
pub(crate) fn frame(fields: Fields, records: &[Record]) -> wit::Frame {
    const NULL: u32 = 1 << 31;
    let mut frame = wit::Frame { index: Vec::new(), data: Vec::new() };
    let mut column = |items: &mut dyn Iterator<Item = Option<Vec<u8>>>| {
        let start = frame.data.len();
        for item in items {
            frame.data.extend_from_slice(item.as_deref().unwrap_or_default());
            let end = u32::try_from(frame.data.len() - start).expect("a test batch below 2 GiB");
            frame.index.push(if item.is_some() { end } else { end | NULL });
        }
    };
    if fields.contains(Fields::KEY) {
        column(&mut records.iter().map(|record| record.key.clone()));
    }
    if fields.contains(Fields::VALUE) {
        column(&mut records.iter().map(|record| record.value.clone()));
    }
    if fields.contains(Fields::HEADERS) {
        column(&mut records.iter().map(|record| Some(item(&record.headers))));
    }
    if fields.contains(Fields::TOPIC) {
        column(&mut records.iter().map(|record| Some(record.topic.clone().into_bytes())));
    }
    if fields.contains(Fields::TIMESTAMP) {
        frame.data.extend(records.iter().flat_map(|record| record.timestamp_ms.to_le_bytes()));
    }
    if fields.contains(Fields::OFFSET) {
        frame.data.extend((0_u64..).zip(records).flat_map(|(offset, _)| offset.to_le_bytes()));
    }
    frame
}

fn item(headers: &[(String, Option<Vec<u8>>)]) -> Vec<u8> {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
    headers_item(&headers)
}
