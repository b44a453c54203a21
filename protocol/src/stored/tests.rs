//! Golden bytes, round trips, damage and consistency of stored frames.
#![allow(clippy::cast_possible_truncation, clippy::type_complexity, reason = "tables of cases; numbers cut on purpose")]

use super::*;
use crate::{
    record::Record,
    testing::{Random, body_of, cuts, golden, mutants},
};

const GOLDEN: &str = include_str!("../../tests/golden/frame_v1.hex");
const GOLDEN_EMPTY: &str = include_str!("../../tests/golden/frame_empty_v1.hex");
const GOLDEN_BODY: &str = include_str!("../../tests/golden/body_v1.hex");

fn refused(index: u32, status: RefusedStatus) -> Refused {
    Refused { index, status, code: 0, plugin_code: 0, retry_after_ms: 0, reason: String::new(), plugin: String::new() }
}

fn golden_header() -> FrameHeader {
    FrameHeader {
        shard: 0,
        epoch: 3,
        first_lsn: 1_000,
        broker_time_ms: 1_700_000_000_123,
        generation: 7,
        tenant: 1,
        input_count: 5,
        producer: Some(ProducerStamp { id: 0x1122_3344_5566_7788, epoch: 2, sequence: 41 }),
        topics: vec![TopicStamp { id: 16, base_offset: 10 }, TopicStamp { id: 17, base_offset: 0 }],
        key_versions: vec![1, 0, 300, 2],
        refused: vec![
            Refused { plugin: "filter".to_owned(), ..refused(1, RefusedStatus::Dropped) },
            Refused {
                code: 500,
                plugin_code: 42,
                retry_after_ms: 1_500,
                reason: "pointer /payload: zu groß".to_owned(),
                plugin: "schema".to_owned(),
                ..refused(3, RefusedStatus::Rejected)
            },
        ],
    }
}

fn golden_body() -> BatchBody {
    BatchBody::parse(golden(GOLDEN_BODY), &Limits::default()).unwrap()
}

#[test]
fn frames_have_their_golden_bytes() {
    let frame = StoredFrame::from_parts(golden_header(), Some(golden_body())).unwrap();
    assert_eq!(frame.bytes, golden(GOLDEN));
    let mut joined = encode_header(&golden_header(), golden_body().bytes().len() as u32);
    joined.extend_from_slice(golden_body().bytes());
    assert_eq!(joined, golden(GOLDEN));

    let empty = FrameHeader {
        epoch: 1,
        first_lsn: 5,
        generation: 1,
        tenant: 1,
        input_count: 1,
        producer: Some(ProducerStamp { id: 9, epoch: 0, sequence: 0 }),
        refused: vec![refused(0, RefusedStatus::Dropped)],
        ..FrameHeader::default()
    };
    let frame = StoredFrame::from_parts(empty, None).unwrap();
    assert_eq!(frame.bytes, golden(GOLDEN_EMPTY));
    assert_eq!((frame.lsn_count(), frame.next_lsn(), frame.positions().count()), (1, 6, 0));
}

#[test]
fn golden_bytes_are_read() {
    let frame = StoredFrame::parse(golden(GOLDEN)).unwrap();
    assert_eq!(frame.header, golden_header());
    assert_eq!(frame.body.as_ref().unwrap().bytes(), &golden(GOLDEN_BODY));
    let positions: Vec<_> = frame.positions().collect();
    assert_eq!(positions, [(16, 10, 1), (17, 0, 0), (16, 11, 300), (16, 12, 2)]);
    assert_eq!((frame.lsn_count(), frame.next_lsn(), frame.client_records()), (4, 1_004, 3));
    assert!(StoredFrame::parse(golden(GOLDEN_EMPTY)).unwrap().body.is_none());
}

#[test]
fn the_prefix_tells_the_length() {
    let bytes = golden(GOLDEN);
    for end in 0..16 {
        assert_eq!(frame_bytes(&bytes[..end]), Ok(None));
    }
    assert_eq!(frame_bytes(&bytes[..16]), Ok(Some(bytes.len())));
    assert_eq!(frame_bytes(&bytes), Ok(Some(bytes.len())));
    let mut other = bytes.to_vec();
    other[11] = 0xff;
    assert!(matches!(frame_bytes(&other), Err(FrameError::TooLarge { .. })));
    other[0] = b'X';
    assert!(matches!(frame_bytes(&other), Err(FrameError::Magic(magic)) if magic == *b"XGF1"));
    assert_eq!(frame_bytes(&[b'T', b'G', b'F', b'1', 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Err(FrameError::Version(2)));
    assert!(frame_bytes(&[0; 16]).is_err(), "zeros, what a fresh WAL file holds, are no frame");
}

#[test]
fn random_frames_are_read_back() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (header, body) = random_parts(&mut random);
        let frame = StoredFrame::from_parts(header.clone(), body).unwrap();
        assert_eq!(frame.header, header, "seed {seed}");
        let again = StoredFrame::parse(frame.bytes.clone()).unwrap();
        assert_eq!(again.header, header, "seed {seed}");
        let bodies = [&frame, &again].map(|frame| frame.body.as_ref().map(BatchBody::bytes));
        assert_eq!(bodies[0], bodies[1]);
        assert!(frame.positions().eq(again.positions()));
        let records = frame.body.as_ref().map_or(0, BatchBody::len);
        assert_eq!(frame.positions().count(), records as usize);
    }
}

