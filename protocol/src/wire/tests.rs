//! Golden bytes, round trips and damage of stream frames.
#![allow(clippy::let_underscore_must_use, reason = "only whether it panics counts")]

use std::fmt::Debug;

use super::*;
use crate::{
    batch::BatchBody,
    error::Code,
    limits::Limits,
    stored::{Refused, RefusedStatus},
    testing::{Random, cuts, golden, mutants},
    topic::TopicName,
};

const CURSOR: &str = "AQEAAOwDAAAAAAAAjF1CdQ";

macro_rules! hex {
    ($name:literal) => {
        golden(include_str!(concat!("../../tests/golden/", $name, ".hex")))
    };
}

fn take(bytes: &Bytes) -> Result<Frame, WireError> {
    let Some((prefix, payload)) = bytes.split_first_chunk() else { return Err(WireError::Empty) };
    let (kind, length) = parse_prefix(*prefix, 1 << 16, 1 << 20)?;
    if length != payload.len() {
        return Err(WireError::Empty);
    }
    parse_payload(kind, bytes.slice(PREFIX_BYTES..))
}

fn control<M: Message + Default + PartialEq + Debug>(bytes: &Bytes, message: &M) {
    assert_eq!(&encode_control(message), bytes);
    let Ok(Frame::Control(payload)) = take(bytes) else { panic!("not a control frame") };
    assert_eq!(decode::<M>(payload).as_ref(), Ok(message));
}

fn batch<M: Message + Default + PartialEq + Debug>(bytes: &Bytes, message: &M) {
    let expected_body = hex!("body_v1");
    let mut encoded = BytesMut::from(&encode_batch_head(message, expected_body.len())[..]);
    encoded.extend_from_slice(&expected_body);
    assert_eq!(encoded, bytes);
    let Ok(Frame::Batch { head, body }) = take(bytes) else { panic!("not a batch frame") };
    assert_eq!(decode::<M>(head).as_ref(), Ok(message));
    assert_eq!(body, expected_body);
    BatchBody::parse(body, &Limits::default()).unwrap();
}

#[test]
fn messages_of_the_client_have_their_golden_bytes() {
    let hello = Hello {
        version: VERSION,
        tenant: "default".to_owned(),
        token: "secret".to_owned(),
        admin_token: String::new(),
        client: "tidegate-client/0.1".to_owned(),
    };
    control(&hex!("wire_hello"), &ClientMessage::from(ClientBody::Hello(hello)));
    control(&hex!("wire_open_produce"), &ClientMessage::from(ClientBody::OpenProduce(OpenProduce {})));
    let fetch = OpenFetch {
        pattern: "orders/*".to_owned(),
        start: Some(Start::Cursor(CURSOR.to_owned())),
        follow: true,
        records_max: 100,
        ..OpenFetch::default()
    };
    control(&hex!("wire_open_fetch"), &ClientMessage::from(ClientBody::OpenFetch(fetch)));
    let key = OpenFetch {
        pattern: "orders/eu".to_owned(),
        start: Some(Start::KeyHead(true)),
        follow: true,
        key: Some(b"4711".to_vec()),
        ..OpenFetch::default()
    };
    control(&hex!("wire_open_fetch_key"), &ClientMessage::from(ClientBody::OpenFetch(key)));
    control(&hex!("wire_backup_begin"), &ClientMessage::from(ClientBody::BackupBegin(BackupBegin {})));
    let since = OpenFetch {
        pattern: "orders/*".to_owned(),
        start: Some(Start::Since(1_700_000_000_123)),
        follow: true,
        ..OpenFetch::default()
    };
    control(&hex!("wire_open_fetch_since"), &ClientMessage::from(ClientBody::OpenFetch(since)));
    let start = Some(Start::Ago(7_200_000));
    let ago = OpenFetch { pattern: "orders/eu".to_owned(), start, ..OpenFetch::default() };
    control(&hex!("wire_open_fetch_ago"), &ClientMessage::from(ClientBody::OpenFetch(ago)));
    let truncate = TopicTruncate { topic: "orders/eu".to_owned(), before: 902 };
    control(&hex!("wire_topic_truncate"), &ClientMessage::from(ClientBody::TopicTruncate(truncate)));
    let (topic, prefix, after) = ("orders/eu".to_owned(), b"47".to_vec(), Some(b"4711".to_vec()));
    let list = KeyList { topic, prefix, after, keys_max: 100 };
    control(&hex!("wire_key_list"), &ClientMessage::from(ClientBody::KeyList(list)));
    let topic = TopicName::parse("a/b").unwrap();
    let head = ProduceHead {
        producer_id: 9,
        producer_epoch: 1,
        sequence: 41,
        conditions: vec![
            Condition::new(&topic, "k1", Expect::Version(4)),
            Condition::new(&topic, "k2", Expect::Absent(true)),
        ],
    };
    batch(&hex!("wire_produce_batch"), &head);
}

