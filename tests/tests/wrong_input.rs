//! Bad input gets a clear, stable error and changes nothing: frames, names, sizes, rights.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use tidegate_protocol::{
    error::Code,
    wire::{self, ClientBody, ClientMessage, OpenFetch, ProduceHead, Start, TopicCreate},
};
use tidegate_tests::{
    broker::{Broker, Site},
    raw::{self, Client, Login, Refused, Send, code},
    wait::{count, test, within},
};

const LIMIT: Duration = Duration::from_secs(120);

/// The broker still does its work, for the client that misbehaved (on another stream) and for others.
async fn still_works(broker: &mut Broker, client: &Client, sent: &mut u64) {
    for witness in [client, &Client::new(broker.addr).await] {
        let ack = witness.put(&[Send::new("witness", format!("{sent}"))]).await;
        assert_eq!(ack.runs[0].first_offset, *sent);
        *sent += 1;
    }
    assert!(broker.lives());
}

/// Sends bytes on a fresh stream, finishes it or not, and gives what came back.
async fn throw(client: &Client, bytes: &[u8], finish: bool) -> Result<raw::Heard, Refused> {
    let (mut send, mut receive) = client.open().await?;
    // The broker may refuse the stream before it has read everything.
    let written = send.write_all(bytes).await;
    if finish {
        drop(send.finish());
    }
    match raw::hear(&mut receive).await {
        Err(Refused::Closed(why)) => Err(Refused::Closed(format!("{why}; write: {written:?}"))),
        other => other,
    }
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    frame.put_u32_le(u32::try_from(payload.len() + 1).unwrap());
    frame.put_u8(kind);
    frame.put_slice(payload);
    frame.to_vec()
}

fn control(body: ClientBody) -> Vec<u8> {
    wire::encode_control(&ClientMessage { body: Some(body) }).to_vec()
}

/// Every first frame of a stream that is none: a typed error or a closed stream, never silence.
fn bad_openings() -> Vec<(&'static str, Vec<u8>, Option<Code>)> {
    let batch = [wire::encode_batch_head(&ProduceHead::default(), 0).to_vec()].concat();
    let huge = |kind: u8, length: u32| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.push(kind);
        bytes
    };
    vec![
        ("an unknown kind", frame(9, b"hello"), Some(Code::ProtocolViolation)),
        ("length 0", vec![0, 0, 0, 0, 1], Some(Code::ProtocolViolation)),
        ("a control frame of 4 GiB", huge(1, u32::MAX), Some(Code::FrameTooLarge)),
        ("a batch frame of 4 GiB", huge(2, u32::MAX), None),
        ("no protobuf", frame(1, &[0xff; 40]), Some(Code::ProtocolViolation)),
        ("an empty message", frame(1, b""), Some(Code::ProtocolViolation)),
        ("a batch before it is opened", batch, Some(Code::ProtocolViolation)),
        ("a second hello", control(ClientBody::Hello(wire::Hello::default())), Some(Code::ProtocolViolation)),
    ]
}

#[test]
fn broken_first_frames_end_their_stream_and_nothing_else() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let mut sent = 0;
        for (what, bytes, expected) in bad_openings() {
            match (throw(&client, &bytes, true).await, expected) {
                (Err(Refused::Failure(failure)), Some(expected)) => assert_eq!(code(&failure), expected, "{what}"),
                (Err(Refused::Failure(_) | Refused::Closed(_)), None) => {}
                (other, _) => panic!("{what}: {other:?}"),
            }
            still_works(&mut broker, &client, &mut sent).await;
        }
        broker.drain().await;
    });
}

#[test]
fn frames_cut_anywhere_are_no_panic() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let body = raw::body(&[Send::keyed("cut", "key", "value").header("h", "v")]);
        let head = wire::encode_batch_head(&ProduceHead::default(), body.len());
        let whole = [control(ClientBody::OpenProduce(wire::OpenProduce {})), head.to_vec(), body.to_vec()].concat();
        for cut in 0..whole.len() {
            match throw(&client, &whole[..cut], true).await {
                Err(Refused::Closed(_)) => {}
                Err(Refused::Failure(failure)) => assert_eq!(code(&failure), Code::ProtocolViolation, "cut at {cut}"),
                Ok(heard) => panic!("cut at {cut}: {heard:?}"),
            }
        }
        let mut sent = 0;
        still_works(&mut broker, &client, &mut sent).await;
        assert!(client.all("cut").await.is_empty(), "no cut frame was appended");
        assert!(throw(&client, &whole, true).await.is_ok());
        assert_eq!(client.all("cut").await.len(), 1);
        broker.drain().await;
    });
}

