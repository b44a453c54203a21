//! Hook threads: where batches go whose plugins are not short. A bounded queue, and callers that wait at its door.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError},
};

use tokio::sync::{Semaphore, oneshot};

use super::RuntimeError;

type Job = Box<dyn FnOnce() + Send>;

/// The pool. Its threads end when it is stopped and the queue is empty.
#[derive(Debug)]
pub(super) struct Threads {
    queue: Arc<Queue>,
    /// One permit per place in the queue, given back when a job begins.
    places: Arc<Semaphore>,
}

/// The job was not run: the pool is stopped, or the job panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the hook thread gave no answer")]
pub(super) struct NoAnswer;

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    stopped: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Threads {
    pub(super) fn start(count: usize, queue_max: usize) -> Result<Self, RuntimeError> {
        let queue = Arc::new(Queue::default());
        let threads = Self { queue, places: Arc::new(Semaphore::new(queue_max.clamp(1, Semaphore::MAX_PERMITS))) };
        for number in 0..count.max(1) {
            let (name, queue) = (format!("hook-{number}"), Arc::clone(&threads.queue));
            let started = std::thread::Builder::new().name(name.clone()).spawn(move || {
                step_back();
                queue.work();
            });
            if let Err(error) = started {
                threads.stop();
                return Err(RuntimeError::Thread { name, reason: error.to_string() });
            }
        }
        Ok(threads)
    }

    /// Runs a job on a hook thread. Waits for a place in the queue first. Cancel-safe: a job whose caller went away
    /// before it began is skipped, after that its result is thrown away.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| NoAnswer)?;
        let (answer, asked) = oneshot::channel();
        self.queue.push(Box::new(move || {
            drop(place);
            if !answer.is_closed() {
                // Fails only where nobody waits any more.
                drop(answer.send(work()));
            }
        }))?;
        asked.await.map_err(|_| NoAnswer)
    }

    /// No new jobs; those in the queue are still run.
    pub(super) fn stop(&self) {
        self.places.close();
        self.queue.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
        self.queue.ready.notify_all();
    }
}

/// Lets the threads that serve everybody go first where there are not enough cores: a guest that spins is on this one.
fn step_back() {
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "a hook thread keeps the priority of the others");
    }
}

/// A third of the weight of a thread that is not nice: less, and on a busy machine the wall cap of twenty budgets would come
/// before an honest guest has used one.
const NICE: i32 = 5;

impl Queue {
    fn push(&self, job: Job) -> Result<(), NoAnswer> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.stopped {
            return Err(NoAnswer);
        }
        state.jobs.push_back(job);
        drop(state);
        self.ready.notify_one();
        Ok(())
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            // A panic is a bug of ours; its caller gets `NoAnswer`, and the thread serves the others.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("a hook job panicked");
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.stopped {
                return None;
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