#[test]
fn messages_of_the_broker_have_their_golden_bytes() {
    let mut welcome = Welcome::new("0.1.0", &Limits::default());
    welcome.principal = "alice".to_owned();
    welcome.tenant = "default".to_owned();
    welcome.admin = true;
    assert_eq!(welcome.limits(), Limits::default());
    control(&hex!("wire_welcome"), &ServerMessage::from(ServerBody::Welcome(welcome)));
    let rejected = Refused {
        index: 2,
        status: RefusedStatus::Rejected,
        code: 500,
        plugin_code: 42,
        retry_after_ms: 0,
        reason: "no".to_owned(),
        plugin: "schema".to_owned(),
    };
    let ack = ProduceAck {
        runs: vec![AckRun::appended(0, 10, vec![1, 2]), AckRun::refused(&rejected)],
        topics: vec!["a/b".to_owned()],
        failure: None,
        generation: 7,
        duplicate: true,
    };
    control(&hex!("wire_produce_ack"), &ServerMessage::from(ServerBody::ProduceAck(ack)));
    let mut failure = Failure::new(Code::Conflict, "key is at version 5").at_record(1);
    failure.conflict =
        Some(ConflictDetail { topic: "a/b".to_owned(), key: b"k1".to_vec(), version: 5, last_offset: Some(0) });
    control(&hex!("wire_failure"), &ServerMessage::from(ServerBody::Failure(failure)));
    let progress = FetchProgress { cursor: CURSOR.to_owned(), at_end: true, gaps: Vec::new() };
    let gaps = vec![Gap { topic: "orders/eu".to_owned(), low_offset: 902 }];
    let gaps = FetchProgress { cursor: CURSOR.to_owned(), at_end: false, gaps };
    control(&hex!("wire_fetch_gaps"), &ServerMessage::from(ServerBody::FetchProgress(gaps)));
    let (name, created_ms) = ("orders/eu".to_owned(), 1_700_000_000_123);
    let topic = Some(TopicInfo { name, id: 16, next_offset: 1_000, created_ms, low_offset: 902 });
    let truncated = TopicTruncated { topic, low_offset_before: 700 };
    control(&hex!("wire_topic_truncated"), &ServerMessage::from(ServerBody::TopicTruncated(truncated)));
    let keys = Keys { keys: vec![KeyInfo { key: b"4712".to_vec(), version: 3, last_offset: 400 }], truncated: true };
    control(&hex!("wire_keys"), &ServerMessage::from(ServerBody::Keys(keys)));
    let file = BackupFile { name: "0000000000000003.wal".to_owned(), generation: 0x2_dead_beef, first_lsn: 900 };
    let cut = BackupCut { shard: 0, next_lsn: 1_004, manifest_number: 7, manifest: b"{}".to_vec(), wal: vec![file] };
    control(&hex!("wire_backup_cut"), &ServerMessage::from(ServerBody::BackupCut(cut)));
    control(&hex!("wire_fetch_progress"), &ServerMessage::from(ServerBody::FetchProgress(progress)));
    let head = FetchHead {
        offsets: vec![10, 0, 11, 12],
        key_versions: vec![1, 0, 300, 2],
        broker_time_ms: 1_700_000_000_123,
        generation: 7,
        cursor: CURSOR.to_owned(),
    };
    batch(&hex!("wire_fetch_batch"), &head);
}

#[test]
fn cut_changed_and_random_frames_never_panic() {
    for bytes in [hex!("wire_produce_batch"), hex!("wire_fetch_batch"), hex!("wire_produce_ack"), hex!("wire_failure")]
    {
        for cut in cuts(&bytes) {
            assert!(take(&cut).is_err());
        }
        for (_, mutant) in mutants(&bytes) {
            read_all(&mutant);
        }
    }
    for seed in 0..20_000 {
        let mut random = Random::new(seed);
        let mut noise = random.bytes(60);
        read_all(&noise.clone().into());
        // The same bytes as the payload of a right prefix.
        let told = u32::try_from(noise.len() + 1).unwrap().to_le_bytes();
        noise.splice(0..0, told.into_iter().chain([1 + (seed % 2) as u8]));
        read_all(&noise.into());
    }
}

