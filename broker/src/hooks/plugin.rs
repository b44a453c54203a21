//! A loaded plugin: its warm instances, and one call with everything that may go wrong in it.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::limits::Limits;

use super::{
    CodeSource, FaultKind, Hook, abi,
    capabilities::{Counters, LogWindow},
    frame,
    grants::Grants,
    guest::{Deadline, Guest, MemoryCap, Phase, Services},
    instance::{Code, Fault, Given, Instance},
    placement::Learned,
    spec::{Budget, PluginSpec},
    stats::{HookStats, Placement, SlotStats, Stats, add},
    topics::Topics,
    verdict::{self, Rules},
    work::{Plan, Selection, Work},
};

/// What a plugin says of itself, whatever its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Its own name, at most 64 bytes.
    pub name: String,
    /// Its version, at most 64 bytes.
    pub version: String,
    /// Declares `on-produce`.
    pub produce: bool,
    /// Declares `on-fetch`.
    pub fetch: bool,
    /// The same input always gives the same verdict.
    pub pure: bool,
    /// `on-fetch` looks at the reader.
    pub reads_reader: bool,
    /// Each record is judged by itself.
    pub judges_singly: bool,
    /// Runs in an interpreter: default budgets are twenty times larger.
    pub interpreted: bool,
    /// JSON Schema of the settings, or empty.
    pub settings_schema: String,
}

/// How long loading took, in wall time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadTimes {
    /// From the component's bytes to machine code, the check of the digest included.
    pub code: Duration,
    /// Size of that machine code.
    pub code_bytes: usize,
    /// From there to a warm instance: link, `describe`, `init`, smoke run.
    pub start: Duration,
}

/// A plugin that passed all its checks.
#[derive(Debug)]
pub struct Plugin {
    pub(super) name: Arc<str>,
    pub(super) tenant: Arc<str>,
    pub(super) spec: PluginSpec,
    pub(super) budget: Budget,
    pub(super) manifest: Manifest,
    pub(super) grants: Grants,
    pub(super) code: Code,
    pub(super) code_source: CodeSource,
    pub(super) load_times: LoadTimes,
    pub(super) settings: Arc<abi::Settings>,
    pub(super) services: Arc<Services>,
    pub(super) limits: Limits,
    pub(super) counters: Arc<Counters>,
    pub(super) log: Arc<LogWindow>,
    pub(super) slots: Box<[Slot]>,
    pub(super) learned: Learned,
    /// For hooks that are not told who reads.
    pub(super) nobody: Arc<abi::Reader>,
}

/// Room for one instance. Whoever holds the lock may call it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    instance: Mutex<Option<Box<Instance>>>,
    stats: SlotStats,
}

/// What a call is about, beside the records.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) hook: Hook,
    pub(super) generation: u64,
    pub(super) now_ms: i64,
    /// Monotonic time before the call, then after it.
    pub(super) now: &'a Cell<Duration>,
    pub(super) principal: &'a Arc<str>,
    pub(super) reader: Option<&'a Arc<abi::Reader>>,
    pub(super) topics: &'a Topics,
}

/// On which thread a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// That of the caller, who serves others too.
    Caller,
    /// One that may be held for as long as budgets last.
    HookThread(Try),
}

/// How often a call that fails is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Try {
    /// Once more on a fresh instance.
    First,
    /// It failed before: not again.
    Last,
}

/// How a call went.
#[derive(Debug)]
pub(super) enum Called {
    /// It was made; no plan = all records pass as they are.
    Done(Result<Option<Box<Plan>>, Fault>),
    /// It needs a fresh instance, hence a hook thread.
    NotHere(Try),
}

impl Plugin {
    /// Name in `plugins.toml`.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// `sha256:HEX` of the component as supplied.
    pub fn digest(&self) -> &str {
        &self.spec.digest
    }
    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
    /// How it is configured.
    pub fn spec(&self) -> &PluginSpec {
        &self.spec
    }
    /// The budget in force: that of the spec, larger where an interpreted plugin has the default.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
    /// Where its machine code came from.
    pub fn code_source(&self) -> CodeSource {
        self.code_source
    }
    /// How long loading took.
    pub fn load_times(&self) -> LoadTimes {
        self.load_times
    }
    /// The value of a counter of this plugin, 0 if it has none of that name.
    pub fn counter(&self, name: &str) -> i64 {
        self.counters.value(name)
    }
    /// Where its calls run now.
    pub fn placement(&self) -> Placement {
        self.learned.placement()
    }
    /// What it did since it was loaded. May be a call behind.
    pub fn stats(&self) -> Stats {
        let (mut produce, mut fetch) = (HookStats::default(), HookStats::default());
        let (mut memory_bytes, mut instances) = (0, 0);
        for slot in &self.slots {
            slot.stats.sum_into(Hook::Produce, &mut produce);
            slot.stats.sum_into(Hook::Fetch, &mut fetch);
            memory_bytes = memory_bytes.max(slot.stats.memory_bytes.load(Ordering::Relaxed));
            instances += slot.stats.instances.load(Ordering::Relaxed);
        }
        Stats {
            produce,
            fetch,
            memory_bytes,
            placement: self.placement(),
            instances,
            log_lines_dropped: self.log.dropped.load(Ordering::Relaxed),
        }
    }