fn random_parts(random: &mut Random) -> (FrameHeader, Option<BatchBody>) {
    let records: Vec<(String, Record)> = random.records(4);
    let body = if random.one_in(5) { None } else { Some(body_of(&records)) };
    let count = body.as_ref().map_or(0, BatchBody::len);
    let admitted = random.below(u64::from(count) + 1) as u32;
    let mut left = random.below(8) as u32;
    let input_count = admitted + left;
    let mut entries = Vec::new();
    for index in 0..input_count {
        // Each of the indexes left is as likely: the refused ones lie anywhere among the input.
        if random.below(u64::from(input_count - index)) < u64::from(left) {
            left -= 1;
            entries.push(Refused {
                code: random.next() as u16,
                plugin_code: random.next() as u16,
                retry_after_ms: random.next() as u32,
                reason: "ü".repeat(random.below(128) as usize),
                plugin: "p".repeat(random.below(65) as usize),
                ..refused(index, RefusedStatus::try_from(1 + random.below(3) as u8).unwrap())
            });
        }
    }
    let header = FrameHeader {
        shard: random.next() as u16,
        epoch: random.next(),
        first_lsn: random.next() >> 1,
        broker_time_ms: random.next() as i64,
        generation: random.next(),
        tenant: random.next() as u32,
        input_count,
        producer: (!random.one_in(3)).then(|| ProducerStamp {
            id: random.next() | 1,
            epoch: random.next() as u32,
            sequence: random.next(),
        }),
        topics: body.iter().flat_map(BatchBody::topics).map(|_| TopicStamp { id: 3, base_offset: 1 << 40 }).collect(),
        key_versions: (0..count).map(|_| random.next() >> random.below(64)).collect(),
        refused: entries,
    };
    (header, body)
}

