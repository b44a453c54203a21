//! Grant `batch`: more of the batch in progress, and byte work on it, in the host's memory.

use std::{fmt, sync::Arc};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use wasmtime::component::Linker;

use super::{Result, Store, allowed, refused};
use crate::hooks::{
    abi::{Fields, Frame, names},
    frame,
    guest::{Guest, Phase},
    work::{Selection, Work},
};

pub(super) fn link(linker: &mut Linker<Guest>) -> Result<()> {
    let mut at = linker.instance(names::BATCH)?;
    at.func_wrap("read", |mut store: Store<'_>, (which, at): (Fields, Vec<u32>)| {
        let (work, selection) = in_hand(&store, "batch.read")?;
        let at = positions(&selection, &at)?;
        let bytes = frame::bytes(&work, &at, which);
        give(&mut store, bytes)?;
        let mut out = Frame::default();
        frame::build(&work, &at, which, &mut out);
        Ok((out,))
    })?;
    at.func_wrap("find", |store: Store<'_>, (which, needle): (Fields, Vec<u8>)| {
        let (work, selection) = in_hand(&store, "batch.find")?;
        find(&work, &selection, which, &needle).map(|at| (at,))
    })?;
    at.func_wrap("json", |mut store: Store<'_>, (pointer, at): (String, Vec<u32>)| {
        let (work, selection) = in_hand(&store, "batch.json")?;
        let at = positions(&selection, &at)?;
        let pointer = Pointer::parse(&pointer)?;
        let mut out = Frame::default();
        let view = work.view();
        for row in at.rows() {
            let found = view.value(row).and_then(|value| pointer.of(value));
            frame::push_item(&mut out, found.as_deref().map(str::as_bytes));
        }
        give(&mut store, out.index.len() * 4 + out.data.len())?;
        Ok((out,))
    })
}

/// The batch in progress. Clones are two counts and at most one list of positions.
fn in_hand(store: &Store<'_>, what: &str) -> Result<(Arc<Work>, Selection)> {
    allowed(store, what)?;
    match &store.data().phase {
        Phase::Hook { batch: Some((work, selection)), .. } => Ok((Arc::clone(work), selection.clone())),
        _ => Err(refused(format!("{what} called outside a hook"))),
    }
}

/// The asked-for positions as rows. Each at most once and ascending: else a short list could ask for a whole batch a
/// million times.
fn positions(of: &Selection, at: &[u32]) -> Result<Selection> {
    if at.is_empty() {
        return Ok(of.clone());
    }
    if !at.is_sorted_by(|a, b| a < b) {
        return Err(refused("batch: positions must ascend without doubles".to_owned()));
    }
    of.pick(at).ok_or_else(|| refused(format!("batch: a position is outside the frame of {} records", of.len())))
}

/// Counts what goes to the guest: as input of the call, and against the guest's memory, where it must fit anyway.
fn give(store: &mut Store<'_>, bytes: usize) -> Result<()> {
    let guest = store.data_mut();
    if bytes > guest.memory.bytes_max {
        return Err(refused(format!(
            "batch: {bytes} bytes asked for, the plugin's memory is {}",
            guest.memory.bytes_max
        )));
    }
    guest.read_bytes = guest.read_bytes.saturating_add(bytes);
    Ok(())
}

fn find(work: &Work, selection: &Selection, which: Fields, needle: &[u8]) -> Result<Vec<u32>> {
    let view = work.view();
    let finder = memchr::memmem::Finder::new(needle);
    let holds = |item: Option<&[u8]>| item.is_some_and(|bytes| finder.find(bytes).is_some());
    let test: &dyn Fn(u32) -> bool = if which == Fields::KEY {
        &|row| holds(view.key(row))
    } else if which == Fields::VALUE {
        &|row| holds(view.value(row))
    } else if which == Fields::TOPIC {
        &|row| holds(Some(view.topic(row).as_bytes()))
    } else {
        return Err(refused("batch.find takes exactly one of key, value, topic".to_owned()));
    };
    Ok((0..).zip(selection.rows()).filter(|(_, row)| test(*row)).map(|(position, _)| position).collect())
}

