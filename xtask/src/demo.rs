//! `cargo demo`: the main job, from source to report.

use std::process::Command;

use crate::{guests, steps};

/// Builds broker, demo and plugins, then runs the demo with the arguments given.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        steps::must(steps::cargo().args(["build", "--quiet"]))?;
        return steps::must(program().arg("--help"));
    }
    let mut steps = steps::Steps::new();
    println!(
        "Tidegate demo: builds the broker and its plugins (minutes the first time: a WebAssembly compiler is among"
    );
    println!(
        "the dependencies), then runs the main job on real events. Nothing is installed outside this folder, except"
    );
    println!("the WebAssembly target of the Rust toolchain, if it is missing.");
    steps.run("prerequisites", steps::prerequisites)?;
    steps.run("build broker and demo", || steps::must(steps::cargo().arg("build")))?;
    steps.run("build plugins", guests::run)?;
    let result = steps.run("demo", || execute(arguments));
    steps.table();
    result
}

/// Runs the demo that is built.
pub(crate) fn execute(arguments: &[String]) -> Result<(), String> {
    steps::must(program().args(arguments))
}

fn program() -> Command {
    let mut command = Command::new(steps::target().join("debug").join("tidegate-demo"));
    command.current_dir(steps::root());
    command
}
