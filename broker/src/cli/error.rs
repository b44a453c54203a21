//! Why a command ends badly: code, what happened, what to do now, and the exit code.

use std::{io, path::Path, sync::Arc};

use tidegate_protocol::error::Code;

use super::{
    codes::{Kind, Own},
    exit,
};

/// Why a command ends badly, and what to do now.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub(super) struct Error {
    fault: Fault,
    next: Next,
}

/// What happened.
#[derive(Debug, thiserror::Error)]
enum Fault {
    /// The command line does not hold together in a way clap cannot see.
    #[error("{0}")]
    Usage(String),
    /// An argument breaks a rule of the protocol: nothing was asked of the broker.
    #[error("{reason}")]
    Argument { code: Code, reason: String },
    /// A configuration file does not hold; the text names file, line and key.
    #[error("{0}")]
    Config(String),
    /// The broker said no, or this program in its place.
    #[error("{message}")]
    Refused { code: Code, message: String },
    /// The broker said no with a code that this build does not know.
    #[error("error {number}: {message}")]
    RefusedUnknown { number: u32, message: String },
    /// A line of the input cannot be sent.
    #[error("line {line}: {reason}")]
    Line { line: u64, kind: Kind, reason: String },
    /// It was sent, and no answer came.
    #[error("{0}")]
    Unanswered(String),
    /// No connection, or one that broke for good.
    #[error("cannot reach the broker at {addr}: {reason}")]
    Unavailable { addr: String, reason: String },
    /// What the broker of this process needs is taken.
    #[error("{0}")]
    InUse(String),
    /// A file does not hold what must be there, or the broker could not use it.
    #[error("{0}")]
    File(String),
    /// A bug or a failing operating system.
    #[error("{0}")]
    Internal(String),
    /// A file or a pipe failed.
    #[error("cannot {operation} {subject}: {source}")]
    Io {
        /// What was tried: `read`, `write`.
        operation: &'static str,
        /// The path, or what else it was tried on.
        subject: String,
        /// Why not.
        source: Arc<io::Error>,
    },
}

/// What to do now.
#[derive(Debug)]
enum Next {
    /// What the table of codes says.
    Table,
    /// Told behind the message, as a part of its sentence.
    Clause(String),
    /// Told on a line of its own.
    Sentence(String),
    /// The message says it: for machines what the table says.
    InMessage,
}

/// A line of the input that cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadLine<'a> {
    /// Its number, from 1.
    pub(super) line: u64,
    /// Name of the code.
    pub(super) code: &'static str,
    /// Why not.
    pub(super) reason: &'a str,
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self { fault, next: Next::Table }
    }
}

/// Writing results failed.
impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        Self::io("write", "standard output", source)
    }
}

impl Error {
    pub(super) fn usage(what: impl Into<String>) -> Self {
        Fault::Usage(what.into()).into()
    }

    /// An argument that the broker would refuse with this code: it is judged here, before anything is read or sent.
    pub(super) fn argument(code: Code, reason: impl ToString) -> Self {
        Fault::Argument { code, reason: reason.to_string() }.into()
    }

    pub(super) fn config(what: impl Into<String>) -> Self {
        Fault::Config(what.into()).into()
    }

    pub(super) fn refused(code: Code, message: impl Into<String>) -> Self {
        Fault::Refused { code, message: message.into() }.into()
    }

    pub(super) fn line(line: u64, kind: Kind, reason: impl Into<String>) -> Self {
        Fault::Line { line, kind, reason: reason.into() }.into()
    }

    pub(super) fn unavailable(addr: impl Into<String>, reason: impl Into<String>) -> Self {
        Fault::Unavailable { addr: addr.into(), reason: reason.into() }.into()
    }

    pub(super) fn in_use(what: impl Into<String>) -> Self {
        Fault::InUse(what.into()).into()
    }

    pub(super) fn broken_file(what: impl Into<String>) -> Self {
        Fault::File(what.into()).into()
    }

    pub(super) fn internal(what: impl Into<String>) -> Self {
        Fault::Internal(what.into()).into()
    }

    pub(super) fn io(operation: &'static str, subject: impl Into<String>, source: io::Error) -> Self {
        Fault::Io { operation, subject: subject.into(), source: Arc::new(source) }.into()
    }

    pub(super) fn file(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::io(operation, path.display().to_string(), source)
    }

    /// With a next step that knows more than the table of codes.
    pub(super) fn then(self, sentence: impl Into<String>) -> Self {
        Self { next: Next::Sentence(sentence.into()), ..self }
    }

    /// With a message that says itself what to do.
    pub(super) fn said(self) -> Self {
        Self { next: Next::InMessage, ..self }
    }

    /// As [`Self::then`], so short that it stands in the line of the message.
    fn then_in_line(self, clause: impl Into<String>) -> Self {
        Self { next: Next::Clause(clause.into()), ..self }
    }

