//! From bytes to a plugin: every step either passes or says what to do.

use std::{cell::Cell, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_protocol::{
    batch::{BatchBody, BatchBuilder},
    limits::Limits,
    record::RecordView,
};
use wasmtime::component::{Component, ComponentExportIndex, types::ComponentItem};

use super::{
    CodeSource, Hook, LoadError, Manifest, Plugin,
    abi::{self, names},
    cache::{self, Found},
    capabilities,
    compile::{MadeCode, NoCode},
    encode::{self, EncodeError},
    error::cut,
    grants::Grants,
    guest::Guest,
    instance::{Code, Fault, Instance},
    placement::Learned,
    plugin::{Call, LoadTimes},
    runtime::Parts,
    spec::{Budget, PluginSpec},
    topics::Topics,
    work::{Selection, Work},
};

/// Runs all steps; see [`super::Runtime::load`].
pub(super) fn load(
    parts: &Parts,
    tenant: &str,
    name: &str,
    spec: &PluginSpec,
    component: &[u8],
    files: Vec<(String, Bytes)>,
) -> Result<Plugin, LoadError> {
    let plugin = || name.to_owned();
    if spec.wasi {
        return Err(LoadError::WasiSandbox { plugin: plugin() });
    }
    let grants = Grants::parse(&spec.grants).map_err(|reason| LoadError::Grant { plugin: plugin(), reason })?;
    check_budget(name, &spec.budget, parts.config.memory_bytes_max)?;
    let clock = &parts.services.clock;
    let begun = clock.monotonic();
    let (component, code_source) = code(parts, name, &spec.digest, component)?;
    let have_code = clock.monotonic();
    let code_bytes = component.image_range();
    let code = link(&parts.engine.wasmtime, name, &component, &grants)?;
    let files = files.into_iter().map(|(path, content)| abi::BundledFile { path, content: Arc::new(content.into()) });
    let settings = Arc::new(abi::Settings { json: spec.settings.as_str().into(), files: files.collect() });
    let mut plugin = Plugin {
        name: name.into(),
        tenant: tenant.into(),
        spec: spec.clone(),
        budget: spec.budget.clone(),
        manifest: unknown(),
        grants,
        code,
        code_source,
        load_times: LoadTimes::default(),
        settings,
        services: Arc::clone(&parts.services),
        limits: parts.config.limits,
        counters: parts.counters(tenant, name),
        log: Arc::default(),
        slots: (0..parts.config.instances_per_plugin.max(1)).map(|_| super::plugin::Slot::default()).collect(),
        learned: Learned::new(parts.config.inline_max, parts.config.inline_after),
        nobody: Arc::new(abi::Reader { parameters: "{}".into(), ..abi::Reader::default() }),
    };
    let instance = start(&mut plugin)?;
    plugin.load_times = LoadTimes {
        code: have_code.saturating_sub(begun),
        code_bytes: code_bytes.end.addr().saturating_sub(code_bytes.start.addr()),
        start: clock.monotonic().saturating_sub(have_code),
    };
    plugin.keep_warm(instance);
    Ok(plugin)
}

fn check_budget(plugin: &str, budget: &Budget, memory_bytes_max: u64) -> Result<(), LoadError> {
    let refused = |reason: String| Err(LoadError::Budget { plugin: plugin.to_owned(), reason });
    if budget.memory_bytes > memory_bytes_max {
        return refused(format!(
            "`budget.memory` is {} bytes, this broker allows {memory_bytes_max}; lower it",
            budget.memory_bytes
        ));
    }
    if budget.memory_bytes < WASM_PAGE_BYTES {
        return refused(format!("`budget.memory` is {} bytes, less than one page (64 KiB)", budget.memory_bytes));
    }
    if budget.cpu.is_zero() || budget.init.is_zero() {
        return refused("`budget.cpu` and `budget.init` must be longer than nothing".to_owned());
    }
    if budget.cpu > BUDGET_MAX || budget.cpu_per_mib > BUDGET_MAX || budget.init > INIT_BUDGET_MAX {
        return refused(format!("a budget is over its bound (cpu {BUDGET_MAX:?}, init {INIT_BUDGET_MAX:?})"));
    }
    Ok(())
}

/// Machine code of a component that has the digest, from the cache or the compiler.
fn code(parts: &Parts, plugin: &str, digest: &str, bytes: &[u8]) -> Result<(Component, CodeSource), LoadError> {
    let engine = &parts.engine.wasmtime;
    let hex =
        digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
    let Some((hex, cache)) = hex.zip(parts.cache.as_ref()) else {
        check_digest(plugin, digest, bytes)?;
        let code = compiled(parts, plugin, bytes)?;
        return Ok((usable(plugin, cache::in_memory(engine, &code))?, CodeSource::Compiled));
    };
    let found = if bytes.len() < HASH_ASIDE_BYTES {
        check_digest(plugin, digest, bytes)?;
        cache.find(engine, hex)
    } else {
        // Component and code are hashed side by side, megabytes each. Nothing is used before the digest holds.
        std::thread::scope(|scope| {
            let aside = std::thread::Builder::new().name("plugin-digest".to_owned());
            let check = aside.spawn_scoped(scope, || check_digest(plugin, digest, bytes));
            let found = cache.find(engine, hex);
            // Without a thread to be had it is hashed here.
            let checked = match check {
                Ok(check) => check.join().expect("hashing bytes does not panic"),
                Err(_) => check_digest(plugin, digest, bytes),
            };
            checked.map(|()| found)
        })?
    };
    let source = match found {
        Found::Code(component) => return Ok((component, CodeSource::Cached)),
        Found::Refused => CodeSource::Refused,
        Found::Nothing => CodeSource::Compiled,
    };
    let code = compiled(parts, plugin, bytes)?;
    Ok((usable(plugin, cache.keep(engine, hex, &code))?, source))
}

fn check_digest(plugin: &str, expected: &str, component: &[u8]) -> Result<(), LoadError> {
    let digest = ring::digest::digest(&ring::digest::SHA256, component);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let actual = format!("sha256:{hex}");
    if actual != expected {
        let expected = cut(expected, 100).to_owned();
        return Err(LoadError::Digest { plugin: plugin.to_owned(), expected, actual });
    }
    Ok(())
}

fn compiled(parts: &Parts, plugin: &str, bytes: &[u8]) -> Result<MadeCode, LoadError> {
    let engine = &parts.engine.wasmtime;
    let component = componentise(engine, plugin, bytes)?;
    let made = match &parts.config.compiler {
        None => MadeCode::here(engine, &component),
        Some(program) => match MadeCode::apart(program, &component) {
            Err(NoCode::NoProcess(error)) => {
                tracing::warn!(plugin, program = %program.display(), %error, "cannot start a compiler, compiling here");
                MadeCode::here(engine, &component)
            }
            Err(NoCode::Refused(reason)) => Err(reason),
            Ok(code) => Ok(code),
        },
    };
    made.map_err(|reason| no_code(plugin, &reason))
}

fn usable(plugin: &str, component: wasmtime::Result<Component>) -> Result<Component, LoadError> {
    component.map_err(|error| no_code(plugin, &format!("its code cannot be used: {error:#}")))
}

fn no_code(plugin: &str, reason: &str) -> LoadError {
    LoadError::Compile { plugin: plugin.to_owned(), reason: cut(reason, 1024).to_owned() }
}

fn componentise<'a>(
    engine: &wasmtime::Engine,
    plugin: &str,
    bytes: &'a [u8],
) -> Result<std::borrow::Cow<'a, [u8]>, LoadError> {
    let not = |what: &'static str| LoadError::NotWasm { plugin: plugin.to_owned(), what };
    let Some((head, _)) = bytes.split_first_chunk::<8>() else {
        return Err(not("the file has less than 8 bytes"));
    };
    match head {
        b"\0asm\x0d\0\x01\0" => {
            encode::check_nesting(bytes).map_err(|reason| LoadError::Compile { plugin: plugin.to_owned(), reason })?;
            return Ok(bytes.into());
        }
        b"\0asm\x01\0\0\0" => {}
        [b'\0', b'a', b's', b'm', ..] => {
            return Err(not("the file is WebAssembly of a version that is not known here"));
        }
        _ => return Err(not("the file is not WebAssembly")),
    }
    encode::component_of(bytes).map(Into::into).map_err(|error| {
        let plugin = || plugin.to_owned();
        match error {
            EncodeError::Import(import) if import.starts_with("wasi:") => LoadError::Wasi { plugin: plugin(), import },
            EncodeError::Import(found) | EncodeError::Export(found) if found.starts_with(names::PACKAGE) => {
                LoadError::Version { plugin: plugin(), found }
            }
            EncodeError::Import(import) => LoadError::UnknownImport { plugin: plugin(), import },
            EncodeError::Export(_) => LoadError::World { plugin: plugin(), what: error.to_string() },
            EncodeError::Module(reason) => foreign_import(engine, &plugin(), bytes)
                .unwrap_or_else(|| LoadError::Componentise { plugin: plugin(), reason: cut(&reason, 1024).to_owned() }),
        }
    })
}

