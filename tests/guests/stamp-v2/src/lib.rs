//! Stamps every record with version 2 of itself: the new side of a swap under load. The code is that of version 1.

#[path = "../../stamp-v1/src/stamp.rs"]
mod stamp;

pub use stamp::Stamp;

/// The value of the header.
const VERSION: &str = "2";
/// The value of the second header: longer than that of version 1.
const PADDING: &[u8] = b"22222222222222222222222222222222";

tidegate_plugin::export!(Stamp);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin::testing::{Harness, Record};

    #[test]
    fn every_record_carries_the_version() {
        let run = Harness::<Stamp>::new("{}").unwrap().produce(&[Record::new("a")]).unwrap();
        let record = run.fates[0].kept().unwrap();
        assert_eq!(record.header_text("stamp"), Some(VERSION));
        assert_eq!(record.header_text("stamp-padding").map(str::as_bytes), Some(PADDING));
    }
}
