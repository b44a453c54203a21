//! The bytes of the broker header, field by field (ADR 1 draws them).

use bytes::{Buf, BufMut, BytesMut};

use super::{
    FRAME_VERSION, FrameError, FrameHeader, HEADER_FIXED_BYTES, MAGIC, PLUGIN_BYTES_MAX, PREFIX_BYTES, ProducerStamp,
    REASON_BYTES_MAX, Refused, RefusedStatus, TopicStamp,
};
use crate::limits::{FRAME_BYTES_MAX, TOPICS_PER_BATCH_MAX};

const CRC_BYTES: usize = 4;
/// A refused entry without its texts.
const REFUSED_FIXED_BYTES: usize = 16;
/// A u64 in groups of 7 bits.
const LEB128_BYTES_MAX: usize = 10;

pub(super) struct Lengths {
    pub(super) header: usize,
    pub(super) body: usize,
}

/// Lengths of header and body, from the first bytes; `None` while they are not there.
pub(super) fn lengths(prefix: &[u8]) -> Result<Option<Lengths>, FrameError> {
    let Some(mut fields) = prefix.get(..PREFIX_BYTES) else { return Ok(None) };
    let mut magic = [0; 4];
    fields.copy_to_slice(&mut magic);
    if magic != MAGIC {
        return Err(FrameError::Magic(magic));
    }
    let version = fields.get_u8();
    if version != FRAME_VERSION {
        return Err(FrameError::Version(version));
    }
    fields.advance(3);
    let (header, body) = (fields.get_u32_le() as usize, fields.get_u32_le() as usize);
    if header < HEADER_FIXED_BYTES + CRC_BYTES {
        return Err(FrameError::Malformed { what: "header is shorter than its fixed part" });
    }
    let whole = header as u64 + body as u64;
    if whole > FRAME_BYTES_MAX as u64 {
        return Err(FrameError::TooLarge { bytes: whole });
    }
    Ok(Some(Lengths { header, body }))
}

/// Whether the header's last bytes are its CRC.
pub(super) fn check_crc(header: &[u8]) -> Result<(), FrameError> {
    let Some((covered, crc)) = header.split_last_chunk::<CRC_BYTES>() else {
        return Err(FrameError::Malformed { what: "header is shorter than its CRC" });
    };
    let (actual, stored) = (crc32c::crc32c(covered), u32::from_le_bytes(*crc));
    if actual != stored {
        return Err(FrameError::HeaderCrc { actual, stored });
    }
    Ok(())
}

/// The header, with room for as many bytes behind it.
pub(super) fn encode(header: &FrameHeader, body_bytes: u32, room: usize) -> BytesMut {
    let lists = header.topics.len() * 16
        + header.key_versions.iter().map(|version| leb128_bytes(*version)).sum::<usize>()
        + header.refused.iter().map(refused_bytes).sum::<usize>();
    let header_bytes = HEADER_FIXED_BYTES + lists + CRC_BYTES;
    // A header over 4 GiB is over the limit of a frame by far, which `from_parts` and every reader refuse.
    let told = u32::try_from(header_bytes).unwrap_or(u32::MAX);
    let producer = header.producer.unwrap_or(ProducerStamp { id: 0, epoch: 0, sequence: 0 });
    assert!(header.producer.is_none() || producer.id != 0, "producer ids start at 1");

    let mut out = BytesMut::with_capacity(header_bytes.saturating_add(room));
    out.put_slice(&MAGIC);
    out.put_u8(FRAME_VERSION);
    out.put_u8(0);
    out.put_u16_le(header.shard);
    out.put_u32_le(told);
    out.put_u32_le(body_bytes);
    out.put_u64_le(header.epoch);
    out.put_u64_le(header.first_lsn);
    out.put_i64_le(header.broker_time_ms);
    out.put_u64_le(header.generation);
    out.put_u32_le(header.tenant);
    out.put_u32_le(header.input_count);
    out.put_u64_le(producer.id);
    out.put_u64_le(producer.sequence);
    out.put_u32_le(producer.epoch);
    out.put_u16_le(u16::try_from(header.topics.len()).expect("limits allow 1024 topics in a batch"));
    out.put_u16_le(0);
    out.put_u32_le(u32::try_from(header.refused.len()).expect("no more than records, which are counted in u32"));
    for topic in &header.topics {
        out.put_u64_le(topic.id);
        out.put_u64_le(topic.base_offset);
    }
    for version in &header.key_versions {
        put_leb128(&mut out, *version);
    }
    for refused in &header.refused {
        put_refused(&mut out, refused);
    }
    let crc = crc32c::crc32c(&out);
    out.put_u32_le(crc);
    debug_assert_eq!(out.len(), header_bytes);
    out
}

