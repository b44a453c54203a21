//! `--since`: an age or an instant.

use std::time::Duration;

use chrono::DateTime;
use tidegate_client::Start;

use crate::config::units;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    /// So long before the broker's time.
    Ago(Duration),
    /// Unix milliseconds.
    At(i64),
}

impl Since {
    /// `2h`, or `2026-12-01T06:00:00Z`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        // An instant has its date first, an age a number and a unit.
        if text.contains('-') || text.contains(':') {
            let instant = DateTime::parse_from_rfc3339(text);
            return instant.map(|instant| Self::At(instant.timestamp_millis())).map_err(|error| {
                format!("no instant as RFC 3339 writes it ({error}); write date, time and zone, as in {EXAMPLE}")
            });
        }
        let ago = units::duration(text).map(Self::Ago);
        ago.map_err(|_| format!("neither an age, as in 90s, 2h or 7d, nor an instant, as in {EXAMPLE}"))
    }
}

const EXAMPLE: &str = "2026-12-01T06:00:00Z";

impl From<Since> for Start {
    fn from(since: Since) -> Self {
        match since {
            Since::Ago(ago) => Self::Ago(ago),
            Since::At(time_ms) => Self::Since(time_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_instants() {
        assert_eq!(Since::parse("2h"), Ok(Since::Ago(Duration::from_secs(7_200))));
        assert_eq!(Since::parse("7d"), Ok(Since::Ago(Duration::from_secs(7 * 86_400))));
        assert_eq!(Since::parse("2023-11-14T22:13:20Z"), Ok(Since::At(1_700_000_000_000)));
        assert_eq!(Since::parse("2023-11-14T23:13:20.5+01:00"), Ok(Since::At(1_700_000_000_500)));
        for wrong in ["", "yesterday", "2", "0s", "2 weeks"] {
            assert!(Since::parse(wrong).unwrap_err().starts_with("neither an age"), "{wrong}");
        }
        for wrong in ["2023-11-14", "22:13", "2023-11-14T22:13:20", "2023-13-14T22:13:20Z", "-2h"] {
            assert!(Since::parse(wrong).unwrap_err().contains(EXAMPLE), "{wrong}");
        }
    }
}
