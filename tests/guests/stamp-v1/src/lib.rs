//! Stamps every record with version 1 of itself: the old side of a swap under load. Version 2 is its neighbour.

mod stamp;

pub use stamp::Stamp;

/// The value of the header.
const VERSION: &str = "1";
/// The value of the second header: the versions differ in length, so that offsets into a batch change too.
const PADDING: &[u8] = b"11111111";

tidegate_plugin::export!(Stamp);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin::testing::{Harness, Record};

    #[test]
    fn every_record_carries_the_version() {
        let mut plugin = Harness::<Stamp>::new(r#"{"header": "by"}"#).unwrap();
        let run = plugin.produce(&[Record::new("a"), Record::new("b").header("x", "y")]).unwrap();
        assert_eq!(run.fates.len(), 2);
        for fate in &run.fates {
            let record = fate.kept().unwrap();
            assert_eq!(record.header_text("by"), Some(VERSION));
            assert_eq!(record.header_text("by-padding").map(str::as_bytes), Some(PADDING));
        }
    }

    #[test]
    fn the_header_is_stamp_unless_named() {
        let run = Harness::<Stamp>::new("{}").unwrap().produce(&[Record::new("a")]).unwrap();
        assert_eq!(run.fates[0].kept().unwrap().header_text("stamp"), Some(VERSION));
    }
}
