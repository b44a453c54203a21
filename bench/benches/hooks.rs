//! Cost of a hook call: `cargo xtask guests && cargo bench -p tidegate-bench --bench hooks`.
//!
//! With `-- --only CHAIN` (`noop`, `noop x 3`, `key filter`, …) it runs that chain alone for a while, for a profiler.
//! Thread CPU time per call; interleaved samples; a bare typed component call of the same engine settings as the base.
#![allow(clippy::print_stdout, reason = "a benchmark reports to the person who runs it")]

mod plugins;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use plugins::{component, runtime, spec};
use tidegate::{
    hooks::{
        Generation, Plugin, Runtime,
        spec::{ChainEntry, Rejection, TenantSpec, Use},
    },
    record::Batch,
};
use tidegate_bench::{Samples, row, thread_cpu};
use tidegate_protocol::{
    batch::{BatchBody, BatchBuilder},
    limits::Limits,
    record::RecordView,
};

const ROUNDS: usize = 31;
const ONLY_CALLS: u64 = 4_000_000;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        calls().await?;
        loading()
    })
}

/// Batches of `records` whose keys are `user-N` (a share of them) or `item-N`.
fn batch(records: u32, value_bytes: usize, matching: u32) -> Result<Batch> {
    let mut builder = BatchBuilder::new();
    let value = vec![b'v'; value_bytes];
    for at in 0..records {
        let key = if at % 100 < matching { format!("user-{at:011}") } else { format!("item-{at:011}") };
        let record = RecordView { key: Some(key.as_bytes()), value: Some(&value), headers: &[], timestamp_ms: 0 };
        builder.push("bench/topic", record);
    }
    let limits = Limits { batch_bytes_max: 64 << 20, ..Limits::default() };
    Ok(Batch { tenant: 1, principal: "bench".into(), body: BatchBody::parse(builder.finish(), &limits)? })
}

/// A generation with `count` positions of one plugin.
fn generation(runtime: &Runtime, name: &str, settings: &str, count: usize) -> Result<Arc<Generation>> {
    let bytes = component(name)?;
    let spec = spec(&bytes, settings);
    let plugin: Arc<Plugin> = runtime.load("bench", name, &spec, &bytes, Vec::new())?;
    let chain = ChainEntry {
        topics: vec!["bench/>".to_owned()],
        except: Vec::new(),
        produce: (0..count).map(|_| Use { plugin: name.to_owned(), unless: String::new() }).collect(),
        fetch: Vec::new(),
        rejection: Rejection::PerRecord,
        enforced: false,
        retention: None,
        place: "bench".to_owned(),
    };
    let tenant = TenantSpec { plugins: BTreeMap::from([(name.to_owned(), spec)]), chain: vec![chain] };
    let plugins = BTreeMap::from([(name.to_owned(), Ok(plugin))]);
    Ok(runtime.generation("bench", 1, Arc::new(tenant), plugins)?)
}

async fn sample(generation: &Arc<Generation>, batch: &Batch, calls: u64) -> Result<Duration> {
    let before = thread_cpu();
    for _ in 0..calls {
        std::hint::black_box(generation.produce(batch.clone()).await?);
    }
    Ok(thread_cpu() - before)
}

/// The engine's error type is not one of the standard library's.
fn plain<T>(result: wasmtime::Result<T>) -> Result<T> {
    result.map_err(|error| anyhow::anyhow!("{error:?}"))
}

const BARE: &str = r#"(component
    (core module $m (func (export "f") (param i32) (result i32) local.get 0))
    (core instance $i (instantiate $m))
    (func (export "f") (param "a" u32) (result u32) (canon lift (core func $i "f"))))"#;

/// A component whose only function gives back its argument, called with the settings the runtime uses.
fn bare() -> Result<impl FnMut(u64) -> Result<Duration>> {
    let mut config = wasmtime::Config::new();
    config.epoch_interruption(true).concurrency_support(false).wasm_component_model(true);
    let engine = plain(wasmtime::Engine::new(&config))?;
    let component = plain(wasmtime::component::Component::new(&engine, wat::parse_str(BARE)?))?;
    let linker = wasmtime::component::Linker::<()>::new(&engine);
    let mut store = wasmtime::Store::new(&engine, ());
    store.set_epoch_deadline(u64::MAX / 2);
    let instance = plain(linker.instantiate(&mut store, &component))?;
    let function = plain(instance.get_typed_func::<(u32,), (u32,)>(&mut store, "f"))?;
    Ok(move |calls| {
        let before = thread_cpu();
        for at in 0..calls {
            let argument = u32::try_from(at).unwrap_or_default();
            std::hint::black_box(plain(function.call(&mut store, (std::hint::black_box(argument),)))?);
        }
        Ok(thread_cpu() - before)
    })
}

