//! The validator against answers that no guest would think of.

#![allow(clippy::cast_possible_truncation, reason = "random numbers: which of their bits are kept does not matter")]

use std::sync::Arc;

use tidegate_protocol::{
    batch::{BatchBody, BatchBuilder},
    limits::Limits,
    record::{RecordView, headers},
};

use super::*;
use crate::hooks::{abi::Edit, topics::Topics};

/// A small generator of the SplitMix kind: the same numbers for the same seed, everywhere.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
    fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() % u64::from(bound.max(1))).unwrap()
    }
    /// Mostly small, sometimes anything.
    fn number(&mut self, bound: u32) -> u32 {
        match self.below(150) {
            0 => u32::MAX,
            1 => self.next() as u32,
            2 => bound,
            _ => self.below(bound),
        }
    }
    fn list<T>(&mut self, max: u32, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.below(max + 1);
        (0..count).map(|_| item(self)).collect()
    }
}

const WORDS: [&[u8]; 12] = [
    b"b",
    b"a/b",
    b"h",
    b"tidegate-ok",
    b"x",
    b"tidegate-x",
    b"bad//topic",
    b"$sys/x",
    b"\xff",
    b"\x01\0\x01\0\x01\0\0\0hx",
    b"",
    b"long value",
];

fn edit(numbers: &mut Numbers, records: u32) -> Edit {
    let mut at = numbers.list(4, |n| n.number(records));
    if numbers.below(5) > 0 {
        at.sort_unstable();
    }
    let count = at.len();
    let extra = usize::from(numbers.below(30) == 0);
    let strings = numbers.list(10, |n| WORDS[(n.below(12) * n.below(12) / 11) as usize]);
    let mut string_ends = Vec::new();
    let mut string_data = Vec::new();
    for word in &strings {
        string_data.extend_from_slice(word);
        string_ends.push(u32::try_from(string_data.len()).unwrap());
    }
    if numbers.below(25) == 0 {
        string_ends.push(numbers.number(50));
    }
    let known = u32::try_from(string_ends.len()).unwrap();
    Edit {
        op: (0..count + extra).map(|_| numbers.number(7) as u8).collect(),
        arg: (0..count).map(|_| numbers.number(known)).collect(),
        at,
        rejections: numbers.list(3, |n| abi::Rejection {
            code: n.next() as u16,
            retry_after_ms: n.next() as u32,
            reason: n.number(known),
        }),
        emissions: numbers.list(3, |n| abi::Emission {
            origin: n.number(records),
            topic: n.number(known),
            key: n.number(known),
            value: n.number(known),
            headers: n.number(known),
        }),
        string_ends,
        string_data,
    }
}

fn body(numbers: &mut Numbers) -> BatchBody {
    let mut builder = BatchBuilder::new();
    for i in 0..numbers.below(6) + 1 {
        let key = [b'k', b'0' + u8::try_from(i).unwrap()];
        let item: &[u8] = if numbers.below(2) == 0 { &[] } else { b"\x01\0\x01\0\xff\xff\xff\xffh" };
        let key = (numbers.below(4) > 0).then_some(&key[..]);
        builder.push(
            if numbers.below(2) == 0 { "a" } else { "b" },
            RecordView { key, value: Some(b"v"), headers: item, timestamp_ms: 5 },
        );
    }
    BatchBody::parse(builder.finish(), &Limits::default()).unwrap()
}

fn limits() -> Limits {
    Limits {
        record_bytes_max: 40,
        key_bytes_max: 6,
        headers_max: 2,
        headers_bytes_max: 30,
        batch_records_max: 9,
        ..Limits::default()
    }
}

/// Every live record keeps all rules, whatever was answered.
fn assert_valid(work: &Work, limits: &Limits) {
    let view = work.view();
    assert!(work.len() <= limits.batch_records_max);
    let mut last = None;
    for (number, row) in (0..).zip(work.rows().unwrap_or_default()) {
        assert!(row.at < work.body().len());
        assert!(row.emitted || last < Some(row.at), "the client's order");
        last = if row.emitted { last } else { Some(row.at) };
        let topic = view.topic(number);
        assert!(TopicName::parse(topic).is_ok_and(|topic| !topic.is_reserved()), "{topic}");
        assert!(row.topic == row.first_topic || ["a/b", "b", "a"].contains(&topic), "only granted: {topic}");
        if row.patch.is_none() {
            continue;
        }
        let (key, value) = (view.key(number).unwrap_or_default(), view.value(number).unwrap_or_default());
        let item = view.headers(number);
        assert!(key.len() <= limits.key_bytes_max as usize);
        assert!(key.len() + value.len() + item.len() <= limits.record_bytes_max as usize);
        let all: Vec<_> = headers(item).map(|header| header.unwrap()).collect();
        assert!(all.len() <= limits.headers_max as usize);
        assert!(all.iter().all(|(name, _)| !name.is_empty() && *name != "tidegate-x"));
    }
}

