//! Brokers as child processes on directories of their own.
//!
//! Owns: a site (temporary directory, `plugins.toml`, auth file, log, forgetful disk) and the processes on it. Ports are
//! always given by the system (port 0) and read from the line the broker prints when it is ready, so no two tests meet.
//! A site that is dropped fails its test on any WARN or ERROR line that the test did not list.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Mutex,
    time::Duration,
};

use crate::{
    forgetful::{Forgetful, Loss, Undone},
    http,
    wait::{LOOK, until, until_blocking, within},
};

/// Start to ready, with plugins compiled anew on a busy machine.
pub const START_MAX: Duration = Duration::from_secs(90);
/// SIGTERM to the end of the process, and refused starts.
pub const END_MAX: Duration = Duration::from_secs(45);
/// Lines of the log shown when a test fails.
const LOG_LINES_SHOWN: usize = 60;

/// Where brokers of one test run, one after the other.
#[derive(Debug)]
pub struct Site {
    temp: tempfile::TempDir,
    plugins: Option<PathBuf>,
    forgetful: Option<Forgetful>,
    arguments: Vec<String>,
    allowed: Mutex<Vec<String>>,
}

/// A broker that is ready.
#[derive(Debug)]
pub struct Broker {
    child: Child,
    /// Where it takes QUIC connections.
    pub addr: SocketAddr,
    /// Where it answers `/health`, `/ready`, `/metrics`.
    pub http: SocketAddr,
    /// Generation of the default tenant's chain when it got ready.
    pub generation: u64,
}

/// A process that ended by itself.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Default for Site {
    fn default() -> Self {
        Self::new()
    }
}

impl Site {
    /// An empty directory; the broker runs without plugins and without auth.
    pub fn new() -> Self {
        let parent = crate::target_dir().join("tests/sites");
        fs::create_dir_all(&parent).unwrap();
        let temp = tempfile::tempdir_in(parent).unwrap();
        fs::create_dir(temp.path().join("data")).unwrap();
        let plugins = temp.path().join("plugins.toml");
        fs::write(&plugins, "version = 1\n").unwrap();
        Self { temp, plugins: Some(plugins), forgetful: None, arguments: Vec::new(), allowed: Mutex::default() }
    }

    /// The same over the forgetful disk.
    pub fn forgetful() -> Self {
        let mut site = Self::new();
        site.forgetful = Some(Forgetful::new(&site.data(), &site.path("forgetful")).unwrap());
        site
    }

    /// A path in the site's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// The forgetful disk under it.
    pub fn disk(&mut self) -> &mut Forgetful {
        self.forgetful.as_mut().expect("made by Site::forgetful")
    }

    /// More arguments for every start from now on.
    pub fn arguments(&mut self, arguments: &[&str]) {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
    }

    /// Starts brokers with a `plugins.toml` that lies elsewhere from now on.
    pub fn plugins_at(&mut self, path: &Path) {
        self.plugins = Some(path.to_owned());
    }

    /// Starts brokers without a `plugins.toml` from now on.
    pub fn plugins_nowhere(&mut self) {
        self.plugins = None;
    }

    /// Writes `plugins.toml` (`version = 1` is put before it).
    pub fn plugins(&self, text: &str) {
        fs::write(self.path("plugins.toml"), format!("version = 1\n{text}")).unwrap();
    }

    /// Copies a built plugin into the site, as `NAME.wasm`.
    pub fn install(&self, plugin: &str) {
        fs::copy(component(plugin), self.path(&format!("{plugin}.wasm"))).unwrap();
    }

    /// Writes the auth file and starts brokers with it from now on.
    pub fn auth(&mut self, text: &str) {
        let path = self.path("auth.toml");
        fs::write(&path, text).unwrap();
        if !self.arguments.iter().any(|argument| argument == "--auth") {
            self.arguments(&["--auth", path.to_str().unwrap()]);
        }
    }

    /// Lets log lines of level WARN or ERROR pass that contain `text`.
    pub fn allow_log(&self, text: &str) {
        self.allowed.lock().unwrap().push(text.to_owned());
    }

    /// All that brokers of this site have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Starts a broker on a free port and waits until it is ready.
    pub async fn start(&self) -> Broker {
        self.start_at("127.0.0.1:0").await
    }

    /// Starts a broker at an address and waits until it is ready.
    pub async fn start_at(&self, addr: &str) -> Broker {
        let mut command = self.command(addr);
        let log = File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let unset = SocketAddr::from(([127, 0, 0, 1], 0));
        // From here on a guard ends the process, whatever fails.
        let mut broker = Broker { child, addr: unset, http: unset, generation: 0 };
        let line = tokio::task::spawn_blocking(move || {
            let mut stdout = BufReader::new(stdout);
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            // Keeps the pipe open and empty as long as the broker lives.
            std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
            line
        });
        let line = within(START_MAX, "the broker's ready line", line).await.unwrap();
        if line.is_empty() {
            let status = broker.ended().await;
            panic!("the broker ended before it was ready: {status}; its log:\n{}", self.last_words());
        }
        broker.learn(&line);
        broker.ready(self).await;
        broker
    }

    /// Runs a start that must not succeed.
    pub async fn start_refused(&self) -> Ended {
        self.start_refused_at("127.0.0.1:0").await
    }

    /// Runs a start at an address that must not succeed.
    pub async fn start_refused_at(&self, addr: &str) -> Ended {
        run(self.command(addr)).await
    }

    /// Runs `tidegate COMMAND…` against a broker of this site.
    pub async fn tidegate(&self, broker: &Broker, arguments: &[&str]) -> Ended {
        let mut command = Command::new(binary());
        command.args(arguments).arg("--addr").arg(broker.addr.to_string()).arg("--data-dir").arg(self.data());
        run(command).await
    }

