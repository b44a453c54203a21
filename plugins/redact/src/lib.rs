//! Hides members of JSON values, on their way in or out: `pointers = ["/payload/sender/email"]`.
//!
//! `pointers` holds what to look for, `spans` finds where it stands, `mask` says what goes there instead. The rest of a
//! value stays byte for byte: numbers keep their digits, objects their order and spaces. `README.md` is what an operator
//! reads.

mod mask;
mod pointers;
mod spans;

use serde::Deserialize;
use tidegate_plugin::{Batch, Failure, Fields, Manifest, Needs, Plugin, Reader, Settings, Verdict};

use crate::{mask::Mask, pointers::Pointers};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    pointers: Vec<String>,
    #[serde(default = "redacted")]
    with: String,
    #[serde(default)]
    salt: Option<String>,
    #[serde(default)]
    not_json: NotJson,
}

fn redacted() -> String {
    "[redacted]".to_owned()
}

/// What becomes of a value that is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NotJson {
    /// The record goes: what it holds cannot be told.
    #[default]
    Drop,
    /// It is let through as it is.
    Pass,
}

/// The plugin; see the crate.
#[derive(Debug)]
pub struct Redact {
    pointers: Pointers,
    mask: Mask,
    not_json: NotJson,
    rewritten: Vec<u8>,
}

impl Plugin for Redact {
    const MANIFEST: Manifest = Manifest::new("redact", env!("CARGO_PKG_VERSION"))
        .produces()
        .fetches()
        .pure()
        .judges_singly()
        .settings_schema(include_str!("../settings.schema.json"));

    fn new(settings: &Settings) -> Result<Self, Failure> {
        let options: Options =
            serde_json::from_str(settings.json()).map_err(|error| Failure::permanent(format!("settings: {error}")))?;
        Ok(Self {
            pointers: Pointers::parse(&options.pointers).map_err(Failure::permanent)?,
            mask: Mask::new(&options.with, options.salt.as_deref()).map_err(Failure::permanent)?,
            not_json: options.not_json,
            rewritten: Vec::new(),
        })
    }

    fn needs(&self) -> Needs {
        Needs::both(Fields::VALUE)
    }

    fn on_produce(&mut self, batch: &Batch<'_>, out: &mut Verdict) -> Result<(), Failure> {
        self.all(batch, out);
        Ok(())
    }

    fn on_fetch(&mut self, batch: &Batch<'_>, _: &Reader, out: &mut Verdict) -> Result<(), Failure> {
        self.all(batch, out);
        Ok(())
    }
}

impl Redact {
    fn all(&mut self, batch: &Batch<'_>, out: &mut Verdict) {
        for (at, value) in (0..).zip(batch.values().iter()) {
            let Some(value) = value else { continue };
            match spans::find(&self.pointers, value) {
                Ok(spans) if spans.is_empty() => {}
                Ok(spans) => {
                    self.rewrite(value, &spans);
                    out.set_value(at, Some(&self.rewritten));
                }
                Err(spans::NotJson) if self.not_json == NotJson::Drop => out.drop(at),
                Err(spans::NotJson) => {}
            }
        }
    }

    /// The value with each span replaced. Spans ascend and do not overlap.
    fn rewrite(&mut self, value: &[u8], spans: &[spans::Span]) {
        self.rewritten.clear();
        let mut from = 0;
        for span in spans {
            self.rewritten.extend_from_slice(value.get(from..span.start).unwrap_or_default());
            self.mask.write(value.get(span.clone()).unwrap_or_default(), &mut self.rewritten);
            from = span.end;
        }
        self.rewritten.extend_from_slice(value.get(from..).unwrap_or_default());
    }
}

tidegate_plugin::export!(Redact);

#[cfg(test)]
mod tests;
