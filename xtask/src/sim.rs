//! `cargo sim`: seeds of the broker's simulation; `cargo xtask mutants`: the proof that it sees mistakes (ADR 11).
//!
//! Both run the broker's own unit tests: the simulation stands in them, behind no feature.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::steps;

/// Seeds of `cargo verify`.
pub(crate) const SEEDS: u64 = 240;
/// Seeds of `cargo verify --full`.
pub(crate) const SEEDS_FULL: u64 = 5_000;
const HELP: &str = "cargo sim --seeds N [--from S]: runs N seeds of the simulation, from S on (0)\n\
                    TIDEGATE_SIM_LOG=FILE keeps the log of the last seed that a process ran";

/// `cargo sim`.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let (mut seeds, mut from) = (None, 0);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut number = || {
            let text = rest.next().ok_or_else(|| format!("{argument} needs a number"))?;
            text.parse::<u64>().map_err(|_| format!("{argument} needs a number, not {text:?}"))
        };
        match argument.as_str() {
            "--seeds" => seeds = Some(number()?),
            "--from" => from = number()?,
            other => return Err(format!("{other:?} is not known\n{HELP}")),
        }
    }
    seeds.map_or_else(|| Err(HELP.to_owned()), |seeds| simulate(from, seeds))
}

/// Runs seeds, on all cores. The first fault of each process is shown, with the line that replays it.
pub(crate) fn simulate(from: u64, seeds: u64) -> Result<(), String> {
    let binary = built(steps::cargo().args(["test", "--package", "tidegate", "--lib", "--no-run"]))?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let mut started = Vec::new();
    for part in 0..cores {
        let (first, end) = (seeds * part / cores, seeds * (part + 1) / cores);
        if first == end {
            continue;
        }
        let mut command = Command::new(&binary);
        command.args(["--exact", "sim::no_seed_breaks_a_promise", "--nocapture"]).env("RUST_BACKTRACE", "0");
        command.env("TIDEGATE_SIM_FROM", (from + first).to_string());
        command.env("TIDEGATE_SIM_SEEDS", (end - first).to_string());
        started.push(command.spawn().map_err(|error| format!("{}: {error}", binary.display()))?);
    }
    let mut failed = 0;
    for mut child in started {
        let status = child.wait().map_err(|error| error.to_string())?;
        failed += u32::from(!status.success());
    }
    if failed == 0 { Ok(()) } else { Err("the simulation found a fault: see above".to_owned()) }
}

/// `cargo xtask mutants`: builds the broker's tests once more, with the flag for that crate alone.
pub(crate) fn mutants() -> Result<(), String> {
    let rustc = ["rustc", "--package", "tidegate", "--lib", "--profile", "test", "--message-format"];
    let binary = built(steps::cargo().args(rustc).args(["json-render-diagnostics", "--", "--cfg", "mutants"]))?;
    steps::must(Command::new(binary).args(["sim::mutants", "--nocapture"]).env("RUST_BACKTRACE", "0"))
}

/// Builds, and gives the test program that came of it.
fn built(command: &mut Command) -> Result<PathBuf, String> {
    if !command.get_args().any(|argument| argument == "--message-format") {
        command.args(["--message-format", "json-render-diagnostics"]);
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo ended with {}", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = messages.lines().filter_map(executable).next_back();
    found.map(PathBuf::from).ok_or_else(|| "cargo built no test program".to_owned())
}

/// The program that a message of cargo tells of.
fn executable(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("\"executable\":\"")?;
    rest.split('"').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::executable;

    #[test]
    fn the_program_is_found_in_what_cargo_says() {
        let built = r#"{"reason":"compiler-artifact","filenames":["/t/a"],"executable":"/t/deps/a-1","fresh":true}"#;
        assert_eq!(executable(built).as_deref(), Some("/t/deps/a-1"));
        assert_eq!(executable(r#"{"reason":"compiler-artifact","executable":null}"#), None);
    }
}
