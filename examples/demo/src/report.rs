//! What the demo prints. The only place that does.

use std::{
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

/// Prints sections, facts and progress to standard output.
#[derive(Debug)]
pub(crate) struct Report {
    terminal: bool,
    held: usize,
}

impl Report {
    /// For standard output.
    pub(crate) fn new() -> Self {
        Self { terminal: io::stdout().is_terminal(), held: 0 }
    }

    /// A new section.
    pub(crate) fn section(&mut self, title: &str) {
        self.print(&format!("\n{title}\n"));
    }

    /// A fact on a line of its own.
    pub(crate) fn fact(&mut self, text: impl Display) {
        self.print(&format!("  {text}\n"));
    }

    /// A check that held.
    pub(crate) fn held(&mut self, text: impl Display) {
        self.held += 1;
        self.print(&format!("  ok  {text}\n"));
    }

    /// How far something is; on a terminal the line is written over by the next one.
    pub(crate) fn progress(&mut self, text: impl Display) {
        if self.terminal {
            self.print(&format!("\r\x1b[K  {text}"));
        }
    }

    /// Wipes the last progress.
    pub(crate) fn progress_done(&mut self) {
        if self.terminal {
            self.print("\r\x1b[K");
        }
    }

    /// A check that did not hold: the end.
    pub(crate) fn failed(&mut self, reason: &str) {
        self.progress_done();
        self.print(&format!("\nFAILED after {} checks that held: {reason}\n", self.held));
    }

    /// Checks that held so far.
    pub(crate) fn checks(&self) -> usize {
        self.held
    }

    fn print(&mut self, text: &str) {
        let mut out = io::stdout().lock();
        // Nobody reads: the checks and the exit code are still worth it.
        drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    }
}

/// The value below which `percent` of the samples lie (nearest rank). Sorts them.
pub(crate) fn percentile(samples: &mut [Duration], percent: usize) -> Option<Duration> {
    samples.sort_unstable();
    let rank = (samples.len() * percent).div_ceil(100);
    samples.get(rank.saturating_sub(1)).copied()
}

/// `1.23 ms`, `45 µs`, `6.7 s`.
pub(crate) fn human(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut samples: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut samples, 50), Some(Duration::from_millis(100)));
        assert_eq!(percentile(&mut samples, 99), Some(Duration::from_millis(198)));
        assert_eq!(percentile(&mut [Duration::from_secs(1)], 50), Some(Duration::from_secs(1)));
        assert_eq!(percentile(&mut [], 99), None);
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(human(Duration::from_micros(45)), "45 µs");
        assert_eq!(human(Duration::from_micros(1_234)), "1.2 ms");
        assert_eq!(human(Duration::from_millis(6_700)), "6.7 s");
    }
}
