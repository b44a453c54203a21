//! `tidegate explain`: the error table of the protocol, for people.

use std::fmt::{self, Display};

use serde::Serialize;
use tidegate_protocol::error::{Code, Row, TABLE};

use super::{Error, Output, exit};

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate explain CONFLICT\n  tidegate explain 502 --output json\n  tidegate explain --all > docs/errors.md"
)]
pub(super) struct Args {
    /// Name (`CONFLICT`) or number (`400`) of the code.
    #[arg(required_unless_present = "all")]
    code: Option<String>,
    /// Print the whole table: Markdown, or one object per code with --output json.
    #[arg(long, conflicts_with = "code")]
    all: bool,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<u8, Error> {
    match &args.code {
        Some(text) => {
            let code = Code::from_text(text).ok_or_else(|| unknown(text))?;
            output.row(&Explained::from(code.row()))?;
        }
        None if output.is_json() => TABLE.iter().try_for_each(|row| output.row(&Explained::from(row)))?,
        None => output.document(&markdown())?,
    }
    Ok(exit::OK)
}

fn unknown(text: &str) -> Error {
    let wanted = text.trim().to_ascii_uppercase();
    let nearest = TABLE
        .iter()
        .map(|row| (strsim::jaro_winkler(&wanted, row.name), row.name))
        .filter(|(likeness, _)| *likeness > LIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = nearest.map_or_else(String::new, |(_, name)| format!("; did you mean {name}?"));
    Error::Usage(format!("no error code is called {text:?}{hint}\n  All of them: tidegate explain --all"))
}

/// Likeness (Jaro-Winkler) from which a name is offered as what was meant.
const LIKE: f64 = 0.8;

#[derive(Debug, Serialize)]
struct Explained {
    code: &'static str,
    number: u16,
    retriable: bool,
    cause: &'static str,
    effect: &'static str,
    next: &'static str,
}

impl From<&Row> for Explained {
    fn from(row: &Row) -> Self {
        Self {
            code: row.name,
            number: row.code.number(),
            retriable: row.retriable,
            cause: row.cause,
            effect: row.effect,
            next: row.next,
        }
    }
}

impl Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let retry = if self.retriable { "the same request may succeed later" } else { "a retry does not help" };
        writeln!(f, "{} ({}): {retry}", self.code, self.number)?;
        writeln!(f, "  cause   {}", self.cause)?;
        writeln!(f, "  effect  {}", self.effect)?;
        write!(f, "  next    {}", self.next)
    }
}

/// All error codes as a Markdown page: `docs/errors.md`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Errors\n\n\
         Every error of the broker has a stable code. The numbers and names are API, the texts are not. This page is\n\
         `tidegate explain --all`; a test keeps the two equal.\n\n\
         | code | number | retry | cause | effect on the data | next step |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in TABLE {
        let retry = if row.retriable { "yes" } else { "no" };
        page.push_str(&format!(
            "| `{}` | {} | {retry} | {} | {} | {} |\n",
            row.name,
            row.code.number(),
            cell(row.cause),
            cell(row.effect),
            cell(row.next),
        ));
    }
    page
}

/// A bar would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_the_table() {
        let page = include_str!("../../../docs/errors.md");
        assert!(
            page == markdown(),
            "docs/errors.md is old: write it anew with `tidegate explain --all > docs/errors.md`"
        );
    }

    #[test]
    fn an_unknown_code_names_the_nearest() {
        assert!(unknown("conflct").to_string().contains("did you mean CONFLICT?"));
        assert!(!unknown("xyzzy").to_string().contains("did you mean"));
    }

    #[test]
    fn every_code_explains_itself_in_text_and_json() {
        for row in TABLE {
            let explained = Explained::from(row);
            assert!(explained.to_string().contains(row.next));
            assert_eq!(serde_json::to_value(&explained).unwrap()["number"], row.code.number());
        }
    }
}
