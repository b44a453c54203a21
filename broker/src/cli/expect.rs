//! `--expect KEY@VERSION`: what a key must stand at.

use std::str::FromStr;

/// A condition on a key of the command's topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expect {
    /// The stored key; may itself hold `@`.
    pub(super) key: String,
    /// The version it must stand at; 0 = it must not exist.
    pub(super) version: u64,
}

/// Why text is no condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExpectError {
    #[error("write KEY@VERSION, for example 4711@7; version 0 means the key must not exist")]
    NoVersion,
    #[error("the key before the last `@` is empty: only a record with a key has a version")]
    NoKey,
    #[error("{0:?} after the last `@` is not a version: a whole number from 0")]
    Version(String),
}

impl FromStr for Expect {
    type Err = ExpectError;
    fn from_str(text: &str) -> Result<Self, ExpectError> {
        let (key, version) = text.rsplit_once('@').ok_or(ExpectError::NoVersion)?;
        if key.is_empty() {
            return Err(ExpectError::NoKey);
        }
        let version = version.parse().map_err(|_| ExpectError::Version(version.to_owned()))?;
        Ok(Self { key: key.to_owned(), version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_at_the_last_at() {
        assert_eq!("4711@7".parse(), Ok(Expect { key: "4711".into(), version: 7 }));
        assert_eq!("ada@example.org@0".parse(), Ok(Expect { key: "ada@example.org".into(), version: 0 }));
        assert_eq!("a b@18446744073709551615".parse(), Ok(Expect { key: "a b".into(), version: u64::MAX }));
    }

    #[test]
    fn says_what_is_missing() {
        assert_eq!("4711".parse::<Expect>(), Err(ExpectError::NoVersion));
        assert_eq!("@7".parse::<Expect>(), Err(ExpectError::NoKey));
        for wrong in ["k@", "k@x", "k@-1", "k@1.0", "k@18446744073709551616"] {
            assert!(matches!(wrong.parse::<Expect>(), Err(ExpectError::Version(_))), "{wrong}");
        }
    }
}
