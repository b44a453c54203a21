//! A first filter: drops test traffic by key, and rejects orders without a total.

use tidegate_plugin::{Batch, Failure, Fields, Manifest, Needs, Plugin, Settings, Verdict, kernels};

/// The plugin.
#[derive(Debug)]
pub struct FirstFilter;

impl Plugin for FirstFilter {
    const MANIFEST: Manifest = Manifest::new("first-filter", "0.1.0").produces().pure().judges_singly();

    fn new(_: &Settings) -> Result<Self, Failure> {
        Ok(Self)
    }

    fn needs(&self) -> Needs {
        Needs::produce(Fields::KEY | Fields::VALUE)
    }

    fn on_produce(&mut self, batch: &Batch<'_>, out: &mut Verdict) -> Result<(), Failure> {
        for record in batch.records() {
            if record.key().is_some_and(|key| key.starts_with(b"test-")) {
                out.drop(record.at());
            } else if record.value().is_some_and(|value| !kernels::contains(value, b"\"total\":")) {
                out.reject(record.at(), 1, "an order has a total");
            }
        }
        Ok(())
    }
}

tidegate_plugin::export!(FirstFilter);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin::testing::{Fate, Harness, Record};

    #[test]
    fn test_traffic_goes_and_an_order_has_a_total() {
        let order = |key: &str, value: &str| Record::new("orders").key(key).value(value);
        let good = order("4711", r#"{"total":12}"#);
        let records = [order("test-1", "{}"), order("4712", "{}"), good.clone()];
        let run = Harness::<FirstFilter>::new("{}").unwrap().produce(&records).unwrap();
        assert_eq!(run.fates[0], Fate::Dropped);
        assert_eq!(run.fates[1].reason(), Some("an order has a total"));
        assert_eq!(run.fates[2], Fate::Kept(good));
    }
}
