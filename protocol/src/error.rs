//! The error table: the one list from which the wire codes, the docs and `tidegate explain` come.
//!
//! Numbers are stable from 0.1.0 on; the texts are not an API.

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The code.
    pub code: Code,
    /// `UPPER_CASE` name.
    pub name: &'static str,
    /// Whether the same request may succeed later without a change.
    pub retriable: bool,
    /// What happened.
    pub cause: &'static str,
    /// What became of the data.
    pub effect: &'static str,
    /// What to do now.
    pub next: &'static str,
}

macro_rules! codes {
    ($($number:literal $variant:ident $name:literal $retriable:literal $cause:literal $effect:literal $next:literal)*) => {
        /// A stable error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Code {
            $(#[doc = $cause] $variant = $number,)*
        }
        /// All rows, by number.
        pub const TABLE: &[Row] = &[
            $(Row { code: Code::$variant, name: $name, retriable: $retriable, cause: $cause, effect: $effect, next: $next },)*
        ];
    };
}

codes! {
    100 ProtocolViolation "PROTOCOL_VIOLATION" false
        "A frame or message breaks the wire format." "Nothing was appended; the stream is closed." "Update the client; if it is yours, compare it with docs/wire.md."
    101 UnsupportedVersion "UNSUPPORTED_VERSION" false
        "The client and the broker speak no common version." "Nothing was appended; the connection is closed." "Update the older of the two."
    102 FrameTooLarge "FRAME_TOO_LARGE" false
        "A frame is longer than its kind allows." "Nothing was appended; the stream is closed." "Send smaller batches; the limits are in the broker's welcome."
    103 BatchCorrupt "BATCH_CORRUPT" true
        "The CRC of a batch does not match its bytes." "Nothing was appended." "Send it again; if it repeats, check memory and network of the sender."
    104 BatchMalformed "BATCH_MALFORMED" false
        "A batch body breaks its layout." "Nothing was appended." "Fix the encoder; ADR 1 draws the layout."
    105 UnsupportedCodec "UNSUPPORTED_CODEC" false
        "The batch is compressed with a codec this broker does not serve." "Nothing was appended." "Send it uncompressed."
    200 Unauthenticated "UNAUTHENTICATED" false
        "The token or certificate is missing or not known." "Nothing was done; the connection is closed." "Give a token with --token or TIDEGATE_TOKEN, or a certificate listed in the auth file."
    201 Forbidden "FORBIDDEN" false
        "The principal has no right to this verb on this topic." "Nothing was done." "Ask the operator for an `allow` line in the auth file."
    203 AdminRequired "ADMIN_REQUIRED" false
        "The command changes the broker and needs the admin credential." "Nothing was done." "Run it where the data directory is, or pass --admin-token."
    300 TopicInvalid "TOPIC_INVALID" false
        "A topic name breaks the rules." "Nothing was appended." "Use levels of 1 to 64 of [A-Za-z0-9_~-] split by `/`, at most 16 levels and 249 bytes."
    301 PatternInvalid "PATTERN_INVALID" false
        "A topic pattern breaks the rules." "Nothing was read." "`*` is one level (also as a prefix, red*), `>` at the end is all that follows; quote it for the shell."
    302 TopicUnknown "TOPIC_UNKNOWN" false
        "The topic does not exist: reading creates none, and writing does not where the broker runs with --no-create-topics." "Nothing was done." "Is the name right? Create it: tidegate topics create TOPIC; or start the broker without --no-create-topics and write to it."
    303 TopicReserved "TOPIC_RESERVED" false
        "The topic has a level that starts with `$`: only the broker writes there." "Nothing was appended." "Choose another name."
    304 TopicExists "TOPIC_EXISTS" false
        "A topic of that name exists." "It stays as it is." "Use it, or choose another name."
    310 RecordTooLarge "RECORD_TOO_LARGE" false
        "A record, its key or its headers are over the limit." "The record was not appended, nor was its batch." "Send a smaller record: at most 1 MiB, its key 4 KiB, its 64 headers 16 KiB."
    311 BatchTooLarge "BATCH_TOO_LARGE" false
        "A batch has too many bytes, records, topics or conditions." "Nothing was appended." "Send smaller batches."
    312 HeaderReserved "HEADER_RESERVED" false
        "A header name starts with `tidegate-`: only the broker and granted plugins set those." "Nothing was appended." "Rename the header."
    313 LimitReached "LIMIT_REACHED" true
        "A limit of the broker or tenant is reached: connections, streams, subscriptions, topics." "Nothing was done." "Close what is not used, and try again."
    400 Conflict "CONFLICT" false
        "A condition does not hold: the key stands at another version." "Nothing of the batch was appended." "Read the key, decide again, send with the version that stands."
    401 ConditionTargetMoved "CONDITION_TARGET_MOVED" false
        "The chain re-keyed or routed a record whose topic and key a condition names." "Nothing of the batch was appended." "Name the key as it is stored, or take the plugin off this topic."
    402 SequenceExpired "PRODUCER_SEQUENCE_EXPIRED" false
        "The sequence is older than the dedup window (1024 sequences, 1 h)." "It is not known here whether the batch was appended before." "Read the topic to see, then go on with a new producer epoch."
    403 SequenceGap "PRODUCER_SEQUENCE_GAP" false
        "The sequence lies more than 1024 ahead of the last one stored." "Nothing of the batch was appended." "Send the missing sequences first, or start a new epoch."
    404 ProducerFenced "PRODUCER_FENCED" false
        "A producer with the same id and a higher epoch is known." "Nothing of the batch was appended." "Stop this instance: another one has taken over."
    410 CursorInvalid "CURSOR_INVALID" false
        "The cursor is damaged, of another version, or of another log." "Nothing was read." "Start from `earliest`, `latest` or an offset."
    411 OffsetOutOfRange "OFFSET_OUT_OF_RANGE" false
        "The offset lies behind the end of the topic, or its record is gone by retention or truncation." "Nothing was read or removed." "Start from `earliest` or `latest`, or at an offset between the two that the message or `tidegate topics TOPIC` names."
    500 PluginRejected "PLUGIN_REJECTED" false
        "A plugin refused the record; the reason is its own." "The record was not appended; under `rejection = \"all\"` neither was its batch." "Fix the record as the reason says."
    501 PluginRetry "PLUGIN_RETRY" true
        "A plugin asked to be called again later." "Nothing of the batch was appended." "Send it again after the time given."
    502 PluginFault "PLUGIN_FAULT" false
        "A plugin trapped, ran out of memory or answered nonsense, again on a fresh instance." "Nothing of the batch was appended (policy `closed`)." "See `tidegate plugins` and the broker's log; roll back with `tidegate plugins rollback NAME`."
    503 PluginDeadline "PLUGIN_DEADLINE" true
        "A plugin used up its CPU budget." "Nothing of the batch was appended (policy `closed`)." "Retry with smaller batches; the operator may raise `budget.cpu`."
    504 PluginUnavailable "PLUGIN_UNAVAILABLE" true
        "A plugin of the chain is not loaded or its breaker is open." "Nothing of the batch was appended (policy `closed`)." "Retry later; the operator sees the cause in `tidegate plugins`."
    505 PluginFailed "PLUGIN_FAILED" true
        "A plugin of the fetch chain keeps failing." "The cursor stays before the record; nothing is lost." "Resume from the cursor once the operator has repaired or rolled back the plugin."
    506 EnforcementMissing "ENFORCEMENT_MISSING" false
        "The record ends in a topic whose required plugins it did not pass." "The record was not appended." "Send it to a topic whose chain includes them; see `tidegate plugins explain TOPIC`."
    507 RouteNotGranted "ROUTE_NOT_GRANTED" false
        "A plugin routed or emitted to a topic outside its grant." "The record was not appended." "Add `route:PATTERN` or `emit:PATTERN` to its grants, or fix its settings."
    520 PluginInvalid "PLUGIN_INVALID" false
        "The component cannot run here: not a component, wrong world version, an import that is not granted, or init failed." "What ran before keeps running." "Do what the message names."
    521 PluginUnknown "PLUGIN_UNKNOWN" false
        "No plugin of that name is configured." "Nothing changed." "See `tidegate plugins`."
    522 GenerationChanged "GENERATION_CHANGED" false
        "Somebody changed the plugins since the generation this change is based on." "Nothing changed." "Look at `tidegate plugins`, then do it again."
    523 NothingToRollBack "NOTHING_TO_ROLL_BACK" false
        "The plugin runs the oldest version that is known of it: each rollback goes further back, at most 8 versions." "Nothing changed." "Swap in the version you want: tidegate plugins swap NAME FILE."
    524 ConfigInvalid "CONFIG_INVALID" false
        "The configuration does not hold." "Nothing changed; what ran before keeps running." "Fix what the message names; `tidegate check plugins.toml` judges that file without a broker."
    600 Overloaded "OVERLOADED" true
        "Too many bytes wait between socket and disk: no room came free for 5 s, or a frame nearly stood still while others waited for its room." "Nothing of the batch was appended." "Retry after the time given; send less."
    601 StorageFull "STORAGE_FULL" true
        "The disk is full." "Nothing of the batch was appended; what was acked is safe." "Free space; the broker takes records again after a restart."
    602 StorageFailed "STORAGE_FAILED" false
        "A write or fsync of the log failed; the shard takes no more records." "Not acked: the batch may or may not be there after a restart; what was acked is safe." "Check the disk, restart the broker, retry with the same producer id and sequence."
    603 ShuttingDown "SHUTTING_DOWN" true
        "The broker is draining." "Nothing of the batch was appended." "Connect again; the client does it by itself."
    604 BackupUnavailable "BACKUP_UNAVAILABLE" false
        "The broker keeps its log in memory only: nothing is there to be copied." "Nothing was copied." "Start the broker without --memory."
    699 Internal "INTERNAL" false
        "A bug of the broker." "Nothing of the batch was appended." "Report it with the broker's log."
}

impl Code {
    /// The number on the wire.
    pub fn number(self) -> u16 {
        self as u16
    }
    /// The code of a number, if this build knows it.
    pub fn from_number(number: u16) -> Option<Self> {
        TABLE.iter().map(|row| row.code).find(|code| code.number() == number)
    }
    /// The code of a name (`CONFLICT`) or number (`400`), as `tidegate explain` takes it.
    pub fn from_text(text: &str) -> Option<Self> {
        let wanted = text.trim();
        TABLE
            .iter()
            .find(|row| row.name.eq_ignore_ascii_case(wanted) || row.code.number().to_string() == wanted)
            .map(|row| row.code)
    }
    /// Its row.
    pub fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.code == self).unwrap_or(&TABLE[TABLE.len() - 1])
    }
    /// Its `UPPER_CASE` name.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests;
