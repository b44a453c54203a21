//! The broker's own log: lines on standard error, as text for people or JSON for machines.

use clap::ValueEnum;
use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use super::Error;

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// For people.
    Text,
    /// One object per line.
    Json,
}

/// Libraries that log per packet or per function: from them only what is unexpected.
const QUIET: [&str; 5] = ["quinn", "quinn_proto", "rustls", "wasmtime", "cranelift_codegen"];

/// Sets the log of this process up. `filter` is a level, or targets with levels: `info,tidegate::fetch=debug`.
pub(super) fn start(filter: &str, format: LogFormat) -> Result<(), Error> {
    let targets = targets(filter)?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let lines = match format {
        LogFormat::Text => lines.with_filter(targets).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_filter(targets).boxed(),
    };
    tracing_subscriber::registry().with(lines).try_init().map_err(|error| Error::internal(error.to_string()))
}

fn targets(filter: &str) -> Result<Targets, Error> {
    if let Ok(level) = filter.parse::<LevelFilter>() {
        let quiet = QUIET.map(|target| (target, level.min(LevelFilter::WARN)));
        return Ok(Targets::new().with_default(level).with_targets(quiet));
    }
    filter.parse().map_err(|error| {
        Error::usage(format!(
            "--log {filter:?}: {error}; write a level (error, warn, info, debug, trace), or TARGET=LEVEL with commas between"
        ))
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_level_keeps_libraries_quiet() {
        let targets = targets("debug").unwrap();
        assert!(targets.would_enable("tidegate::produce", &Level::DEBUG));
        assert!(!targets.would_enable("quinn", &Level::INFO));
        assert!(targets.would_enable("quinn", &Level::WARN));
    }

    #[test]
    fn targets_are_taken_as_written() {
        let targets = targets("info,tidegate::fetch=trace").unwrap();
        assert!(targets.would_enable("tidegate::fetch", &Level::TRACE));
        assert!(!targets.would_enable("tidegate::produce", &Level::DEBUG));
    }

    #[test]
    fn what_is_no_filter_is_wrong_usage() {
        assert_eq!(targets("tidegate=loud").unwrap_err().exit_code(), 64);
    }
}
