//! The one place that writes to standard output and standard error.
//!
//! A result is a row: `Display` is its text for people, `Serialize` its object for machines. Commands never choose between
//! the two; they hand rows over.

use std::{
    ffi::OsString,
    fmt::{Display, Write as _},
    io::{self, BufWriter, Write},
};

use clap::ValueEnum;
use serde::Serialize;

use super::error::Error;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Format {
    /// The variable that gives the format where no flag does.
    pub(super) const VARIABLE: &str = "TIDEGATE_OUTPUT";

    /// What a command line asks for that does not parse as a whole: it is told in the form it asked for.
    pub(super) fn asked(arguments: &[OsString], variable: Option<OsString>) -> Self {
        let mut asked = variable.and_then(|value| Self::of(value.to_str()?));
        let mut arguments = arguments.iter().map_while(|argument| argument.to_str().filter(|text| *text != "--"));
        while let Some(argument) = arguments.next() {
            let value = match argument.strip_prefix("--output") {
                Some("") => arguments.next(),
                Some(value) => value.strip_prefix('='),
                None => continue,
            };
            asked = value.and_then(Self::of).or(asked);
        }
        asked.unwrap_or(Self::Text)
    }

    fn of(value: &str) -> Option<Self> {
        <Self as ValueEnum>::from_str(value, false).ok()
    }
}

/// Where results and remarks go.
pub(super) struct Output {
    format: Format,
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("format", &self.format).finish_non_exhaustive()
    }
}

/// Bytes gathered before a write to standard output.
const OUT_BUFFER_BYTES: usize = 64 << 10;

impl Output {
    /// Standard output and standard error of this process.
    pub(super) fn stdio(format: Format) -> Self {
        let out = BufWriter::with_capacity(OUT_BUFFER_BYTES, io::stdout());
        Self { format, out: Box::new(out), err: Box::new(io::stderr()) }
    }

    /// Writers of a test.
    #[cfg(test)]
    pub(super) fn to(format: Format, out: Box<dyn Write + Send>, err: Box<dyn Write + Send>) -> Self {
        Self { format, out, err }
    }

    pub(super) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// One result. Long results are several rows, so that nobody holds them in memory.
    pub(super) fn row(&mut self, row: &(impl Display + Serialize)) -> io::Result<()> {
        match self.format {
            Format::Text => writeln!(self.out, "{row}"),
            Format::Json => {
                serde_json::to_writer(&mut self.out, row)?;
                self.out.write_all(b"\n")
            }
        }
    }

    /// A list whose text is a table with aligned columns.
    pub(super) fn table<R: Serialize>(
        &mut self,
        head: &[&str],
        rows: &[R],
        cells: impl Fn(&R) -> Vec<String>,
    ) -> io::Result<()> {
        match self.format {
            Format::Text => self.out.write_all(align(head, rows.iter().map(cells).collect()).as_bytes()),
            Format::Json => rows.iter().try_for_each(|row| {
                serde_json::to_writer(&mut self.out, row)?;
                self.out.write_all(b"\n")
            }),
        }
    }

    /// Text as it is, in either format: documents such as the table of errors.
    pub(super) fn document(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())
    }

    /// A remark for the person at the terminal, beside the results. Machines get none.
    pub(super) fn remark(&mut self, text: &dyn Display) -> io::Result<()> {
        if self.is_json() {
            return Ok(());
        }
        self.out.flush()?;
        writeln!(self.err, "{text}")
    }

    /// The reason why the command ends badly, on standard error.
    pub(super) fn error(&mut self, error: &Error) {
        let text = match self.format {
            Format::Text => error.text(),
            Format::Json => error.json().to_string(),
        };
        // Results first, so that the reason stands last. If even standard error is gone, the exit code still tells.
        let told = self.out.flush().and_then(|()| writeln!(self.err, "{text}"));
        drop(told);
    }

    /// Hands everything written so far to the operating system.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Columns as wide as their widest cell, two spaces apart, no space at the end of a line.
fn align(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut lines = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
    lines.extend(rows);
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for line in &lines {
        let mut row = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            row.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// A number of bytes for people.
pub(super) fn size(bytes: u64) -> String {
    let (unit, shift) = match bytes {
        0..=0x3ff => return format!("{bytes} bytes"),
        0x400..=0xf_ffff => ("KiB", 10),
        0x10_0000..=0x3fff_ffff => ("MiB", 20),
        _ => ("GiB", 30),
    };
    let tenths = (u128::from(bytes) * 10) >> shift;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// Bytes for JSON: text where they are UTF-8, otherwise base64 and a marker beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl Bytes<'_> {
    /// The string, and `Some("base64")` if it is encoded.
    pub(super) fn encoded(&self) -> (String, Option<&'static str>) {
        use base64::Engine as _;
        match std::str::from_utf8(self.0) {
            Ok(text) => (text.to_owned(), None),
            Err(_) => (base64::engine::general_purpose::STANDARD.encode(self.0), Some("base64")),
        }
    }
}

impl Display for Bytes<'_> {
    /// Text on one line, with control characters escaped so that data cannot drive the terminal; other bytes as `base64:…`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.encoded() {
            (text, None) => text.chars().try_for_each(|c| match c {
                c if c.is_control() => write!(f, "{}", c.escape_default()),
                c => f.write_char(c),
            }),
            (text, Some(marker)) => write!(f, "{marker}:{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_known_before_the_rest_is() {
        let asked = |line: &str, variable: Option<&str>| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            Format::asked(&arguments, variable.map(OsString::from))
        };
        assert_eq!(asked("tidegate consume --folow", None), Format::Text);
        assert_eq!(asked("tidegate --output json consume --folow", None), Format::Json);
        assert_eq!(asked("tidegate consume --folow --output=json", None), Format::Json);
        assert_eq!(asked("tidegate consume --folow", Some("json")), Format::Json);
        assert_eq!(asked("tidegate consume --folow --output text", Some("json")), Format::Text);
        assert_eq!(asked("tidegate consume --output yaml", Some("json")), Format::Json);
        assert_eq!(asked("tidegate produce -- --output json", None), Format::Text);
    }

    #[test]
    fn columns_are_aligned_and_lines_end_without_spaces() {
        let rows = vec![vec!["a".into(), "1".into()], vec!["a/long".into(), String::new()]];
        assert_eq!(align(&["topic", "n"], rows), "topic   n\na       1\na/long\n");
    }

    #[test]
    fn sizes_are_told_in_their_unit() {
        let told = [0, 1023, 1024, 1_600_000, 64 << 20, 5 << 30, u64::MAX].map(size);
        assert_eq!(told[..5], ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 MiB", "64.0 MiB"]);
        assert_eq!(told[5..], ["5.0 GiB", "17179869183.9 GiB"]);
    }

    #[test]
    fn bytes_that_are_no_text_carry_a_marker() {
        assert_eq!(Bytes(b"k\xc3\xa4").encoded(), ("kä".to_owned(), None));
        assert_eq!(Bytes(b"\xff\x00").encoded(), ("/wA=".to_owned(), Some("base64")));
        assert_eq!(Bytes(b"\xff\x00").to_string(), "base64:/wA=");
        assert_eq!(Bytes(b"a\nd\x1b[31m").to_string(), "a\\nd\\u{1b}[31m");
    }
}