/// Flips bits of a whole batch frame: refused with a typed error, or closed; never appended as something else.
#[test]
fn flipped_bits_are_refused_or_harmless() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let body = raw::body(&[Send::keyed("flip", "key", "value").header("h", "v"), Send::new("flip", "other")]);
        let open = control(ClientBody::OpenProduce(wire::OpenProduce {}));
        let mut taken = 0;
        for at in 0..body.len() {
            let mut bytes = body.to_vec();
            bytes[at] ^= 1 << (at % 8);
            let head = wire::encode_batch_head(&ProduceHead::default(), bytes.len());
            let answer = throw(&client, &[open.clone(), head.to_vec(), bytes].concat(), true).await;
            match answer {
                Err(Refused::Closed(_)) => {}
                Err(Refused::Failure(failure)) => assert!(refuses_bytes(code(&failure)), "byte {at}: {failure:?}"),
                Ok(raw::Heard::Message(wire::ServerBody::ProduceAck(ack))) => match &ack.failure {
                    Some(failure) => assert!(refuses_bytes(code(failure)), "byte {at}: {failure:?}"),
                    None => taken += 1,
                },
                Ok(other) => panic!("byte {at}: {other:?}"),
            }
        }
        assert_eq!(taken, 0, "the CRC covers every byte of the body");
        let mut sent = 0;
        still_works(&mut broker, &client, &mut sent).await;
        assert!(client.all("flip").await.is_empty());
        broker.drain().await;
    });
}

fn refuses_bytes(code: Code) -> bool {
    matches!(
        code,
        Code::BatchCorrupt
            | Code::BatchMalformed
            | Code::UnsupportedCodec
            | Code::UnsupportedVersion
            | Code::ProtocolViolation
            | Code::BatchTooLarge
            | Code::RecordTooLarge
    )
}

#[test]
fn random_bytes_on_many_streams_cost_no_memory() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let before = broker.resident_bytes();
        let mut seed = 1_u64;
        for round in 0..count(300, 10_000) {
            let mut bytes = Vec::new();
            for _ in 0..(round % 64) + 1 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                bytes.extend_from_slice(&seed.to_le_bytes());
            }
            match round % 3 {
                // A length and a kind that pass, so that what is behind them is looked at.
                0 => bytes = frame(1, &bytes),
                1 => bytes = [control(ClientBody::OpenProduce(wire::OpenProduce {})), frame(2, &bytes)].concat(),
                _ => {}
            }
            let answer = throw(&client, &bytes, true).await;
            assert!(!matches!(answer, Ok(raw::Heard::Batch(..))), "{answer:?}");
        }
        // Frames that claim much and bring nothing: the broker must not set the memory aside, and only the client that
        // claims waits for it.
        let mut open = Vec::new();
        let claimer = Client::new(broker.addr).await;
        for _ in 0..100 {
            let (mut send, receive) = claimer.open().await.unwrap();
            send.write_all(&control(ClientBody::OpenProduce(wire::OpenProduce {}))).await.unwrap();
            send.write_all(&[0xff, 0xff, 0x7f, 0x00, 2]).await.unwrap();
            open.push((send, receive));
        }
        let mut sent = 0;
        still_works(&mut broker, &client, &mut sent).await;
        let grown = broker.resident_bytes().saturating_sub(before);
        assert!(grown < 200 << 20, "100 frames that claim 8 MiB each took {} MiB", grown >> 20);
        drop(open);
        broker.drain().await;
    });
}

