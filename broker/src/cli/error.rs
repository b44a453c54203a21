//! Why a command ends badly, and with which exit code.

use std::{io, path::Path, sync::Arc};

use tidegate_protocol::error::Code;

use super::exit;

/// Why a command ends badly.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The command line does not hold together in a way clap cannot see.
    #[error("{0}")]
    Usage(String),
    /// A configuration file does not hold; the text names file, line and key.
    #[error("{0}")]
    Config(String),
    /// The broker said no.
    #[error("{}: {message}", code.name())]
    Refused {
        /// Its code.
        code: Code,
        /// What exactly, in its words.
        message: String,
        /// What to do now, where the command knows better than the error table.
        next: Option<String>,
    },
    /// The broker said no with a code that this build does not know.
    #[error("error {number}: {message}")]
    RefusedUnknown {
        /// Its code.
        number: u32,
        /// What exactly, in its words.
        message: String,
    },
    /// The client library refused to send it.
    #[error("{0}")]
    NotSent(String),
    /// No connection, or one that broke for good.
    #[error("cannot reach the broker at {addr}: {reason}")]
    Unavailable {
        /// The address tried.
        addr: String,
        /// Why.
        reason: String,
    },
    /// The broker of this process does not start.
    #[error("{message}")]
    Start {
        /// Why, and what to do.
        message: String,
        /// What kind of failure that is.
        exit: u8,
    },
    /// A bug or a failing operating system.
    #[error("internal error: {0}")]
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

impl Error {
    pub(super) fn io(operation: &'static str, subject: impl Into<String>, source: io::Error) -> Self {
        Self::Io { operation, subject: subject.into(), source: Arc::new(source) }
    }

    pub(super) fn file(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::io(operation, path.display().to_string(), source)
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Config(_) => exit::USAGE,
            Self::Refused { code: Code::Internal, .. } | Self::Internal(_) => exit::INTERNAL,
            Self::Refused { .. } | Self::RefusedUnknown { .. } | Self::NotSent(_) => exit::REFUSED,
            Self::Unavailable { .. } => exit::UNAVAILABLE,
            Self::Start { exit, .. } => *exit,
            Self::Io { .. } => exit::IO,
        }
    }

    /// Whoever reads our output has gone.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// What to do now, if the text does not say so itself.
    fn next(&self) -> Option<&str> {
        match self {
            Self::Refused { next: Some(next), .. } => Some(next),
            Self::Refused { code, .. } => Some(code.row().next),
            Self::RefusedUnknown { .. } => Some("A newer broker? Update this program: its table explains the code."),
            Self::Unavailable { .. } => Some("Is it running (tidegate serve), and are --addr and --data-dir its own?"),
            _ => None,
        }
    }

    /// For people: what happened, and the next step.
    pub(super) fn text(&self) -> String {
        match (self, self.next()) {
            // A command's own next step is part of its sentence.
            (Self::Refused { next: Some(next), .. }, _) => format!("{self}; {next}"),
            (_, Some(next)) => format!("{self}\n  {next}"),
            (_, None) => self.to_string(),
        }
    }

    /// For machines: one object.
    pub(super) fn json(&self) -> serde_json::Value {
        let (name, number, retriable) = match self {
            Self::Refused { code, .. } => (code.name(), Some(code.number()), code.row().retriable),
            Self::RefusedUnknown { number, .. } => ("UNKNOWN", u16::try_from(*number).ok(), false),
            Self::NotSent(_) => ("NOT_SENT", None, false),
            Self::Usage(_) => ("USAGE", None, false),
            Self::Config(_) => (Code::ConfigInvalid.name(), Some(Code::ConfigInvalid.number()), false),
            Self::Unavailable { .. } => ("UNAVAILABLE", None, true),
            Self::Start { .. } => ("START", None, false),
            Self::Internal(_) => ("INTERNAL", Some(Code::Internal.number()), false),
            Self::Io { .. } => ("IO", None, false),
        };
        let message = match self {
            Self::Refused { message, .. } | Self::RefusedUnknown { message, .. } => message.clone(),
            other => other.to_string(),
        };
        serde_json::json!({ "error": {
            "code": name, "number": number, "retriable": retriable, "message": message,
            "next": self.next(), "exit": self.exit_code(),
        }})
    }
}

impl Error {
    /// What the client library could not do at `addr`.
    pub(super) fn client(addr: &str, error: &tidegate_client::Error) -> Self {
        use tidegate_client::Error as Client;
        match error {
            Client::Broker(failure) => Self::refused(failure),
            Client::Invalid(_) | Client::InvalidHeaders(_) => Self::NotSent(error.to_string()),
            Client::Wire(_) | Client::BadBatch(_) | Client::Protocol { .. } | Client::Closed => {
                Self::Internal(error.to_string())
            }
            _ => Self::Unavailable { addr: addr.to_owned(), reason: error.to_string() },
        }
    }

    fn refused(failure: &tidegate_client::Failure) -> Self {
        let Some(code) = failure.code else {
            return Self::RefusedUnknown { number: failure.number, message: failure.message.clone() };
        };
        let by = failure.plugin.as_ref().map_or_else(String::new, |plugin| format!(" (plugin {plugin})"));
        let message = format!("{}{by}", failure.message);
        let next = failure.retry_after.map(|after| format!("try again after {} ms", after.as_millis()));
        match (code, &failure.conflict) {
            (Code::Conflict, Some(conflict)) => Self::conflict(conflict),
            _ => Self::Refused { code, message, next },
        }
    }

    /// The key stands elsewhere; where it was last written can be read.
    fn conflict(conflict: &tidegate_client::Conflict) -> Self {
        let key = super::output::Bytes(&conflict.key);
        let message = match conflict.version {
            0 => format!("{key} does not exist"),
            version => format!("{key} is at version {version}"),
        };
        let next = match conflict.last_offset {
            Some(offset) => format!("read it with: tidegate consume {} --from-offset {offset} --max 1", conflict.topic),
            None => format!("a record that must be new is expected at {key}@0"),
        };
        Self::Refused { code: Code::Conflict, message, next: Some(next) }
    }
}

/// Writing results failed.
impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        Self::io("write", "standard output", source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            "CONFLICT: 4711 is at version 9; read it with: tidegate consume orders/eu --from-offset 902 --max 1"
        );
        (conflict.version, conflict.last_offset) = (0, None);
        assert_eq!(
            Error::conflict(&conflict).text(),
            "CONFLICT: 4711 does not exist; a record that must be new is expected at 4711@0"
        );
    }

    #[test]
    fn exit_codes_are_the_documented_ones() {
        let refused = |code| Error::Refused { code, message: String::new(), next: None };
        assert_eq!(refused(Code::Conflict).exit_code(), 1);
        assert_eq!(refused(Code::Internal).exit_code(), 70);
        assert_eq!(Error::Usage(String::new()).exit_code(), 64);
        assert_eq!(Error::Config(String::new()).exit_code(), 64);
        assert_eq!(Error::Unavailable { addr: String::new(), reason: String::new() }.exit_code(), 69);
        assert_eq!(Error::from(io::Error::other("x")).exit_code(), 74);
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let full = Error::Refused { code: Code::StorageFull, message: "no space".into(), next: None };
        assert!(full.text().contains("Free space"));
        assert_eq!(full.json()["error"]["retriable"], true);
    }

    #[test]
    fn a_closed_pipe_is_told_apart() {
        assert!(Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).is_broken_pipe());
        assert!(!Error::from(io::Error::from(io::ErrorKind::StorageFull)).is_broken_pipe());
    }
}
