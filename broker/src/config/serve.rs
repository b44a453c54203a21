//! What `tidegate serve` is told, and how that becomes the configuration of a server: files read, credentials made,
//! everything checked before a port opens.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tidegate_protocol::limits::Limits;

use super::{
    ConfigError, ConfigFault, DevFiles, auth_file,
    dev::{self, Certificate},
    plugins::PluginsFile,
};
use crate::{
    auth,
    clock::{SharedClock, SharedRandom, SystemClock, SystemRandom},
    server,
};

/// Flags of `tidegate serve`, as plain data.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The data directory; made if it is not there.
    pub data_dir: PathBuf,
    /// Address for clients (UDP).
    pub listen: SocketAddr,
    /// Address for `/health`, `/ready` and `/metrics` (TCP); `None` = not served.
    pub http: Option<SocketAddr>,
    /// `plugins.toml`; `None` = no plugins but those an earlier run activated.
    pub plugins: Option<PathBuf>,
    /// The auth file; `None` = this machine only.
    pub auth: Option<PathBuf>,
    /// Certificate chain and key, PEM; `None` = the dev certificate, made on the first start.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Topics come into being when a batch names them.
    pub create_topics: bool,
    /// Keeps the log in memory only: for tests and measurements. Everything is lost at the end.
    pub memory: bool,
    /// Length of a WAL file: 64 KiB to 1 GiB, a multiple of 4 KiB. A batch must fit into one. Default 64 MiB.
    pub wal_file_bytes: u64,
    /// How often is looked at what need not be kept. Default 10 s.
    pub retention_every: Duration,
    /// Bytes of the newest records kept in memory, for readers that are caught up. Default 64 MiB.
    pub tail_bytes: u64,
    /// What clients may send.
    pub limits: Limits,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("tidegate-data"),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 4433)),
            http: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9464))),
            plugins: None,
            auth: None,
            certificate: None,
            create_topics: true,
            memory: false,
            wal_file_bytes: 64 << 20,
            retention_every: Duration::from_secs(10),
            tail_bytes: 64 << 20,
            limits: Limits::default(),
        }
    }
}

/// Reads every file, makes the dev credentials on the first start, and gives the configuration of the server.
///
/// `plugins.toml` is not read here: what a broken one means depends on what ran before, which only the log knows.
///
/// # Errors
/// If a file does not hold, or the address needs an auth file.
pub fn prepare(config: &ServeConfig) -> Result<server::Config, ConfigError> {
    prepare_with(config, Arc::new(SystemClock::default()), Arc::new(SystemRandom::default()))
}

/// The same with a clock and a source of randomness given.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_with(
    config: &ServeConfig,
    clock: SharedClock,
    random: SharedRandom,
) -> Result<server::Config, ConfigError> {
    let principals = config.auth.as_deref().map(auth_file::load).transpose()?;
    if principals.is_none() {
        let reachable = |address: &SocketAddr| !address.ip().is_loopback();
        if reachable(&config.listen) {
            return Err(needs_auth("listen", config.listen));
        }
        if let Some(http) = config.http.filter(reachable) {
            return Err(needs_auth("http", http));
        }
    }
    if let Some(path) = config.plugins.as_ref().filter(|path| !path.exists()) {
        return Err(ConfigError::of_file(path, "does not exist".to_owned()));
    }
    let files = DevFiles::below(&config.data_dir);
    let admin_token = dev::admin_token(&files, &random)?;
    let reset_key = server::ResetKey(dev::reset_key(&files, &random)?);
    let Certificate { chain, key } = match &config.certificate {
        Some((cert, key)) => dev::read_certificate(cert, key)?,
        None => dev::certificate(&files)?,
    };
    let source = config.plugins.clone().map(|path| Arc::new(PluginsFile { path }) as _);
    Ok(server::Config {
        data_dir: config.data_dir.clone(),
        memory: config.memory,
        wal_file_bytes: config.wal_file_bytes,
        retention_every: config.retention_every,
        tail_bytes: usize::try_from(config.tail_bytes).unwrap_or(usize::MAX),
        listen: config.listen,
        http: config.http,
        certificate: server::Certificate { chain, key },
        reset_key,
        auth: auth::Config { principals, admin_token: auth::hash(admin_token.as_bytes()) },
        admin_token,
        plugins: source,
        compiler: None,
        create_topics: config.create_topics,
        limits: config.limits,
        bounds: server::Bounds::default(),
        clock,
        random,
    })
}

fn needs_auth(flag: &str, address: SocketAddr) -> ConfigError {
    let reason = format!(
        "--{flag} {address} is reachable from other machines, and no auth file says who may connect: \
         add --auth auth.toml, or --{flag} 127.0.0.1:{}",
        address.port()
    );
    ConfigError {
        file: "tidegate serve".to_owned(),
        line: None,
        key: flag.to_owned(),
        value: address.to_string(),
        reason,
        suggestion: None,
        keeps_running: false,
        fault: ConfigFault::Flags,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_address_needs_an_auth_file() {
        let dir = tempfile::tempdir().expect("dir");
        let config = ServeConfig {
            data_dir: dir.path().join("data"),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 4433)),
            ..ServeConfig::default()
        };
        let error = prepare(&config).expect_err("refused").to_string();
        assert_eq!(
            error,
            "tidegate serve: --listen 0.0.0.0:4433 is reachable from other machines, and no auth file says who may \
             connect: add --auth auth.toml, or --listen 127.0.0.1:4433."
        );
        assert!(!dir.path().join("data").exists(), "nothing was made for a configuration that does not hold");
    }

    #[test]
    fn an_open_http_address_needs_an_auth_file_too() {
        let http = Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 9464)));
        let error = prepare(&ServeConfig { http, ..ServeConfig::default() }).expect_err("refused").to_string();
        assert!(error.starts_with("tidegate serve: --http 0.0.0.0:9464 is reachable"), "{error}");
    }

    #[test]
    fn a_data_directory_that_cannot_be_made_is_told_apart() {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::write(dir.path().join("file"), "").expect("written");
        let config = ServeConfig { data_dir: dir.path().join("file/data"), ..ServeConfig::default() };
        assert_eq!(prepare(&config).expect_err("refused").fault, ConfigFault::DataDir);
        assert_eq!(
            prepare(&ServeConfig { auth: Some("no/such".into()), ..config }).expect_err("refused").fault,
            ConfigFault::File
        );
    }

    #[test]
    fn a_missing_plugins_file_is_told_at_once() {
        let config = ServeConfig { plugins: Some(PathBuf::from("no-such/plugins.toml")), ..ServeConfig::default() };
        assert_eq!(prepare(&config).expect_err("refused").to_string(), "no-such/plugins.toml: does not exist.");
    }
}