    pub(super) fn has(&self, hook: Hook) -> bool {
        match hook {
            Hook::Produce => self.manifest.produce,
            Hook::Fetch => self.manifest.fetch,
        }
    }

    /// Calls the plugin and checks its verdict. What may be the instance's fault is tried once more on a fresh one. On the
    /// caller's thread no instance is started: `init` may take seconds.
    pub(super) fn call(&self, work: &Arc<Work>, selection: &Selection, call: &Call<'_>, place: Place) -> Called {
        let Some((mut held, stats)) = self.slot(place, call.now) else { return Called::NotHere(Try::First) };
        let mut result = self.attempt(&mut held, stats, work, selection, call);
        if let Err(fault) = &result
            && matches!(fault.kind, FaultKind::Trap | FaultKind::Memory | FaultKind::BadOutput)
            && place != Place::HookThread(Try::Last)
        {
            stats.fault(call.hook, fault.kind);
            if place == Place::Caller {
                return Called::NotHere(Try::Last);
            }
            result = self.attempt(&mut held, stats, work, selection, call);
        }
        match &mut result {
            Ok(Some(plan)) => stats.effects(call.hook, &plan.effects),
            Ok(None) => {}
            Err(fault) => {
                stats.fault(call.hook, fault.kind);
                if selection.len() == 1 {
                    fault.record = selection.row(0).map(|row| work.view().at(row));
                }
            }
        }
        Called::Done(result)
    }

    fn attempt(
        &self,
        held: &mut Option<Box<Instance>>,
        stats: &SlotStats,
        work: &Arc<Work>,
        selection: &Selection,
        call: &Call<'_>,
    ) -> Result<Option<Box<Plan>>, Fault> {
        // Out of the slot: an instance that fails, or on which we panic, is not put back.
        let mut instance = match held.take() {
            Some(instance) => instance,
            None => {
                let instance = self.start(stats)?;
                call.now.set(self.services.clock.monotonic());
                Box::new(instance)
            }
        };
        let before = call.now.get();
        let result = self.run(&mut instance, work, selection, call);
        let now = self.services.clock.monotonic();
        call.now.set(now);
        let (cpu, wall) = (instance.spent(now), now.saturating_sub(before));
        stats.call(call.hook, selection.len(), nanos(cpu), nanos(wall));
        stats.memory(instance.memory_bytes());
        self.learned.learn(wall);
        let sound = match &result {
            Ok(_) => true,
            Err(fault) => matches!(fault.kind, FaultKind::Retry { .. } | FaultKind::Permanent),
        };
        if sound && !instance.is_worn() {
            *held = Some(instance);
        }
        result
    }

    /// One call on one instance.
    pub(super) fn run(
        &self,
        instance: &mut Instance,
        work: &Arc<Work>,
        selection: &Selection,
        call: &Call<'_>,
    ) -> Result<Option<Box<Plan>>, Fault> {
        let fields = match (call.hook, &instance.needs) {
            (Hook::Produce, Some(needs)) => needs.produce,
            (Hook::Fetch, Some(needs)) => needs.fetch,
            (_, None) => abi::Fields::default(),
        };
        let frame = Arc::make_mut(&mut instance.frame);
        frame::build(work, selection, fields, frame);
        let frame_bytes = frame.index.len() * 4 + frame.data.len();
        let reachable = if self.grants.batch { frame_bytes.max(work.bytes()) } else { frame_bytes };
        let count = selection.len();
        let batch = self.grants.batch.then(|| (Arc::clone(work), selection.clone()));
        let reader = call.reader.filter(|_| self.manifest.reads_reader).unwrap_or(&self.nobody);
        let verdict = instance.call(Given {
            hook: call.hook,
            info: abi::BatchInfo { count, generation: call.generation, now_ms: call.now_ms },
            reader,
            phase: Phase::Hook { principal: Arc::clone(call.principal), batch },
            started: call.now.get(),
            budget: self.call_budget(reachable),
            lift_bytes_max: self.output_bytes_max(reachable, count),
        })?;
        let input = frame_bytes.saturating_add(instance.guest().read_bytes.min(work.bytes()));
        let rules = Rules {
            hook: call.hook,
            plugin: &self.name,
            grants: &self.grants,
            limits: &self.limits,
            topics: call.topics,
            output_bytes_max: self.output_bytes_max(input, count),
        };
        verdict::check(verdict, work, selection, &rules).map_err(|bad| {
            let guilty = bad.position().and_then(|position| selection.row(position));
            let record = guilty.map(|row| work.view().at(row));
            Fault { record, ..Fault::new(FaultKind::BadOutput, bad) }
        })
    }