#[test]
fn a_handshake_that_is_none_is_closed() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        // A first stream that says something else, or another version, or nothing for too long.
        let say = |body: ClientBody| control(body);
        let old = wire::Hello { version: 99, ..wire::Hello::default() };
        let openings = [
            ("not a hello", say(ClientBody::OpenProduce(wire::OpenProduce {})), Some(Code::ProtocolViolation)),
            ("another version", say(ClientBody::Hello(old)), Some(Code::UnsupportedVersion)),
            ("garbage", frame(7, b"x"), Some(Code::ProtocolViolation)),
            ("half a frame", vec![200, 0, 0, 0, 1, 7], None),
        ];
        for (what, bytes, expected) in openings {
            let (_endpoint, connection) = raw::dial(broker.addr, &Login::default()).await.unwrap();
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&bytes).await.unwrap();
            match (raw::hear(&mut receive).await, expected) {
                (Err(Refused::Failure(failure)), Some(expected)) => assert_eq!(code(&failure), expected, "{what}"),
                (Err(Refused::Closed(_)), None) => {}
                (other, _) => panic!("{what}: {other:?}"),
            }
            within(LIMIT, format!("{what}: the end of the connection"), connection.closed()).await;
        }
        // Requests before the handshake are not served.
        let (_endpoint, connection) = raw::dial(broker.addr, &Login::default()).await.unwrap();
        let (_hello, _) = connection.open_bi().await.unwrap();
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let list = ClientBody::TopicList(wire::TopicList::default());
        drop(send.write_all(&control(list)).await);
        assert!(raw::hear(&mut receive).await.is_err(), "an answer before the hello");
        // Another ALPN: no connection at all.
        let mut endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
        endpoint.set_default_client_config(raw::client_config(&Login::default(), b"h3"));
        assert!(endpoint.connect(broker.addr, "localhost").unwrap().await.is_err());
        let client = Client::new(broker.addr).await;
        still_works(&mut broker, &client, &mut 0).await;
        broker.drain().await;
    });
}

/// UDP that is no QUIC.
#[test]
fn stray_datagrams_are_ignored() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for length in [0, 1, 20, 600, 1200, 9000] {
            for byte in [0x00, 0x40, 0xc3, 0xff] {
                socket.send_to(&vec![byte; length], broker.addr).await.unwrap();
            }
        }
        let client = Client::new(broker.addr).await;
        still_works(&mut broker, &client, &mut 0).await;
        broker.drain().await;
    });
}

#[test]
fn topic_names_out_of_the_rules() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let long = "x".repeat(65);
        let deep = vec!["x"; 17].join("/");
        let wide = vec!["x".repeat(60); 5].join("/");
        let invalid =
            ["", "/", "a/", "/a", "a//b", "a.b", "a b", "ä", "a/*", ">", "a%2", "a/%zz", "a\0", &long, &deep, &wide];
        for name in invalid {
            let failure = client.refused(ProduceHead::default(), &[Send::new(name, "x")]).await;
            assert!(matches!(code(&failure), Code::TopicInvalid | Code::BatchMalformed), "{name:?}: {failure:?}");
            let create = ClientBody::TopicCreate(TopicCreate { name: name.to_owned() });
            assert_eq!(client.ask(create).await.unwrap_err().code(), Code::TopicInvalid, "{name:?}");
        }
        for name in ["$sys/topics", "$sys/activations", "$dead/a", "a/$b"] {
            let failure = client.refused(ProduceHead::default(), &[Send::new(name, "x")]).await;
            assert!(matches!(code(&failure), Code::TopicReserved | Code::TopicInvalid), "{name}: {failure:?}");
            let create = ClientBody::TopicCreate(TopicCreate { name: name.to_owned() });
            let refused = client.ask(create).await.unwrap_err().code();
            assert!(matches!(refused, Code::TopicReserved | Code::TopicInvalid), "{name}: {refused:?}");
        }
        for pattern in ["", "a/>/b", "a**", "*a", "a/b*c", "a//>", "a b"] {
            let open = OpenFetch { pattern: pattern.to_owned(), ..OpenFetch::default() };
            let refused = client.fetch(open).await.unwrap().next().await.unwrap_err();
            assert_eq!(refused.code(), Code::PatternInvalid, "{pattern:?}");
        }
        still_works(&mut broker, &client, &mut 0).await;
        broker.drain().await;
    });
}

