//! Headers items: round trip, cut, noise.
#![allow(clippy::type_complexity, reason = "tables of cases; numbers cut on purpose")]

use super::*;
use crate::testing::Random;

fn read(item: &[u8]) -> Result<Vec<(String, Option<Vec<u8>>)>, HeadersError> {
    headers(item).map(|header| header.map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)))).collect()
}

#[test]
fn headers_are_read_back() {
    for seed in 0..200 {
        let record = Random::new(seed).record();
        let mut item = vec![9];
        record.encode_headers(&mut item).unwrap();
        assert_eq!(item.len(), 1 + record.headers_bytes());
        let wanted: Vec<_> = record
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.as_ref().map(|value| value.to_vec())))
            .collect();
        assert_eq!(read(&item[1..]), Ok(wanted));
        for end in 2..item.len() {
            assert!(read(&item[1..end]).is_err(), "seed {seed}, cut at {end}");
        }
        if item.len() > 1 {
            item.push(0);
            assert_eq!(read(&item[1..]), Err(HeadersError::Length { length: item.len() - 1 }));
        }
    }
}

#[test]
fn wrong_items_are_errors() {
    assert_eq!(read(&[]), Ok(vec![]));
    assert_eq!(read(&[0]), Err(HeadersError::Length { length: 1 }));
    assert_eq!(read(&[0, 0]), Err(HeadersError::Length { length: 2 }), "no headers is spelled as an empty item");
    assert_eq!(read(&[1, 0, 0, 0, 0, 0, 0, 0]), Err(HeadersError::Name { index: 0 }));
    assert_eq!(read(&[1, 0, 1, 0, 0, 0, 0, 0, 0xff]), Err(HeadersError::Name { index: 0 }));
    for seed in 0..2_000 {
        let noise = Random::new(seed).bytes(30);
        assert!(headers(&noise).count() <= 30);
    }
}

#[test]
fn what_does_not_fit_leaves_no_trace() {
    let long = "n".repeat(65_536);
    let mut out = vec![1, 2];
    let two = [("fine", None), (long.as_str(), None)];
    assert_eq!(encode_headers(two.into_iter(), &mut out), Err(HeadersError::TooLarge { index: 1 }));
    assert_eq!(encode_headers([("a", None), ("", None)].into_iter(), &mut out), Err(HeadersError::Name { index: 1 }));
    let many = vec![("n", None); 65_536];
    assert_eq!(encode_headers(many.into_iter(), &mut out), Err(HeadersError::TooLarge { index: 65_535 }));
    encode_headers(std::iter::empty(), &mut out).unwrap();
    assert_eq!(out, [1, 2]);
}
