//! The answer of a hook, built in any order and encoded in the order the contract wants.

use crate::bindings::tidegate::plugin::types as wit;

/// Bytes of a reason that reach the producer: what the broker stores per refused record (`wit/types.wit`, rejection).
pub const REASON_BYTES_MAX: usize = 256;

const DROP: u8 = 0;
const REJECT: u8 = 1;
const SET_KEY: u8 = 2;
const SET_VALUE: u8 = 3;
const ADD_HEADER: u8 = 4;
const REMOVE_HEADER: u8 = 5;
const ROUTE: u8 = 6;
/// String number that stands for null, or for none.
const NULL: u32 = u32::MAX;

/// What becomes of the records of one call. Records that nothing is said of pass untouched.
///
/// Operations may come in any order of records; those on one record apply in the order given. A record that is dropped
/// or rejected has no other operation: the first such verdict stands, everything else said of the record goes.
#[derive(Debug, Default)]
pub struct Verdict {
    all: Option<All>,
    at: Vec<u32>,
    op: Vec<u8>,
    arg: Vec<u32>,
    rejections: Vec<wit::Rejection>,
    emissions: Vec<wit::Emission>,
    string_ends: Vec<u32>,
    string_data: Vec<u8>,
    unordered: bool,
    last_route: Option<u32>,
}

#[derive(Debug)]
enum All {
    Drop,
    Reject(wit::Refusal),
}

impl Verdict {
    /// The record goes. Its producer is told so; it takes no offset.
    pub fn drop(&mut self, at: u32) {
        self.push(at, DROP, 0);
    }

    /// The record is refused for good. `code` is the plugin's own (0 = none), documented in its README; the reason is
    /// cut after [`REASON_BYTES_MAX`].
    pub fn reject(&mut self, at: u32, code: u16, reason: &str) {
        self.reject_retry(at, code, 0, reason);
    }

    /// The record is refused; a retry after so many milliseconds may succeed.
    pub fn reject_retry(&mut self, at: u32, code: u16, retry_after_ms: u32, reason: &str) {
        let reason = self.string(cut(reason).as_bytes());
        let number = number(self.rejections.len());
        self.rejections.push(wit::Rejection { code, retry_after_ms, reason });
        self.push(at, REJECT, number);
    }

    /// The record gets this key, or none.
    pub fn set_key(&mut self, at: u32, key: Option<&[u8]>) {
        let key = self.optional(key);
        self.push(at, SET_KEY, key);
    }

    /// The record gets this value, or becomes a tombstone.
    pub fn set_value(&mut self, at: u32, value: Option<&[u8]>) {
        let value = self.optional(value);
        self.push(at, SET_VALUE, value);
    }

    /// One more header. Names that start with `tidegate-` need the grant `header:NAME`.
    pub fn add_header(&mut self, at: u32, name: &str, value: &[u8]) {
        let name = self.string(name.as_bytes());
        self.string(value);
        self.push(at, ADD_HEADER, name);
    }

    /// Every header of that name goes.
    pub fn remove_header(&mut self, at: u32, name: &str) {
        let name = self.string(name.as_bytes());
        self.push(at, REMOVE_HEADER, name);
    }

    /// The record goes to another topic, from here on in the chain. Needs the grant `route:PATTERN`.
    pub fn route(&mut self, at: u32, topic: &str) {
        let topic = match self.last_route {
            Some(last) if self.nth_string(last) == topic.as_bytes() => last,
            _ => self.string(topic.as_bytes()),
        };
        self.last_route = Some(topic);
        self.push(at, ROUTE, topic);
    }

    /// One more record, written together with the batch or not at all. It falls with a rejected origin, not with a
    /// dropped one. Needs the grant `emit:PATTERN`.
    pub fn emit(
        &mut self,
        origin: u32,
        topic: &str,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) {
        let topic = self.string(topic.as_bytes());
        let key = self.optional(key);
        let value = self.optional(value);
        let headers = match headers {
            [] => NULL,
            headers => self.string(&headers_item(headers)),
        };
        self.emissions.push(wit::Emission { origin, topic, key, value, headers });
    }

    /// Every record of this call goes.
    pub fn drop_all(&mut self) {
        self.all = Some(All::Drop);
    }

    /// Every record of this call is refused for good.
    pub fn reject_all(&mut self, code: u16, reason: &str) {
        self.reject_all_retry(code, 0, reason);
    }

