//! `tidegate plugins`: what runs, and changing it while traffic runs.

mod rows;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use tidegate_client::{Activated, Admin};
use tidegate_protocol::error::Code;

use super::{ConnectArgs, Error, Output, exit, names};

/// Arguments of `plugins`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  tidegate plugins\n  tidegate plugins swap mask ./mask.wasm\n  tidegate plugins rollback mask\n  \
                  tidegate plugins explain github/push\n  tidegate plugins reload"
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List plugins: what runs, where, at what cost.
    #[command(after_help = "Example:\n  tidegate plugins list --output json")]
    List,
    /// Replace a plugin's component. Checked before it is live; no client notices; lasts over restarts.
    #[command(after_help = "Example:\n  tidegate plugins swap mask ./mask.wasm --based-on 11")]
    Swap {
        /// Name in plugins.toml.
        name: String,
        /// The component, or a core module with an embedded component type.
        file: PathBuf,
        /// Only if this generation is still live. See `tidegate plugins`.
        #[arg(long, value_name = "GENERATION", default_value_t = 0, hide_default_value = true)]
        based_on: u64,
    },
    /// Go back to the version a plugin had before; again, to the one before that.
    #[command(after_help = "Example:\n  tidegate plugins rollback mask\n\n\
                            The way back is 8 versions long and has no way forth: what a rollback leaves is swapped in again from its file.")]
    Rollback {
        /// Name in plugins.toml.
        name: String,
        /// Only if this generation is still live. See `tidegate plugins`.
        #[arg(long, value_name = "GENERATION", default_value_t = 0, hide_default_value = true)]
        based_on: u64,
    },
    /// Read plugins.toml again and apply what changed in it, all or nothing.
    #[command(after_help = "Example:\n  tidegate check plugins.toml && tidegate plugins reload")]
    Reload {
        /// Only if this generation is still live. See `tidegate plugins`.
        #[arg(long, value_name = "GENERATION", default_value_t = 0, hide_default_value = true)]
        based_on: u64,
    },
    /// Show the effective chain of a topic: file and line, digest, budget, policy.
    #[command(after_help = "Example:\n  tidegate plugins explain github/push")]
    Explain {
        /// The topic.
        topic: String,
    },
}

pub(super) async fn run(args: Args, connect: &ConnectArgs, output: &mut Output) -> Result<u8, Error> {
    let command = args.command.unwrap_or(Command::List);
    // Read before anything is asked of the broker: a missing file is no reason to dial.
    let component = match &command {
        Command::Swap { file, .. } => read(file)?,
        Command::Explain { topic } => names::topic(topic).map(|_| Bytes::new())?,
        _ => Bytes::new(),
    };
    let connection = connect.connect_as_admin().await?;
    let done = answer(&command, component, &connection.admin(), output).await;
    connection.close().await;
    done.map_err(|error| error.explained(connect)).map(|()| exit::OK)
}

/// Why a request did not end well: told by the broker, or by our own output.
enum Failed {
    Client(tidegate_client::Error),
    Output(std::io::Error),
}

impl From<tidegate_client::Error> for Failed {
    fn from(error: tidegate_client::Error) -> Self {
        Self::Client(error)
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

impl Failed {
    fn explained(self, connect: &ConnectArgs) -> Error {
        match self {
            Self::Client(error) => connect.failed(&error),
            Self::Output(error) => error.into(),
        }
    }
}

async fn answer(command: &Command, component: Bytes, admin: &Admin, output: &mut Output) -> Result<(), Failed> {
    match command {
        Command::List => list(admin, output).await?,
        Command::Swap { name, based_on, .. } => {
            show(admin.swap(name, component, *based_on).await?, Some(name), output)?;
        }
        Command::Rollback { name, based_on } => {
            let back = admin.rollback(name, *based_on).await?;
            let (runs, left) = (rows::short(&back.digest), rows::short(&back.previous_digest));
            show(back, None, output)?;
            output.remark(&format!(
                "{name} runs {runs} again; {left} comes back with: tidegate plugins swap {name} FILE"
            ))?;
        }
        Command::Reload { based_on } => show(admin.reload(*based_on).await?, None, output)?,
        Command::Explain { topic } => output.row(&rows::Effective::new(topic, admin.explain(topic).await?))?,
    }
    Ok(())
}

async fn list(admin: &Admin, output: &mut Output) -> Result<(), Failed> {
    let answer = admin.plugins().await?;
    let generation = answer.generation;
    let plugins: Vec<_> = answer.plugins.into_iter().map(|info| rows::Plugin::new(info, generation)).collect();
    output.table(rows::HEAD, &plugins, rows::Plugin::cells)?;
    output.remark(&format!("generation {generation}"))?;
    Ok(())
}

fn show(activated: Activated, plugin: Option<&str>, output: &mut Output) -> std::io::Result<()> {
    output.row(&rows::Change::new(activated, plugin))
}

/// Bytes of a component that the broker takes.
const COMPONENT_BYTES_MAX: u64 = 64 << 20;

fn read(path: &Path) -> Result<Bytes, Error> {
    let fail = |source| Error::file("read", path, source);
    let bytes = std::fs::metadata(path).map_err(fail)?.len();
    if bytes > COMPONENT_BYTES_MAX {
        let what = format!("{} has {bytes} bytes, at most {COMPONENT_BYTES_MAX} are taken", path.display());
        return Err(Error::refused(Code::PluginInvalid, what));
    }
    std::fs::read(path).map(Bytes::from).map_err(fail)
}
