//! `cargo demo`: the main job on real events, in front of whoever runs it, with every claim checked.
//!
//! Starts the real broker on a temporary directory and talks to it as any client would. It knows no count of the input:
//! what must come out is what a second validator says, and what the acks said.

mod broker;
mod connect;
mod costs;
mod crash;
mod documents;
mod follow;
mod input;
mod ledger;
mod load;
mod masks;
mod plugins_file;
mod readback;
mod report;
mod swap;
mod verdicts;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use clap::Parser;
use tokio::time::Instant;

use broker::{Broker, Program};
use input::Event;
use plugins_file::PluginsFile;
use report::{Report, human};
use swap::{Clients, Swapped, Version};

/// Tidegate's main job on real events: produce, validate, consume, swap under load, survive a kill.
#[derive(Debug, Parser)]
#[command(
    name = "cargo demo --",
    after_help = "Examples:\n  cargo demo\n  cargo demo -- --all\n  \
                  cargo demo -- --events my.ndjson --asyncapi my-asyncapi.json --expect my-validity.tsv"
)]
struct Args {
    /// Events, one JSON object {"event": …, "payload": …} a line.
    #[arg(long, value_name = "FILE", default_value = "examples/github/events.ndjson")]
    events: PathBuf,
    /// The AsyncAPI document they are validated against; default: the one plugins.toml names.
    #[arg(long, value_name = "FILE")]
    asyncapi: Option<PathBuf>,
    /// What a second validator says: a table of line, event, valid, with tabs between.
    #[arg(long, value_name = "FILE", default_value = "examples/github/validity.tsv")]
    expect: PathBuf,
    /// The configuration the broker runs with.
    #[arg(long, value_name = "FILE", default_value = "plugins.toml")]
    plugins: PathBuf,
    /// An empty directory for the broker's data, kept afterwards. Default: a temporary one.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The broker's binary. Default: the one beside this program.
    #[arg(long, value_name = "FILE")]
    tidegate: Option<PathBuf>,
    /// The plugin that is swapped under load.
    #[arg(long, value_name = "NAME", default_value = "stamp")]
    swap: String,
    /// The component it is swapped for.
    #[arg(long, value_name = "FILE", default_value = "target/plugins/stamp-v2.wasm")]
    swap_for: PathBuf,
    /// The header in which the two versions differ.
    #[arg(long, value_name = "NAME", default_value = "stamp")]
    swap_header: String,
    /// Show every rejection.
    #[arg(long)]
    all: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut report = Report::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = runtime.context("runtime").and_then(|runtime| runtime.block_on(run(&args, &mut report)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report.failed(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args, report: &mut Report) -> Result<()> {
    let events = input::load(&args.events, &args.expect)?;
    swap::must_exist(&args.swap_for)?;
    let folder = tempfile::tempdir().context("temporary directory")?;
    let plugins = match &args.asyncapi {
        None => PluginsFile::open(&args.plugins)?,
        Some(asyncapi) => PluginsFile::with_asyncapi(&args.plugins, asyncapi, folder.path())?,
    };
    let program = program(args, &plugins, folder.path())?;
    let result = steps(args, &events, &plugins, &program, report).await;
    if result.is_err() {
        report.progress_done();
        report.fact(program.complaints());
    }
    result
}

async fn steps(
    args: &Args,
    events: &[Event],
    plugins: &PluginsFile,
    program: &Program,
    report: &mut Report,
) -> Result<()> {
    let start = Instant::now();
    let broker = program.start("127.0.0.1:0").await?;
    report.fact(format_args!(
        "broker {} · health {} · {} · generation {} · ready after {}",
        broker.addr,
        broker.http,
        plugins.path.display(),
        broker.generation,
        human(start.elapsed())
    ));
    let connection = connect::connect(&broker.addr, &program.data_dir, "demo").await?;
    let accepted = verdicts::produce(events, &connection, args.all, report).await?;
    let cursor = readback::consume(&accepted, &plugins.masked, &connection, report).await?;
    connection.close().await;

    let values: Vec<Bytes> = accepted.iter().map(|at| at.event.value.clone()).collect();
    anyhow::ensure!(!values.is_empty(), "no event was accepted: there is nothing to produce at full speed");
    let version = Version { plugin: args.swap.clone(), file: args.swap_for.clone(), header: args.swap_header.clone() };
    let mut swapped = under_load(&version, &values, &cursor, program, &broker, report).await?;
    let broker = crash::run(program, broker, &values, &swapped, &version, report).await?;
    broker.drain().await?;
    report.held("on SIGTERM the broker drained and ended with 0");
    costs::print(&mut swapped.acks, &swapped.plugins, report)?;
    report.section(&format!("{} checks held in {}", report.checks(), human(start.elapsed())));
    Ok(())
}

fn program(args: &Args, plugins: &PluginsFile, folder: &Path) -> Result<Program> {
    let data_dir = match &args.data_dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
            let empty =
                std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?.next().is_none();
            anyhow::ensure!(empty, "{} is not empty: the demo counts every record in it", dir.display());
            dir.clone()
        }
        None => folder.join("data"),
    };
    let binary = args.tidegate.clone().map_or_else(broker::beside_us, Ok)?;
    Ok(Program { binary, data_dir, plugins: plugins.path.clone(), log: folder.join("broker.log") })
}

async fn under_load(
    version: &Version,
    values: &[Bytes],
    cursor: &str,
    program: &Program,
    broker: &Broker,
    report: &mut Report,
) -> Result<Swapped> {
    let clients = Clients {
        producer: connect::connect(&broker.addr, &program.data_dir, "demo-producer").await?,
        follower: connect::connect(&broker.addr, &program.data_dir, "demo-follower").await?,
        admin: connect::connect_as_admin(&broker.addr, &program.data_dir).await?,
    };
    let swapped = swap::run(version, values, cursor, &clients, report).await?;
    clients.producer.close().await;
    clients.follower.close().await;
    clients.admin.close().await;
    Ok(swapped)
}
