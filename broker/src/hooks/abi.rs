//! The WIT types as Rust types, field by field what `wit/types.wit`, `hooks.wit` and `capabilities.wit` say.
//!
//! Written by hand instead of generated: the frame goes down as two shared vectors that are used again, and exports are
//! looked up one by one so that a plugin need not export the hooks it has not. wasmtime compares every shape with the
//! component when a typed function is made (`load`), so a difference from `wit/` is a load error, never a misread.

#![allow(unsafe_code, reason = "the derives of wasmtime write `unsafe impl`; there is no unsafe block here")]
#![allow(missing_docs, reason = "wit/ documents each item")]
#![allow(missing_debug_implementations, reason = "the flags macro writes what it writes")]

use std::sync::Arc;

use wasmtime::component::{ComponentType, Lift, Lower, flags};

flags! {
    Fields {
        #[component(name = "key")]
        const KEY;
        #[component(name = "value")]
        const VALUE;
        #[component(name = "headers")]
        const HEADERS;
        #[component(name = "topic")]
        const TOPIC;
        #[component(name = "timestamp")]
        const TIMESTAMP;
        #[component(name = "offset")]
        const OFFSET;
    }
}

flags! {
    Hooks {
        #[component(name = "produce")]
        const PRODUCE;
        #[component(name = "fetch")]
        const FETCH;
        #[component(name = "compact")]
        const COMPACT;
        #[component(name = "apply")]
        const APPLY;
        #[component(name = "document")]
        const DOCUMENT;
    }
}

/// Whether a set has a field.
pub(super) fn has(fields: Fields, field: Fields) -> bool {
    fields & field == field
}

#[derive(ComponentType, Lift, Lower, Clone, Copy, Debug)]
#[component(record)]
pub(super) struct BatchInfo {
    pub count: u32,
    pub generation: u64,
    #[component(name = "now-ms")]
    pub now_ms: i64,
}

/// A frame on its way into a guest. Its vectors are kept with the instance and filled again for the next call.
#[derive(ComponentType, Lower, Clone, Debug, Default)]
#[component(record)]
pub(super) struct Frame {
    pub index: Vec<u32>,
    pub data: Vec<u8>,
}

#[derive(ComponentType, Lower, Clone, Debug, Default)]
#[component(record)]
pub(super) struct Reader {
    pub principal: Arc<str>,
    pub group: Arc<str>,
    pub parameters: Arc<str>,
}

#[derive(ComponentType, Lift, Clone, Copy, Debug, PartialEq, Eq)]
#[component(record)]
pub(super) struct Rejection {
    pub code: u16,
    #[component(name = "retry-after-ms")]
    pub retry_after_ms: u32,
    pub reason: u32,
}

#[derive(ComponentType, Lift, Clone, Copy, Debug, PartialEq, Eq)]
#[component(record)]
pub(super) struct Emission {
    pub origin: u32,
    pub topic: u32,
    pub key: u32,
    pub value: u32,
    pub headers: u32,
}

#[derive(ComponentType, Lift, Clone, Debug, Default)]
#[component(record)]
pub(super) struct Edit {
    pub at: Vec<u32>,
    pub op: Vec<u8>,
    pub arg: Vec<u32>,
    pub rejections: Vec<Rejection>,
    pub emissions: Vec<Emission>,
    #[component(name = "string-ends")]
    pub string_ends: Vec<u32>,
    #[component(name = "string-data")]
    pub string_data: Vec<u8>,
}

#[derive(ComponentType, Lift, Clone, Debug)]
#[component(record)]
pub(super) struct Refusal {
    pub code: u16,
    #[component(name = "retry-after-ms")]
    pub retry_after_ms: u32,
    pub reason: String,
}

#[derive(ComponentType, Lift, Clone, Debug)]
#[component(variant)]
pub(super) enum Verdict {
    #[component(name = "pass")]
    Pass,
    #[component(name = "drop-all")]
    DropAll,
    #[component(name = "reject-all")]
    RejectAll(Refusal),
    #[component(name = "edit")]
    Edit(Edit),
}