/// The header of a frame whose body has so many records, from bytes whose lengths and CRC were checked.
pub(super) fn decode(header: &[u8], records: u32) -> Result<FrameHeader, FrameError> {
    const SHORT: FrameError = FrameError::Malformed { what: "header is shorter than its fixed part" };
    let (covered, _) = header.split_last_chunk::<CRC_BYTES>().ok_or(SHORT)?;
    let (mut fields, mut lists) = covered.split_at_checked(HEADER_FIXED_BYTES).ok_or(SHORT)?;
    fields.advance(5);
    let flags = fields.get_u8();
    let shard = fields.get_u16_le();
    fields.advance(8);
    let epoch = fields.get_u64_le();
    let first_lsn = fields.get_u64_le();
    let broker_time_ms = fields.get_i64_le();
    let generation = fields.get_u64_le();
    let tenant = fields.get_u32_le();
    let input_count = fields.get_u32_le();
    let producer = ProducerStamp { id: fields.get_u64_le(), sequence: fields.get_u64_le(), epoch: fields.get_u32_le() };
    let topic_count = usize::from(fields.get_u16_le());
    let reserved = fields.get_u16_le();
    let refused_count = fields.get_u32_le();
    if flags != 0 || reserved != 0 {
        return Err(FrameError::Malformed { what: "reserved bits are set" });
    }
    if producer.id == 0 && (producer.sequence != 0 || producer.epoch != 0) {
        return Err(FrameError::Malformed { what: "a sequence without a producer" });
    }
    let producer = Some(producer).filter(|producer| producer.id != 0);
    let topics = topics(&mut lists, topic_count)?;
    let key_versions = key_versions(&mut lists, records as usize)?;
    let refused = refused_entries(&mut lists, refused_count as usize)?;
    if !lists.is_empty() {
        return Err(FrameError::Malformed { what: "bytes are left over in the header" });
    }
    Ok(FrameHeader {
        shard,
        epoch,
        first_lsn,
        broker_time_ms,
        generation,
        tenant,
        input_count,
        producer,
        topics,
        key_versions,
        refused,
    })
}

fn topics(lists: &mut &[u8], count: usize) -> Result<Vec<TopicStamp>, FrameError> {
    if count > usize::from(TOPICS_PER_BATCH_MAX) || lists.len() < count * 16 {
        return Err(FrameError::Malformed { what: "topic stamps are cut or too many" });
    }
    Ok((0..count).map(|_| TopicStamp { id: lists.get_u64_le(), base_offset: lists.get_u64_le() }).collect())
}

fn key_versions(lists: &mut &[u8], count: usize) -> Result<Vec<u64>, FrameError> {
    // Each takes a byte or more: that bounds the allocation.
    if lists.len() < count {
        return Err(FrameError::Malformed { what: "key versions are cut" });
    }
    (0..count).map(|_| leb128(lists)).collect()
}

fn refused_entries(lists: &mut &[u8], count: usize) -> Result<Vec<Refused>, FrameError> {
    if lists.len() / REFUSED_FIXED_BYTES < count {
        return Err(FrameError::Malformed { what: "refused entries are cut" });
    }
    (0..count).map(|_| refused(lists)).collect()
}

