//! What `tidegate consume` prints: one line or object per record.

use std::fmt::{self, Display};

use serde::Serialize;
use tidegate_protocol::record::RecordView;

use super::super::output::Bytes;

/// A record that was read, with its place.
#[derive(Debug)]
pub(super) struct Read<'a> {
    /// Its topic.
    pub(super) topic: &'a str,
    /// Its offset there.
    pub(super) offset: u64,
    /// Version of its key; 0 without a key.
    pub(super) key_version: u64,
    /// Its content.
    pub(super) record: RecordView<'a>,
    /// The broker's time of it.
    pub(super) broker_time_ms: i64,
    /// The chain generation it was produced under.
    pub(super) generation: u64,
    /// Where to go on behind it. Only the last record of what came together has one.
    pub(super) cursor: Option<&'a str>,
}

impl Display for Read<'_> {
    /// `topic@offset key value`; `-` stands for a null key, `(tombstone)` for a null value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} ", self.topic, self.offset)?;
        match self.record.key {
            Some(key) => write!(f, "{} ", Bytes(key))?,
            None => f.write_str("- ")?,
        }
        match self.record.value {
            Some(value) => write!(f, "{}", Bytes(value)),
            None => f.write_str("(tombstone)"),
        }
    }
}

/// The object of a record.
#[derive(Debug, Serialize)]
struct Object<'a> {
    topic: &'a str,
    offset: u64,
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_encoding: Option<&'static str>,
    key_version: Option<u64>,
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_encoding: Option<&'static str>,
    headers: Vec<Header<'a>>,
    timestamp_ms: i64,
    broker_time_ms: i64,
    generation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<&'a str>,
}

/// Records that were not read yet are gone: `{"gap": {"topic", "low_offset"}}`.
#[derive(Debug)]
pub(super) struct Gone<'a> {
    /// Of this topic.
    pub(super) topic: &'a str,
    /// All before this offset.
    pub(super) low_offset: u64,
}

impl Display for Gone<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, low_offset } = self;
        write!(f, "{topic}: records before offset {low_offset} are gone (retention or truncation); going on there")
    }
}

impl Serialize for Gone<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let gap = serde_json::json!({ "gap": { "topic": self.topic, "low_offset": self.low_offset } });
        gap.serialize(serializer)
    }
}

/// Headers keep their order, and names may repeat: a list, not a map.
#[derive(Debug, Serialize)]
struct Header<'a> {
    name: &'a str,
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_encoding: Option<&'static str>,
}

impl Serialize for Read<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let encode = |bytes: Option<&[u8]>| match bytes.map(|bytes| Bytes(bytes).encoded()) {
            Some((text, encoding)) => (Some(text), encoding),
            None => (None, None),
        };
        let (key, key_encoding) = encode(self.record.key);
        let (value, value_encoding) = encode(self.record.value);
        let headers = tidegate_protocol::record::headers(self.record.headers)
            // The body was checked when it came: no headers item fails here.
            .filter_map(Result::ok)
            .map(|(name, value)| {
                let (value, value_encoding) = encode(value);
                Header { name, value, value_encoding }
            })
            .collect();
        let object = Object {
            topic: self.topic,
            offset: self.offset,
            key,
            key_encoding,
            key_version: Some(self.key_version).filter(|version| *version > 0),
            value,
            value_encoding,
            headers,
            timestamp_ms: self.record.timestamp_ms,
            broker_time_ms: self.broker_time_ms,
            generation: self.generation,
            cursor: self.cursor,
        };
        object.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a>(record: RecordView<'a>) -> Read<'a> {
        Read { topic: "orders/eu", offset: 7, key_version: 2, record, broker_time_ms: 5, generation: 3, cursor: None }
    }

    const EMPTY: RecordView<'static> = RecordView { key: None, value: None, headers: &[], timestamp_ms: 4 };

    #[test]
    fn text_is_place_key_value() {
        let keyed = RecordView { key: Some(b"4711"), value: Some(b"{\"a\":1}"), ..EMPTY };
        assert_eq!(read(keyed).to_string(), "orders/eu@7 4711 {\"a\":1}");
        assert_eq!(read(EMPTY).to_string(), "orders/eu@7 - (tombstone)");
    }

    #[test]
    fn a_gap_has_an_object_of_its_own() {
        let gone = Gone { topic: "orders/eu", low_offset: 7 };
        assert_eq!(serde_json::to_string(&gone).unwrap(), r#"{"gap":{"low_offset":7,"topic":"orders/eu"}}"#);
        assert!(gone.to_string().starts_with("orders/eu: records before offset 7 are gone"));
    }

    #[test]
    fn json_marks_what_is_not_text() {
        let mut headers = Vec::new();
        let pairs: [(&str, Option<&[u8]>); 2] = [("a", Some(b"1")), ("a", None)];
        tidegate_protocol::record::encode_headers(pairs.into_iter(), &mut headers).unwrap();
        let record = RecordView { key: Some(b"\xff"), value: Some(b"v"), headers: &headers, ..EMPTY };
        let json = serde_json::to_value(Read { cursor: Some("c"), ..read(record) }).unwrap();
        assert_eq!(json["key"], "/w==");
        assert_eq!(json["key_encoding"], "base64");
        assert_eq!(json["value"], "v");
        assert!(json.get("value_encoding").is_none());
        assert_eq!(json["headers"][0]["value"], "1");
        assert_eq!(json["headers"][1]["value"], serde_json::Value::Null);
        assert_eq!(json["cursor"], "c");
        assert_eq!(json["key_version"], 2);
    }
}