#[test]
fn sizes_over_the_limits() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let welcome = &client.welcome;
        assert_eq!((welcome.record_bytes_max, welcome.batch_records_max), (1 << 20, 10_000));
        let (record_max, key_max) = (welcome.record_bytes_max as usize, welcome.key_bytes_max as usize);
        let cases = [
            ("value", Send::new("t", vec![0; record_max + 1]), Code::RecordTooLarge),
            ("key", Send::keyed("t", vec![1; key_max + 1], "x"), Code::RecordTooLarge),
            ("headers", Send::new("t", "x").header("h", vec![0; 16 << 10]), Code::RecordTooLarge),
            ("header count", (0..65).fold(Send::new("t", "x"), |send, _| send.header("h", "")), Code::RecordTooLarge),
        ];
        for (what, record, expected) in cases {
            let failure = client.refused(ProduceHead::default(), &[Send::new("t", "fine"), record]).await;
            assert_eq!(code(&failure), expected, "{what}: {failure:?}");
            assert_eq!(failure.record, 2, "{what}: the record at fault is named");
        }
        let many = vec![Send::new("t", ""); welcome.batch_records_max as usize + 1];
        assert_eq!(code(&client.refused(ProduceHead::default(), &many).await), Code::BatchTooLarge);
        let large: Vec<_> = (0..9).map(|_| Send::new("t", vec![0; record_max])).collect();
        let failure = client.refused(ProduceHead::default(), &large).await;
        assert!(matches!(code(&failure), Code::BatchTooLarge | Code::FrameTooLarge), "{failure:?}");
        let condition =
            wire::Condition { topic: "t".into(), key: b"k".to_vec(), expect: Some(wire::Expect::Version(0)) };
        let conditions = ProduceHead { conditions: vec![condition; 1_001], ..ProduceHead::default() };
        assert_eq!(code(&client.refused(conditions, &[Send::new("t", "x")]).await), Code::BatchTooLarge);
        let none = ProduceHead {
            conditions: vec![wire::Condition { topic: "t".into(), ..Default::default() }],
            ..Default::default()
        };
        let failure = client.refused(none, &[Send::new("t", "x")]).await;
        assert_eq!(code(&failure), Code::ProtocolViolation, "a condition that expects nothing");
        // What is just within the limits passes.
        client.put(&[Send::new("fits", vec![7; record_max - 16]), Send::keyed("fits", vec![1; key_max], "x")]).await;
        assert_eq!(client.all("fits").await[0].value.as_ref().unwrap().len(), record_max - 16);
        assert!(client.all("t").await.is_empty());
        still_works(&mut broker, &client, &mut 0).await;
        broker.drain().await;
    });
}

#[test]
fn unknown_topics_where_creation_is_off() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.arguments(&["--no-create-topics"]);
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let failure = client.refused(ProduceHead::default(), &[Send::new("new/one", "x")]).await;
        assert_eq!(code(&failure), Code::TopicUnknown);
        assert!(failure.message.contains("new/one"), "{failure:?}");
        let create = || ClientBody::TopicCreate(TopicCreate { name: "new/one".to_owned() });
        client.ask(create()).await.unwrap();
        assert_eq!(client.ask(create()).await.unwrap_err().code(), Code::TopicExists);
        client.put(&[Send::new("new/one", "x")]).await;
        // A batch that needs one topic it may not make makes nothing at all.
        let both = [Send::new("new/one", "y"), Send::new("new/two", "y")];
        assert_eq!(code(&client.refused(ProduceHead::default(), &both).await), Code::TopicUnknown);
        assert_eq!(client.all("new/*").await.len(), 1);
        broker.drain().await;
    });
}

