//! `tidegate produce`: lines to records, with one answer for each.

mod lines;
mod recipe;
mod rows;
mod teller;

use std::{collections::VecDeque, path::PathBuf, time::Duration};

use bytes::Bytes;
use tidegate_client::{BatchBody, BatchBuilder, Condition, Connection, Delivery, Outcome, Producer, ProducerConfig};
use tidegate_protocol::{batch::BodyError, error::Code, limits::Limits, wire};

use super::{
    ConnectArgs, Error, Output,
    codes::{Kind, Own},
    exit,
    expect::Expect,
    names,
};
use lines::{Line, Pieces};
use recipe::Recipe;
use rows::Tally;
use teller::Teller;

/// Arguments of `produce`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tidegate produce github/raw < events.ndjson\n  \
                  tidegate produce orders/eu --file orders.ndjson --key-pointer /id --header source=import\n  \
                  echo '{\"state\":\"paid\"}' | tidegate produce orders/eu --key 4711 --expect 4711@7\n  \
                  tidegate produce orders/eu --key 4711 --null-value")]
pub(super) struct Args {
    /// The topic. Plugins may route records elsewhere.
    topic: String,

    /// Read lines from this file, not from standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Key of every record.
    #[arg(long, value_name = "KEY", group = "keys")]
    key: Option<String>,

    /// Take each record's key from its JSON value: a pointer (RFC 6901) to a string, number or boolean.
    #[arg(long, value_name = "POINTER", group = "keys")]
    key_pointer: Option<String>,

    /// Send tombstones: records with a null value, which delete what their key stands for. With --key one record, and
    /// nothing is read; with --key-pointer one for each line, of which only the key is sent.
    #[arg(long, requires = "keys")]
    null_value: bool,

    /// A header for every record; may repeat.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = recipe::parse_header)]
    headers: Vec<(String, Bytes)>,

    /// Append only if KEY of this topic is at VERSION (0: does not exist); may repeat. All lines become one batch.
    #[arg(long, value_name = "KEY@VERSION")]
    expect: Vec<Expect>,

    /// Most records of one batch.
    #[arg(long, value_name = "RECORDS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch_records: u32,

    /// Longest wait for more records before a batch goes out, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    linger: u64,

    /// Print nothing but errors.
    #[arg(long, short)]
    quiet: bool,
}

pub(super) async fn run(args: Args, connect: &ConnectArgs, output: &mut Output) -> Result<u8, Error> {
    names::own_topic(&args.topic)?;
    check_headers(&args.headers)?;
    let recipe = Recipe::new(&args)?;
    let lines = match (&args.key, &args.file) {
        (Some(_), None) if args.null_value => lines::one_empty(),
        (Some(_), Some(_)) if args.null_value => {
            let what = "--null-value with --key is one record: there is nothing to read from --file";
            return Err(
                Error::usage(what).then("Leave --file out, or take the keys from its lines with --key-pointer.")
            );
        }
        _ => lines::read(args.file.as_deref())?,
    };
    let connection = connect.connect().await?;
    let done = send_all(&args, recipe, lines, &connection, connect, output).await;
    // However it ended: the broker need not wait until the connection times out.
    connection.close().await;
    let tally = done?;
    Ok(if tally.rejected + tally.diverted == 0 { exit::OK } else { exit::REFUSED })
}

async fn send_all(
    args: &Args,
    recipe: Recipe,
    lines: Pieces,
    connection: &Connection,
    connect: &ConnectArgs,
    output: &mut Output,
) -> Result<Tally, Error> {
    let config = ProducerConfig {
        linger: Duration::from_millis(args.linger),
        batch_records_max: args.batch_records,
        ..ProducerConfig::default()
    };
    let producer = connection.producer(config).await.map_err(|error| connect.failed(&error))?;
    let mut job = Job { topic: &args.topic, recipe, producer: &producer, connect, teller: Teller::new(args, output) };
    let (done, before) = if args.expect.is_empty() {
        (job.stream(lines).await, "The lines before it were sent; it and those behind it were not.")
    } else {
        let limits = connection.limits().await.map_err(|error| connect.failed(&error))?;
        (job.at_once(lines, &args.expect, &limits).await, "Nothing was sent: with --expect all lines are one batch.")
    };
    let done = done.map_err(|error| if error.bad_line().is_some() { error.then(before) } else { error });
    if let Some(bad) = done.as_ref().err().and_then(Error::bad_line) {
        job.teller.unsent(bad)?;
    }
    let tally = job.teller.finish(done.is_ok())?;
    done?;
    producer.close().await.map_err(|error| connect.failed(&error))?;
    Ok(tally)
}

/// What one run of the command works with.
struct Job<'a> {
    topic: &'a str,
    recipe: Recipe,
    producer: &'a Producer,
    connect: &'a ConnectArgs,
    teller: Teller<'a>,
}

/// A record whose answer is awaited.
struct Waiting {
    line: u64,
    key: Option<Bytes>,
    answer: <Delivery as IntoFuture>::IntoFuture,
}

