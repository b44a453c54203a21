//! Views over the flat columns of a frame. Nothing here copies a key, a value or a header.
//!
//! The layout is that of `frame` in `wit/types.wit`; all integers little endian:
//!
//! ```text
//! index   count words per variable-width column (key, value, headers, topic), in this order, asked-for ones only:
//!         end of each item from the start of its column; bit 31 set = null, the item is empty
//! data    the bytes of those columns, one column after the other, then 8 x count bytes per fixed-width column
//!         (timestamp: i64, offset: u64)
//! ```

use std::{fmt, iter::FusedIterator};

use crate::{Failure, Fields};

/// Bit of an index word that says: this item is null.
const NULL: u32 = 1 << 31;
/// Length of a header value that says: this value is null.
const NULL_LENGTH: u32 = u32::MAX;

/// The records of one call.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    count: u32,
    generation: u64,
    now_ms: i64,
    key: Option<Column<'a>>,
    value: Option<Column<'a>>,
    headers: Option<Column<'a>>,
    topic: Option<Column<'a>>,
    timestamp: Option<&'a [[u8; 8]]>,
    offset: Option<&'a [[u8; 8]]>,
}

impl<'a> Batch<'a> {
    /// Reads a frame that holds `fields` of `count` records.
    ///
    /// # Errors
    /// If the frame does not hold what the layout says.
    pub fn new(count: u32, fields: Fields, index: &'a [u32], data: &'a [u8]) -> Result<Self, Failure> {
        let records = count as usize;
        let mut rest = Rest { index, data, records };
        let key = rest.column(fields.contains(Fields::KEY))?;
        let value = rest.column(fields.contains(Fields::VALUE))?;
        let headers = rest.column(fields.contains(Fields::HEADERS))?;
        let topic = rest.column(fields.contains(Fields::TOPIC))?;
        let timestamp = rest.fixed(fields.contains(Fields::TIMESTAMP))?;
        let offset = rest.fixed(fields.contains(Fields::OFFSET))?;
        if !rest.index.is_empty() || !rest.data.is_empty() {
            return Err(Failure::permanent("the frame is longer than its fields"));
        }
        Ok(Self { count, generation: 0, now_ms: 0, key, value, headers, topic, timestamp, offset })
    }

    /// The same batch under a chain generation, at a broker time (Unix milliseconds).
    pub fn at(mut self, generation: u64, now_ms: i64) -> Self {
        self.generation = generation;
        self.now_ms = now_ms;
        self
    }

    /// How many records there are.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// There are none. The broker never calls with such a batch.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The chain generation of this call.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Broker time in Unix milliseconds: the same for the whole batch, and free, unlike the clock capability.
    pub fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// The records in order.
    pub fn records(&self) -> Records<'_> {
        Records { batch: self, next: 0 }
    }

    /// One record.
    pub fn record(&self, at: u32) -> Option<RecordRef<'_>> {
        (at < self.count).then_some(RecordRef { batch: self, at })
    }

    /// All keys at once, for kernels that run over bytes.
    ///
    /// # Panics
    /// As all column access: if [`crate::Plugin::needs`] did not ask for the field.
    pub fn keys(&self) -> Column<'a> {
        asked(self.key, "key")
    }

    /// All values at once.
    ///
    /// # Panics
    /// If `needs` did not ask for the value.
    pub fn values(&self) -> Column<'a> {
        asked(self.value, "value")
    }

    /// All headers items at once; [`Headers::new`] reads one.
    ///
    /// # Panics
    /// If `needs` did not ask for the headers.
    pub fn headers(&self) -> Column<'a> {
        asked(self.headers, "headers")
    }

    /// All current topics at once.
    ///
    /// # Panics
    /// If `needs` did not ask for the topic.
    pub fn topics(&self) -> Column<'a> {
        asked(self.topic, "topic")
    }
}

/// A field the plugin reads without having asked for it is a bug of the plugin, and no batch can make up for it.
fn asked<T>(field: Option<T>, name: &str) -> T {
    let Some(field) = field else {
        panic!("the plugin reads the field `{name}`, which its `needs` does not ask for");
    };
    field
}

/// What of a frame has not been read yet.
struct Rest<'a> {
    index: &'a [u32],
    data: &'a [u8],
    records: usize,
}

