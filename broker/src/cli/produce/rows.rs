//! What `tidegate produce` prints.

use std::fmt::{self, Display};

use serde::Serialize;

/// What became of one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Fate {
    /// Its line of the input, from 1.
    pub(super) line: u64,
    /// `appended`, `dropped`, `rejected`, `diverted`, or `not_sent` for the line that ended the run.
    pub(super) status: &'static str,
    /// The topic it went to, or was meant for.
    pub(super) topic: String,
    /// Appended: where.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) offset: Option<u64>,
    /// Appended with a key: its version now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key_version: Option<u64>,
    /// Its key, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    /// Rejected or diverted: name of the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    /// Rejected: the plugin's own code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) plugin_code: Option<u32>,
    /// The plugin that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) plugin: Option<String>,
    /// Rejected: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// Rejected: when a retry may succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_ms: Option<u64>,
}

impl Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(offset) = self.offset {
            write!(f, "{}@{offset}", self.topic)?;
            return match (&self.key, self.key_version) {
                (Some(key), Some(version)) => write!(f, " · {key}@{version}"),
                _ => Ok(()),
            };
        }
        write!(f, "line {} {}: ", self.line, self.topic)?;
        match &self.reason {
            Some(reason) => f.write_str(reason)?,
            None => f.write_str(self.status)?,
        }
        let by: Vec<&str> = self.plugin.as_deref().into_iter().chain(self.code.as_deref()).collect();
        if by.is_empty() { Ok(()) } else { write!(f, " ({})", by.join(", ")) }
    }
}

/// How many records came to which end.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    /// Given to the broker.
    pub(super) sent: u64,
    /// In the log.
    pub(super) appended: u64,
    /// Taken out by a plugin, on purpose.
    pub(super) dropped: u64,
    /// Refused.
    pub(super) rejected: u64,
    /// In a dead-letter topic.
    pub(super) diverted: u64,
}

impl Tally {
    /// Counts a record.
    pub(super) fn count(&mut self, fate: &Fate) {
        self.sent += 1;
        match fate.status {
            APPENDED => self.appended += 1,
            DROPPED => self.dropped += 1,
            DIVERTED => self.diverted += 1,
            _ => self.rejected += 1,
        }
    }
}

/// Status of a record in the log.
pub(super) const APPENDED: &str = "appended";
/// Status of a record a plugin took out.
pub(super) const DROPPED: &str = "dropped";
/// Status of a refused record.
pub(super) const REJECTED: &str = "rejected";
/// Status of a record in a dead-letter topic.
pub(super) const DIVERTED: &str = "diverted";
/// Status of a line that is no record: the run ends there.
pub(super) const NOT_SENT: &str = "not_sent";

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sent · {} appended", self.sent, self.appended)?;
        for (count, name) in [(self.dropped, DROPPED), (self.rejected, REJECTED), (self.diverted, DIVERTED)] {
            if count > 0 {
                write!(f, " · {count} {name}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fate(status: &'static str) -> Fate {
        Fate {
            line: 14,
            status,
            topic: "github/push".into(),
            offset: None,
            key_version: None,
            key: None,
            code: None,
            plugin_code: None,
            plugin: None,
            reason: None,
            retry_after_ms: None,
        }
    }

    #[test]
    fn a_summary_names_only_what_happened() {
        let tally = Tally { sent: 329, appended: 277, rejected: 52, ..Tally::default() };
        assert_eq!(tally.to_string(), "329 sent · 277 appended · 52 rejected");
        assert_eq!(Tally { sent: 1, appended: 1, ..Tally::default() }.to_string(), "1 sent · 1 appended");
    }

    #[test]
    fn a_position_has_the_key_version_only_with_a_key() {
        let appended = Fate { topic: "orders/eu".into(), offset: Some(902), ..fate(APPENDED) };
        assert_eq!(appended.to_string(), "orders/eu@902");
        let keyed = Fate { key: Some("4711".into()), key_version: Some(8), ..appended };
        assert_eq!(keyed.to_string(), "orders/eu@902 · 4711@8");
    }

    #[test]
    fn a_rejection_says_line_topic_reason_plugin_and_code() {
        let rejected = Fate {
            code: Some("PLUGIN_REJECTED".into()),
            plugin: Some("schema".into()),
            reason: Some("/payload/x: is not a string".into()),
            ..fate(REJECTED)
        };
        assert_eq!(rejected.to_string(), "line 14 github/push: /payload/x: is not a string (schema, PLUGIN_REJECTED)");
        assert_eq!(fate(DROPPED).to_string(), "line 14 github/push: dropped");
        let json = serde_json::to_value(&rejected).unwrap();
        assert_eq!(json["plugin"], "schema");
        assert!(json.get("offset").is_none());
    }
}
