//! CEL values of what a record holds. Knows nothing of expressions.

use std::{collections::HashMap, fmt, sync::Arc};

use cel::{Value, objects::Key};
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use tidegate_plugin::Headers;

/// Text where the bytes are UTF-8, bytes where they are not, null where there are none.
pub(crate) fn bytes(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => Value::Null,
        Some((_, Ok(text))) => Value::from(text),
        Some((bytes, Err(_))) => Value::Bytes(Arc::new(bytes.to_vec())),
    }
}

/// A JSON value; null for a tombstone, none where it is not JSON.
pub(crate) fn json(value: Option<&[u8]>) -> Option<Value> {
    let Some(value) = value else { return Some(Value::Null) };
    serde_json::from_slice::<Json>(value).ok().map(|json| json.0)
}

/// Headers by name; the first of a name counts.
pub(crate) fn headers(headers: Headers<'_>) -> Value {
    let mut map: HashMap<Key, Value> = HashMap::new();
    for (name, value) in headers {
        map.entry(Key::from(name)).or_insert_with(|| bytes(value));
    }
    Value::from(map)
}

/// The levels of a topic.
pub(crate) fn levels(topic: &str) -> Value {
    Value::List(Arc::new(topic.split('/').map(Value::from).collect()))
}

/// A whole number: `int` where it fits, so that it compares with literals.
pub(crate) fn number(number: u64) -> Value {
    i64::try_from(number).map_or(Value::UInt(number), Value::Int)
}

/// Builds CEL values straight from the text: no second tree.
struct Json(Value);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Build.deserialize(deserializer).map(Self)
    }
}

struct Build;

impl<'de> DeserializeSeed<'de> for Build {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Build {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map: HashMap<Key, Value> = HashMap::new();
        while let Some(name) = members.next_key::<String>()? {
            map.insert(Key::from(name), members.next_value_seed(Self)?);
        }
        Ok(Value::from(map))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element_seed(Self)? {
            list.push(element);
        }
        Ok(Value::List(Arc::new(list)))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(number(value))
    }
    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }
    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }
    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}
