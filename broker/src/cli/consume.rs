//! `tidegate consume`: reads a topic or a pattern to standard output.

mod cursor_file;
mod rows;
mod since;

use std::{path::PathBuf, time::Duration};

use tidegate_client::{Connection, Consumer, ConsumerOptions, Event, FetchedBatch, RecordView, Start};
use tidegate_protocol::{cursor::Cursor, error::Code, wire::Gap};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use super::{ConnectArgs, Error, Output, exit, names};
use cursor_file::CursorFile;
use since::Since;

/// Arguments of `consume`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate consume orders/eu\n  tidegate consume 'github/*' --from earliest --follow\n  \
                  tidegate consume 'orders/>' --follow --cursor-file orders.cursor --output json | my-program\n  \
                  tidegate consume 'orders/>' --since 2h\n  tidegate consume orders/eu --since 2026-12-01T06:00:00Z\n  \
                  tidegate consume orders/eu --from-offset 902 --max 1\n  \
                  tidegate consume orders/eu --key 4711 --follow\n  tidegate consume orders/eu --key 4711 --latest"
)]
pub(super) struct Args {
    /// A topic or a pattern: `*` is one level, `>` at the end all that follows. Quote it for the shell.
    pattern: String,

    /// Where to start: earliest, latest, or a cursor that an earlier run printed.
    #[arg(long, value_name = "earliest|latest|CURSOR", default_value = "earliest", value_parser = parse_start)]
    from: Start,

    /// Start at this offset; PATTERN must be one topic.
    #[arg(long, value_name = "OFFSET", conflicts_with = "from")]
    from_offset: Option<u64>,

    /// Start at what the broker took since then: so long ago (`90s`, `2h`, `7d`) or at an instant
    /// (`2026-12-01T06:00:00Z`), by the broker's clock.
    #[arg(long, value_name = "AGE|INSTANT", value_parser = Since::parse, conflicts_with_all = ["from", "from_offset"])]
    since: Option<Since>,

    /// Only records of this key; PATTERN must be one topic.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Only the last record of the key; with --follow, it and what comes after.
    #[arg(long, requires = "key", conflicts_with_all = ["from", "from_offset", "since", "max"])]
    latest: bool,

    /// Go on with new records until Ctrl-C or SIGTERM.
    #[arg(long, short)]
    follow: bool,

    /// End after this many records.
    #[arg(long, value_name = "RECORDS", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,

    /// Go on where this file says, if it is there, and keep it up to date.
    #[arg(long, value_name = "FILE")]
    cursor_file: Option<PathBuf>,

    /// Parameters for fetch plugins: a JSON object.
    #[arg(long, value_name = "JSON", default_value = "", hide_default_value = true, value_parser = parse_parameters)]
    parameters: String,
}

fn parse_parameters(text: &str) -> Result<String, String> {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(serde_json::Value::Object(_)) => Ok(text.to_owned()),
        Ok(_) => Err("JSON, but no object; write '{\"name\": \"value\"}'".to_owned()),
        Err(_) if text.is_empty() => Ok(String::new()),
        Err(error) => Err(format!("not JSON: {error}; write '{{\"name\": \"value\"}}'")),
    }
}

fn parse_start(text: &str) -> Result<Start, String> {
    match text {
        "earliest" => Ok(Start::Earliest),
        "latest" => Ok(Start::Latest),
        cursor => match cursor.parse::<Cursor>() {
            Ok(_) => Ok(Start::Cursor(cursor.to_owned())),
            Err(error) => Err(format!("neither `earliest` nor `latest`, and {error}")),
        },
    }
}

