//! The rules of names and patterns, in tables.
#![allow(clippy::cast_possible_truncation, clippy::type_complexity, reason = "tables of cases; numbers cut on purpose")]

use super::*;
use crate::testing::Random;

fn name(text: &str) -> Result<TopicName, TopicError> {
    TopicName::parse(text)
}

fn pattern(text: &str) -> TopicPattern {
    TopicPattern::parse(text).unwrap()
}

#[test]
fn names_that_stand() {
    let long_level = "a".repeat(64);
    let long_name = vec!["a".repeat(49); 5].join("/"); // 249 bytes
    let deep = vec!["l"; 16].join("/");
    for text in [
        "orders",
        "orders/eu/created",
        "A-z_0~9",
        "a%2Eb",
        "%C3%A4",
        "%24x",
        "$sys/topics",
        "$dead",
        "$dead/orders/eu",
        "a/$b/c",
        &long_level,
        &long_name,
        &format!("$dead/{long_name}"),
        &deep,
        &format!("$dead/{deep}"),
    ] {
        assert_eq!(name(text).unwrap().as_str(), text);
        assert!(pattern(text).is_literal());
        assert!(pattern(text).matches(text));
        assert_eq!(pattern(text).as_name(), name(text).ok());
    }
    assert!(name("$sys/topics").unwrap().is_reserved() && name("a/$b/c").unwrap().is_reserved());
    assert!(!name("a/b").unwrap().is_reserved() && !name("%24x").unwrap().is_reserved());
}

#[test]
fn names_that_do_not() {
    let cases = [
        ("", "empty"),
        ("$dead/", "empty"),
        ("/a", "empty level"),
        ("a/", "empty level"),
        ("a//b", "empty level"),
        ("a.b", "outside"),
        ("a b", "outside"),
        ("ä", "outside"),
        ("a\0", "outside"),
        ("a$b", "`$`"),
        ("$", "alone"),
        ("a/$", "alone"),
        ("$$a", "`$`"),
        ("a*", "wildcard"),
        ("a/>", "wildcard"),
        ("a%", "hex"),
        ("a%2", "hex"),
        ("a%2e", "hex"),
        ("a%GG", "hex"),
        ("%41", "one spelling"),
        ("%7E", "one spelling"),
        (&"a".repeat(65), "64"),
        (&vec!["l"; 17].join("/"), "16"),
        (&vec!["a".repeat(49); 6].join("/"), "249"),
        (&format!("$dead/{}", vec!["l"; 17].join("/")), "16"),
    ];
    for (text, reason) in cases {
        let error = name(text).unwrap_err();
        assert!(error.reason.contains(reason), "{text:?}: {}", error.reason);
    }
    let error = name(&"ä".repeat(1_000)).unwrap_err();
    assert!(error.name.len() <= 300);
}

#[test]
fn patterns_that_do_not_stand() {
    for (text, reason) in [
        ("", "empty"),
        (">/a", "end"),
        ("a/>/b", "end"),
        ("a>", "wildcard"),
        ("a*b", "wildcard"),
        ("*a", "wildcard"),
        ("**", "wildcard"),
        ("$*", "reserved"),
        ("$sy*", "reserved"),
        ("$sys/*", "reserved"),
        ("$sys/>", "reserved"),
        ("*/$x", "reserved"),
        ("$dead/$x/*", "reserved"),
        ("a%2*", "hex"),
        ("a//*", "empty level"),
    ] {
        let error = TopicPattern::parse(text).unwrap_err();
        assert!(error.reason.contains(reason), "{text:?}: {}", error.reason);
    }
}

