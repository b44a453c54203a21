//! A scheduler in place of the system's: of all threads of a world one runs at a time, and a seed says which goes on at every
//! point where a thread stops.
//!
//! Simulated threads are real ones that hand a baton on: whoever has it runs, all others are parked. A thread stops where it
//! waits, where it reaches the disk or the object store, between two polls of a task, and at the points named in the code
//! ([`Threads::pause`]). Time stands still while somebody can run; when all wait, it goes to where the first sleeper wakes.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fmt::Write as _,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

use super::random::Random;
use crate::threads::{Ended, Gate, Running, Sleep, Threads, Unfinished, Work};

/// Steps after which a world is called endless; most end within 30 000.
const STEPS_MAX: u64 = 200_000;
/// Time that a step takes, at most.
const STEP_MAX: u64 = 200;
/// How often the main thread looks whether the others get on, and how often they may not.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOKS_MAX: u32 = 60;
/// The thread that began the world.
const MAIN: usize = 0;

/// Of a world. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Number of the thread that has the baton.
    running: AtomicUsize,
}

struct State {
    random: Random,
    seed: u64,
    threads: Vec<Sim>,
    step: u64,
    now: Duration,
    log: String,
    due: Vec<(u64, Due)>,
    /// Async code that sleeps, by time and number. Unlike a thread that waits for some time, it keeps no world from its end.
    timers: BTreeMap<(Duration, u64), Waker>,
    next_timer: u64,
    /// Why the world cannot go on.
    stuck: Option<String>,
}

type Due = Box<dyn FnOnce() + Send>;

struct Sim {
    name: String,
    handle: Option<thread::Thread>,
    status: Status,
    point: &'static str,
    weight: u64,
    wakes_at: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Ready,
    Waits,
    /// Goes on when all others wait for something that only it can bring.
    Idle,
    Done,
}

thread_local! {
    static ME: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schedule").finish_non_exhaustive()
    }
}

impl Schedule {
    /// A world of this thread alone, which is its main one from now on.
    pub(super) fn new(seed: u64) -> Self {
        ME.set(MAIN);
        one_core();
        let state = State {
            random: Random::new(seed),
            seed,
            threads: vec![Sim::new("main", 16, Some(thread::current()))],
            step: 0,
            now: Duration::from_secs(1_000),
            log: String::new(),
            due: Vec::new(),
            timers: BTreeMap::new(),
            next_timer: 0,
            stuck: None,
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), running: AtomicUsize::new(MAIN) }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line of the world's log.
    pub(super) fn note(&self, line: std::fmt::Arguments<'_>) {
        let mut state = self.lock();
        let step = state.step;
        // Writing to a string does not fail.
        writeln!(state.log, "{step} {line}").unwrap();
    }

    /// All lines so far.
    pub(super) fn log(&self) -> String {
        self.lock().log.clone()
    }

    pub(super) fn step(&self) -> u64 {
        self.lock().step
    }

    pub(super) fn now(&self) -> Duration {
        self.lock().now
    }

    /// A number below a bound, of the world's seed.
    pub(super) fn below(&self, bound: u64) -> u64 {
        self.lock().random.below(bound)
    }

    /// Lets something happen so many steps from now.
    pub(super) fn after(&self, steps: u64, event: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        let at = state.step + steps;
        state.due.push((at, Box::new(event)));
    }

    /// Forgets what has not happened yet.
    pub(super) fn calm(&self) {
        self.lock().due.clear();
    }

    /// Lets all others run until each of them waits for good.
    ///
    /// # Errors
    /// If the world is stuck.
    pub(super) fn idle(&self) -> Result<(), String> {
        self.stop(Status::Idle, "idle", None);
        self.lock().stuck.clone().map_or(Ok(()), Err)
    }

    /// Names of the threads that have not ended, but for the main one.
    pub(super) fn alive(&self) -> Vec<String> {
        let state = self.lock();
        let others = state.threads.iter().skip(1).filter(|thread| thread.status != Status::Done);
        others.map(|thread| format!("{} at {}", thread.name, thread.point)).collect()
    }

    fn me(&self) -> usize {
        ME.get()
    }

