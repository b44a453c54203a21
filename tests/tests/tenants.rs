//! Tenants are apart: names, data, positions, producers, plugins. Every attempt to cross fails.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use tidegate_protocol::{
    error::Code,
    wire::{self, ClientBody, Condition, Expect, OpenFetch, ProduceHead, ServerBody, Start, TopicCreate},
};
use tidegate_tests::{
    broker::{Broker, Site},
    ledger::gaps,
    raw::{Client, Login, Refused, Send, admin_token, code},
    wait::test,
};

const LIMIT: Duration = Duration::from_secs(90);

/// Principals of two tenants; SHA-256 of `red-token`, `blue-token`, `reader-token`.
fn auth() -> String {
    let principal = |name: &str, tenant: &str, allow: &str| {
        let token = sha256(&format!("{name}-token"));
        format!(
            "[[principal]]\nname = \"{name}\"\ntenant = \"{tenant}\"\ntoken_sha256 = \"{token}\"\nallow = [{allow}]\n"
        )
    };
    [
        principal("red", "red", r#""produce:>", "fetch:>", "topics:>", "admin""#),
        principal("blue", "blue", r#""produce:>", "fetch:>", "topics:>", "admin""#),
        principal("reader", "red", r#""fetch:open/>""#),
        principal("writer", "red", r#""produce:open/>""#),
    ]
    .concat()
}

fn sha256(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn login(name: &str, tenant: &str) -> Login {
    Login { tenant: tenant.to_owned(), token: format!("{name}-token"), ..Login::default() }
}

async fn client(broker: &Broker, name: &str, tenant: &str) -> Client {
    Client::connect(broker.addr, &login(name, tenant)).await.unwrap()
}

#[test]
fn credentials_of_another_tenant_open_no_door() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.auth(&auth());
        let broker = site.start().await;
        let token =
            |token: &str, tenant: &str| Login { tenant: tenant.into(), token: token.into(), ..Login::default() };
        let attempts = [
            ("red's token for blue", login("red", "blue")),
            ("red's token for the default tenant", login("red", "")),
            ("red's token for a tenant that does not exist", login("red", "green")),
            ("red's token for a reserved name", login("red", "$sys")),
            ("no token", token("", "red")),
            ("an unknown token", token("nobody-token", "red")),
            ("the hash instead of the token", token(&sha256("red-token"), "red")),
            ("a prefix of the token", token("red-toke", "red")),
            ("a longer token", token("red-token ", "red")),
            ("another case", token("RED-TOKEN", "red")),
            (
                "the admin credential alone",
                Login { admin_token: admin_token(&site.data()), tenant: "red".into(), ..Login::default() },
            ),
            ("a wrong admin credential", Login { admin_token: "x".repeat(43), ..login("red", "red") }),
        ];
        let mut answers = std::collections::BTreeSet::new();
        for (what, attempt) in attempts {
            match Client::connect(broker.addr, &attempt).await {
                Err(Refused::Failure(failure)) => {
                    assert_eq!(code(&failure), Code::Unauthenticated, "{what}");
                    answers.insert(failure.message);
                }
                other => panic!("{what}: {other:?}"),
            }
        }
        assert_eq!(answers.len(), 1, "the answer must not tell what was wrong: {answers:?}");
        assert_eq!(client(&broker, "red", "red").await.welcome.tenant, "red");
        broker.drain().await;
    });
}

/// What red writes blue cannot see, name, resume, condition on, or dedup against, and the other way round.
#[test]
fn data_of_another_tenant_is_out_of_reach() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.auth(&auth());
        let mut broker = site.start().await;
        for life in 0..2 {
            let (red, blue) = (client(&broker, "red", "red").await, client(&broker, "blue", "blue").await);
            if life == 0 {
                red.put(&[Send::keyed("same/topic", "key", "red 0"), Send::keyed("same/topic", "key", "red 1")]).await;
                red.put(&[Send::keyed("only/red", "secret", "red 2")]).await;
                blue.put(&[Send::keyed("same/topic", "key", "blue 0")]).await;
            }
            for (own, other) in [(&red, "blue"), (&blue, "red")] {
                for pattern in [">", "same/topic", "same/*", "only/red", "*/*"] {
                    let read = own.all(pattern).await;
                    assert!(read.iter().all(|record| !record.text().starts_with(other)), "{pattern}: {read:?}");
                    assert_eq!(gaps(&read), Vec::<String>::new());
                }
            }
            assert_eq!((red.all("same/*").await.len(), blue.all("same/*").await.len()), (2, 1));
            attempts(&red, &blue).await;
            broker.kill();
            broker = site.start().await;
        }
        broker.drain().await;
    });
}

