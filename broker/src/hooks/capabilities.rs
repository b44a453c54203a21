//! Host functions: linked per plugin by its grants, each with its bound (`wit/capabilities.wit`).

mod batch;

use std::{
    collections::HashMap,
    sync::{
        RwLock,
        atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use wasmtime::{StoreContextMut, component::Linker};

use super::{
    Level,
    abi::{LogLevel, names},
    error::cut,
    grants::Grants,
    guest::{Guest, Phase},
};

type Store<'a> = StoreContextMut<'a, Guest>;
type Result<T> = wasmtime::Result<T>;

/// A linker with what the grants allow, and no more: an import without its grant stays unresolved.
pub(super) fn linker(engine: &wasmtime::Engine, grants: &Grants) -> Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    instance(&mut linker)?;
    if grants.log {
        log(&mut linker)?;
    }
    if grants.clock {
        clock(&mut linker)?;
    }
    if grants.random {
        random(&mut linker)?;
    }
    if grants.counters {
        counters(&mut linker)?;
    }
    if grants.batch {
        batch::link(&mut linker)?;
    }
    Ok(linker)
}

fn instance(linker: &mut Linker<Guest>) -> Result<()> {
    let mut at = linker.instance(names::INSTANCE)?;
    at.func_wrap("settings", |store: Store<'_>, (): ()| {
        allowed(&store, "instance.settings")?;
        Ok((std::sync::Arc::clone(&store.data().settings),))
    })?;
    at.func_wrap("tenant", |store: Store<'_>, (): ()| {
        allowed(&store, "instance.tenant")?;
        let guest = store.data();
        let in_hook = matches!(guest.phase, Phase::Hook { .. });
        Ok((if in_hook { std::sync::Arc::clone(&guest.tenant) } else { "".into() },))
    })?;
    at.func_wrap("principal", |store: Store<'_>, (): ()| {
        allowed(&store, "instance.principal")?;
        Ok((match &store.data().phase {
            Phase::Hook { principal, .. } => std::sync::Arc::clone(principal),
            _ => "".into(),
        },))
    })?;
    at.func_wrap("fault", |mut store: Store<'_>, (message,): (String,)| {
        store.data_mut().say_last_words(&message);
        Ok(())
    })
}

fn log(linker: &mut Linker<Guest>) -> Result<()> {
    let mut at = linker.instance(names::LOG)?;
    at.func_wrap("write", |store: Store<'_>, (at, message): (LogLevel, String)| {
        allowed(&store, "log.write")?;
        let guest = store.data();
        if guest.log.take(guest.services.clock.monotonic()) {
            let line = cut(&message, LOG_LINE_BYTES_MAX);
            guest.services.host.guest_log(&guest.tenant, &guest.plugin, at.into(), line);
        }
        Ok(())
    })?;
    at.func_wrap("enabled", |store: Store<'_>, (): ()| {
        allowed(&store, "log.enabled")?;
        Ok((LogLevel::from(store.data().services.host.guest_log_level()),))
    })
}

fn clock(linker: &mut Linker<Guest>) -> Result<()> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut at = linker.instance(names::CLOCK)?;
    at.func_wrap("now", move |store: Store<'_>, (): ()| {
        allowed(&store, "clock.now")?;
        Ok((nanos(store.data().services.clock.unix()),))
    })?;
    at.func_wrap("monotonic", move |store: Store<'_>, (): ()| {
        allowed(&store, "clock.monotonic")?;
        Ok((nanos(store.data().services.clock.monotonic()),))
    })
}

fn random(linker: &mut Linker<Guest>) -> Result<()> {
    let mut at = linker.instance(names::RANDOM)?;
    at.func_wrap("bytes", |store: Store<'_>, (count,): (u32,)| {
        allowed(&store, "random.bytes")?;
        let count = count as usize;
        if count > RANDOM_BYTES_MAX {
            return Err(refused(format!("random.bytes({count}): at most {RANDOM_BYTES_MAX} a call")));
        }
        let mut bytes = vec![0; count];
        store.data().services.random.fill(&mut bytes);
        Ok((bytes,))
    })?;
    at.func_wrap("next", |store: Store<'_>, (): ()| {
        allowed(&store, "random.next")?;
        let mut bytes = [0; 8];
        store.data().services.random.fill(&mut bytes);
        Ok((u64::from_le_bytes(bytes),))
    })
}