impl<'a> Rest<'a> {
    fn column(&mut self, present: bool) -> Result<Option<Column<'a>>, Failure> {
        if !present {
            return Ok(None);
        }
        let short = || Failure::permanent("the frame is shorter than its fields");
        let (ends, index) = self.index.split_at_checked(self.records).ok_or_else(short)?;
        let length = ends.last().map_or(0, |end| end & !NULL) as usize;
        let (bytes, data) = self.data.split_at_checked(length).ok_or_else(short)?;
        self.index = index;
        self.data = data;
        Ok(Some(Column { ends, bytes }))
    }

    fn fixed(&mut self, present: bool) -> Result<Option<&'a [[u8; 8]]>, Failure> {
        if !present {
            return Ok(None);
        }
        let short = || Failure::permanent("the frame is shorter than its fields");
        let (bytes, data) = self.data.split_at_checked(self.records * 8).ok_or_else(short)?;
        self.data = data;
        Ok(Some(bytes.as_chunks().0))
    }
}

/// One variable-width field of all records.
#[derive(Debug, Clone, Copy)]
pub struct Column<'a> {
    ends: &'a [u32],
    bytes: &'a [u8],
}

impl<'a> Column<'a> {
    /// A column of items from their ends (bit 31 = null) and their bytes.
    pub fn new(ends: &'a [u32], bytes: &'a [u8]) -> Self {
        Self { ends, bytes }
    }

    /// The bytes of all items, back to back.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// One item, or none where it is null.
    #[inline]
    pub fn item(&self, at: u32) -> Option<&'a [u8]> {
        let at = at as usize;
        let end = *self.ends.get(at)?;
        if end & NULL != 0 {
            return None;
        }
        let start = match at {
            0 => 0,
            at => self.ends.get(at - 1)? & !NULL,
        };
        self.bytes.get(start as usize..end as usize)
    }

    /// The items in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<&'a [u8]>> {
        let bytes = self.bytes;
        let mut start = 0;
        self.ends.iter().map(move |&word| {
            let end = (word & !NULL) as usize;
            let item = if word & NULL == 0 { bytes.get(start..end) } else { None };
            start = end;
            item
        })
    }

    /// The position of the item that holds the byte at `place` of [`Column::bytes`].
    pub fn at(&self, place: usize) -> Option<u32> {
        let at = self.ends.partition_point(|end| (end & !NULL) as usize <= place);
        (at < self.ends.len()).then(|| u32::try_from(at).ok()).flatten()
    }

    /// Positions of the items that start with the prefix, ascending. Eight items a turn: a filter on the key costs a few
    /// nanoseconds per record. Null starts with nothing.
    pub fn starting_with(&self, prefix: &[u8]) -> Vec<u32> {
        let prefix = Prefix::new(prefix);
        let mut found = Vec::new();
        let mut start = 0;
        let (turns, rest) = self.ends.as_chunks::<8>();
        for (turn, [a, b, c, d, e, f, g, h]) in (0_u32..).zip(turns) {
            let hit =
                |before: u32, end: u32, bit: u32| u32::from(prefix.starts(self.bytes, before & !NULL, end)) << bit;
            // Named one by one: in a loop, the broker's question at each turn would cost as much as the answer.
            let mut hits = hit(start, *a, 0) | hit(*a, *b, 1) | hit(*b, *c, 2) | hit(*c, *d, 3);
            hits |= hit(*d, *e, 4) | hit(*e, *f, 5) | hit(*f, *g, 6) | hit(*g, *h, 7);
            while hits != 0 {
                found.push(turn * 8 + hits.trailing_zeros());
                hits &= hits - 1;
            }
            start = *h;
        }
        for (at, end) in (0_u32..).zip(self.ends).skip(self.ends.len() - rest.len()) {
            if prefix.starts(self.bytes, start & !NULL, *end) {
                found.push(at);
            }
            start = *end;
        }
        found
    }

    /// Positions of the items that contain the needle, ascending. One pass over all bytes; what lies across two items is
    /// no hit.
    pub fn containing(&self, needle: &[u8]) -> Vec<u32> {
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(hit) = self.bytes.get(from..).and_then(|rest| crate::kernels::find(rest, needle)) {
            let place = from + hit;
            let Some(at) = self.at(place) else { break };
            let end = self.ends.get(at as usize).map_or(0, |end| (end & !NULL) as usize);
            if place + needle.len() <= end {
                found.push(at);
                from = end;
            } else {
                from = place + 1;
            }
        }
        found
    }
}

/// A prefix whose first eight bytes are compared at once.
struct Prefix<'p> {
    head: u64,
    mask: u64,
    whole: &'p [u8],
}

impl<'p> Prefix<'p> {
    fn new(whole: &'p [u8]) -> Self {
        let mut head = [0; 8];
        let mut mask = [0; 8];
        for (i, byte) in whole.iter().enumerate().take(8) {
            head[i] = *byte;
            mask[i] = u8::MAX;
        }
        Self { head: u64::from_le_bytes(head), mask: u64::from_le_bytes(mask), whole }
    }

