//! Golden bytes, round trips and damage of batch bodies.
#![allow(clippy::cast_possible_truncation, clippy::type_complexity, reason = "tables of cases; numbers cut on purpose")]

use super::*;
use crate::{
    record::{Record, headers},
    testing::{Random, body_of, cuts, golden, mutants},
};

const GOLDEN: &str = include_str!("../../tests/golden/body_v1.hex");
const GOLDEN_EMPTY: &str = include_str!("../../tests/golden/body_empty_v1.hex");

fn parse(bytes: Bytes) -> Result<BatchBody, BodyError> {
    BatchBody::parse(bytes, &Limits::default())
}

pub(crate) fn golden_records() -> Vec<(String, Record)> {
    let header = |name: &str, value: Option<&'static [u8]>| (name.to_owned(), value.map(Bytes::from_static));
    let record = |key: Option<&'static [u8]>, value: Option<&'static [u8]>, headers, timestamp_ms| Record {
        key: key.map(Bytes::from_static),
        value: value.map(Bytes::from_static),
        headers,
        timestamp_ms,
    };
    let (a, dead) = ("a/b".to_owned(), "$dead/a/b".to_owned());
    let two = vec![header("h", Some(b"v")), header("n", None)];
    vec![
        (a.clone(), record(Some(b"k1"), Some(b"one"), two, 1_700_000_000_000)),
        (dead, record(None, Some(b"two"), vec![], -1)),
        (a.clone(), record(Some(b""), Some(b""), vec![], 0)),
        (a, record(Some(b"k1"), None, vec![header("trace", Some(b""))], 1_700_000_000_001)),
    ]
}

#[test]
fn body_has_its_golden_bytes() {
    let mut builder = BatchBuilder::new();
    for (topic, record) in &golden_records() {
        builder.push_record(topic, record).unwrap();
    }
    assert_eq!(builder.encoded_bytes(), golden(GOLDEN).len());
    assert_eq!(builder.finish(), golden(GOLDEN));
    assert_eq!(builder.finish(), golden(GOLDEN_EMPTY), "the builder is empty again");
}

#[test]
fn golden_bytes_are_read() {
    let body = parse(golden(GOLDEN)).unwrap();
    assert_eq!(body.topics().collect::<Vec<_>>(), ["a/b", "$dead/a/b"]);
    let section = |topic, records, first| Section { topic, records, first };
    assert_eq!(body.sections(), [section(0, 1, 0), section(1, 1, 1), section(0, 2, 2)]);
    let first = body.record(0);
    let headers = headers(first.headers).collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(headers, [("h", Some(&b"v"[..])), ("n", None)]);
    assert_eq!((first.key, first.value, first.timestamp_ms), (Some(&b"k1"[..]), Some(&b"one"[..]), 1_700_000_000_000));
    assert_eq!((body.record(1).key, body.record(2).key, body.record(3).value), (None, Some(&b""[..]), None));
    assert_eq!(body.slice(body.record(1).value.unwrap()), "two");
    assert_eq!((0..5).map(|at| body.topic_at(at)).collect::<Vec<_>>(), [Some(0), Some(1), Some(0), Some(0), None]);
    assert_eq!((body.topic(1), body.topic(2)), (Some("$dead/a/b"), None));

    let empty = parse(golden(GOLDEN_EMPTY)).unwrap();
    assert!(empty.is_empty() && empty.records().next().is_none() && empty.topics().next().is_none());
}

#[test]
fn what_is_built_is_read_back() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let records = random.records(1 + seed % 7);
        let body = body_of(&records);
        assert_eq!(body.len() as usize, records.len());
        assert_eq!(body.records().len(), records.len());
        for (at, ((number, view), (topic, record))) in (0_u32..).zip(body.records().zip(&records)) {
            assert_eq!(body.topic(number), Some(topic.as_str()), "seed {seed}");
            assert_eq!(body.topic_at(at), Some(number));
            assert_eq!(view, body.record(at));
            assert_eq!(&view.to_record().unwrap(), record, "seed {seed}");
            assert_eq!(view.bytes(), record.bytes());
        }
        columns_hold_the_records(&body);

        let mut again = BatchBuilder::new();
        for (number, view) in body.records() {
            again.push(body.topic(number).unwrap(), view);
        }
        let again = again.finish_body(&Limits::default()).unwrap();
        assert_eq!(again.bytes(), body.bytes(), "seed {seed}");
    }
}