#[derive(ComponentType, Lift, Clone, Debug)]
#[component(variant)]
pub(super) enum Failure {
    #[component(name = "retry")]
    Retry((u32, String)),
    #[component(name = "permanent")]
    Permanent(String),
}

#[derive(ComponentType, Lower, Clone, Debug)]
#[component(record)]
pub(super) struct BundledFile {
    pub path: String,
    pub content: Arc<Vec<u8>>,
}

#[derive(ComponentType, Lower, Clone, Debug)]
#[component(record)]
pub(super) struct Settings {
    pub json: Arc<str>,
    pub files: Vec<BundledFile>,
}

#[derive(ComponentType, Lift, Clone, Debug)]
#[component(record)]
pub(super) struct Manifest {
    pub name: String,
    pub version: String,
    pub hooks: Hooks,
    pub pure: bool,
    #[component(name = "reads-reader")]
    pub reads_reader: bool,
    #[component(name = "judges-singly")]
    pub judges_singly: bool,
    pub interpreted: bool,
    #[component(name = "settings-schema")]
    pub settings_schema: String,
}

#[derive(ComponentType, Lift, Clone, Copy, Debug)]
#[component(record)]
pub(super) struct Needs {
    pub produce: Fields,
    pub fetch: Fields,
    #[expect(dead_code, reason = "on-apply is declared, not yet called")]
    pub apply: Fields,
}

#[derive(ComponentType, Lift, Lower, Clone, Copy, Debug)]
#[component(enum)]
#[repr(u8)]
pub(super) enum LogLevel {
    #[component(name = "trace")]
    Trace,
    #[component(name = "debug")]
    Debug,
    #[component(name = "info")]
    Info,
    #[component(name = "warn")]
    Warn,
    #[component(name = "error")]
    Error,
}

/// `describe: func() -> manifest`.
pub(super) type Describe = wasmtime::component::TypedFunc<(), (Manifest,)>;
/// `init: func(with: settings) -> result<needs, failure>`.
pub(super) type Init = wasmtime::component::TypedFunc<(Arc<Settings>,), (Result<Needs, Failure>,)>;
/// `on-produce: func(info, records) -> result<verdict, failure>`.
pub(super) type OnProduce = wasmtime::component::TypedFunc<(BatchInfo, Arc<Frame>), (Result<Verdict, Failure>,)>;
/// `on-fetch: func(info, who, records) -> result<verdict, failure>`.
pub(super) type OnFetch =
    wasmtime::component::TypedFunc<(BatchInfo, Arc<Reader>, Arc<Frame>), (Result<Verdict, Failure>,)>;

/// No string: a null key or value, no headers.
pub(super) const NONE: u32 = u32::MAX;

/// Names of the interfaces this broker serves.
pub(super) mod names {
    /// The package, and the only version served.
    pub(in crate::hooks) const PACKAGE: &str = "tidegate:plugin";
    pub(in crate::hooks) const VERSION: &str = "0.1.0";
    pub(in crate::hooks) const TYPES: &str = "tidegate:plugin/types@0.1.0";
    pub(in crate::hooks) const LIFECYCLE: &str = "tidegate:plugin/lifecycle@0.1.0";
    pub(in crate::hooks) const PRODUCE: &str = "tidegate:plugin/produce-hook@0.1.0";
    pub(in crate::hooks) const FETCH: &str = "tidegate:plugin/fetch-hook@0.1.0";
    pub(in crate::hooks) const INSTANCE: &str = "tidegate:plugin/instance@0.1.0";
    pub(in crate::hooks) const LOG: &str = "tidegate:plugin/log@0.1.0";
    pub(in crate::hooks) const CLOCK: &str = "tidegate:plugin/clock@0.1.0";
    pub(in crate::hooks) const RANDOM: &str = "tidegate:plugin/random@0.1.0";
    pub(in crate::hooks) const COUNTERS: &str = "tidegate:plugin/counters@0.1.0";
    pub(in crate::hooks) const BATCH: &str = "tidegate:plugin/batch@0.1.0";
}