/// A core module that imports from outside our package cannot become a component; the encoder's words are about its own
/// matters, so the import is named here. Compiling it again to ask is fine: nothing else happens on this path.
fn foreign_import(engine: &wasmtime::Engine, plugin: &str, bytes: &[u8]) -> Option<LoadError> {
    let module = wasmtime::Module::new(engine, bytes).ok()?;
    let foreign = |from: &str| !from.starts_with(names::PACKAGE) && !from.starts_with('[') && from != "$root";
    let import = module.imports().find(|import| foreign(import.module()))?;
    let (plugin, import) = (plugin.to_owned(), format!("{}.{}", import.module(), import.name()));
    if import.starts_with("wasi") {
        Some(LoadError::Wasi { plugin, import })
    } else {
        Some(LoadError::UnknownImport { plugin, import })
    }
}

/// Checks imports against grants and exports against the world, then links.
fn link(engine: &wasmtime::Engine, plugin: &str, component: &Component, grants: &Grants) -> Result<Code, LoadError> {
    let kind = component.component_type();
    for (import, item) in kind.imports(engine) {
        check_import(plugin, import, &item.ty, grants)?;
    }
    for (export, _) in kind.exports(engine) {
        if let Some(version) = versioned(export).filter(|version| *version != names::VERSION) {
            let found = format!("{}@{version}", export.split('@').next().unwrap_or(export));
            return Err(LoadError::Version { plugin: plugin.to_owned(), found });
        }
    }
    let world = |what: String| LoadError::World { plugin: plugin.to_owned(), what };
    let find = |interface: &str, function: &str| -> Option<ComponentExportIndex> {
        component.get_export_index(Some(&component.get_export_index(None, interface)?), function)
    };
    let need = |function: &str| {
        find(names::LIFECYCLE, function)
            .ok_or_else(|| world(format!("it does not export `{}` with `{function}`", names::LIFECYCLE)))
    };
    let (describe, init) = (need("describe")?, need("init")?);
    let produce = find(names::PRODUCE, "on-produce");
    let fetch = find(names::FETCH, "on-fetch");
    let linker = capabilities::linker(engine, grants).map_err(|error| world(format!("{error:#}")))?;
    let pre = linker.instantiate_pre(component).map_err(|error| world(cut(&format!("{error:#}"), 1024).to_owned()))?;
    Ok(Code { pre, describe, init, produce, fetch })
}

