//! CPU clocks, samples, medians with their spread. Included as a file by benchmarks of plugins, which need nothing else of
//! this crate.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// CPU time of this thread.
pub fn thread_cpu() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// CPU time of this process.
pub fn process_cpu() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// Wall time since some fixed point.
pub fn wall() -> Duration {
    clock(ClockId::Monotonic)
}

/// Samples of one thing, in nanoseconds per unit.
#[derive(Debug, Default, Clone)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds a sample: a time over so many units.
    pub fn add(&mut self, took: Duration, units: u64) {
        self.0.push(took.as_secs_f64() * 1e9 / units.max(1) as f64);
    }

    /// Adds a sample as it is.
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// All of them, in the order they came.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = f64> + '_ {
        self.0.iter().copied()
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The one at a share of the sorted samples.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a small count")]
        let at = ((sorted.len().saturating_sub(1)) as f64 * share).round() as usize;
        sorted.get(at).copied().unwrap_or(f64::NAN)
    }

    /// Half the distance between the quartiles, in per cent of the median: how noisy the run was.
    pub fn spread(&self) -> f64 {
        (self.quantile(0.75) - self.quantile(0.25)) / 2.0 / self.median() * 100.0
    }
}

/// Prints one row: name, median, spread, and the ratio to a base.
pub fn row(name: &str, samples: &Samples, unit: &str, base: Option<&Samples>) {
    let ratio = base.map_or_else(String::new, |base| format!("{:>8.2} x", samples.median() / base.median()));
    println!("{name:<44} {:>12.1} {unit:<10} ±{:>4.1} % {ratio}", samples.median(), samples.spread());
}

/// A time in microseconds.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

impl Extend<f64> for Samples {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, samples: I) {
        self.0.extend(samples);
    }
}