    /// Whether the item from `start` to the end word starts with it. Reads beyond a short item, never beyond the column.
    #[inline(always)]
    fn starts(&self, bytes: &[u8], start: u32, end: u32) -> bool {
        let outside = end as usize > bytes.len();
        if outside || (end.saturating_sub(start) as usize) < self.whole.len() {
            return false;
        }
        match bytes.get(start as usize..).and_then(|rest| rest.first_chunk()) {
            Some(first) if (u64::from_le_bytes(*first) ^ self.head) & self.mask != 0 => false,
            Some(_) if self.whole.len() <= 8 => true,
            _ => bytes.get(start as usize..end as usize).is_some_and(|item| item.starts_with(self.whole)),
        }
    }
}

/// The records of a batch in order.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    batch: &'a Batch<'a>,
    next: u32,
}

impl<'a> Iterator for Records<'a> {
    type Item = RecordRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<RecordRef<'a>> {
        let record = self.batch.record(self.next)?;
        self.next += 1;
        Some(record)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.batch.count - self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Records<'_> {}
impl FusedIterator for Records<'_> {}

/// One record of a batch. Every field panics if [`crate::Plugin::needs`] did not ask for it: the broker reports that
/// as a fault of the plugin, with this place.
#[derive(Clone, Copy)]
pub struct RecordRef<'a> {
    batch: &'a Batch<'a>,
    at: u32,
}

impl<'a> RecordRef<'a> {
    /// Position in the batch: how a verdict names the record.
    #[inline]
    pub fn at(&self) -> u32 {
        self.at
    }

    /// The key, or none.
    #[inline]
    pub fn key(&self) -> Option<&'a [u8]> {
        self.batch.keys().item(self.at)
    }

    /// The value; none is a tombstone.
    #[inline]
    pub fn value(&self) -> Option<&'a [u8]> {
        self.batch.values().item(self.at)
    }

    /// The headers in order.
    #[inline]
    pub fn headers(&self) -> Headers<'a> {
        Headers::new(self.batch.headers().item(self.at).unwrap_or_default())
    }

    /// The current topic: on produce, where the record would go now.
    #[inline]
    pub fn topic(&self) -> &'a str {
        std::str::from_utf8(self.batch.topics().item(self.at).unwrap_or_default()).unwrap_or_default()
    }

    /// The producer's timestamp in Unix milliseconds.
    #[inline]
    pub fn timestamp_ms(&self) -> i64 {
        asked(self.batch.timestamp, "timestamp").get(self.at as usize).map_or(0, |bytes| i64::from_le_bytes(*bytes))
    }

    /// On fetch the offset in the topic; on produce the position in the client's batch.
    #[inline]
    pub fn offset(&self) -> u64 {
        asked(self.batch.offset, "offset").get(self.at as usize).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

impl fmt::Debug for RecordRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordRef").field("at", &self.at).finish_non_exhaustive()
    }
}

/// The headers of one record: pairs of name and value, where a value may be null.
///
/// ```text
/// u16 count, then per header: u16 name length, u32 value length (0xffffffff = null), name (UTF-8), value
/// ```
#[derive(Debug, Clone)]
pub struct Headers<'a> {
    rest: &'a [u8],
    left: u16,
}

impl<'a> Headers<'a> {
    /// Reads a headers item; an empty one has no headers.
    pub fn new(item: &'a [u8]) -> Self {
        match item.split_first_chunk() {
            Some((count, rest)) => Self { rest, left: u16::from_le_bytes(*count) },
            None => Self { rest: &[], left: 0 },
        }
    }

    /// The value of the first header of that name. `Some(None)` is a header whose value is null.
    pub fn find(&self, name: &str) -> Option<Option<&'a [u8]>> {
        self.clone().find_map(|(other, value)| (other == name).then_some(value))
    }

    fn take(&mut self) -> Option<(&'a str, Option<&'a [u8]>)> {
        let (name_length, rest) = self.rest.split_first_chunk()?;
        let (value_length, rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(u16::from_le_bytes(*name_length).into())?;
        let name = std::str::from_utf8(name).ok()?;
        match u32::from_le_bytes(*value_length) {
            NULL_LENGTH => {
                self.rest = rest;
                Some((name, None))
            }
            length => {
                let (value, rest) = rest.split_at_checked(length as usize)?;
                self.rest = rest;
                Some((name, Some(value)))
            }
        }
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a str, Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.take()
    }
}

#[cfg(test)]
mod tests;
