//! A TOML document with places: every getter knows the table it reads, so that each error names file, line, key and value.
//!
//! Called by the parsers of this module. Must not know what the keys mean.

use std::{collections::BTreeMap, ops::Range};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{ConfigError, ConfigFault, nearest};

/// Bytes of a value that an error shows.
const VALUE_SHOWN_MAX: usize = 80;

/// The text of one file.
#[derive(Debug)]
pub(super) struct Source<'a> {
    /// As named by the user.
    pub(super) file: &'a str,
    /// Its whole text.
    pub(super) text: &'a str,
    /// See `ConfigError::keeps_running`.
    pub(super) keeps_running: bool,
}

/// A value with the place it stands at.
pub(super) type Item<'a> = Spanned<DeValue<'a>>;

impl<'a> Source<'a> {
    /// Parses the text as a table.
    pub(super) fn parse(&'a self) -> Result<DeTable<'a>, ConfigError> {
        DeTable::parse(self.text).map(Spanned::into_inner).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let reason = error.message().trim().replace('\n', ", ");
            self.error(span, "", format!("not TOML: {reason}"))
        })
    }

    /// Line of a byte position, from 1.
    pub(super) fn line(&self, at: usize) -> u32 {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        let breaks = before.iter().filter(|byte| **byte == b'\n').count();
        u32::try_from(breaks).map_or(u32::MAX, |breaks| breaks.saturating_add(1))
    }

    /// An error at a place of the text.
    pub(super) fn error(&self, span: Range<usize>, key: impl Into<String>, reason: String) -> ConfigError {
        let mut value = self.text.get(span.clone()).unwrap_or_default().to_owned();
        if value.len() > VALUE_SHOWN_MAX {
            let cut = (0..=VALUE_SHOWN_MAX).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0);
            value.truncate(cut);
            value.push('…');
        }
        ConfigError {
            file: self.file.to_owned(),
            line: Some(self.line(span.start)),
            key: key.into(),
            value,
            reason,
            suggestion: None,
            keeps_running: self.keeps_running,
            fault: ConfigFault::File,
        }
    }
}

/// One table of the document.
#[derive(Debug, Clone)]
pub(super) struct Section<'a> {
    source: &'a Source<'a>,
    /// `plugin.mask`; empty for the document.
    name: String,
    table: &'a DeTable<'a>,
    span: Range<usize>,
}

impl<'a> Section<'a> {
    /// The document itself.
    pub(super) fn root(source: &'a Source<'a>, table: &'a DeTable<'a>) -> Self {
        Self { source, name: String::new(), table, span: 0..0 }
    }

    /// A value that must be a table.
    pub(super) fn of(
        source: &'a Source<'a>,
        name: &str,
        span: Range<usize>,
        item: &'a Item<'a>,
    ) -> Result<Self, ConfigError> {
        let table = item.get_ref().as_table().ok_or_else(|| wrong_type(source, name, item, "a table"))?;
        Ok(Self { source, name: name.to_owned(), table, span })
    }

    /// Where the table starts.
    pub(super) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// `FILE:LINE` of the table, the file without its folder.
    pub(super) fn place(&self) -> String {
        let file = std::path::Path::new(self.source.file)
            .file_name()
            .map_or_else(|| self.source.file.into(), |name| name.to_string_lossy());
        format!("{file}:{}", self.source.line(self.span.start))
    }