#[test]
fn cursors_and_offsets_that_lead_nowhere() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let client = Client::new(broker.addr).await;
        client.put(&[Send::new("t", "0"), Send::new("t", "1"), Send::new("u", "2")]).await;
        let read = async |pattern: &str, start: Start| {
            let open = OpenFetch { pattern: pattern.to_owned(), start: Some(start), ..OpenFetch::default() };
            client.fetch(open).await.unwrap().rest().await
        };
        for (cursor, what) in [("", "empty"), ("AAAA", "short"), ("not a cursor!", "text"), (&"x".repeat(4000), "long")]
        {
            let refused = read("t", Start::Cursor(cursor.to_owned())).await.unwrap_err();
            assert_eq!(refused.code(), Code::CursorInvalid, "{what}");
        }
        assert_eq!(read("t", Start::Offset(3)).await.unwrap_err().code(), Code::OffsetOutOfRange);
        assert!(read("t", Start::Offset(2)).await.unwrap().is_empty(), "the end itself is a place");
        assert_eq!(read("t", Start::Offset(1)).await.unwrap()[0].text(), "1");
        assert!(read("*", Start::Offset(0)).await.is_err(), "an offset is of one topic");
        assert!(read("t", Start::Latest(true)).await.unwrap().is_empty());
        // A cursor printed by the broker goes on where it stood.
        let open = OpenFetch { pattern: "*".to_owned(), records_max: 2, ..OpenFetch::default() };
        let mut fetching = client.fetch(open).await.unwrap();
        let first = fetching.take(2).await.unwrap();
        let rest = read("*", Start::Cursor(fetching.cursor.clone())).await.unwrap();
        assert_eq!(first.len() + rest.len(), 3, "{first:?} {rest:?}");
        let mut flipped = fetching.cursor.clone().into_bytes();
        let last = flipped.len() - 1;
        flipped[last] = if flipped[last] == b'A' { b'B' } else { b'A' };
        let refused = read("*", Start::Cursor(String::from_utf8(flipped).unwrap())).await;
        assert_eq!(refused.unwrap_err().code(), Code::CursorInvalid, "a cursor with a flipped bit");
        still_works(&mut broker, &client, &mut 0).await;
        broker.drain().await;
    });
}

#[test]
fn what_needs_the_admin_credential() {
    test(LIMIT, async {
        let site = Site::new();
        site.allow_log("change of plugins refused");
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        assert!(!client.welcome.admin);
        let swap = |bytes| wire::PluginSwap { name: "x".into(), component: vec![0; bytes], based_on: 0 };
        // Whoever is no admin may not even send a component.
        let large = client.ask(ClientBody::PluginSwap(swap(100_000))).await.unwrap_err();
        assert_eq!(large.code(), Code::FrameTooLarge);
        for (what, body) in [
            ("swap", ClientBody::PluginSwap(swap(1_000))),
            ("rollback", ClientBody::PluginRollback(wire::PluginRollback { name: "x".into(), based_on: 0 })),
            ("reload", ClientBody::Reload(wire::Reload { based_on: 0 })),
            ("reserved topics", ClientBody::TopicList(wire::TopicList { reserved: true, ..Default::default() })),
        ] {
            assert_eq!(client.ask(body).await.unwrap_err().code(), Code::AdminRequired, "{what}");
        }
        let open = OpenFetch { pattern: "$sys/activations".to_owned(), ..OpenFetch::default() };
        let refused = client.fetch(open).await.unwrap().rest().await.unwrap_err().code();
        assert!(matches!(refused, Code::AdminRequired | Code::Forbidden | Code::TopicReserved), "{refused:?}");
        let wrong = Login { admin_token: "wrong".to_owned(), ..Login::default() };
        assert_eq!(Client::connect(broker.addr, &wrong).await.unwrap_err().code(), Code::Unauthenticated);
        let admin = Client::admin(broker.addr, &site.data()).await;
        assert!(admin.welcome.admin);
        let unknown = wire::PluginRollback { name: "x".into(), based_on: 0 };
        assert_eq!(admin.ask(ClientBody::PluginRollback(unknown)).await.unwrap_err().code(), Code::PluginUnknown);
        broker.drain().await;
    });
}

/// A swap that claims more than a component may have.
#[test]
fn an_oversized_request_is_refused_before_it_is_read() {
    test(LIMIT, async {
        let site = Site::new();
        let mut broker = site.start().await;
        let admin = Client::admin(broker.addr, &site.data()).await;
        let before = broker.resident_bytes();
        let swap = wire::PluginSwap { name: "x".into(), component: vec![0; 65 << 20], based_on: 0 };
        let bytes = Bytes::from(control(ClientBody::PluginSwap(swap)));
        match throw(&admin, &bytes, true).await {
            Err(Refused::Failure(failure)) => assert_eq!(code(&failure), Code::FrameTooLarge),
            Err(Refused::Closed(_)) => {}
            Ok(other) => panic!("{other:?}"),
        }
        let grown = broker.resident_bytes().saturating_sub(before);
        assert!(grown < 64 << 20, "took {} MiB", grown >> 20);
        still_works(&mut broker, &admin, &mut 0).await;
        broker.drain().await;
    });
}
