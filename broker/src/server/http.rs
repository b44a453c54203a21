//! Health, readiness and metrics over HTTP, for probes and Prometheus. Read-only, no credentials: loopback by default.

use std::{
    future::Future,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;

use super::{Broker, activation};
use crate::{
    hooks::{HookStats, Stats},
    metrics::{Exposition, Metrics},
};

/// What the pages tell: there from the first moment, while the log is still being read.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) metrics: Arc<Metrics>,
    /// What a start waits for.
    phase: Mutex<&'static str>,
    /// The broker, once it is up.
    broker: OnceLock<Arc<Broker>>,
}

impl Pages {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, phase: Mutex::new("starting"), broker: OnceLock::new() }
    }

    /// Says what the start waits for.
    pub(super) fn phase(&self, phase: &'static str) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    /// The broker is up.
    pub(super) fn up(&self, broker: Arc<Broker>) {
        // Set once, by the start.
        drop(self.broker.set(broker));
    }

    /// Why the broker is not ready. Empty = it is.
    fn reasons(&self) -> Vec<String> {
        let Some(broker) = self.broker.get() else {
            return vec![(*self.phase.lock().unwrap_or_else(PoisonError::into_inner)).to_owned()];
        };
        let mut reasons = Vec::new();
        if *broker.stopping.borrow() {
            reasons.push("the broker is draining".to_owned());
        }
        if let Some(failed) = broker.shard.failed() {
            reasons.push(failed.to_string());
        }
        reasons
    }
}

/// Serves until `stop` resolves.
pub(super) async fn serve(
    listener: tokio::net::TcpListener,
    pages: Arc<Pages>,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let router = Router::new()
        .route("/health", get(async || "ok\n"))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .with_state(pages);
    if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(stop).await {
        tracing::error!(%error, "health and metrics are no longer served");
    }
}