async fn calls() -> Result<()> {
    let runtime = runtime()?;
    let none = generation(&runtime, "noop", "{}", 0)?;
    let noop = generation(&runtime, "noop", "{}", 1)?;
    let noop3 = generation(&runtime, "noop", "{}", 3)?;
    let keys = generation(&runtime, "keyfilter", r#"{"prefix":"user-"}"#, 1)?;
    let keys3 = generation(&runtime, "keyfilter", r#"{"prefix":"user-"}"#, 3)?;
    let mut bare = bare()?;

    let sizes = [(1, 1000, 0), (100, 1000, 0), (1000, 1000, 0), (100, 10_000, 0), (100, 1000, 50)];
    let batches: Vec<Batch> = sizes.iter().map(|(n, bytes, share)| batch(*n, *bytes, *share)).collect::<Result<_>>()?;
    let chains = [
        ("no plugin", &none),
        ("noop", &noop),
        ("noop x 3", &noop3),
        ("key filter", &keys),
        ("key filter x 3", &keys3),
    ];
    if let Some(only) = std::env::args().skip_while(|argument| argument != "--only").nth(1) {
        let (_, chain) = chains.iter().find(|(name, _)| *name == only).context("no chain of that name")?;
        sample(chain, &batches[1], ONLY_CALLS).await?;
        return Ok(());
    }
    let mut base = Samples::default();
    let mut table = vec![vec![Samples::default(); batches.len()]; chains.len()];
    // Inline placement comes after a number of short calls.
    for (_, chain) in &chains {
        sample(chain, &batches[0], 2000).await?;
    }
    for _ in 0..ROUNDS {
        base.add(bare(20_000)?, 20_000);
        for (samples, (_, chain)) in table.iter_mut().zip(&chains) {
            for (samples, batch) in samples.iter_mut().zip(&batches) {
                let calls = if batch.body.len() > 500 { 300 } else { 1500 };
                samples.add(sample(chain, batch, calls).await?, calls);
            }
        }
    }
    println!("\nhook calls, thread CPU time per batch, median of {ROUNDS} interleaved samples");
    row("bare typed component call", &base, "ns", None);
    for (samples, (name, _)) in table.iter().zip(&chains) {
        for (samples, (records, bytes, share)) in samples.iter().zip(&sizes) {
            row(&format!("{name}, {records} x {bytes} B, {share} % match"), samples, "ns", Some(&base));
        }
    }
    verdicts(&base, &table);
    Ok(())
}

/// The figures the project holds itself to.
fn verdicts(base: &Samples, table: &[Vec<Samples>]) {
    let over = |chain: usize, size: usize| table[chain][size].median() - table[0][size].median();
    println!("\na call that passes 100 records over a bare call:      {:.2} (at most 5)", over(1, 1) / base.median());
    println!("a call that passes 1000 records over one of 1 record: {:.2} (at most 1.5)", over(1, 2) / over(1, 0));
    println!("key filter per record, 100 x 1 KB:                    {:.1} ns (at most 10)", over(3, 1) / 100.0);
    println!("key filter per record, 100 x 10 KB:                   {:.1} ns (at most 10)", over(3, 3) / 100.0);
    println!(
        "key filter that drops half, per record, 100 x 1 KB:   {:.1} ns, rebuilding the batch included",
        over(3, 4) / 100.0
    );
}

/// Loading with compiled code in the cache: what the machine code costs, then everything up to the smoke run.
fn loading() -> Result<()> {
    let runtime = runtime()?;
    println!("\nloading with a warm cache, wall time, median of {ROUNDS}");
    let schema = (plugins::SCHEMA_SETTINGS, plugins::schema_files()?);
    let others =
        [("noop", "{}"), ("keyfilter", r#"{"prefix":"user-"}"#)].map(|(name, settings)| (name, (settings, Vec::new())));
    for (name, (settings, files)) in others.into_iter().chain([("schema", schema)]) {
        let bytes = component(name)?;
        let spec = spec(&bytes, settings);
        let load = || runtime.load("bench", name, &spec, &bytes, files.clone());
        load()?;
        let (mut code, mut whole) = (Samples::default(), Samples::default());
        let mut code_bytes = 0;
        for _ in 0..ROUNDS {
            let took = std::hint::black_box(load()?).load_times();
            code.add(took.code, 1000);
            whole.add(took.code + took.start, 1000);
            code_bytes = took.code_bytes;
        }
        let mib = code_bytes as f64 / f64::from(1 << 20);
        row(&format!("{name}: {mib:.1} MiB of machine code"), &code, "µs", None);
        println!("{:<44} {:>12.1} µs", "    at most 1 ms + 0.5 ms per MB", 1000.0 + 500.0 * code_bytes as f64 / 1e6);
        row("    and link, describe, init, smoke run", &whole, "µs", None);
    }
    Ok(())
}
