//! One guest: a store, its typed exports, and how a call into it can end.

use std::{sync::Arc, time::Duration};

use wasmtime::{
    Store, Trap, WasmBacktrace,
    component::{ComponentExportIndex, InstancePre},
};

use super::{
    FaultKind, Hook, abi,
    error::{MESSAGE_BYTES_MAX, cut},
    guest::{Guest, Overrun, Phase},
};

/// Compiled, linked, its exports found: what instances are made from.
pub(super) struct Code {
    pub(super) pre: InstancePre<Guest>,
    pub(super) describe: ComponentExportIndex,
    pub(super) init: ComponentExportIndex,
    pub(super) produce: Option<ComponentExportIndex>,
    pub(super) fetch: Option<ComponentExportIndex>,
}

/// A call failed; the instance must not be used again unless the guest itself said no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    pub(super) message: String,
    /// Position of the guilty record in the body, where it is known.
    pub(super) record: Option<u32>,
}

impl Fault {
    /// The message is cut to what may travel on.
    pub(super) fn new(kind: FaultKind, message: impl std::fmt::Display) -> Self {
        let message = cut(&message.to_string(), MESSAGE_BYTES_MAX).to_owned();
        Self { kind, message, record: None }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

/// A guest, alone in its store.
pub(super) struct Instance {
    store: Store<Guest>,
    describe: abi::Describe,
    init: abi::Init,
    produce: Option<abi::OnProduce>,
    fetch: Option<abi::OnFetch>,
    /// As this instance's `init` said.
    pub(super) needs: Option<abi::Needs>,
    /// Filled again for each call.
    pub(super) frame: Arc<abi::Frame>,
    calls: u32,
    /// Linear memory from which on it is replaced.
    memory_mark: usize,
}

/// What one hook call is given.
pub(super) struct Given<'a> {
    pub(super) hook: Hook,
    pub(super) info: abi::BatchInfo,
    pub(super) reader: &'a Arc<abi::Reader>,
    pub(super) phase: Phase,
    /// Monotonic time, not long ago.
    pub(super) started: Duration,
    pub(super) budget: Duration,
    /// The most that the host lifts out of the guest at once.
    pub(super) lift_bytes_max: usize,
}

impl Instance {
    /// Instantiates; a core module's start function runs under the `init` budget.
    pub(super) fn new(code: &Code, guest: Guest, budget: Duration) -> Result<Self, Fault> {
        let mut store = Store::new(code.pre.engine(), guest);
        store.limiter(|guest| &mut guest.memory);
        store.epoch_deadline_callback(|mut store| {
            let guest = store.data_mut();
            guest.services.ticker.met();
            let now = guest.services.clock.monotonic();
            guest.deadline.tick(now)
        });
        begin_now(&mut store, budget, LIFT_BYTES_MIN);
        let failed = |store: &mut Store<Guest>, error: &wasmtime::Error| classify(error, store.data_mut());
        let instance = code.pre.instantiate(&mut store).map_err(|error| failed(&mut store, &error))?;
        let shape = |error: wasmtime::Error| Fault::new(FaultKind::BadOutput, format!("{error:#}"));
        let describe = instance.get_typed_func(&mut store, code.describe).map_err(shape)?;
        let init = instance.get_typed_func(&mut store, code.init).map_err(shape)?;
        let produce = code.produce.map(|at| instance.get_typed_func(&mut store, at)).transpose().map_err(shape)?;
        let fetch = code.fetch.map(|at| instance.get_typed_func(&mut store, at)).transpose().map_err(shape)?;
        let frame = Arc::default();
        Ok(Self { store, describe, init, produce, fetch, needs: None, frame, calls: 0, memory_mark: usize::MAX })
    }

    pub(super) fn describe(&mut self, budget: Duration) -> Result<abi::Manifest, Fault> {
        self.store.data_mut().phase = Phase::Describe;
        begin_now(&mut self.store, budget, MANIFEST_BYTES_MAX);
        let answer = self.describe.call(&mut self.store, ());
        let guest = self.store.data_mut();
        guest.phase = Phase::Outside;
        answer.map(|(manifest,)| manifest).map_err(|error| classify(&error, guest))
    }

    pub(super) fn init(&mut self, settings: &Arc<abi::Settings>, budget: Duration) -> Result<(), Fault> {
        begin_now(&mut self.store, budget, LIFT_BYTES_MIN);
        let answer = self.init.call(&mut self.store, (Arc::clone(settings),));
        let guest = self.store.data_mut();
        let needs = answer.map_err(|error| classify(&error, guest))?.0.map_err(Fault::from)?;
        self.needs = Some(needs);
        let memory = &self.store.data().memory;
        self.memory_mark = memory
            .bytes
            .saturating_mul(MEMORY_TIMES)
            .clamp(MEMORY_MARK_MIN.min(memory.bytes_max), memory.bytes_max / 4 * 3);
        Ok(())
    }

