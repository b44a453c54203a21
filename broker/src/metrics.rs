//! What the broker counts: every metric name in one place, and the text a Prometheus server reads.
//!
//! Floor 0: counts only. Whoever counts holds an `Arc<Metrics>`; values that already lie elsewhere (queue lengths, plugin
//! statistics) are read when somebody asks. Nothing here is touched once per record, and every label is from a closed set
//! or named by the operator.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tidegate_protocol::error::{Code, TABLE};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
    /// Now.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// One more until the guard is dropped.
    pub fn hold(self: &std::sync::Arc<Self>) -> Held {
        self.0.fetch_add(1, Ordering::Relaxed);
        Held(std::sync::Arc::clone(self))
    }
    /// Now.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of what a [`Gauge`] counts.
#[derive(Debug)]
pub struct Held(std::sync::Arc<Gauge>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Upper bounds of the buckets of a latency, in microseconds: 100 µs to 10 s.
const LATENCY_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 125_000, 250_000, 500_000, 1_000_000, 5_000_000,
    10_000_000,
];

/// How long something takes.
#[derive(Debug, Default)]
pub struct Latency {
    buckets: [AtomicU64; LATENCY_US.len()],
    count: AtomicU64,
    sum_us: AtomicU64,
}

impl Latency {
    /// Takes one in.
    pub fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = LATENCY_US.iter().position(|bound| micros <= *bound).and_then(|at| self.buckets.get(at)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(micros, Ordering::Relaxed);
    }
}

/// What became of input records.
#[derive(Debug, Default)]
pub struct Records {
    /// Stored.
    pub appended: Counter,
    /// A plugin let them go.
    pub dropped: Counter,
    /// A plugin or a guard refused them.
    pub rejected: Counter,
    /// They lie in a dead-letter topic.
    pub diverted: Counter,
}

/// Where readers' bytes came from.
#[derive(Debug, Default)]
pub struct Reads {
    /// Memory: the reader keeps up.
    pub tail: Counter,
    /// WAL files and segments: it does not.
    pub disk: Counter,
}

/// All counts of one broker.
#[derive(Debug)]
pub struct Metrics {
    /// Batches taken off streams.
    pub produce_batches: Counter,
    /// Bytes of their bodies.
    pub produce_bytes: Counter,
    /// Their records, by what became of them.
    pub produce_records: Records,
    /// From the last byte of a batch to its ack.
    pub produce_seconds: Latency,
    /// Batches whose chain ran again because of a change of plugins.
    pub produce_reruns: Counter,
    /// Batches whose result was known from an earlier try.
    pub produce_duplicates: Counter,
    /// Frames given to readers.
    pub fetch_batches: Counter,
    /// Records in them.
    pub fetch_records: Counter,
    /// Bytes of their bodies.
    pub fetch_bytes: Counter,
    /// Stretches of the log read for readers.
    pub fetch_reads: Reads,
    /// Fetch chains that failed and were tried again.
    pub fetch_retries: Counter,
    /// Connections open.
    pub connections: std::sync::Arc<Gauge>,
    /// Connections turned away: too many, too slow, or not known.
    pub connections_refused: Counter,
    /// Subscriptions open.
    pub subscriptions: std::sync::Arc<Gauge>,
    /// Produce streams open.
    pub produce_streams: std::sync::Arc<Gauge>,
    /// Backups that hold on to the log.
    pub backup_pins: std::sync::Arc<Gauge>,
    /// Changes of plugins that went live.
    pub activations: Counter,
    /// Changes of plugins that were refused.
    pub activations_refused: Counter,
    /// Whole batches and requests refused, by code: one per row of the error table.
    refusals: Vec<(Code, Counter)>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            produce_batches: Counter::default(),
            produce_bytes: Counter::default(),
            produce_records: Records::default(),
            produce_seconds: Latency::default(),
            produce_reruns: Counter::default(),
            produce_duplicates: Counter::default(),
            fetch_batches: Counter::default(),
            fetch_records: Counter::default(),
            fetch_bytes: Counter::default(),
            fetch_reads: Reads::default(),
            fetch_retries: Counter::default(),
            connections: std::sync::Arc::default(),
            connections_refused: Counter::default(),
            subscriptions: std::sync::Arc::default(),
            produce_streams: std::sync::Arc::default(),
            backup_pins: std::sync::Arc::default(),
            activations: Counter::default(),
            activations_refused: Counter::default(),
            refusals: TABLE.iter().map(|row| (row.code, Counter::default())).collect(),
        }
    }
}