fn counters(linker: &mut Linker<Guest>) -> Result<()> {
    let mut at = linker.instance(names::COUNTERS)?;
    at.func_wrap("add", |store: Store<'_>, (name, delta): (String, i64)| {
        allowed(&store, "counters.add")?;
        store.data().counters.add(&name, delta).map(|value| (value,)).map_err(refused)
    })?;
    at.func_wrap("value", |store: Store<'_>, (name,): (String,)| {
        allowed(&store, "counters.value")?;
        Ok((store.data().counters.value(&name),))
    })
}

/// `describe` must give the same answer everywhere, so it may ask for nothing.
fn allowed(store: &Store<'_>, what: &str) -> Result<()> {
    if matches!(store.data().phase, Phase::Describe) {
        return Err(refused(format!("{what} called in `describe`: no capability may be called there")));
    }
    Ok(())
}

/// A call that breaks the contract of a capability: it traps the guest.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refused(pub(super) String);

fn refused(what: String) -> wasmtime::Error {
    wasmtime::Error::new(Refused(what))
}

impl From<LogLevel> for Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Trace => Self::Trace,
            LogLevel::Debug => Self::Debug,
            LogLevel::Info => Self::Info,
            LogLevel::Warn => Self::Warn,
            LogLevel::Error => Self::Error,
        }
    }
}

impl From<Level> for LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Trace => Self::Trace,
            Level::Debug => Self::Debug,
            Level::Info => Self::Info,
            Level::Warn => Self::Warn,
            Level::Error => Self::Error,
        }
    }
}

/// Counters of one plugin in one tenant. They outlive a swap of the plugin, not the broker.
#[derive(Debug, Default)]
pub(super) struct Counters {
    values: RwLock<HashMap<Box<str>, AtomicI64>>,
}

impl Counters {
    fn add(&self, name: &str, delta: i64) -> std::result::Result<i64, String> {
        let added = |cell: &AtomicI64| cell.fetch_add(delta, Ordering::Relaxed).wrapping_add(delta);
        let read = self.values.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(cell) = read.get(name) {
            return Ok(added(cell));
        }
        drop(read);
        if name.len() > COUNTER_NAME_BYTES_MAX {
            return Err(format!("counter name of {} bytes: at most {COUNTER_NAME_BYTES_MAX}", name.len()));
        }
        let mut write = self.values.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if write.len() >= COUNTER_NAMES_MAX && !write.contains_key(name) {
            return Err(format!("more than {COUNTER_NAMES_MAX} counter names"));
        }
        Ok(added(write.entry(name.into()).or_default()))
    }

    pub(super) fn value(&self, name: &str) -> i64 {
        let read = self.values.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        read.get(name).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }
}

/// Log lines of one plugin in the second in progress.
#[derive(Debug, Default)]
pub(super) struct LogWindow {
    second: AtomicU64,
    lines: AtomicUsize,
    pub(super) dropped: AtomicU64,
}

impl LogWindow {
    /// Whether one more line may pass. Two threads at the turn of a second may let a few more through; the bound is
    /// there to keep the log readable, not to be exact.
    fn take(&self, now: Duration) -> bool {
        if self.second.swap(now.as_secs(), Ordering::Relaxed) != now.as_secs() {
            self.lines.store(0, Ordering::Relaxed);
        }
        let passes = self.lines.fetch_add(1, Ordering::Relaxed) < LOG_LINES_PER_SECOND;
        if !passes {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        passes
    }
}

// The bounds of wit/capabilities.wit.
const LOG_LINES_PER_SECOND: usize = 100;
const LOG_LINE_BYTES_MAX: usize = 1024;
const RANDOM_BYTES_MAX: usize = 64 << 10;
const COUNTER_NAMES_MAX: usize = 100_000;
const COUNTER_NAME_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_and_are_bounded() {
        let counters = Counters::default();
        assert_eq!(counters.value("a"), 0);
        assert_eq!(counters.add("a", 3), Ok(3));
        assert_eq!(counters.add("a", -1), Ok(2));
        assert!(counters.add(&"x".repeat(129), 1).is_err());
        for i in 1..COUNTER_NAMES_MAX {
            counters.add(&i.to_string(), 1).unwrap();
        }
        assert!(counters.add("one more", 1).is_err());
        assert_eq!(counters.add("a", 1), Ok(3), "known names still work");
    }

    #[test]
    fn a_log_window_passes_a_hundred_lines_a_second() {
        let window = LogWindow::default();
        let second = Duration::from_secs(7);
        assert_eq!((0..250).filter(|_| window.take(second)).count(), LOG_LINES_PER_SECOND);
        assert!(window.take(Duration::from_secs(8)));
        assert_eq!(window.dropped.load(Ordering::Relaxed), 150);
    }
}