#[test]
fn every_cut_and_every_changed_byte_is_an_error() {
    for hex in [GOLDEN, GOLDEN_EMPTY] {
        let bytes = golden(hex);
        for cut in cuts(&bytes) {
            assert!(matches!(StoredFrame::parse(cut), Err(FrameError::Cut { .. })));
        }
        for (place, mutant) in mutants(&bytes) {
            assert!(StoredFrame::parse(mutant).is_err(), "byte {place}");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(StoredFrame::parse(longer.into()).is_err());
    }
}

/// With the header's CRC made right again, the rules alone must hold.
#[test]
fn a_changed_header_under_a_right_crc_is_an_error_or_a_sound_frame() {
    let bytes = golden(GOLDEN);
    let header_bytes = encode_header(&golden_header(), 0).len();
    let (mut taken, mut refused) = (0, 0);
    for (place, mutant) in mutants(&bytes).filter(|(place, _)| *place < header_bytes - 4) {
        match StoredFrame::parse(with_header_crc(mutant.to_vec(), header_bytes)) {
            Ok(frame) => {
                taken += 1;
                assert_eq!(frame.positions().count(), 4, "byte {place}");
                assert_eq!(frame.next_lsn(), frame.header.first_lsn + 4);
                let again = StoredFrame::from_parts(frame.header.clone(), frame.body.clone()).unwrap();
                assert_eq!(again.bytes, frame.bytes, "one header has one spelling");
            }
            Err(_) => refused += 1,
        }
    }
    assert!(taken > 100 && refused > 200, "{taken} taken, {refused} refused");
}

fn with_header_crc(mut bytes: Vec<u8>, header_bytes: usize) -> Bytes {
    let crc = crc32c::crc32c(&bytes[..header_bytes - 4]);
    bytes[header_bytes - 4..header_bytes].copy_from_slice(&crc.to_le_bytes());
    bytes.into()
}

#[test]
fn noise_never_panics() {
    let bytes = golden(GOLDEN);
    let header_bytes = encode_header(&golden_header(), 0).len();
    for seed in 0..5_000 {
        let mut random = Random::new(seed);
        let noise = random.bytes(300);
        assert!(StoredFrame::parse(noise.into()).is_err());
        let mut changed = bytes.to_vec();
        for _ in 0..1 + random.below(8) {
            let place = 16 + random.below(header_bytes as u64 - 20) as usize;
            changed[place] = random.next() as u8;
        }
        if let Ok(frame) = StoredFrame::parse(with_header_crc(changed, header_bytes)) {
            assert_eq!(frame.positions().count(), 4);
        }
    }
}

#[test]
fn header_and_body_must_belong_together() {
    let cases: [(fn(&mut FrameHeader), &str); 9] = [
        (|header| header.topics.truncate(1), "topic stamps"),
        (|header| header.key_versions.push(1), "key versions"),
        (|header| header.key_versions.truncate(3), "key versions"),
        (|header| header.refused[1].index = 1, "ascend"),
        (|header| header.refused[1].index = 5, "input"),
        (|header| header.input_count = 7, "neither"),
        (|header| header.first_lsn = u64::MAX - 2, "LSNs"),
        (|header| header.topics[1].base_offset = u64::MAX, "offsets"),
        (|header| header.refused[0].index = 4, "ascend"),
    ];
    for (change, wanted) in cases {
        let mut header = golden_header();
        change(&mut header);
        let made = StoredFrame::from_parts(header.clone(), Some(golden_body())).unwrap_err();
        assert!(made.to_string().contains(wanted), "{wanted}: {made}");
        let mut bytes = encode_header(&header, golden_body().bytes().len() as u32);
        bytes.extend_from_slice(golden_body().bytes());
        assert!(StoredFrame::parse(bytes.freeze()).is_err(), "{wanted}");
    }
    assert!(StoredFrame::from_parts(golden_header(), None).is_err());
}

#[test]
fn long_reasons_are_cut_at_a_character() {
    let mut header = golden_header();
    header.refused[0].reason = "ß".repeat(200);
    header.refused[0].plugin = format!("{}ß", "p".repeat(63));
    let frame = StoredFrame::from_parts(header, Some(golden_body())).unwrap();
    assert_eq!(frame.header.refused[0].reason, "ß".repeat(128));
    assert_eq!(frame.header.refused[0].plugin, "p".repeat(63));
    assert_eq!(StoredFrame::parse(frame.bytes.clone()).unwrap().header, frame.header);
}

fn rebuilt(head: Bytes, frame: &StoredFrame) -> Result<StoredFrame, FrameError> {
    let records: Vec<_> = frame.body.iter().flat_map(|body| body.records()).map(|(_, record)| record).collect();
    FrameHead::parse(head)?.frame(&records)
}

#[test]
fn a_head_and_its_records_are_the_frame_again_byte_for_byte() {
    for seed in 0..300 {
        let (header, body) = random_parts(&mut Random::new(seed));
        let frame = StoredFrame::from_parts(header, body).unwrap();
        let head = Bytes::copy_from_slice(frame.head_bytes());
        assert_eq!(rebuilt(head.clone(), &frame).unwrap().bytes, frame.bytes, "seed {seed}");
        let head = FrameHead::parse(head).unwrap();
        assert_eq!((head.next_lsn(), head.frame_bytes()), (frame.next_lsn(), frame.bytes.len()), "seed {seed}");
        assert!(head.positions().eq(frame.positions().map(|(topic, offset, _)| (topic, offset))), "seed {seed}");
    }
}

#[test]
fn a_changed_head_or_another_record_is_an_error() {
    for hex in [GOLDEN, GOLDEN_EMPTY] {
        let frame = StoredFrame::parse(golden(hex)).unwrap();
        let head = Bytes::copy_from_slice(frame.head_bytes());
        for cut in cuts(&head) {
            assert!(rebuilt(cut, &frame).is_err());
        }
        for (place, mutant) in mutants(&head) {
            assert!(rebuilt(mutant, &frame).is_err(), "byte {place}");
        }
    }
    let frame = StoredFrame::parse(golden(GOLDEN)).unwrap();
    let head = FrameHead::parse(Bytes::copy_from_slice(frame.head_bytes())).unwrap();
    let mut records: Vec<_> = frame.body.as_ref().unwrap().records().map(|(_, record)| record).collect();
    records[2].timestamp_ms ^= 1;
    assert!(matches!(head.frame(&records), Err(FrameError::Body(BodyError::Crc { .. }))));
    assert!(head.frame(&records[1..]).is_err());
}