impl Metrics {
    /// Counts a refusal of a whole batch or request.
    pub fn refused(&self, code: Code) {
        if let Some((_, counter)) = self.refusals.iter().find(|(known, _)| *known == code) {
            counter.add(1);
        }
    }

    /// How often a code was given.
    pub fn refusals(&self, code: Code) -> u64 {
        self.refusals.iter().find(|(known, _)| *known == code).map_or(0, |(_, counter)| counter.value())
    }

    /// Writes all counts.
    pub fn write(&self, text: &mut Exposition) {
        text.counter("tidegate_produce_batches_total", "Batches taken off streams.", self.produce_batches.value());
        text.counter("tidegate_produce_bytes_total", "Bytes of their bodies.", self.produce_bytes.value());
        let records = &self.produce_records;
        text.family("tidegate_produce_records_total", "counter", "Input records by what became of them.");
        for (status, counter) in [
            ("appended", &records.appended),
            ("dropped", &records.dropped),
            ("rejected", &records.rejected),
            ("diverted", &records.diverted),
        ] {
            text.sample("tidegate_produce_records_total", &[("status", status)], counter.value());
        }
        text.latency("tidegate_produce_seconds", "From the last byte of a batch to its ack.", &self.produce_seconds);
        text.counter(
            "tidegate_produce_reruns_total",
            "Chains run again around an activation.",
            self.produce_reruns.value(),
        );
        text.counter(
            "tidegate_produce_duplicates_total",
            "Batches known from before.",
            self.produce_duplicates.value(),
        );
        text.counter("tidegate_fetch_batches_total", "Batches given to readers.", self.fetch_batches.value());
        text.counter("tidegate_fetch_records_total", "Records given to readers.", self.fetch_records.value());
        text.counter("tidegate_fetch_bytes_total", "Bytes of bodies given to readers.", self.fetch_bytes.value());
        text.family(
            "tidegate_fetch_reads_total",
            "counter",
            "Stretches of the log read for readers, by where they lay.",
        );
        for (from, counter) in [("tail", &self.fetch_reads.tail), ("disk", &self.fetch_reads.disk)] {
            text.sample("tidegate_fetch_reads_total", &[("from", from)], counter.value());
        }
        text.counter("tidegate_fetch_retries_total", "Fetch chains that failed.", self.fetch_retries.value());
        text.gauge("tidegate_connections", "Connections open.", self.connections.value());
        text.counter(
            "tidegate_connections_refused_total",
            "Connections turned away.",
            self.connections_refused.value(),
        );
        text.gauge("tidegate_subscriptions", "Subscriptions open.", self.subscriptions.value());
        text.gauge("tidegate_produce_streams", "Produce streams open.", self.produce_streams.value());
        text.gauge("tidegate_backup_pins", "Backups that hold on to the log.", self.backup_pins.value());
        text.counter("tidegate_activations_total", "Changes of plugins that went live.", self.activations.value());
        text.counter(
            "tidegate_activations_refused_total",
            "Changes of plugins that were refused.",
            self.activations_refused.value(),
        );
        text.family("tidegate_refusals_total", "counter", "Batches and requests refused as a whole, by code.");
        for (code, counter) in self.refusals.iter().filter(|(_, counter)| counter.value() > 0) {
            text.sample("tidegate_refusals_total", &[("code", code.name())], counter.value());
        }
    }
}

