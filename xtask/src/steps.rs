//! Running commands one after the other, with the time each took.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// The steps of one run and how long they took.
#[derive(Debug)]
pub(crate) struct Steps {
    done: Vec<(String, Duration)>,
    start: Instant,
}

impl Steps {
    pub(crate) fn new() -> Self {
        Self { done: Vec::new(), start: now() }
    }

    /// Runs a step and remembers its time, also when it fails.
    pub(crate) fn run(&mut self, name: &str, step: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        println!("\n==> {name}");
        let start = now();
        let result = step();
        self.done.push((name.to_owned(), now() - start));
        result.map_err(|message| format!("failed in step \"{name}\": {message}"))
    }

    /// Prints what took how long.
    pub(crate) fn table(&self) {
        println!("\n   time  step");
        for (name, took) in &self.done {
            println!("{:>6.1}s  {name}", took.as_secs_f64());
        }
        println!("{:>6.1}s  in all", (now() - self.start).as_secs_f64());
    }
}

#[expect(clippy::disallowed_methods, reason = "a build tool measures its own steps")]
fn now() -> Instant {
    Instant::now()
}

/// The workspace's root: the folder above this crate.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The cargo that runs us, in the workspace's root. What cargo told us of our own package stays here: build scripts look at
/// it, and a build by hand afterwards would do much of the work again.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    let ours = |name: &str| OUR_PACKAGE.iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
        command.env_remove(name);
    }
    command
}

/// How variables begin that `cargo run` sets for what it runs.
const OUR_PACKAGE: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_NAME", "CARGO_CRATE_NAME"];

/// Runs a command with our output; anything but success is an error that shows the command.
pub(crate) fn must(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cannot start {:?}: {error}", command.get_program()))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}", shown(command))) }
}

fn shown(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// Says what a fresh machine lacks before a build fails half-way for it.
pub(crate) fn prerequisites() -> Result<(), String> {
    let found = ["cc", "gcc", "clang"]
        .iter()
        .any(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()));
    if found {
        return Ok(());
    }
    Err("a C compiler is missing (cc, gcc or clang): `ring` and the allocator are compiled with it.\n\
         Install one with the system's package manager, for example the package `gcc`."
        .to_owned())
}
