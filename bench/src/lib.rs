//! What the benchmarks share: CPU clocks, interleaved samples, medians with their spread.
//!
//! Every figure is a ratio or a difference between things measured in one run, A B A B, since a shared machine's speed drifts.
#![allow(clippy::print_stdout, reason = "benchmarks report to the person who runs them")]

pub mod broker;
pub mod follow;
pub mod load;
pub mod process;
pub mod runs;
mod samples;
pub mod sink;
pub mod wal;

pub use samples::*;