fn check_import(plugin: &str, import: &str, item: &ComponentItem, grants: &Grants) -> Result<(), LoadError> {
    let plugin = || plugin.to_owned();
    let (name, import) = (import, import.to_owned());
    if name.starts_with("wasi:") {
        return Err(LoadError::Wasi { plugin: plugin(), import });
    }
    let Some(version) = versioned(name) else {
        return Err(LoadError::UnknownImport { plugin: plugin(), import });
    };
    if version != names::VERSION {
        return Err(LoadError::Version { plugin: plugin(), found: import });
    }
    let (granted, grant) = match name {
        names::INSTANCE => return Ok(()),
        names::LOG => (grants.log, "log"),
        names::CLOCK => (grants.clock, "clock"),
        names::RANDOM => (grants.random, "random"),
        names::COUNTERS => (grants.counters, "counters"),
        names::BATCH => (grants.batch, "batch"),
        // Shapes without functions: the types that the other interfaces use.
        _ if matches!(item, ComponentItem::ComponentInstance(_)) && name == names::TYPES => return Ok(()),
        _ => return Err(LoadError::UnknownImport { plugin: plugin(), import }),
    };
    if granted { Ok(()) } else { Err(LoadError::NotGranted { plugin: plugin(), import, grant }) }
}

/// The version of a name in our package.
fn versioned(name: &str) -> Option<&str> {
    name.strip_prefix(names::PACKAGE)?.strip_prefix('/')?.split_once('@').map(|(_, version)| version)
}

