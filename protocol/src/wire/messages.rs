//! The messages of handshake, produce and fetch, and the two envelopes. Plain data: rules and conversions are in `convert`.

use prost::Message;

use super::{
    admin::{
        Activated, Chain, ChainExplain, KeyList, Keys, PluginList, PluginRollback, PluginSwap, Plugins, Reload,
        TopicCreate, TopicInfo, TopicList, TopicTruncate, TopicTruncated, Topics,
    },
    backup::{BackupBegin, BackupCut},
};

/// First message of a connection.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Hello {
    /// `VERSION`.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The tenant; empty = `default`.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// A token, or empty (then the client certificate counts, or loopback without auth).
    #[prost(string, tag = "3")]
    pub token: String,
    /// The admin credential, or empty.
    #[prost(string, tag = "4")]
    pub admin_token: String,
    /// Name of the client software, for logs. At most 64 bytes are kept.
    #[prost(string, tag = "5")]
    pub client: String,
}

/// Answer to `Hello`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Welcome {
    /// `VERSION`.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Version of the broker.
    #[prost(string, tag = "2")]
    pub broker: String,
    /// Who the client is taken for.
    #[prost(string, tag = "3")]
    pub principal: String,
    /// The tenant.
    #[prost(string, tag = "4")]
    pub tenant: String,
    /// Limits of this connection, in the order of `limits::Limits`.
    #[prost(uint32, tag = "5")]
    pub record_bytes_max: u32,
    /// See `limits::Limits`.
    #[prost(uint32, tag = "6")]
    pub batch_bytes_max: u32,
    /// See `limits::Limits`.
    #[prost(uint32, tag = "7")]
    pub batch_records_max: u32,
    /// See `limits::Limits`.
    #[prost(uint32, tag = "8")]
    pub key_bytes_max: u32,
    /// Whether the connection has admin rights.
    #[prost(bool, tag = "9")]
    pub admin: bool,
}

/// A typed error.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Failure {
    /// `error::Code` number.
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// What exactly went wrong, for people.
    #[prost(string, tag = "2")]
    pub message: String,
    /// 0 = do not retry without a change; otherwise wait this long.
    #[prost(uint32, tag = "3")]
    pub retry_after_ms: u32,
    /// The plugin at fault, or empty.
    #[prost(string, tag = "4")]
    pub plugin: String,
    /// Position of the record at fault in the client's batch, plus 1; 0 = none.
    #[prost(uint32, tag = "5")]
    pub record: u32,
    /// For `CONFLICT`: the version that stands, and the topic and key.
    #[prost(message, optional, tag = "6")]
    pub conflict: Option<ConflictDetail>,
    /// For a fetch that ended: where to resume. Printed cursor.
    #[prost(string, tag = "7")]
    pub cursor: String,
}

/// Which condition failed and what stands.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ConflictDetail {
    /// The topic of the condition.
    #[prost(string, tag = "1")]
    pub topic: String,
    /// The key of the condition.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    /// Version of the key now; 0 = it does not exist.
    #[prost(uint64, tag = "3")]
    pub version: u64,
    /// Last offset of the key now, if it exists.
    #[prost(uint64, optional, tag = "4")]
    pub last_offset: Option<u64>,
}

/// One message from the client.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClientMessage {
    /// Which.
    #[prost(oneof = "ClientBody", tags = "1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 24, 25, 30")]
    pub body: Option<ClientBody>,
}

/// See `ClientMessage`.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum ClientBody {
    /// First of a connection.
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// Makes this stream a produce stream.
    #[prost(message, tag = "2")]
    OpenProduce(OpenProduce),
    /// Makes this stream a subscription.
    #[prost(message, tag = "3")]
    OpenFetch(OpenFetch),
    /// Topics the principal may see.
    #[prost(message, tag = "10")]
    TopicList(TopicList),
    /// Creates a topic.
    #[prost(message, tag = "11")]
    TopicCreate(TopicCreate),
    /// Keys of a topic.
    #[prost(message, tag = "12")]
    KeyList(KeyList),
    /// Removes the oldest records of a topic.
    #[prost(message, tag = "13")]
    TopicTruncate(TopicTruncate),
    /// Plugins of the tenant.
    #[prost(message, tag = "20")]
    PluginList(PluginList),
    /// Replaces a plugin's component.
    #[prost(message, tag = "21")]
    PluginSwap(PluginSwap),
    /// Goes back to a plugin's version before.
    #[prost(message, tag = "22")]
    PluginRollback(PluginRollback),
    /// The effective chain of a topic.
    #[prost(message, tag = "23")]
    ChainExplain(ChainExplain),
    /// Reads `plugins.toml` again.
    #[prost(message, tag = "24")]
    Reload(Reload),
    /// Asks for an unused producer id.
    #[prost(message, tag = "25")]
    ProducerId(ProducerId),
    /// Asks for a cut of the log, kept as long as the stream stands.
    #[prost(message, tag = "30")]
    BackupBegin(BackupBegin),
}

