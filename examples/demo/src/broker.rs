//! The real broker as a child process: started, asked whether it is ready, drained, killed.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

/// How to start a broker.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// The `tidegate` binary.
    pub(crate) binary: PathBuf,
    /// Its data directory.
    pub(crate) data_dir: PathBuf,
    /// Its configuration.
    pub(crate) plugins: PathBuf,
    /// Where its log goes.
    pub(crate) log: PathBuf,
}

/// A broker that runs.
#[derive(Debug)]
pub(crate) struct Broker {
    child: Child,
    /// Where it takes QUIC connections.
    pub(crate) addr: String,
    /// Where it answers health requests.
    pub(crate) http: String,
    /// The generation it started with.
    pub(crate) generation: u64,
}

/// Start to ready, with plugins compiled anew on a slow machine.
const START_MAX: Duration = Duration::from_secs(120);
/// SIGTERM to the end of the process.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// Between two looks at something that is about to happen.
const LOOK: Duration = Duration::from_millis(20);
/// Lines of the broker's log shown when it fails.
const LOG_LINES_SHOWN: usize = 20;

impl Program {
    /// Starts it and waits until it is ready. `addr` may end in port 0.
    pub(crate) async fn start(&self, addr: &str) -> Result<Broker> {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut child = Command::new(&self.binary)
            .args(["serve", "--output", "json", "--http", "127.0.0.1:0", "--addr", addr, "--data-dir"])
            .arg(&self.data_dir)
            .arg("--plugins")
            .arg(&self.plugins)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        let stdout = child.stdout.take().context("standard output of the broker")?;
        // Held by a guard from here on: whatever fails, no broker is left behind.
        let mut broker = Broker { child, addr: String::new(), http: String::new(), generation: 0 };
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        let line = timeout(START_MAX, line).await.context("the broker did not get ready in time")???;
        broker.learn(&line)?;
        timeout(START_MAX, broker.ready()).await.context("/ready did not say yes in time")??;
        Ok(broker)
    }

    /// What its log says beyond the ordinary; empty if nothing.
    pub(crate) fn complaints(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter(|line| !line.contains(" INFO ")).collect();
        let shown = lines.get(lines.len().saturating_sub(LOG_LINES_SHOWN)..).unwrap_or_default();
        if shown.is_empty() { String::new() } else { format!("the broker's log:\n{}", shown.join("\n")) }
    }
}

impl Broker {
    /// Takes the addresses from the line that `serve` prints when it is ready.
    fn learn(&mut self, line: &str) -> Result<()> {
        ensure!(!line.is_empty(), "the broker ended before it was ready");
        let ready: serde_json::Value = serde_json::from_str(line).with_context(|| format!("ready line {line:?}"))?;
        let text = |name: &str| ready.get(name).and_then(|v| v.as_str()).map(str::to_owned);
        self.addr = text("addr").context("the ready line has no addr")?;
        self.http = text("http").context("the ready line has no http")?;
        self.generation = ready.get("generation").and_then(serde_json::Value::as_u64).unwrap_or_default();
        Ok(())
    }

    async fn ready(&mut self) -> Result<()> {
        while !matches!(status(&self.http, "/ready").await, Ok(200)) {
            if let Some(status) = self.child.try_wait()? {
                bail!("the broker ended: {status}");
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// SIGKILL: no chance to write, answer or say anything.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill().context("kill")?;
        self.child.wait().context("wait")?;
        Ok(())
    }

    /// SIGTERM, then waits for a clean end.
    pub(crate) async fn drain(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).context("process id")?;
        let pid = rustix::process::Pid::from_raw(pid).context("process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).context("SIGTERM")?;
        let ended = timeout(DRAIN_MAX, async {
            loop {
                if let Some(status) = self.child.try_wait()? {
                    return Ok::<_, std::io::Error>(status);
                }
                sleep(LOOK).await;
            }
        });
        let status = ended.await.context("the broker did not drain in time")??;
        ensure!(status.success(), "after SIGTERM the broker ended with {status}");
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended already: then both calls fail, and that is all right.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Status of a GET, by hand: one line is all we need of HTTP.
async fn status(http: &str, path: &str) -> Result<u16> {
    let mut stream = TcpStream::connect(http).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut head = [0_u8; 12];
    stream.read_exact(&mut head).await?;
    let text = std::str::from_utf8(&head).context("status line")?;
    text.rsplit(' ').next().unwrap_or_default().parse().with_context(|| format!("status line {text:?}"))
}

/// The binary beside the one that runs.
pub(crate) fn beside_us() -> Result<PathBuf> {
    let us = std::env::current_exe().context("path of this program")?;
    Ok(us.parent().unwrap_or_else(|| Path::new(".")).join("tidegate"))
}