/// Records without an answer; behind them reading waits. The producer bounds bytes, this bounds what is kept of each.
const WAITING_MAX: usize = 20_000;
/// Answers are told at the latest so long after they came.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);

impl Job<'_> {
    /// Sends lines as they come, and tells answers in the order of the lines.
    async fn stream(&mut self, mut lines: Pieces) -> Result<(), Error> {
        let mut waiting: VecDeque<Waiting> = VecDeque::new();
        // The input ended, well or not; answers to what was sent are told first.
        let mut ended: Option<Result<(), Error>> = None;
        let mut flush = tokio::time::interval(FLUSH_INTERVAL);
        flush.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let open = ended.is_none();
            tokio::select! {
                // Answers first: they make room.
                biased;
                Some(told) = first_answer(&mut waiting) => {
                    let (line, key, outcome) = told.map_err(|error| self.connect.failed(&error))?;
                    self.teller.tell(line, key.as_deref(), &outcome)?;
                }
                // A feed that pauses still sees what became of its last lines.
                _ = flush.tick(), if open || !waiting.is_empty() => self.teller.flush()?,
                piece = lines.recv(), if open && waiting.len() < WAITING_MAX => match piece {
                    Some(Ok(piece)) => ended = self.send(piece, &mut waiting).await.err().map(Err),
                    Some(Err(error)) => ended = Some(Err(error)),
                    None => ended = Some(Ok(())),
                },
                else => return ended.unwrap_or(Ok(())),
            }
        }
    }

    async fn send(&self, piece: Vec<Line>, waiting: &mut VecDeque<Waiting>) -> Result<(), Error> {
        for line in piece {
            let record = self.recipe.record(&line)?;
            let key = record.key.clone();
            let delivery = self.producer.send(self.topic, record).await.map_err(|error| match error {
                tidegate_client::Error::Invalid(body) => too_large(line.number, &body),
                other => self.connect.failed(&other),
            })?;
            waiting.push_back(Waiting { line: line.number, key, answer: delivery.into_future() });
        }
        Ok(())
    }

    /// Sends all lines as one batch, which is appended whole or not at all.
    async fn at_once(&mut self, mut lines: Pieces, expect: &[Expect], limits: &Limits) -> Result<(), Error> {
        let mut builder = BatchBuilder::new();
        let mut sent: Vec<(u64, Option<Bytes>)> = Vec::new();
        while let Some(piece) = lines.recv().await {
            for line in piece? {
                let record = self.recipe.record(&line)?;
                builder.check(self.topic, &record, limits).map_err(|error| too_large(line.number, &error))?;
                let pushed = builder.push_record(self.topic, &record);
                pushed.map_err(|error| Error::line(line.number, Kind::Own(Own::NotSent), error.to_string()))?;
                sent.push((line.number, record.key));
            }
        }
        if sent.is_empty() {
            let what = "there is no line: nothing to append, nothing to check";
            return Err(Error::usage(what).then("Give --expect with at least one line, or with --null-value."));
        }
        let body = BatchBody::parse(builder.finish(), limits)
            .map_err(|error| Error::refused(error.code(), format!("not sent: {error}")))?;
        let conditions = expect.iter().map(|expect| condition(self.topic, expect)).collect();
        match self.producer.send_batch(body, conditions).await {
            Ok(ack) => {
                let told = sent.iter().zip(ack.outcomes());
                told.into_iter()
                    .try_for_each(|((line, key), outcome)| self.teller.tell(*line, key.as_deref(), &outcome))
            }
            Err(error) => {
                for (at, rejection) in error.failure().map(|failure| failure.rejected.as_slice()).unwrap_or_default() {
                    let line = usize::try_from(*at).ok().and_then(|at| sent.get(at)).map_or(0, |(line, _)| *line);
                    self.teller.refused(line, rejection)?;
                }
                Err(self.connect.failed(&error))
            }
        }
    }
}

type Told = Result<(u64, Option<Bytes>, Outcome), tidegate_client::Error>;

/// The answer to the oldest record; `None` if none is awaited. Cancel-safe.
async fn first_answer(waiting: &mut VecDeque<Waiting>) -> Option<Told> {
    let answer = (&mut waiting.front_mut()?.answer).await;
    let first = waiting.pop_front()?;
    Some(answer.map(|outcome| (first.line, first.key, outcome)))
}

fn condition(topic: &str, expect: &Expect) -> Condition {
    Condition {
        topic: topic.to_owned(),
        key: expect.key.clone().into_bytes(),
        expect: Some(wire::Expect::Version(expect.version)),
    }
}

/// A line whose record is over a limit.
fn too_large(line: u64, error: &BodyError) -> Error {
    Error::line(line, Kind::Wire(error.code()), error.to_string())
}

/// Header names that the broker keeps for itself are refused before anything is read.
fn check_headers(headers: &[(String, Bytes)]) -> Result<(), Error> {
    match headers.iter().find(|(name, _)| name.starts_with("tidegate-")) {
        Some((name, _)) => Err(Error::argument(Code::HeaderReserved, format!("--header {name}: the name is reserved"))),
        None => Ok(()),
    }
}
