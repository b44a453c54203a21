//! How a line becomes a record.

use bytes::Bytes;
use serde_json::Value as Json;
use tidegate_client::Record;

use super::{
    super::{
        Error,
        codes::{Kind, Own},
    },
    Args,
    lines::Line,
};
use crate::clock::{SystemClock, unix_ms};

/// How a line becomes a record.
#[derive(Debug)]
pub(super) struct Recipe {
    key: Key,
    value: Value,
    headers: Vec<(String, Option<Bytes>)>,
    clock: SystemClock,
}

#[derive(Debug)]
enum Key {
    None,
    Fixed(Bytes),
    Pointer(String),
}

#[derive(Debug)]
enum Value {
    Line,
    /// A tombstone.
    Null,
}

impl Recipe {
    /// From the flags.
    pub(super) fn new(args: &Args) -> Result<Self, Error> {
        let key = match (&args.key, &args.key_pointer) {
            (Some(key), _) => Key::Fixed(Bytes::copy_from_slice(key.as_bytes())),
            (None, Some(pointer)) if pointer.starts_with('/') => Key::Pointer(pointer.to_owned()),
            (None, Some(pointer)) => {
                return Err(Error::usage(format!(
                    "--key-pointer {pointer:?} does not start with `/`: write /payload/id"
                )));
            }
            (None, None) => Key::None,
        };
        let value = if args.null_value { Value::Null } else { Value::Line };
        let headers = args.headers.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
        Ok(Self { key, value, headers, clock: SystemClock::default() })
    }

    /// The record of a line, with the time of now.
    pub(super) fn record(&self, line: &Line) -> Result<Record, Error> {
        let key = match &self.key {
            Key::None => None,
            Key::Fixed(key) => Some(key.clone()),
            Key::Pointer(pointer) => Some(point(pointer, line)?),
        };
        let value = match self.value {
            Value::Line => Some(line.bytes.clone()),
            Value::Null => None,
        };
        Ok(Record { key, value, headers: self.headers.clone(), timestamp_ms: unix_ms(&self.clock) })
    }
}

fn point(pointer: &str, line: &Line) -> Result<Bytes, Error> {
    let wrong = |why: String| Error::line(line.number, Kind::Own(Own::NotSent), why);
    let value: Json = serde_json::from_slice(&line.bytes).map_err(|error| wrong(format!("not JSON: {error}")))?;
    match value.pointer(pointer) {
        Some(Json::String(text)) => Ok(Bytes::copy_from_slice(text.as_bytes())),
        Some(scalar @ (Json::Number(_) | Json::Bool(_))) => Ok(scalar.to_string().into()),
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

    fn recipe(flags: &str) -> Result<Recipe, Error> {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            args: Args,
        }
        let line = format!("produce t{flags}");
        let command = <Command as clap::Parser>::try_parse_from(line.split(' ')).unwrap();
        Recipe::new(&command.args)
    }

    #[test]
    fn keys_come_from_the_flag_or_the_value() {
        let key = |recipe: &Recipe, text| recipe.record(&line(text)).map(|record| record.key);
        assert_eq!(key(&recipe("").unwrap(), "x").unwrap(), None);
        assert_eq!(key(&recipe(" --key k").unwrap(), "x").unwrap(), Some("k".into()));
        let pointed = recipe(" --key-pointer /a/id").unwrap();
        assert_eq!(key(&pointed, r#"{"a":{"id":"x"}}"#).unwrap(), Some("x".into()));
        assert_eq!(key(&pointed, r#"{"a":{"id":47}}"#).unwrap(), Some("47".into()));
        for wrong in [r#"{"a":1}"#, r#"{"a":{"id":{}}}"#, "no json"] {
            let error = key(&pointed, wrong).unwrap_err();
            assert_eq!((error.bad_line().map(|bad| bad.line), error.exit_code()), (Some(3), 1), "{wrong}");
        }
        assert_eq!(recipe(" --key-pointer a").unwrap_err().exit_code(), 64);
    }

    #[test]
    fn a_tombstone_has_a_key_and_a_null_value() {
        let record = recipe(" --key k --null-value").unwrap().record(&line("x")).unwrap();
        assert_eq!((record.key, record.value), (Some("k".into()), None));
        let record = recipe(" --key-pointer /id --null-value").unwrap().record(&line(r#"{"id":7,"v":1}"#)).unwrap();
        assert_eq!((record.key, record.value), (Some("7".into()), None));
    }

    #[test]
    fn headers_split_at_the_first_equals() {
        assert_eq!(parse_header("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(parse_header("a="), Ok(("a".into(), Bytes::new())));
        assert!(parse_header("a").is_err());
        assert!(parse_header("=b").is_err());
    }
}
