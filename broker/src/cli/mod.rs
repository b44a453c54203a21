//! All commands of `tidegate`.
//!
//! Owns flags, what is printed, and the exit code. Must not know how anything is done: the client library talks to the
//! broker, `server` is the broker, `config` and `hooks` judge files offline. Called by `main` alone.
//!
//! Exit codes: see [`exit`].

mod backup;
mod check;
mod codes;
mod component;
mod connect;
mod consume;
mod error;
mod expect;
mod explain;
mod fsck;
mod inspect;
mod keys;
mod log;
mod names;
mod output;
mod plugins;
mod produce;
mod progress;
mod serve;
mod tools;
mod topics;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use connect::ConnectArgs;
use error::Error;
pub use explain::markdown as errors_markdown;
use output::{Format, Output};

use crate::hooks::{COMPILE_COMMAND, serve_compiler};

/// Exit codes of every command (the numbers of `sysexits.h` where it has one).
pub mod exit {
    /// Done.
    pub const OK: u8 = 0;
    /// The broker refused, or the answer is negative: a record was rejected or cannot be sent, a condition did not hold.
    pub const REFUSED: u8 = 1;
    /// The command line or a configuration file does not hold.
    pub const USAGE: u8 = 64;
    /// No broker there, or not the one whose certificate is pinned; `serve`: a port or directory is in use.
    pub const UNAVAILABLE: u8 = 69;
    /// A bug.
    pub const INTERNAL: u8 = 70;
    /// A file, the data directory, standard input or standard output failed.
    pub const IO: u8 = 74;
}

/// Stands at the end of every command's help.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 refused, or a negative answer; 64 wrong usage or configuration; \
                          69 no broker, or in use; 70 a bug; 74 a file failed. What an error code means: tidegate explain CODE";

/// Tidegate: an event broker whose gates are WebAssembly.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    max_term_width = 110,
    after_help = "Start here:\n  tidegate serve\n  tidegate produce github/raw < events.ndjson\n  \
                  tidegate consume 'github/*' --from earliest --follow"
)]
struct Cli {
    #[command(flatten)]
    connect: ConnectArgs,

    /// How results are printed: text for people, json for machines (one object per line).
    #[arg(long, global = true, display_order = 900, value_enum, value_name = "text|json", hide_possible_values = true,
          default_value_t = Format::Text, env = Format::VARIABLE)]
    output: Format,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a broker on a directory.
    Serve(serve::Args),
    /// Append lines of standard input or of a file to a topic, one record each.
    Produce(produce::Args),
    /// Read the records of a topic or of all topics that match a pattern.
    Consume(consume::Args),
    /// List topics; create or truncate one.
    Topics(topics::Args),
    /// List the keys of a topic.
    Keys(keys::Args),
    /// List plugins; swap, roll back, reload or explain them.
    Plugins(plugins::Args),
    /// Check a plugins.toml and every plugin it names, without a broker.
    Check(check::Args),
    /// Say whether a data directory is whole: every checksum and index, offline.
    Fsck(fsck::Args),
    /// Show what a segment, WAL file, manifest or checkpoint holds.
    Inspect(inspect::Args),
    /// Copy all that is durable into a directory, while the broker runs.
    Backup(backup::Args),
    /// Make a data directory of a backup.
    Restore(backup::RestoreArgs),
    /// Say what an error code means: cause, effect on the data, next step.
    Explain(explain::Args),
    /// Turn a core module into a component.
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// What a broker starts for each component that it compiles: component in, machine code out.
    #[command(hide = true, name = COMPILE_COMMAND, after_help = "Example:\n  tidegate compile-component < plugin.wasm > answer")]
    CompileComponent,
    /// Print the version.
    #[command(after_help = "Example:\n  tidegate version --output json")]
    Version,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// Turn a core module with an embedded component type into a component.
    Component(component::Args),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

/// Runs one command line; the first argument is the program's name.
fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    ExitCode::from(match parse(&arguments) {
        Ok(cli) => {
            let mut output = Output::stdio(cli.output);
            execute(cli, &mut output)
        }
        Err(error) => {
            let format = Format::asked(&arguments, std::env::var_os(Format::VARIABLE));
            told(&error, &mut Output::stdio(format))
        }
    })
}

fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&command().try_get_matches_from(arguments)?)
}

/// The whole command line, each command with the exit codes at the end of its help.
fn command() -> clap::Command {
    fn with_exit_codes(command: clap::Command) -> clap::Command {
        let help = command.get_after_help().map_or_else(String::new, |help| format!("{help}\n\n"));
        command.after_help(help + EXIT_CODES).mut_subcommands(with_exit_codes)
    }
    with_exit_codes(Cli::command())
}

/// Runs a command to its exit code; whatever went wrong is told.
fn execute(cli: Cli, output: &mut Output) -> u8 {
    let result = dispatch(cli, output).and_then(|code| output.flush().map(|()| code).map_err(Error::from));
    match result {
        Ok(code) => code,
        // The reader of our output has seen enough: `tidegate consume … | head`.
        Err(error) if error.is_broken_pipe() => exit::OK,
        Err(error) => {
            output.error(&error);
            error.exit_code()
        }
    }
}

fn dispatch(cli: Cli, output: &mut Output) -> Result<u8, Error> {
    let connect = cli.connect;
    match cli.command {
        Command::Serve(args) => serve::run(args, &connect, output),
        Command::Produce(args) => runtime()?.block_on(produce::run(args, &connect, output)),
        Command::Consume(args) => runtime()?.block_on(consume::run(args, &connect, output)),
        Command::Topics(args) => runtime()?.block_on(topics::run(args, &connect, output)),
        Command::Keys(args) => runtime()?.block_on(keys::run(args, &connect, output)),
        Command::Plugins(args) => runtime()?.block_on(plugins::run(args, &connect, output)),
        Command::Check(args) => check::run(&args, output),
        Command::Fsck(args) => fsck::run(&args, output),
        Command::Inspect(args) => inspect::run(&args, output),
        Command::Backup(args) => runtime()?.block_on(backup::run(args, &connect, output)),
        Command::Restore(args) => backup::restore(&args, output),
        Command::Explain(args) => explain::run(&args, output),
        Command::Plugin(PluginCommand::Component(args)) => component::run(&args, output),
        Command::CompileComponent => {
            let done = serve_compiler(std::io::stdin().lock(), std::io::stdout().lock());
            done.map(|()| exit::OK).map_err(|source| Error::io("serve", "a broker", source))
        }
        Command::Version => version(output),
    }
}

/// One thread and the I/O driver: enough for a client.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CLIENT_THREADS)
        .enable_all()
        .build()
        .map_err(|source| Error::io("start the runtime", "threads", source))
}

/// Threads of a client command: one encodes and prints while the other keeps the connection alive.
const CLIENT_THREADS: usize = 2;

fn version(output: &mut Output) -> Result<u8, Error> {
    #[derive(serde::Serialize)]
    struct Version {
        version: &'static str,
        protocol: u32,
    }
    impl std::fmt::Display for Version {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "tidegate {} (protocol {})", self.version, self.protocol)
        }
    }
    output.row(&Version { version: env!("CARGO_PKG_VERSION"), protocol: tidegate_protocol::wire::VERSION })?;
    Ok(exit::OK)
}

/// Prints help, version, or what is wrong with the arguments; help and version are no error.
fn told(error: &clap::Error, output: &mut Output) -> u8 {
    if error.use_stderr() && output.is_json() {
        let error = Error::usage(in_a_line(error));
        output.error(&error);
        return error.exit_code();
    }
    match error.print() {
        Ok(()) => usage_code(error),
        Err(source) if source.kind() == std::io::ErrorKind::BrokenPipe => exit::OK,
        Err(_) => exit::IO,
    }
}

/// What clap says, without the usage behind it.
fn in_a_line(error: &clap::Error) -> String {
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no command is given".to_owned();
    }
    let text = error.render().to_string();
    let told = text.split("\n\nUsage: ").next().unwrap_or_default();
    let told = told.split("\n\nFor more information").next().unwrap_or_default();
    let parts = told.trim_start_matches("error: ").split("\n\n");
    let words = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
    parts.map(words).collect::<Vec<_>>().join("; ")
}

fn usage_code(error: &clap::Error) -> u8 {
    if error.use_stderr() { exit::USAGE } else { exit::OK }
}

#[cfg(test)]
mod tests;