async fn attempts(red: &Client, blue: &Client) {
    let topics = |body| match body {
        ServerBody::Topics(topics) => topics.topics.into_iter().map(|topic| topic.name).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let list = |pattern: &str| ClientBody::TopicList(wire::TopicList { pattern: pattern.to_owned(), reserved: false });
    assert_eq!(topics(blue.ask(list("*/*")).await.unwrap()), ["same/topic"], "blue lists its own topic only");
    assert!(topics(blue.ask(list("only/red")).await.unwrap()).is_empty());
    // Conditions see the own keys: to blue, `secret` does not exist, and `key` stands at version 1.
    let on = |topic: &str, key: &str, expect| ProduceHead {
        conditions: vec![Condition { topic: topic.into(), key: key.into(), expect: Some(expect) }],
        ..ProduceHead::default()
    };
    let failure = blue.refused(on("only/red", "secret", Expect::Version(1)), &[Send::new("b", "x")]).await;
    assert_eq!(code(&failure), Code::Conflict);
    assert_eq!(failure.conflict.unwrap().version, 0, "red's version must not be told");
    let failure = blue.refused(on("same/topic", "key", Expect::Version(2)), &[Send::new("b", "x")]).await;
    assert_eq!(failure.conflict.unwrap().version, 1);
    // A cursor is a position, not a right: blue resumes at red's position and still sees blue's records only.
    let open = |pattern: &str, start| OpenFetch { pattern: pattern.into(), start: Some(start), ..OpenFetch::default() };
    for pattern in [">", "same/topic"] {
        let mut fetching = red.fetch(open(pattern, Start::Earliest(true))).await.unwrap();
        fetching.take(1).await.unwrap();
        let stolen = blue.fetch(open(pattern, Start::Cursor(fetching.cursor.clone()))).await.unwrap().rest().await;
        match stolen {
            Ok(read) => assert!(read.iter().all(|record| record.text().starts_with("blue")), "{read:?}"),
            Err(refused) => assert_eq!(refused.code(), Code::CursorInvalid),
        }
    }
    // The same producer id and sequence in another tenant is another producer.
    let id = red.producer_id().await;
    let head = || ProduceHead { producer_id: id, ..ProduceHead::default() };
    let first = red.produce(head(), &[Send::new("dedup", "red x")]).await.unwrap();
    let other = blue.produce(head(), &[Send::new("dedup", "blue x")]).await.unwrap();
    assert!(!first.duplicate && !other.duplicate, "{first:?} {other:?}");
}

#[test]
fn rights_are_asked_for_every_verb_and_topic() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.auth(&auth());
        let broker = site.start().await;
        let red = client(&broker, "red", "red").await;
        red.put(&[Send::keyed("open/a", "k", "red 1"), Send::keyed("closed/a", "k", "red 2")]).await;
        let (reader, writer) = (client(&broker, "reader", "red").await, client(&broker, "writer", "red").await);
        let texts = |read: Vec<tidegate_tests::raw::Fetched>| {
            read.iter().map(|record| record.text().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(texts(reader.all("open/*").await), ["red 1"]);
        // A wider pattern gives what is allowed of it, or is refused; never the rest.
        let open = |pattern: &str| OpenFetch { pattern: pattern.into(), ..OpenFetch::default() };
        match reader.fetch(open(">")).await.unwrap().rest().await {
            Ok(read) => assert_eq!(texts(read), ["red 1"]),
            Err(refused) => assert_eq!(refused.code(), Code::Forbidden),
        }
        let refused = reader.fetch(open("closed/a")).await.unwrap().rest().await.unwrap_err();
        assert_eq!(refused.code(), Code::Forbidden);
        let forbidden = [
            ("reader produces", reader.refused(ProduceHead::default(), &[Send::new("open/a", "x")]).await),
            ("writer elsewhere", writer.refused(ProduceHead::default(), &[Send::new("closed/a", "x")]).await),
            (
                "one of two",
                writer.refused(ProduceHead::default(), &[Send::new("open/a", "x"), Send::new("closed/a", "x")]).await,
            ),
            (
                "condition on what it may not read",
                writer
                    .refused(
                        ProduceHead {
                            conditions: vec![Condition {
                                topic: "closed/a".into(),
                                key: b"k".to_vec(),
                                expect: Some(Expect::Version(1)),
                            }],
                            ..ProduceHead::default()
                        },
                        &[Send::new("open/a", "x")],
                    )
                    .await,
            ),
        ];
        for (what, failure) in forbidden {
            assert_eq!(code(&failure), Code::Forbidden, "{what}: {failure:?}");
            assert!(failure.conflict.is_none(), "{what}");
        }
        // A batch without records names no topic, and makes the broker remember its producer all the same.
        let empty = |producer_id| ProduceHead { producer_id, ..ProduceHead::default() };
        assert_eq!(code(&reader.refused(empty(7), &[]).await), Code::Forbidden);
        assert!(writer.produce(empty(8), &[]).await.unwrap().failure.is_none());
        let refused = writer.fetch(open("open/a")).await.unwrap().rest().await.unwrap_err();
        assert_eq!(refused.code(), Code::Forbidden);
        let create = ClientBody::TopicCreate(TopicCreate { name: "closed/b".into() });
        assert_eq!(writer.ask(create).await.unwrap_err().code(), Code::Forbidden);
        // The admin credential gives no admin rights to a principal without the verb.
        let plus = Login { admin_token: admin_token(&site.data()), ..login("reader", "red") };
        let plus = Client::connect(broker.addr, &plus).await.unwrap();
        assert!(!plus.welcome.admin);
        let reload = ClientBody::Reload(wire::Reload { based_on: 0 });
        let refused = plus.ask(reload).await.unwrap_err().code();
        assert!(matches!(refused, Code::AdminRequired | Code::Forbidden), "{refused:?}");
        assert_eq!(red.all(">").await.len(), 2, "nothing was appended by any attempt");
        broker.drain().await;
    });
}

