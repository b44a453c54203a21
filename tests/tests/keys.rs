//! Keys are streams: one key is read, followed, its head asked for and listed, whether its records lie in memory, the WAL or
//! segments.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use tidegate_protocol::{
    error::Code,
    wire::{ClientBody, KeyList, OpenFetch, ServerBody, Start},
};
use tidegate_tests::{
    broker::{Broker, Site},
    raw::{self, Client, Fetched, Login, Refused, Send},
    wait::{test, until},
};

const LIMIT: Duration = Duration::from_secs(120);

fn of_key(topic: &str, key: &str, start: Start, follow: bool) -> OpenFetch {
    let (pattern, key, start) = (topic.to_owned(), Some(key.as_bytes().to_vec()), Some(start));
    OpenFetch { pattern, key, start, follow, ..OpenFetch::default() }
}

async fn print(site: &Site, broker: &Broker, line: &str) -> String {
    let arguments: Vec<&str> = line.split(' ').collect();
    let ended = site.tidegate(broker, &arguments).await;
    assert_eq!(ended.code, Some(0), "tidegate {line}: {ended:?}");
    ended.stdout
}

/// What the segments of the site's broker are called, once there are some.
async fn segments(site: &Site) -> Vec<String> {
    until(LIMIT, "segments", async || {
        let folder = std::fs::read_dir(site.data().join("objects/seg")).ok()?;
        let names: Vec<_> = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        (!names.is_empty()).then_some(names)
    })
    .await
}

async fn keys(client: &Client, topic: &str) -> Result<Vec<String>, Code> {
    let list = KeyList { topic: topic.to_owned(), ..KeyList::default() };
    match client.ask(ClientBody::KeyList(list)).await {
        Ok(ServerBody::Keys(keys)) => {
            Ok(keys.keys.into_iter().map(|info| String::from_utf8(info.key).unwrap()).collect())
        }
        Ok(ServerBody::Failure(failure)) | Err(Refused::Failure(failure)) => Err(raw::code(&failure)),
        other => panic!("{other:?}"),
    }
}

fn places(records: &[Fetched]) -> Vec<(u64, u64)> {
    records.iter().map(|fetched| (fetched.offset, fetched.version)).collect()
}

#[test]
fn a_key_is_read_followed_and_listed_through_memory_wal_and_segments() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.arguments(&["--tail-size", "64KiB", "--wal-file-size", "64KiB"]);
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let value = "x".repeat(500);
        for round in 0..1_500 {
            let hot = Send::keyed("orders/eu", format!("k{}", round % 150), value.clone());
            let once = Send::keyed("orders/eu", format!("once{round}"), "-");
            client.put(&[hot, once, Send::keyed("orders/us", "k7", value.clone())]).await;
        }
        assert!(segments(&site).await.iter().any(|name| name.starts_with("0000000000000000")), "the first records");
        let all = client.all("orders/eu").await;
        let wanted: Vec<Fetched> =
            all.iter().filter(|fetched| fetched.key.as_deref() == Some(b"k7")).cloned().collect();
        assert_eq!(wanted.len(), 10);
        let read =
            client.fetch(of_key("orders/eu", "k7", Start::Earliest(true), false)).await.unwrap().rest().await.unwrap();
        assert_eq!(places(&read), places(&wanted));
        assert!(
            read.iter()
                .all(|fetched| fetched.topic == "orders/eu" && fetched.value.as_deref() == Some(value.as_bytes()))
        );
        // Bounded and resumed at its cursor, it is the same.
        let mut first = of_key("orders/eu", "k7", Start::Earliest(true), false);
        first.records_max = 4;
        let mut fetching = client.fetch(first).await.unwrap();
        let mut read = fetching.take(4).await.unwrap();
        let rest = of_key("orders/eu", "k7", Start::Cursor(fetching.cursor.clone()), false);
        read.extend(client.fetch(rest).await.unwrap().rest().await.unwrap());
        assert_eq!(places(&read), places(&wanted));
        // Its head, and then live.
        let mut live = client.fetch(of_key("orders/eu", "k7", Start::KeyHead(true), true)).await.unwrap();
        assert_eq!(places(&live.take(1).await.unwrap()), places(&wanted[9..]));
        client.put(&[Send::keyed("orders/eu", "k8", "new")]).await;
        client.put(&[Send::keyed("orders/eu", "k7", "new")]).await;
        let new = live.take(1).await.unwrap();
        assert_eq!((new[0].version, new[0].value.as_deref()), (11, Some(&b"new"[..])));
        // What cannot be asked.
        for (open, code) in [
            (of_key("orders/*", "k7", Start::Earliest(true), false), Code::PatternInvalid),
            (OpenFetch { key: None, ..of_key("orders/eu", "", Start::KeyHead(true), false) }, Code::ProtocolViolation),
            (of_key("nowhere", "k7", Start::Earliest(true), false), Code::TopicUnknown),
        ] {
            match client.fetch(open).await.unwrap().rest().await {
                Err(Refused::Failure(failure)) => assert_eq!(raw::code(&failure), code),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(print(&site, &broker, "consume orders/eu --key k7 --latest").await, "orders/eu@3001 k7 new\n");
        assert_eq!(print(&site, &broker, "consume orders/eu --key absent --latest").await, "");
        let lines = print(&site, &broker, "consume orders/eu --key once1499").await;
        assert_eq!(lines, "orders/eu@2999 once1499 -\n");
        let listed = print(&site, &broker, "keys list orders/eu --prefix k14 --output json").await;
        let keys: Vec<_> = listed.lines().map(|line| line.split('"').nth(3).unwrap().to_owned()).collect();
        assert_eq!(keys, ["k14", "k140", "k141", "k142", "k143", "k144", "k145", "k146", "k147", "k148", "k149"]);
        assert!(listed.starts_with(r#"{"key":"k14","version":10,"last_offset":"#), "{listed}");
        broker.drain().await;
    });
}

#[test]
fn a_key_in_a_segment_passes_the_fetch_chain_like_any_other_read() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.arguments(&["--tail-size", "64KiB", "--wal-file-size", "64KiB"]);
        site.install("redact");
        site.plugins(
            "[plugin.redact]\nfrom = \"redact.wasm\"\nsettings = { pointers = [\"/email\"] }\n\
             [[chain]]\ntopics = [\"people\"]\nfetch = [\"redact\"]\n",
        );
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let person = |key: &str| Send::keyed("people", key.to_owned(), r#"{"email":"ann@example.org","city":"Bonn"}"#);
        client.put(&[person("ann")]).await;
        for at in 0..500 {
            client.put(&[Send::keyed("people", format!("{at}"), "x".repeat(2_000))]).await;
        }
        client.put(&[person("ann")]).await;
        assert!(segments(&site).await.iter().any(|name| name.starts_with("0000000000000000")), "the first record");
        let read = of_key("people", "ann", Start::Earliest(true), false);
        let read = client.fetch(read).await.unwrap().rest().await.unwrap();
        assert_eq!(places(&read), [(0, 1), (501, 2)]);
        for fetched in &read {
            assert!(!fetched.text().contains("ann@"), "{}", fetched.text());
            assert!(fetched.text().contains("Bonn"), "{}", fetched.text());
        }
        broker.drain().await;
    });
}

