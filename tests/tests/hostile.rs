//! A plugin can harm nobody else: each hostile guest in a real broker, under both policies, on the way in and on the way out.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests, on the real clock")]

use std::{
    fmt::Write as _,
    fs,
    time::{Duration, Instant},
};

use tidegate_protocol::{
    error::Code,
    wire::{ClientBody, OpenFetch, PluginList, ProduceHead, Reload, ServerBody, Start},
};
use tidegate_tests::{
    broker::{Broker, Site},
    raw::{Client, Refused, Send, code},
    wait::{test, within},
};

const LIMIT: Duration = Duration::from_secs(200);

/// Behaviour, its other settings, and the code under policy `closed`.
const BEHAVIOURS: &[(&str, &str, Code)] = &[
    ("panic", r#"text = "on purpose""#, Code::PluginFault),
    ("spin", "", Code::PluginDeadline),
    ("eat-memory", "", Code::PluginFault),
    ("output-bomb", "count = 200_000", Code::PluginFault),
    ("output-bomb", "count = 9_000_000", Code::PluginFault),
    ("emit-bomb", r#"text = "elsewhere", count = 4_000"#, Code::PluginFault),
    ("unequal", "", Code::PluginFault),
    ("descending", "", Code::PluginFault),
    ("out-of-range", "", Code::PluginFault),
    ("bad-op", "", Code::PluginFault),
    ("exclusive", "", Code::PluginFault),
    ("no-rejection", "", Code::PluginFault),
    ("no-string", "", Code::PluginFault),
    ("string-ends-descend", "", Code::PluginFault),
    ("string-end-outside", "", Code::PluginFault),
    ("topic", r#"text = "a//b""#, Code::PluginFault),
    ("topic", r#"text = """#, Code::PluginFault),
    ("header", r#"text = "tidegate-schema""#, Code::PluginFault),
    ("not-utf8", "", Code::PluginFault),
    ("huge-key", "", Code::PluginFault),
    ("huge-value", "", Code::PluginFault),
    ("many-headers", r#"text = "h""#, Code::PluginFault),
    ("batch-greedy", "", Code::PluginFault),
    ("count-names", "count = 200_000", Code::PluginFault),
    ("permanent", "", Code::PluginFault),
    ("retry", "count = 1_500", Code::PluginRetry),
];

/// Each behaviour stands under each policy on a topic of its own, and acts on records with the key `bad` only.
fn plugins(hook: &str, behaviours: &[(&str, &str, Code)]) -> String {
    let mut text = String::new();
    for (at, (behaviour, more, _)) in behaviours.iter().enumerate() {
        for policy in ["closed", "open"] {
            let more = if more.is_empty() { String::new() } else { format!(", {more}") };
            let name = format!("h{at}-{policy}");
            // Some of these take longer than a hook should: only who spins shall meet the deadline.
            let cpu = if *behaviour == "spin" { "5ms" } else { "2s" };
            write!(
                text,
                "[plugin.{name}]\nfrom = \"hostile.wasm\"\ngrants = [\"log\", \"counters\", \"random\", \"clock\", \"batch\", \
                 \"route:routed/>\", \"emit:elsewhere\"]\nbudget = {{ cpu = \"{cpu}\" }}\non_failure = {{ do = \"{policy}\" }}\n\
                 settings = {{ do = \"{behaviour}\", needs = [\"key\"], only-key = \"bad\"{more} }}\n\
                 [[chain]]\ntopics = \"{policy}/{at}\"\n{hook} = [\"{name}\"]\n"
            )
            .unwrap();
        }
    }
    text
}

fn site(plugins: &str) -> Site {
    let site = Site::new();
    site.install("hostile");
    site.install("noop");
    let calm = "[plugin.noop]\nfrom = \"noop.wasm\"\n[[chain]]\ntopics = \"calm/>\"\nproduce = [\"noop\"]\n";
    site.plugins(&format!("{plugins}{calm}"));
    site
}

fn good(topic: &str) -> Send {
    Send::keyed(topic, "good", "x")
}

fn bad(topic: &str) -> Send {
    Send::keyed(topic, "bad", "x")
}

/// Other topics, with and without plugins, go on; the connection and the broker live.
async fn others_go_on(broker: &mut Broker, client: &Client, what: &str) {
    client.put(&[good("calm/a"), Send::new("plain", "x")]).await;
    assert!(client.connection.close_reason().is_none(), "{what}");
    assert!(broker.lives(), "{what}");
}

#[test]
fn on_the_way_in_each_is_decided_by_its_policy() {
    test(LIMIT, async {
        let site = site(&plugins("produce", BEHAVIOURS));
        let mut broker = site.start().await;
        let client = Client::new(broker.addr).await;
        for (at, (behaviour, more, expected)) in BEHAVIOURS.iter().enumerate() {
            let what = format!("{behaviour} {more}");
            let (closed, open) = (format!("closed/{at}"), format!("open/{at}"));
            // One batch over a hostile topic and a calm one falls as a whole: nothing of it stays.
            for _ in 0..2 {
                let failure =
                    client.refused(ProduceHead::default(), &[good(&closed), bad(&closed), good("plain")]).await;
                assert_eq!(code(&failure), *expected, "{what}: {failure:?}");
                assert_eq!(failure.plugin, format!("h{at}-closed"), "{what}");
                if *expected == Code::PluginRetry {
                    assert_eq!(failure.retry_after_ms, 1_500, "{what}");
                }
                others_go_on(&mut broker, &client, &what).await;
            }
            client.put(&[good(&closed)]).await;
            assert_eq!(client.all(&closed).await.len(), 1, "{what}: only what was acked is there");
            // Open: the batch passes as if the plugin were not there.
            client.put(&[good(&open), bad(&open)]).await;
            let read = client.all(&open).await;
            assert_eq!(read.len(), 2, "{what}");
            assert!(read.iter().all(|record| record.headers.is_empty() && record.text() == "x"), "{what}: {read:?}");
            others_go_on(&mut broker, &client, &what).await;
        }
        assert!(client.all("routed/*").await.is_empty() && client.all("elsewhere").await.is_empty());
        faults_are_counted(&client).await;
        broker.drain().await;
    });
}

async fn faults_are_counted(client: &Client) {
    match client.ask(ClientBody::PluginList(PluginList {})).await.unwrap() {
        ServerBody::Plugins(plugins) => {
            for plugin in plugins.plugins.iter().filter(|plugin| plugin.name != "noop") {
                assert!(plugin.faults > 0, "{plugin:?}");
                assert!(plugin.memory_bytes <= 64 << 20, "{plugin:?}");
            }
        }
        other => panic!("{other:?}"),
    }
}

/// A route outside the grant, into a reserved topic or another name, refuses that record alone.
#[test]
fn a_route_outside_its_grant_refuses_the_record() {
    test(LIMIT, async {
        let behaviours: Vec<_> = ["$sys/topics", "$sys/activations", "secret", "closed/1"]
            .map(|topic| format!("text = \"{topic}\""))
            .into_iter()
            .collect();
        let table: Vec<_> = behaviours.iter().map(|more| ("topic", more.as_str(), Code::RouteNotGranted)).collect();
        let site = site(&plugins("produce", &table));
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        for (at, (_, more, expected)) in table.iter().enumerate() {
            for policy in ["closed", "open"] {
                let topic = format!("{policy}/{at}");
                // The guest names record 0: it is refused, the other goes on.
                let ack = client.put(&[bad(&topic), good(&topic)]).await;
                let fates: Vec<_> = ack.runs.iter().map(|run| (run.status, run.code)).collect();
                assert_eq!(fates, [(2, u32::from(expected.number())), (0, 0)], "{more}");
            }
        }
        assert_eq!(client.all(">").await.len(), 2 * table.len());
        broker.drain().await;
    });
}

/// On the way out: closed ends that subscription with a cursor, after retries; open gives the record as it is stored.
#[test]
fn on_the_way_out_each_is_decided_by_its_policy() {
    test(LIMIT, async {
        let behaviours: Vec<_> = BEHAVIOURS
            .iter()
            .filter(|(behaviour, ..)| {
                matches!(*behaviour, "panic" | "spin" | "eat-memory" | "descending" | "out-of-range" | "topic")
            })
            .copied()
            .collect();
        let site = site(&plugins("fetch", &behaviours));
        site.allow_log("fetch chain failed");
        let mut broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let read = |topic: String, start| OpenFetch { pattern: topic, start: Some(start), ..OpenFetch::default() };
        let mut waits = Vec::new();
        for (at, behaviour) in behaviours.iter().enumerate() {
            let (closed, open) = (format!("closed/{at}"), format!("open/{at}"));
            client.put(&[good(&closed), good(&open)]).await;
            client.put(&[bad(&closed), bad(&open)]).await;
            client.put(&[good(&closed), good(&open)]).await;
            assert_eq!(client.all(&open).await.len(), 3, "{behaviour:?}");
            // The retries take seconds: all subscriptions wait at once.
            let mut fetching = client.fetch(read(closed, Start::Earliest(true))).await.unwrap();
            waits.push(async move {
                let first = fetching.take(1).await.unwrap();
                let end = loop {
                    if let Err(end) = fetching.next().await {
                        break end;
                    }
                };
                (first, end)
            });
        }
        let ends = within(LIMIT, "the end of the subscriptions", futures::future::join_all(waits)).await;
        for (at, (first, end)) in ends.into_iter().enumerate() {
            let what = format!("{:?}", behaviours[at]);
            assert_eq!(first[0].offset, 0, "{what}");
            let Refused::Failure(failure) = end else { panic!("{what}: {end:?}") };
            assert_eq!(code(&failure), Code::PluginFailed, "{what}: {failure:?}");
            assert_eq!(failure.plugin, format!("h{at}-closed"), "{what}");
            // The cursor stands before the record: once the plugin is repaired, nothing is missing.
            let resumed = client.fetch(read(format!("closed/{at}"), Start::Cursor(failure.cursor))).await.unwrap();
            drop(resumed);
            others_go_on(&mut broker, &client, &what).await;
        }
        // Repaired: the chain goes away, and the reader goes on where it stood.
        site.plugins("");
        let admin = Client::admin(broker.addr, &site.data()).await;
        admin.ask(ClientBody::Reload(Reload { based_on: 0 })).await.unwrap();
        for at in 0..behaviours.len() {
            let offsets: Vec<u64> =
                client.all(&format!("closed/{at}")).await.iter().map(|record| record.offset).collect();
            assert_eq!(offsets, [0, 1, 2]);
        }
        broker.drain().await;
    });
}

/// Guests that spin on every call of theirs, on several connections: the topics beside them keep their pace.
#[test]
fn spinners_do_not_slow_others() {
    test(LIMIT, async {
        let site = site(&plugins("produce", &[("spin", "", Code::PluginDeadline), ("spin", "", Code::PluginDeadline)]));
        let mut broker = site.start().await;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let mut tasks = tokio::task::JoinSet::new();
        for at in 0..4 {
            let client = Client::new(broker.addr).await;
            let stopped = stopped.clone();
            tasks.spawn(async move {
                let mut refused = 0;
                while !*stopped.borrow() {
                    let failure = client.refused(ProduceHead::default(), &[bad(&format!("closed/{}", at % 2))]).await;
                    assert!(matches!(code(&failure), Code::PluginDeadline | Code::Overloaded), "{failure:?}");
                    refused += 1;
                }
                refused
            });
        }
        let client = Client::new(broker.addr).await;
        let (mut slowest, mut times) = (Duration::ZERO, Vec::new());
        for _ in 0..200 {
            let start = Instant::now();
            client.put(&[good("calm/a"), Send::new("plain", "x")]).await;
            slowest = slowest.max(start.elapsed());
            times.push(start.elapsed());
        }
        stop.send_replace(true);
        let mut refused = 0;
        while let Some(count) = tasks.join_next().await {
            refused += count.unwrap();
        }
        times.sort_unstable();
        assert!(refused > 20, "the spinners spun: {refused}");
        // Far above two budgets, since other tests share the cores: what this must find is a stopped thread.
        assert!(times[times.len() / 2] < Duration::from_millis(250), "median {:?}", times[times.len() / 2]);
        assert!(slowest < Duration::from_secs(5), "{slowest:?}");
        others_go_on(&mut broker, &client, "spinners").await;
        broker.drain().await;
    });
}

/// A version that fails its checks never becomes active, whichever way it fails.
#[test]
fn an_init_that_fails_changes_nothing() {
    test(LIMIT, async {
        let site = Site::new();
        site.install("hostile");
        site.allow_log("change of plugins refused");
        let file = |settings: &str, budget: &str| {
            format!(
                "[plugin.h]\nfrom = \"hostile.wasm\"\n{budget}\ngrants = [\"log\", \"counters\", \"random\", \"clock\", \"batch\"]\n\
                 settings = {{ {settings} }}\n[[chain]]\ntopics = \"t\"\nproduce = [\"h\"]\n"
            )
        };
        site.plugins(&file("do = \"pass\"", ""));
        let mut broker = site.start().await;
        let admin = Client::admin(broker.addr, &site.data()).await;
        let generation = admin.put(&[good("t")]).await.generation;
        let short = "budget = { init = \"100ms\" }";
        for (settings, budget, told) in [
            ("init = \"panic\"", "", "panic"),
            ("init = \"fail\"", "", "the settings are wrong"),
            ("init = \"spin\"", short, "init"),
            ("init = \"retry\"", "", "not yet"),
            // The smoke run finds what init does not.
            ("do = \"panic\", text = \"first call\"", "", "first call"),
            ("do = \"spin\"", "", "h"),
            ("do = \"out-of-range\"", "", "position"),
        ] {
            site.plugins(&file(settings, budget));
            match admin.ask(ClientBody::Reload(Reload { based_on: 0 })).await {
                Err(Refused::Failure(failure)) => {
                    assert_eq!(code(&failure), Code::PluginInvalid, "{settings}: {failure:?}");
                    assert!(failure.message.contains(told), "{settings}: {:?}", failure.message);
                }
                other => panic!("{settings}: {other:?}"),
            }
            assert_eq!(admin.put(&[good("t")]).await.generation, generation, "{settings}");
            assert!(broker.lives(), "{settings}");
        }
        broker.drain().await;
    });
}

/// What ran before can no longer be loaded: the broker starts, says so, and each policy decides.
#[test]
fn a_plugin_that_cannot_be_loaded_after_a_restart_is_decided_by_its_policy() {
    test(LIMIT, async {
        let site = site(&plugins("produce", &[("panic", "", Code::PluginFault)]));
        site.allow_log("cannot be loaded");
        site.allow_log("plugins.toml");
        let broker = site.start().await;
        Client::new(broker.addr).await.put(&[good("closed/0"), good("open/0")]).await;
        broker.drain().await;
        // The component is gone everywhere: in the store, in the cache, and where the file names it.
        for directory in ["plugins", "cache"] {
            fs::remove_dir_all(site.data().join(directory)).unwrap();
        }
        fs::remove_file(site.path("hostile.wasm")).unwrap();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let failure = client.refused(ProduceHead::default(), &[good("closed/0")]).await;
        assert_eq!(code(&failure), Code::PluginUnavailable, "{failure:?}");
        client.put(&[good("open/0"), Send::new("plain", "x")]).await;
        match client.ask(ClientBody::PluginList(PluginList {})).await.unwrap() {
            ServerBody::Plugins(plugins) => {
                let gone = plugins.plugins.iter().find(|plugin| plugin.name == "h0-closed").unwrap();
                assert!(!gone.fault.is_empty(), "{gone:?}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(client.all(">").await.len(), 4, "what was stored can be read");
        broker.drain().await;
    });
}
