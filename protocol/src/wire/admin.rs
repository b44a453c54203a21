//! The messages about topics and plugins.

use prost::Message;

/// Asks for topics.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TopicList {
    /// Empty = all.
    #[prost(string, tag = "1")]
    pub pattern: String,
    /// Also `$sys` topics (admin only).
    #[prost(bool, tag = "2")]
    pub reserved: bool,
}

/// One topic.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TopicInfo {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its id.
    #[prost(uint64, tag = "2")]
    pub id: u64,
    /// The next offset, as far as it is durable.
    #[prost(uint64, tag = "3")]
    pub next_offset: u64,
    /// Unix milliseconds of its creation.
    #[prost(int64, tag = "4")]
    pub created_ms: i64,
    /// The first offset kept: records before it are gone.
    #[prost(uint64, tag = "5")]
    pub low_offset: u64,
}

/// Answer to `TopicList`, by name.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Topics {
    /// At most 10 000.
    #[prost(message, repeated, tag = "1")]
    pub topics: Vec<TopicInfo>,
    /// There are more.
    #[prost(bool, tag = "2")]
    pub truncated: bool,
}

/// Creates a topic.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TopicCreate {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Removes the oldest records of a topic. Admin.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TopicTruncate {
    /// The topic.
    #[prost(string, tag = "1")]
    pub topic: String,
    /// Records before this offset are gone; at most the topic's next offset.
    #[prost(uint64, tag = "2")]
    pub before: u64,
}

/// Answer to `TopicTruncate`: durable, and no reader gets them any more.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TopicTruncated {
    /// The topic as it is now.
    #[prost(message, optional, tag = "1")]
    pub topic: Option<TopicInfo>,
    /// The first offset kept before; equal to the one now if nothing was there to remove.
    #[prost(uint64, tag = "2")]
    pub low_offset_before: u64,
}

/// Asks for keys of a topic, by prefix.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyList {
    /// The topic.
    #[prost(string, tag = "1")]
    pub topic: String,
    /// Keys begin with it; empty = all.
    #[prost(bytes = "vec", tag = "2")]
    pub prefix: Vec<u8>,
    /// Only keys behind this one: the last of the answer before.
    #[prost(bytes = "vec", optional, tag = "3")]
    pub after: Option<Vec<u8>>,
    /// At most so many; 0 = as many as one answer holds.
    #[prost(uint32, tag = "4")]
    pub keys_max: u32,
}

/// Where a key stands.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyInfo {
    /// As stored.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Version of its last record.
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// Offset of its last record.
    #[prost(uint64, tag = "3")]
    pub last_offset: u64,
}

/// Answer to `KeyList`, by key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Keys {
    /// At most 10 000, and 4 MiB of keys.
    #[prost(message, repeated, tag = "1")]
    pub keys: Vec<KeyInfo>,
    /// There are more behind the last one.
    #[prost(bool, tag = "2")]
    pub truncated: bool,
}

/// Asks for the plugins.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PluginList {}

/// One configured plugin.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PluginInfo {
    /// Name in `plugins.toml`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Digest of what runs: `sha256:HEX`; empty = it could not be loaded.
    #[prost(string, tag = "2")]
    pub digest: String,
    /// Version the component gives itself.
    #[prost(string, tag = "3")]
    pub version: String,
    /// Hooks it is used in: `produce`, `fetch`.
    #[prost(string, repeated, tag = "4")]
    pub hooks: Vec<String>,
    /// Where what runs came from: `file` or `swap`.
    #[prost(string, tag = "5")]
    pub source: String,
    /// What runs differs from `plugins.toml`, and how; empty = it does not.
    #[prost(string, tag = "6")]
    pub drift: String,
    /// Why it could not be loaded; empty = it runs.
    #[prost(string, tag = "7")]
    pub fault: String,
    /// Calls since start.
    #[prost(uint64, tag = "8")]
    pub calls: u64,
    /// Records given to it since start.
    #[prost(uint64, tag = "9")]
    pub records: u64,
    /// Guest CPU time since start, nanoseconds.
    #[prost(uint64, tag = "10")]
    pub cpu_ns: u64,
    /// Calls that ended in a fault.
    #[prost(uint64, tag = "11")]
    pub faults: u64,
    /// Largest linear memory of an instance, bytes.
    #[prost(uint64, tag = "12")]
    pub memory_bytes: u64,
    /// Capabilities granted.
    #[prost(string, repeated, tag = "13")]
    pub grants: Vec<String>,
    /// Where its calls run now: `inline` or `hook thread`.
    #[prost(string, tag = "14")]
    pub placement: String,
    /// Records dropped.
    #[prost(uint64, tag = "15")]
    pub dropped: u64,
    /// Records rejected.
    #[prost(uint64, tag = "16")]
    pub rejected: u64,
    /// Records changed.
    #[prost(uint64, tag = "17")]
    pub changed: u64,
}

