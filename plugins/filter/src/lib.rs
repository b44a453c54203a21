//! Keeps or refuses records by a CEL expression: `value.event == "push" && !headers.contains("x-test")`.
//!
//! `expression` compiles and checks it and tells which fields it reads, `values` makes CEL values of a record,
//! and this file turns the answer into a verdict. `README.md` is what an operator reads.

mod expression;
mod values;

use serde::Deserialize;
use tidegate_plugin::{Batch, Failure, Manifest, Needs, Plugin, Settings, Verdict};

use crate::expression::{Expression, Unjudged};

/// Code of a record for which the expression is false.
pub const FALSE: u16 = 1;
/// Code of a record for which the expression has no answer.
pub const UNJUDGED: u16 = 2;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    expression: String,
    #[serde(default)]
    on_false: OnFalse,
    #[serde(default)]
    on_error: OnError,
}

/// What becomes of a record for which the expression is false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnFalse {
    #[default]
    Drop,
    Reject,
}

/// What becomes of a record for which the expression has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnError {
    #[default]
    Reject,
    Drop,
    Pass,
}

/// The plugin; see the crate.
#[derive(Debug)]
pub struct Filter {
    expression: Expression,
    on_false: OnFalse,
    on_error: OnError,
}

impl Plugin for Filter {
    const MANIFEST: Manifest = Manifest::new("filter", env!("CARGO_PKG_VERSION"))
        .produces()
        .pure()
        .judges_singly()
        .settings_schema(include_str!("../settings.schema.json"));

    fn new(settings: &Settings) -> Result<Self, Failure> {
        let options: Options =
            serde_json::from_str(settings.json()).map_err(|error| Failure::permanent(format!("settings: {error}")))?;
        let expression = Expression::compile(&options.expression)
            .map_err(|error| Failure::permanent(format!("expression: {error}")))?;
        Ok(Self { expression, on_false: options.on_false, on_error: options.on_error })
    }

    fn needs(&self) -> Needs {
        Needs::produce(self.expression.fields())
    }

    fn on_produce(&mut self, batch: &Batch<'_>, out: &mut Verdict) -> Result<(), Failure> {
        let mut judge = self.expression.judge();
        for record in batch.records() {
            let at = record.at();
            match judge.holds(record) {
                Ok(true) => {}
                Ok(false) => match self.on_false {
                    OnFalse::Drop => out.drop(at),
                    OnFalse::Reject => out.reject(at, FALSE, "the filter's expression is false"),
                },
                Err(unjudged) => self.unjudged(at, &unjudged, out),
            }
        }
        Ok(())
    }
}

impl Filter {
    fn unjudged(&self, at: u32, unjudged: &Unjudged, out: &mut Verdict) {
        match self.on_error {
            OnError::Reject => out.reject(at, UNJUDGED, &unjudged.to_string()),
            OnError::Drop => out.drop(at),
            OnError::Pass => {}
        }
    }
}

tidegate_plugin::export!(Filter);

#[cfg(test)]
mod tests;
