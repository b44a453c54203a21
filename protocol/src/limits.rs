//! Every bound on what a client may send, checked before anything is allocated for it.

/// Limits of one connection. The broker tells them in `Welcome`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one record: key, value and headers together. Default 1 MiB.
    pub record_bytes_max: u32,
    /// Bytes of one batch body. Default 8 MiB.
    pub batch_bytes_max: u32,
    /// Records in one batch. Default 10 000.
    pub batch_records_max: u32,
    /// Bytes of one key. Default 4 KiB.
    pub key_bytes_max: u32,
    /// Headers of one record. Default 64.
    pub headers_max: u32,
    /// Bytes of all headers of one record as encoded. Default 16 KiB.
    pub headers_bytes_max: u32,
    /// Conditions of one batch. Default 1 000.
    pub conditions_max: u32,
    /// Bytes of one control message. Default 64 KiB, but a component may be 64 MiB in `PluginSwap`.
    pub control_bytes_max: u32,
}

/// Topics in one batch body (u16 on the wire; a table of this size is searched and stored in no time).
pub const TOPICS_PER_BATCH_MAX: u16 = 1_024;
/// Bytes of one stored frame, header and body: the batch limit and what a chain may add to it.
pub const FRAME_BYTES_MAX: usize = 64 << 20;
/// Bytes of one message from the broker: an ack of 10 000 rejected records with their reasons is under 4 MiB.
pub const SERVER_CONTROL_BYTES_MAX: u32 = 16 << 20;
/// Bytes of one `PluginSwap` message: a component of 64 MiB and its name.
pub const COMPONENT_BYTES_MAX: u32 = (64 << 20) + (4 << 10);

impl Limits {
    /// What a stored or delivered body may hold: the chain may have made it larger than a client may send it. Bounded by
    /// the frame alone, so every count still fits in memory before it is allocated.
    pub const STORED: Self = Self {
        record_bytes_max: 64 << 20,
        batch_bytes_max: 64 << 20,
        batch_records_max: 1 << 20,
        key_bytes_max: 64 << 20,
        headers_max: 65_535,
        headers_bytes_max: 64 << 20,
        conditions_max: 0,
        control_bytes_max: 64 << 10,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            record_bytes_max: 1 << 20,
            batch_bytes_max: 8 << 20,
            batch_records_max: 10_000,
            key_bytes_max: 4 << 10,
            headers_max: 64,
            headers_bytes_max: 16 << 10,
            conditions_max: 1_000,
            control_bytes_max: 64 << 10,
        }
    }
}
