//! Runs on a machine that others use too: rounds that others disturbed are measured again, ratios are of neighbours in time,
//! and a run is repeated until equal things look equal.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::{Samples, process_cpu, wall};

/// Per cent by which equal things may seem to differ in a run that is believed.
pub const SPREAD_MAX: f64 = 2.0;
/// Runs at most.
const RUNS_MAX: usize = 5;
/// Share of the machine's CPU, in per cent, that others may use in a round that counts. Kernel threads that write for the
/// broker count as others.
const OTHERS_MAX: f64 = 8.0;
/// Rounds at most, in multiples of those wanted.
const ROUNDS_TIMES: usize = 3;

/// Runs rounds until so many were quiet, and gives those; if there were too few, the least disturbed ones with them. A round
/// tells the CPU time of its child processes.
///
/// # Errors
/// As the round.
pub async fn rounds<R>(count: usize, mut round: impl AsyncFnMut(usize) -> Result<(Duration, R)>) -> Result<Vec<R>> {
    let cores = std::thread::available_parallelism()?.get() as f64;
    let mut done: Vec<(f64, R)> = Vec::new();
    let is_quiet = |round: &(f64, R)| round.0 <= OTHERS_MAX;
    while done.iter().filter(|round| is_quiet(round)).count() < count && done.len() < count * ROUNDS_TIMES {
        let before = (wall(), machine_cpu()?, process_cpu());
        let (children, result) = round(done.len()).await?;
        let ours = children + process_cpu() - before.2;
        let others = (machine_cpu()? - before.1).saturating_sub(ours);
        done.push((others.as_secs_f64() / (wall() - before.0).as_secs_f64() / cores * 100.0, result));
    }
    let all = done.len();
    let quiet = done.iter().filter(|round| is_quiet(round)).count();
    done.sort_by(|a, b| a.0.total_cmp(&b.0));
    done.truncate(count);
    let worst = done.last().map_or(0.0, |round| round.0);
    println!(
        "  {count} of {all} rounds count, {quiet} of them quiet; others took at most {worst:.0} % of the machine in one of them"
    );
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// CPU time that everybody on this machine has used, in steps of 10 ms.
fn machine_cpu() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).context("/proc/stat")?;
    let ticks = line.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    let busy = ticks.iter().take(8).enumerate().filter(|(at, _)| !(3..=4).contains(at));
    Ok(Duration::from_millis(busy.map(|(_, ticks)| ticks * 10).sum()))
}

/// Ratios of two things measured right after each other, round by round.
pub fn ratios(these: &[f64], those: &[f64]) -> Samples {
    these.iter().zip(those).map(|(this, that)| this / that).collect()
}

/// How far ratios of equal things are from 1, in per cent: the middle one's distance, or the spread of the middle one if
/// that is more.
pub fn noise(same: &Samples) -> f64 {
    ((same.median() - 1.0).abs() * 100.0).max(of_median(same))
}

/// The spread of the middle one: half the distance of the quartiles, which is for one sample, over the root of their number.
pub fn of_median(samples: &Samples) -> f64 {
    samples.spread() / (samples.iter().len().max(1) as f64).sqrt()
}

/// A ratio as an addition, with the spread of the middle one and that of a single one: `+1.2 % ±0.4 (±1.9)`.
pub fn added(ratios: &Samples) -> String {
    let percent = (ratios.median() - 1.0) * 100.0;
    format!("{percent:+.2} % ±{:.2} (±{:.1})", of_median(ratios), ratios.spread())
}

/// Repeats a run until its noise is at most [`SPREAD_MAX`], five times at most, and gives the quietest with its noise. What is
/// printed meanwhile tells of each run.
///
/// # Errors
/// As the run.
pub async fn quiet<T>(mut run: impl AsyncFnMut(usize) -> Result<(f64, T)>) -> Result<(f64, T)> {
    let mut best = run(1).await?;
    for number in 2..=RUNS_MAX {
        if best.0 <= SPREAD_MAX {
            break;
        }
        println!("  the A/A spread is {:.2} %, over {SPREAD_MAX} %: once more", best.0);
        let next = run(number).await?;
        if next.0 < best.0 {
            best = next;
        }
    }
    Ok(best)
}

/// One line: a figure against what the project holds itself to.
pub fn verdict(what: &str, figure: f64, unit: &str, goal: &str, is_met: bool) {
    println!("{what:<58} {figure:>8.2}{unit:<4} (goal: {goal}){}", if is_met { "" } else { "  MISSED" });
}
