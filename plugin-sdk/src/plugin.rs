//! What a plugin is: the trait, its manifest, and how it says that it failed.

use std::fmt;

use crate::{Batch, Fields, Settings, Verdict};

/// One plugin. The broker makes an instance per thread that runs hooks, and calls it with one batch after the other.
///
/// Everything an instance keeps in `self` is lost when it is replaced, which the broker may do between any two calls.
pub trait Plugin: Sized + 'static {
    /// What is true of the plugin whatever its settings.
    const MANIFEST: Manifest;

    /// Makes an instance. Budget: 10 s of CPU, so this is the place to compile expressions and schemas.
    ///
    /// # Errors
    /// If the settings are wrong: the plugin is refused with this message, and what ran before keeps running.
    fn new(settings: &Settings) -> Result<Self, Failure>;

    /// The fields each hook reads under these settings. Reading another one is a fault.
    fn needs(&self) -> Needs;

    /// Records on their way in: the records of one batch whose current topic matches the plugin's place in the chain.
    ///
    /// # Errors
    /// If this batch could not be judged. What becomes of it is decided by `on_failure` in `plugins.toml`.
    fn on_produce(&mut self, batch: &Batch<'_>, out: &mut Verdict) -> Result<(), Failure> {
        let _ = (batch, out);
        Ok(())
    }

    /// Records on their way out. Drop and changes of key, value and headers are allowed; reject, route and emit are not.
    ///
    /// # Errors
    /// As [`Plugin::on_produce`].
    fn on_fetch(&mut self, batch: &Batch<'_>, reader: &Reader, out: &mut Verdict) -> Result<(), Failure> {
        let _ = (batch, reader, out);
        Ok(())
    }
}

/// What is true of a plugin whatever its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manifest {
    /// Name for people. At most 64 bytes.
    pub name: &'static str,
    /// Version for people. At most 64 bytes.
    pub version: &'static str,
    /// The hooks that do something.
    pub hooks: Hooks,
    /// The same input always gives the same verdict: no clock, no random, no counters. The broker may cache the answer
    /// and share one fetch call among subscribers.
    pub pure: bool,
    /// `on_fetch` looks at the [`Reader`]: its answer is never shared.
    pub reads_reader: bool,
    /// Each record is judged by itself: halving a failed batch finds the guilty one.
    pub judges_singly: bool,
    /// JSON Schema (2020-12) of the settings, or empty.
    pub settings_schema: &'static str,
}

/// Which hooks of a plugin do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hooks {
    /// `on_produce`.
    pub produce: bool,
    /// `on_fetch`.
    pub fetch: bool,
}

impl Manifest {
    /// A plugin without hooks and without promises; the methods below add them.
    pub const fn new(name: &'static str, version: &'static str) -> Self {
        Self {
            name,
            version,
            hooks: Hooks { produce: false, fetch: false },
            pure: false,
            reads_reader: false,
            judges_singly: false,
            settings_schema: "",
        }
    }

    /// Has an `on_produce`.
    pub const fn produces(mut self) -> Self {
        self.hooks.produce = true;
        self
    }

    /// Has an `on_fetch`.
    pub const fn fetches(mut self) -> Self {
        self.hooks.fetch = true;
        self
    }

    /// Promises [`Manifest::pure`].
    pub const fn pure(mut self) -> Self {
        self.pure = true;
        self
    }

    /// Declares [`Manifest::reads_reader`].
    pub const fn reads_reader(mut self) -> Self {
        self.reads_reader = true;
        self
    }

    /// Promises [`Manifest::judges_singly`].
    pub const fn judges_singly(mut self) -> Self {
        self.judges_singly = true;
        self
    }

    /// Gives the JSON Schema of the settings: `include_str!("../settings.schema.json")`.
    pub const fn settings_schema(mut self, schema: &'static str) -> Self {
        self.settings_schema = schema;
        self
    }
}

/// The fields each hook reads. The broker copies these into the guest and no other, so ask for little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// What `on_produce` reads.
    pub produce: Fields,
    /// What `on_fetch` reads.
    pub fetch: Fields,
}

impl Needs {
    /// No field at all: the hooks see how many records there are, and nothing of them.
    pub const fn none() -> Self {
        Self { produce: Fields::empty(), fetch: Fields::empty() }
    }

    /// Fields for `on_produce`, none for `on_fetch`.
    pub const fn produce(fields: Fields) -> Self {
        Self { produce: fields, fetch: Fields::empty() }
    }

    /// Fields for `on_fetch`, none for `on_produce`.
    pub const fn fetch(fields: Fields) -> Self {
        Self { produce: Fields::empty(), fetch: fields }
    }

    /// The same fields for both hooks.
    pub const fn both(fields: Fields) -> Self {
        Self { produce: fields, fetch: fields }
    }
}

/// Who reads. Empty unless the manifest declares [`Manifest::reads_reader`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reader {
    /// The reader's principal.
    pub principal: String,
    /// Its consumer group, or empty.
    pub group: String,
    /// What the client gave with its subscription, as a JSON object.
    pub parameters: String,
}

/// The plugin could not do its work. Any error converts into a permanent one with `?`.
#[derive(Clone, PartialEq, Eq)]
pub enum Failure {
    /// Something the plugin depends on is away; the same call may succeed after so many milliseconds.
    Retry {
        /// When to try again.
        after_ms: u32,
        /// A sentence for people.
        message: String,
    },
    /// This cannot be handled, now or later.
    Permanent(String),
}

impl Failure {
    /// A permanent failure.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self::Permanent(message.into())
    }

    /// A failure that a retry may cure.
    pub fn retry(after_ms: u32, message: impl Into<String>) -> Self {
        Self::Retry { after_ms, message: message.into() }
    }
}

// `Failure` is no `std::error::Error`, so that this conversion can exist.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Permanent(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry { after_ms, message } => write!(f, "{message} (retry after {after_ms} ms)"),
            Self::Permanent(message) => f.write_str(message),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
