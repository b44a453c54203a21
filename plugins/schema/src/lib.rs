//! Validates records on their way in against an AsyncAPI 3.0 document: topic → channel → message → JSON Schema.
//!
//! A record's path through the modules: `channels` finds the channel of its topic, `document` has chosen that
//! channel's messages, `judge` picks the message and validates, `reason` puts the finding into one line. `README.md`
//! is what an operator reads.

mod channels;
mod document;
mod judge;
mod options;
mod reason;
mod validators;

use tidegate_plugin::{Batch, Failure, Fields, Manifest, Needs, Plugin, RecordRef, Settings, Verdict};

pub use reason::Code;

use crate::{
    judge::Judge,
    options::{Mode, Options, Rule},
    reason::Finding,
};

/// Header that names the document a record was checked against: `HASH@VERSION`.
pub const SCHEMA_HEADER: &str = "tidegate-schema";
/// Header that says what is wrong with a record that was let through.
pub const INVALID_HEADER: &str = "tidegate-invalid";

/// The plugin; see the crate.
#[derive(Debug)]
pub struct Schema {
    options: Options,
    judge: Judge,
}

impl Plugin for Schema {
    const MANIFEST: Manifest = Manifest::new("schema", env!("CARGO_PKG_VERSION"))
        .produces()
        .pure()
        .judges_singly()
        .settings_schema(include_str!("../settings.schema.json"));

    fn new(settings: &Settings) -> Result<Self, Failure> {
        let options: Options =
            serde_json::from_str(settings.json()).map_err(|error| Failure::permanent(format!("settings: {error}")))?;
        let judge = Judge::new(settings, &options)?;
        Ok(Self { options, judge })
    }

    fn needs(&self) -> Needs {
        Needs::produce(Fields::VALUE | Fields::TOPIC)
    }

    fn on_produce(&mut self, batch: &Batch<'_>, out: &mut Verdict) -> Result<(), Failure> {
        for record in batch.records() {
            self.check(record, out);
        }
        Ok(())
    }
}

impl Schema {
    fn check(&self, record: RecordRef<'_>, out: &mut Verdict) {
        let at = record.at();
        let Some(channel) = self.judge.channel(record.topic()) else {
            if self.options.unknown == Rule::Reject {
                self.found(at, &Finding::unknown(record.topic()), out);
            }
            return;
        };
        let Some(value) = record.value() else {
            if self.options.tombstones == Rule::Reject {
                self.found(at, &Finding::tombstone(), out);
            }
            return;
        };
        match self.judge.judge(&channel, value) {
            Ok(()) if self.options.schema_header => out.add_header(at, SCHEMA_HEADER, self.judge.id().as_bytes()),
            Ok(()) => {}
            Err(finding) => self.found(at, &finding, out),
        }
    }

    fn found(&self, at: u32, finding: &Finding, out: &mut Verdict) {
        match self.options.mode {
            Mode::Enforce => out.reject(at, finding.code as u16, &finding.reason),
            Mode::Flag => out.add_header(at, INVALID_HEADER, finding.header().as_bytes()),
            Mode::Observe => tidegate_plugin::warn!("record {at} would be rejected: {}", finding.reason),
        }
    }
}

tidegate_plugin::export!(Schema);
