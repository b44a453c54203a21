//! Grants that a plugin says it needs, beside those that its imports show.
//!
//! `route`, `emit` and `header` are no imports: without its grant such a plugin loads, and fails with the first record. So the
//! settings schema of its manifest may say what it needs, as the keyword `x-tidegate-grants`:
//!
//! ```json
//! "x-tidegate-grants": [
//!   { "grant": "route:PATTERN" },
//!   { "grant": "header:tidegate-invalid", "if": { "mode": "flag" } }
//! ]
//! ```
//!
//! An entry counts if every setting under `if` has that value; one that is not set has its `default` of the schema.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Plugin, grants::Grants};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Schema {
    #[serde(rename = "x-tidegate-grants")]
    grants: Vec<Need>,
    properties: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct Need {
    grant: String,
    #[serde(default, rename = "if")]
    when: Map<String, Value>,
}

impl Plugin {
    /// Grants that the plugin needs under its settings and does not have, as they would stand in `plugins.toml`.
    pub fn grants_missing(&self) -> Vec<String> {
        missing(&self.manifest.settings_schema, &self.spec.settings, &self.grants)
    }
}

/// It is advice: a schema that cannot be read asks for nothing.
fn missing(schema: &str, settings: &str, grants: &Grants) -> Vec<String> {
    let schema: Schema = serde_json::from_str(schema).unwrap_or_default();
    let settings: Map<String, Value> = serde_json::from_str(settings).unwrap_or_default();
    let value = |name: &str| settings.get(name).or_else(|| schema.properties.get(name)?.get("default"));
    let counts = |need: &&Need| need.when.iter().all(|(name, wanted)| value(name) == Some(wanted));
    let needed = schema.grants.iter().filter(counts).map(|need| &need.grant);
    needed.filter(|grant| !grants.has(grant)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r#"{
        "properties": { "mode": { "default": "enforce" }, "stamp": { "default": true } },
        "x-tidegate-grants": [
            { "grant": "route:PATTERN" },
            { "grant": "header:tidegate-invalid", "if": { "mode": "flag" } },
            { "grant": "header:tidegate-schema", "if": { "stamp": true } },
            { "grant": "of-a-later-version" }
        ]
    }"#;

    fn missing_with(settings: &str, grants: &[&str]) -> Vec<String> {
        let grants: Vec<String> = grants.iter().map(|grant| (*grant).to_owned()).collect();
        missing(SCHEMA, settings, &Grants::parse(&grants).unwrap())
    }

    #[test]
    fn what_settings_and_defaults_ask_for_and_was_not_given() {
        assert_eq!(missing_with("{}", &[]), ["route:PATTERN", "header:tidegate-schema"]);
        assert_eq!(missing_with("{}", &["route:a/*", "header:tidegate-schema"]), [""; 0]);
        assert_eq!(missing_with(r#"{"stamp":false}"#, &["route:a/*"]), [""; 0]);
        assert_eq!(missing_with(r#"{"stamp":false,"mode":"flag"}"#, &["route:>"]), ["header:tidegate-invalid"]);
    }

    #[test]
    fn a_schema_that_says_nothing_asks_for_nothing() {
        for schema in ["", "{}", "[1]", r#"{"x-tidegate-grants": 3}"#] {
            assert_eq!(missing(schema, "{}", &Grants::default()), [""; 0], "{schema}");
        }
    }
}
