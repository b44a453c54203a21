//! What can go wrong, typed: the broker's own refusals, the transport, and what was wrong before anything was sent.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_protocol::{
    batch::BodyError,
    error::Code,
    record::HeadersError,
    wire::{self, WireError},
};

/// An error of this client. Cheap to clone: one failure answers many waiters.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The broker said no. Nothing of the request took effect, unless the code says otherwise.
    #[error(transparent)]
    Broker(Box<Failure>),
    /// The address is none, or its name is not known.
    #[error("address {address:?}: {cause}")]
    Address {
        /// As given.
        address: String,
        /// From the resolver.
        cause: Arc<std::io::Error>,
    },
    /// A certificate, key or server name cannot be used.
    #[error("TLS settings: {0}")]
    Tls(Arc<rustls::Error>),
    /// No UDP socket could be opened.
    #[error("cannot open a UDP socket: {0}")]
    Socket(Arc<std::io::Error>),
    /// The dial could not even begin.
    #[error("cannot connect to {address}: {cause}")]
    Connect {
        /// Where to.
        address: String,
        /// From the transport.
        cause: quinn::ConnectError,
    },
    /// Nobody listens at an address of this machine.
    #[error("nobody listens at {address}")]
    Refused {
        /// Where.
        address: String,
    },
    /// The connection ended, or never stood.
    #[error("connection lost: {0}")]
    Lost(quinn::ConnectionError),
    /// The broker ended a stream in the middle.
    #[error("stream ended by the broker: {what}")]
    StreamEnded {
        /// How.
        what: &'static str,
    },
    /// No answer came in time.
    #[error("no answer to {what} within {after:?}")]
    Timeout {
        /// To what.
        what: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// The broker's bytes are not a frame.
    #[error("the broker sent a bad frame: {0}")]
    Wire(#[from] WireError),
    /// The broker's bytes are not a batch.
    #[error("the broker sent a bad batch: {0}")]
    BadBatch(BodyError),
    /// The broker's message is well formed and makes no sense here.
    #[error("the broker broke the protocol: {what}")]
    Protocol {
        /// Which rule.
        what: &'static str,
    },
    /// A record or batch cannot be sent: it was not.
    #[error("not sent: {0}")]
    Invalid(BodyError),
    /// The headers of a record cannot be sent: it was not.
    #[error("not sent: {0}")]
    InvalidHeaders(#[from] HeadersError),
    /// The batch was sent, and no answer came: whether it was appended is not known. With an idempotent producer this
    /// comes only after all retries.
    #[error("not known whether the batch was appended: {cause}")]
    Unanswered {
        /// Why there is no answer.
        cause: Box<Self>,
    },
    /// Another instance has used this producer's id and epoch: what the broker has stored under the sequence of this batch is
    /// another one. The batch was not appended, and the producer ends.
    #[error(
        "another instance goes by this producer's id and epoch; give a higher epoch, or the sequence behind its last"
    )]
    IdentityInUse,
    /// The connection, producer or consumer was closed on this side.
    #[error("closed")]
    Closed,
}

impl Error {
    /// The broker's code, if it is the broker that said no and this build knows the code.
    pub fn code(&self) -> Option<Code> {
        self.failure().and_then(|failure| failure.code)
    }

    /// The broker's refusal, if that is what it is.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Broker(failure) => Some(failure),
            _ => None,
        }
    }

    /// Whether the same request may succeed later without a change.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Broker(failure) => failure.is_retriable(),
            Self::Unanswered { .. } => false,
            _ => self.is_loss(),
        }
    }

    /// Whether the way to the broker failed, rather than the request.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Lost(_)
            | Self::Refused { .. }
            | Self::Address { .. }
            | Self::StreamEnded { .. }
            | Self::Timeout { .. } => true,
            Self::Broker(failure) => failure.code == Some(Code::ShuttingDown),
            _ => false,
        }
    }

    /// Whether who answered is not whom [`crate::Trust`] takes for the broker.
    pub fn is_untrusted(&self) -> bool {
        // TLS alerts (RFC 8446, section 6.2) from bad_certificate to access_denied, raised on this side, as QUIC carries them
        // (RFC 9001, section 4.8).
        const CERTIFICATE: std::ops::RangeInclusive<u64> = 0x100 + 42..=0x100 + 49;
        matches!(self, Self::Lost(quinn::ConnectionError::TransportError(error)) if CERTIFICATE.contains(&error.code.into()))
    }

    pub(crate) fn broker(failure: wire::Failure) -> Self {
        Self::Broker(Box::new(Failure::from(failure)))
    }
}