    /// Stops this thread and hands the baton on; comes back when it is its turn again.
    fn stop(&self, status: Status, point: &'static str, wakes_at: Option<Duration>) {
        let me = self.me();
        assert_ne!(me, usize::MAX, "a thread that the simulation did not start stops at {point}");
        let (due, timers) = {
            let mut state = self.lock();
            state.step += 1;
            let step = state.step;
            let nanos = state.random.below(STEP_MAX) * 1_000;
            state.now += Duration::from_nanos(nanos);
            let (due, later) = std::mem::take(&mut state.due).into_iter().partition(|(at, _)| *at <= step);
            state.due = later;
            let due: Vec<(u64, Due)> = due;
            let sim = &mut state.threads[me];
            (sim.status, sim.point, sim.wakes_at) = (status, point, wakes_at);
            let now = state.now;
            let later = state.timers.split_off(&(now, u64::MAX));
            (due, std::mem::replace(&mut state.timers, later))
        };
        timers.into_values().for_each(Waker::wake);
        due.into_iter().for_each(|(_, event)| event());
        if me == MAIN && thread::panicking() {
            // The world has ended; what it leaves is not waited for.
            return;
        }
        let next = self.lock().next(me);
        self.hand_to(me, next);
        if status != Status::Done {
            self.wait_for_turn(me);
        }
        if me == MAIN
            && let Some(stuck) = self.lock().stuck.clone()
        {
            panic!("{stuck}");
        }
    }

    fn hand_to(&self, me: usize, next: usize) {
        if next == me {
            return;
        }
        let handle = self.lock().threads[next].handle.clone();
        self.shared.running.store(next, Ordering::Release);
        handle.expect("a thread that may run was started").unpark();
    }

    fn wait_for_turn(&self, me: usize) {
        let (mut step, mut quiet) = (0, 0);
        while self.shared.running.load(Ordering::Acquire) != me {
            if me != MAIN {
                thread::park();
                continue;
            }
            thread::park_timeout(LOOK_EVERY);
            let now = self.step();
            (step, quiet) = if now == step { (now, quiet + 1) } else { (now, 0) };
            if quiet > LOOKS_MAX {
                let running = self.shared.running.load(Ordering::Acquire);
                let name = self.lock().threads[running].name.clone();
                panic!("{name} does not come back: it loops, or waits for a lock that another holds over a step");
            }
        }
    }

    fn wake(&self, number: usize) {
        let mut state = self.lock();
        let sim = &mut state.threads[number];
        if sim.status == Status::Waits {
            (sim.status, sim.wakes_at) = (Status::Ready, None);
        }
    }
}

/// All threads of a world on one core: handing the baton on is then a switch, not a wake-up of another core.
fn one_core() {
    let Ok(cores) = rustix::thread::sched_getaffinity(None) else { return };
    let mine = rustix::thread::sched_getcpu();
    if cores.is_set(mine) {
        let mut one = rustix::thread::CpuSet::new();
        one.set(mine);
        // Slower without it, and no less right.
        let _bound = rustix::thread::sched_setaffinity(None, &one);
    }
}

impl Sim {
    fn new(name: &str, weight: u64, handle: Option<thread::Thread>) -> Self {
        Self { name: name.to_owned(), handle, status: Status::Ready, point: "start", weight, wakes_at: None }
    }
}

impl State {
    /// The thread that goes on now.
    fn next(&mut self, me: usize) -> usize {
        if self.step > STEPS_MAX && self.stuck.is_none() {
            self.stuck = Some(format!("more than {STEPS_MAX} steps and no end: {}", self.places()));
        }
        if self.stuck.is_some() {
            return MAIN;
        }
        loop {
            let ready = |sim: &Sim| sim.status == Status::Ready;
            let all: u64 = self.threads.iter().filter(|sim| ready(sim)).map(|sim| sim.weight).sum();
            if all > 0 {
                let mut at = self.random.below(all);
                let chosen = self.threads.iter().position(|sim| {
                    let here = ready(sim) && at < sim.weight;
                    if ready(sim) && !here {
                        at -= sim.weight;
                    }
                    here
                });
                let chosen = chosen.expect("one of those that are ready");
                if chosen != me {
                    let line = format!("{} {} -> {}", self.step, self.threads[me].point, self.threads[chosen].name);
                    self.log.push_str(&line);
                    self.log.push('\n');
                }
                return chosen;
            }
            let sleeper = (0..self.threads.len()).filter(|&at| self.threads[at].status == Status::Waits);
            let first = sleeper.filter_map(|at| Some((self.threads[at].wakes_at?, at))).min();
            if let Some((at, sleeper)) = first {
                self.now = self.now.max(at);
                self.threads[sleeper].status = Status::Ready;
                continue;
            }
            if self.threads[MAIN].status != Status::Idle {
                self.stuck = Some(format!("all threads wait for each other: {}", self.places()));
            }
            self.threads[MAIN].status = Status::Ready;
            return MAIN;
        }
    }

    fn places(&self) -> String {
        let alive = self.threads.iter().filter(|sim| sim.status != Status::Done);
        alive.map(|sim| format!("{} {:?} at {}", sim.name, sim.status, sim.point)).collect::<Vec<_>>().join(", ")
    }

    /// How often a thread gets its turn, beside others: some worlds have slow ones.
    fn weight(&self, name: &str) -> u64 {
        let mut random =
            Random::new(self.seed ^ name.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte)));
        [1, 4, 16, 16, 64][random.index(5)]
    }
}