pub(super) async fn run(args: Args, connect: &ConnectArgs, output: &mut Output) -> Result<u8, Error> {
    let pattern = names::pattern(&args.pattern)?;
    let of_one_topic = [(args.from_offset.is_some(), "--from-offset"), (args.key.is_some(), "--key")];
    if let Some((_, flag)) = of_one_topic.into_iter().find(|(given, _)| *given && !pattern.is_literal()) {
        let what = format!("{flag} is of one topic, {:?} is a pattern", args.pattern);
        return Err(Error::argument(Code::PatternInvalid, what).then("Name one topic."));
    }
    let mut file = args.cursor_file.clone().map(CursorFile::open).transpose()?;
    let start = match (file.as_ref().and_then(CursorFile::cursor), args.from_offset) {
        (Some(cursor), _) => Start::Cursor(cursor.to_owned()),
        (None, Some(offset)) => Start::Offset(offset),
        (None, None) if args.latest => Start::KeyHead,
        (None, None) => args.since.map_or_else(|| args.from.clone(), Start::from),
    };
    let connection = connect.connect().await?;
    let mut read = Read { args: &args, connect, output, file: file.as_mut(), printed: 0, cursor: None, looked: false };
    let done = tokio::select! {
        done = read.all(&connection, start) => done,
        stop = stopped() => stop,
    };
    // Whatever ended the read: what was printed stays printed, and the file says so.
    let saved = read.save();
    let (printed, cursor) = (read.printed, read.cursor.take());
    connection.close().await;
    done.and(saved)?;
    if let (Some(cursor), None) = (cursor, &args.cursor_file) {
        output.remark(&format!("{printed} records · go on with --from {cursor}"))?;
    }
    Ok(exit::OK)
}

/// Ctrl-C or SIGTERM: the read ends where it is, with its cursor saved and its connection closed.
async fn stopped() -> Result<(), Error> {
    let mut term = signal(SignalKind::terminate()).map_err(|source| Error::io("listen for", "SIGTERM", source))?;
    tokio::select! {
        stop = tokio::signal::ctrl_c() => stop.map_err(|source| Error::io("listen for", "Ctrl-C", source)),
        _ = term.recv() => Ok(()),
    }
}

/// A read in progress.
struct Read<'a> {
    args: &'a Args,
    connect: &'a ConnectArgs,
    output: &'a mut Output,
    file: Option<&'a mut CursorFile>,
    printed: u64,
    /// Behind everything that was printed.
    cursor: Option<String>,
    /// It was found out whether there is a topic at all.
    looked: bool,
}

/// The cursor file is written at most this often while records come.
const SAVE_EVERY: Duration = Duration::from_millis(200);

