//! What guests may ask of the broker around a call.

use tracing::{Level as Weight, event, level_filters::LevelFilter};

use crate::hooks::{Host, Level};

/// Puts guests' lines into the broker's own log, as values: a guest writes no fields of ours.
#[derive(Debug, Clone, Copy, Default)]
pub struct GuestLog;

impl Host for GuestLog {
    fn guest_log(&self, tenant: &str, plugin: &str, level: Level, message: &str) {
        match level {
            Level::Trace => event!(target: "tidegate::guest", Weight::TRACE, tenant, plugin, message, "guest line"),
            Level::Debug => event!(target: "tidegate::guest", Weight::DEBUG, tenant, plugin, message, "guest line"),
            Level::Info => event!(target: "tidegate::guest", Weight::INFO, tenant, plugin, message, "guest line"),
            Level::Warn => event!(target: "tidegate::guest", Weight::WARN, tenant, plugin, message, "guest line"),
            Level::Error => event!(target: "tidegate::guest", Weight::ERROR, tenant, plugin, message, "guest line"),
        }
    }

    fn guest_log_level(&self) -> Level {
        let level = LevelFilter::current();
        if level >= LevelFilter::TRACE {
            Level::Trace
        } else if level >= LevelFilter::DEBUG {
            Level::Debug
        } else if level >= LevelFilter::INFO {
            Level::Info
        } else if level >= LevelFilter::WARN {
            Level::Warn
        } else {
            Level::Error
        }
    }
}