async fn ready(State(pages): State<Arc<Pages>>) -> Response {
    let reasons = pages.reasons();
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let (drift, faults) = pages
        .broker
        .get()
        .map_or_else(Default::default, |broker| (broker.activation.drift(), broker.activation.faults()));
    let body = json!({ "ready": reasons.is_empty(), "reasons": reasons, "drift": drift, "plugin_faults": faults });
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

async fn metrics(State(pages): State<Arc<Pages>>) -> Response {
    let mut text = Exposition::default();
    pages.metrics.write(&mut text);
    text.gauge("tidegate_ready", "1 = takes and gives records.", u64::from(pages.reasons().is_empty()));
    if let Some(broker) = pages.broker.get() {
        broker_metrics(broker, &mut text);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text.finish()).into_response()
}

fn broker_metrics(broker: &Broker, text: &mut Exposition) {
    text.gauge("tidegate_wal_queue_bytes", "Bytes that wait for the disk.", broker.shard.queued_bytes() as u64);
    text.gauge("tidegate_produce_budget_bytes", "Batch bytes between socket and disk.", broker.budget.taken() as u64);
    text.gauge("tidegate_durable_lsn", "The next position that becomes durable.", broker.shard.reader().end());
    retention(broker, text);
    text.family("tidegate_generation", "gauge", "The live chain generation.");
    for tenant in broker.activation.tenants() {
        text.sample("tidegate_generation", &[("tenant", &tenant.name)], tenant.generation());
    }
    text.gauge(
        "tidegate_plugin_drift",
        "Places where what runs differs from plugins.toml.",
        broker.activation.drift().len() as u64,
    );
    plugins(broker, text);
}

fn retention(broker: &Broker, text: &mut Exposition) {
    let stats = broker.shard.retention_stats();
    text.gauge("tidegate_segments", "Segments of the log.", stats.segments);
    text.gauge("tidegate_segment_bytes", "Their bytes.", stats.segment_bytes);
    text.family("tidegate_retention_moves_total", "counter", "Low offsets of topics moved, by cause.");
    for (cause, moves) in ["truncate", "age", "size"].into_iter().zip(stats.moves) {
        text.sample("tidegate_retention_moves_total", &[("cause", cause)], moves);
    }
    text.counter("tidegate_retention_segments_dropped_total", "Segments dropped.", stats.segments_dropped);
    text.counter("tidegate_retention_bytes_dropped_total", "Bytes of segments dropped.", stats.bytes_dropped);
    text.gauge(
        "tidegate_retention_held_bytes",
        "Bytes of segments that hold nothing alive and are not dropped yet.",
        stats.held_bytes,
    );
    text.counter("tidegate_retention_failures_total", "Looks of retention that failed.", stats.failures);
}

type Number = fn(&HookStats) -> u64;

fn plugins(broker: &Broker, text: &mut Exposition) {
    let mut all: Vec<(Arc<str>, String, Stats)> = Vec::new();
    for tenant in broker.activation.tenants() {
        for (name, plugin) in tenant.live.now().plugins() {
            if let Ok(plugin) = plugin {
                all.push((Arc::clone(&tenant.name), name.clone(), plugin.stats()));
            }
        }
    }
    let counters: [(&str, &str, Number); 5] = [
        ("tidegate_plugin_calls_total", "Calls of a hook.", |hook| hook.calls),
        ("tidegate_plugin_records_total", "Records given to a hook.", |hook| hook.records),
        ("tidegate_plugin_changed_total", "Records a hook changed.", |hook| hook.changed),
        ("tidegate_plugin_routed_total", "Records a hook sent to another topic.", |hook| hook.routed),
        ("tidegate_plugin_emitted_total", "Records a hook emitted.", |hook| hook.emitted),
    ];
    for (name, help, number) in counters {
        text.family(name, "counter", help);
        for_hooks(&all, |labels, hook| text.sample(name, labels, number(hook)));
    }
    text.family("tidegate_plugin_cpu_seconds_total", "counter", "CPU time of a hook's calls.");
    for_hooks(&all, |labels, hook| text.seconds("tidegate_plugin_cpu_seconds_total", labels, hook.cpu_ns));
    text.family("tidegate_plugin_verdicts_total", "counter", "Records a hook decided against.");
    for_hooks(&all, |[tenant, plugin, hook_label], hook| {
        for (verdict, count) in [("dropped", hook.dropped), ("rejected", hook.rejected)] {
            let labels = [*tenant, *plugin, *hook_label, ("verdict", verdict)];
            text.sample("tidegate_plugin_verdicts_total", &labels, count);
        }
    });
    text.family("tidegate_plugin_faults_total", "counter", "Calls that failed, by kind.");
    for_hooks(&all, |[tenant, plugin, hook_label], hook| {
        let faults = &hook.faults;
        for (kind, count) in [
            ("trap", faults.trap),
            ("deadline", faults.deadline),
            ("memory", faults.memory),
            ("bad_output", faults.bad_output),
            ("retry", faults.retry),
            ("permanent", faults.permanent),
            ("unavailable", faults.unavailable),
        ] {
            let labels = [*tenant, *plugin, *hook_label, ("kind", kind)];
            text.sample("tidegate_plugin_faults_total", &labels, count);
        }
    });
    text.family("tidegate_plugin_memory_bytes", "gauge", "Largest linear memory of an instance.");
    for (tenant, plugin, stats) in &all {
        text.sample("tidegate_plugin_memory_bytes", &[("tenant", tenant), ("plugin", plugin)], stats.memory_bytes);
    }
    text.family("tidegate_plugin_placement", "gauge", "1 for where a plugin's calls run now.");
    for (tenant, plugin, stats) in &all {
        let place = activation::placement(stats.placement);
        text.sample("tidegate_plugin_placement", &[("tenant", tenant), ("plugin", plugin), ("place", place)], 1);
    }
}

fn for_hooks(all: &[(Arc<str>, String, Stats)], mut write: impl FnMut(&[(&str, &str); 3], &HookStats)) {
    for (tenant, plugin, stats) in all {
        for (label, hook) in [("produce", &stats.produce), ("fetch", &stats.fetch)] {
            if hook.calls > 0 {
                write(&[("tenant", tenant), ("plugin", plugin), ("hook", label)], hook);
            }
        }
    }
}
