//! The real broker as a child: `tidegate serve` in a process of its own, whose CPU time is counted apart from the client's.
//!
//! So what is measured is what is shipped, and a benchmark links neither the broker nor wasmtime, which takes minutes.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use tidegate_client::{ConnectOptions, Connection, PluginInfo, Trust};

use crate::process::Process;

/// Where the repository lies.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The binary: `TIDEGATE_BIN`, or the one beside the benchmark, whose profile has the same settings.
///
/// # Errors
/// If it was not built.
pub fn binary() -> Result<PathBuf> {
    let path = match std::env::var_os("TIDEGATE_BIN") {
        Some(path) => PathBuf::from(path),
        None => {
            let this = std::env::current_exe()?;
            // TARGET/PROFILE/deps/NAME-…
            this.ancestors().nth(2).context("the profile's directory")?.join("tidegate")
        }
    };
    ensure!(path.is_file(), "{} is missing: run `cargo build --release -p tidegate` first", path.display());
    Ok(path)
}

/// A plugin or test guest that `cargo xtask guests` has built.
///
/// # Errors
/// If it was not built.
pub fn component(name: &str) -> Result<String> {
    let path = repository().join("target/plugins").join(format!("{name}.wasm"));
    let path = path.canonicalize().with_context(|| format!("{}: run `cargo xtask guests` first", path.display()))?;
    Ok(path.display().to_string())
}

/// A new directory on the disk that the repository lies on.
///
/// # Errors
/// If it cannot be made.
pub fn directory() -> Result<tempfile::TempDir> {
    let parent = repository().join("target/bench");
    fs::create_dir_all(&parent).with_context(|| parent.display().to_string())?;
    Ok(tempfile::tempdir_in(parent)?)
}

/// Starts `tidegate serve` on a data directory and waits until it is ready.
///
/// # Errors
/// If it does not get ready; then its log is told.
pub fn serve(data: &Path, plugins: &Path, arguments: &[&str]) -> Result<(Process, SocketAddr)> {
    let log = log_of(data);
    let mut command = Command::new(binary()?);
    command.args(["serve", "--output", "json", "--addr", "127.0.0.1:0", "--data-dir"]).arg(data);
    command.arg("--plugins").arg(plugins).args(arguments).stderr(File::create(&log)?);
    let said = || format!("the broker did not start: {}", fs::read_to_string(&log).unwrap_or_default());
    let (process, line) = Process::start(&mut command).with_context(said)?;
    let ready: serde_json::Value = serde_json::from_str(&line).with_context(said)?;
    let addr = ready["addr"].as_str().context("the ready line has no addr")?.parse()?;
    Ok((process, addr))
}

fn log_of(data: &Path) -> PathBuf {
    data.with_extension("log")
}

/// A broker on a directory of its own.
#[derive(Debug)]
pub struct Broker {
    /// Its process.
    pub process: Process,
    /// Where it takes QUIC connections.
    pub addr: SocketAddr,
    directory: tempfile::TempDir,
}

impl Broker {
    /// Starts one with this `plugins.toml` and further arguments of `tidegate serve`, and waits until it is ready.
    ///
    /// # Errors
    /// If it does not get ready.
    pub fn start(plugins: &str, arguments: &[&str]) -> Result<Self> {
        let directory = directory()?;
        let file = directory.path().join("plugins.toml");
        fs::write(&file, format!("version = 1\n{plugins}"))?;
        let arguments = [&["--http", "none"], arguments].concat();
        let (process, addr) = serve(&directory.path().join("data"), &file, &arguments)?;
        Ok(Self { process, addr, directory })
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A connection of its own, with the admin credential.
    ///
    /// # Errors
    /// If the broker does not let us in.
    pub async fn connect(&self) -> Result<Connection> {
        let token = fs::read_to_string(self.data().join("dev/admin-token"))?;
        let options = ConnectOptions::new(self.addr, Trust::Pinned(self.certificate()?));
        Ok(Connection::connect(options.admin_token(token.trim())).await?)
    }

    /// The certificate it shows.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn certificate(&self) -> Result<CertificateDer<'static>> {
        Ok(CertificateDer::from_pem_file(self.data().join("dev/cert.pem"))?)
    }

    /// What its log says beyond the ordinary.
    pub fn complaints(&self) -> Vec<String> {
        let log = fs::read_to_string(log_of(&self.data())).unwrap_or_default();
        log.lines().filter(|line| !line.contains(" INFO ")).map(str::to_owned).collect()
    }
}

/// The plugins of a broker and what they did so far.
///
/// # Errors
/// If the broker does not say.
pub async fn plugins(connection: &Connection) -> Result<Vec<PluginInfo>> {
    Ok(connection.admin().plugins().await?.plugins)
}
