//! Mistakes to make on purpose, so that the simulation proves that it sees them (ADR 11). Only behind `cfg(mutants)`.

use std::sync::LazyLock;

/// All of them: what a build makes with `TIDEGATE_MUTANT` set to the name.
pub const NAMES: [&str; 13] = [
    "ack-before-durable",
    "condition-before-in-flight",
    "conflict-not-waited-for",
    "cursor-off-by-one-at-hand-over",
    "dedup-not-rebuilt",
    "duplicate-not-waited-for",
    "head-forgotten",
    "last-segment-not-asked",
    "manifest-before-segment",
    "name-not-synced",
    "orphans-kept",
    "stale-generation-taken",
    "wal-freed-early",
];

static CHOSEN: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("TIDEGATE_MUTANT").ok());

/// Whether this mistake is to be made.
pub fn is(name: &str) -> bool {
    debug_assert!(NAMES.contains(&name), "{name} is not listed");
    CHOSEN.as_deref() == Some(name)
}
