//! What can go wrong with guests, said so that a person knows what to do.

use tidegate_protocol::error::Code;

use super::{Hook, grants::GrantError};

/// A call of a plugin failed, and its policy is `closed`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("plugin {plugin}: {kind}: {message}")]
pub struct HookError {
    /// Name in `plugins.toml`.
    pub plugin: String,
    /// How it failed.
    pub kind: FaultKind,
    /// Values that prove it, at most 1 KiB; a guest's own words are marked as such.
    pub message: String,
    /// The guilty record of the client's batch, where it is known.
    pub record: Option<u32>,
}

/// How a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The guest trapped: a panic, mostly.
    Trap,
    /// Used up its CPU budget, or twenty times of it by the wall clock.
    Deadline,
    /// Wanted more memory than its cap.
    Memory,
    /// The verdict breaks the contract.
    BadOutput,
    /// The guest asks to be called again later.
    Retry {
        /// Milliseconds after which it may work.
        after_ms: u32,
    },
    /// The guest says that it cannot handle this batch.
    Permanent,
    /// Not loaded, or no instance to be had.
    Unavailable,
}

impl std::fmt::Display for FaultKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Trap => f.write_str("trapped"),
            Self::Deadline => f.write_str("used up its budget"),
            Self::Memory => f.write_str("ran out of memory"),
            Self::BadOutput => f.write_str("gave an invalid answer"),
            Self::Retry { after_ms } => write!(f, "asks to retry after {after_ms} ms"),
            Self::Permanent => f.write_str("cannot handle the batch"),
            Self::Unavailable => f.write_str("is not available"),
        }
    }
}

impl HookError {
    /// The code that a producer gets. On fetch, the caller retries first and then ends with `PLUGIN_FAILED`.
    pub fn code(&self) -> Code {
        match self.kind {
            FaultKind::Trap | FaultKind::Memory | FaultKind::BadOutput | FaultKind::Permanent => Code::PluginFault,
            FaultKind::Deadline => Code::PluginDeadline,
            FaultKind::Retry { .. } => Code::PluginRetry,
            FaultKind::Unavailable => Code::PluginUnavailable,
        }
    }
    /// Milliseconds after which a retry makes sense; 0 = not said.
    pub fn retry_after_ms(&self) -> u32 {
        match self.kind {
            FaultKind::Retry { after_ms } => after_ms,
            _ => 0,
        }
    }
}

