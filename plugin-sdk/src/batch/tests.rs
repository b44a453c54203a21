use super::*;
use crate::verdict::headers_item;

#[test]
fn the_worked_example_of_the_contract() {
    let batch = Batch::new(2, Fields::KEY, &[1, 0x8000_0001], &[0x61]).unwrap();
    let keys: Vec<_> = batch.records().map(|record| record.key()).collect();
    assert_eq!(keys, [Some(b"a".as_slice()), None]);
}

#[test]
fn all_fields_lie_in_their_order() {
    let headers = headers_item(&[("n", Some(b"1")), ("empty", Some(b"")), ("null", None)]);
    let length = u32::try_from(headers.len()).unwrap();
    let index = [1, 1, 1, 1 | NULL, length, length, 3, 6];
    let timestamps = [1_i64.to_le_bytes(), (-2_i64).to_le_bytes()].concat();
    let offsets = [7_u64.to_le_bytes(), 8_u64.to_le_bytes()].concat();
    let data = [b"kv".to_vec(), headers, b"a/ba/b".to_vec(), timestamps, offsets].concat();

    let batch = Batch::new(2, Fields::all(), &index, &data).unwrap().at(9, 10);
    let first = batch.record(0).unwrap();
    assert_eq!((first.key(), first.value()), (Some(b"k".as_slice()), Some(b"v".as_slice())));
    let expected = [("n", Some(b"1".as_slice())), ("empty", Some(b"")), ("null", None)];
    assert_eq!(first.headers().collect::<Vec<_>>(), expected);
    assert_eq!(first.headers().find("null"), Some(None));
    assert_eq!(first.headers().find("absent"), None);
    assert_eq!((first.topic(), first.timestamp_ms(), first.offset()), ("a/b", 1, 7));
    let second = batch.record(1).unwrap();
    assert_eq!((second.key(), second.value(), second.headers().count()), (Some(b"".as_slice()), None, 0));
    assert_eq!((second.timestamp_ms(), second.offset(), second.at()), (-2, 8, 1));
    assert_eq!((batch.generation(), batch.now_ms(), batch.len()), (9, 10, 2));
    assert!(batch.record(2).is_none());
}

#[test]
fn a_frame_that_does_not_hold_its_fields_is_refused() {
    for (index, data) in [(&[1_u32][..], &b"a"[..]), (&[1, 5], b"a"), (&[1, 1, 1], b"a"), (&[1, 1], b"ab")] {
        assert!(Batch::new(2, Fields::KEY, index, data).is_err(), "{index:?} {data:?}");
    }
    assert!(Batch::new(1, Fields::OFFSET, &[], &[0; 7]).is_err());
}

#[test]
fn cut_headers_end_and_never_panic() {
    let whole = headers_item(&[("name", Some(b"value")), ("other", None)]);
    for cut in 0..whole.len() {
        assert!(Headers::new(&whole[..cut]).count() < 2);
    }
    assert_eq!(Headers::new(&whole).count(), 2);
}

#[test]
fn reading_an_unasked_field_names_it() {
    let caught = std::panic::catch_unwind(|| {
        let batch = Batch::new(1, Fields::KEY, &[1], b"a").unwrap();
        batch.record(0).unwrap().value().is_some()
    });
    let message = *caught.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("`value`"), "{message}");
}

#[test]
fn a_needle_across_two_items_is_no_hit() {
    let column = Column::new(&[2, 4, 4 | NULL, 8], b"xaaxaaya");
    assert_eq!(column.containing(b"aa"), [3]);
    assert_eq!(column.containing(b"x"), [0, 1]);
    assert_eq!(column.iter().collect::<Vec<_>>(), [Some(&b"xa"[..]), Some(b"ax"), None, Some(b"aaya")]);
    assert_eq!(column.at(4), Some(3));
}

#[test]
fn items_that_start_with_a_prefix_are_those_of_the_plain_search() {
    let words = ["", "u", "user-", "user-1", "user-12345678", "item-1", "use", "user+", "user-1234567"];
    for count in [0, 1, 7, 8, 9, 40] {
        let items: Vec<Option<&str>> =
            (0..count).map(|i| if i % 6 == 5 { None } else { Some(words[i * 7 % words.len()]) }).collect();
        let mut bytes = Vec::new();
        let ends: Vec<u32> = items
            .iter()
            .map(|item| {
                bytes.extend_from_slice(item.unwrap_or_default().as_bytes());
                u32::try_from(bytes.len()).unwrap() | if item.is_none() { 1 << 31 } else { 0 }
            })
            .collect();
        for prefix in words {
            let plain: Vec<u32> = (0..)
                .zip(&items)
                .filter(|(_, item)| item.is_some_and(|item| item.starts_with(prefix)))
                .map(|(at, _)| at)
                .collect();
            assert_eq!(Column::new(&ends, &bytes).starting_with(prefix.as_bytes()), plain, "{prefix:?} in {items:?}");
        }
    }
}
