//! The simulation (ADR 11): the release code of produce, fetch, shard and storage under one seed, and an auditor who knows
//! what was promised.
//!
//! Reading order: `world` runs the lives of one seed, `life` is a broker with its tasks, `client` and `reader` use it,
//! `journal` keeps what they were told, `truth` reads the log, `audit` compares. Below them `schedule` decides who runs, `tasks`
//! polls async code, `model` says what hooks do. `cargo sim --seeds N --from S` runs seeds; `TIDEGATE_SIM_LOG=FILE` keeps the
//! log of the last one.

mod audit;
mod client;
mod journal;
mod life;
mod model;
#[cfg(mutants)]
mod mutants;
mod random;
mod reader;
mod schedule;
mod tasks;
mod truth;
mod world;

use self::{journal::Counts, world::Ended};

/// What must not be.
type Fault = String;

/// Seeds that every test run takes.
const SEEDS: u64 = 12;
/// Lines of a world's log that are shown with its fault.
const LINES_SHOWN: usize = 25;

fn number(variable: &str, otherwise: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, not a number")),
        Err(_) => otherwise,
    }
}

/// Runs a seed, and shows its end if it is a fault.
fn run(seed: u64) -> Result<Counts, Fault> {
    let Ended { result, log } = world::run(seed);
    if let Some(path) = std::env::var_os("TIDEGATE_SIM_LOG") {
        std::fs::write(path, &log).unwrap();
    }
    result.map_err(|fault| {
        let from = log.lines().count().saturating_sub(LINES_SHOWN);
        let end: Vec<&str> = log.lines().skip(from).collect();
        format!("seed {seed}: {fault}\nreplay: cargo sim --seeds 1 --from {seed}\nits log ends\n{}", end.join("\n"))
    })
}

#[test]
fn no_seed_breaks_a_promise() {
    let (from, seeds) = (number("TIDEGATE_SIM_FROM", 0), number("TIDEGATE_SIM_SEEDS", SEEDS));
    let mut all = Counts::default();
    for seed in from..from + seeds {
        match run(seed) {
            Ok(counts) => all.add(&counts),
            Err(fault) => panic!("{fault}"),
        }
    }
    println!("{seeds} seeds from {from}: {all:?}");
    if seeds >= 100 {
        all.is_enough(seeds).unwrap();
    }
}

#[test]
fn a_seed_gives_the_same_log_twice() {
    for seed in [3, 1_000_003] {
        let (one, other) = (world::run(seed), world::run(seed));
        let differs = one.log.lines().zip(other.log.lines()).position(|(one, other)| one != other);
        if let Some(at) = differs {
            let from = at.saturating_sub(LINES_SHOWN);
            let lines = |log: &str| log.lines().skip(from).take(LINES_SHOWN + 3).collect::<Vec<_>>().join("\n");
            panic!("seed {seed} differs in line {at}:\n{}\nand then\n{}", lines(&one.log), lines(&other.log));
        }
        assert_eq!(one.log.len(), other.log.len(), "seed {seed}: one log is longer");
        assert!(one.log.lines().count() > 1_000, "seed {seed} did nothing");
        assert_eq!(one.result.is_ok(), other.result.is_ok());
    }
}
