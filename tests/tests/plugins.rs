//! Changing plugins in a running broker: what is refused leaves the old running; what is live survives restarts.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, time::Duration};

use tidegate_protocol::{
    error::Code,
    wire::{self, Activated, ClientBody, PluginInfo, ServerBody},
};
use tidegate_tests::{
    broker::{Site, component},
    components,
    raw::{Client, Login, Refused, Send, admin_token},
    wait::{count, test},
};

const LIMIT: Duration = Duration::from_secs(150);

const PLUGINS: &str = r#"
[plugin.stamp]
from   = "stamp-v1.wasm"
grants = ["log"]

[[chain]]
topics  = "stamped/>"
produce = ["stamp"]
"#;

fn site() -> Site {
    let site = Site::new();
    site.install("stamp-v1");
    site.plugins(PLUGINS);
    // A refused change is a warning: somebody wanted something that did not happen.
    site.allow_log("change of plugins refused");
    site
}

async fn change(client: &Client, body: ClientBody) -> Result<Activated, Refused> {
    match client.ask(body).await? {
        ServerBody::Activated(activated) => Ok(activated),
        other => panic!("{other:?}"),
    }
}

async fn swap(client: &Client, component: Vec<u8>, based_on: u64) -> Result<Activated, Refused> {
    change(client, ClientBody::PluginSwap(wire::PluginSwap { name: "stamp".into(), component, based_on })).await
}

async fn rollback(client: &Client) -> Result<Activated, Refused> {
    change(client, ClientBody::PluginRollback(wire::PluginRollback { name: "stamp".into(), based_on: 0 })).await
}

async fn reload(client: &Client) -> Result<Activated, Refused> {
    change(client, ClientBody::Reload(wire::Reload { based_on: 0 })).await
}

async fn plugins(client: &Client) -> (u64, PluginInfo) {
    match client.ask(ClientBody::PluginList(wire::PluginList {})).await.unwrap() {
        ServerBody::Plugins(plugins) => {
            let stamp = plugins.plugins.iter().find(|plugin| plugin.name == "stamp").unwrap().clone();
            (plugins.generation, stamp)
        }
        other => panic!("{other:?}"),
    }
}

fn wasm(name: &str) -> Vec<u8> {
    fs::read(component(name)).unwrap()
}

/// Produces one record and says which version stamped it.
async fn stamp(client: &Client, topic: &str) -> String {
    let ack = client.put(&[Send::new(topic, "x")]).await;
    let read = client.all(topic).await;
    let last = read.last().unwrap();
    assert_eq!(last.generation, ack.generation);
    last.header("stamp").unwrap_or("none").to_owned()
}

#[test]
fn a_component_that_cannot_run_is_refused_and_the_old_one_stays() {
    test(LIMIT, async {
        let site = site();
        let broker = site.start().await;
        let admin = Client::admin(broker.addr, &site.data()).await;
        let (generation, before) = plugins(&admin).await;
        let version = stamp(&admin, "stamped/a").await;
        let good = wasm("stamp-v2");
        let bad: Vec<(&str, Vec<u8>, &str)> = vec![
            ("nothing", Vec::new(), "8 bytes"),
            ("text", b"this is no component, whatever its name says".to_vec(), "not WebAssembly"),
            ("half a component", good[..good.len() / 2].to_vec(), "stamp"),
            ("a bare module", b"\0asm\x01\0\0\0".to_vec(), "lifecycle"),
            (
                "a flipped byte",
                {
                    let mut bytes = good.clone();
                    bytes[8] ^= 0xff;
                    bytes
                },
                "stamp",
            ),
            ("another world version", components::replaced("stamp-v2", "@0.1.0", "@0.9.0"), "0.9.0"),
            ("wasi", components::importing("wasi:cli/environment@0.2.0"), "wasi:cli/environment@0.2.0"),
            ("an import that is not granted", components::importing("tidegate:plugin/clock@0.1.0"), "clock"),
            ("an import nobody has", components::importing("acme:thing/door@1.0.0"), "acme:thing/door@1.0.0"),
        ];
        for (what, bytes, told) in bad {
            match swap(&admin, bytes, 0).await {
                Err(Refused::Failure(failure)) => {
                    assert_eq!(tidegate_tests::raw::code(&failure), Code::PluginInvalid, "{what}: {failure:?}");
                    assert!(failure.message.contains(told), "{what}: {told:?} is missing in {:?}", failure.message);
                }
                other => panic!("{what}: {other:?}"),
            }
            let (now, plugin) = plugins(&admin).await;
            assert_eq!((now, &plugin.digest), (generation, &before.digest), "{what}");
            assert_eq!(stamp(&admin, "stamped/a").await, version, "{what}");
        }
        let unknown = wire::PluginSwap { name: "nobody".into(), component: good.clone(), based_on: 0 };
        let refused = change(&admin, ClientBody::PluginSwap(unknown)).await.unwrap_err();
        assert_eq!(refused.code(), Code::PluginUnknown);
        // And a good one goes through.
        let activated = swap(&admin, good, generation).await.unwrap();
        assert_eq!((activated.generation, &activated.previous_digest), (generation + 1, &before.digest));
        assert_ne!(stamp(&admin, "stamped/a").await, version);
        broker.drain().await;
    });
}

