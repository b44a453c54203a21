//! What a chain is made of, as plain data: filled by `config` from `plugins.toml`, written into activation records,
//! read by the runtime. Serialised as JSON with a version by whoever stores it.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// All of one tenant's plugins and chains.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TenantSpec {
    /// By name in `plugins.toml`.
    pub plugins: BTreeMap<String, PluginSpec>,
    /// In file order.
    pub chain: Vec<ChainEntry>,
}

/// One `[plugin.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginSpec {
    /// `sha256:HEX` of the component as supplied. The bytes lie in the blob store under it.
    pub digest: String,
    /// The settings as a JSON object.
    pub settings: String,
    /// Bundled files: path as the guest knows it → `sha256:HEX` of the content.
    pub files: BTreeMap<String, String>,
    /// `log`, `clock`, `random`, `counters`, `batch`, `route:PATTERN`, `emit:PATTERN`, `header:NAME`.
    pub grants: Vec<String>,
    /// What one call may use.
    pub budget: Budget,
    /// What happens when it fails, on the way in.
    pub on_produce_failure: Policy,
    /// What happens when it fails, on the way out.
    pub on_fetch_failure: Policy,
    /// `wasi = "sandbox"`: link an empty WASI context. Refused in this version.
    pub wasi: bool,
    /// Where the component came from.
    pub source: Source,
    /// Digest of the entry's text and files in `plugins.toml` when it was last applied: a reload acts only on a change.
    pub applied: String,
    /// `FILE:LINE` of the entry.
    pub place: String,
}

/// Where a component came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The file named in `plugins.toml`.
    File,
    /// A command-line swap or rollback: overrides the file, shown as drift.
    Swap,
}

/// What a call may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Guest CPU time per call, apart from `cpu_per_mib`. Default 5 ms.
    pub cpu: Duration,
    /// Guest CPU time per MiB given. Default 20 ms.
    pub cpu_per_mib: Duration,
    /// Guest CPU time of `init`. Default 10 s.
    pub init: Duration,
    /// Linear memory of one instance. Default 32 MiB.
    pub memory_bytes: u64,
    /// Output at most this many times the input of the call, plus 64 KiB. Default 4.
    pub output_times: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            cpu: Duration::from_millis(5),
            cpu_per_mib: Duration::from_millis(20),
            init: Duration::from_secs(10),
            memory_bytes: 32 << 20,
            output_times: 4,
        }
    }
}

/// What becomes of a batch that a plugin failed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The batch is refused; on fetch, the cursor stays.
    #[default]
    Closed,
    /// The batch passes this plugin unchanged. Only by explicit choice.
    Open,
}

/// One `[[chain]]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChainEntry {
    /// Patterns, any of which.
    pub topics: Vec<String>,
    /// But none of these.
    pub except: Vec<String>,
    /// Plugins on the way in, in order.
    pub produce: Vec<Use>,
    /// Plugins on the way out, in order.
    pub fetch: Vec<Use>,
    /// A rejected record refuses only itself, or the whole batch.
    pub rejection: Rejection,
    /// Records that end in these topics must have passed all `produce` plugins of this entry.
    pub enforced: bool,
    /// How long records of these topics are kept, unless an entry before says so. `None` = nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// `FILE:LINE` of the entry.
    pub place: String,
}

/// How long records are kept. One of the two at least.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// By broker time.
    pub age: Option<Duration>,
    /// Of each topic, by the bytes of its stored batches.
    pub bytes: Option<u64>,
}

/// A plugin at a position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Its name.
    pub plugin: String,
    /// Fetch only: readers with this role (`role:NAME`) skip it. Empty = nobody.
    pub unless: String,
}

/// See [`ChainEntry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rejection {
    /// Only the record.
    #[default]
    PerRecord,
    /// The whole batch.
    All,
}
