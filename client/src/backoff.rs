//! How long to wait before the next try.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

/// Waits that double from `first` to `max`; each is shortened by a random part of up to one half, so that clients that
/// lost the same broker do not come back as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait. Default 50 ms.
    pub first: Duration,
    /// The longest wait. Default 2 s.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), max: Duration::from_secs(2) }
    }
}

impl Backoff {
    /// The wait before try number `attempt`, counted from 0.
    pub fn wait(&self, attempt: u32) -> Duration {
        let whole = self.first.saturating_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX)).min(self.max);
        // Between one half and all of it: 512 to 1024 of 1024 parts.
        whole / 1024 * (512 + random_below_512())
    }
}

/// Jitter needs no better source than the keys the standard library draws for its hash maps.
fn random_below_512() -> u32 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u8(0);
    u32::try_from(hasher.finish() % 513).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_jitter() {
        let backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(3) };
        for (attempt, whole) in [(0, 100), (1, 200), (4, 1_600), (5, 3_000), (31, 3_000), (32, 3_000), (9_999, 3_000)] {
            let whole = Duration::from_millis(whole);
            let waits: Vec<_> = (0..50).map(|_| backoff.wait(attempt)).collect();
            assert!(waits.iter().all(|wait| *wait >= whole / 1024 * 512 && *wait <= whole), "{attempt}: {waits:?}");
            assert!(waits.iter().any(|wait| *wait != waits[0]), "{attempt}: all waits are the same");
        }
    }
}
