//! The messages of a backup: the broker names a cut and keeps it while the stream stands. No record goes over it.

use prost::Message;

/// Asks for a cut of the whole log, and to keep what it names until this side ends its stream. Admin.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BackupBegin {}

/// Answer to `BackupBegin`: what belongs to a copy of the log at one instant. Holds as long as the stream does.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BackupCut {
    /// The shard.
    #[prost(uint32, tag = "1")]
    pub shard: u32,
    /// Everything before this LSN is durable and belongs to the cut.
    #[prost(uint64, tag = "2")]
    pub next_lsn: u64,
    /// Number of the manifest; 0 = there is none yet.
    #[prost(uint64, tag = "3")]
    pub manifest_number: u64,
    /// Its text: it names segments and checkpoint.
    #[prost(bytes = "vec", tag = "4")]
    pub manifest: Vec<u8>,
    /// The WAL files behind them, oldest first.
    #[prost(message, repeated, tag = "5")]
    pub wal: Vec<BackupFile>,
}

/// A WAL file of a cut.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BackupFile {
    /// Its name in the directory of WAL files.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Generation of this use of the file.
    #[prost(uint64, tag = "2")]
    pub generation: u64,
    /// LSN of its first entry.
    #[prost(uint64, tag = "3")]
    pub first_lsn: u64,
}
