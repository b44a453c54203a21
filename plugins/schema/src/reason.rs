//! What is wrong with a record, in one line for its producer: pointer, keyword, sentence. Values never show: a reason is
//! stored with the batch and may outlive a redaction.

use jsonschema::{ValidationError, Validator, error::ValidationErrorKind as Kind};
use serde_json::Value;

/// Reasons are cut at 256 bytes; pointers and names in them before that, so that the sentence survives.
const POINTER_BYTES_MAX: usize = 120;
/// Branches of alternatives that are looked into, one in another.
const DEPTH_MAX: usize = 16;

/// The plugin's own codes, as its README explains them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Code {
    /// The value is not JSON.
    NotJson = 1,
    /// The value does not hold for its message's schema.
    Invalid = 2,
    /// No channel of the document describes the topic.
    UnknownTopic = 3,
    /// No message of the channel applies to the value.
    NoMessage = 4,
    /// The record has no value.
    Tombstone = 5,
}

/// What is wrong with one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) code: Code,
    pub(crate) reason: String,
}

impl Finding {
    pub(crate) fn not_json(error: &serde_json::Error) -> Self {
        let what = if error.is_eof() { "it ends too early" } else { "syntax error" };
        let place = format!("line {} column {}", error.line(), error.column());
        Self { code: Code::NotJson, reason: format!("the value is not JSON: {what} at {place}") }
    }

    pub(crate) fn unknown(topic: &str) -> Self {
        Self { code: Code::UnknownTopic, reason: format!("no channel of the document describes the topic {topic}") }
    }

    pub(crate) fn tombstone() -> Self {
        Self { code: Code::Tombstone, reason: "the record has no value".to_owned() }
    }

    pub(crate) fn no_message<'n>(names: impl Iterator<Item = &'n str>) -> Self {
        let names: Vec<&str> = names.take(8).collect();
        let reason = match names.as_slice() {
            [] => "the channel of the topic has no message".to_owned(),
            names => format!("no message of the channel applies: none of {}", names.join(", ")),
        };
        Self { code: Code::NoMessage, reason }
    }

    /// The finding on a value that does not hold. Costs a second validation, which only bad records pay.
    pub(crate) fn invalid(validator: &Validator, value: &Value) -> Self {
        let reason = match validator.iter_errors(value).next() {
            Some(error) => told(&error),
            None => "the value does not hold".to_owned(),
        };
        Self { code: Code::Invalid, reason }
    }

    /// As the value of a header: code and reason.
    pub(crate) fn header(&self) -> String {
        format!("{}: {}", self.code as u16, self.reason)
    }
}

fn told(error: &ValidationError<'_>) -> String {
    let error = innermost(error, DEPTH_MAX);
    let pointer = error.instance_path().as_str();
    let pointer = shortened(if pointer.is_empty() { "(top)" } else { pointer });
    let keyword = error.kind().keyword();
    match error.kind() {
        Kind::Required { property } => format!("{pointer}: \"{keyword}\": {property} is missing"),
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            format!("{pointer}: \"{keyword}\": unexpected {}", shortened(&quoted(unexpected)))
        }
        _ => format!("{pointer}: \"{keyword}\": {}", error.masked()),
    }
}

/// Where alternatives failed, the error of the branch that was most likely meant: one whose constants the value has (the
/// `action` of an event, say), and among those the one with the fewest errors.
fn innermost<'e, 'i>(error: &'e ValidationError<'i>, depth: usize) -> &'e ValidationError<'i> {
    let (Kind::OneOfNotValid { context } | Kind::AnyOf { context }) = error.kind() else { return error };
    let level = error.instance_path().as_str().matches('/').count();
    let rank = |branch: &&Vec<ValidationError<'static>>| {
        let of_another = branch.iter().any(|error| is_mark(error, level));
        let shallow = branch.iter().any(|error| error.instance_path().as_str().matches('/').count() == level);
        (of_another, shallow, branch.len())
    };
    let branch = context.iter().filter(|branch| !branch.is_empty()).min_by_key(rank);
    match branch.and_then(|branch| branch.iter().find(|error| is_mark(error, level)).or_else(|| branch.first())) {
        Some(inner) if depth > 0 => innermost(inner, depth - 1),
        _ => error,
    }
}

/// A constant just below the alternatives does not match: what tells branches apart.
fn is_mark(error: &ValidationError<'_>, level: usize) -> bool {
    matches!(error.kind(), Kind::Constant { .. } | Kind::Enum { .. })
        && error.instance_path().as_str().matches('/').count() == level + 1
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// Long texts keep their end: the last levels of a pointer say most.
fn shortened(text: &str) -> String {
    if text.len() <= POINTER_BYTES_MAX {
        return text.to_owned();
    }
    let cut = text.ceil_char_boundary(text.len() - POINTER_BYTES_MAX);
    format!("…{}", text.get(cut..).unwrap_or_default())
}