/// Text in the exposition format 0.0.4.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Starts a family of samples.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// One sample of a family.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.line(format_args!("{name}{} {value}", Labels(labels)));
    }

    /// A family of one counter.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }

    /// A family of one gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    /// A sample in seconds, from nanoseconds.
    pub fn seconds(&mut self, name: &str, labels: &[(&str, &str)], nanos: u64) {
        let (whole, part) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        self.line(format_args!("{name}{} {whole}.{part:09}", Labels(labels)));
    }

    /// A histogram.
    pub fn latency(&mut self, name: &str, help: &str, latency: &Latency) {
        self.family(name, "histogram", help);
        let mut below = 0;
        for (bucket, bound) in latency.buckets.iter().zip(LATENCY_US) {
            below += bucket.load(Ordering::Relaxed);
            let (whole, part) = (bound / 1_000_000, bound % 1_000_000);
            self.line(format_args!("{name}_bucket{{le=\"{whole}.{part:06}\"}} {below}"));
        }
        let count = latency.count.load(Ordering::Relaxed);
        self.line(format_args!("{name}_bucket{{le=\"+Inf\"}} {count}"));
        let sum = latency.sum_us.load(Ordering::Relaxed);
        self.line(format_args!("{name}_sum {}.{:06}", sum / 1_000_000, sum % 1_000_000));
        self.line(format_args!("{name}_count {count}"));
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("writing to a String does not fail");
    }
}

struct Labels<'a>(&'a [(&'a str, &'a str)]);

impl std::fmt::Display for Labels<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        for (at, (name, value)) in self.0.iter().enumerate() {
            f.write_str(if at == 0 { "{" } else { "," })?;
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(f, "{name}=\"{value}\"")?;
        }
        f.write_str("}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn text_as_prometheus_reads_it() {
        let mut text = Exposition::default();
        text.family("x_total", "counter", "Xs.");
        text.sample("x_total", &[("plugin", "a\"b\\"), ("hook", "produce")], 3);
        text.seconds("y_seconds_total", &[], 1_500_000_001);
        assert_eq!(
            text.finish(),
            "# HELP x_total Xs.\n# TYPE x_total counter\nx_total{plugin=\"a\\\"b\\\\\",hook=\"produce\"} 3\n\
             y_seconds_total 1.500000001\n"
        );
    }

    #[test]
    fn buckets_count_what_is_below() {
        let latency = Latency::default();
        for micros in [50, 100, 101, 700_000, 60_000_000] {
            latency.record(Duration::from_micros(micros));
        }
        let mut text = Exposition::default();
        text.latency("z_seconds", "Zs.", &latency);
        let text = text.finish();
        for line in [
            "z_seconds_bucket{le=\"0.000100\"} 2",
            "z_seconds_bucket{le=\"0.000250\"} 3",
            "z_seconds_bucket{le=\"1.000000\"} 4",
            "z_seconds_bucket{le=\"10.000000\"} 4",
            "z_seconds_bucket{le=\"+Inf\"} 5",
            "z_seconds_sum 60.700251",
            "z_seconds_count 5",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} in {text}");
        }
    }

    #[test]
    fn a_gauge_is_held_and_let_go() {
        let gauge = Arc::new(Gauge::default());
        let held = gauge.hold();
        assert_eq!(gauge.value(), 1);
        drop(held);
        assert_eq!(gauge.value(), 0);
    }

    #[test]
    fn refusals_are_told_by_name() {
        let metrics = Metrics::default();
        metrics.refused(Code::Overloaded);
        let mut text = Exposition::default();
        metrics.write(&mut text);
        assert!(text.finish().contains("tidegate_refusals_total{code=\"OVERLOADED\"} 1\n"));
        assert_eq!(metrics.refusals(Code::Overloaded), 1);
    }
}
