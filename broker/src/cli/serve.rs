//! `tidegate serve`: a broker in this process, from flags to drain.

use std::{
    fmt::{self, Display},
    net::{SocketAddr, ToSocketAddrs as _},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    ConnectArgs, Error, Output, connect, exit,
    log::{self, LogFormat},
};
use crate::{
    config::{
        ConfigError, ConfigFault,
        plugins::TENANT_DEFAULT,
        serve::{self, ServeConfig},
        units,
    },
    server::{Running, Server, StartError, StartKind},
    storage,
};

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate serve\n  tidegate serve --listen 127.0.0.1:5544 --data-dir /var/lib/tidegate --plugins plugins.toml\n  \
                  tidegate serve --listen 0.0.0.0:4433 --auth auth.toml --tls-cert broker.pem --tls-key broker.key\n\n\
                  SIGTERM or Ctrl-C drains: no new work, what is in flight is finished and acked, then the process ends with 0."
)]
pub(super) struct Args {
    /// Address for clients (UDP); port 0 takes a free one. Default: --addr.
    #[arg(long, value_name = "HOST:PORT", value_parser = connect::address)]
    listen: Option<String>,

    /// Address for /health, /ready and /metrics (TCP), or `none`.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9464", env = "TIDEGATE_HTTP",
          value_parser = http_address)]
    http: String,

    /// Plugins and chains. Default: ./plugins.toml, if it is there.
    #[arg(long, value_name = "FILE", env = "TIDEGATE_PLUGINS")]
    plugins: Option<PathBuf>,

    /// Who may connect: [[principal]] entries with tenant, credential and rights. Without it only this machine may.
    #[arg(long, value_name = "FILE")]
    auth: Option<PathBuf>,

    /// Certificate chain (PEM). Default: one made on the first start, which clients pin.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Topics must be created by command; otherwise the first batch that names one creates it.
    #[arg(long)]
    no_create_topics: bool,

    /// Keep the log in memory only. Everything is lost at the end: for tests and measurements.
    #[arg(long)]
    memory: bool,

    /// Length of a file of the write-ahead log, 64KiB to 1GiB. A batch must fit into one.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = wal_file_size)]
    wal_file_size: u64,

    /// Newest records kept in memory, so that readers that are caught up need no disk.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::bytes)]
    tail_size: u64,

    /// How often is looked at what topics need not keep (`retention` in plugins.toml).
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    retention_every: Duration,

    /// What is logged to standard error: a level (error, warn, info, debug, trace) or TARGET=LEVEL, with commas between.
    #[arg(long, value_name = "FILTER", default_value = "info", env = "TIDEGATE_LOG")]
    log: String,

    /// Log lines for people or as JSON.
    #[arg(long, value_enum, value_name = "text|json", hide_possible_values = true, default_value_t = LogFormat::Text,
          env = "TIDEGATE_LOG_FORMAT")]
    log_format: LogFormat,
}

pub(super) fn run(args: Args, connect: &ConnectArgs, output: &mut Output) -> Result<u8, Error> {
    log::start(&args.log, args.log_format)?;
    let flags = flags(args, connect)?;
    let mut config = serve::prepare(&flags).map_err(not_prepared)?;
    config.compiler = Some(THIS_PROGRAM.into());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::io("start", "the runtime's threads", source))?;
    runtime.block_on(async {
        // Before the broker is ready, so that a signal in its first moment drains as well.
        let mut term = signal(SignalKind::terminate()).map_err(|source| Error::io("listen for", "SIGTERM", source))?;
        let mut int = signal(SignalKind::interrupt()).map_err(|source| Error::io("listen for", "SIGINT", source))?;
        let running = Server::start(config).await.map_err(start_failed)?;
        output.row(&Ready::new(&flags, &running))?;
        output.flush()?;
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        running.shutdown().await;
        Ok(exit::OK)
    })
}

fn not_prepared(error: ConfigError) -> Error {
    match error.fault {
        ConfigFault::File => Error::config(error.short()),
        ConfigFault::Flags => Error::usage(error.reason).said(),
        ConfigFault::DataDir => Error::broken_file(error.short()),
    }
}

fn start_failed(error: StartError) -> Error {
    let told = error.to_string();
    match error.kind() {
        StartKind::Config => Error::config(told),
        StartKind::Unavailable => Error::in_use(told).said(),
        StartKind::Io => Error::broken_file(told),
        StartKind::Internal => Error::internal(told),
    }
}

fn flags(args: Args, connect: &ConnectArgs) -> Result<ServeConfig, Error> {
    let plugins = args.plugins.or_else(|| Some(PathBuf::from(PLUGINS)).filter(|path| path.exists()));
    Ok(ServeConfig {
        data_dir: connect.data_dir.clone(),
        listen: address("--listen", args.listen.as_ref().unwrap_or(&connect.addr))?,
        http: (args.http != NONE).then(|| address("--http", &args.http)).transpose()?,
        plugins,
        auth: args.auth,
        certificate: args.tls_cert.zip(args.tls_key),
        create_topics: !args.no_create_topics,
        memory: args.memory,
        wal_file_bytes: args.wal_file_size,
        retention_every: args.retention_every,
        tail_bytes: args.tail_size,
        ..ServeConfig::default()
    })
}

/// The file that runs, even if another has taken its place since.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// The file used when none is named.
const PLUGINS: &str = "plugins.toml";
/// Turns the HTTP side off.
const NONE: &str = "none";

fn wal_file_size(text: &str) -> Result<u64, String> {
    let bytes = units::bytes(text)?;
    storage::check_wal_file_bytes(bytes).map_err(|rule| format!("{rule}, for example 64MiB")).map(|()| bytes)
}

fn http_address(text: &str) -> Result<String, String> {
    if text == NONE {
        Ok(text.to_owned())
    } else {
        connect::address(text).map_err(|error| format!("{error}, or `none`"))
    }
}

/// The address of a name; a broker listens at one.
fn address(flag: &str, text: &str) -> Result<SocketAddr, Error> {
    let wrong = |why: String| Error::usage(format!("{flag} {text}: {why}; give an address of this machine"));
    let mut found = text.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    found.next().ok_or_else(|| wrong("the name has no address".to_owned()))
}

/// The line that says: ready. Scripts wait for it.
#[derive(Debug, Serialize)]
struct Ready {
    ready: bool,
    addr: String,
    http: Option<String>,
    data_dir: String,
    plugins_file: Option<String>,
    generation: u64,
    plugins: Vec<String>,
    pid: u32,
}

impl Ready {
    fn new(flags: &ServeConfig, running: &Running) -> Self {
        let show = |path: &Path| path.display().to_string();
        let live = running.plugins(TENANT_DEFAULT).unwrap_or_default();
        Self {
            ready: true,
            addr: running.quic_addr.to_string(),
            http: running.http_addr.map(|addr| addr.to_string()),
            data_dir: show(&flags.data_dir),
            plugins_file: flags.plugins.as_deref().map(show),
            generation: live.generation,
            plugins: live.plugins.into_iter().map(|plugin| plugin.name).collect(),
            pid: std::process::id(),
        }
    }
}

impl Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ready · {} · http {}", self.addr, self.http.as_deref().unwrap_or(NONE))?;
        write!(f, " · data {} · generation {}", self.data_dir, self.generation)?;
        match self.plugins.as_slice() {
            [] => f.write_str(" · no plugins"),
            plugins => write!(f, " · plugins {}", plugins.join(", ")),
        }
    }
}
