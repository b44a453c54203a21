//! What never reaches a chain.

use bytes::BytesMut;
use prost::Message as _;
use tidegate_protocol::{
    batch::BatchBuilder,
    record::{RecordView, encode_headers},
};

use super::*;
use crate::auth::{Allow, Auth, Claim, Config, Credential, PrincipalConfig, hash};

fn principal() -> Principal {
    let config = PrincipalConfig {
        name: "app".to_owned(),
        tenant: "default".to_owned(),
        role: String::new(),
        credential: Credential::Token(hash(b"t")),
        allow: ["produce:orders/>", "fetch:orders/eu"].map(|text| Allow::parse(text).expect("valid")).to_vec(),
    };
    let auth = Auth::new(Config { principals: Some(vec![config]), admin_token: hash(b"a") });
    auth.identify(&Claim { token: "t", ..Claim::default() }).expect("known")
}

fn body(topics: &[&str], header: Option<&str>) -> Bytes {
    let mut headers = Vec::new();
    if let Some(name) = header {
        encode_headers([(name, Some(b"v".as_slice()))].into_iter(), &mut headers).expect("encoded");
    }
    let mut builder = BatchBuilder::new();
    for topic in topics {
        builder.push(topic, RecordView { key: Some(b"k"), value: Some(b"v"), headers: &headers, timestamp_ms: 1 });
    }
    builder.finish()
}

fn refusal(head: &ProduceHead, body: Bytes) -> (Code, Option<u32>) {
    let head = Bytes::from(head.encode_to_vec());
    let failure = check(head, body, &Limits::default(), &principal()).expect_err("refused");
    (failure.known_code().expect("known"), failure.record_at())
}

fn condition(topic: &str, expect: Option<wire::Expect>) -> ProduceHead {
    let condition = wire::Condition { topic: topic.to_owned(), key: b"k".to_vec(), expect };
    ProduceHead { conditions: vec![condition], ..ProduceHead::default() }
}

#[test]
fn a_batch_that_may_go_on() {
    let head = ProduceHead { producer_id: 5, sequence: 7, ..condition("orders/eu", Some(wire::Expect::Absent(true))) };
    let body = body(&["orders/eu", "orders/us"], Some("plain"));
    let checked = check(Bytes::from(head.encode_to_vec()), body, &Limits::default(), &principal()).expect("may go on");
    assert_eq!(checked.producer, Some(ProducerStamp { id: 5, epoch: 0, sequence: 7 }));
    assert_eq!(checked.conditions.len(), 1);
    assert_eq!(checked.body.len(), 2);
}

#[test]
fn names_rights_and_headers() {
    let plain = ProduceHead::default();
    assert_eq!(refusal(&plain, body(&["orders/eu", "other"], None)), (Code::Forbidden, None));
    assert_eq!(refusal(&plain, body(&["orders"], None)), (Code::Forbidden, None));
    assert_eq!(refusal(&plain, body(&["orders/eu"], Some("tidegate-schema"))), (Code::HeaderReserved, Some(0)));
    assert_eq!(refusal(&plain, body(&["$sys/topics"], None)).0, Code::TopicReserved);
    let mut flipped = BytesMut::from(body(&["orders/eu"], None).as_ref());
    if let Some(last) = flipped.last_mut() {
        *last ^= 1;
    }
    assert_eq!(refusal(&plain, flipped.freeze()), (Code::BatchCorrupt, None));
    assert_eq!(refusal(&plain, Bytes::from_static(b"short")), (Code::BatchMalformed, None));
}

#[test]
fn conditions_are_read_rights() {
    let body = body(&["orders/eu"], None);
    let absent = Some(wire::Expect::Absent(true));
    assert_eq!(refusal(&condition("orders/us", absent), body.clone()).0, Code::Forbidden);
    assert_eq!(refusal(&condition("$sys/topics", absent), body.clone()).0, Code::TopicReserved);
    assert_eq!(refusal(&condition("orders/eu", None), body.clone()).0, Code::ProtocolViolation);
    let many = condition("orders/eu", absent);
    let many = ProduceHead { conditions: vec![many.conditions.first().expect("one").clone(); 1_001], ..many };
    assert_eq!(refusal(&many, body).0, Code::BatchTooLarge);
}