impl Threads for Schedule {
    fn spawn(&self, name: &str, work: Work) -> io::Result<Box<dyn Running>> {
        let ended = Arc::new(End { done: AtomicBool::new(false), gate: self.new_gate("join") });
        let number = {
            let mut state = self.lock();
            let weight = state.weight(name);
            let new = Sim::new(name, weight, None);
            match state.threads.iter().position(|sim| sim.status == Status::Done) {
                Some(free) => {
                    state.threads[free] = new;
                    free
                }
                None => {
                    state.threads.push(new);
                    state.threads.len() - 1
                }
            }
        };
        let (schedule, end) = (self.clone(), Arc::clone(&ended));
        let started = thread::Builder::new().name(name.to_owned()).spawn(move || {
            ME.set(number);
            schedule.wait_for_turn(number);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            if let Err(panic) = result {
                schedule.panicked(number, &panic);
            }
            end.done.store(true, Ordering::Release);
            end.gate.notify_all();
            drop(end);
            schedule.stop(Status::Done, "done", None);
        })?;
        self.lock().threads[number].handle = Some(started.thread().clone());
        Ok(Box::new(Joined { end: ended }))
    }

    fn run_blocking(&self, work: Work) -> Ended {
        let schedule = self.clone();
        Box::pin(async move {
            let (done, ended) = oneshot::channel();
            let work = move || {
                work();
                // Nobody may wait any more.
                let _nobody = done.send(());
            };
            schedule.spawn("blocking", Box::new(work)).map_err(|_| Unfinished::Stopped)?;
            ended.await.map_err(|_| Unfinished::Panicked)
        })
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let place = {
            let mut state = self.lock();
            state.next_timer += 1;
            (state.now + time, state.next_timer)
        };
        Box::pin(SimSleep { schedule: self.clone(), place })
    }

    fn drive(&self, mut future: Pin<&mut dyn Future<Output = ()>>) {
        let gate = Arc::new(Woken { gate: self.new_gate("drive"), woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&gate));
        let mut context = Context::from_waker(&waker);
        while future.as_mut().poll(&mut context).is_pending() {
            if !gate.woken.swap(false, Ordering::AcqRel) {
                gate.gate.wait(None);
                gate.woken.store(false, Ordering::Release);
            }
        }
    }

    fn gate(&self) -> Option<Box<dyn Gate>> {
        Some(Box::new(self.new_gate("signal")))
    }

    fn pause(&self, point: &'static str) {
        self.stop(Status::Ready, point, None);
    }

    fn is_simulated(&self) -> bool {
        true
    }
}

impl Schedule {
    pub(super) fn new_gate(&self, point: &'static str) -> SimGate {
        SimGate { schedule: self.clone(), point, waiting: Mutex::default() }
    }

    fn panicked(&self, number: usize, panic: &Box<dyn std::any::Any + Send>) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
        let mut state = self.lock();
        let line = format!("thread {} panicked: {text}", state.threads[number].name);
        state.stuck.get_or_insert(line);
    }
}

/// A place to wait at.
#[derive(Debug)]
pub(super) struct SimGate {
    schedule: Schedule,
    point: &'static str,
    waiting: Mutex<Vec<usize>>,
}

impl Gate for SimGate {
    fn notify_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        waiting.into_iter().for_each(|number| self.schedule.wake(number));
    }

    fn wait(&self, time_max: Option<Duration>) -> Duration {
        let me = self.schedule.me();
        self.waiting.lock().unwrap().push(me);
        let before = self.schedule.now();
        self.schedule.stop(Status::Waits, self.point, time_max.map(|time| before + time));
        self.waiting.lock().unwrap().retain(|number| *number != me);
        time_max.unwrap_or_default().saturating_sub(self.schedule.now() - before)
    }
}

#[derive(Debug)]
struct End {
    done: AtomicBool,
    gate: SimGate,
}

#[derive(Debug)]
struct Joined {
    end: Arc<End>,
}

impl Running for Joined {
    fn join(self: Box<Self>) -> thread::Result<()> {
        while !self.end.done.load(Ordering::Acquire) && !thread::panicking() {
            self.end.gate.wait(None);
        }
        Ok(())
    }
}

struct SimSleep {
    schedule: Schedule,
    place: (Duration, u64),
}

impl Future for SimSleep {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.schedule.lock();
        if state.now >= self.place.0 {
            return Poll::Ready(());
        }
        state.timers.insert(self.place, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for SimSleep {
    fn drop(&mut self) {
        let waker = self.schedule.lock().timers.remove(&self.place);
        drop(waker);
    }
}

struct Woken {
    gate: SimGate,
    woken: AtomicBool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.gate.notify_all();
    }
}