#[test]
fn what_patterns_match() {
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("a/b", &["a/b"], &["a", "a/b/c", "a/c"]),
        ("*", &["a", "%2E"], &["a/b", "$sys", "$dead", ""]),
        (">", &["a", "a/b", "a/b/c"], &["$sys/topics", "$dead/a", "a/$b", "a/$b/c", ""]),
        ("a/>", &["a/b", "a/b/c"], &["a", "b/a", "a/$b", "a/b/$c"]),
        ("a/*", &["a/b"], &["a", "a/b/c", "a/$b"]),
        ("orders/*/created", &["orders/eu/created"], &["orders/created", "orders/eu/x/created", "orders/$e/created"]),
        ("red*", &["red", "redis", "red-1"], &["re", "blue", "red/a", "Red"]),
        ("a/red*/>", &["a/red/x", "a/redis/x/y"], &["a/red", "a/x/y"]),
        ("$dead/>", &["$dead/a", "$dead/a/b"], &["$dead", "a/b", "$dead/$x", "$other/a"]),
        ("$dead/*", &["$dead/a"], &["$dead/a/b", "$dead"]),
        ("$dead/orders/re*", &["$dead/orders/red"], &["orders/red"]),
        ("$sys/topics", &["$sys/topics"], &["$sys/tenants"]),
    ];
    for (text, matched, others) in cases {
        let pattern = pattern(text);
        for topic in *matched {
            assert!(pattern.matches(topic), "{text} must match {topic:?}");
        }
        for topic in *others {
            assert!(!pattern.matches(topic), "{text} must not match {topic:?}");
        }
    }
}

#[test]
fn what_patterns_cover() {
    for (mine, theirs, covered) in [
        ("a/b", "a/b", true),
        ("a/b", "a/*", false),
        ("a/*", "a/b", true),
        ("a/*", "a/*", true),
        ("a/*", "a/b*", true),
        ("a/*", "a/>", false),
        ("a/*", "a", false),
        ("a/>", "a/*", true),
        ("a/>", "a/>", true),
        ("a/>", "a/*/>", true),
        ("a/>", "a/b/c/d", true),
        ("a/>", "a", false),
        ("a/*/>", "a/>", false),
        (">", "*", true),
        (">", "a/*/c", true),
        (">", "$sys/topics", false),
        (">", "a/$b", false),
        (">", "$dead/>", false),
        ("*", "$dead", false),
        ("red*", "red*", true),
        ("red*", "redis*", true),
        ("redis*", "red*", false),
        ("red*", "red", true),
        ("red*", "*", false),
        ("$dead/>", "$dead/a/*", true),
        ("$dead/>", "$dead/a/>", true),
        ("$dead/>", "$dead", false),
        ("$dead/*", "$dead/a", true),
        ("$sys/topics", "$sys/topics", true),
    ] {
        assert_eq!(pattern(mine).covers(&pattern(theirs)), covered, "{mine} over {theirs}");
    }
}

/// Against all names over a small alphabet: what is covered is never matched by the covered alone.
#[test]
fn covers_keeps_its_word_on_every_small_name() {
    let levels = ["a", "ab", "b", "$a", "$dead"];
    let mut names: Vec<String> = levels.iter().map(ToString::to_string).collect();
    for _ in 0..2 {
        let longer = names.iter().flat_map(|name| levels.map(|level| format!("{name}/{level}")));
        names = names.iter().cloned().chain(longer).collect();
        names.sort();
        names.dedup();
    }
    let parts = ["a", "ab", "a*", "b", "*", ">", "$a", "$dead"];
    let mut random = Random::new(11);
    let patterns: Vec<TopicPattern> = (0..3_000)
        .filter_map(|_| {
            let text = (0..1 + random.below(3)).map(|_| parts[random.below(8) as usize]).collect::<Vec<_>>().join("/");
            TopicPattern::parse(&text).ok()
        })
        .collect();
    let (mut covered, mut checked) = (0, 0);
    for pair in patterns.windows(2) {
        let [mine, theirs] = pair else { continue };
        checked += 1;
        if mine.covers(theirs) {
            covered += 1;
            for name in names.iter().filter(|name| theirs.matches(name)) {
                assert!(mine.matches(name), "{mine} covers {theirs}, but not {name}");
            }
        }
    }
    assert!(checked > 500 && covered > 50, "{covered} of {checked}");
}

#[test]
fn noise_never_panics() {
    let alphabet = ["a", "/", "*", ">", "$", "%", "2", "E", "$dead/", "ä", "."];
    for seed in 0..5_000 {
        let mut random = Random::new(seed);
        let text: String = (0..random.below(20)).map(|_| alphabet[random.below(11) as usize]).collect();
        if let Ok(name) = TopicName::parse(&text) {
            assert!(TopicPattern::parse(&text).unwrap().matches(name.as_str()));
        }
        if let Ok(pattern) = TopicPattern::parse(&text) {
            assert!(pattern.covers(&pattern), "{text}");
        }
    }
}