/// `describe`, `init`, and one record through each hook. Gives the instance, warm.
fn start(plugin: &mut Plugin) -> Result<Instance, LoadError> {
    // What the smoke run counts is not to be seen later.
    let scratch = Arc::default();
    let guest: Guest = plugin.guest(&scratch);
    let name = Arc::clone(&plugin.name);
    let failed = |step: &str, fault: &Fault, hint: &'static str| LoadError::Start {
        plugin: name.to_string(),
        step: step.to_owned(),
        fault: fault.to_string(),
        hint,
    };
    let mut instance = Instance::new(&plugin.code, guest, plugin.budget.init)
        .map_err(|fault| failed("start", &fault, hint(&fault)))?;
    let told = instance.describe(plugin.budget.init).map_err(|fault| failed("describe", &fault, hint(&fault)))?;
    plugin.manifest = manifest(plugin, told)?;
    if plugin.manifest.interpreted {
        plugin.budget = interpreted(&plugin.budget);
    }
    instance.init(&plugin.settings, plugin.budget.init).map_err(|fault| {
        let hint = match fault.kind {
            super::FaultKind::Permanent => "; fix its `settings`, or read its README for what they may be",
            _ => hint(&fault),
        };
        failed("init", &fault, hint)
    })?;
    for hook in [Hook::Produce, Hook::Fetch] {
        if plugin.has(hook) {
            smoke(plugin, &mut instance, hook)
                .map_err(|fault| failed(&format!("smoke run of {hook} with one record"), &fault, hint(&fault)))?;
        }
    }
    Ok(instance)
}

fn hint(fault: &Fault) -> &'static str {
    match fault.kind {
        super::FaultKind::Deadline => "; raise `budget.init` (or `budget.cpu` for a smoke run), or make it faster",
        super::FaultKind::Memory => "; raise `budget.memory`, or make it smaller",
        super::FaultKind::Unavailable => "; take off plugins, or allow the broker more instances",
        super::FaultKind::Retry { .. } => "; load it again when what it waits for is there",
        _ => "; what ran before keeps running",
    }
}