/// Opens a produce stream.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OpenProduce {}

/// Head of a produced batch.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ProduceHead {
    /// 0 = no dedup.
    #[prost(uint64, tag = "1")]
    pub producer_id: u64,
    /// See `stored::ProducerStamp`.
    #[prost(uint32, tag = "2")]
    pub producer_epoch: u32,
    /// See `stored::ProducerStamp`.
    #[prost(uint64, tag = "3")]
    pub sequence: u64,
    /// All must hold or nothing is appended.
    #[prost(message, repeated, tag = "4")]
    pub conditions: Vec<Condition>,
}

/// What a key must stand at. Exactly one of the three.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Condition {
    /// The topic, literally.
    #[prost(string, tag = "1")]
    pub topic: String,
    /// The stored key, literally.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    /// By version (0 = must not exist), by last offset, or absence.
    #[prost(oneof = "Expect", tags = "3, 4, 5")]
    pub expect: Option<Expect>,
}

/// See `Condition`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Expect {
    /// The key's version; 0 = must not exist.
    #[prost(uint64, tag = "3")]
    Version(u64),
    /// Offset of the key's last record.
    #[prost(uint64, tag = "4")]
    LastOffset(u64),
    /// The key must not exist.
    #[prost(bool, tag = "5")]
    Absent(bool),
}

/// Answer to one batch, in the order of the batches.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ProduceAck {
    /// What became of the records, in the order of the batch.
    #[prost(message, repeated, tag = "1")]
    pub runs: Vec<AckRun>,
    /// Topics named by the runs.
    #[prost(string, repeated, tag = "2")]
    pub topics: Vec<String>,
    /// The batch was refused as a whole; `runs` then tells per record only if a plugin refused it.
    #[prost(message, optional, tag = "3")]
    pub failure: Option<Failure>,
    /// Chain generation the batch ran under; 0 if none.
    #[prost(uint64, tag = "4")]
    pub generation: u64,
    /// The result was stored by an earlier try of the same sequence.
    #[prost(bool, tag = "5")]
    pub duplicate: bool,
}

/// Some consecutive records of the batch with the same fate.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AckRun {
    /// How many records.
    #[prost(uint32, tag = "1")]
    pub records: u32,
    /// 0 appended, 1 dropped, 2 rejected, 3 diverted.
    #[prost(uint32, tag = "2")]
    pub status: u32,
    /// Appended: number of the topic in `topics`.
    #[prost(uint32, tag = "3")]
    pub topic: u32,
    /// Appended: offset of the first; the others follow densely.
    #[prost(uint64, tag = "4")]
    pub first_offset: u64,
    /// Appended: key version of each, 0 for a null key.
    #[prost(uint64, repeated, tag = "5")]
    pub key_versions: Vec<u64>,
    /// Rejected or diverted: `error::Code` number.
    #[prost(uint32, tag = "6")]
    pub code: u32,
    /// Rejected: the plugin's own code, or 0.
    #[prost(uint32, tag = "7")]
    pub plugin_code: u32,
    /// Rejected: 0 = do not retry.
    #[prost(uint32, tag = "8")]
    pub retry_after_ms: u32,
    /// Rejected: why.
    #[prost(string, tag = "9")]
    pub reason: String,
    /// The plugin that decided, or empty.
    #[prost(string, tag = "10")]
    pub plugin: String,
}

/// Opens a subscription (`follow`) or one read of history.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OpenFetch {
    /// A topic or a pattern.
    #[prost(string, tag = "1")]
    pub pattern: String,
    /// Where to start.
    #[prost(oneof = "Start", tags = "2, 3, 4, 5, 12, 13, 14")]
    pub start: Option<Start>,
    /// Go on with new records for ever.
    #[prost(bool, tag = "6")]
    pub follow: bool,
    /// Bound on records scanned, 0 = none. The read ends behind it.
    #[prost(uint64, tag = "7")]
    pub records_max: u64,
    /// Bound on bytes scanned, 0 = none. The read ends behind it.
    #[prost(uint64, tag = "8")]
    pub bytes_max: u64,
    /// Parameters for fetch plugins: a JSON object, or empty.
    #[prost(string, tag = "9")]
    pub parameters: String,
    /// The consumer group's name, or empty. (Groups are declared, not kept yet.)
    #[prost(string, tag = "10")]
    pub group: String,
    /// Only records of this stored key; the pattern must be one topic.
    #[prost(bytes = "vec", optional, tag = "11")]
    pub key: Option<Vec<u8>>,
}

