//! The plugin as native code on the real events: what `cargo bench -p tidegate-bench --bench schema` compares the guest with.
//!
//! Alone it prints a table: `cargo bench -p tidegate-plugin-schema --bench native`. With `--serve` it measures one sample
//! for each line on standard input and answers nanoseconds of CPU time per record: parsing alone, then the whole check.
#![allow(clippy::print_stdout, reason = "a benchmark reports to the person who runs it")]

#[allow(dead_code, unreachable_pub, reason = "a part is used here")]
#[path = "../../../bench/src/samples.rs"]
mod samples;

use std::{fs, io, path::Path};

use samples::{Samples, row, thread_cpu};
use serde_json::Value;
use tidegate_plugin::{Batch, Fields, Plugin, Settings, Verdict};
use tidegate_plugin_schema::Schema;

/// Records of one call, as in the benchmark of the guest.
const BATCH: usize = 47;
const ROUNDS: usize = 21;

struct Frame {
    records: u32,
    index: Vec<u32>,
    data: Vec<u8>,
}

struct Bench {
    plugin: Schema,
    events: String,
    frames: Vec<Frame>,
}

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/github").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Values and topics as flat columns, as the broker gives them to a guest.
fn frame(lines: &[&str]) -> Frame {
    let mut frame = Frame { records: 0, index: Vec::new(), data: Vec::new() };
    let topics = lines.iter().map(|line| {
        let value: Value = serde_json::from_str(line).expect("events are JSON");
        format!("github/{}", value["event"].as_str().expect("an event has a name"))
    });
    let columns: [Vec<String>; 2] = [lines.iter().map(ToString::to_string).collect(), topics.collect()];
    for column in columns {
        let start = frame.data.len();
        for item in column {
            frame.data.extend_from_slice(item.as_bytes());
            frame.index.push(u32::try_from(frame.data.len() - start).expect("a small batch"));
        }
    }
    frame.records = u32::try_from(lines.len()).expect("a small batch");
    frame
}

impl Bench {
    fn new() -> Self {
        let file = |name: &str| (format!("examples/github/{name}"), read(name).into_bytes());
        let settings = r#"{"asyncapi": "file:examples/github/asyncapi.json"}"#;
        let settings = Settings::new(settings, vec![file("asyncapi.json"), file("schema.json")]);
        let events = read("events.ndjson");
        let lines: Vec<&str> = events.lines().collect();
        let frames = lines.chunks(BATCH).map(frame).collect();
        Self { plugin: Schema::new(&settings).expect("the document compiles"), events, frames }
    }

    fn records(&self) -> u64 {
        self.frames.iter().map(|frame| u64::from(frame.records)).sum()
    }

    fn parse(&self, passes: u32) -> std::time::Duration {
        let before = thread_cpu();
        for _ in 0..passes {
            for line in self.events.lines() {
                std::hint::black_box(serde_json::from_slice::<Value>(line.as_bytes()).is_ok());
            }
        }
        thread_cpu() - before
    }

    fn check(&mut self, passes: u32) -> std::time::Duration {
        let before = thread_cpu();
        for _ in 0..passes {
            for frame in &self.frames {
                let batch = Batch::new(frame.records, Fields::VALUE | Fields::TOPIC, &frame.index, &frame.data);
                let mut out = Verdict::default();
                self.plugin.on_produce(&batch.expect("a sound frame"), &mut out).expect("a verdict");
                std::hint::black_box(out);
            }
        }
        thread_cpu() - before
    }
}

fn main() {
    let mut bench = Bench::new();
    let records = bench.records();
    if std::env::args().any(|argument| argument == "--serve") {
        for passes in io::stdin().lines() {
            let passes = passes.ok().and_then(|line| line.trim().parse().ok()).expect("a number of passes");
            let per_record = |took: std::time::Duration| took.as_nanos() / u128::from(records * u64::from(passes));
            println!("{} {}", per_record(bench.parse(passes)), per_record(bench.check(passes)));
        }
        return;
    }
    let (mut parse, mut check) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        parse.add(bench.parse(2), records * 2);
        check.add(bench.check(2), records * 2);
    }
    println!("\nnative, thread CPU time per record, {records} events, median of {ROUNDS} interleaved samples");
    row("parse", &parse, "ns", None);
    row("parse and validate", &check, "ns", None);
}
