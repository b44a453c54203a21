//! `cargo demo`, `cargo verify` and the steps they share. No dependencies: it must be there in a second on a fresh machine.
#![cfg_attr(test, allow(clippy::string_slice, reason = "tests"))]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a build tool talks to the person who runs it")]

mod demo;
#[cfg(test)]
mod floors;
mod guests;
mod sim;
mod steps;
mod verify;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  demo [OPTIONS]     build broker and plugins, then run the main job on real events   (also: cargo demo)
  verify [--full]    run all tests; --full adds the long tiers                        (also: cargo verify)
  sim --seeds N      run seeds of the simulation, from --from S on                     (also: cargo sim)
  mutants            prove that the simulation sees mistakes made on purpose
  guests             build the plugins into target/plugins
  ci                 formatting, lints, documentation, then verify: what CI runs

`cargo demo -- --help` shows the options of the demo.
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.filter(|argument| argument != "--").collect();
    let result = match command.as_str() {
        "demo" => demo::run(&rest),
        "verify" => verify::run(&rest),
        "sim" => sim::run(&rest),
        "mutants" => sim::mutants(),
        "guests" => guests::run(),
        "ci" => verify::ci(),
        "" | "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("unknown command {other:?}\n\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\n{message}");
            ExitCode::FAILURE
        }
    }
}
