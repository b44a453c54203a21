//! Lines of standard input or a file, read on a thread of their own and handed over in bounded pieces.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    path::Path,
    thread,
};

use bytes::Bytes;
use tidegate_protocol::error::Code;
use tokio::sync::mpsc;

use super::super::{Error, codes::Kind};

/// A line without its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// From 1.
    pub(super) number: u64,
    /// Its bytes.
    pub(super) bytes: Bytes,
}

/// Lines in order; each piece holds at least one.
pub(super) type Pieces = mpsc::Receiver<Result<Vec<Line>, Error>>;

/// Bytes of lines from which a piece is handed over.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces read ahead: with the longest lines this bounds what the reader holds.
const PIECES_AHEAD: usize = 4;
/// Bytes of a line: far over any broker's limit on a record, so that the broker judges; but bounded.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Bytes asked of the system at once.
const READ_BYTES: usize = 64 << 10;

/// Starts reading. Lines come as soon as they are there: a person's typing is not held back.
pub(super) fn read(file: Option<&Path>) -> Result<Pieces, Error> {
    let (subject, source): (String, Box<dyn io::Read + Send>) = match file {
        Some(path) => {
            let file = File::open(path).map_err(|source| Error::file("read", path, source))?;
            (path.display().to_string(), Box::new(file))
        }
        None => ("standard input".to_owned(), Box::new(io::stdin())),
    };
    let (pieces, receiver) = mpsc::channel(PIECES_AHEAD);
    let reader = move || {
        let mut reader = BufReader::with_capacity(READ_BYTES, source);
        let mut number = 0;
        loop {
            let piece = piece(&mut reader, &mut number, &subject);
            let last = !matches!(piece, Ok(Some(_)));
            // The receiver is gone when the command ended early: nothing is left to do here.
            if piece.transpose().is_some_and(|piece| pieces.blocking_send(piece).is_err()) || last {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("lines".to_owned())
        .spawn(reader)
        .map_err(|source| Error::io("start", "the thread that reads lines", source))?;
    Ok(receiver)
}

/// One line with nothing on it, and the end: for a record that needs no input.
pub(super) fn one_empty() -> Pieces {
    let (pieces, receiver) = mpsc::channel(PIECES_AHEAD);
    let line = Line { number: 1, bytes: Bytes::new() };
    pieces.try_send(Ok(vec![line])).expect("a new channel has room");
    receiver
}

/// The lines that are there now, at least one unless the input ended. Blank lines are counted and left out.
fn piece(reader: &mut BufReader<impl io::Read>, number: &mut u64, subject: &str) -> Result<Option<Vec<Line>>, Error> {
    let mut lines = Vec::new();
    let mut bytes = 0;
    while bytes < PIECE_BYTES && (lines.is_empty() || !reader.buffer().is_empty()) {
        let mut line = Vec::new();
        let limit = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
        let read = reader.by_ref().take(limit).read_until(b'\n', &mut line);
        if read.map_err(|source| Error::io("read", subject, source))? == 0 {
            break;
        }
        *number += 1;
        if line.len() >= LINE_BYTES_MAX && !line.ends_with(b"\n") {
            let reason = format!("longer than {LINE_BYTES_MAX} bytes");
            return Err(Error::line(*number, Kind::Wire(Code::RecordTooLarge), reason));
        }
        let end = line.len() - usize::from(line.ends_with(b"\n"));
        line.truncate(end);
        line.truncate(end - usize::from(line.ends_with(b"\r")));
        if !line.is_empty() {
            bytes += line.len();
            lines.push(Line { number: *number, bytes: line.into() });
        }
    }
    Ok(Some(lines).filter(|lines| !lines.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut reader = BufReader::with_capacity(8, input);
        let mut number = 0;
        let mut lines = Vec::new();
        while let Some(piece) = piece(&mut reader, &mut number, "test").unwrap() {
            lines.extend(piece.into_iter().map(|line| (line.number, line.bytes.to_vec())));
        }
        lines
    }

    #[test]
    fn ends_are_cut_and_numbers_count_every_line() {
        assert_eq!(
            all(b"one\n\r\ntwo\r\n\nthree"),
            [(1, b"one".to_vec()), (3, b"two".to_vec()), (5, b"three".to_vec())]
        );
        assert_eq!(all(b""), []);
        assert_eq!(all(b"\n\n"), []);
    }

    #[test]
    fn a_line_without_end_is_not_held_in_memory() {
        let mut reader = BufReader::new(io::repeat(b'x'));
        let error = piece(&mut reader, &mut 0, "test").unwrap_err();
        assert_eq!(error.exit_code(), 1);
        assert_eq!(error.bad_line().map(|bad| (bad.line, bad.code)), Some((1, "RECORD_TOO_LARGE")));
    }
}
