//! The setting `to`: literal text with parts that each record fills in.

use std::fmt;

use tidegate_plugin::{Fields, RecordRef};

use crate::pointer::Pointer;

/// Bytes of one level, and of a whole topic, and levels: the broker's rules for topic names.
const LEVEL_BYTES_MAX: usize = 64;
const TOPIC_BYTES_MAX: usize = 249;
const LEVELS_MAX: usize = 16;

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Pointer(String, Pointer),
    Header(String),
    Key,
}

/// Why no topic could be made. It names the part, never what stood there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unresolved<'t> {
    /// The value is not JSON up to there, or has no string, number or boolean there.
    Pointer(&'t str),
    Header(&'t str),
    Key,
    /// What was filled in makes no topic.
    Topic(&'static str),
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// If a part is none of those known, or the literal text cannot be part of a topic.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((literal, behind)) = rest.split_once('{') {
            let Some((part, behind)) = behind.split_once('}') else {
                return Err("a brace is not closed".to_owned());
            };
            push_literal(&mut parts, literal)?;
            parts.push(Part::parse(part)?);
            rest = behind;
        }
        push_literal(&mut parts, rest)?;
        let bare = text.starts_with('/') || text.ends_with('/') || text.contains("//");
        if text.is_empty() || bare {
            return Err("a topic is not empty, and none of its levels is".to_owned());
        }
        Ok(Self { parts })
    }

    /// The fields that the parts read.
    pub(crate) fn fields(&self) -> Fields {
        self.parts.iter().fold(Fields::empty(), |fields, part| {
            fields
                | match part {
                    Part::Literal(_) => Fields::empty(),
                    Part::Pointer(..) => Fields::VALUE,
                    Part::Header(_) => Fields::HEADERS,
                    Part::Key => Fields::KEY,
                }
        })
    }

    /// Appends the topic of a record.
    pub(crate) fn fill(&self, record: RecordRef<'_>, topic: &mut String) -> Result<(), Unresolved<'_>> {
        for part in &self.parts {
            match part {
                Part::Literal(literal) => topic.push_str(literal),
                Part::Pointer(text, pointer) => {
                    let found = record.value().and_then(|value| pointer.find(value));
                    escape(found.ok_or(Unresolved::Pointer(text))?.as_bytes(), topic);
                }
                Part::Header(name) => {
                    let found = record.headers().find(name).flatten();
                    escape(found.ok_or(Unresolved::Header(name))?, topic);
                }
                Part::Key => escape(record.key().ok_or(Unresolved::Key)?, topic),
            }
        }
        check(topic)
    }
}

impl Part {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(pointer) = Pointer::parse(text) {
            return Ok(Self::Pointer(text.to_owned(), pointer));
        }
        match text.split_once(':') {
            Some(("header", name)) if !name.is_empty() => Ok(Self::Header(name.to_owned())),
            None if text == "key" => Ok(Self::Key),
            _ => Err(format!("{{{text}}} is none of {{/JSON/POINTER}}, {{header:NAME}} and {{key}}")),
        }
    }
}

fn push_literal(parts: &mut Vec<Part>, literal: &str) -> Result<(), String> {
    if literal.contains('}') {
        return Err("a brace closes that was not opened".to_owned());
    }
    if let Some(bad) = literal.bytes().find(|byte| *byte != b'/' && *byte != b'%' && !is_plain(*byte)) {
        return Err(format!("{:?} cannot stand in a topic; write %{bad:02X}", char::from(bad)));
    }
    if !literal.is_empty() {
        parts.push(Part::Literal(literal.to_owned()));
    }
    Ok(())
}

/// Bytes that stand for themselves in a topic.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'~' | b'-')
}

/// Appends bytes as part of one level: what is not allowed there becomes `%XX`, the separator and `$` too, so that a
/// record cannot choose its number of levels or a reserved one.
fn escape(bytes: &[u8], topic: &mut String) {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    for &byte in bytes {
        if is_plain(byte) {
            topic.push(byte.into());
        } else {
            topic.push('%');
            topic.extend(HEX.get(usize::from(byte >> 4)));
            topic.extend(HEX.get(usize::from(byte & 15)));
        }
        if topic.len() > TOPIC_BYTES_MAX {
            return;
        }
    }
}

fn check(topic: &str) -> Result<(), Unresolved<'static>> {
    if topic.len() > TOPIC_BYTES_MAX {
        return Err(Unresolved::Topic("longer than 249 bytes"));
    }
    let mut levels = 0;
    for level in topic.split('/') {
        levels += 1;
        match level.len() {
            0 => return Err(Unresolved::Topic("with an empty level")),
            1..=LEVEL_BYTES_MAX => {}
            _ => return Err(Unresolved::Topic("with a level longer than 64 bytes")),
        }
    }
    if levels > LEVELS_MAX { Err(Unresolved::Topic("of more than 16 levels")) } else { Ok(()) }
}

impl fmt::Display for Unresolved<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pointer(pointer) => write!(f, "{pointer}: the value has no string, number or boolean there"),
            Self::Header(name) => write!(f, "the record has no header {name:?}"),
            Self::Key => f.write_str("the record has no key"),
            Self::Topic(what) => write!(f, "the record would get a topic {what}"),
        }
    }
}