/// A JSON pointer, split and unescaped once for all records.
struct Pointer(Vec<String>);

impl Pointer {
    fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let Some(rest) = text.strip_prefix('/') else {
            return Err(refused("batch.json: a pointer is empty or begins with `/`".to_owned()));
        };
        let steps: Vec<String> = rest.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
        if steps.len() > POINTER_STEPS_MAX {
            return Err(refused(format!("batch.json: a pointer has at most {POINTER_STEPS_MAX} steps")));
        }
        Ok(Self(steps))
    }

    /// The member as text, if the value is JSON and has it. What lies beside the path is checked but not kept.
    fn of(&self, value: &[u8]) -> Option<String> {
        let mut json = serde_json::Deserializer::from_slice(value);
        let found = Step(&self.0).deserialize(&mut json).ok()?;
        json.end().ok()?;
        Some(match found? {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        })
    }
}

/// Goes down one path of a JSON value; `None` where the path ends before.
#[derive(Clone, Copy)]
struct Step<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for Step<'_> {
    type Value = Option<serde_json::Value>;
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> std::result::Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            return serde::Deserialize::deserialize(json).map(Some);
        }
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Step<'_> {
    type Value = Option<serde_json::Value>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let (step, rest) = self.0.split_first().map_or(("", self.0), |(step, rest)| (step.as_str(), rest));
        let mut found = None;
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if name == step {
                found = map.next_value_seed(Step(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Self::Value, A::Error> {
        let (step, rest) = self.0.split_first().map_or(("", self.0), |(step, rest)| (step.as_str(), rest));
        let wanted = index(step);
        let mut found = None;
        for at in 0_usize.. {
            if Some(at) == wanted {
                match list.next_element_seed(Step(rest))? {
                    Some(value) => found = value,
                    None => break,
                }
            } else if list.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(found)
    }
    fn visit_bool<E>(self, _: bool) -> std::result::Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_i64<E>(self, _: i64) -> std::result::Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_u64<E>(self, _: u64) -> std::result::Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_f64<E>(self, _: f64) -> std::result::Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_str<E>(self, _: &str) -> std::result::Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_unit<E>(self) -> std::result::Result<Self::Value, E> {
        Ok(None)
    }
}

/// RFC 6901: digits without a leading zero.
fn index(step: &str) -> Option<usize> {
    let plain = step == "0" || (!step.starts_with('0') && step.bytes().all(|b| b.is_ascii_digit()));
    if plain { step.parse().ok() } else { None }
}

/// serde_json itself goes 128 levels deep.
const POINTER_STEPS_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pointer: &str, value: &str) -> Option<String> {
        Pointer::parse(pointer).unwrap().of(value.as_bytes())
    }

    #[test]
    fn a_pointer_gives_strings_bare_and_all_else_as_json() {
        let value = r#"{"a": {"b/c": ["x", {"d~": 1.5}, null]}, "e": "two"}"#;
        assert_eq!(at("/e", value).as_deref(), Some("two"));
        assert_eq!(at("/a/b~1c/0", value).as_deref(), Some("x"));
        assert_eq!(at("/a/b~1c/1/d~0", value).as_deref(), Some("1.5"));
        assert_eq!(at("/a/b~1c/2", value).as_deref(), Some("null"));
        assert_eq!(at("/a/b~1c/1", value).as_deref(), Some(r#"{"d~":1.5}"#));
        assert_eq!(at("", "[1]").as_deref(), Some("[1]"));
        for absent in ["/x", "/e/f", "/a/b~1c/3", "/a/b~1c/01", "/a/b~1c/-"] {
            assert_eq!(at(absent, value), None, "{absent}");
        }
        for broken in ["{", r#"{"e": 1} x"#, "", r#"{"e": 1,}"#] {
            assert_eq!(at("/e", broken), None, "{broken}");
        }
        assert!(Pointer::parse("a").is_err());
    }
}