/// The runtime cannot start.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RuntimeError {
    /// wasmtime refuses the settings or the address space.
    #[error(
        "the WebAssembly engine does not start ({instances} instances of {memory_bytes} bytes): {reason}; allow more \
         address space (`ulimit -v unlimited`) or lower the number of instances"
    )]
    Engine {
        /// Instances asked for.
        instances: u32,
        /// Memory cap asked for.
        memory_bytes: u64,
        /// wasmtime's words.
        reason: String,
    },
    /// The directory of the code cache cannot be used.
    #[error("code cache {path}: {operation}: {reason}")]
    Cache {
        /// The directory or file.
        path: std::path::PathBuf,
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// A thread could not be started.
    #[error("cannot start thread {name}: {reason}")]
    Thread {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
}

/// A plugin cannot be loaded, or a generation cannot be made of the plugins. What ran before keeps running.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LoadError {
    /// The bytes are not those that the spec names.
    #[error(
        "plugin {plugin}: the component is {actual}, but {expected} is configured; fetch the right file or update `digest`"
    )]
    Digest {
        /// The plugin.
        plugin: String,
        /// As configured.
        expected: String,
        /// As computed.
        actual: String,
    },
    /// Neither a component nor a core module.
    #[error(
        "plugin {plugin}: {what}; a plugin is a WebAssembly component, or a core module that embeds its component type"
    )]
    NotWasm {
        /// The plugin.
        plugin: String,
        /// What the bytes are.
        what: &'static str,
    },
    /// A core module that cannot become a component.
    #[error(
        "plugin {plugin}: the core module cannot become a component: {reason}; build it with the plugin SDK or wit-bindgen against tidegate:plugin@0.1.0"
    )]
    Componentise {
        /// The plugin.
        plugin: String,
        /// What is wrong with it.
        reason: String,
    },
    /// `wasi:*` is not linked.
    #[error(
        "plugin {plugin} imports `{import}`: WASI is not served; build without WASI (target wasm32-unknown-unknown, or a language profile without it)"
    )]
    Wasi {
        /// The plugin.
        plugin: String,
        /// The import.
        import: String,
    },
    /// `wasi = "sandbox"`.
    #[error(
        "plugin {plugin}: `wasi = \"sandbox\"` is not served in this version; remove the line and build without WASI (target wasm32-unknown-unknown)"
    )]
    WasiSandbox {
        /// The plugin.
        plugin: String,
    },
    /// An import nobody offers.
    #[error(
        "plugin {plugin} imports `{import}`, which this broker does not have; it offers instance, log, clock, random, counters and batch of tidegate:plugin@0.1.0"
    )]
    UnknownImport {
        /// The plugin.
        plugin: String,
        /// The import.
        import: String,
    },
    /// A world of another version.
    #[error(
        "plugin {plugin}: found `{found}`, this broker serves 0.1.0; build the plugin against tidegate:plugin@0.1.0"
    )]
    Version {
        /// The plugin.
        plugin: String,
        /// The import or export with its version.
        found: String,
    },
    /// An import without its grant.
    #[error("plugin {plugin} imports `{import}` without a grant: add \"{grant}\" to `grants` of [plugin.{plugin}]")]
    NotGranted {
        /// The plugin.
        plugin: String,
        /// The import.
        import: String,
        /// The line to add.
        grant: &'static str,
    },
    /// A grant that does not exist.
    #[error("plugin {plugin}: {reason}")]
    Grant {
        /// The plugin.
        plugin: String,
        /// Which, and what is near it.
        reason: GrantError,
    },
    /// An export is missing or has another shape.
    #[error("plugin {plugin}: {what}; build it against tidegate:plugin@0.1.0")]
    World {
        /// The plugin.
        plugin: String,
        /// Which.
        what: String,
    },
    /// The compiler refuses it.
    #[error("plugin {plugin} does not compile: {reason}")]
    Compile {
        /// The plugin.
        plugin: String,
        /// The compiler's words.
        reason: String,
    },
    /// The manifest breaks a bound or claims what is not there.
    #[error("plugin {plugin}: its manifest is refused: {reason}")]
    Manifest {
        /// The plugin.
        plugin: String,
        /// Which rule.
        reason: String,
    },
    /// A budget out of bounds.
    #[error("plugin {plugin}: {reason}")]
    Budget {
        /// The plugin.
        plugin: String,
        /// Which.
        reason: String,
    },
    /// `describe`, `init` or the smoke run failed.
    #[error("plugin {plugin}: {step} failed: {fault}{hint}")]
    Start {
        /// The plugin.
        plugin: String,
        /// `describe`, `init`, `smoke run of on-produce`, …
        step: String,
        /// Kind and message.
        fault: String,
        /// What to do, with its leading punctuation.
        hint: &'static str,
    },
    /// A chain names a plugin that is not configured.
    #[error("{place}: no plugin `{plugin}` is configured; add a [plugin.{plugin}] table or fix the name")]
    UnknownPlugin {
        /// `FILE:LINE` of the entry.
        place: String,
        /// The name.
        plugin: String,
    },
    /// A chain uses a plugin for a hook it has not.
    #[error("{place}: plugin {plugin} has no {hook}; take it off that list")]
    NoHook {
        /// `FILE:LINE` of the entry.
        place: String,
        /// The plugin.
        plugin: String,
        /// The hook.
        hook: Hook,
    },
    /// A pattern, `unless` or list of a chain entry does not hold.
    #[error("{place}: {reason}")]
    Chain {
        /// `FILE:LINE` of the entry.
        place: String,
        /// What is wrong.
        reason: String,
    },
}

impl LoadError {
    /// The code that an operator gets.
    pub fn code(&self) -> Code {
        match self {
            Self::Grant { .. }
            | Self::Budget { .. }
            | Self::UnknownPlugin { .. }
            | Self::NoHook { .. }
            | Self::Chain { .. } => Code::ConfigInvalid,
            _ => Code::PluginInvalid,
        }
    }
}

/// The longest text about a guest that travels on.
pub(super) const MESSAGE_BYTES_MAX: usize = 1024;

/// The text, cut at a character boundary at or below `bytes_max`.
pub(super) fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}
