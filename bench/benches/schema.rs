//! `schema` as a guest against the same crate as native code, on the real events:
//! `cargo xtask guests && cargo bench -p tidegate-bench --bench schema`.
//!
//! Thread CPU time per record, samples of guest and native process taken in turn. Three documents show where a guest's
//! time goes: one that knows no topic (fields gathered, records handed over, verdict back), one whose messages have no
//! schema (parsing on top), and the real one.
#![allow(clippy::print_stdout, reason = "a benchmark reports to the person who runs it")]

mod plugins;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use serde_json::{Value, json};
use tidegate::hooks::{Hook, Plugin, Runtime};
use tidegate_bench::{Samples, row};
use tidegate_protocol::{
    batch::{BatchBody, BatchBuilder},
    limits::Limits,
    record::RecordView,
};

/// Records of one call.
const BATCH: usize = 47;
const ROUNDS: usize = 21;
const PASSES: u32 = 2;

fn main() -> Result<()> {
    let runtime = plugins::runtime()?;
    let schema = plugin(&runtime, plugins::schema_files()?)?;
    let parse = plugin(&runtime, vec![document("github/{event}")])?;
    let handed = plugin(&runtime, vec![document("elsewhere")])?;
    let mut native = Native::start()?;

    let events = plugins::example("events.ndjson")?;
    let lines: Vec<&str> = events.lines().collect();
    let bodies: Vec<BatchBody> = lines.chunks(BATCH).map(body).collect::<Result<_>>()?;
    let records = lines.len() as u64;
    let mut guest: [Samples; 3] = Default::default();
    let (mut native_parse, mut native_check) = (Samples::default(), Samples::default());
    for round in 0..=ROUNDS {
        let (parsed, checked) = native.sample()?;
        let took: Vec<Duration> =
            [&handed, &parse, &schema].into_iter().map(|plugin| pass(plugin, &bodies)).collect::<Result<_>>()?;
        // The first round warms up.
        if round > 0 {
            native_parse.add(Duration::from_nanos(parsed), 1);
            native_check.add(Duration::from_nanos(checked), 1);
            for (samples, took) in guest.iter_mut().zip(took) {
                samples.add(took, records * u64::from(PASSES));
            }
        }
    }

    let bytes = events.len() as f64 / records as f64;
    println!(
        "\n{records} events of {bytes:.0} B on average, CPU time per record, median of {ROUNDS} interleaved samples"
    );
    row("native: parse", &native_parse, "ns", None);
    row("native: parse and validate", &native_check, "ns", None);
    row("guest: handed over", &guest[0], "ns", None);
    row("guest: handed over, parsed", &guest[1], "ns", Some(&native_parse));
    row("guest: handed over, parsed, validated", &guest[2], "ns", Some(&native_check));
    println!(
        "\nspeed of the guest over native: {:.2} (target 0.5); {:.0} MB/s",
        native_check.median() / guest[2].median(),
        bytes * 1e3 / guest[2].median()
    );
    Ok(())
}

/// A document with one channel that takes any JSON.
fn document(address: &str) -> (String, Bytes) {
    let parameters = if address.contains('{') { json!({"event": {}}) } else { json!({}) };
    let document = json!({
        "asyncapi": "3.0.0",
        "info": {"title": "bench", "version": "1"},
        "channels": {"any": {"address": address, "parameters": parameters, "messages": {"any": {}}}},
    });
    ("examples/github/asyncapi.json".to_owned(), document.to_string().into())
}

fn plugin(runtime: &Runtime, files: Vec<(String, Bytes)>) -> Result<Arc<Plugin>> {
    let bytes = plugins::component("schema")?;
    let settings = json!({"asyncapi": "file:examples/github/asyncapi.json", "unknown": "pass"}).to_string();
    Ok(runtime.load("bench", "schema", &plugins::spec(&bytes, &settings), &bytes, files)?)
}

fn body(lines: &[&str]) -> Result<BatchBody> {
    let mut builder = BatchBuilder::new();
    for line in lines {
        let value: Value = serde_json::from_str(line)?;
        let topic = format!("github/{}", value["event"].as_str().context("an event has a name")?);
        let record = RecordView { key: None, value: Some(line.as_bytes()), headers: &[], timestamp_ms: 0 };
        builder.push(&topic, record);
    }
    Ok(BatchBody::parse(builder.finish(), &Limits::default())?)
}

fn pass(plugin: &Plugin, bodies: &[BatchBody]) -> Result<Duration> {
    let mut took = Duration::ZERO;
    for body in bodies {
        took += plugin.measure(Hook::Produce, body.clone(), PASSES)?;
    }
    Ok(took)
}

/// The native side: a process that measures on demand.
struct Native {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Native {
    /// Builds it first, if need be.
    fn start() -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut child = Command::new(cargo)
            .args(["bench", "--quiet", "--package", "tidegate-plugin-schema", "--bench", "native", "--", "--serve"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cargo")?;
        let to = child.stdin.take().context("a pipe")?;
        let from = BufReader::new(child.stdout.take().context("a pipe")?);
        Ok(Self { child, to, from })
    }

    /// Nanoseconds per record: parsing, then parsing and validating.
    fn sample(&mut self) -> Result<(u64, u64)> {
        writeln!(self.to, "{PASSES}")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let (parsed, checked) = line.trim().split_once(' ').context("the native side is gone")?;
        Ok((parsed.parse()?, checked.parse()?))
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // It may be gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
