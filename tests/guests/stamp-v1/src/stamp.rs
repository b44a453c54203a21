//! What both versions of the plugin do: two headers on every record, one with the version, one of a length of its own.

use serde::Deserialize;
use tidegate_plugin::{Batch, Failure, Manifest, Needs, Plugin, Settings, Verdict};

use crate::{PADDING, VERSION};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    #[serde(default = "stamp")]
    header: String,
}

fn stamp() -> String {
    "stamp".to_owned()
}

/// The plugin; see the module.
#[derive(Debug)]
pub struct Stamp {
    header: String,
    padding_header: String,
}

impl Plugin for Stamp {
    const MANIFEST: Manifest = Manifest::new("stamp", VERSION)
        .produces()
        .pure()
        .judges_singly()
        .settings_schema(include_str!("settings.schema.json"));

    fn new(settings: &Settings) -> Result<Self, Failure> {
        let options: Options =
            serde_json::from_str(settings.json()).map_err(|error| Failure::permanent(format!("settings: {error}")))?;
        Ok(Self { padding_header: format!("{}-padding", options.header), header: options.header })
    }

    fn needs(&self) -> Needs {
        Needs::none()
    }

    fn on_produce(&mut self, batch: &Batch<'_>, out: &mut Verdict) -> Result<(), Failure> {
        for at in 0..batch.len() {
            out.add_header(at, &self.header, VERSION.as_bytes());
            out.add_header(at, &self.padding_header, PADDING);
        }
        Ok(())
    }
}
