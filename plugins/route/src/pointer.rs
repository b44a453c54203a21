//! Finds one member of a JSON value by pointer (RFC 6901), reading no further than that member and building no tree.
//!
//! The values here are kilobytes and the member is usually near the start: what lies behind it is not looked at, so it may
//! even be broken. Where a name comes twice in an object, the first counts.

use std::{borrow::Cow, fmt};

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A parsed pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pointer(Vec<String>);

impl Pointer {
    /// Reads a pointer; it starts with `/`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let levels = text.strip_prefix('/')?;
        Some(Self(levels.split('/').map(|level| level.replace("~1", "/").replace("~0", "~")).collect()))
    }

    /// The scalar at this place, as text: a string without quotes, a number or boolean as written. Objects, arrays and
    /// null are none, as is a value that is not JSON up to there.
    pub(crate) fn find<'v>(&self, value: &'v [u8]) -> Option<Cow<'v, str>> {
        let mut found = None;
        let mut deserializer = serde_json::Deserializer::from_slice(value);
        // The walk ends with an error as soon as the member is found: there is no other way to stop a deserializer.
        let end = Walk { levels: &self.0, found: &mut found }.deserialize(&mut deserializer);
        match end {
            Ok(()) | Err(_) => found,
        }
    }
}

struct Walk<'w, 'v> {
    levels: &'w [String],
    found: &'w mut Option<Cow<'v, str>>,
}

impl<'v> Walk<'_, 'v> {
    fn scalar<E: de::Error>(self, text: Cow<'v, str>) -> Result<(), E> {
        if self.levels.is_empty() {
            *self.found = Some(text);
        }
        Err(E::custom("the walk is over"))
    }
}

impl<'v> DeserializeSeed<'v> for Walk<'_, 'v> {
    type Value = ();

    fn deserialize<D: Deserializer<'v>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'v> Visitor<'v> for Walk<'_, 'v> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'v>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((level, levels)) = self.levels.split_first() else {
            return Err(de::Error::custom("an object is no scalar"));
        };
        while let Some(is_it) = map.next_key_seed(Is(level))? {
            if is_it {
                return map.next_value_seed(Walk { levels, found: self.found });
            }
            map.next_value::<IgnoredAny>()?;
        }
        Err(de::Error::custom("no such member"))
    }

    fn visit_seq<A: SeqAccess<'v>>(self, mut seq: A) -> Result<(), A::Error> {
        let Some((level, levels)) = self.levels.split_first() else {
            return Err(de::Error::custom("an array is no scalar"));
        };
        let index: usize = level.parse().map_err(de::Error::custom)?;
        for _ in 0..index {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        match seq.next_element_seed(Walk { levels, found: self.found })? {
            Some(()) => Ok(()),
            None => Err(de::Error::custom("no such element")),
        }
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'v str) -> Result<(), E> {
        self.scalar(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.scalar(Cow::Owned(text.to_owned()))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.scalar(Cow::Borrowed(if value { "true" } else { "false" }))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<(), E> {
        self.scalar(Cow::Owned(number.to_string()))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<(), E> {
        self.scalar(Cow::Owned(number.to_string()))
    }
}

/// Whether a member name is this one, without keeping it.
struct Is<'n>(&'n str);

impl<'v> DeserializeSeed<'v> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'v>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pointer: &str, value: &str) -> Option<String> {
        Pointer::parse(pointer).unwrap().find(value.as_bytes()).map(Cow::into_owned)
    }

    #[test]
    fn scalars_are_found_at_any_depth() {
        let value = r#"{"a": {"skip": [1, {"x": "}"}], "b": ["no", "y\u0065s", 17, true, -3]}, "~/": "odd"}"#;
        assert_eq!(find("/a/b/0", value).as_deref(), Some("no"));
        assert_eq!(find("/a/b/1", value).as_deref(), Some("yes"));
        assert_eq!(find("/a/b/2", value).as_deref(), Some("17"));
        assert_eq!(find("/a/b/3", value).as_deref(), Some("true"));
        assert_eq!(find("/a/b/4", value).as_deref(), Some("-3"));
        assert_eq!(find("/~0~1", value).as_deref(), Some("odd"));
    }

    #[test]
    fn what_is_no_scalar_or_not_there_is_none() {
        let value = r#"{"a": {"b": null, "c": []}, "f": 1.5}"#;
        for pointer in ["/a", "/a/b", "/a/c", "/a/c/0", "/a/c/x", "/a/d", "/x", "/a/b/c", "/f"] {
            assert_eq!(find(pointer, value), None, "{pointer}");
        }
        assert_eq!(find("/a", "not json"), None);
        assert_eq!(find("/a", ""), None);
        assert_eq!(find("/a", r#"{"a": "cut"#), None);
    }

    #[test]
    fn nothing_behind_the_member_is_read_and_the_first_of_a_name_counts() {
        assert_eq!(find("/a", r#"{"a": "x", "a": "y", broken"#).as_deref(), Some("x"));
    }

    #[test]
    fn deep_values_end_and_do_not_overflow() {
        let value = format!("{{\"x\": {}1{}, \"a\": 1}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(find("/a", &value).as_deref(), Some("1"));
        let pointer = "/0".repeat(100_000);
        assert_eq!(find(&pointer, &"[".repeat(100_000)), None);
    }
}
