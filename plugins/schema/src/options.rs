//! The settings, as `settings.schema.json` describes them.

use serde::Deserialize;

/// All settings of the plugin.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    /// `file:PATH` of the AsyncAPI document.
    pub(crate) asyncapi: String,
    /// What becomes of a record that does not hold.
    #[serde(default)]
    pub(crate) mode: Mode,
    /// What becomes of a record whose topic no channel describes.
    #[serde(default)]
    pub(crate) unknown: Rule,
    /// What becomes of a record without value.
    #[serde(default = "pass")]
    pub(crate) tombstones: Rule,
    /// Records that hold get the header `tidegate-schema`.
    #[serde(default = "yes")]
    pub(crate) schema_header: bool,
}

/// What becomes of a record that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Rejected.
    #[default]
    Enforce,
    /// Let through with a header.
    Flag,
    /// Let through; a log line tells.
    Observe,
}

/// Whether something is let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Rule {
    /// It is treated as a record that does not hold.
    #[default]
    Reject,
    /// It is let through unchecked.
    Pass,
}

fn pass() -> Rule {
    Rule::Pass
}

fn yes() -> bool {
    true
}