/// Answer to `PluginList`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Plugins {
    /// In the order of the file.
    #[prost(message, repeated, tag = "1")]
    pub plugins: Vec<PluginInfo>,
    /// The live generation.
    #[prost(uint64, tag = "2")]
    pub generation: u64,
}

/// Replaces a component. Admin.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PluginSwap {
    /// Name in `plugins.toml`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The component, or a core module with an embedded component type. At most 64 MiB.
    #[prost(bytes = "vec", tag = "2")]
    pub component: Vec<u8>,
    /// The generation the caller saw; 0 = whatever is live.
    #[prost(uint64, tag = "3")]
    pub based_on: u64,
}

/// Goes back one version. Admin.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PluginRollback {
    /// Name in `plugins.toml`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// As in `PluginSwap`.
    #[prost(uint64, tag = "2")]
    pub based_on: u64,
}

/// Reads `plugins.toml` again. Admin.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Reload {
    /// As in `PluginSwap`.
    #[prost(uint64, tag = "1")]
    pub based_on: u64,
}

/// A change is live.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Activated {
    /// The new generation.
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    /// LSN of the activation record.
    #[prost(uint64, tag = "2")]
    pub lsn: u64,
    /// The next offset of each topic of the plugin's chains at that instant: the first under the new generation.
    #[prost(message, repeated, tag = "3")]
    pub topics: Vec<TopicInfo>,
    /// Digest now running.
    #[prost(string, tag = "4")]
    pub digest: String,
    /// Digest before.
    #[prost(string, tag = "5")]
    pub previous_digest: String,
    /// Clients connected, none of which was disconnected for this.
    #[prost(uint32, tag = "6")]
    pub clients: u32,
    /// Nothing was different: no new generation.
    #[prost(bool, tag = "7")]
    pub unchanged: bool,
    /// Overrides of the command line that the file ended.
    #[prost(message, repeated, tag = "8")]
    pub overrides_ended: Vec<OverrideEnded>,
}

/// A swap or rollback that is no longer live because the plugin's entry in `plugins.toml` changed.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OverrideEnded {
    /// Name in `plugins.toml`.
    #[prost(string, tag = "1")]
    pub plugin: String,
    /// Digest that ran.
    #[prost(string, tag = "2")]
    pub digest: String,
    /// Digest now running; empty = the plugin is no longer in the file.
    #[prost(string, tag = "3")]
    pub next_digest: String,
}

/// Asks for the effective chain of a topic.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ChainExplain {
    /// The topic.
    #[prost(string, tag = "1")]
    pub topic: String,
}

/// One position of a chain.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ChainPosition {
    /// `produce` or `fetch`.
    #[prost(string, tag = "1")]
    pub hook: String,
    /// Name in `plugins.toml`.
    #[prost(string, tag = "2")]
    pub plugin: String,
    /// File and line of the chain entry.
    #[prost(string, tag = "3")]
    pub place: String,
    /// Patterns of the entry.
    #[prost(string, repeated, tag = "4")]
    pub topics: Vec<String>,
    /// Exceptions of the entry.
    #[prost(string, repeated, tag = "5")]
    pub except: Vec<String>,
    /// `sha256:HEX`.
    #[prost(string, tag = "6")]
    pub digest: String,
    /// `5ms + 20ms/MiB, 32 MiB, output 4x`.
    #[prost(string, tag = "7")]
    pub budget: String,
    /// `closed`, `open`.
    #[prost(string, tag = "8")]
    pub policy: String,
    /// Roles that skip it (fetch), or empty.
    #[prost(string, tag = "9")]
    pub unless: String,
}

/// The effective chain of a topic.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Chain {
    /// In the order they run.
    #[prost(message, repeated, tag = "1")]
    pub positions: Vec<ChainPosition>,
    /// The live generation.
    #[prost(uint64, tag = "2")]
    pub generation: u64,
    /// `per-record` or `all`.
    #[prost(string, tag = "3")]
    pub rejection: String,
    /// Plugins a record must have passed to end here.
    #[prost(string, repeated, tag = "4")]
    pub required: Vec<String>,
    /// What is kept of the topic: `7d, 10 GiB`; empty = everything.
    #[prost(string, tag = "5")]
    pub retention: String,
}