#[test]
fn keys_are_listed_only_to_those_who_see_them_as_stored() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.install("redact");
        site.plugins(
            "[plugin.redact]\nfrom = \"redact.wasm\"\nsettings = { pointers = [\"/email\"] }\n\
             [[chain]]\ntopics = [\"people\"]\nfetch = [{ use = \"redact\", unless = \"role:auditor\" }]\n",
        );
        let principal = |name: &str, tenant: &str, role: &str, allow: &str| {
            let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
            let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            format!(
                "[[principal]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nrole = \"{role}\"\ntoken_sha256 = \"{hash}\"\n\
                 allow = [{allow}]\n"
            )
        };
        site.auth(
            &[
                principal("owner", "default", "clerk", r#""produce:>", "fetch:>", "admin""#),
                principal("clerk", "default", "clerk", r#""fetch:>""#),
                principal("auditor", "default", "auditor", r#""fetch:people""#),
                principal("other", "other", "auditor", r#""fetch:>""#),
            ]
            .concat(),
        );
        let broker = site.start().await;
        let login = |name: &str, tenant: &str, admin_token: String| Login {
            tenant: tenant.to_owned(),
            token: name.to_owned(),
            admin_token,
            ..Login::default()
        };
        let connect = async |login: Login| Client::connect(broker.addr, &login).await.unwrap();
        let owner = connect(login("owner", "", String::new())).await;
        let admin = connect(login("owner", "", raw::admin_token(&site.data()))).await;
        let clerk = connect(login("clerk", "", String::new())).await;
        let auditor = connect(login("auditor", "", String::new())).await;
        let other = connect(login("other", "other", String::new())).await;
        owner.put(&[Send::keyed("people", "ann", "{}"), Send::keyed("open", "k", "-")]).await;
        let ann = || Ok(vec!["ann".to_owned()]);
        assert_eq!(keys(&owner, "people").await, Err(Code::AdminRequired));
        assert_eq!(keys(&clerk, "people").await, Err(Code::AdminRequired));
        assert_eq!((keys(&admin, "people").await, keys(&auditor, "people").await), (ann(), ann()));
        assert_eq!(keys(&clerk, "open").await, Ok(vec!["k".to_owned()]));
        assert_eq!(keys(&auditor, "open").await, Err(Code::Forbidden));
        assert_eq!(keys(&other, "people").await, Err(Code::TopicUnknown));
        for client in [&clerk, &admin] {
            assert_eq!(keys(client, "$sys/topics").await, Err(Code::TopicReserved));
        }
        broker.drain().await;
    });
}
