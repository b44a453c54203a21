//! Processes that a benchmark starts and watches from outside.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

/// A child that does not outlive us.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Of each thread ever seen, so that what an ended one used stays counted.
    threads: HashMap<String, u64>,
}

impl Process {
    /// Starts a command, and gives it with the first line it prints.
    ///
    /// # Errors
    /// If it cannot be started, or ends before it has printed a line.
    pub fn start(command: &mut Command) -> Result<(Self, String)> {
        let name = command.get_program().display().to_string();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context(name.clone())?;
        let mut process = Self { child, threads: HashMap::new() };
        let mut stdout = BufReader::new(process.child.stdout.take().context("its output")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        ensure!(!line.is_empty(), "{name} ended before it was ready");
        // Keeps the pipe open and empty as long as the child lives.
        std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
        Ok((process, line.trim().to_owned()))
    }

    /// CPU time of all its threads so far, system time included, as exactly as the scheduler counts.
    ///
    /// # Errors
    /// If the process has ended, or the kernel keeps no `schedstat`.
    pub fn cpu(&mut self) -> Result<Duration> {
        let tasks = format!("/proc/{}/task", self.child.id());
        for task in fs::read_dir(&tasks).context("the child has ended")? {
            let task = task?;
            // A thread may end between the two looks.
            let Ok(stat) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let ran = stat.split(' ').next().unwrap_or_default().parse().with_context(|| stat.clone())?;
            self.threads.insert(task.file_name().display().to_string(), ran);
        }
        ensure!(!self.threads.is_empty(), "{tasks}/*/schedstat cannot be read");
        Ok(Duration::from_nanos(self.threads.values().sum()))
    }

    /// Waits until the process does nothing: what is left of a sample does not become part of the next.
    ///
    /// # Errors
    /// As [`Self::cpu`].
    pub async fn settle(&mut self) -> Result<()> {
        let mut before = self.cpu()?;
        loop {
            tokio::time::sleep(LOOK).await;
            let now = self.cpu()?;
            if now.saturating_sub(before) < QUIET {
                return Ok(());
            }
            before = now;
        }
    }

    /// Its id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// A line of `/proc/PID/status`, in MB (10⁶ bytes).
    ///
    /// # Errors
    /// If the process has ended, or the line is not there.
    pub fn memory(&self, name: &str) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
        let kib: f64 = line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().with_context(|| line.to_owned())?;
        Ok(kib * 1_024.0 / 1e6)
    }

    /// SIGTERM, and the end must be clean.
    ///
    /// # Errors
    /// If it is not.
    pub fn drain(mut self) -> Result<()> {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "after SIGTERM the broker ended with {status}");
        Ok(())
    }
}

/// A process that uses less than `QUIET` in `LOOK` is idle: timers and keep-alives take that much.
const LOOK: Duration = Duration::from_millis(50);
const QUIET: Duration = Duration::from_millis(2);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already: then both fail, and that is all right.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