impl Read<'_> {
    /// Reads to the end, or for ever. A bound counts printed records, the broker's counts scanned ones: when the chain
    /// dropped some, the read is opened again for what is missing.
    async fn all(&mut self, connection: &Connection, start: Start) -> Result<(), Error> {
        let mut start = start;
        loop {
            let options = ConsumerOptions {
                start,
                key: self.args.key.clone().map(Into::into),
                follow: self.args.follow,
                parameters: self.args.parameters.clone(),
                records_max: self.left().unwrap_or(0),
                ..ConsumerOptions::new(self.args.pattern.as_str())
            };
            let mut consumer = connection.consumer(options).map_err(|error| self.connect.failed(&error))?;
            self.one(&mut consumer, connection).await?;
            let more = self.left().is_some_and(|left| left > 0) && (self.args.follow || !consumer.at_end());
            match consumer.cursor() {
                Some(cursor) if more && self.cursor.as_deref() == Some(cursor) => {
                    start = Start::Cursor(cursor.to_owned())
                }
                _ => return Ok(()),
            }
        }
    }

    async fn one(&mut self, consumer: &mut Consumer, connection: &Connection) -> Result<(), Error> {
        let mut saved = Instant::now();
        while self.left() != Some(0) {
            let event = consumer.next_event().await.map_err(|error| self.failed(&error))?;
            let at_rest = match event {
                Some(Event::Batch(batch)) => {
                    self.print(&batch)?;
                    false
                }
                Some(Event::Progress) => {
                    self.cursor = consumer.cursor().map(str::to_owned);
                    if consumer.at_end() && self.printed == 0 {
                        self.look(connection).await?;
                    }
                    true
                }
                Some(Event::Gaps(gaps)) => {
                    for gap in &gaps {
                        self.tell(gap)?;
                    }
                    true
                }
                None => return Ok(()),
            };
            if self.args.follow {
                self.output.flush()?;
            }
            if at_rest || saved.elapsed() >= SAVE_EVERY {
                self.save()?;
                saved = Instant::now();
            }
        }
        Ok(())
    }

    /// Says that records which were not read yet are gone: people beside the records, machines among them.
    fn tell(&mut self, gap: &Gap) -> Result<(), Error> {
        let gap = rows::Gone { topic: &gap.topic, low_offset: gap.low_offset };
        if self.output.is_json() {
            return Ok(self.output.row(&gap)?);
        }
        Ok(self.output.remark(&gap)?)
    }

    /// Says once that no topic is there: a misspelt name looks like a quiet topic.
    async fn look(&mut self, connection: &Connection) -> Result<(), Error> {
        // Machines get no remarks, and what the broker itself writes is not in its list.
        if std::mem::replace(&mut self.looked, true) || self.output.is_json() || self.args.pattern.starts_with('$') {
            return Ok(());
        }
        // Who may not list simply reads on.
        let Ok(list) = connection.admin().topics(&self.args.pattern).await else { return Ok(()) };
        if list.topics.is_empty() && !list.truncated {
            let waits = if self.args.follow { " yet: waiting for one" } else { "" };
            let told =
                format!("no topic matches {:?}{waits} (tidegate topics lists those there are)", self.args.pattern);
            self.output.remark(&told)?;
        }
        Ok(())
    }

    /// A topic that is not there is mostly misspelt; else there is a command that makes it.
    fn failed(&self, error: &tidegate_client::Error) -> Error {
        let told = self.connect.failed(error);
        match error.code() {
            Some(Code::TopicUnknown) => told.then(format!(
                "Is it spelt right? `tidegate topics` lists those there are. The first record sent to it creates it (unless \
                 the broker runs with --no-create-topics), or: tidegate topics create {}",
                self.args.pattern
            )),
            _ => told,
        }
    }

    fn print(&mut self, batch: &FetchedBatch) -> Result<(), Error> {
        let take = self.left().map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let records = batch.records();
        let (count, last) = (records.len().min(take), records.len().checked_sub(1));
        for (index, record) in records.take(count).enumerate() {
            let row = rows::Read {
                topic: record.topic,
                offset: record.offset,
                key_version: record.key_version,
                record: RecordView {
                    key: record.key,
                    value: record.value,
                    headers: record.headers,
                    timestamp_ms: record.timestamp_ms,
                },
                broker_time_ms: record.broker_time_ms,
                generation: record.generation,
                cursor: (Some(index) == last).then(|| batch.cursor()),
            };
            self.output.row(&row)?;
            self.printed += 1;
        }
        // A batch cut short keeps the cursor before it: its rest comes again rather than never.
        if Some(count) == last.map(|last| last + 1) || last.is_none() {
            self.cursor = Some(batch.cursor().to_owned());
        }
        Ok(())
    }

    /// Records still to print, if there is a bound.
    fn left(&self) -> Option<u64> {
        // The head is one record, unless it is followed.
        let head = (self.args.latest && !self.args.follow).then_some(1);
        self.args.max.or(head).map(|max| max.saturating_sub(self.printed))
    }

    /// Puts the cursor into its file, behind what it covers.
    fn save(&mut self) -> Result<(), Error> {
        self.output.flush()?;
        match (&mut self.file, &self.cursor) {
            (Some(file), Some(cursor)) => file.save(cursor),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_an_object() {
        assert_eq!(parse_parameters(""), Ok(String::new()));
        assert_eq!(parse_parameters("{\"a\":1}"), Ok("{\"a\":1}".to_owned()));
        for wrong in ["[1]", "{", "a=b"] {
            assert!(parse_parameters(wrong).unwrap_err().contains("JSON"), "{wrong}");
        }
    }

    #[test]
    fn a_start_is_a_word_or_a_cursor() {
        let cursor = Cursor::Shard { shard: 0, next_lsn: 7 }.to_string();
        assert_eq!(parse_start("earliest"), Ok(Start::Earliest));
        assert_eq!(parse_start("latest"), Ok(Start::Latest));
        assert_eq!(parse_start(&cursor), Ok(Start::Cursor(cursor)));
        assert!(parse_start("newest").unwrap_err().starts_with("neither `earliest` nor `latest`"));
    }
}