impl From<quinn::ConnectionError> for Error {
    fn from(error: quinn::ConnectionError) -> Self {
        // The broker closes with the number of the code where it could not send a failure any more.
        if let quinn::ConnectionError::ApplicationClosed(close) = &error
            && let Some(code) = u16::try_from(close.error_code.into_inner()).ok().and_then(Code::from_number)
        {
            let message = String::from_utf8_lossy(&close.reason).into_owned();
            return Self::broker(wire::Failure::new(code, message));
        }
        match error {
            quinn::ConnectionError::LocallyClosed => Self::Closed,
            error => Self::Lost(error),
        }
    }
}

impl From<quinn::ReadError> for Error {
    fn from(error: quinn::ReadError) -> Self {
        match error {
            quinn::ReadError::ConnectionLost(cause) => cause.into(),
            quinn::ReadError::Reset(_) => Self::StreamEnded { what: "it was reset" },
            quinn::ReadError::ClosedStream
            | quinn::ReadError::IllegalOrderedRead
            | quinn::ReadError::ZeroRttRejected => Self::Closed,
        }
    }
}

impl From<quinn::WriteError> for Error {
    fn from(error: quinn::WriteError) -> Self {
        match error {
            quinn::WriteError::ConnectionLost(cause) => cause.into(),
            quinn::WriteError::Stopped(_) => Self::StreamEnded { what: "it takes no more" },
            quinn::WriteError::ClosedStream | quinn::WriteError::ZeroRttRejected => Self::Closed,
        }
    }
}

/// The broker's refusal of a request, a stream or a whole batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}{}", name_of(*.code, *.number), plugin_of(.plugin.as_deref()))]
pub struct Failure {
    /// The code, if this build knows it.
    pub code: Option<Code>,
    /// The code's number.
    pub number: u32,
    /// What exactly went wrong, for people.
    pub message: String,
    /// When to try again, if that makes sense.
    pub retry_after: Option<Duration>,
    /// The plugin at fault.
    pub plugin: Option<String>,
    /// Position of the record at fault in its batch, from 0.
    pub record: Option<u32>,
    /// For `CONFLICT`: what stands.
    pub conflict: Option<Conflict>,
    /// For a read that ended: where to resume.
    pub cursor: Option<String>,
    /// For a batch that was refused because of some of its records: these, with their positions.
    pub rejected: Vec<(u32, Rejection)>,
}

impl Failure {
    /// Whether the same request may succeed later without a change.
    pub fn is_retriable(&self) -> bool {
        self.retry_after.is_some() || self.code.is_some_and(|code| code.row().retriable)
    }
}

impl From<wire::Failure> for Failure {
    fn from(failure: wire::Failure) -> Self {
        Self {
            code: failure.known_code(),
            number: failure.code,
            record: failure.record_at(),
            retry_after: millis(failure.retry_after_ms),
            plugin: filled(failure.plugin),
            conflict: failure.conflict.map(|conflict| Conflict {
                topic: conflict.topic,
                key: conflict.key.into(),
                version: conflict.version,
                last_offset: conflict.last_offset,
            }),
            cursor: filled(failure.cursor),
            message: failure.message,
            rejected: Vec::new(),
        }
    }
}

/// What stands at a key whose condition does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The condition's topic.
    pub topic: String,
    /// The condition's key.
    pub key: Bytes,
    /// The key's version; 0 = it does not exist.
    pub version: u64,
    /// The key's last offset, if it exists.
    pub last_offset: Option<u64>,
}

/// Why one record was not appended, or was diverted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The code, if this build knows it.
    pub code: Option<Code>,
    /// The code's number.
    pub number: u32,
    /// The plugin's own code, or 0.
    pub plugin_code: u32,
    /// Why, in the words of whoever refused it.
    pub reason: String,
    /// The plugin that decided; `None` = the broker.
    pub plugin: Option<String>,
    /// When to try again, if that makes sense.
    pub retry_after: Option<Duration>,
}

pub(crate) fn millis(millis: u32) -> Option<Duration> {
    (millis > 0).then(|| Duration::from_millis(millis.into()))
}

pub(crate) fn filled(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn name_of(code: Option<Code>, number: u32) -> String {
    code.map_or_else(|| format!("error {number}"), |code| code.name().to_owned())
}

fn plugin_of(plugin: Option<&str>) -> String {
    plugin.map_or_else(String::new, |plugin| format!(" (plugin {plugin})"))
}