/// One small record, as a client may send it.
fn smoke(plugin: &Plugin, instance: &mut Instance, hook: Hook) -> Result<(), Fault> {
    let topics = Topics::default();
    let internal = |message: String| Fault::new(super::FaultKind::Unavailable, message);
    let mut builder = BatchBuilder::new();
    let now_ms = crate::clock::unix_ms(&*plugin.services.clock);
    let record = RecordView { key: Some(b"smoke"), value: Some(b"{}"), headers: &[], timestamp_ms: now_ms };
    builder.push(SMOKE_TOPIC, record);
    let body = BatchBody::parse(builder.finish(), &Limits::default()).map_err(|error| internal(error.to_string()))?;
    let plan = topics.plan(SMOKE_TOPIC).map_err(|error| internal(error.to_string()))?;
    let work = Arc::new(Work::new(body, vec![plan]));
    let principal = "tidegate".into();
    let now = Cell::new(plugin.services.clock.monotonic());
    let call = Call { hook, generation: 0, now_ms, now: &now, principal: &principal, reader: None, topics: &topics };
    plugin.run(instance, &work, &Selection::All(1), &call).map(drop)
}

fn manifest(plugin: &Plugin, told: abi::Manifest) -> Result<Manifest, LoadError> {
    let refused = |reason: String| LoadError::Manifest { plugin: plugin.name.to_string(), reason };
    if told.name.is_empty() || told.name.len() > NAME_BYTES_MAX || told.version.len() > NAME_BYTES_MAX {
        return Err(refused(format!("name and version have 1 to {NAME_BYTES_MAX} bytes each")));
    }
    if told.settings_schema.len() > SCHEMA_BYTES_MAX {
        return Err(refused(format!(
            "its settings schema has {} bytes, at most {SCHEMA_BYTES_MAX}",
            told.settings_schema.len()
        )));
    }
    if !told.settings_schema.is_empty()
        && let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&told.settings_schema)
    {
        return Err(refused(format!("its settings schema is not JSON: {error}")));
    }
    let declared = |hook| told.hooks & hook == hook;
    let (produce, fetch) = (declared(abi::Hooks::PRODUCE), declared(abi::Hooks::FETCH));
    if produce && plugin.code.produce.is_none() {
        return Err(refused(format!("it declares `produce` and does not export `{}`", names::PRODUCE)));
    }
    if fetch && plugin.code.fetch.is_none() {
        return Err(refused(format!("it declares `fetch` and does not export `{}`", names::FETCH)));
    }
    if !produce && !fetch {
        return Err(refused("it declares neither `produce` nor `fetch`, the hooks that this version calls".to_owned()));
    }
    Ok(Manifest {
        name: told.name,
        version: told.version,
        produce,
        fetch,
        pure: told.pure,
        reads_reader: told.reads_reader,
        judges_singly: told.judges_singly,
        interpreted: told.interpreted,
        settings_schema: told.settings_schema,
    })
}

/// What nobody set is twenty times larger for an interpreter.
fn interpreted(budget: &Budget) -> Budget {
    let default = Budget::default();
    let times =
        |set: Duration, default: Duration| if set == default { set.saturating_mul(INTERPRETED_TIMES) } else { set };
    Budget {
        cpu: times(budget.cpu, default.cpu),
        cpu_per_mib: times(budget.cpu_per_mib, default.cpu_per_mib),
        ..budget.clone()
    }
}

/// Before `describe` nothing is known.
fn unknown() -> Manifest {
    Manifest {
        name: String::new(),
        version: String::new(),
        produce: false,
        fetch: false,
        pure: false,
        reads_reader: false,
        judges_singly: false,
        interpreted: false,
        settings_schema: String::new(),
    }
}

/// From here on a component is hashed on a thread of its own while its code is looked up.
const HASH_ASIDE_BYTES: usize = 1 << 20;
/// Not a topic that a chain is likely to be about, and a valid one.
const SMOKE_TOPIC: &str = "tidegate-smoke";
const WASM_PAGE_BYTES: u64 = 64 << 10;
/// As `wit/hooks.wit` says.
const NAME_BYTES_MAX: usize = 64;
const SCHEMA_BYTES_MAX: usize = 1 << 20;
const INTERPRETED_TIMES: u32 = 20;
/// A call longer than this is no hook.
const BUDGET_MAX: Duration = Duration::from_secs(60);
const INIT_BUDGET_MAX: Duration = Duration::from_secs(600);