#[test]
fn a_client_certificate_is_a_credential_too() {
    test(LIMIT, async {
        let mut site = Site::new();
        let make = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = rcgen::CertificateParams::new(vec!["app".to_owned()]).unwrap().self_signed(&key).unwrap();
            (certificate.der().to_vec(), key.serialize_der())
        };
        let (known, stranger) = (make(), make());
        let digest = ring::digest::digest(&ring::digest::SHA256, &known.0);
        let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        site.auth(&format!(
            "[[principal]]\nname = \"app\"\ntenant = \"red\"\ncert_sha256 = \"{digest}\"\nallow = [\"produce:>\", \"fetch:>\"]\n"
        ));
        let broker = site.start().await;
        let with = |certificate: &(Vec<u8>, Vec<u8>), tenant: &str| Login {
            tenant: tenant.to_owned(),
            certificate: Some(certificate.clone()),
            ..Login::default()
        };
        let client = Client::connect(broker.addr, &with(&known, "red")).await.unwrap();
        assert_eq!((client.welcome.principal.as_str(), client.welcome.tenant.as_str()), ("app", "red"));
        client.put(&[Send::new("t", "x")]).await;
        for (what, attempt) in [
            ("another tenant", with(&known, "blue")),
            ("a certificate nobody listed", with(&stranger, "red")),
            ("no certificate", Login { tenant: "red".to_owned(), ..Login::default() }),
        ] {
            assert_eq!(
                Client::connect(broker.addr, &attempt).await.unwrap_err().code(),
                Code::Unauthenticated,
                "{what}"
            );
        }
        broker.drain().await;
    });
}

/// Without an auth file there is one tenant, and only this machine may connect.
#[test]
fn without_an_auth_file_there_is_one_tenant_on_this_machine() {
    test(LIMIT, async {
        let site = Site::new();
        let refused = site.start_refused_at("0.0.0.0:0").await;
        assert_eq!(refused.code, Some(64), "{refused:?}");
        assert!(refused.stderr.contains("--auth"), "the line that fixes it: {}", refused.stderr);
        let broker = site.start().await;
        for attempt in [login("red", ""), Login { tenant: "red".into(), ..Login::default() }] {
            assert_eq!(Client::connect(broker.addr, &attempt).await.unwrap_err().code(), Code::Unauthenticated);
        }
        broker.drain().await;
    });
}
