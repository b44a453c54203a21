//! What a guest may ask of the broker, one module per grant. A plugin imports what it calls and nothing else.
//!
//! On `wasm32` each function is one call of the host (about 70 ns). Elsewhere it is a double that belongs to the current
//! thread; [`crate::testing`] sets it up and reads it out.

#[cfg(not(target_arch = "wasm32"))]
pub mod native;
/// On `wasm32` there are no doubles.
#[cfg(target_arch = "wasm32")]
pub mod native {}

#[cfg(not(target_arch = "wasm32"))]
use native as host;

#[cfg(target_arch = "wasm32")]
mod host {
    pub(super) use crate::bindings::tidegate::plugin::{batch, clock, counters, instance, log, random};
}

/// Always there: what the instance is and whom it serves.
pub mod instance {
    use super::host::instance as host;

    /// The settings as JSON, as in `Plugin::new`.
    pub fn settings() -> String {
        host::settings()
    }

    /// Tenant of the batch in progress; empty outside a hook.
    pub fn tenant() -> String {
        host::tenant()
    }

    /// Who produced the batch in progress; empty outside a hook.
    pub fn principal() -> String {
        host::principal()
    }

    /// Last words before a trap. The SDK says a panic's message and place by itself.
    pub fn fault(message: &str) {
        host::fault(message);
    }
}

/// Grant `log`. Use the macros [`trace!`](crate::trace!) to [`error!`](crate::error!): they ask for the level before
/// they format. Lines are cut at 1 KiB; over 100 a second they are counted instead.
pub mod log {
    use super::host::log as host;

    pub use crate::bindings::tidegate::plugin::log::Level;

    /// Writes one line.
    pub fn write(level: Level, message: &str) {
        host::write(level, message);
    }

    /// Lines of this level are kept now.
    pub fn is_on(level: Level) -> bool {
        rank(level) >= rank(host::enabled())
    }

    fn rank(level: Level) -> u8 {
        match level {
            Level::Trace => 0,
            Level::Debug => 1,
            Level::Info => 2,
            Level::Warn => 3,
            Level::Error => 4,
        }
    }
}

/// Writes a log line at a level, formatted only if the level is on.
#[doc(hidden)]
#[macro_export]
macro_rules! log_at {
    ($level:ident, $($message:tt)+) => {
        if $crate::log::is_on($crate::log::Level::$level) {
            $crate::log::write($crate::log::Level::$level, &::std::format!($($message)+));
        }
    };
}

/// Logs at level trace. Grant `log`.
#[macro_export]
macro_rules! trace { ($($message:tt)+) => { $crate::log_at!(Trace, $($message)+) }; }
/// Logs at level debug. Grant `log`.
#[macro_export]
macro_rules! debug { ($($message:tt)+) => { $crate::log_at!(Debug, $($message)+) }; }
/// Logs at level info. Grant `log`.
#[macro_export]
macro_rules! info { ($($message:tt)+) => { $crate::log_at!(Info, $($message)+) }; }
/// Logs at level warn. Grant `log`.
#[macro_export]
macro_rules! warn { ($($message:tt)+) => { $crate::log_at!(Warn, $($message)+) }; }
/// Logs at level error. Grant `log`.
#[macro_export]
macro_rules! error { ($($message:tt)+) => { $crate::log_at!(Error, $($message)+) }; }

/// Grant `clock`. A plugin that asks is not pure; [`crate::Batch::now_ms`] costs nothing and is the same on a retry.
pub mod clock {
    use super::host::clock as host;

    /// Unix time in nanoseconds.
    pub fn now_ns() -> u64 {
        host::now()
    }

    /// Nanoseconds since some fixed point; never goes back.
    pub fn monotonic_ns() -> u64 {
        host::monotonic()
    }
}

/// Grant `random`. A plugin that asks is not pure.
pub mod random {
    use super::host::random as host;

    /// Bytes of one call at most: `wit/capabilities.wit`.
    pub const BYTES_MAX: usize = 64 << 10;

    /// Random bytes, at most [`BYTES_MAX`].
    pub fn bytes(count: usize) -> Vec<u8> {
        host::bytes(u32::try_from(count.min(BYTES_MAX)).unwrap_or_default())
    }

    /// A random number.
    pub fn next() -> u64 {
        host::next()
    }
}

/// Grant `counters`: in memory, exact, shared by all instances of the plugin in a tenant, lost when the broker restarts.
pub mod counters {
    use super::host::counters as host;

    /// Adds and gives the new value. A name not seen before starts at 0.
    pub fn add(name: &str, delta: i64) -> i64 {
        host::add(name, delta)
    }

    /// The value now.
    pub fn value(name: &str) -> i64 {
        host::value(name)
    }
}

/// Grant `batch`: more of the batch in progress, still in the broker's memory, and byte work done there. Decide on keys,
/// then read a few values. Only inside a hook; each function covers many records in one call.
pub mod host_batch {
    use super::host::batch as host;
    use crate::{Batch, Column, Failure, Fields};

    /// Records that were read with [`read`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Frame {
        count: u32,
        fields: Fields,
        index: Vec<u32>,
        data: Vec<u8>,
    }

    impl Frame {
        /// The records. Position `n` is the n-th of the positions asked for.
        ///
        /// # Errors
        /// If the broker's answer does not hold the fields.
        pub fn batch(&self) -> Result<Batch<'_>, Failure> {
            Batch::new(self.count, self.fields, &self.index, &self.data)
        }
    }

    /// One member of each value, as read with [`json`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Members {
        ends: Vec<u32>,
        data: Vec<u8>,
    }

    impl Members {
        /// The members in the order of the positions asked for.
        pub fn column(&self) -> Column<'_> {
            Column::new(&self.ends, &self.data)
        }
    }

    /// Reads fields of some records of the batch in progress; no position means all records.
    pub fn read(batch: &Batch<'_>, fields: Fields, at: &[u32]) -> Frame {
        let count = if at.is_empty() { batch.len() } else { u32::try_from(at.len()).unwrap_or(u32::MAX) };
        let frame = host::read(fields, at);
        Frame { count, fields, index: frame.index, data: frame.data }
    }

    /// Positions whose field (exactly one of key, value, topic) contains the needle.
    pub fn find(field: Fields, needle: &[u8]) -> Vec<u32> {
        host::find(field, needle)
    }

    /// One member of each JSON value by pointer (RFC 6901): strings without quotes, all else as compact JSON; null where
    /// it is absent or the value is not JSON. No position means all records.
    pub fn json(pointer: &str, at: &[u32]) -> Members {
        let frame = host::json(pointer, at);
        Members { ends: frame.index, data: frame.data }
    }
}
