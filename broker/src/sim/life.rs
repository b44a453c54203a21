//! One life of a broker in a world: produce, fetch and shard over the world's disk, and the tasks that use them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;

use super::{
    journal::Journal,
    model::Gate,
    schedule::Schedule,
    tasks::{Role, Tasks},
};
use crate::{
    auth::{Auth, Claim, Config as AuthConfig},
    clock::{Clock, SharedClock, SystemClock, SystemRandom},
    fetch::{self, Fetch, Subscriber},
    hooks::{
        self, Generation, LoadError, Runtime,
        spec::{Budget as CallBudget, ChainEntry, PluginSpec, Policy, Rejection, Source, TenantSpec, Use},
    },
    produce::{self, Budget, GuestLog, Live, Produce, Session},
    shard::Shard,
};

/// Makes generations; no guest ever runs in it.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let config = hooks::Config { instances_max: 1, hook_threads: 1, ..hooks::Config::default() };
    Runtime::new(config, Arc::new(GuestLog), Arc::new(SystemClock::default()), Arc::new(SystemRandom::default()))
        .unwrap()
});

/// Timers need one to be made; nobody turns its wheel, so that they never fire.
pub(super) static TIMERS: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap());

/// Everything that tasks use. Clones are the same life.
#[derive(Debug, Clone)]
pub(super) struct Life {
    pub(super) schedule: Schedule,
    pub(super) tasks: Tasks,
    pub(super) shard: Shard,
    pub(super) journal: Arc<Mutex<Journal>>,
    pub(super) tenant: u32,
    pub(super) produce: Produce,
    pub(super) fetch: Fetch,
    pub(super) session: Session,
    pub(super) subscriber: Subscriber,
    /// Nothing that is told from now on leaves the broker.
    pub(super) killed: Arc<AtomicBool>,
    /// Something was made to fail.
    pub(super) faulted: Arc<AtomicBool>,
}

impl Life {
    /// Over an open shard.
    pub(super) fn new(
        schedule: &Schedule,
        clock: &SharedClock,
        tasks: Tasks,
        shard: Shard,
        journal: &Arc<Mutex<Journal>>,
        [killed, faulted]: [Arc<AtomicBool>; 2],
    ) -> Result<Self, String> {
        let tenant = shard.tenant("default").map_err(|error| error.to_string())?;
        let live = Arc::new(Live::new(generation(shard.live_generation(tenant), schedule)));
        let principal = Auth::new(AuthConfig::default()).identify(&Claim { loopback: true, ..Claim::default() });
        let principal = Arc::new(principal.unwrap());
        let metrics = Arc::default();
        let config = produce::Config { in_flight_max: 4, ..produce::Config::default() };
        let produce = Produce::new(config, shard.clone(), Arc::clone(&metrics), Arc::clone(clock));
        let config =
            fetch::Config { read_bytes: 6_000, progress_every: Duration::from_millis(1), ..fetch::Config::default() };
        let fetch = Fetch::new(config, shard.clone(), metrics, Arc::clone(clock));
        let budget = Budget::new(1 << 20).connection(1 << 20, Duration::from_secs(3_600));
        let subscriber = Subscriber { principal: Arc::clone(&principal), tenant, live: live.watched() };
        let session = Session { principal, tenant, live, budget };
        let (schedule, journal) = (schedule.clone(), Arc::clone(journal));
        Ok(Self { schedule, tasks, shard, journal, tenant, produce, fetch, session, subscriber, killed, faulted })
    }

    pub(super) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// A disk or store that was made to fail may be the reason of a failure.
    pub(super) fn may_fail(&self) -> bool {
        self.faulted.load(Ordering::Acquire) || self.shard.failed().is_some()
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.schedule.below(bound)
    }

    pub(super) fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Starts a task that comes to an end.
    pub(super) fn act(&self, name: String, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(name, Role::Actor, task);
    }

    /// Makes new generations of the chain live, one after the other.
    pub(super) async fn swap(self, count: u64) {
        for _ in 0..count {
            for _ in 0..self.below(60) {
                turn().await;
            }
            let (shard, schedule) = (&self.shard, &self.schedule);
            let publish = || {
                let based_on = shard.live_generation(self.tenant);
                let ticket = shard.activate(self.tenant, based_on, Bytes::from_static(b"{}"))?;
                Ok::<_, crate::shard::Refusal>((generation(ticket.generation(), schedule), ticket))
            };
            let Ok(ticket) = self.session.live.change(publish).await else { return };
            let Ok(activated) = ticket.durable().await else { return };
            if self.is_killed() {
                return;
            }
            self.schedule.note(format_args!("generation {} is live", activated.generation));
            let mut journal = self.journal();
            journal.counts.swaps += 1;
            journal.generation = journal.generation.max(activated.generation);
        }
    }
}

/// Lets other tasks go first.
pub(super) async fn turn() {
    let mut been = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut been, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A generation whose only plugin is the simulation's.
fn generation(number: u64, schedule: &Schedule) -> Arc<Generation> {
    let used = || vec![Use { plugin: "gate".to_owned(), unless: String::new() }];
    let entry = ChainEntry {
        topics: vec!["in/>".to_owned()],
        except: Vec::new(),
        produce: used(),
        fetch: used(),
        rejection: Rejection::PerRecord,
        enforced: false,
        retention: None,
        place: "the simulation".to_owned(),
    };
    let plugin = PluginSpec {
        digest: String::new(),
        settings: "{}".to_owned(),
        files: BTreeMap::new(),
        grants: Vec::new(),
        budget: CallBudget::default(),
        on_produce_failure: Policy::Closed,
        on_fetch_failure: Policy::Closed,
        wasi: false,
        source: Source::File,
        applied: String::new(),
        place: "the simulation".to_owned(),
    };
    let spec = TenantSpec { plugins: BTreeMap::from([("gate".to_owned(), plugin)]), chain: vec![entry] };
    let absent = LoadError::NotWasm { plugin: "gate".to_owned(), what: "a closure stands here" };
    let plugins = BTreeMap::from([("gate".to_owned(), Err(Arc::new(absent)))]);
    let made = RUNTIME.generation("default", number, Arc::new(spec), plugins).unwrap();
    made.with_native(|_| Some(Gate::shared(number, schedule)))
}

/// The world's time.
#[derive(Debug)]
pub(super) struct SimClock {
    pub(super) schedule: Schedule,
    /// How far the wall clock is off.
    pub(super) skew: Mutex<i64>,
}

impl Clock for SimClock {
    fn unix(&self) -> Duration {
        let skew = *self.skew.lock().unwrap();
        let now = Duration::from_secs(1_700_000_000) + self.schedule.now();
        let by = Duration::from_millis(skew.unsigned_abs());
        if skew < 0 { now - by } else { now + by }
    }
    fn monotonic(&self) -> Duration {
        self.schedule.now()
    }
    fn threads(&self) -> crate::threads::SharedThreads {
        Arc::new(self.schedule.clone())
    }
}
