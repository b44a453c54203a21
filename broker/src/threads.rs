//! Threads and waiting as arguments: the only place where the log and the shard start a thread or let one wait.
//!
//! [`SystemThreads`] is the operating system's, at no cost beside a virtual call where a thread waits anyway. A simulation
//! brings its own behind the same clock ([`crate::clock::Clock::threads`]) and runs one thread at a time, in an order that a
//! seed decides (ADR 11). What holds a lock while it writes or reads must take it by [`lock`], else a simulated thread that is
//! stopped there would stop all others.

use std::{
    fmt::Debug,
    io,
    pin::{Pin, pin},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::sync::oneshot;

/// Work for a thread.
pub type Work = Box<dyn FnOnce() + Send>;
/// Resolves when work on a pool's thread has ended.
pub type Ended = Pin<Box<dyn Future<Output = Result<(), Unfinished>> + Send>>;
/// Resolves after some time.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Shared threads.
pub type SharedThreads = Arc<dyn Threads>;

/// Where threads come from, and how they wait.
pub trait Threads: Send + Sync + Debug {
    /// Starts a thread.
    ///
    /// # Errors
    /// If the system gives none.
    fn spawn(&self, name: &str, work: Work) -> io::Result<Box<dyn Running>>;

    /// Runs work that blocks on a thread of a pool, from async code.
    fn run_blocking(&self, work: Work) -> Ended;

    /// Resolves after some time. In async code of a runtime, or below [`Threads::drive`].
    fn sleep(&self, time: Duration) -> Sleep;

    /// Drives a future to its end on this thread, which has no runtime. It may wait for wakers and for time.
    fn drive(&self, future: Pin<&mut dyn Future<Output = ()>>);

    /// Something to wait on, where that is not a condition variable.
    fn gate(&self) -> Option<Box<dyn Gate>> {
        None
    }

    /// Between two steps that another thread may come in between. A simulation lets others go first here.
    fn pause(&self, _point: &'static str) {}

    /// One thread runs at a time, and may be stopped at a [`Threads::pause`].
    fn is_simulated(&self) -> bool {
        false
    }
}

/// A thread that was started.
pub trait Running: Send + Debug {
    /// Waits for its end.
    ///
    /// # Errors
    /// If it panicked.
    fn join(self: Box<Self>) -> thread::Result<()>;
}

/// What a simulated thread waits on.
pub trait Gate: Send + Sync + Debug {
    /// Wakes all who wait.
    fn notify_all(&self);
    /// Waits to be woken, or for some time; gives what is left of it.
    fn wait(&self, time_max: Option<Duration>) -> Duration;
}

/// Work beside async code that gave no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// It panicked.
    Panicked,
    /// The pool ended before it.
    Stopped,
}

/// A condition variable.
#[derive(Debug)]
pub struct Signal(Kind);

#[derive(Debug)]
enum Kind {
    System(Condvar),
    Gate(Box<dyn Gate>),
}

impl Signal {
    /// Nobody waits yet.
    pub fn new(threads: &dyn Threads) -> Self {
        Self(threads.gate().map_or_else(|| Kind::System(Condvar::new()), Kind::Gate))
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        match &self.0 {
            Kind::System(condvar) => condvar.notify_all(),
            Kind::Gate(gate) => gate.notify_all(),
        }
    }

    /// Gives the lock free and waits to be woken, as [`Condvar::wait`]. `mutex` is the guard's.
    pub fn wait<'a, T>(&self, mutex: &'a Mutex<T>, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        match &self.0 {
            Kind::System(condvar) => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Kind::Gate(gate) => {
                drop(guard);
                gate.wait(None);
                mutex.lock().unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    /// Waits while a condition holds, at most for some time, as [`Condvar::wait_timeout_while`]. `mutex` is the guard's.
    pub fn wait_while<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        mut guard: MutexGuard<'a, T>,
        time_max: Duration,
        mut holds: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        match &self.0 {
            Kind::System(condvar) => {
                condvar.wait_timeout_while(guard, time_max, holds).unwrap_or_else(PoisonError::into_inner).0
            }
            Kind::Gate(gate) => {
                let mut left = time_max;
                while holds(&mut guard) && !left.is_zero() {
                    drop(guard);
                    left = gate.wait(Some(left));
                    guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
                }
                guard
            }
        }
    }
}

/// Takes a lock that others may hold while they write or read.
pub fn lock<'a, T>(threads: &dyn Threads, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
    while threads.is_simulated() {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => threads.pause("lock"),
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs work that blocks beside async code. It goes on when nobody waits any more.
///
/// # Errors
/// If it panics, or the pool ends before it.
pub async fn blocking<T: Send + 'static>(
    threads: &dyn Threads,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unfinished> {
    let (done, mut result) = oneshot::channel();
    threads.run_blocking(Box::new(move || drop(done.send(work())))).await?;
    result.try_recv().map_err(|_| Unfinished::Stopped)
}

/// Drives a future to its end on this thread.
///
/// # Panics
/// If `threads` breaks the rule of [`Threads::drive`] and comes back before.
pub fn block_on<T>(threads: &dyn Threads, future: impl Future<Output = T>) -> T {
    let mut done = None;
    {
        let driven = pin!(async { done = Some(future.await) });
        threads.drive(driven);
    }
    done.expect("a future that was driven to its end gave its output")
}

/// The operating system's threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemThreads;

impl Threads for SystemThreads {
    fn spawn(&self, name: &str, work: Work) -> io::Result<Box<dyn Running>> {
        Ok(Box::new(thread::Builder::new().name(name.to_owned()).spawn(work)?))
    }

    fn run_blocking(&self, work: Work) -> Ended {
        Box::pin(async move {
            let unfinished = |error: tokio::task::JoinError| match error.is_panic() {
                true => Unfinished::Panicked,
                false => Unfinished::Stopped,
            };
            tokio::task::spawn_blocking(work).await.map_err(unfinished)
        })
    }

    fn sleep(&self, time: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(time))
    }

    fn drive(&self, future: Pin<&mut dyn Future<Output = ()>>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime without I/O asks nothing of the system").block_on(future);
    }
}

impl Running for JoinHandle<()> {
    fn join(self: Box<Self>) -> thread::Result<()> {
        Self::join(*self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_future_is_driven_over_its_waits() {
        let (sender, receiver) = oneshot::channel();
        let started = SystemThreads.spawn("sender", Box::new(move || sender.send(7).expect("somebody waits")));
        assert_eq!(block_on(&SystemThreads, receiver), Ok(7));
        started.expect("a thread").join().expect("no panic");
    }

    #[test]
    fn a_signal_wakes_and_a_condition_that_does_not_hold_is_not_waited_for() {
        let shared = Arc::new((Mutex::new(false), Signal::new(&SystemThreads)));
        let other = Arc::clone(&shared);
        let wakes = move || {
            *lock(&SystemThreads, &other.0) = true;
            other.1.notify_all();
        };
        let thread = SystemThreads.spawn("wakes", Box::new(wakes)).expect("a thread");
        let (mutex, signal) = &*shared;
        let mut woken = lock(&SystemThreads, mutex);
        while !*woken {
            woken = signal.wait(mutex, woken);
        }
        drop(signal.wait_while(mutex, woken, Duration::MAX, |woken| !*woken));
        thread.join().expect("no panic");
    }

    #[tokio::test]
    async fn work_that_blocks_gives_its_result_and_a_panic_is_told() {
        static RAN: AtomicBool = AtomicBool::new(false);
        assert_eq!(blocking(&SystemThreads, || RAN.swap(true, Ordering::SeqCst)).await, Ok(false));
        assert!(RAN.load(Ordering::SeqCst));
        let fails = || -> u8 { panic!("on purpose") };
        assert_eq!(blocking(&SystemThreads, fails).await, Err(Unfinished::Panicked));
    }
}
