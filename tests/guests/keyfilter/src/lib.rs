//! Drops the records whose key starts with a prefix: the cheapest filter that looks at anything. The benchmarks use it.

use tidegate_plugin::{Batch, Failure, Manifest, Needs, Plugin, Settings, Verdict};

/// The prefix is the settings' only member: `{"prefix":"user-"}`.
#[derive(Debug)]
pub struct KeyFilter {
    prefix: Vec<u8>,
}

impl Plugin for KeyFilter {
    const MANIFEST: Manifest = Manifest::new("keyfilter", env!("CARGO_PKG_VERSION")).produces().pure().judges_singly();

    fn new(settings: &Settings) -> Result<Self, Failure> {
        let wrong = || Failure::permanent("settings: {\"prefix\":\"TEXT\"} is needed");
        let text = settings.json().trim().strip_prefix("{\"prefix\":\"").and_then(|rest| rest.strip_suffix("\"}"));
        Ok(Self { prefix: text.ok_or_else(wrong)?.as_bytes().to_vec() })
    }

    fn needs(&self) -> Needs {
        Needs::produce(tidegate_plugin::Fields::KEY)
    }

    fn on_produce(&mut self, batch: &Batch<'_>, out: &mut Verdict) -> Result<(), Failure> {
        for at in batch.keys().starting_with(&self.prefix) {
            out.drop(at);
        }
        Ok(())
    }
}

tidegate_plugin::export!(KeyFilter);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin::testing::{Harness, Record};

    #[test]
    fn drops_by_prefix() {
        let mut plugin = Harness::<KeyFilter>::new("{\"prefix\":\"user-\"}").unwrap();
        let verdict = plugin.produce(&[Record::new("a").key("user-1"), Record::new("a").key("other")]).unwrap();
        assert!(verdict.fates[0].kept().is_none());
        assert!(verdict.fates[1].kept().is_some());
    }
}
