//! Time and randomness as arguments: the only place of the broker that reads the system clock.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::threads::{SharedThreads, SystemThreads};

/// Where time comes from. A simulation brings its own.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Unix time.
    fn unix(&self) -> Duration;
    /// Time since some fixed point; never goes back.
    fn monotonic(&self) -> Duration;
    /// What runs under this time: who simulates the one simulates the other.
    fn threads(&self) -> SharedThreads {
        Arc::new(SystemThreads)
    }
}

/// Where random bytes come from.
pub trait Random: Send + Sync + std::fmt::Debug {
    /// Fills the buffer.
    fn fill(&self, buffer: &mut [u8]);
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;
/// A shared source of random bytes.
pub type SharedRandom = Arc<dyn Random>;

/// The machine's own clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    fn unix(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    fn monotonic(&self) -> Duration {
        Instant::now().duration_since(self.start)
    }
}

/// The operating system's randomness.
#[derive(Debug)]
pub struct SystemRandom {
    source: ring::rand::SystemRandom,
}

impl Default for SystemRandom {
    fn default() -> Self {
        Self { source: ring::rand::SystemRandom::new() }
    }
}

impl Random for SystemRandom {
    fn fill(&self, buffer: &mut [u8]) {
        use ring::rand::SecureRandom as _;
        self.source.fill(buffer).expect("the operating system's random source works, or nothing here is safe");
    }
}

/// Unix time in milliseconds, as records carry it.
pub fn unix_ms(clock: &dyn Clock) -> i64 {
    i64::try_from(clock.unix().as_millis()).unwrap_or(i64::MAX)
}