    /// A fresh instance that went through `init`.
    fn start(&self, stats: &SlotStats) -> Result<Instance, Fault> {
        add(&stats.instances, 1);
        let unavailable = |fault: Fault| Fault::new(FaultKind::Unavailable, format!("a new instance failed: {fault}"));
        let mut instance =
            Instance::new(&self.code, self.guest(&self.counters), self.budget.init).map_err(unavailable)?;
        instance.init(&self.settings, self.budget.init).map_err(unavailable)?;
        Ok(instance)
    }

    /// Data for a new store.
    pub(super) fn guest(&self, counters: &Arc<Counters>) -> Guest {
        Guest {
            services: Arc::clone(&self.services),
            tenant: Arc::clone(&self.tenant),
            plugin: Arc::clone(&self.name),
            settings: Arc::clone(&self.settings.json),
            counters: Arc::clone(counters),
            log: Arc::clone(&self.log),
            phase: Phase::Outside,
            memory: MemoryCap {
                bytes_max: usize::try_from(self.budget.memory_bytes).unwrap_or(usize::MAX),
                bytes: 0,
                refused: false,
            },
            deadline: Deadline::default(),
            last_words: None,
            read_bytes: 0,
        }
    }

    /// Puts a warm instance where the first call finds one.
    pub(super) fn keep_warm(&self, mut instance: Instance) {
        instance.guest().counters = Arc::clone(&self.counters);
        let Some(slot) = self.slots.first() else { return };
        add(&slot.stats.instances, 1);
        slot.stats.memory(instance.memory_bytes());
        *slot.instance.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(instance));
    }

    /// A slot for this thread: its own if that is free and warm, else another one that is. So there are as many
    /// instances as calls at once, and each thread mostly meets the same one. If no warm one is free, a hook thread gets a
    /// slot where an instance will be made, its own if need be when that gets free.
    fn slot(&self, place: Place, now: &Cell<Duration>) -> Option<(MutexGuard<'_, Option<Box<Instance>>>, &SlotStats)> {
        let own = THREAD.with(Cell::get) % self.slots.len();
        let (before, from) = self.slots.split_at(own);
        let mut cold = None;
        for slot in from.iter().chain(before) {
            let held = match slot.instance.try_lock() {
                Ok(held) => held,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if held.is_some() {
                return Some((held, &slot.stats));
            }
            if place != Place::Caller {
                cold.get_or_insert((held, &slot.stats));
            }
        }
        if place == Place::Caller || cold.is_some() {
            return cold;
        }
        // `own` is below the number of slots, of which there is at least one.
        let slot = &self.slots[own];
        let held = slot.instance.lock().unwrap_or_else(PoisonError::into_inner);
        // The wait is nobody's time.
        now.set(self.services.clock.monotonic());
        Some((held, &slot.stats))
    }

    /// CPU time of a call that is given so many bytes.
    pub(super) fn call_budget(&self, bytes: usize) -> Duration {
        let per_mib = self.budget.cpu_per_mib.as_nanos().saturating_mul(bytes as u128) >> 20;
        self.budget.cpu.saturating_add(Duration::from_nanos(u64::try_from(per_mib).unwrap_or(u64::MAX)))
    }

    /// A plugin may say something of each record even when it reads none.
    fn output_bytes_max(&self, input: usize, count: u32) -> usize {
        let input = input.saturating_add((count as usize).saturating_mul(OUTPUT_BYTES_PER_RECORD));
        input.saturating_mul(self.budget.output_times as usize).saturating_add(OUTPUT_BYTES_FREE)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

thread_local! {
    /// Number of this thread among those that call plugins.
    static THREAD: Cell<usize> = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed))
    };
}

/// Output on top of `output_times` times the input.
const OUTPUT_BYTES_FREE: usize = 64 << 10;
/// What each record counts as input, beside the bytes of it that are given: room for its own entries in a verdict.
const OUTPUT_BYTES_PER_RECORD: usize = 32;
