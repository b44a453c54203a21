//! A checkpoint read item by item, in bounded memory, for offline tools: a start reads it whole.
//!
//! The parts of a checkpoint lie end to end (`checkpoint`), so on the outside it is a row of protobuf fields; each is read
//! and decoded alone.

use std::io::{BufReader, ErrorKind, Read};

use prost::Message;
use tidegate_protocol::topic::TopicName;

use super::{ActivationRow, HeadRow, ProducerRow, SampleRow, TopicRow, VERSION};
use crate::storage::fsck::{StateItem, States};

/// Bytes of one field: an activation holds all settings of a tenant, and a frame of it was at most 64 MiB.
const FIELD_BYTES_MAX: u64 = 64 << 20;
/// Numbers of protobuf's wire types.
const VARINT: u64 = 0;
const BYTES: u64 = 2;

/// The form of this build's checkpoints.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckpointRows;

impl States for CheckpointRows {
    fn walk(
        &self,
        lsn: u64,
        state: &mut dyn Read,
        each: &mut dyn FnMut(StateItem<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut state = BufReader::with_capacity(1 << 20, state);
        let mut version = 0;
        let mut field = Vec::new();
        while let Some(key) = varint(&mut state)? {
            match key & 7 {
                VARINT => {
                    let value = varint(&mut state)?.ok_or(CUT)?;
                    if key >> 3 == 1 {
                        version = value;
                    }
                }
                BYTES => {
                    let bytes = varint(&mut state)?.ok_or(CUT)?;
                    if bytes > FIELD_BYTES_MAX {
                        return Err(format!("a field of {bytes} bytes, at most {FIELD_BYTES_MAX} are read"));
                    }
                    field.clear();
                    let read = (&mut state).take(bytes).read_to_end(&mut field).map_err(|error| error.to_string())?;
                    if read as u64 != bytes {
                        return Err(CUT.to_owned());
                    }
                    item(key >> 3, &field, lsn, each)?;
                }
                other => return Err(format!("a field of wire type {other}")),
            }
        }
        if version != u64::from(VERSION) {
            return Err(format!("version {version} is not read by this build; it reads {VERSION}"));
        }
        Ok(())
    }
}

const CUT: &str = "it is cut";

/// The next number; `None` at the end.
fn varint(state: &mut impl Read) -> Result<Option<u64>, String> {
    let (mut value, mut shift) = (0_u64, 0);
    let mut byte = [0];
    loop {
        match state.read_exact(&mut byte) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && shift == 0 => return Ok(None),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(CUT.to_owned()),
            read => read.map_err(|error| error.to_string())?,
        }
        if shift > 63 {
            return Err("a number is over 64 bits".to_owned());
        }
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(Some(value));
        }
        shift += 7;
    }
}

/// Decodes one field and tells of it.
fn item(
    number: u64,
    field: &[u8],
    lsn: u64,
    each: &mut dyn FnMut(StateItem<'_>) -> Result<(), String>,
) -> Result<(), String> {
    fn row<M: Message + Default>(field: &[u8]) -> Result<M, String> {
        M::decode(field).map_err(|error| error.to_string())
    }
    match number {
        3 => each(StateItem::Tenant(std::str::from_utf8(field).map_err(|error| error.to_string())?)),
        4 => {
            let TopicRow { id, tenant, name, next_offset, first_lsn, .. } = row(field)?;
            TopicName::parse(&name).map_err(|error| format!("topic {id}: {error}"))?;
            if first_lsn > lsn {
                return Err(format!(
                    "topic {id} ({name}) is said to be made at LSN {first_lsn}, behind the checkpoint"
                ));
            }
            each(StateItem::Topic { id, name: &name, tenant, next_offset })
        }
        5 => {
            let HeadRow { topic, key, version, last_offset } = row(field)?;
            each(StateItem::Head { topic, key: &key, version, last_offset })
        }
        6 => {
            let ProducerRow { id, sequences, lsns, times_ms, .. } = row(field)?;
            if lsns.len() != sequences.len() || times_ms.len() != sequences.len() {
                return Err(format!("producer {id}: its results are not whole"));
            }
            if lsns.iter().any(|result| *result >= lsn) {
                return Err(format!("producer {id}: a result lies behind the checkpoint"));
            }
            each(StateItem::Producer(sequences.len()))
        }
        7 => {
            let ActivationRow { tenant, generation, lsn: of, .. } = row(field)?;
            if of >= lsn {
                return Err(format!("generation {generation} of tenant {tenant} lies behind the checkpoint"));
            }
            each(StateItem::Activation { tenant, generation, lsn: of })
        }
        8 => {
            let SampleRow { topic, lsn: of, .. } = row(field)?;
            if of >= lsn {
                return Err(format!("a sample of topic {topic} lies behind the checkpoint"));
            }
            each(StateItem::Sample)
        }
        _ => Ok(()),
    }
}
