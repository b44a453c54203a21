//! `tidegate topics`: lists topics, creates one.

use std::fmt::{self, Display};

use serde::Serialize;
use tidegate_client::Admin;
use tidegate_protocol::wire::TopicInfo;

use super::{ConnectArgs, Error, Output, exit, names};

/// Arguments of `topics`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  tidegate topics\n  tidegate topics 'github/*' --output json\n  tidegate topics create orders/eu"
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
}

pub(super) async fn run(args: Args, connect: &ConnectArgs, output: &mut Output) -> Result<u8, Error> {
    match (&args.command, &args.pattern) {
        (Some(Command::Create { name }), _) => drop(names::own_topic(name)?),
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
    let pattern = args.pattern.as_deref().unwrap_or_default();
    let asked = if args.reserved { admin.topics_with_reserved(pattern).await } else { admin.topics(pattern).await };
    let list = asked.map_err(|error| connect.failed(&error))?;
    let topics: Vec<Topic> = list.topics.into_iter().map(Topic::from).collect();
    let cells = |topic: &Topic| vec![topic.topic.clone(), topic.next_offset.to_string(), topic.id.to_string()];
    output.table(&["topic", "next offset", "id"], &topics, cells)?;
    if list.truncated {
        output.remark(&"There are more: name a pattern, for example 'github/*'.")?;
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct Topic {
    topic: String,
    id: u64,
    next_offset: u64,
    created_ms: i64,
}

impl From<TopicInfo> for Topic {
    fn from(info: TopicInfo) -> Self {
        Self { topic: info.name, id: info.id, next_offset: info.next_offset, created_ms: info.created_ms }
    }
}

impl Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} created · id {} · next offset {}", self.topic, self.id, self.next_offset)
    }
}
