//! `tidegate keys list`: the keys of a topic and where they stand.

use serde::Serialize;
use tidegate_client::Admin;
use tidegate_protocol::wire::KeyInfo;

use super::{ConnectArgs, Error, Output, exit, names, output::Bytes};

/// Arguments of `keys`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tidegate keys list orders/eu --prefix 47")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List keys in their order, each with the version and offset of its last record.
    #[command(
        after_help = "Examples:\n  tidegate keys list orders/eu --prefix 47\n  tidegate keys list orders/eu --output json"
    )]
    List {
        /// The topic.
        topic: String,
        /// Only keys that begin with this.
        #[arg(long, default_value = "", hide_default_value = true)]
        prefix: String,
        /// End after this many keys.
        #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u64).range(1..))]
        max: Option<u64>,
    },
}

pub(super) async fn run(args: Args, connect: &ConnectArgs, output: &mut Output) -> Result<u8, Error> {
    let Command::List { topic, prefix, max } = args.command;
    names::topic(&topic)?;
    let connection = connect.connect_as_admin().await?;
    let done = list(&topic, &prefix, max, &connection.admin(), connect, output).await;
    connection.close().await;
    done.map(|()| exit::OK)
}

async fn list(
    topic: &str,
    prefix: &str,
    max: Option<u64>,
    admin: &Admin,
    connect: &ConnectArgs,
    output: &mut Output,
) -> Result<(), Error> {
    let mut left = max.unwrap_or(u64::MAX);
    let mut after: Option<Vec<u8>> = None;
    loop {
        let asked = admin.keys(topic, prefix.as_bytes(), after.as_deref()).await;
        let page = asked.map_err(|error| connect.failed(&error))?;
        after = page.keys.last().map(|last| last.key.clone());
        let rows: Vec<Key> =
            page.keys.iter().take(usize::try_from(left).unwrap_or(usize::MAX)).map(Key::from).collect();
        left -= rows.len() as u64;
        let cells = |key: &Key| vec![key.text.clone(), key.version.to_string(), key.last_offset.to_string()];
        output.table(&["key", "version", "last offset"], &rows, cells)?;
        if left == 0 || !page.truncated {
            return Ok(());
        }
    }
}

#[derive(Debug, Serialize)]
struct Key {
    #[serde(skip)]
    text: String,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_encoding: Option<&'static str>,
    version: u64,
    last_offset: u64,
}

impl From<&KeyInfo> for Key {
    fn from(info: &KeyInfo) -> Self {
        let bytes = Bytes(&info.key);
        let (key, key_encoding) = bytes.encoded();
        Self { text: bytes.to_string(), key, key_encoding, version: info.version, last_offset: info.last_offset }
    }
}
