//! Every mutant is caught, and what is no mutant is not.

use std::process::Command;

/// Seeds that a mutant must be caught within, and that the code as it is must pass.
const SEEDS_MAX: u64 = 60;

/// Runs seeds in a process of its own; what it printed if a seed found a fault.
fn caught(mutant: Option<&str>) -> Option<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "sim::no_seed_breaks_a_promise", "--nocapture"]);
    command.env("TIDEGATE_SIM_FROM", "0").env("TIDEGATE_SIM_SEEDS", SEEDS_MAX.to_string()).env("RUST_BACKTRACE", "0");
    match mutant {
        Some(mutant) => command.env("TIDEGATE_MUTANT", mutant),
        None => command.env_remove("TIDEGATE_MUTANT"),
    };
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (!output.status.success()).then(|| String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn every_mutant_is_caught() {
    let mut missed = Vec::new();
    for mutant in crate::mutants::NAMES {
        let found = caught(Some(mutant));
        let fault = found.as_ref().and_then(|text| text.lines().find(|line| line.starts_with("seed ")));
        println!("{mutant}: {}", fault.unwrap_or("not caught"));
        if fault.is_none() {
            missed.push(mutant);
        }
    }
    assert!(missed.is_empty(), "{SEEDS_MAX} seeds did not catch {missed:?}");
}

#[test]
fn what_is_no_mutant_passes_the_same_seeds() {
    if let Some(text) = caught(None) {
        panic!("{text}");
    }
}