    /// Plays the power cut. The broker must have been killed.
    pub fn power_cut(&mut self, loss: Loss) -> Undone {
        self.disk().power_cut(loss).unwrap()
    }

    fn command(&self, addr: &str) -> Command {
        let mut command = Command::new(binary());
        command
            .args(["serve", "--output", "json", "--http", "127.0.0.1:0", "--addr", addr, "--data-dir"])
            .arg(self.data())
            .args(&self.arguments)
            .env_remove("RUST_LOG")
            // No plugins.toml is there to be found.
            .current_dir(self.data())
            .stdin(Stdio::null());
        if let Some(plugins) = &self.plugins {
            command.arg("--plugins").arg(plugins);
        }
        if let Some(forgetful) = &self.forgetful {
            command.envs(forgetful.environment().unwrap());
        }
        command
    }

    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    /// WARN and ERROR lines that the test did not list.
    fn unlisted(&self) -> Vec<String> {
        let allowed = self.allowed.lock().unwrap();
        let log = self.log();
        let loud = log.lines().filter(|line| is_loud(line));
        loud.filter(|line| !allowed.iter().any(|text| line.contains(text))).map(str::to_owned).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("---- log of the broker ----\n{}\n----", self.last_words());
            return;
        }
        let unlisted = self.unlisted();
        assert!(unlisted.is_empty(), "the broker logged what the test did not expect:\n{}", unlisted.join("\n"));
    }
}

/// Level WARN or ERROR, or a panic, in either log format.
fn is_loud(line: &str) -> bool {
    let level = line.split_whitespace().nth(1).unwrap_or_default();
    matches!(level, "WARN" | "ERROR")
        || line.contains(r#""level":"WARN""#)
        || line.contains(r#""level":"ERROR""#)
        || line.contains("panicked at")
        || line.starts_with("forgetful:")
}

impl Broker {
    fn learn(&mut self, line: &str) {
        let ready: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let addr = |name: &str| ready[name].as_str().and_then(|text| text.parse().ok());
        self.addr = addr("addr").unwrap_or_else(|| panic!("no addr in {line}"));
        self.http = addr("http").unwrap_or_else(|| panic!("no http in {line}"));
        self.generation = ready["generation"].as_u64().unwrap_or_default();
    }

    async fn ready(&mut self, site: &Site) {
        until(START_MAX, "/ready", async || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the broker ended: {status}; its log:\n{}", site.last_words());
            }
            let status = http::get(self.http, "/ready").await.map(|response| response.status);
            matches!(status, Ok(200)).then_some(())
        })
        .await;
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, without waiting for the end.
    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// SIGTERM, and the end must be clean.
    pub async fn drain(mut self) {
        self.terminate();
        let status = self.ended().await;
        assert!(status.success(), "after SIGTERM the broker ended with {status}");
    }

    /// Waits until the process has ended by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        until(END_MAX, "the end of the broker", async || self.child.try_wait().unwrap()).await
    }

    /// It has not ended.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Resident memory of the process, bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// One number of `/metrics`: the sum over all series of a name whose labels contain a text.
    pub async fn metric(&self, name: &str, labels: &str) -> f64 {
        let body = http::get(self.http, "/metrics").await.unwrap().body;
        let series = body.lines().filter_map(|line| line.strip_prefix(name));
        let wanted = series.filter(|rest| rest.starts_with([' ', '{']) && rest.contains(labels));
        wanted.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended already: then both calls fail, and that is all right.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs a command to its end.
///
/// # Panics
/// If it does not end in time.
pub async fn run(mut command: Command) -> Ended {
    let ended = tokio::task::spawn_blocking(move || {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let out = std::thread::spawn(move || text(&mut stdout));
        let err = std::thread::spawn(move || text(&mut stderr));
        let deadline = std::time::Instant::now() + END_MAX;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if std::time::Instant::now() > deadline {
                child.kill().unwrap();
                let (out, err) = (out.join().unwrap(), err.join().unwrap());
                panic!("{command:?} did not end within {END_MAX:?}:\n{out}\n{err}");
            }
            std::thread::sleep(LOOK);
        };
        Ended { code: status.code(), stdout: out.join().unwrap(), stderr: err.join().unwrap() }
    });
    ended.await.unwrap()
}

fn text(from: &mut impl std::io::Read) -> String {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The binary under test: `TIDEGATE_BIN`, or the one built beside the tests.
///
/// # Panics
/// If it was not built.
pub fn binary() -> PathBuf {
    let path = std::env::var_os("TIDEGATE_BIN").map_or_else(|| crate::profile_dir().join("tidegate"), PathBuf::from);
    assert!(path.is_file(), "{} is missing: run `cargo build` first (`cargo verify` does)", path.display());
    path
}

/// A plugin or test guest that `cargo xtask guests` has built.
///
/// # Panics
/// If it was not built.
pub fn component(name: &str) -> PathBuf {
    let path = repository().join("target/plugins").join(format!("{name}.wasm"));
    assert!(path.is_file(), "{} is missing: run `cargo xtask guests` first (`cargo verify` does)", path.display());
    path
}

/// The repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lies in the repository").to_owned()
}

/// Waits for a text in a file that grows.
pub fn wait_for_text(path: &Path, text: &str) {
    until_blocking(START_MAX, format!("{text:?} in {}", path.display()), || {
        let mut content = String::new();
        File::open(path).ok()?.read_to_string(&mut content).ok()?;
        content.contains(text).then_some(())
    });
}
