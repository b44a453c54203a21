//! Bytes of batches between socket and disk: taken before a frame is read, given back with its ack. Waiting for them is
//! what slows a client down: its stream is not read meanwhile.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The broker's bytes.
#[derive(Debug, Clone)]
pub struct Budget {
    bytes: Arc<Semaphore>,
    bytes_max: u32,
}

/// The bytes of one connection, and the broker's behind them.
#[derive(Debug, Clone)]
pub struct ConnectionBudget {
    own: Budget,
    all: Budget,
    wait_max: Duration,
}

/// Bytes taken; given back when this is dropped.
#[derive(Debug)]
pub struct Permit {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// No bytes became free in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes waited {waited_ms} ms for room between socket and disk")]
pub struct Overloaded {
    /// Bytes wanted.
    pub bytes: usize,
    /// How long.
    pub waited_ms: u64,
}

impl Budget {
    /// All bytes free.
    pub fn new(bytes_max: usize) -> Self {
        let bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX).max(1);
        Self { bytes: Arc::new(Semaphore::new(bytes_max as usize)), bytes_max }
    }

    /// The budget of a new connection.
    pub fn connection(&self, bytes_max: usize, wait_max: Duration) -> ConnectionBudget {
        ConnectionBudget { own: Self::new(bytes_max), all: self.clone(), wait_max }
    }

    /// Bytes taken now.
    pub fn taken(&self) -> usize {
        (self.bytes_max as usize).saturating_sub(self.bytes.available_permits())
    }

    /// Waits until every byte was given back: nothing is in flight.
    pub async fn idle(&self) {
        // The semaphore is never closed, so this ends with all permits in hand, which go back at once.
        drop(self.bytes.acquire_many(self.bytes_max).await);
    }

    async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        // One frame larger than the whole budget takes all of it, or it could never be read.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max);
        Arc::clone(&self.bytes).acquire_many_owned(bytes).await.ok()
    }
}

impl ConnectionBudget {
    /// Takes bytes, from the connection's own first, so that one client waits for itself before it makes others wait.
    /// Cancel-safe.
    ///
    /// # Errors
    /// If none became free in time.
    pub async fn take(&self, bytes: usize) -> Result<Permit, Overloaded> {
        let both = async {
            let own = self.own.take(bytes).await?;
            let all = self.all.take(bytes).await?;
            Some(Permit { _own: own, _all: all })
        };
        let waited_ms = u64::try_from(self.wait_max.as_millis()).unwrap_or(u64::MAX);
        let overloaded = Overloaded { bytes, waited_ms };
        tokio::time::timeout(self.wait_max, both).await.ok().flatten().ok_or(overloaded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_waits_for_itself_first() {
        let all = Budget::new(100);
        let one = all.connection(40, Duration::from_millis(5));
        let other = all.connection(40, Duration::from_secs(5));
        let held = one.take(40).await.expect("free");
        let error = one.take(1).await.expect_err("its own is used up");
        assert_eq!((error.bytes, error.waited_ms), (1, 5));
        let also = other.take(40).await.expect("the broker's is not");
        assert_eq!(all.taken(), 80);
        drop((held, also));
        all.idle().await;
        assert_eq!(all.taken(), 0);
    }

    #[tokio::test]
    async fn a_frame_larger_than_the_budget_takes_all_of_it() {
        let all = Budget::new(100);
        let one = all.connection(1_000, Duration::from_secs(5));
        let held = one.take(500).await.expect("all of it");
        assert_eq!(all.taken(), 100);
        drop(held);
    }
}
