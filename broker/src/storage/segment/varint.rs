//! Numbers and counted bytes inside a segment, and reading them from bytes nobody vouches for: every step is checked.

/// What is wrong with a segment's bytes.
pub(super) type Fault = &'static str;

const CUT: Fault = "a table ends too early";

/// Appends a number in groups of 7 bits, lowest first.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends a number that may be negative: 0, −1, 1, −2, …
pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned());
}

/// Appends a length and the bytes.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A place in bytes; moves on as they are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: at.min(bytes.len()) }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// A number.
    #[inline]
    pub(super) fn number(&mut self) -> Result<u64, Fault> {
        let first = *self.bytes.get(self.at).ok_or(CUT)?;
        self.at += 1;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        loop {
            let byte = *self.bytes.get(self.at).ok_or(CUT)?;
            self.at += 1;
            let group = u64::from(byte & 0x7f);
            if shift > 63 || (shift == 63 && group > 1) {
                return Err("a number is over 64 bits");
            }
            value |= group << shift;
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    /// A number that may be negative.
    #[inline]
    pub(super) fn signed(&mut self) -> Result<i64, Fault> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A number that counts things of at least `bytes_each` bytes which follow: bounds what is allocated for them.
    pub(super) fn count(&mut self, bytes_each: usize) -> Result<usize, Fault> {
        let count = self.usize()?;
        if count > self.left() / bytes_each { Err("a table has fewer bytes than its count needs") } else { Ok(count) }
    }

    /// A number in 32 bits.
    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        u32::try_from(self.number()?).map_err(|_| "a number is over 32 bits")
    }

    /// A number that is a length or place in memory.
    #[inline]
    pub(super) fn usize(&mut self) -> Result<usize, Fault> {
        usize::try_from(self.number()?).map_err(|_| "a length is over what memory can hold")
    }

    /// A byte.
    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        let byte = *self.bytes.get(self.at).ok_or(CUT)?;
        self.at += 1;
        Ok(byte)
    }

    /// So many bytes.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8], Fault> {
        let end = self.at.checked_add(bytes).ok_or(CUT)?;
        let taken = self.bytes.get(self.at..end).ok_or(CUT)?;
        self.at = end;
        Ok(taken)
    }

    /// A length and so many bytes.
    #[inline]
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Fault> {
        let bytes = self.usize()?;
        self.take(bytes)
    }
}
