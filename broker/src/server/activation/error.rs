//! Why a change of plugins did not happen. What ran before keeps running.

use tidegate_protocol::{error::Code, wire::Failure};

use super::{DesiredError, record::RecordError};
use crate::{
    hooks::LoadError,
    shard::{Refusal, ShardError},
    storage::StorageError,
};

/// See the module.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ActivationError {
    /// No plugin of that name runs for the tenant.
    #[error("no plugin {name:?} is configured; there are: {known}")]
    Unknown {
        /// As asked.
        name: String,
        /// Those there are, with commas.
        known: String,
    },
    /// The plugin has no earlier version.
    #[error("plugin {0:?} runs the oldest version that is known of it")]
    NoPrevious(String),
    /// Somebody else was first.
    #[error("the change is based on generation {based_on}, live is {live}")]
    Changed {
        /// As asked.
        based_on: u64,
        /// As it is.
        live: u64,
    },
    /// A plugin or a chain does not hold.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// `plugins.toml` does not hold.
    #[error("{0}")]
    Config(DesiredError),
    /// The broker was started without a `plugins.toml`.
    #[error("this broker was started without a plugins.toml: start it with --plugins FILE")]
    NoFile,
    /// The component is too large.
    #[error("the component is {bytes} bytes, at most {max} are allowed")]
    TooLarge {
        /// As given.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Bytes could not be stored.
    #[error("cannot store the plugin: {0}")]
    Blob(#[from] StorageError),
    /// The sequencer refused.
    #[error("{reason}")]
    Refused {
        /// Its code.
        code: Code,
        /// Its words.
        reason: String,
    },
    /// The activation did not become durable.
    #[error("the change could not be made durable: {0}")]
    NotDurable(#[source] ShardError),
    /// A record of an earlier run cannot be read.
    #[error("tenant {tenant}: {reason}")]
    Record {
        /// Whose.
        tenant: String,
        /// Why.
        reason: RecordError,
    },
    /// A thread of the broker ended.
    #[error("loading was interrupted")]
    Interrupted,
}

impl ActivationError {
    /// The code a client is told.
    pub fn code(&self) -> Code {
        match self {
            Self::Unknown { .. } => Code::PluginUnknown,
            Self::NoPrevious(_) => Code::NothingToRollBack,
            Self::Changed { .. } => Code::GenerationChanged,
            Self::Load(error) => error.code(),
            Self::Config(_) | Self::NoFile => Code::ConfigInvalid,
            Self::TooLarge { .. } => Code::PluginInvalid,
            Self::Blob(error) if error.is_full() => Code::StorageFull,
            Self::Blob(_) => Code::StorageFailed,
            Self::Refused { code, .. } => *code,
            Self::NotDurable(error) => error.code(),
            Self::Record { .. } | Self::Interrupted => Code::Internal,
        }
    }

    /// Without what it means for a broker that runs.
    pub fn in_short(&self) -> String {
        match self {
            Self::Config(error) => error.short.clone(),
            other => other.to_string(),
        }
    }

    /// On the wire.
    pub fn failure(&self) -> Failure {
        Failure::new(self.code(), self.to_string())
    }
}

impl From<Refusal> for ActivationError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused { code: refusal.code(), reason: refusal.to_string() }
    }
}