    fn kind(&self) -> Kind {
        match &self.fault {
            Fault::Usage(_) => Kind::Own(Own::Usage),
            Fault::Config(_) => Kind::Wire(Code::ConfigInvalid),
            Fault::Argument { code, .. } | Fault::Refused { code, .. } => Kind::Wire(*code),
            Fault::RefusedUnknown { .. } => Kind::Own(Own::Unknown),
            Fault::Line { kind, .. } => *kind,
            Fault::Unanswered(_) => Kind::Own(Own::Unanswered),
            Fault::Unavailable { .. } => Kind::Own(Own::Unavailable),
            Fault::InUse(_) => Kind::Own(Own::InUse),
            Fault::Internal(_) => Kind::Wire(Code::Internal),
            Fault::File(_) | Fault::Io { .. } => Kind::Own(Own::Io),
        }
    }

    pub(super) fn exit_code(&self) -> u8 {
        match &self.fault {
            Fault::Usage(_) | Fault::Argument { .. } | Fault::Config(_) => exit::USAGE,
            Fault::Refused { code: Code::Internal, .. } | Fault::Internal(_) => exit::INTERNAL,
            Fault::Refused { .. } | Fault::RefusedUnknown { .. } | Fault::Line { .. } => exit::REFUSED,
            Fault::Unanswered(_) | Fault::Unavailable { .. } | Fault::InUse(_) => exit::UNAVAILABLE,
            Fault::File(_) | Fault::Io { .. } => exit::IO,
        }
    }

    /// Whoever reads our output has gone.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(&self.fault, Fault::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The line of the input that cannot be sent, if that is what it is.
    pub(super) fn bad_line(&self) -> Option<BadLine<'_>> {
        match &self.fault {
            Fault::Line { line, kind, reason } => Some(BadLine { line: *line, code: kind.name(), reason }),
            _ => None,
        }
    }

    /// For people: code, what happened, and the next step.
    pub(super) fn text(&self) -> String {
        let code = self.kind().name();
        match &self.next {
            Next::Clause(clause) => format!("{code}: {self}; {clause}"),
            Next::Sentence(sentence) => format!("{code}: {self}\n  {sentence}"),
            Next::Table => format!("{code}: {self}\n  {}", self.kind().explained().next),
            Next::InMessage => format!("{code}: {self}"),
        }
    }

    /// For machines: one object.
    pub(super) fn json(&self) -> serde_json::Value {
        let row = self.kind().explained();
        let next = match &self.next {
            Next::Clause(next) | Next::Sentence(next) => next,
            Next::Table | Next::InMessage => row.next,
        };
        let number = match &self.fault {
            Fault::RefusedUnknown { number, .. } => Some(*number),
            _ => row.number.map(u32::from),
        };
        let mut error = serde_json::json!({
            "code": row.code, "number": number, "retriable": row.retriable, "message": self.to_string(),
            "next": next, "exit": self.exit_code(),
        });
        if let Some(bad) = self.bad_line() {
            error["line"] = bad.line.into();
        }
        serde_json::json!({ "error": error })
    }
}

impl Error {
    /// What the client library could not do at `addr`.
    pub(super) fn client(addr: &str, error: &tidegate_client::Error) -> Self {
        use tidegate_client::Error as Client;
        match error {
            Client::Broker(failure) => Self::broker(failure),
            Client::Invalid(body) => Self::refused(body.code(), error.to_string()),
            Client::InvalidHeaders(_) => Self::argument(Code::RecordTooLarge, error),
            Client::Unanswered { .. } => Fault::Unanswered(error.to_string()).into(),
            Client::Wire(_) | Client::BadBatch(_) | Client::Protocol { .. } | Client::Closed => {
                Self::internal(error.to_string())
            }
            _ => Self::unavailable(addr, error.to_string()),
        }
    }

    fn broker(failure: &tidegate_client::Failure) -> Self {
        let Some(code) = failure.code else {
            return Fault::RefusedUnknown { number: failure.number, message: failure.message.clone() }.into();
        };
        if let (Code::Conflict, Some(conflict)) = (code, &failure.conflict) {
            return Self::conflict(conflict);
        }
        let by = failure.plugin.as_ref().map_or_else(String::new, |plugin| format!(" (plugin {plugin})"));
        let refused = Self::refused(code, format!("{}{by}", failure.message));
        match failure.retry_after {
            Some(after) => refused.then_in_line(format!("try again after {} ms", after.as_millis())),
            None => refused,
        }
    }

    /// The key stands elsewhere; where it was last written can be read.
    fn conflict(conflict: &tidegate_client::Conflict) -> Self {
        let key = super::output::Bytes(&conflict.key);
        let message = match conflict.version {
            0 => format!("{key} does not exist"),
            version => format!("{key} is at version {version}"),
        };
        let topic = &conflict.topic;
        let next = match (conflict.last_offset, plain(&conflict.key)) {
            (Some(_), Some(key)) => format!("read it with: tidegate consume {topic} --key {key} --latest"),
            (Some(offset), None) => format!("read it with: tidegate consume {topic} --from-offset {offset} --max 1"),
            (None, _) => format!("a record that must be new is expected at {key}@0"),
        };
        Self::refused(Code::Conflict, message).then_in_line(next)
    }
}

