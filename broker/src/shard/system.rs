//! The broker's own records: what makes a topic, a tenant, an activation durable. JSON with a version, in `$sys/…`.

use serde::{Deserialize, Serialize};
use tidegate_protocol::topic::TopicName;

use crate::catalog::{Entry, Low};

/// Version of the values.
const VERSION: u32 = 1;

/// Name of the topic of topics.
pub(super) const TOPICS: &str = "$sys/topics";
/// Name of the topic of tenants.
pub(super) const TENANTS: &str = "$sys/tenants";
/// Name of the topic of activations: key = the tenant's number, value = the caller's record, generation = the frame's.
pub(super) const ACTIVATIONS: &str = "$sys/activations";

/// Name of the topic of low offsets: key = the topic's id.
pub(super) const RETENTION: &str = "$sys/retention";

/// A value of `$sys/topics`; the key is `TENANT/NAME`.
#[derive(Debug, Serialize, Deserialize)]
struct TopicValue {
    v: u32,
    id: u64,
    name: String,
    tenant: u32,
    created_ms: i64,
}

/// A value of `$sys/tenants`; the key is the name.
#[derive(Debug, Serialize, Deserialize)]
struct TenantValue {
    v: u32,
    number: u32,
    name: String,
}

/// A value of `$sys/retention`.
#[derive(Debug, Serialize, Deserialize)]
struct LowValue {
    v: u32,
    id: u64,
    low_offset: u64,
    low_lsn: u64,
    low_bytes: u64,
}

/// Key and value of the record that makes a topic.
pub(super) fn topic_record(entry: &Entry) -> (Vec<u8>, Vec<u8>) {
    let name = entry.name.as_str().to_owned();
    let key = format!("{}/{name}", entry.tenant).into_bytes();
    let value = TopicValue { v: VERSION, id: entry.id, name, tenant: entry.tenant, created_ms: entry.created_ms };
    (key, json(&value))
}

/// The topic of a record, made by the frame at an LSN.
pub(super) fn topic_of(value: &[u8], first_lsn: u64) -> Result<Entry, String> {
    let value: TopicValue = parse(value)?;
    check_version(value.v)?;
    let name = TopicName::parse(&value.name).map_err(|error| error.to_string())?;
    Ok(Entry::new(value.id, value.tenant, name, value.created_ms, first_lsn))
}

/// Key and value of the record that moves a topic's low offset.
pub(super) fn low_record(id: u64, low: Low) -> (Vec<u8>, Vec<u8>) {
    let Low { offset: low_offset, lsn: low_lsn, bytes: low_bytes } = low;
    (id.to_string().into_bytes(), json(&LowValue { v: VERSION, id, low_offset, low_lsn, low_bytes }))
}

/// Topic and low offset of a record.
pub(super) fn low_of(value: &[u8]) -> Result<(u64, Low), String> {
    let value: LowValue = parse(value)?;
    check_version(value.v)?;
    Ok((value.id, Low { offset: value.low_offset, lsn: value.low_lsn, bytes: value.low_bytes }))
}

/// Key and value of the record that makes a tenant.
pub(super) fn tenant_record(number: u32, name: &str) -> (Vec<u8>, Vec<u8>) {
    let value = TenantValue { v: VERSION, number, name: name.to_owned() };
    (name.as_bytes().to_vec(), json(&value))
}

/// Number and name of the tenant of a record.
pub(super) fn tenant_of(value: &[u8]) -> Result<(u32, String), String> {
    let value: TenantValue = parse(value)?;
    check_version(value.v)?;
    Ok((value.number, value.name))
}

/// Key of the record that makes a generation of a tenant live.
pub(super) fn activation_key(tenant: u32) -> Vec<u8> {
    tenant.to_string().into_bytes()
}

/// The tenant of an activation's key.
pub(super) fn activation_tenant(key: &[u8]) -> Result<u32, String> {
    let text = std::str::from_utf8(key).map_err(|error| error.to_string())?;
    text.parse().map_err(|error| format!("activation key {text:?}: {error}"))
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers and strings always become JSON")
}

fn parse<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(value).map_err(|error| error.to_string())
}

fn check_version(version: u32) -> Result<(), String> {
    if version == VERSION {
        Ok(())
    } else {
        Err(format!("version {version} is not read by this build; it reads {VERSION}"))
    }
}
