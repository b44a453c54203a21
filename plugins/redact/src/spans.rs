//! Finds where in a JSON value the members to hide stand: one walk, no tree, nothing copied. Every member of a name
//! counts, also where an object has it twice: readers differ on which of the two they see.

use std::{fmt, ops::Range};

use serde::{
    Deserialize,
    de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::pointers::Pointers;

/// Bytes of a value that are one member.
pub(crate) type Span = Range<usize>;

/// The value is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotJson;

/// Where the members stand, ascending, none within another.
///
/// # Errors
/// If the value is not JSON, or nests deeper than 128 levels on the way to a member.
pub(crate) fn find(pointers: &Pointers, value: &[u8]) -> Result<Vec<Span>, NotJson> {
    let text = std::str::from_utf8(value).map_err(|_| NotJson)?;
    let mut spans = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let walk = Walk { text, pointers, spans: &mut spans };
    walk.deserialize(&mut deserializer).and_then(|()| deserializer.end()).map_err(|_| NotJson)?;
    Ok(spans)
}

struct Walk<'w, 'v> {
    text: &'v str,
    pointers: &'w Pointers,
    spans: &'w mut Vec<Span>,
}

impl<'v> Walk<'_, 'v> {
    /// Where a piece of the text stands in it.
    fn place(&self, piece: &'v str) -> Span {
        let start = piece.as_ptr().addr() - self.text.as_ptr().addr();
        start..start + piece.len()
    }
}

impl<'v> DeserializeSeed<'v> for Walk<'_, 'v> {
    type Value = ();

    fn deserialize<D: Deserializer<'v>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.pointers.is_end() {
            let member = <&'v RawValue>::deserialize(deserializer)?;
            let place = self.place(member.get());
            self.spans.push(place);
            return Ok(());
        }
        deserializer.deserialize_any(self)
    }
}

impl<'v> Visitor<'v> for Walk<'_, 'v> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'v>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(below) = map.next_key_seed(Below(self.pointers))? {
            match below {
                Some(pointers) => map.next_value_seed(Walk { text: self.text, pointers, spans: self.spans })?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'v>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut index = 0_usize;
        loop {
            let more = match self.pointers.below(&index.to_string()) {
                Some(pointers) => {
                    seq.next_element_seed(Walk { text: self.text, pointers, spans: self.spans })?.is_some()
                }
                None => seq.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E: de::Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }
}

/// What to look for below a member name, without keeping the name.
struct Below<'w>(&'w Pointers);

impl<'w, 'v> DeserializeSeed<'v> for Below<'w> {
    type Value = Option<&'w Pointers>;

    fn deserialize<D: Deserializer<'v>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'w> Visitor<'_> for Below<'w> {
    type Value = Option<&'w Pointers>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.below(name))
    }
}