fn refused(lists: &mut &[u8]) -> Result<Refused, FrameError> {
    const CUT: FrameError = FrameError::Malformed { what: "a refused entry is cut" };
    // All of the fixed part but the last byte, the length of the plugin's name, stands before the reason.
    if lists.len() < REFUSED_FIXED_BYTES {
        return Err(CUT);
    }
    let index = lists.get_u32_le();
    let status = RefusedStatus::try_from(lists.get_u8())
        .map_err(|_| FrameError::Malformed { what: "a refused entry has an unknown status" })?;
    let code = lists.get_u16_le();
    let plugin_code = lists.get_u16_le();
    let retry_after_ms = lists.get_u32_le();
    let reason_bytes = usize::from(lists.get_u16_le());
    let reason = text(lists, reason_bytes, REASON_BYTES_MAX)?;
    if lists.is_empty() {
        return Err(CUT);
    }
    let plugin_bytes = usize::from(lists.get_u8());
    let plugin = text(lists, plugin_bytes, PLUGIN_BYTES_MAX)?;
    Ok(Refused { index, status, code, plugin_code, retry_after_ms, reason, plugin })
}

fn text(lists: &mut &[u8], bytes: usize, bytes_max: usize) -> Result<String, FrameError> {
    if bytes > bytes_max {
        return Err(FrameError::Malformed { what: "a text of a refused entry is too long" });
    }
    let (text, rest) =
        lists.split_at_checked(bytes).ok_or(FrameError::Malformed { what: "a text of a refused entry is cut" })?;
    *lists = rest;
    match std::str::from_utf8(text) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(FrameError::Malformed { what: "a text of a refused entry is not UTF-8" }),
    }
}

fn put_refused(out: &mut BytesMut, refused: &Refused) {
    let (reason, plugin) = texts(refused);
    out.put_u32_le(refused.index);
    out.put_u8(refused.status as u8);
    out.put_u16_le(refused.code);
    out.put_u16_le(refused.plugin_code);
    out.put_u32_le(refused.retry_after_ms);
    out.put_u16_le(u16::try_from(reason.len()).expect("cut to 256 bytes"));
    out.put_slice(reason.as_bytes());
    out.put_u8(u8::try_from(plugin.len()).expect("cut to 64 bytes"));
    out.put_slice(plugin.as_bytes());
}

fn refused_bytes(refused: &Refused) -> usize {
    let (reason, plugin) = texts(refused);
    REFUSED_FIXED_BYTES + reason.len() + plugin.len()
}

fn texts(refused: &Refused) -> (&str, &str) {
    (crate::cut(&refused.reason, REASON_BYTES_MAX), crate::cut(&refused.plugin, PLUGIN_BYTES_MAX))
}

fn leb128_bytes(value: u64) -> usize {
    let bits = u64::BITS - value.leading_zeros();
    bits.div_ceil(7).max(1) as usize
}

fn put_leb128(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8((value & 0x7f) as u8);
}

/// Takes one number in its shortest spelling.
fn leb128(lists: &mut &[u8]) -> Result<u64, FrameError> {
    const WRONG: FrameError =
        FrameError::Malformed { what: "a key version is cut, too long or not in its shortest form" };
    let mut value = 0_u64;
    for at in 0..LEB128_BYTES_MAX {
        let (byte, rest) = lists.split_first().ok_or(WRONG)?;
        *lists = rest;
        let group = u64::from(byte & 0x7f);
        // The tenth group has one bit left.
        if at == LEB128_BYTES_MAX - 1 && group > 1 {
            return Err(WRONG);
        }
        value |= group << (7 * at);
        if byte & 0x80 == 0 {
            return if at > 0 && group == 0 { Err(WRONG) } else { Ok(value) };
        }
    }
    Err(WRONG)
}