    /// Every record of this call is refused; a retry after so many milliseconds may succeed.
    pub fn reject_all_retry(&mut self, code: u16, retry_after_ms: u32, reason: &str) {
        self.all = Some(All::Reject(wit::Refusal { code, retry_after_ms, reason: cut(reason).to_owned() }));
    }

    /// Encodes. A verdict that says nothing is `pass`: no list crosses.
    #[doc(hidden)]
    pub fn encode(mut self) -> wit::Verdict {
        match self.all.take() {
            Some(All::Drop) => return wit::Verdict::DropAll,
            Some(All::Reject(refusal)) => return wit::Verdict::RejectAll(refusal),
            None => {}
        }
        if self.at.is_empty() && self.emissions.is_empty() {
            return wit::Verdict::Pass;
        }
        if self.unordered {
            self.order();
        }
        wit::Verdict::Edit(wit::Edit {
            at: self.at,
            op: self.op,
            arg: self.arg,
            rejections: self.rejections,
            emissions: self.emissions,
            string_ends: self.string_ends,
            string_data: self.string_data,
        })
    }

    fn push(&mut self, at: u32, op: u8, arg: u32) {
        match self.at.last() {
            Some(&last) if last == at && !self.unordered => {
                if self.op.last().is_some_and(|op| is_final(*op)) {
                    return;
                }
                if is_final(op) {
                    let kept = self.at.partition_point(|other| *other < at);
                    self.at.truncate(kept);
                    self.op.truncate(kept);
                    self.arg.truncate(kept);
                }
            }
            Some(&last) if at < last => self.unordered = true,
            _ => {}
        }
        self.at.push(at);
        self.op.push(op);
        self.arg.push(arg);
    }

    /// Sorts operations by record, keeping those on one record in the order given, and lets the first drop or
    /// rejection of a record stand alone.
    fn order(&mut self) {
        let zipped = self.at.iter().zip(&self.op).zip(&self.arg);
        let mut operations: Vec<_> = zipped.map(|((at, op), arg)| (*at, *op, *arg)).collect();
        operations.sort_by_key(|(at, ..)| *at);
        self.at.clear();
        self.op.clear();
        self.arg.clear();
        self.unordered = false;
        for (at, op, arg) in operations {
            self.push(at, op, arg);
        }
    }

    fn string(&mut self, bytes: &[u8]) -> u32 {
        self.string_data.extend_from_slice(bytes);
        self.string_ends.push(number(self.string_data.len()));
        number(self.string_ends.len() - 1)
    }

    fn optional(&mut self, bytes: Option<&[u8]>) -> u32 {
        bytes.map_or(NULL, |bytes| self.string(bytes))
    }

    fn nth_string(&self, nth: u32) -> &[u8] {
        let nth = nth as usize;
        let start = nth.checked_sub(1).and_then(|before| self.string_ends.get(before)).map_or(0, |end| *end as usize);
        let end = self.string_ends.get(nth).map_or(0, |end| *end as usize);
        self.string_data.get(start..end).unwrap_or_default()
    }
}

fn is_final(op: u8) -> bool {
    matches!(op, DROP | REJECT)
}

/// A count or length as the contract carries it. A guest's memory ends below this bound.
fn number(length: usize) -> u32 {
    u32::try_from(length).expect("a verdict fits into a 32-bit memory")
}

/// The longest prefix within the bound that ends between two characters.
fn cut(reason: &str) -> &str {
    reason.get(..reason.floor_char_boundary(REASON_BYTES_MAX)).unwrap_or(reason)
}

/// A headers item in the layout of the contract: see [`crate::Headers`].
pub(crate) fn headers_item(headers: &[(&str, Option<&[u8]>)]) -> Vec<u8> {
    if headers.is_empty() {
        return Vec::new();
    }
    let count = u16::try_from(headers.len()).expect("the broker takes 64 headers");
    let mut item = count.to_le_bytes().to_vec();
    for (name, value) in headers {
        let name_length = u16::try_from(name.len()).expect("the broker takes 16 KiB of headers");
        item.extend(name_length.to_le_bytes());
        item.extend(value.map_or(NULL, |value| number(value.len())).to_le_bytes());
        item.extend_from_slice(name.as_bytes());
        item.extend_from_slice(value.unwrap_or_default());
    }
    item
}

#[cfg(test)]
mod tests;
