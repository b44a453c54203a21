//! Every code that a command can print: those of the wire, from the protocol's table, and the command line's own, from the
//! table here.

use serde::Serialize;
use tidegate_protocol::error::{Code, Row, TABLE};

use super::exit;

/// A code as a command prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One of the broker's: the client library and this program give the same where they refuse in its place.
    Wire(Code),
    /// One that only the command line has.
    Own(Own),
}

impl Kind {
    /// Its row.
    pub(super) fn explained(self) -> Explained {
        match self {
            Self::Wire(code) => code.row().into(),
            Self::Own(own) => own.explained(),
        }
    }

    /// Its `UPPER_CASE` name.
    pub(super) fn name(self) -> &'static str {
        self.explained().code
    }
}

/// What is known of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Explained {
    /// `UPPER_CASE` name.
    pub(super) code: &'static str,
    /// Number on the wire, if it goes there.
    pub(super) number: Option<u16>,
    /// Whether the same command may succeed later without a change.
    pub(super) retriable: bool,
    /// Exit code, where the code alone decides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit: Option<u8>,
    /// What happened.
    pub(super) cause: &'static str,
    /// What became of the data.
    pub(super) effect: &'static str,
    /// What to do now.
    pub(super) next: &'static str,
}

impl From<&Row> for Explained {
    fn from(row: &Row) -> Self {
        Self {
            code: row.name,
            number: Some(row.code.number()),
            retriable: row.retriable,
            exit: None,
            cause: row.cause,
            effect: row.effect,
            next: row.next,
        }
    }
}

/// All codes: first those of the wire by number, then the command line's own.
pub(super) fn all() -> impl Iterator<Item = Explained> {
    TABLE.iter().map(Explained::from).chain(Own::ALL.iter().map(|own| own.explained()))
}

/// The code of a name (`CONFLICT`, `USAGE`) or number (`400`).
pub(super) fn find(text: &str) -> Option<Explained> {
    let wanted = text.trim();
    let own = || all().find(|row| row.code.eq_ignore_ascii_case(wanted));
    Code::from_text(wanted).map(|code| code.row().into()).or_else(own)
}

macro_rules! own {
    ($($variant:ident $name:literal $retriable:literal $exit:path; $cause:literal $effect:literal $next:literal)*) => {
        /// A code that only the command line has.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Own {
            $(#[doc = $cause] $variant,)*
        }
        impl Own {
            /// All of them.
            pub(super) const ALL: &[Self] = &[$(Self::$variant),*];

            fn explained(self) -> Explained {
                match self {
                    $(Self::$variant => Explained {
                        code: $name, number: None, retriable: $retriable, exit: Some($exit),
                        cause: $cause, effect: $effect, next: $next,
                    },)*
                }
            }
        }
    };
}

own! {
    Usage "USAGE" false exit::USAGE;
        "The command line does not hold together: an unknown flag, a missing argument, or one that is malformed."
        "Nothing was done."
        "Look at the command's --help: it has examples."
    NotSent "NOT_SENT" false exit::REFUSED;
        "A line of the input makes no record: it has no key where --key-pointer says, or is not JSON."
        "The lines before it were sent and answered (with --expect: none was); it and those behind it were not."
        "Fix the line, and go on from there."
    Unanswered "UNANSWERED" false exit::UNAVAILABLE;
        "A batch was sent, and no answer came, in spite of all retries."
        "It is not known here whether its records were appended; answers told before stand."
        "Read the end of the topic to see, then send what is missing."
    Unavailable "UNAVAILABLE" true exit::UNAVAILABLE;
        "No broker answers at the address, it is not the one whose certificate is pinned, or the connection was lost for good."
        "Nothing was done but what was answered before."
        "Is it running (tidegate serve), and are --addr and --data-dir its own?"
    InUse "IN_USE" true exit::UNAVAILABLE;
        "An address, a data directory or a backup that is needed is in use, or not to be had."
        "Nothing was started; nothing changed."
        "Stop the process that has it, or give another --listen, --http or directory."
    Io "IO" false exit::IO;
        "A file, the data directory, standard input or standard output failed, or holds what was not written there."
        "What was acked is safe; the command ended there."
        "Check path, owner, permissions and free space of what the message names."
    Unknown "UNKNOWN" false exit::REFUSED;
        "The broker answered with a code that this program does not know."
        "The broker's message tells."
        "Is the broker newer? Update this program: its table explains the code."
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_over_both_tables() {
        let names: HashSet<_> = all().map(|row| row.code).collect();
        assert_eq!(names.len(), TABLE.len() + Own::ALL.len());
    }

    #[test]
    fn every_code_is_found_by_name_and_says_three_sentences() {
        for row in all() {
            assert_eq!(find(row.code), Some(row));
            assert_eq!(find(&format!(" {} ", row.code.to_lowercase())), Some(row));
            for text in [row.cause, row.effect, row.next] {
                assert!(text.len() > 8 && text.ends_with(['.', '?']), "{}: {text:?}", row.code);
            }
        }
        assert_eq!(find("400").map(|row| row.code), Some("CONFLICT"));
        assert_eq!(find("NO_SUCH_CODE"), None);
    }
}
