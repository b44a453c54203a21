//! The one engine, its settings, and the ticker behind every deadline.
//!
//! Settings come from measurements (ADR 2): without `concurrency_support(false)` a call costs six times as much, without
//! the 4 GiB reservation every memory access is checked, fuel costs as much as epochs and counts less exactly.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::Thread,
    time::Duration,
};

use wasmtime::{
    EngineWeak, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig, Strategy, WasmBacktraceDetails,
};

use super::{Config, RuntimeError};

/// The engine and the ticker that moves its epoch.
#[derive(Debug, Clone)]
pub(super) struct Engine {
    pub(super) wasmtime: wasmtime::Engine,
    pub(super) ticker: Arc<Ticker>,
}

impl Engine {
    pub(super) fn new(config: &Config) -> Result<Self, RuntimeError> {
        let refused = |reason| RuntimeError::Engine {
            instances: config.instances_max,
            memory_bytes: config.memory_bytes_max,
            reason,
        };
        let wasmtime = compiler(config).map_err(refused)?;
        let ticker = Ticker::start(&wasmtime)?;
        Ok(Self { wasmtime, ticker })
    }
}

/// An engine to compile with. What it makes is taken by every other with the same configuration.
pub(super) fn compiler(config: &Config) -> Result<wasmtime::Engine, String> {
    wasmtime::Engine::new(&settings(config)).map_err(|reason| format!("{reason:#}"))
}

fn settings(config: &Config) -> wasmtime::Config {
    let mut c = wasmtime::Config::new();
    c.strategy(Strategy::Cranelift)
        .cranelift_opt_level(OptLevel::Speed)
        .concurrency_support(false)
        .epoch_interruption(true)
        .consume_fuel(false)
        .wasm_simd(true)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        // Machine code an eighth smaller (16.4 to 14.3 MiB of `schema`): a fault names its function all the same.
        .generate_address_map(false)
        .native_unwind_info(false)
        .wasm_component_model(true)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool(config)));
    c
}

fn pool(config: &Config) -> PoolingAllocationConfig {
    let instances = config.instances_max.max(2);
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(instances)
        .total_memories(instances)
        // A component made from a core module is three core instances: shim, module, fix-up; and two tables.
        .total_core_instances(instances.saturating_mul(CORE_INSTANCES_PER_COMPONENT))
        .max_core_instances_per_component(CORE_INSTANCES_PER_COMPONENT)
        .total_tables(instances.saturating_mul(TABLES_PER_COMPONENT))
        .max_tables_per_component(TABLES_PER_COMPONENT)
        .max_memories_per_component(1)
        .table_elements(TABLE_ELEMENTS)
        .max_memory_size(usize::try_from(config.memory_bytes_max).unwrap_or(usize::MAX))
        .max_unused_warm_slots(u32::try_from(config.instances_per_plugin).unwrap_or(u32::MAX))
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(KEEP_RESIDENT_BYTES);
    pool
}

/// Moves the epoch while guests run: at the pace of a watchman while all calls end between two looks, every tick while one
/// does not. It sleeps while none runs: an idle broker does not wake.
#[derive(Debug)]
pub(super) struct Ticker {
    /// A call began, or a running one saw a tick, since the ticker looked last.
    seen: AtomicBool,
    /// A running call saw the epoch move.
    long: AtomicBool,
    parked: AtomicBool,
    stop: AtomicBool,
    thread: std::sync::OnceLock<Thread>,
}

impl Ticker {
    fn start(engine: &wasmtime::Engine) -> Result<Arc<Self>, RuntimeError> {
        let ticker = Arc::new(Self {
            seen: AtomicBool::new(false),
            long: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: std::sync::OnceLock::new(),
        });
        let (weak, inner) = (engine.weak(), Arc::clone(&ticker));
        let handle = std::thread::Builder::new()
            .name("hook-ticker".to_owned())
            .spawn(move || inner.run(&weak))
            .map_err(|error| RuntimeError::Thread { name: "hook-ticker".to_owned(), reason: error.to_string() })?;
        ticker.thread.get_or_init(|| handle.thread().clone());
        Ok(ticker)
    }

    fn run(&self, engine: &EngineWeak) {
        let (mut closely, mut unseen) = (0, Duration::ZERO);
        while !self.stop.load(Ordering::Acquire) {
            let pace = if closely > 0 { TICK } else { WATCH };
            std::thread::sleep(pace);
            let Some(engine) = engine.upgrade() else { return };
            engine.increment_epoch();
            let saw = self.long.swap(false, Ordering::Relaxed);
            closely = if saw { TICKS_CLOSELY } else { u32::saturating_sub(closely, 1) };
            unseen += pace;
            if unseen >= SLEEP_AFTER {
                unseen = Duration::ZERO;
                if !self.seen.swap(false, Ordering::SeqCst) {
                    self.park();
                }
            }
        }
    }

    fn park(&self) {
        self.parked.store(true, Ordering::SeqCst);
        // A call that began before it could see `parked` has set `seen`: one of the two sees the other.
        while !self.seen.load(Ordering::SeqCst) && !self.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        self.parked.store(false, Ordering::SeqCst);
    }

    /// A running guest saw the epoch move. If it runs on, it meets the next tick soon.
    pub(super) fn met(&self) {
        self.long.store(true, Ordering::Relaxed);
        self.keep_awake();
    }

    /// Called at the start of every guest call, and by `met`: for some time after this the ticker does not fall asleep,
    /// so a guest that runs keeps it awake.
    pub(super) fn keep_awake(&self) {
        if self.seen.load(Ordering::Relaxed) {
            return;
        }
        self.seen.store(true, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    #[cfg(test)]
    pub(super) fn is_asleep(&self) -> bool {
        self.parked.load(Ordering::SeqCst)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Length of a tick while a call runs long.
pub(super) const TICK: Duration = Duration::from_millis(1);
/// Between two ticks while none does: the first tick of a call comes at the latest so long after its start.
const WATCH: Duration = Duration::from_millis(5);
/// Ticks that follow one that a guest saw, a `WATCH` old at most, until the pace is that of a watchman again.
const TICKS_CLOSELY: u32 = 4;
/// Between two looks whether anything ran.
const SLEEP_AFTER: Duration = Duration::from_millis(128);
const CORE_INSTANCES_PER_COMPONENT: u32 = 4;
const TABLES_PER_COMPONENT: u32 = 4;
/// Functions that one guest may take the address of. Big guests (JSON Schema, CEL) have some 5 000.
const TABLE_ELEMENTS: usize = 64 << 10;
/// Memory kept (and zeroed by hand) when an instance goes: measured best for small guests.
const KEEP_RESIDENT_BYTES: usize = 64 << 10;
