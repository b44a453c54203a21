//! Files and defaults: turns `plugins.toml`, the auth file and the flags of `tidegate serve` into the plain data that each
//! component declares as its own configuration.
//!
//! Owns the text formats and their error messages. Must not know connections, guests or the log. Called by `main` and
//! `cli`; ADR 7 has the rules. Everything is checked before a port opens.

pub mod auth_file;
mod bundle;
mod dev;
mod document;
pub mod plugins;
pub mod serve;
pub(crate) mod units;

use std::path::Path;

pub use dev::DevFiles;

/// Why a configuration does not hold: one line a person can act on.
///
/// Printed as `FILE:LINE: REASON; did you mean "SPELLING"?`, for `plugins.toml` followed by what that means for a broker
/// that runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}", self.short(), if self.keeps_running { " The running configuration is unchanged." } else { "" })]
pub struct ConfigError {
    /// The file as it was named.
    pub file: String,
    /// Line, from 1; `None` when the file as a whole is at fault.
    pub line: Option<u32>,
    /// The key at fault, with its table: `plugin.mask.grants`. Empty = none.
    pub key: String,
    /// The value at fault as written, cut to 80 bytes. Empty = none.
    pub value: String,
    /// What is wrong and what to do.
    pub reason: String,
    /// The nearest right spelling.
    pub suggestion: Option<String>,
    /// The file is one that a running broker reads again: the error changes nothing there.
    pub keeps_running: bool,
    /// Where it lies.
    pub fault: ConfigFault,
}

/// Where the fault of a [`ConfigError`] lies, for exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigFault {
    /// A file that a person wrote.
    File,
    /// The flags.
    Flags,
    /// A file that the broker made in its data directory, or cannot make there.
    DataDir,
}

impl ConfigError {
    /// Without the sentence about the running broker: for the start, when none runs.
    pub fn short(&self) -> String {
        let place = self.line.map_or_else(|| self.file.clone(), |line| format!("{}:{line}", self.file));
        match &self.suggestion {
            Some(right) => format!("{place}: {}; did you mean {right:?}?", self.reason),
            None => format!("{place}: {}.", self.reason),
        }
    }

    /// An error of a whole file.
    pub(crate) fn of_file(file: &Path, reason: String) -> Self {
        Self {
            file: file.display().to_string(),
            line: None,
            key: String::new(),
            value: String::new(),
            reason,
            suggestion: None,
            keeps_running: false,
            fault: ConfigFault::File,
        }
    }
}

/// The candidate nearest to what was written, if one is near enough to be meant.
pub(crate) fn nearest<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(written, candidate), candidate))
        .filter(|(distance, candidate)| *distance > 0 && *distance <= (candidate.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_owned())
}

/// Reads a text file of at most `max` bytes.
pub(crate) fn read_text(path: &Path, max: u64) -> Result<String, ConfigError> {
    let bytes = read_bytes(path, max)?;
    String::from_utf8(bytes).map_err(|_| ConfigError::of_file(path, "is not UTF-8".to_owned()))
}

/// Reads a file of at most `max` bytes; the length is checked before anything is read.
pub(crate) fn read_bytes(path: &Path, max: u64) -> Result<Vec<u8>, ConfigError> {
    use std::io::Read as _;
    let fail = |what: &str, error: std::io::Error| ConfigError::of_file(path, format!("cannot {what}: {error}"));
    let file = std::fs::File::open(path).map_err(|error| fail("open", error))?;
    let length = file.metadata().map_err(|error| fail("look at", error))?.len();
    if length > max {
        return Err(ConfigError::of_file(path, format!("is {length} bytes, at most {max} are read")));
    }
    let mut bytes = Vec::new();
    // One byte more than told: a file that grows meanwhile is noticed, not read without bound.
    file.take(max + 1).read_to_end(&mut bytes).map_err(|error| fail("read", error))?;
    if bytes.len() as u64 > max {
        return Err(ConfigError::of_file(path, format!("grew over {max} bytes while it was read")));
    }
    Ok(bytes)
}

/// `sha256:HEX` of some bytes, as component digests are written everywhere.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let mut text = String::with_capacity(71);
    text.push_str("sha256:");
    for byte in digest.as_ref() {
        write!(text, "{byte:02x}").expect("writing to a String does not fail");
    }
    text
}
