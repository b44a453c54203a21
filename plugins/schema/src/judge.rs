//! Judges one value: picks the message of its channel and validates.
//!
//! Which message applies, where a channel has several: the one whose name is the value of an address parameter
//! (`github/{event}`); else those whose constants (`properties/NAME/const` at the top of the payload schema) the value
//! has; else any. A value holds if it holds for one message that may apply.

use jsonschema::Validator;
use serde_json::Value;
use tidegate_plugin::{Failure, Settings};

use crate::{
    channels::{Channels, Found},
    document::{self, ChannelSpec, MessageSpec},
    options::Options,
    reason::Finding,
    validators::{Compiler, Files},
};

/// A document, compiled.
#[derive(Debug)]
pub(crate) struct Judge {
    id: String,
    channels: Channels,
    messages: Vec<Vec<Message>>,
}

#[derive(Debug)]
struct Message {
    name: String,
    /// None = any payload holds.
    validator: Option<Validator>,
    /// Top-level members that must have one value.
    constants: Vec<(String, Value)>,
}

impl Judge {
    /// Reads and compiles the document that the settings name.
    ///
    /// # Errors
    /// If the document or a schema of it is wrong, or something it refers to is missing.
    pub(crate) fn new(settings: &Settings, options: &Options) -> Result<Self, Failure> {
        settings.file(&options.asyncapi)?;
        let path = options.asyncapi.trim_start_matches("file:");
        let files = Files::new(settings);
        let Some(value) = files.file(path) else {
            return Err(Failure::permanent(format!("{path} is not JSON (YAML has to be converted)")));
        };
        let read = document::read(path, value).map_err(Failure::permanent)?;

        let mut compilers: Vec<Compiler<'_>> = Vec::new();
        let mut channels = Channels::default();
        let mut messages = Vec::with_capacity(read.channels.len());
        for (number, channel) in read.channels.iter().enumerate() {
            let values = |name: &str| channel.values.get(name).cloned().unwrap_or_default();
            channels
                .add(&channel.address, number, values)
                .map_err(|error| Failure::permanent(format!("{path}: channel {:?}: {error}", channel.name)))?;
            messages.push(compiled(&files, path, channel, &mut compilers).map_err(Failure::permanent)?);
        }
        let id = format!("{}@{}", digest(settings), read.version);
        Ok(Self { id, channels, messages })
    }

    /// The document's hash and version: what the header `tidegate-schema` says.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The channel of a topic.
    pub(crate) fn channel<'t>(&self, topic: &'t str) -> Option<Found<'t>> {
        self.channels.find(topic)
    }

    /// Judges a value of a channel.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn judge(&self, channel: &Found<'_>, value: &[u8]) -> Result<(), Finding> {
        let messages = self.messages.get(channel.channel).map(Vec::as_slice).unwrap_or_default();
        let value: Value = serde_json::from_slice(value).map_err(|error| Finding::not_json(&error))?;
        if let Some(message) = named(messages, channel) {
            return message.judge(&value);
        }
        let mut first = None;
        for message in messages.iter().filter(|message| message.may_be(&value)) {
            match message.judge(&value) {
                Ok(()) => return Ok(()),
                Err(finding) => first = first.or(Some(finding)),
            }
        }
        Err(first.unwrap_or_else(|| Finding::no_message(messages.iter().map(|message| message.name.as_str()))))
    }
}

/// The message that applies whatever the value: the only one, or the one an address parameter names.
fn named<'m>(messages: &'m [Message], channel: &Found<'_>) -> Option<&'m Message> {
    match messages {
        [only] => Some(only),
        several => several.iter().find(|message| channel.parameters.contains(&message.name.as_str())),
    }
}

impl Message {
    fn may_be(&self, value: &Value) -> bool {
        self.constants.iter().all(|(name, constant)| value.get(name) == Some(constant))
    }

    fn judge(&self, value: &Value) -> Result<(), Finding> {
        match &self.validator {
            Some(validator) if !validator.is_valid(value) => Err(Finding::invalid(validator, value)),
            _ => Ok(()),
        }
    }
}

fn compiled<'f>(
    files: &'f Files,
    path: &str,
    channel: &ChannelSpec,
    compilers: &mut Vec<Compiler<'f>>,
) -> Result<Vec<Message>, String> {
    let mut messages = Vec::with_capacity(channel.messages.len());
    for MessageSpec { name, payload, draft } in &channel.messages {
        let Some(pointer) = payload else {
            messages.push(Message { name: name.clone(), validator: None, constants: Vec::new() });
            continue;
        };
        let compiler = match compilers.iter().position(|compiler| compiler.draft() == *draft) {
            Some(found) => compilers.get(found),
            None => {
                compilers.push(files.compiler(path, *draft)?);
                compilers.last()
            }
        };
        let compiler = compiler.expect("found or just pushed");
        let constants = files.file(path).and_then(|file| file.pointer(pointer)).map(constants).unwrap_or_default();
        messages.push(Message { name: name.clone(), validator: Some(compiler.compile(path, pointer)?), constants });
    }
    Ok(messages)
}

/// Members of a schema's `properties` that can have one value only.
fn constants(schema: &Value) -> Vec<(String, Value)> {
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    properties
        .filter(|(name, _)| required.contains(&name.as_str()))
        .filter_map(|(name, schema)| {
            let only = schema.get("const").or_else(|| match schema.get("enum")?.as_array()?.as_slice() {
                [only] => Some(only),
                _ => None,
            });
            Some((name.clone(), only?.clone()))
        })
        .collect()
}

/// Twelve hex digits over all bundled files and their paths: the document with everything it refers to.
fn digest(settings: &Settings) -> String {
    let mut files: Vec<_> = settings.files().collect();
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for (path, content) in files {
        hasher.update(path.as_bytes()).update(&[0]).update(blake3::hash(content).as_bytes());
    }
    hasher.finalize().to_hex().chars().take(12).collect()
}

#[cfg(test)]
mod tests;
