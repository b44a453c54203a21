//! Reads the AsyncAPI document: its channels with their addresses, and for each the messages with the place and draft
//! of their payload schema. Compiles nothing.

use std::collections::BTreeMap;

use jsonschema::Draft;
use roas_asyncapi::{
    v3_0::{Channel, Document, Message, RefOr, Reference, SchemaOrMultiFormat, is_supported_schema_format},
    validation::Validate,
};
use serde_json::Value;

/// One channel.
#[derive(Debug)]
pub(crate) struct ChannelSpec {
    /// Its name in the document.
    pub(crate) name: String,
    /// Its address, or the name where it has none.
    pub(crate) address: String,
    /// The values its address parameters may take, by name; those that may take any are missing.
    pub(crate) values: BTreeMap<String, Vec<String>>,
    /// Its messages.
    pub(crate) messages: Vec<MessageSpec>,
}

/// One message of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MessageSpec {
    /// Its `name`, or its key in the channel.
    pub(crate) name: String,
    /// JSON pointer of its payload schema in the document; none = any payload holds.
    pub(crate) payload: Option<String>,
    /// The draft of schemas that do not name theirs.
    pub(crate) draft: Draft,
}

/// A document, read.
#[derive(Debug)]
pub(crate) struct Read {
    /// `info.version`.
    pub(crate) version: String,
    /// In order of their names.
    pub(crate) channels: Vec<ChannelSpec>,
}

/// Reads a document.
///
/// # Errors
/// If it is no valid AsyncAPI 3.0 document, or uses a schema format or an encoding that this plugin does not judge.
pub(crate) fn read(path: &str, value: &Value) -> Result<Read, String> {
    let document: Document = serde_json::from_value(value.clone())
        .map_err(|error| format!("{path} is no AsyncAPI 3.0 document: {error}"))?;
    document.validate(Default::default()).map_err(|error| {
        let first = error.errors.first().map_or_else(String::new, ToString::to_string);
        format!("{path} is no valid AsyncAPI 3.0 document ({} findings), first: {first}", error.errors.len())
    })?;
    let reader = Reader { document: &document };
    let channels = document
        .channels
        .iter()
        .map(|(name, channel)| reader.channel(name, channel))
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{path}: {error}"))?;
    Ok(Read { version: document.info.version.clone(), channels })
}

struct Reader<'d> {
    document: &'d Document,
}

impl Reader<'_> {
    fn channel(&self, name: &str, channel: &RefOr<Channel>) -> Result<ChannelSpec, String> {
        let base = format!("/channels/{}", escaped(name));
        let (channel, base) = match channel {
            RefOr::Item(channel) => (channel, base),
            RefOr::Reference(reference) => {
                let key = reference.component_key("channels").ok_or_else(|| elsewhere("channel", reference))?;
                let components = self.document.components.as_ref();
                let found = components.and_then(|components| components.channels.get(&key)?.item());
                let base = format!("/components/channels/{}", escaped(&key));
                (found.ok_or_else(|| elsewhere("channel", reference))?, base)
            }
        };
        let mut values = BTreeMap::new();
        for (parameter, spec) in &channel.parameters {
            values.insert(parameter.clone(), self.values(spec)?);
        }
        let messages = channel
            .messages
            .iter()
            .map(|(key, message)| self.message(key, message, &format!("{base}/messages/{}", escaped(key))))
            .collect::<Result<_, _>>()
            .map_err(|error| format!("channel {name:?}: {error}"))?;
        let address = channel.address().unwrap_or(name).to_owned();
        Ok(ChannelSpec { name: name.to_owned(), address, values, messages })
    }

    fn values(&self, parameter: &RefOr<roas_asyncapi::v3_0::Parameter>) -> Result<Vec<String>, String> {
        match parameter {
            RefOr::Item(parameter) => Ok(parameter.enum_values.clone()),
            RefOr::Reference(reference) => {
                let key = reference.component_key("parameters").ok_or_else(|| elsewhere("parameter", reference))?;
                let components = self.document.components.as_ref();
                let found = components.and_then(|components| components.parameters.get(&key)?.item());
                Ok(found.ok_or_else(|| elsewhere("parameter", reference))?.enum_values.clone())
            }
        }
    }

    fn message(&self, key: &str, message: &RefOr<Message>, base: &str) -> Result<MessageSpec, String> {
        match message {
            RefOr::Item(message) => self.found(key, message, base),
            RefOr::Reference(reference) => {
                let target = reference.component_key("messages").ok_or_else(|| elsewhere("message", reference))?;
                let components = self.document.components.as_ref();
                let found = components.and_then(|components| components.messages.get(&target)?.item());
                let message = found.ok_or_else(|| elsewhere("message", reference))?;
                self.found(key, message, &format!("/components/messages/{}", escaped(&target)))
            }
        }
    }

    fn found(&self, key: &str, message: &Message, base: &str) -> Result<MessageSpec, String> {
        let name = message.name.clone().unwrap_or_else(|| key.to_owned());
        let default = self.document.default_content_type.as_deref();
        let content_type = message.content_type.as_deref().or(default).unwrap_or("application/json");
        if !is_json(content_type) {
            return Err(format!("message {name:?}: contentType {content_type:?} is not JSON"));
        }
        let (payload, draft) = match &message.payload {
            None => (None, Draft::Draft7),
            Some(RefOr::Item(SchemaOrMultiFormat::MultiFormat(schema))) => {
                let draft =
                    draft(schema.schema_format.as_deref()).map_err(|error| format!("message {name:?}: {error}"))?;
                (Some(format!("{base}/payload/schema")), draft)
            }
            Some(_) => (Some(format!("{base}/payload")), Draft::Draft7),
        };
        Ok(MessageSpec { name, payload, draft })
    }
}