/// A component cut anywhere, and one whose component type is damaged, is refused in words; never by a panic.
#[test]
fn damaged_components_are_refused_or_run() {
    test(LIMIT, async {
        let site = site();
        let broker = site.start().await;
        let admin = Client::admin(broker.addr, &site.data()).await;
        let good = wasm("stamp-v2");
        let cuts = count(20, 500);
        for at in 0..cuts {
            let cut = 8 + at * (good.len() - 9) / cuts;
            let refused = swap(&admin, good[..cut].to_vec(), 0).await.unwrap_err();
            assert_eq!(refused.code(), Code::PluginInvalid, "cut at {cut}");
        }
        let section = good.windows(14).position(|window| window == b"component-type").expect("an embedded type");
        let flips = count(40, 2_000);
        for at in 0..flips {
            let mut bytes = good.clone();
            let place = section + at * (good.len() - section - 1) / flips;
            bytes[place] ^= 1 << (at % 8);
            // Some places hold what nobody reads: such a component runs.
            if let Err(refused) = swap(&admin, bytes, 0).await {
                assert_eq!(refused.code(), Code::PluginInvalid, "flipped at {place}");
            }
        }
        swap(&admin, good, 0).await.unwrap();
        stamp(&admin, "stamped/a").await;
        broker.drain().await;
    });
}

#[test]
fn of_two_changes_based_on_one_generation_one_wins() {
    test(LIMIT, async {
        let site = site();
        let broker = site.start().await;
        let (one, two) =
            (Client::admin(broker.addr, &site.data()).await, Client::admin(broker.addr, &site.data()).await);
        let mut generation = plugins(&one).await.0;
        for round in 0..6 {
            let next = if round % 2 == 0 { "stamp-v2" } else { "stamp-v1" };
            let (a, b) = tokio::join!(swap(&one, wasm(next), generation), swap(&two, wasm(next), generation));
            let (won, lost): (Vec<_>, Vec<_>) = [a, b].into_iter().partition(Result::is_ok);
            assert_eq!((won.len(), lost.len()), (1, 1), "{won:?} {lost:?}");
            assert_eq!(lost[0].as_ref().unwrap_err().code(), Code::GenerationChanged);
            generation = won[0].as_ref().unwrap().generation;
            assert_eq!(plugins(&two).await.0, generation, "the loser changed nothing");
        }
        let old = swap(&one, wasm("stamp-v2"), generation - 1).await.unwrap_err();
        assert_eq!(old.code(), Code::GenerationChanged);
        broker.drain().await;
    });
}

#[test]
fn a_rollback_brings_the_version_before() {
    test(LIMIT, async {
        let site = site();
        let broker = site.start().await;
        let admin = Client::admin(broker.addr, &site.data()).await;
        let first = stamp(&admin, "stamped/a").await;
        assert_eq!(rollback(&admin).await.unwrap_err().code(), Code::NothingToRollBack);
        let swapped = swap(&admin, wasm("stamp-v2"), 0).await.unwrap();
        let second = stamp(&admin, "stamped/a").await;
        assert_ne!(first, second);
        let back = rollback(&admin).await.unwrap();
        assert_eq!((back.digest, back.previous_digest), (swapped.previous_digest, swapped.digest));
        assert_eq!(back.generation, swapped.generation + 1, "a rollback is a generation of its own");
        assert_eq!(stamp(&admin, "stamped/a").await, first);
        let generations: Vec<u64> = admin.all("stamped/a").await.iter().map(|record| record.generation).collect();
        assert!(generations.is_sorted(), "{generations:?}");
        broker.drain().await;
    });
}