/// The key, if it can be given to a command as it is, whatever the shell.
fn plain(key: &[u8]) -> Option<&str> {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':' | '@' | '/' | '+' | ',' | '=' | '-');
    let text = std::str::from_utf8(key).ok()?;
    (!text.starts_with('-') && !text.is_empty() && text.chars().all(safe)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::codes;

    #[test]
    fn a_conflict_names_the_version_that_stands_and_how_to_read_it() {
        let mut conflict = tidegate_client::Conflict {
            topic: "orders/eu".into(),
            key: "4711".into(),
            version: 9,
            last_offset: Some(902),
        };
        assert_eq!(
            Error::conflict(&conflict).text(),
            "CONFLICT: 4711 is at version 9; read it with: tidegate consume orders/eu --key 4711 --latest"
        );
        for (key, told) in [("a b", "a b"), ("-x", "-x"), ("$(x)", "$(x)")] {
            conflict.key = key.into();
            let text = Error::conflict(&conflict).text();
            let hint = "read it with: tidegate consume orders/eu --from-offset 902 --max 1";
            assert_eq!(text, format!("CONFLICT: {told} is at version 9; {hint}"), "no shell takes it apart");
        }
        conflict.key = "4711".into();
        (conflict.version, conflict.last_offset) = (0, None);
        assert_eq!(
            Error::conflict(&conflict).text(),
            "CONFLICT: 4711 does not exist; a record that must be new is expected at 4711@0"
        );
    }

    /// One of each kind, with its exit code.
    fn one_of_each() -> Vec<(Error, u8)> {
        let text = || "x".to_owned();
        let faults = [
            Fault::Usage(text()),
            Fault::Argument { code: Code::TopicInvalid, reason: text() },
            Fault::Config(text()),
            Fault::Refused { code: Code::Conflict, message: text() },
            Fault::Refused { code: Code::Internal, message: text() },
            Fault::RefusedUnknown { number: 999, message: text() },
            Fault::Line { line: 3, kind: Kind::Own(Own::NotSent), reason: text() },
            Fault::Line { line: 3, kind: Kind::Wire(Code::RecordTooLarge), reason: text() },
            Fault::Unanswered(text()),
            Fault::Unavailable { addr: text(), reason: text() },
            Fault::InUse(text()),
            Fault::File(text()),
            Fault::Internal(text()),
            Fault::Io { operation: "read", subject: text(), source: Arc::new(io::Error::other("x")) },
        ];
        let exits = [64, 64, 64, 1, 70, 1, 1, 1, 69, 69, 69, 74, 70, 74];
        faults.into_iter().map(Error::from).zip(exits).collect()
    }

    #[test]
    fn every_error_has_a_code_that_is_explained_and_the_documented_exit_code() {
        let mut own: Vec<&str> = Own::ALL.iter().map(|own| Kind::Own(*own).name()).collect();
        for (error, exit) in one_of_each() {
            let json = error.json();
            let name = json["error"]["code"].as_str().unwrap();
            let row = codes::find(name).unwrap_or_else(|| panic!("{name} is not explained"));
            assert_eq!((json["error"]["exit"].as_u64(), error.exit_code()), (Some(exit.into()), exit), "{name}");
            assert!(row.exit.is_none_or(|told| told == exit), "{name}");
            assert_eq!(json["error"]["next"], row.next);
            assert!(error.text().starts_with(&format!("{name}: ")) && error.text().contains(row.next));
            own.retain(|code| *code != name);
        }
        assert_eq!(own, [""; 0], "codes that no error has");
    }

    #[test]
    fn a_line_is_named_for_machines_too() {
        let error = Error::line(14, Kind::Own(Own::NotSent), "not JSON");
        assert_eq!(error.json()["error"]["line"], 14);
        assert_eq!(error.bad_line(), Some(BadLine { line: 14, code: "NOT_SENT", reason: "not JSON" }));
        assert!(error.text().starts_with("NOT_SENT: line 14: not JSON\n"), "{}", error.text());
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let full = Error::refused(Code::StorageFull, "no space");
        assert!(full.text().contains("Free space"));
        assert_eq!(full.json()["error"]["retriable"], true);
        let known = Error::refused(Code::TopicUnknown, "topic \"a\" does not exist").then("Create it.");
        assert_eq!(known.text(), "TOPIC_UNKNOWN: topic \"a\" does not exist\n  Create it.");
    }

    #[test]
    fn a_closed_pipe_is_told_apart() {
        assert!(Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).is_broken_pipe());
        assert!(!Error::from(io::Error::from(io::ErrorKind::StorageFull)).is_broken_pipe());
    }
}
