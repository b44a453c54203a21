//! `tidegate inspect`: what a file of a data directory holds.

use std::{
    fmt::{self, Display},
    path::PathBuf,
};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::{
    Error, Output, exit,
    output::{Bytes, size},
    tools,
};
use crate::{
    shard::CheckpointRows,
    storage::{
        RealDisk,
        inspect::{self, InspectError, Item},
        segment::{StoredRecord, TopicSurvey},
    },
};

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tidegate inspect tidegate-data/wal/0000000000000000.wal\n  \
                  tidegate inspect some.segment --records --limit 20 --output json\n\n\
                  The file may lie anywhere. A damaged one is shown as far as it can be read. Exit code 1: it is damaged.")]
pub(super) struct Args {
    /// A segment, WAL file, manifest or checkpoint, or a copy of one.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show records too; of a checkpoint topics and heads of keys.
    #[arg(long)]
    records: bool,
    /// Show at most so many of them.
    #[arg(long, value_name = "RECORDS", default_value_t = 100, requires = "records",
          value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<u8, Error> {
    let records_max = if args.records { args.limit } else { 0 };
    let mut faults = 0;
    let mut tell = |item: Item<'_>| {
        faults += u64::from(matches!(item, Item::Fault(..)));
        output.row(&Row(item))
    };
    match inspect::run(&RealDisk, &args.file, &CheckpointRows, records_max, &mut tell) {
        Ok(()) => Ok(if faults == 0 { exit::OK } else { exit::REFUSED }),
        Err(InspectError::Tell(error)) => Err(error.into()),
        Err(InspectError::Storage(error)) => Err(tools::failed(&error)),
        Err(error @ InspectError::Unknown { .. }) => {
            let next =
                "Segments lie in DIR/objects/seg, WAL files in DIR/wal, manifests and checkpoints in DIR/objects.";
            Err(Error::broken_file(error.to_string()).then(next))
        }
    }
}

/// One line of the answer.
struct Row<'a>(Item<'a>);

impl Row<'_> {
    /// Name of the item, and its fields.
    fn fields(&self) -> (&'static str, Map<String, Value>) {
        let object = |value: Value| match value {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        match &self.0 {
            Item::Fields(name, fields) => {
                (name, fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
            }
            Item::Topic(id, topic) => ("topic", object(topic_json(*id, topic))),
            Item::Record(record) => ("record", object(record_json(record))),
            Item::Fault(position, what) => {
                ("fault", object(serde_json::json!({ "position": position, "message": what })))
            }
        }
    }
}

fn topic_json(id: u64, topic: &TopicSurvey) -> Value {
    serde_json::json!({
        "id": id, "name": topic.name, "records": topic.records, "keys": topic.keys,
        "first_offset": topic.offsets.map(|(first, _)| first), "last_offset": topic.offsets.map(|(_, last)| last),
        "first_lsn": topic.lsns.map(|(first, _)| first), "last_lsn": topic.lsns.map(|(_, last)| last),
        "first_time_ms": topic.times_ms.map(|(first, _)| first), "last_time_ms": topic.times_ms.map(|(_, last)| last),
    })
}

fn record_json(record: &StoredRecord) -> Value {
    let key = record.key.as_deref().map(|key| Bytes(key).encoded());
    let mut json = serde_json::json!({
        "topic": record.topic_id, "offset": record.offset, "key": key.as_ref().map(|(key, _)| key),
        "key_version": record.key_version, "lsn": record.lsn, "broker_time_ms": record.broker_time_ms,
        "timestamp_ms": record.timestamp_ms, "generation": record.generation,
        "value_bytes": record.value.as_ref().map(bytes::Bytes::len), "headers_bytes": record.headers.len(),
    });
    if let Some((_, Some(encoding))) = key {
        json["key_encoding"] = encoding.into();
    }
    json
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (item, mut fields) = self.fields();
        fields.insert("item".to_owned(), item.into());
        fields.serialize(serializer)
    }
}

impl Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Item::Fault(position, what) => write!(f, "FAULT at byte {position}: {what}"),
            Item::Topic(id, topic) => {
                write!(f, "topic {id}")?;
                if !topic.name.is_empty() {
                    write!(f, " {}", topic.name)?;
                }
                write!(f, " · {} records", topic.records)?;
                if topic.keys > 0 {
                    write!(f, " · {} keys", topic.keys)?;
                }
                range(f, "offsets", topic.offsets)?;
                range(f, "LSN", topic.lsns)?;
                range(f, "time ms", topic.times_ms)
            }
            Item::Record(record) => {
                write!(f, "{}@{} LSN {}", record.topic_id, record.offset, record.lsn)?;
                match &record.key {
                    Some(key) => write!(f, " · key {} @{}", Bytes(key), record.key_version)?,
                    None => f.write_str(" · no key")?,
                }
                match &record.value {
                    Some(value) => write!(f, " · value {}", size(value.len() as u64)),
                    None => f.write_str(" · tombstone"),
                }
            }
            Item::Fields(name, fields) => {
                write!(f, "{name}")?;
                for (name, value) in fields {
                    match value {
                        Value::String(text) if matches!(*name, "name" | "object") => {
                            write!(f, " {}", Bytes(text.as_bytes()))?;
                        }
                        Value::String(text) => write!(f, " · {name} {}", Bytes(text.as_bytes()))?,
                        Value::Null => write!(f, " · {name} none")?,
                        other => write!(f, " · {name} {other}")?,
                    }
                }
                Ok(())
            }
        }
    }
}

fn range<T: Display>(f: &mut fmt::Formatter<'_>, what: &str, range: Option<(T, T)>) -> fmt::Result {
    match range {
        Some((first, last)) => write!(f, " · {what} {first} to {last}"),
        None => Ok(()),
    }
}
