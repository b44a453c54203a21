//! Guests: loads plugins, runs chains of them over batches, and lets none of them harm anybody else.
//!
//! Owns wasmtime. Must not know storage, topics' ids, connections or files other than its own cache. Called by `produce`
//! and `fetch` (chains), `server` (loading, activation) and `cli` (offline tools). ADR 2 has the contract, ADR 6 the
//! threads.
//!
//! Reading order: a component becomes a [`Plugin`] in `load`; a [`Generation`] strings plugins to chains; `chain` runs
//! one batch through them, `plugin` makes one call, `frame` builds what a guest sees, `verdict` checks what it answers,
//! `work` holds the batch between calls.

pub mod spec;

mod abi;
mod cache;
mod capabilities;
mod chain;
mod compile;
mod encode;
mod engine;
mod error;
mod frame;
mod generation;
mod grants;
mod guest;
mod instance;
mod load;
mod measure;
mod needed;
mod placement;
mod plugin;
mod runtime;
mod share;
mod stats;
mod threads;
mod topics;
mod verdict;
mod work;

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_protocol::{limits::Limits, stored::StoredFrame};

pub use self::{
    cache::CodeSource,
    compile::{COMPILE_COMMAND, serve_compiler},
    encode::{EncodeError, component_of},
    error::{FaultKind, HookError, LoadError, RuntimeError},
    generation::{Generation, PositionInfo},
    grants::{Grant, GrantError},
    plugin::{LoadTimes, Manifest, Plugin},
    runtime::Runtime,
    stats::{FaultCounts, Histogram, HookStats, Placement, Stats},
};

#[cfg(test)]
pub(crate) mod native;
#[cfg(test)]
mod tests;

/// What the runtime needs from the floors above it.
pub trait Host: Send + Sync + std::fmt::Debug {
    /// A line that a guest wrote with the grant `log`: at most 1 KiB, at most 100 a second and plugin. Called in the
    /// middle of a hook call: must not wait.
    fn guest_log(&self, tenant: &str, plugin: &str, level: Level, message: &str);
    /// The level in force: guests are told, so that they can skip formatting.
    fn guest_log_level(&self) -> Level {
        Level::Info
    }
}

/// Weight of a guest's log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Steps of a computation.
    Trace,
    /// Per call.
    Debug,
    /// A change of state.
    Info,
    /// Unexpected, survived.
    Warn,
    /// A person must act.
    Error,
}

/// Which entry point of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hook {
    /// `on-produce`: records on their way in.
    Produce,
    /// `on-fetch`: records on their way out.
    Fetch,
}

impl std::fmt::Display for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Produce => "on-produce",
            Self::Fetch => "on-fetch",
        })
    }
}

/// Settings of the runtime.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where compiled code is kept between starts; `None` compiles every time.
    pub cache_dir: Option<PathBuf>,
    /// The program that compiles when called with [`COMPILE_COMMAND`]; `None` compiles in this process.
    pub compiler: Option<PathBuf>,
    /// Threads for plugins that are not short.
    pub hook_threads: usize,
    /// Batches that may wait for a hook thread; behind them callers wait.
    pub hook_queue_max: usize,
    /// A call up to this long is short.
    pub inline_max: Duration,
    /// Short calls in a row after which a plugin runs on the caller's thread.
    pub inline_after: u32,
    /// Instances that may live at once, over all plugins. Each reserves 4 GiB of address space, not of memory.
    pub instances_max: u32,
    /// Warm instances of one plugin: as many calls of it may run at once.
    pub instances_per_plugin: usize,
    /// The most that `budget.memory` of a plugin may ask for.
    pub memory_bytes_max: u64,
    /// What a record may be after the chain.
    pub limits: Limits,
    /// Bytes of fetch results that subscribers share, per generation.
    pub share_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZeroUsize::get);
        Self {
            cache_dir: None,
            compiler: None,
            hook_threads: 2,
            hook_queue_max: 256,
            inline_max: Duration::from_micros(100),
            inline_after: 32,
            instances_max: 256,
            // I/O threads and hook threads each find one of their own.
            instances_per_plugin: (threads + 2).min(32),
            memory_bytes_max: 256 << 20,
            limits: Limits::default(),
            share_bytes_max: 16 << 20,
        }
    }
}

/// Who reads. Only plugins that declare `reads-reader` are told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReaderInfo {
    /// The authenticated name.
    pub principal: Arc<str>,
    /// The role that `unless = "role:NAME"` asks for; empty = none.
    pub role: Arc<str>,
    /// The consumer group, or empty.
    pub group: Arc<str>,
    /// Parameters of the subscription, a JSON object; empty counts as `{}`.
    pub parameters: Arc<str>,
}

/// Records of one frame that a subscription wants.
#[derive(Debug, Clone)]
pub struct FetchInput {
    /// The frame, with a body.
    pub frame: Arc<StoredFrame>,
    /// Positions in its body, ascending without doubles.
    pub at: Vec<u32>,
    /// Who wants them.
    pub reader: ReaderInfo,
}

/// What the fetch chain made of them.
#[derive(Debug, Clone)]
pub enum FetchOutput {
    /// All the wanted records go out as they are stored.
    Unchanged,
    /// These go out, by ascending position; the others were dropped. Shared among subscribers where plugins allow it.
    Records(Arc<[FetchedRecord]>),
}

/// A record behind the fetch chain. Topic, offset, key version and time are those of its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedRecord {
    /// Position in the frame's body.
    pub at: u32,
    /// `None` = null.
    pub key: Option<Bytes>,
    /// `None` = null.
    pub value: Option<Bytes>,
    /// A headers item.
    pub headers: Bytes,
}