fn columns_hold_the_records(body: &BatchBody) {
    let ends = |ends: &[u8]| -> Vec<u32> {
        ends.chunks_exact(4).map(|end| u32::from_le_bytes(end.try_into().unwrap())).collect()
    };
    let (key_ends, keys) = body.key_column();
    let (value_ends, values) = body.value_column();
    let (header_ends, items) = body.header_column();
    assert_eq!(body.timestamp_column().len(), body.len() as usize * 8);
    let joined = |part: fn(&RecordView<'_>) -> Vec<u8>| body.records().flat_map(|(_, view)| part(&view)).collect();
    let (all_keys, all_values): (Vec<u8>, Vec<u8>) =
        (joined(|view| view.key.unwrap_or_default().to_vec()), joined(|view| view.value.unwrap_or_default().to_vec()));
    let all_items: Vec<u8> = joined(|view| view.headers.to_vec());
    assert_eq!((keys, values, items), (&all_keys[..], &all_values[..], &all_items[..]));
    for (at, (_, view)) in body.records().enumerate() {
        assert_eq!(ends(key_ends)[at] & NULL != 0, view.key.is_none());
        assert_eq!(ends(value_ends)[at] & NULL != 0, view.value.is_none());
        assert_eq!(ends(header_ends)[at] & NULL, 0);
    }
}

#[test]
fn every_cut_is_an_error() {
    for cut in cuts(&golden(GOLDEN)) {
        assert!(parse(cut).is_err());
    }
    let mut longer = golden(GOLDEN).to_vec();
    longer.push(0);
    assert!(matches!(parse(longer.into()), Err(BodyError::Length { .. })));
}

#[test]
fn every_changed_byte_is_an_error() {
    // The CRC covers all but itself, so nothing may pass.
    for (place, mutant) in mutants(&golden(GOLDEN)) {
        assert!(parse(mutant).is_err(), "byte {place}");
    }
}

/// With the CRC made right again, the layout rules alone must hold whatever an attacker writes.
#[test]
fn a_changed_byte_under_a_right_crc_is_an_error_or_a_sound_body() {
    let (mut taken, mut refused) = (0, 0);
    for (_, mutant) in mutants(&golden(GOLDEN)) {
        match parse(with_crc(mutant.to_vec())) {
            Ok(body) => {
                taken += 1;
                walk(&body);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(taken > 100 && refused > 1_000, "{taken} taken, {refused} refused");
}

#[test]
fn random_bytes_never_panic() {
    for seed in 0..3_000 {
        let mut random = Random::new(seed);
        let noise = random.bytes(200);
        assert!(parse(noise.clone().into()).is_err());
        let mut framed = golden(GOLDEN).to_vec();
        for _ in 0..1 + random.below(6) {
            let place = random.below(framed.len() as u64) as usize;
            framed[place] = random.next() as u8;
        }
        if let Ok(body) = parse(with_crc(framed)) {
            walk(&body);
        }
        let mut header_only = noise;
        header_only.splice(0..0, [1, 0]);
        if header_only.len() >= BODY_HEADER_BYTES
            && let Ok(body) = parse(with_crc(header_only))
        {
            walk(&body);
        }
    }
}

/// Length and CRC made right, so that the rules behind them are reached.
fn with_crc(mut bytes: Vec<u8>) -> Bytes {
    let rest = u32::try_from(bytes.len() - BODY_HEADER_BYTES).unwrap();
    bytes[16..20].copy_from_slice(&rest.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..20]), &bytes[24..]);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    bytes.into()
}

fn walk(body: &BatchBody) {
    assert_eq!(body.records().count(), body.len() as usize);
    for (topic, view) in body.records() {
        assert!(body.topic(topic).is_some());
        assert!(view.to_record().is_ok());
    }
    columns_hold_the_records(body);
}

#[test]
fn limits_name_what_is_too_large() {
    let records = golden_records();
    let body = body_of(&records);
    let tight = |change: fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        let read = BatchBody::parse(body.bytes().clone(), &limits).map(|_| ());
        let mut builder = BatchBuilder::new();
        let built = records.iter().try_for_each(|(topic, record)| {
            builder.check(topic, record, &limits)?;
            builder.push_record(topic, record).unwrap();
            Ok::<_, BodyError>(())
        });
        (read.unwrap_err(), built.unwrap_err())
    };
    let cases: [(fn(&mut Limits), &str, Code); 7] = [
        (|limits| limits.key_bytes_max = 1, "key bytes", Code::RecordTooLarge),
        (|limits| limits.record_bytes_max = 4, "record bytes", Code::RecordTooLarge),
        (|limits| limits.headers_max = 1, "headers of the record", Code::RecordTooLarge),
        (|limits| limits.headers_bytes_max = 16, "headers bytes", Code::RecordTooLarge),
        (|limits| limits.batch_records_max = 3, "records of the batch", Code::BatchTooLarge),
        (|limits| limits.batch_bytes_max = 180, "batch bytes", Code::BatchTooLarge),
        (|limits| limits.batch_bytes_max = 30, "batch bytes", Code::BatchTooLarge),
    ];
    for (change, wanted, code) in cases {
        let (read, built) = tight(change);
        for error in [read, built] {
            assert!(matches!(error, BodyError::Limit { what, .. } if what == wanted), "{wanted}: {error}");
            assert_eq!(error.code(), code);
        }
    }
}

#[test]
fn a_builder_refuses_what_no_reader_would_take() {
    let mut builder = BatchBuilder::new();
    let view = RecordView { key: None, value: None, headers: &[], timestamp_ms: 0 };
    builder.push("no//name", view);
    assert!(matches!(builder.finish_body(&Limits::default()), Err(BodyError::Topic(_))));
    builder.push("a", RecordView { headers: &[1, 0, 3], ..view });
    assert!(matches!(builder.finish_body(&Limits::default()), Err(BodyError::Malformed { .. })));
    builder.push("a", RecordView { value: Some(&[7; 2_000]), ..view });
    let limits = Limits { batch_bytes_max: 1_000, ..Limits::default() };
    assert!(matches!(builder.finish_body(&limits), Err(BodyError::Limit { .. })));
    assert!(builder.is_empty());
    let record = Record { headers: vec![(String::new(), None)], ..Record::default() };
    assert!(builder.push_record("a", &record).is_err());
    assert_eq!(builder.finish(), golden(GOLDEN_EMPTY), "nothing of the refused ones stays");
}