#[test]
fn random_verdicts_never_panic_and_never_yield_an_invalid_record() {
    let grants: Vec<String> =
        ["route:b", "route:a/*", "emit:b", "emit:a/*", "header:tidegate-ok"].map(Into::into).into();
    let grants = Grants::parse(&grants).unwrap();
    let (topics, limits, plugin) = (Topics::default(), limits(), Arc::from("p"));
    let (mut passed, mut failed) = (0, 0);
    for seed in 0..60_000 {
        let mut numbers = Numbers(seed);
        let body = body(&mut numbers);
        let plans = body.topics().map(|name| topics.plan(name).unwrap()).collect();
        let mut work = Work::new(body, plans);
        // Two verdicts in a row, the second on what the first left, now and then on some records only.
        for hook in [Hook::Produce, if seed % 4 == 0 { Hook::Fetch } else { Hook::Produce }] {
            let rules = Rules {
                hook,
                plugin: &plugin,
                grants: &grants,
                limits: &limits,
                topics: &topics,
                output_bytes_max: 400,
            };
            let all = Selection::All(work.len());
            let some = all.pick(&(0..work.len()).step_by(2).collect::<Vec<_>>()).unwrap();
            let selection = if seed % 3 == 0 { some } else { all };
            if selection.len() == 0 {
                break;
            }
            let verdict = match seed % 50 {
                0 => abi::Verdict::DropAll,
                1 => abi::Verdict::RejectAll(abi::Refusal {
                    code: 1,
                    retry_after_ms: 2,
                    reason: "ü".repeat(seed as usize % 300),
                }),
                _ => abi::Verdict::Edit(edit(&mut numbers, selection.len())),
            };
            match check(verdict, &work, &selection, &rules) {
                Ok(plan) => {
                    passed += 1;
                    work.apply(&selection, *plan.expect("no verdict here is a plain pass"));
                    assert_valid(&work, &limits);
                    assert!(work.refused().all(|(at, refusal)| at < work.body().len() && refusal.reason.len() <= 256));
                }
                Err(_) => failed += 1,
            }
        }
    }
    assert!(passed > 10_000 && failed > 10_000, "both ways are taken: {passed} passed, {failed} failed");
}

#[test]
fn topics_that_all_records_left_do_not_count() {
    let mut builder = BatchBuilder::new();
    for i in 0..1000 {
        builder.push(&format!("in/{i}"), RecordView { key: None, value: None, headers: &[], timestamp_ms: 0 });
    }
    let body = BatchBody::parse(builder.finish(), &Limits::default()).unwrap();
    let topics = Topics::default();
    let plans = body.topics().map(|name| topics.plan(name).unwrap()).collect();
    let work = Work::new(body, plans);
    let mut edit = Edit::default();
    for i in 0..1000_u32 {
        edit.at.push(i);
        edit.op.push(OP_ROUTE);
        edit.arg.push(i);
        edit.string_data.extend_from_slice(format!("out/{i}").as_bytes());
        edit.string_ends.push(u32::try_from(edit.string_data.len()).unwrap());
    }
    let grants = Grants::parse(&["route:out/*".to_owned(), "emit:more/*".to_owned()]).unwrap();
    let (limits, plugin) = (Limits::default(), Arc::from("p"));
    let rules = Rules {
        hook: Hook::Produce,
        plugin: &plugin,
        grants: &grants,
        limits: &limits,
        topics: &topics,
        output_bytes_max: 1 << 20,
    };
    check(abi::Verdict::Edit(edit.clone()), &work, &Selection::All(1000), &rules).unwrap();
    for i in 0..25_u32 {
        edit.emissions.push(abi::Emission {
            origin: 0,
            topic: 1000 + i,
            key: abi::NONE,
            value: abi::NONE,
            headers: abi::NONE,
        });
        edit.string_data.extend_from_slice(format!("more/{i}").as_bytes());
        edit.string_ends.push(u32::try_from(edit.string_data.len()).unwrap());
    }
    let error = check(abi::Verdict::Edit(edit), &work, &Selection::All(1000), &rules).unwrap_err();
    assert_eq!(error, BadVerdict::Limit { what: "topics of the batch", actual: 1025, max: 1024 });
}
