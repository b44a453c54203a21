//! Async code of a world: a few simulated threads poll its tasks, as tokio's workers would, in an order that the seed decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
};

use super::schedule::{Schedule, SimGate};
use crate::threads::{Gate as _, Running, Threads as _};

/// Threads that poll: two tasks may be in the middle of their code at once.
const WORKERS: usize = 2;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The tasks of one life of a broker. Clones are the same ones.
#[derive(Debug, Clone)]
pub(super) struct Tasks {
    shared: Arc<Shared>,
}

struct Shared {
    schedule: Schedule,
    state: Mutex<State>,
    work: SimGate,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    tasks: BTreeMap<u64, Slot>,
    /// Tasks to poll. A set: some of tokio's wakers come in an order of the system's randomness.
    ready: BTreeSet<u64>,
    next: u64,
    stopped: bool,
}

struct Slot {
    name: String,
    /// `None` while it is polled.
    task: Option<Task>,
    waker: Waker,
    /// Others wait for nothing from it.
    is_server: bool,
}

/// What a task is to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It comes to an end by itself.
    Actor,
    /// It serves for ever.
    Server,
}

impl Tasks {
    pub(super) fn new(schedule: Schedule) -> Self {
        let work = schedule.new_gate("no task");
        Self { shared: Arc::new(Shared { schedule, state: Mutex::default(), work }) }
    }

    /// Starts the threads. `enter` runs on each of them, and what it gives lives as long.
    pub(super) fn start<T>(&self, enter: impl Fn() -> T + Clone + Send + 'static) -> Vec<Box<dyn Running>> {
        let worker = |number| {
            let (me, enter) = (self.clone(), enter.clone());
            let work = move || {
                let _entered = enter();
                me.work();
            };
            self.shared.schedule.spawn(&format!("worker-{number}"), Box::new(work)).unwrap()
        };
        (0..WORKERS).map(worker).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task.
    pub(super) fn spawn(&self, name: String, role: Role, task: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        let waker = Waker::from(Arc::new(Woken { tasks: self.clone(), number }));
        let slot = Slot { name, task: Some(Box::pin(task)), waker, is_server: role == Role::Server };
        state.tasks.insert(number, slot);
        drop(state);
        self.wake(number);
    }

    fn wake(&self, number: u64) {
        self.lock().ready.insert(number);
        self.shared.work.notify_all();
    }

    /// Names of actors that have not ended.
    pub(super) fn unfinished(&self) -> Vec<String> {
        let state = self.lock();
        state.tasks.values().filter(|slot| !slot.is_server).map(|slot| slot.name.clone()).collect()
    }

    /// No task is polled again.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.shared.work.notify_all();
    }

    /// Drops all tasks, as they are.
    pub(super) fn clear(&self) {
        let tasks = std::mem::take(&mut self.lock().tasks);
        drop(tasks);
    }

    fn work(&self) {
        loop {
            let Some((number, mut task, waker)) = self.take() else {
                if self.lock().stopped {
                    return;
                }
                self.shared.work.wait(None);
                continue;
            };
            let mut context = Context::from_waker(&waker);
            match task.as_mut().poll(&mut context) {
                Poll::Ready(()) => {
                    drop(task);
                    drop(self.lock().tasks.remove(&number));
                }
                Poll::Pending => {
                    if let Some(slot) = self.lock().tasks.get_mut(&number) {
                        slot.task = Some(task);
                    }
                }
            }
            self.shared.schedule.pause("task");
        }
    }

    /// A task to poll.
    fn take(&self) -> Option<(u64, Task, Waker)> {
        let mut state = self.lock();
        if state.stopped {
            return None;
        }
        let State { tasks, ready, .. } = &mut *state;
        ready.retain(|number| tasks.contains_key(number));
        // Those that another thread polls right now come later.
        let free: Vec<u64> = ready.iter().copied().filter(|number| tasks[number].task.is_some()).collect();
        if free.is_empty() {
            return None;
        }
        let number = free[usize::try_from(self.shared.schedule.below(free.len() as u64)).unwrap()];
        ready.remove(&number);
        let slot = tasks.get_mut(&number)?;
        Some((number, slot.task.take()?, slot.waker.clone()))
    }
}

struct Woken {
    tasks: Tasks,
    number: u64,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.tasks.wake(self.number);
    }
}