#[test]
fn a_command_line_swap_survives_a_restart_and_is_shown_as_drift() {
    test(LIMIT, async {
        let site = site();
        let broker = site.start().await;
        let admin = Client::admin(broker.addr, &site.data()).await;
        let (_, plugin) = plugins(&admin).await;
        assert_eq!((plugin.source.as_str(), plugin.drift.as_str()), ("file", ""));
        let swapped = swap(&admin, wasm("stamp-v2"), 0).await.unwrap();
        let version = stamp(&admin, "stamped/a").await;
        broker.kill();
        for end in ["kill", "drain"] {
            let broker = site.start().await;
            let admin = Client::admin(broker.addr, &site.data()).await;
            let (generation, plugin) = plugins(&admin).await;
            assert_eq!((generation, plugin.source.as_str()), (swapped.generation, "swap"), "{end}");
            assert_eq!(plugin.digest, swapped.digest, "{end}");
            assert!(!plugin.drift.is_empty(), "what runs is not what the file says");
            assert_eq!(stamp(&admin, "stamped/a").await, version, "{end}");
            // A reload of a file whose entry did not change leaves the override alone.
            assert!(reload(&admin).await.unwrap().unchanged);
            assert_eq!(plugins(&admin).await.1.digest, swapped.digest);
            if end == "kill" { broker.kill() } else { broker.drain().await }
        }
        // An edit of the entry ends it.
        let broker = site.start().await;
        let admin = Client::admin(broker.addr, &site.data()).await;
        site.plugins(&PLUGINS.replace("grants = [\"log\"]", "grants = [\"log\", \"clock\"]"));
        site.allow_log("plugins.toml ends an override of the command line");
        let reloaded = reload(&admin).await.unwrap();
        assert!(!reloaded.unchanged);
        let ended: Vec<_> = reloaded.overrides_ended.iter().map(|ended| (&*ended.plugin, &*ended.digest)).collect();
        assert_eq!(ended, [("stamp", &*swapped.digest)]);
        let line = format!("plugin=\"stamp\" digest=\"{}\"", swapped.digest);
        assert!(site.log().contains(&line), "the log names what ended: {line}");
        let (_, plugin) = plugins(&admin).await;
        assert_eq!((plugin.source.as_str(), plugin.drift.as_str()), ("file", ""));
        assert_ne!(plugin.digest, swapped.digest);
        broker.drain().await;
    });
}

#[test]
fn a_restart_needs_no_component_file() {
    test(LIMIT, async {
        let site = site();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let version = stamp(&client, "stamped/a").await;
        broker.drain().await;
        fs::remove_file(site.path("stamp-v1.wasm")).unwrap();
        site.allow_log("stamp-v1.wasm");
        for _ in 0..2 {
            let broker = site.start().await;
            let client = Client::new(broker.addr).await;
            assert_eq!(stamp(&client, "stamped/a").await, version);
            broker.kill();
        }
    });
}

#[test]
fn a_start_without_the_file_goes_on_and_says_so() {
    test(LIMIT, async {
        let mut site = site();
        let broker = site.start().await;
        let version = stamp(&Client::new(broker.addr).await, "stamped/a").await;
        broker.drain().await;
        site.plugins_nowhere();
        site.allow_log("no plugins.toml is given: the last generation goes on");
        let broker = site.start().await;
        let admin = Client::admin(broker.addr, &site.data()).await;
        assert_eq!(stamp(&admin, "stamped/a").await, version);
        assert!(site.log().contains("WARN") && site.log().contains("no plugins.toml is given"), "{}", site.log());
        let told = site.tidegate(&broker, &["plugins"]).await;
        assert!(told.stdout.contains("drift: no plugins.toml is given") && !told.stdout.contains("as in the file"));
        broker.drain().await;
    });
}

#[test]
fn a_broken_file_changes_nothing_at_reload_and_at_restart() {
    test(LIMIT, async {
        let site = site();
        site.allow_log("plugins.toml");
        let broker = site.start().await;
        let admin = Client::admin(broker.addr, &site.data()).await;
        let (version, generation) = (stamp(&admin, "stamped/a").await, plugins(&admin).await.0);
        let broken = [
            (format!("{PLUGINS}polcy = 1\n"), "polcy"),
            (PLUGINS.replace("stamp-v1.wasm", "missing.wasm"), "missing.wasm"),
            (PLUGINS.replace("\"log\"", "\"lug\""), "lug"),
            (PLUGINS.replace("[\"stamp\"]", "[\"stemp\"]"), "stemp"),
            ("[plugin".to_owned(), "plugins.toml:2"),
        ];
        for (text, told) in &broken {
            site.plugins(text);
            match reload(&admin).await {
                Err(Refused::Failure(failure)) => {
                    let code = tidegate_tests::raw::code(&failure);
                    assert!(matches!(code, Code::ConfigInvalid | Code::PluginInvalid), "{told}: {failure:?}");
                    assert!(failure.message.contains(told), "{told:?} is missing in {:?}", failure.message);
                    assert!(failure.message.contains("plugins.toml:"), "no line: {:?}", failure.message);
                }
                other => panic!("{told}: {other:?}"),
            }
            assert_eq!(plugins(&admin).await.0, generation);
            assert_eq!(stamp(&admin, "stamped/a").await, version);
        }
        broker.kill();
        // The log decides what runs: a broken file is said, and what ran before goes on.
        for (text, told) in &broken {
            site.plugins(text);
            let broker = site.start().await;
            let client = Client::new(broker.addr).await;
            assert_eq!(stamp(&client, "stamped/a").await, version, "{told}");
            broker.kill();
        }
        assert!(site.log().contains("plugins.toml"), "the broker says what is wrong");
    });
}

