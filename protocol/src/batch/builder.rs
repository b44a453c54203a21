//! Building a body record by record into columns whose memory is kept from batch to batch.

use std::collections::HashMap;

use bytes::Bytes;

use super::{
    BODY_HEADER_BYTES, BODY_VERSION, BatchBody, BodyError, CODEC_NONE, NULL, RECORD_FIXED_BYTES, parse, parse::CRC_AT,
};
use crate::{
    limits::{Limits, TOPICS_PER_BATCH_MAX},
    record::{HeadersError, Record, RecordView},
    topic::{TopicError, check_name},
};

/// Builds a body record by record.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    topics: Vec<String>,
    numbers: HashMap<String, u16>,
    topic_bytes: usize,
    sections: Vec<(u16, u32)>,
    key_ends: Vec<u8>,
    value_ends: Vec<u8>,
    header_ends: Vec<u8>,
    timestamps: Vec<u8>,
    keys: Vec<u8>,
    values: Vec<u8>,
    headers: Vec<u8>,
    records: u32,
}

impl BatchBuilder {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a record; a run of one topic becomes one section. Topics are interned. Limits and names are the caller's to
    /// check, with [`Self::check`] or in [`Self::finish_body`].
    ///
    /// # Panics
    /// If the body grows over what its words can say: 2 GiB in a column, or 65 535 topics.
    pub fn push(&mut self, topic: &str, record: RecordView<'_>) {
        let start = self.headers.len();
        self.headers.extend_from_slice(record.headers);
        self.push_beside_headers(topic, record.key, record.value, record.timestamp_ms, start);
    }

    /// Appends a record that owns its bytes, as [`Self::push`].
    ///
    /// # Errors
    /// If its headers do not fit their layout; the batch is then as it was.
    ///
    /// # Panics
    /// As [`Self::push`].
    pub fn push_record(&mut self, topic: &str, record: &Record) -> Result<(), HeadersError> {
        let start = self.headers.len();
        record.encode_headers(&mut self.headers)?;
        self.push_beside_headers(topic, record.key.as_deref(), record.value.as_deref(), record.timestamp_ms, start);
        Ok(())
    }

    /// Whether one more record of these sizes would be within the limits of a batch.
    ///
    /// # Errors
    /// `BodyError::Limit` with the bound that would be broken; the record's own bounds name the position it would have.
    /// `BodyError::Topic` if the name is none.
    pub fn check(&self, topic: &str, record: &Record, limits: &Limits) -> Result<(), BodyError> {
        check_name(topic).map_err(|reason| BodyError::Topic(TopicError::new(topic, reason)))?;
        let headers_bytes = record.headers_bytes();
        let own = [
            ("key bytes", record.key.as_ref().map_or(0, Bytes::len), limits.key_bytes_max),
            ("headers of the record", record.headers.len(), limits.headers_max),
            ("headers bytes", headers_bytes, limits.headers_bytes_max),
            ("record bytes", record.bytes(), limits.record_bytes_max),
        ];
        let (topic_bytes, topic_count) = match self.number(topic) {
            Some(_) => (0, 0),
            None => (2 + topic.len(), 1),
        };
        let bytes = self.encoded_bytes() + record.bytes() + RECORD_FIXED_BYTES + 8 + topic_bytes;
        let whole = [
            ("batch bytes", bytes, limits.batch_bytes_max),
            ("records of the batch", self.records as usize + 1, limits.batch_records_max),
            ("topics of the batch", self.topics.len() + topic_count, u32::from(TOPICS_PER_BATCH_MAX)),
        ];
        let own = own.into_iter().map(|bound| (bound, Some(self.records)));
        for ((what, actual, max), record) in own.chain(whole.into_iter().map(|bound| (bound, None))) {
            let (actual, max) = (actual as u64, u64::from(max));
            if actual > max {
                return Err(BodyError::Limit { what, actual, max, record });
            }
        }
        Ok(())
    }

    /// Records so far.
    pub fn len(&self) -> u32 {
        self.records
    }

    /// No record so far.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes the body would have now.
    pub fn encoded_bytes(&self) -> usize {
        BODY_HEADER_BYTES
            + self.topic_bytes
            + self.sections.len() * 8
            + self.records as usize * RECORD_FIXED_BYTES
            + self.keys.len()
            + self.values.len()
            + self.headers.len()
    }