    /// The key with its table.
    pub(super) fn key(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// Refuses keys outside `known`, and those in `later`, which a coming version serves.
    pub(super) fn only(&self, known: &[&str], later: &[&str]) -> Result<(), ConfigError> {
        // The first in the order of the file, so that fixing goes from top to bottom.
        let wrong = self.table.keys().filter(|key| !known.contains(&key.get_ref().as_ref()));
        let Some(key) = wrong.min_by_key(|key| key.span().start) else { return Ok(()) };
        let text = key.get_ref().as_ref();
        let place = if self.name.is_empty() { String::new() } else { format!(" in [{}]", self.name) };
        if later.contains(&text) {
            let reason = format!("{text:?}{place} is not served in this version");
            return Err(self.source.error(key.span(), self.key(text), reason));
        }
        let mut error = self.source.error(key.span(), self.key(text), format!("unknown key {text:?}{place}"));
        error.suggestion = nearest(text, known.iter().copied());
        if error.suggestion.is_none() {
            error.reason = format!("{}; known are {}", error.reason, known.join(", "));
        }
        Err(error)
    }

    /// A value, if the key is there.
    pub(super) fn item(&self, key: &str) -> Option<&'a Item<'a>> {
        self.table.get(key)
    }

    /// A value that must be there.
    pub(super) fn needed(&self, key: &str, example: &str) -> Result<&'a Item<'a>, ConfigError> {
        self.item(key).ok_or_else(|| {
            let place = if self.name.is_empty() { String::new() } else { format!("[{}] ", self.name) };
            self.source.error(self.span.clone(), self.key(key), format!("{place}needs {key:?}, for example {example}"))
        })
    }

    /// A table below a key.
    pub(super) fn section(&self, key: &str) -> Result<Option<Self>, ConfigError> {
        let Some((name, item)) = self.table.get_key_value(key) else { return Ok(None) };
        Self::of(self.source, &self.key(key), name.span(), item).map(Some)
    }

    /// All tables below this one (`[plugin.A]`, `[plugin.B]`), in the order of the file.
    pub(super) fn sections(&self) -> Result<Vec<(String, Self)>, ConfigError> {
        let mut found = Vec::new();
        for (name, item) in self.table {
            let text = name.get_ref().as_ref();
            found.push((text.to_owned(), Self::of(self.source, &self.key(text), name.span(), item)?));
        }
        found.sort_by_key(|(_, section)| section.span.start);
        Ok(found)
    }

    /// The tables of an array (`[[chain]]`), in order.
    pub(super) fn array_of_sections(&self, key: &str) -> Result<Vec<Self>, ConfigError> {
        let Some(item) = self.item(key) else { return Ok(Vec::new()) };
        let wrong = || wrong_type(self.source, &self.key(key), item, &format!("an array of tables ([[{key}]])"));
        let array = item.get_ref().as_array().ok_or_else(wrong)?;
        array.iter().map(|entry| Self::of(self.source, &self.key(key), entry.span(), entry)).collect()
    }

    /// A string.
    pub(super) fn string(&self, key: &str) -> Result<Option<(&'a str, &'a Item<'a>)>, ConfigError> {
        let Some(item) = self.item(key) else { return Ok(None) };
        let text = item.get_ref().as_str().ok_or_else(|| wrong_type(self.source, &self.key(key), item, "a string"))?;
        Ok(Some((text, item)))
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        let Some(item) = self.item(key) else { return Ok(None) };
        let wrong = || wrong_type(self.source, &self.key(key), item, "true or false");
        item.get_ref().as_bool().ok_or_else(wrong).map(Some)
    }

    /// The elements of an array, or one value that stands for an array of itself.
    pub(super) fn one_or_many(&self, key: &str) -> Result<Vec<&'a Item<'a>>, ConfigError> {
        let Some(item) = self.item(key) else { return Ok(Vec::new()) };
        Ok(item.get_ref().as_array().map_or_else(|| vec![item], |array| array.iter().collect()))
    }

    /// An array.
    pub(super) fn array(&self, key: &str) -> Result<Vec<&'a Item<'a>>, ConfigError> {
        let Some(item) = self.item(key) else { return Ok(Vec::new()) };
        let wrong = || wrong_type(self.source, &self.key(key), item, "an array");
        Ok(item.get_ref().as_array().ok_or_else(wrong)?.iter().collect())
    }

    /// The text of an element.
    pub(super) fn text(&self, key: &str, item: &'a Item<'a>) -> Result<&'a str, ConfigError> {
        item.get_ref().as_str().ok_or_else(|| wrong_type(self.source, &self.key(key), item, "a string"))
    }

    /// An error at a value of this table.
    pub(super) fn error(&self, key: &str, item: &Item<'a>, reason: String) -> ConfigError {
        self.source.error(item.span(), self.key(key), reason)
    }

    /// An error of a value that has a list of right spellings.
    pub(super) fn spelling(
        &self,
        key: &str,
        item: &Item<'a>,
        what: &str,
        written: &str,
        right: &[&str],
    ) -> ConfigError {
        let mut error = self.error(key, item, format!("unknown {what} {written:?}"));
        error.suggestion = nearest(written, right.iter().copied());
        if error.suggestion.is_none() && !right.is_empty() {
            error.reason = format!("{}; known are {}", error.reason, right.join(", "));
        }
        error
    }

    /// The text the table belongs to.
    pub(super) fn source(&self) -> &'a Source<'a> {
        self.source
    }

    /// The table as JSON values, for hashing and for settings.
    pub(super) fn json(&self) -> Result<serde_json::Value, ConfigError> {
        table_json(self.source, &self.name, self.table)
    }
}

fn wrong_type(source: &Source<'_>, key: &str, item: &Item<'_>, expected: &str) -> ConfigError {
    let found = match item.get_ref().type_str() {
        "array" | "integer" => format!("an {}", item.get_ref().type_str()),
        other => format!("a {other}"),
    };
    source.error(item.span(), key, format!("{key:?} must be {expected}, not {found}"))
}

fn table_json(source: &Source<'_>, key: &str, table: &DeTable<'_>) -> Result<serde_json::Value, ConfigError> {
    let mut members = BTreeMap::new();
    for (name, item) in table {
        let name = name.get_ref().as_ref();
        members.insert(name.to_owned(), item_json(source, &format!("{key}.{name}"), item)?);
    }
    Ok(serde_json::Value::Object(members.into_iter().collect()))
}

/// A value as JSON. TOML's dates and infinite numbers have no JSON form.
pub(super) fn item_json(source: &Source<'_>, key: &str, item: &Item<'_>) -> Result<serde_json::Value, ConfigError> {
    use serde_json::Value;
    Ok(match item.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(Value::from)
            .map_err(|_| source.error(item.span(), key, format!("{key:?} does not fit 64 bits")))?,
        DeValue::Float(number) => number
            .as_str()
            .parse::<f64>()
            .ok()
            .and_then(serde_json::Number::from_f64)
            .map(Value::Number)
            .ok_or_else(|| source.error(item.span(), key, format!("{key:?} must be a finite number")))?,
        DeValue::Datetime(_) => {
            let reason = format!("{key:?} is a date, which JSON does not have: write it as a string");
            return Err(source.error(item.span(), key, reason));
        }
        DeValue::Array(items) => {
            Value::Array(items.iter().map(|entry| item_json(source, key, entry)).collect::<Result<Vec<_>, _>>()?)
        }
        DeValue::Table(table) => table_json(source, key, table)?,
    })
}
