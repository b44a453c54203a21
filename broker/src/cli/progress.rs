//! How far something has come that takes long: lines on standard error, for people alone.

use std::{io, time::Duration};

use super::{Output, output::size};
use crate::clock::{Clock as _, SystemClock};

/// Tells now and then.
#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    every: Duration,
    clock: SystemClock,
    told: Duration,
}

impl Progress {
    /// `what` names what is done with the bytes: `checked`.
    pub(super) fn new(what: &'static str, every: Duration) -> Self {
        Self { what, every, clock: SystemClock::default(), told: Duration::ZERO }
    }

    /// Tells if it is time to. What is done before the first interval is over tells nothing.
    pub(super) fn tell(&mut self, output: &mut Output, bytes: u64, total: u64) -> io::Result<()> {
        let now = self.clock.monotonic();
        if now < self.told + self.every {
            return Ok(());
        }
        self.told = now;
        output.remark(&format_args!("{} {} of {}", self.what, size(bytes), size(total.max(bytes))))
    }
}