fn read_all(bytes: &Bytes) {
    match take(bytes) {
        Ok(Frame::Control(payload)) => {
            if let Ok(ServerMessage { body: Some(ServerBody::Failure(failure)) }) = decode(payload.clone()) {
                assert!(!failure.to_string().is_empty());
            }
            let _: Result<ClientMessage, _> = decode(payload);
        }
        Ok(Frame::Batch { head, body }) => {
            let _: Result<ProduceHead, _> = decode(head.clone());
            let _: Result<FetchHead, _> = decode(head);
            let _: Result<BatchBody, _> = BatchBody::parse(body, &Limits::default());
        }
        Err(error) => assert!(matches!(error.code(), Code::ProtocolViolation | Code::FrameTooLarge)),
    }
}

#[test]
fn prefixes_are_held_to_their_limits() {
    let prefix = |told: u32, kind| {
        let [a, b, c, d] = told.to_le_bytes();
        parse_prefix([a, b, c, d, kind], 100, 1_000)
    };
    assert_eq!(prefix(101, KIND_CONTROL), Ok((KIND_CONTROL, 100)));
    assert_eq!(prefix(102, KIND_CONTROL), Err(WireError::TooLarge { bytes: 101, max: 100 }));
    assert_eq!(prefix(1_105, KIND_BATCH), Ok((KIND_BATCH, 1_104)));
    assert_eq!(prefix(1_106, KIND_BATCH), Err(WireError::TooLarge { bytes: 1_105, max: 1_104 }));
    assert_eq!(prefix(0, KIND_CONTROL), Err(WireError::Empty));
    assert_eq!((prefix(5, 0), prefix(5, 3)), (Err(WireError::Kind(0)), Err(WireError::Kind(3))));
    assert_eq!(prefix(u32::MAX, KIND_BATCH).unwrap_err().code(), Code::FrameTooLarge);
    let head = |bytes: &'static [u8]| parse_payload(KIND_BATCH, Bytes::from_static(bytes));
    assert_eq!(head(&[3, 0, 0, 0, 1, 2]), Err(WireError::Head { head: 3, frame: 6 }));
    assert_eq!(head(&[3, 0]), Err(WireError::Head { head: 4, frame: 2 }));
    assert!(head(&[0, 0, 0, 0]).is_ok());
}

#[test]
fn conditions_say_what_they_expect() {
    let topic = TopicName::parse("a/b").unwrap();
    let parts = |expect| Condition { topic: "a/b".to_owned(), key: b"k".to_vec(), expect }.into_parts();
    for expect in [Expect::Version(0), Expect::LastOffset(0), Expect::Absent(true)] {
        assert_eq!(parts(Some(expect)), Ok((topic.clone(), Bytes::from_static(b"k"), expect)));
    }
    assert_eq!(parts(None), Err(ConditionError::Expectation));
    assert_eq!(parts(Some(Expect::Absent(false))), Err(ConditionError::Expectation));
    let nameless = Condition { topic: String::new(), ..Condition::new(&topic, "k", Expect::Version(1)) };
    assert_eq!(nameless.into_parts().unwrap_err().code(), Code::TopicInvalid);
}

#[test]
fn failures_tell_where_and_when() {
    let failure = Failure::new(Code::PluginFault, "trap").at_record(7).by_plugin("schema").retry_after_ms(5);
    assert_eq!(failure.to_string(), "PLUGIN_FAULT: trap (record 7) (plugin schema)");
    assert_eq!((failure.record_at(), failure.known_code()), (Some(7), Some(Code::PluginFault)));
    assert!(failure.is_retriable() && Failure::new(Code::Overloaded, "").is_retriable());
    assert!(!Failure::new(Code::Conflict, "").is_retriable());
    let unknown = Failure { code: 70_000, ..Failure::default() };
    assert_eq!((unknown.known_code(), unknown.record_at(), unknown.is_retriable()), (None, None, false));
    for status in [AckStatus::Appended, AckStatus::Dropped, AckStatus::Rejected, AckStatus::Diverted] {
        assert_eq!(AckStatus::try_from(u32::from(status)), Ok(status));
    }
    assert_eq!(AckStatus::try_from(4), Err(4));
}

/// A tag named for an enum that has no such variant made the decoder panic on bytes from the network.
#[test]
fn no_tag_makes_a_decoder_panic() {
    for tag in 1..64_u32 {
        for (wire_type, rest) in [(0, &[1][..]), (1, &[0; 8][..]), (2, &[0][..]), (5, &[0; 4][..])] {
            let mut bytes = Vec::new();
            prost::encoding::encode_varint(u64::from(tag << 3 | wire_type), &mut bytes);
            bytes.extend_from_slice(rest);
            let bytes = Bytes::from(bytes);
            let _: Result<ClientMessage, _> = decode(bytes.clone());
            let _: Result<ServerMessage, _> = decode(bytes.clone());
            let _: Result<OpenFetch, _> = decode(bytes.clone());
            let _: Result<Condition, _> = decode(bytes);
        }
    }
}
