//! Passes every batch without reading a field: what a call itself costs.

use tidegate_plugin::{Failure, Manifest, Needs, Plugin, Settings};

/// See the crate.
#[derive(Debug)]
pub struct Noop;

impl Plugin for Noop {
    const MANIFEST: Manifest =
        Manifest::new("noop", env!("CARGO_PKG_VERSION")).produces().fetches().pure().judges_singly();

    fn new(_: &Settings) -> Result<Self, Failure> {
        Ok(Self)
    }

    fn needs(&self) -> Needs {
        Needs::none()
    }
}

tidegate_plugin::export!(Noop);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin::testing::{Harness, Record};

    #[test]
    fn passes() {
        let mut plugin = Harness::<Noop>::new("{}").unwrap();
        assert!(plugin.produce(&[Record::new("a").key("k")]).unwrap().passed);
    }
}