/// See `OpenFetch`. Nothing = earliest.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Start {
    /// From the oldest record.
    #[prost(bool, tag = "2")]
    Earliest(bool),
    /// Only what comes after now.
    #[prost(bool, tag = "3")]
    Latest(bool),
    /// Printed cursor.
    #[prost(string, tag = "4")]
    Cursor(String),
    /// From an offset; the pattern must be one topic.
    #[prost(uint64, tag = "5")]
    Offset(u64),
    /// From the last record of `key` on, which must be given.
    #[prost(bool, tag = "12")]
    KeyHead(bool),
    /// From the first record that the broker took at this time or later: Unix milliseconds.
    #[prost(int64, tag = "13")]
    Since(i64),
    /// The same, so many milliseconds before the broker's time now.
    #[prost(uint64, tag = "14")]
    Ago(u64),
}

/// Head of a batch on its way out: the records of one stored frame that match and passed the chain.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FetchHead {
    /// Offset of each record in its topic.
    #[prost(uint64, repeated, tag = "1")]
    pub offsets: Vec<u64>,
    /// Key version of each record, 0 for a null key.
    #[prost(uint64, repeated, tag = "2")]
    pub key_versions: Vec<u64>,
    /// Unix milliseconds.
    #[prost(int64, tag = "3")]
    pub broker_time_ms: i64,
    /// Chain generation under which the records were produced.
    #[prost(uint64, tag = "4")]
    pub generation: u64,
    /// Printed cursor behind the last scanned record.
    #[prost(string, tag = "5")]
    pub cursor: String,
}

/// Tells how far the scan is, also when nothing matched.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FetchProgress {
    /// Printed cursor behind the last scanned record.
    #[prost(string, tag = "1")]
    pub cursor: String,
    /// The scan reached the durable end.
    #[prost(bool, tag = "2")]
    pub at_end: bool,
    /// Topics of which records that the reader had not seen are gone: it goes on behind them.
    #[prost(message, repeated, tag = "3")]
    pub gaps: Vec<Gap>,
}

/// Records of a topic that a reader missed: retention or truncation took them.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Gap {
    /// The topic.
    #[prost(string, tag = "1")]
    pub topic: String,
    /// Those before this offset are gone.
    #[prost(uint64, tag = "2")]
    pub low_offset: u64,
}

/// One message from the broker.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ServerMessage {
    /// Which.
    #[prost(oneof = "ServerBody", tags = "1, 2, 3, 4, 10, 11, 12, 13, 20, 21, 22, 25, 30")]
    pub body: Option<ServerBody>,
}

/// See `ServerMessage`.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum ServerBody {
    /// Answer to `Hello`.
    #[prost(message, tag = "1")]
    Welcome(Welcome),
    /// The request failed; the stream ends.
    #[prost(message, tag = "2")]
    Failure(Failure),
    /// Answer to a batch.
    #[prost(message, tag = "3")]
    ProduceAck(ProduceAck),
    /// Progress of a read.
    #[prost(message, tag = "4")]
    FetchProgress(FetchProgress),
    /// Answer to `TopicList`.
    #[prost(message, tag = "10")]
    Topics(Topics),
    /// Answer to `TopicCreate`.
    #[prost(message, tag = "11")]
    TopicCreated(TopicInfo),
    /// Answer to `KeyList`.
    #[prost(message, tag = "12")]
    Keys(Keys),
    /// Answer to `TopicTruncate`.
    #[prost(message, tag = "13")]
    TopicTruncated(TopicTruncated),
    /// Answer to `PluginList`.
    #[prost(message, tag = "20")]
    Plugins(Plugins),
    /// Answer to `PluginSwap`, `PluginRollback`, `Reload`.
    #[prost(message, tag = "21")]
    Activated(Activated),
    /// Answer to `ChainExplain`.
    #[prost(message, tag = "22")]
    Chain(Chain),
    /// Answer to `ProducerId`.
    #[prost(message, tag = "25")]
    ProducerId(ProducerIdGiven),
    /// Answer to `BackupBegin`.
    #[prost(message, tag = "30")]
    BackupCut(BackupCut),
}

/// Asks for a producer id.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ProducerId {}

/// An id nobody else has (63 random bits).
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ProducerIdGiven {
    /// The id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
}
