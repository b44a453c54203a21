//! How a line becomes a record.

use bytes::Bytes;
use serde_json::Value;
use tidegate_client::Record;

use super::{super::Error, lines::Line};
use crate::clock::{SystemClock, unix_ms};

/// How a line becomes a record.
#[derive(Debug)]
pub(super) struct Recipe {
    key: Key,
    headers: Vec<(String, Option<Bytes>)>,
    clock: SystemClock,
}

#[derive(Debug)]
enum Key {
    None,
    Fixed(Bytes),
    Pointer(String),
}

impl Recipe {
    /// From the flags.
    pub(super) fn new(key: Option<&str>, pointer: Option<&str>, headers: &[(String, Bytes)]) -> Result<Self, Error> {
        let key = match (key, pointer) {
            (Some(key), _) => Key::Fixed(Bytes::copy_from_slice(key.as_bytes())),
            (None, Some(pointer)) if pointer.starts_with('/') => Key::Pointer(pointer.to_owned()),
            (None, Some(pointer)) => {
                return Err(Error::Usage(format!(
                    "--key-pointer {pointer:?} does not start with `/`: write /payload/id"
                )));
            }
            (None, None) => Key::None,
        };
        let headers = headers.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
        Ok(Self { key, headers, clock: SystemClock::default() })
    }

    /// The record of a line, with the time of now.
    pub(super) fn record(&self, line: &Line) -> Result<Record, Error> {
        let key = match &self.key {
            Key::None => None,
            Key::Fixed(key) => Some(key.clone()),
            Key::Pointer(pointer) => Some(point(pointer, line)?),
        };
        let (value, headers) = (Some(line.bytes.clone()), self.headers.clone());
        Ok(Record { key, value, headers, timestamp_ms: unix_ms(&self.clock) })
    }
}

fn point(pointer: &str, line: &Line) -> Result<Bytes, Error> {
    let wrong = |why: String| Error::Usage(format!("line {}: {why}; the lines before it were sent", line.number));
    let value: Value = serde_json::from_slice(&line.bytes).map_err(|error| wrong(format!("not JSON: {error}")))?;
    match value.pointer(pointer) {
        Some(Value::String(text)) => Ok(Bytes::copy_from_slice(text.as_bytes())),
        Some(scalar @ (Value::Number(_) | Value::Bool(_))) => Ok(scalar.to_string().into()),
        Some(_) => Err(wrong(format!("{pointer} is no string, number or boolean"))),
        None => Err(wrong(format!("there is nothing at {pointer}"))),
    }
}

/// `NAME=VALUE`.
pub(super) fn parse_header(text: &str) -> Result<(String, Bytes), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), Bytes::copy_from_slice(value.as_bytes()))),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &'static str) -> Line {
        Line { number: 3, bytes: text.into() }
    }

    #[test]
    fn keys_come_from_the_flag_or_the_value() {
        let key = |recipe: &Recipe, text| recipe.record(&line(text)).map(|record| record.key);
        assert_eq!(key(&Recipe::new(None, None, &[]).unwrap(), "x").unwrap(), None);
        assert_eq!(key(&Recipe::new(Some("k"), None, &[]).unwrap(), "x").unwrap(), Some("k".into()));
        let pointed = Recipe::new(None, Some("/a/id"), &[]).unwrap();
        assert_eq!(key(&pointed, r#"{"a":{"id":"x"}}"#).unwrap(), Some("x".into()));
        assert_eq!(key(&pointed, r#"{"a":{"id":47}}"#).unwrap(), Some("47".into()));
        for wrong in [r#"{"a":1}"#, r#"{"a":{"id":{}}}"#, "no json"] {
            assert!(key(&pointed, wrong).unwrap_err().to_string().starts_with("line 3: "), "{wrong}");
        }
        assert!(Recipe::new(None, Some("a"), &[]).is_err());
    }

    #[test]
    fn headers_split_at_the_first_equals() {
        assert_eq!(parse_header("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(parse_header("a="), Ok(("a".into(), Bytes::new())));
        assert!(parse_header("a").is_err());
        assert!(parse_header("=b").is_err());
    }
}
