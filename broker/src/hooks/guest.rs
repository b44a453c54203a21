//! What the host keeps beside one guest: its deadline, its memory cap, the batch it may look at.

use std::{sync::Arc, time::Duration};

use wasmtime::{ResourceLimiter, UpdateDeadline};

use super::{
    Host,
    capabilities::{Counters, LogWindow},
    engine::{TICK, Ticker},
    error::{MESSAGE_BYTES_MAX, cut},
    work::{Selection, Work},
};
use crate::clock::{SharedClock, SharedRandom};

/// What all guests of a runtime share.
#[derive(Debug)]
pub(super) struct Services {
    pub(super) host: Arc<dyn Host>,
    pub(super) clock: SharedClock,
    pub(super) random: SharedRandom,
    pub(super) ticker: Arc<Ticker>,
}

/// Data of one `Store`.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) services: Arc<Services>,
    pub(super) tenant: Arc<str>,
    pub(super) plugin: Arc<str>,
    pub(super) settings: Arc<str>,
    pub(super) counters: Arc<Counters>,
    pub(super) log: Arc<LogWindow>,
    pub(super) phase: Phase,
    pub(super) memory: MemoryCap,
    pub(super) deadline: Deadline,
    /// What the guest said before it trapped.
    pub(super) last_words: Option<String>,
    /// Bytes that the `batch` capability handed out in this call: they count as input.
    pub(super) read_bytes: usize,
}

/// What the guest is doing, hence what it may ask for.
#[derive(Debug)]
pub(super) enum Phase {
    /// `describe`: no capability at all.
    Describe,
    /// `init`, or between calls.
    Outside,
    /// A hook.
    Hook {
        principal: Arc<str>,
        /// For plugins with the grant `batch`.
        batch: Option<(Arc<Work>, Selection)>,
    },
}

impl Guest {
    /// Keeps the first KiB.
    pub(super) fn say_last_words(&mut self, message: &str) {
        self.last_words = Some(cut(message, MESSAGE_BYTES_MAX).to_owned());
    }
}

/// The cap on linear memory. Growing over it gives the guest -1; most allocators then abort, which is how the host
/// learns that memory, not a bug, was the cause.
#[derive(Debug)]
pub(super) struct MemoryCap {
    pub(super) bytes_max: usize,
    pub(super) bytes: usize,
    pub(super) refused: bool,
}

impl ResourceLimiter for MemoryCap {
    fn memory_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let fits = desired <= self.bytes_max;
        if fits {
            self.bytes = self.bytes.max(desired);
        } else {
            self.refused = true;
        }
        Ok(fits)
    }
    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS_MAX)
    }
    fn memories(&self) -> usize {
        1
    }
}

/// Budget of the call in progress, in CPU time of the thread that runs it.
///
/// Reading the thread clock is a system call that costs as much as a whole call of a small plugin. So it is read at ticks
/// only. What ran before the first one, which comes within 5 ms, counts as its wall time, at most one tick of 1 ms: a guest
/// is never charged more than a tick that it did not use, and given at most 4 ms.
#[derive(Debug, Default)]
pub(super) struct Deadline {
    budget: Duration,
    /// Monotonic time at the start.
    started: Duration,
    /// At the first tick: thread time then, and what counts for the part before.
    first: Option<(Duration, Duration)>,
}

/// Why a guest was stopped.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Overrun {
    #[error("{spent:?} of CPU time used, {budget:?} allowed")]
    Cpu { spent: Duration, budget: Duration },
    #[error("{wall:?} passed, {WALL_TIMES} times the budget of {budget:?} allowed")]
    Wall { wall: Duration, budget: Duration },
}

impl Deadline {
    pub(super) fn start(&mut self, budget: Duration, now: Duration) {
        *self = Self { budget, started: now, first: None };
    }

    pub(super) fn tick(&mut self, now: Duration) -> wasmtime::Result<UpdateDeadline> {
        let wall = now.saturating_sub(self.started);
        let cpu = thread_cpu();
        let (at_first, before) = *self.first.get_or_insert_with(|| (cpu, wall.min(TICK)));
        let spent = cpu.saturating_sub(at_first).saturating_add(before);
        let budget = self.budget;
        if spent >= budget {
            return Err(wasmtime::Error::new(Overrun::Cpu { spent, budget }));
        }
        if wall >= budget.saturating_mul(WALL_TIMES) {
            return Err(wasmtime::Error::new(Overrun::Wall { wall, budget }));
        }
        Ok(UpdateDeadline::Continue(1))
    }

    /// CPU time since the start: wall time for a call that met no tick.
    pub(super) fn spent(&self, now: Duration) -> Duration {
        match self.first {
            None => now.saturating_sub(self.started),
            Some((at_first, before)) => thread_cpu().saturating_sub(at_first).saturating_add(before),
        }
    }
}

/// CPU time of this thread.
pub(super) fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A guest that sleeps, or a machine so busy that the guest does not get on, ends here.
const WALL_TIMES: u32 = 20;
/// As the pool holds them.
const TABLE_ELEMENTS_MAX: usize = 64 << 10;