/// The draft that a schema format stands for. AsyncAPI's own dialect is draft-07 with additions that judge nothing.
fn draft(format: Option<&str>) -> Result<Draft, String> {
    let Some(format) = format else { return Ok(Draft::Draft7) };
    let (media_type, version) = format.split_once(";version=").unwrap_or((format, ""));
    match media_type.trim_end_matches("+json") {
        "application/vnd.aai.asyncapi" => Ok(Draft::Draft7),
        "application/schema" if version.contains("2020-12") => Ok(Draft::Draft202012),
        "application/schema" if version.contains("2019-09") => Ok(Draft::Draft201909),
        "application/schema" if version.is_empty() || version == "draft-07" => Ok(Draft::Draft7),
        _ if is_supported_schema_format(format) => {
            Err(format!("schemaFormat {format:?} is not judged by this plugin: it takes JSON Schema"))
        }
        _ => Err(format!(
            "schemaFormat {format:?} is unknown; write application/schema+json;version=draft-07 or 2020-12"
        )),
    }
}

fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    media_type == "application/json" || media_type == "text/json" || media_type.ends_with("+json")
}

fn elsewhere(what: &str, reference: &Reference) -> String {
    format!("{:?} leads to no {what} of this document's components", reference.reference)
}

/// A key as one token of a JSON pointer (RFC 6901).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(message: Value) -> Value {
        json!({
            "asyncapi": "3.0.0",
            "info": {"title": "t", "version": "7"},
            "channels": {"a": {
                "address": "a/{x}",
                "parameters": {"x": {"enum": ["1"]}},
                "messages": {"m": {"$ref": "#/components/messages/m"}},
            }},
            "components": {"messages": {"m": message}},
        })
    }

    fn only(message: Value) -> Result<MessageSpec, String> {
        Ok(read("d.json", &document(message))?.channels.remove(0).messages.remove(0))
    }

    #[test]
    fn channels_lead_to_the_place_of_their_schema() {
        let read = read("d.json", &document(json!({"payload": {"type": "object"}}))).unwrap();
        assert_eq!((read.version.as_str(), read.channels[0].address.as_str()), ("7", "a/{x}"));
        assert_eq!(read.channels[0].values["x"], ["1"]);
        let message = &read.channels[0].messages[0];
        assert_eq!((message.name.as_str(), message.payload.as_deref()), ("m", Some("/components/messages/m/payload")));
    }

    #[test]
    fn a_schema_format_sets_the_draft() {
        let of = |format: &str| only(json!({"payload": {"schemaFormat": format, "schema": {}}}));
        assert_eq!(of("application/schema+json;version=draft-07").unwrap().draft, Draft::Draft7);
        let new = of("application/schema+json;version=draft/2020-12").unwrap();
        assert_eq!(
            (new.draft, new.payload.as_deref()),
            (Draft::Draft202012, Some("/components/messages/m/payload/schema"))
        );
        assert!(of("application/vnd.apache.avro+json;version=1.9.0").unwrap_err().contains("JSON Schema"));
    }

    #[test]
    fn what_is_not_json_is_refused() {
        assert!(only(json!({"contentType": "application/octet-stream"})).unwrap_err().contains("not JSON"));
        assert!(only(json!({"contentType": "application/cloudevents+json; charset=utf-8"})).is_ok());
    }

    #[test]
    fn other_versions_and_broken_wiring_are_named() {
        let mut other = document(json!({}));
        other["asyncapi"] = json!("2.6.0");
        assert!(read("d.json", &other).unwrap_err().contains("3.0.0"));
        let mut broken = document(json!({}));
        broken["channels"]["a"]["messages"]["m"]["$ref"] = json!("#/components/messages/gone");
        assert!(read("d.json", &broken).unwrap_err().contains("gone"));
    }
}
