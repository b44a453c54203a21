//! Golden bytes, round trips and damage of cursors.
#![allow(
    clippy::cast_possible_truncation,
    clippy::string_slice,
    reason = "tests cut numbers on purpose and see what fails"
)]

use super::*;
use crate::testing::{Random, cuts, golden, mutants};

const GOLDEN: [(&str, &str, Cursor); 2] = [
    (
        include_str!("../../tests/golden/cursor_shard_v1.hex"),
        "AQEAAOwDAAAAAAAAjF1CdQ",
        Cursor::Shard { shard: 0, next_lsn: 1_004 },
    ),
    (
        include_str!("../../tests/golden/cursor_topic_v1.hex"),
        "AQIQAAAAAAAAAA0AAAAAAAAAnqS5RQ",
        Cursor::Topic { topic_id: 16, next_offset: 13 },
    ),
];

#[test]
fn cursors_have_their_golden_bytes() {
    for (hex, text, cursor) in GOLDEN {
        assert_eq!(cursor.to_bytes(), golden(hex));
        assert_eq!(cursor.to_string(), text);
        assert_eq!(text.parse(), Ok(cursor));
        assert_eq!(Cursor::from_bytes(&golden(hex)), Ok(cursor));
    }
}

#[test]
fn damage_is_an_error() {
    for (hex, text, _) in GOLDEN {
        let bytes = golden(hex);
        assert!(cuts(&bytes).all(|cut| Cursor::from_bytes(&cut).is_err()));
        assert!(mutants(&bytes).all(|(_, mutant)| Cursor::from_bytes(&mutant).is_err()));
        for at in 0..text.len() {
            let mut other = text.to_owned();
            let changed = if &text[at..=at] == "Z" { "y" } else { "Z" };
            other.replace_range(at..=at, changed);
            assert!(other.parse::<Cursor>().is_err(), "{other}");
            assert!(text[..at].parse::<Cursor>().is_err());
        }
        assert!(format!("{text}==").parse::<Cursor>().is_err());
    }
    assert!("A".repeat(1 << 20).parse::<Cursor>().is_err());
}

#[test]
fn any_cursor_is_read_back_and_noise_never_panics() {
    for seed in 0..1_000 {
        let mut random = Random::new(seed);
        let shard = Cursor::Shard { shard: random.next() as u16, next_lsn: random.next() };
        let topic = Cursor::Topic { topic_id: random.next(), next_offset: random.next() };
        for cursor in [shard, topic] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        let noise = random.bytes(40);
        assert!(Cursor::from_bytes(&noise).is_err());
        assert!(String::from_utf8_lossy(&noise).parse::<Cursor>().is_err());
    }
}