    /// The body, and an empty builder again (its memory is kept).
    ///
    /// # Panics
    /// If the body is over 4 GiB.
    pub fn finish(&mut self) -> Bytes {
        let mut body = self.encode();
        let crc = crc32c::crc32c_append(crc32c::crc32c(&body[..CRC_AT]), &body[BODY_HEADER_BYTES..]);
        body[CRC_AT..BODY_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        self.clear();
        body.into()
    }

    /// As [`Self::finish`], checked into a body without computing the CRC a second time. The builder is empty afterwards,
    /// also after an error.
    ///
    /// # Errors
    /// If what was pushed breaks a limit, a topic name is none, or a headers item is not of its layout.
    ///
    /// # Panics
    /// As [`Self::finish`].
    pub fn finish_body(&mut self, limits: &Limits) -> Result<BatchBody, BodyError> {
        let bytes = self.encoded_bytes() as u64;
        if bytes > u64::from(limits.batch_bytes_max) {
            self.clear();
            let max = u64::from(limits.batch_bytes_max);
            return Err(BodyError::Limit { what: "batch bytes", actual: bytes, max, record: None });
        }
        parse::layout(self.finish(), limits)
    }

    /// Forgets what was pushed; the memory is kept.
    pub fn clear(&mut self) {
        self.topics.clear();
        self.numbers.clear();
        self.topic_bytes = 0;
        self.sections.clear();
        for column in [
            &mut self.key_ends,
            &mut self.value_ends,
            &mut self.header_ends,
            &mut self.timestamps,
            &mut self.keys,
            &mut self.values,
            &mut self.headers,
        ] {
            column.clear();
        }
        self.records = 0;
    }

    fn push_beside_headers(
        &mut self,
        topic: &str,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        timestamp_ms: i64,
        headers_start: usize,
    ) {
        debug_assert!(headers_start <= self.headers.len(), "headers go in first");
        self.run_of(topic);
        push_item(&mut self.key_ends, &mut self.keys, key);
        push_item(&mut self.value_ends, &mut self.values, value);
        self.header_ends.extend_from_slice(&end_word(self.headers.len()).to_le_bytes());
        self.timestamps.extend_from_slice(&timestamp_ms.to_le_bytes());
        self.records += 1;
    }

    /// Goes on with the run of this topic, or starts one.
    fn run_of(&mut self, topic: &str) {
        if let Some((number, records)) = self.sections.last_mut()
            && self.topics.get(usize::from(*number)).is_some_and(|last| last == topic)
        {
            *records += 1;
            return;
        }
        let number = self.number(topic).unwrap_or_else(|| {
            let number = u16::try_from(self.topics.len()).expect("limits allow 1024 topics in a batch");
            self.topics.push(topic.to_owned());
            self.numbers.insert(topic.to_owned(), number);
            self.topic_bytes += 2 + topic.len();
            number
        });
        self.sections.push((number, 1));
    }

    fn number(&self, topic: &str) -> Option<u16> {
        self.numbers.get(topic).copied()
    }

    fn encode(&self) -> Vec<u8> {
        let bytes = self.encoded_bytes();
        let rest = u32::try_from(bytes - BODY_HEADER_BYTES).expect("a body is under 4 GiB");
        let topics = u16::try_from(self.topics.len()).expect("`run_of` numbers them in u16");
        let sections = u32::try_from(self.sections.len()).expect("no more than records");
        let mut body = Vec::with_capacity(bytes);
        body.extend_from_slice(&[BODY_VERSION, CODEC_NONE]);
        body.extend_from_slice(&topics.to_le_bytes());
        body.extend_from_slice(&0_u32.to_le_bytes());
        body.extend_from_slice(&self.records.to_le_bytes());
        body.extend_from_slice(&sections.to_le_bytes());
        body.extend_from_slice(&rest.to_le_bytes());
        body.extend_from_slice(&[0; 4]);
        for topic in &self.topics {
            let length = u16::try_from(topic.len()).expect("a name is under 256 bytes");
            body.extend_from_slice(&length.to_le_bytes());
            body.extend_from_slice(topic.as_bytes());
        }
        for (topic, records) in &self.sections {
            body.extend_from_slice(&u32::from(*topic).to_le_bytes());
            body.extend_from_slice(&records.to_le_bytes());
        }
        for column in [
            &self.key_ends,
            &self.value_ends,
            &self.header_ends,
            &self.timestamps,
            &self.keys,
            &self.values,
            &self.headers,
        ] {
            body.extend_from_slice(column);
        }
        debug_assert_eq!(body.len(), bytes);
        body
    }
}

fn push_item(ends: &mut Vec<u8>, column: &mut Vec<u8>, item: Option<&[u8]>) {
    column.extend_from_slice(item.unwrap_or_default());
    let null = if item.is_none() { NULL } else { 0 };
    ends.extend_from_slice(&(end_word(column.len()) | null).to_le_bytes());
}

fn end_word(end: usize) -> u32 {
    u32::try_from(end).ok().filter(|end| end & NULL == 0).expect("limits keep a column under 2 GiB")
}
