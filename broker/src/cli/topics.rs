//! `tidegate topics`: lists topics, creates one, removes the oldest records of one.

use std::fmt::{self, Display};

use serde::Serialize;
use tidegate_client::Admin;
use tidegate_protocol::wire::{TopicInfo, TopicTruncated};

use super::{ConnectArgs, Error, Output, exit, names};

/// Arguments of `topics`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  tidegate topics\n  tidegate topics 'github/*' --output json\n  tidegate topics create orders/eu\n  \
                  tidegate topics truncate orders/eu --before 902"
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Only topics that match, for example 'github/*' (quote it for the shell).
    #[arg(value_name = "PATTERN")]
    pattern: Option<String>,
    /// Also the broker's own topics (`$sys/…`). Needs the admin token.
    #[arg(long)]
    reserved: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create a topic; needed only where topics are not created on first use.
    #[command(after_help = "Example:\n  tidegate topics create orders/eu/created")]
    Create {
        /// Its name: levels split by `/`.
        name: String,
    },
    /// Remove the oldest records of a topic, for good. Needs the admin token.
    #[command(
        after_help = "Readers do not get them any more when the command has ended; storage is freed later. Offsets and \
                            key versions of what stays do not change.\n\nExample:\n  tidegate topics truncate orders/eu --before 902"
    )]
    Truncate {
        /// The topic.
        topic: String,
        /// Records before this offset go; at most the topic's next offset, which removes all.
        #[arg(long, value_name = "OFFSET")]
        before: u64,
    },
}

pub(super) async fn run(args: Args, connect: &ConnectArgs, output: &mut Output) -> Result<u8, Error> {
    match (&args.command, &args.pattern) {
        (Some(Command::Create { name } | Command::Truncate { topic: name, .. }), _) => drop(names::own_topic(name)?),
        (None, Some(pattern)) => drop(names::pattern(pattern)?),
        (None, None) => {}
    }
    let connection = connect.connect_as_admin().await?;
    let done = answer(&args, &connection.admin(), connect, output).await;
    connection.close().await;
    done.map(|()| exit::OK)
}

async fn answer(args: &Args, admin: &Admin, connect: &ConnectArgs, output: &mut Output) -> Result<(), Error> {
    if let Some(Command::Create { name }) = &args.command {
        let made = admin.create_topic(name).await.map_err(|error| connect.failed(&error))?;
        return Ok(output.row(&Topic::from(made))?);
    }
    if let Some(Command::Truncate { topic, before }) = &args.command {
        let done = admin.truncate_topic(topic, *before).await.map_err(|error| connect.failed(&error))?;
        return Ok(output.row(&Truncated::from(done))?);
    }
    let pattern = args.pattern.as_deref().unwrap_or_default();
    let asked = if args.reserved { admin.topics_with_reserved(pattern).await } else { admin.topics(pattern).await };
    let list = asked.map_err(|error| connect.failed(&error))?;
    let topics: Vec<Topic> = list.topics.into_iter().map(Topic::from).collect();
    let cells = |topic: &Topic| {
        let numbers = [topic.low_offset, topic.next_offset, topic.id].map(|number| number.to_string());
        std::iter::once(topic.topic.clone()).chain(numbers).collect()
    };
    output.table(&["topic", "first offset", "next offset", "id"], &topics, cells)?;
    if list.truncated {
        output.remark(&"There are more: name a pattern, for example 'github/*'.")?;
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct Topic {
    topic: String,
    id: u64,
    low_offset: u64,
    next_offset: u64,
    created_ms: i64,
}

impl From<TopicInfo> for Topic {
    fn from(info: TopicInfo) -> Self {
        let TopicInfo { name: topic, id, next_offset, created_ms, low_offset } = info;
        Self { topic, id, low_offset, next_offset, created_ms }
    }
}

impl Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} created · id {} · next offset {}", self.topic, self.id, self.next_offset)
    }
}

#[derive(Debug, Serialize)]
struct Truncated {
    topic: String,
    low_offset: u64,
    low_offset_before: u64,
    next_offset: u64,
}

impl From<TopicTruncated> for Truncated {
    fn from(done: TopicTruncated) -> Self {
        let TopicInfo { name: topic, low_offset, next_offset, .. } = done.topic.unwrap_or_default();
        Self { topic, low_offset, low_offset_before: done.low_offset_before, next_offset }
    }
}

impl Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, low_offset, low_offset_before, next_offset } = self;
        match low_offset.saturating_sub(*low_offset_before) {
            0 => write!(f, "{topic} unchanged · first offset {low_offset} · next offset {next_offset}"),
            gone => write!(
                f,
                "{topic} truncated · {gone} offsets gone · first offset {low_offset} · next offset {next_offset}"
            ),
        }
    }
}
