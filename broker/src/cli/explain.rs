//! `tidegate explain`: what a code means, for people.

use std::fmt::{self, Display};

use super::{
    Error, Output,
    codes::{self, Explained},
    exit,
};

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
        Some(text) => output.row(&codes::find(text).ok_or_else(|| unknown(text))?)?,
        None if output.is_json() => codes::all().try_for_each(|row| output.row(&row))?,
        None => output.document(&markdown())?,
    }
    Ok(exit::OK)
}

fn unknown(text: &str) -> Error {
    let wanted = text.trim().to_ascii_uppercase();
    let nearest = codes::all()
        .map(|row| (strsim::jaro_winkler(&wanted, row.code), row.code))
        .filter(|(likeness, _)| *likeness > LIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = nearest.map_or_else(String::new, |(_, name)| format!("; did you mean {name}?"));
    Error::usage(format!("no error code is called {text:?}{hint}")).then("All of them: tidegate explain --all")
}

/// Likeness (Jaro-Winkler) from which a name is offered as what was meant.
const LIKE: f64 = 0.8;

impl Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let retry = if self.retriable { "the same may succeed later" } else { "a retry does not help" };
        match self.number {
            Some(number) => writeln!(f, "{} ({number}): {retry}", self.code)?,
            None => writeln!(f, "{}: {retry}", self.code)?,
        }
        writeln!(f, "  cause   {}", self.cause)?;
        writeln!(f, "  effect  {}", self.effect)?;
        write!(f, "  next    {}", self.next)
    }
}

/// All error codes as a Markdown page: `docs/errors.md`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Errors\n\n\
         Every error has a stable code. The numbers and names are API, the texts are not. This page is\n\
         `tidegate explain --all`; a test keeps the two equal.\n\n\
         ## Of the broker\n\n\
         The client library and the command line give the same codes where they refuse in the broker's place.\n\n\
         | code | number | retry | cause | effect on the data | next step |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    let line = |row: &Explained, second: String| {
        let retry = if row.retriable { "yes" } else { "no" };
        let [cause, effect, next] = [row.cause, row.effect, row.next].map(cell);
        format!("| `{}` | {second} | {retry} | {cause} | {effect} | {next} |\n", row.code)
    };
    for row in codes::all() {
        if let Some(number) = row.number {
            page.push_str(&line(&row, number.to_string()));
        }
    }
    page.push_str(
        "\n## Of the command line alone\n\n\
         | code | exit code | retry | cause | effect on the data | next step |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in codes::all() {
        if let Some(exit) = row.exit {
            page.push_str(&line(&row, exit.to_string()));
        }
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
        assert!(unknown("NOTSENT").to_string().contains("did you mean NOT_SENT?"));
        assert!(!unknown("xyzzy").to_string().contains("did you mean"));
    }

    #[test]
    fn every_code_explains_itself_in_text_and_json() {
        for row in codes::all() {
            assert!(row.to_string().contains(row.next));
            assert_eq!(serde_json::to_value(row).unwrap()["code"], row.code);
        }
    }
}