#[test]
fn a_reload_is_all_or_nothing() {
    test(LIMIT, async {
        let site = site();
        site.install("stamp-v2");
        let broker = site.start().await;
        let admin = Client::admin(broker.addr, &site.data()).await;
        let generation = plugins(&admin).await.0;
        assert!(reload(&admin).await.unwrap().unchanged, "nothing was edited");
        assert_eq!(plugins(&admin).await.0, generation);
        // One plugin of two cannot run: the other must not change either.
        let second =
            "[plugin.second]\nfrom = \"corrupt.wasm\"\n[[chain]]\ntopics = \"stamped/b\"\nproduce = [\"second\"]\n";
        fs::write(site.path("corrupt.wasm"), b"\0asm\x01\0\0\0").unwrap();
        site.plugins(&format!("{}{second}", PLUGINS.replace("stamp-v1", "stamp-v2")));
        assert_eq!(reload(&admin).await.unwrap_err().code(), Code::PluginInvalid);
        let (now, plugin) = plugins(&admin).await;
        assert_eq!((now, plugin.source.as_str()), (generation, "file"));
        let version = stamp(&admin, "stamped/a").await;
        fs::write(site.path("corrupt.wasm"), wasm("stamp-v1")).unwrap();
        let reloaded = reload(&admin).await.unwrap();
        assert_eq!(reloaded.generation, generation + 1, "one change, one generation");
        assert_ne!(stamp(&admin, "stamped/a").await, version);
        broker.drain().await;
    });
}

/// A tenant's chain, its swaps and its rights are its own.
#[test]
fn tenants_do_not_share_plugins() {
    test(LIMIT, async {
        let mut site = site();
        site.plugins(&PLUGINS.replace("[[chain]]", "[[chain]]\ntenant = \"red\""));
        let hash = |token: &str| {
            let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
            digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let principal = |name: &str| {
            let (token, allow) = (hash(name), r#"["produce:>", "fetch:>", "topics:>", "admin"]"#);
            format!(
                "[[principal]]\nname = \"{name}\"\ntenant = \"{name}\"\ntoken_sha256 = \"{token}\"\nallow = {allow}\n"
            )
        };
        site.auth(&format!("{}{}", principal("red"), principal("blue")));
        let broker = site.start().await;
        let admin = async |name: &str| {
            let admin_token = admin_token(&site.data());
            let login = Login { tenant: name.into(), token: name.into(), admin_token, ..Login::default() };
            Client::connect(broker.addr, &login).await.unwrap()
        };
        let (red, blue) = (admin("red").await, admin("blue").await);
        let first = stamp(&red, "stamped/a").await;
        assert_ne!(first, "none");
        assert_eq!(stamp(&blue, "stamped/a").await, "none");
        assert_eq!(swap(&blue, wasm("stamp-v2"), 0).await.unwrap_err().code(), Code::PluginUnknown);
        assert_eq!(rollback(&blue).await.unwrap_err().code(), Code::PluginUnknown);
        match blue.ask(ClientBody::PluginList(wire::PluginList {})).await.unwrap() {
            ServerBody::Plugins(plugins) => assert!(plugins.plugins.is_empty(), "{plugins:?}"),
            other => panic!("{other:?}"),
        }
        match blue.ask(ClientBody::ChainExplain(wire::ChainExplain { topic: "stamped/a".into() })).await.unwrap() {
            ServerBody::Chain(chain) => assert!(chain.positions.is_empty(), "{chain:?}"),
            other => panic!("{other:?}"),
        }
        swap(&red, wasm("stamp-v2"), 0).await.unwrap();
        assert_ne!(stamp(&red, "stamped/a").await, first);
        assert_eq!(stamp(&blue, "stamped/a").await, "none");
        broker.drain().await;
    });
}
