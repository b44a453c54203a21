//! Gives each record a topic made from its content: `to = "github/{/event}"`.
//!
//! `template` reads the setting and fills it in; `pointer` finds a member in a JSON value without building a tree.
//! `README.md` is what an operator reads.

mod pointer;
mod template;

use serde::Deserialize;
use tidegate_plugin::{Batch, Failure, Manifest, Needs, Plugin, RecordRef, Settings, Verdict};

use crate::template::Template;

/// Code of a record for which no topic can be made.
pub const UNRESOLVED: u16 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    to: String,
    #[serde(default)]
    unresolved: Unresolved,
}

/// What becomes of a record for which no topic can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Unresolved {
    #[default]
    Reject,
    Leave,
}

/// The plugin; see the crate.
#[derive(Debug)]
pub struct Route {
    template: Template,
    unresolved: Unresolved,
    topic: String,
}

impl Plugin for Route {
    const MANIFEST: Manifest = Manifest::new("route", env!("CARGO_PKG_VERSION"))
        .produces()
        .pure()
        .judges_singly()
        .settings_schema(include_str!("../settings.schema.json"));

    fn new(settings: &Settings) -> Result<Self, Failure> {
        let options: Options =
            serde_json::from_str(settings.json()).map_err(|error| Failure::permanent(format!("settings: {error}")))?;
        let template = Template::parse(&options.to)
            .map_err(|error| Failure::permanent(format!("to = {:?}: {error}", options.to)))?;
        Ok(Self { template, unresolved: options.unresolved, topic: String::new() })
    }

    fn needs(&self) -> Needs {
        Needs::produce(self.template.fields())
    }

    fn on_produce(&mut self, batch: &Batch<'_>, out: &mut Verdict) -> Result<(), Failure> {
        for record in batch.records() {
            self.one(record, out);
        }
        Ok(())
    }
}

impl Route {
    fn one(&mut self, record: RecordRef<'_>, out: &mut Verdict) {
        self.topic.clear();
        match self.template.fill(record, &mut self.topic) {
            Ok(()) => out.route(record.at(), &self.topic),
            Err(unresolved) if self.unresolved == Unresolved::Reject => {
                out.reject(record.at(), UNRESOLVED, &unresolved.to_string());
            }
            Err(_) => {}
        }
    }
}

tidegate_plugin::export!(Route);

#[cfg(test)]
mod tests;