    /// One hook call on the frame in `self.frame`.
    pub(super) fn call(&mut self, given: Given<'_>) -> Result<abi::Verdict, Fault> {
        self.calls = self.calls.saturating_add(1);
        self.store.data_mut().phase = given.phase;
        begin(&mut self.store, given.budget, given.lift_bytes_max, given.started);
        let frame = Arc::clone(&self.frame);
        let missing = || wasmtime::Error::msg("the hook is not exported");
        let answer = match given.hook {
            Hook::Produce => match &self.produce {
                Some(hook) => hook.call(&mut self.store, (given.info, frame)),
                None => Err(missing()),
            },
            Hook::Fetch => match &self.fetch {
                Some(hook) => hook.call(&mut self.store, (given.info, Arc::clone(given.reader), frame)),
                None => Err(missing()),
            },
        };
        let guest = self.store.data_mut();
        // Lets go of the batch: the chain takes it back as its only owner.
        guest.phase = Phase::Outside;
        answer.map_err(|error| classify(&error, guest))?.0.map_err(Fault::from)
    }

    /// Whether the instance has done enough: linear memory never shrinks, and what a guest leaks it leaks for ever.
    pub(super) fn is_worn(&self) -> bool {
        self.calls >= CALLS_MAX || (self.calls >= CALLS_MIN && self.memory_bytes() > self.memory_mark)
    }
    pub(super) fn memory_bytes(&self) -> usize {
        self.store.data().memory.bytes
    }
    pub(super) fn guest(&mut self) -> &mut Guest {
        self.store.data_mut()
    }
    /// CPU time of the call that just ended.
    pub(super) fn spent(&self, now: Duration) -> Duration {
        self.store.data().deadline.spent(now)
    }
}

fn begin_now(store: &mut Store<Guest>, budget: Duration, lift_bytes_max: usize) {
    let now = store.data().services.clock.monotonic();
    begin(store, budget, lift_bytes_max, now);
}

/// Sets the bounds of a call, before any code of the guest runs (its allocator runs already when arguments go in).
fn begin(store: &mut Store<Guest>, budget: Duration, lift_bytes_max: usize, now: Duration) {
    store.set_epoch_deadline(1);
    store.set_hostcall_fuel(lift_bytes_max.max(LIFT_BYTES_MIN));
    let guest = store.data_mut();
    guest.services.ticker.keep_awake();
    guest.memory.refused = false;
    guest.last_words = None;
    guest.read_bytes = 0;
    guest.deadline.start(budget, now);
}

/// What an error of wasmtime means for the plugin.
fn classify(error: &wasmtime::Error, guest: &mut Guest) -> Fault {
    let words = guest.last_words.take();
    let (kind, what) = if let Some(overrun) = error.downcast_ref::<Overrun>() {
        (FaultKind::Deadline, overrun.to_string())
    } else if guest.memory.refused {
        (FaultKind::Memory, format!("wanted more than its {} bytes of memory", guest.memory.bytes_max))
    } else if let Some(trap) = error.downcast_ref::<Trap>() {
        (FaultKind::Trap, trap.to_string())
    } else if error.downcast_ref::<super::capabilities::Refused>().is_some() {
        (FaultKind::Trap, error.root_cause().to_string())
    } else if error.downcast_ref::<wasmtime::PoolConcurrencyLimitError>().is_some() {
        (FaultKind::Unavailable, format!("no room for one more instance: {}", error.root_cause()))
    } else {
        // The canonical ABI refused what the guest returned: bad pointers, bad UTF-8, too much.
        (FaultKind::BadOutput, error.root_cause().to_string())
    };
    let place = place(error).map(|name| format!(" in `{name}`")).unwrap_or_default();
    let words = words.map(|words| format!("; the guest said: {words}")).unwrap_or_default();
    Fault::new(kind, format!("{what}{place}{words}"))
}

/// The innermost function of the guest that has a name of its own. wasmtime shows names demangled only in the whole
/// trace, whose lines are `number: address - module!name`.
fn place(error: &wasmtime::Error) -> Option<String> {
    let trace = error.downcast_ref::<WasmBacktrace>()?.to_string();
    let machinery = ["panic", "abort", "rust_", "alloc::", "core::", "std::", "__", "<wasm function"];
    trace
        .lines()
        .filter_map(|line| line.split_once('!').map(|(_, name)| name.trim()))
        .find(|name| !machinery.iter().any(|part| name.contains(part)))
        .map(|name| cut(name, 200).to_owned())
}

impl From<abi::Failure> for Fault {
    fn from(failure: abi::Failure) -> Self {
        match failure {
            abi::Failure::Retry((after_ms, message)) => Self::new(FaultKind::Retry { after_ms }, message),
            abi::Failure::Permanent(message) => Self::new(FaultKind::Permanent, message),
        }
    }
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Code").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance")
            .field("calls", &self.calls)
            .field("memory", &self.memory_bytes())
            .finish_non_exhaustive()
    }
}

/// Strings of messages and names must fit whatever the output bound of a call is.
const LIFT_BYTES_MIN: usize = 1 << 20;
/// A manifest with its JSON Schema.
const MANIFEST_BYTES_MAX: usize = 4 << 20;
/// Calls after which an instance is replaced, and before which memory does not matter: a plugin with a slow `init` that
/// needs much memory for each call is not started anew each time.
const CALLS_MAX: u32 = 1_000_000;
const CALLS_MIN: u32 = 64;
/// Memory over this many times that after `init` is not usual.
const MEMORY_TIMES: usize = 4;
/// Below this it is not worth a fresh instance.
const MEMORY_MARK_MIN: usize = 4 << 20;
