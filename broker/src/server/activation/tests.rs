//! Plugins that change while a broker runs, and over its restarts. Guests are built by `cargo xtask guests`.

use std::net::Ipv4Addr;

use bytes::Bytes;
use tidegate_client::{Code, Connection, ConsumerOptions, Outcome};
use tidegate_protocol::wire::OverrideEnded;

use crate::{
    config::{
        plugins,
        serve::{ServeConfig, prepare},
    },
    server::{
        Running, Server, StartKind,
        tests::{code, options, produce, start},
    },
};

/// A guest that passes everything, and a second version of it: the same code, another digest.
fn guest(version: u8) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/plugins/noop.wasm");
    let mut module = std::fs::read(path).expect("built by `cargo xtask guests`");
    // A custom section: id 0, length, name of one byte, one byte of content.
    module.extend_from_slice(&[0, 3, 1, b'v', version]);
    module
}

fn digests(versions: &[u8]) -> Vec<String> {
    let mut digests: Vec<_> = versions.iter().map(|version| digest(&guest(*version))).collect();
    digests.sort_unstable();
    digests
}

const FILE: &str =
    "version = 1\n[plugin.gate]\nfrom = \"gate.wasm\"\n[[chain]]\ntopics = \"a/*\"\nproduce = [\"gate\"]\n";

struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { dir: tempfile::tempdir().expect("dir") };
        site.write("gate.wasm", &guest(1));
        site.write("plugins.toml", FILE.as_bytes());
        site
    }

    fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.dir.path().join(name), content).expect("written");
    }

    async fn start(&self) -> Running {
        let file = self.dir.path().join("plugins.toml");
        start(&self.dir.path().join("data"), |config| config.plugins = Some(file)).await
    }

    /// Digests of the components that lie in the data directory.
    fn stored(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.dir.path().join("data/plugins")).expect("there");
        let mut names: Vec<_> =
            files.map(|file| format!("sha256:{}", file.expect("one").file_name().display())).collect();
        names.sort_unstable();
        names
    }

    async fn operator(running: &Running) -> Connection {
        Connection::connect(options(running).admin_token(running.admin_token.clone())).await.expect("connected")
    }

    /// Digest, source and drift of the one plugin, and the generation.
    async fn state(connection: &Connection) -> (String, String, String, u64) {
        let plugins = connection.admin().plugins().await.expect("plugins");
        let gate = plugins.plugins.first().expect("one").clone();
        assert_eq!(gate.fault, "");
        (gate.digest, gate.source, gate.drift, plugins.generation)
    }
}

fn digest(content: &[u8]) -> String {
    let hex: String = crate::auth::hash(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swap_under_load_is_one_step_per_topic() {
    let site = Site::new();
    let running = site.start().await;
    let connection = Site::operator(&running).await;
    let producing = {
        let connection = connection.clone();
        tokio::spawn(async move { produce(&connection, "a/1", (0..20_000).map(|at| at.to_string())).await })
    };
    let mut based_on = 1;
    let mut steps = Vec::new();
    for version in 2..6 {
        let swapped = connection.admin().swap("gate", guest(version).into(), based_on).await.expect("swapped");
        assert_eq!((swapped.generation, swapped.unchanged), (based_on + 1, false));
        assert_eq!(swapped.digest, digest(&guest(version)));
        assert_eq!(swapped.previous_digest, digest(&guest(version - 1)));
        steps.push((swapped.generation, swapped.topics.first().map_or(0, |topic| topic.next_offset)));
        based_on = swapped.generation;
    }
    let outcomes = producing.await.expect("produced");
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Appended { .. })), "nothing is refused");
    let mut consumer = connection.consumer(ConsumerOptions::new("a/1")).expect("a consumer");
    let mut next = 0;
    while let Some(batch) = consumer.next().await.expect("a batch") {
        for record in batch.records() {
            assert_eq!(record.offset, next);
            let ran_under = steps.iter().rev().find(|(_, offset)| record.offset >= *offset).map_or(1, |step| step.0);
            assert_eq!(batch.generation(), ran_under, "offset {next}, steps {steps:?}");
            next += 1;
        }
    }
    assert_eq!(next, 20_000);
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swap_outlives_restarts_and_is_drift() {
    let site = Site::new();
    let running = site.start().await;
    let connection = Site::operator(&running).await;
    assert_eq!(Site::state(&connection).await, (digest(&guest(1)), "file".to_owned(), String::new(), 1));
    let error = connection.admin().rollback("gate", 0).await.expect_err("refused");
    assert_eq!(code(error), Code::NothingToRollBack);
    let error = connection.admin().swap("gate", Bytes::from_static(b"not wasm"), 0).await.expect_err("refused");
    assert_eq!(code(error), Code::PluginInvalid);
    let error = connection.admin().swap("gate", guest(2).into(), 7).await.expect_err("refused");
    assert_eq!(code(error), Code::GenerationChanged);
    assert_eq!(
        code(connection.admin().swap("other", guest(2).into(), 0).await.expect_err("refused")),
        Code::PluginUnknown
    );
    assert_eq!(Site::state(&connection).await.3, 1, "nothing changed");
    connection.admin().swap("gate", guest(2).into(), 1).await.expect("swapped");
    let swapped = Site::state(&connection).await;
    assert_eq!((swapped.0.as_str(), swapped.1.as_str(), swapped.3), (digest(&guest(2)).as_str(), "swap", 2));
    assert!(swapped.2.starts_with("runs sha256:") && swapped.2.contains("plugins.toml has sha256:"), "{}", swapped.2);
    let again = connection.admin().swap("gate", guest(2).into(), 0).await.expect("the same");
    assert_eq!((again.unchanged, again.generation), (true, 2));
    running.shutdown().await;

    // The same file again: the override goes on, with its own component, stored by digest.
    let running = site.start().await;
    let connection = Site::operator(&running).await;
    assert_eq!(Site::state(&connection).await, swapped);
    running.shutdown().await;

    // The file is broken: what ran goes on, loudly.
    site.write("plugins.toml", b"version = 1\n[plugin.gate]\nform = \"gate.wasm\"\n");
    let running = site.start().await;
    let connection = Site::operator(&running).await;
    let broken = Site::state(&connection).await;
    assert_eq!((&broken.0, &broken.1, broken.3), (&swapped.0, &swapped.1, swapped.3));
    assert!(
        broken.2.contains("plugins.toml:3: unknown key \"form\" in [plugin.gate]; did you mean \"from\"?"),
        "{}",
        broken.2
    );
    assert_eq!(code(connection.admin().reload(0).await.expect_err("refused")), Code::ConfigInvalid);
    running.shutdown().await;

    // The component's file is gone: the reload says so, what runs is whole.
    site.write("plugins.toml", FILE.as_bytes());
    std::fs::remove_file(site.dir.path().join("gate.wasm")).expect("removed");
    let running = site.start().await;
    let connection = Site::operator(&running).await;
    assert_eq!(Site::state(&connection).await.0, swapped.0);
    let back = connection.admin().rollback("gate", 2).await.expect("rolled back");
    assert_eq!((back.digest, back.generation), (digest(&guest(1)), 3));
    produce(&connection, "a/1", ["v".to_owned()]).await;
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_ends_an_override_says_so() {
    let site = Site::new();
    let running = site.start().await;
    let connection = Site::operator(&running).await;
    let admin = connection.admin();
    admin.swap("gate", guest(2).into(), 0).await.expect("swapped");
    let ended = |next: u8| OverrideEnded {
        plugin: "gate".to_owned(),
        digest: digest(&guest(2)),
        next_digest: digest(&guest(next)),
    };
    // A line of another entry ends nothing.
    let edited = format!("{FILE}[[chain]]\ntopics = \"b\"\nproduce = [\"gate\"]\n");
    site.write("plugins.toml", edited.as_bytes());
    assert_eq!(admin.reload(0).await.expect("reloaded").overrides_ended, []);
    assert_eq!(Site::state(&connection).await.0, digest(&guest(2)));
    site.write("gate.wasm", &guest(3));
    assert_eq!(admin.reload(0).await.expect("reloaded").overrides_ended, [ended(3)]);
    assert_eq!(admin.rollback("gate", 0).await.expect("rolled back").digest, digest(&guest(2)), "it is not lost");
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_refused_is_drift_until_it_is_taken() {
    let site = Site::new();
    let running = site.start().await;
    let connection = Site::operator(&running).await;
    let admin = connection.admin();
    let drift = async || Site::state(&connection).await.2;
    for (text, reason) in [
        (format!("{FILE}[defualts]\n"), "unknown key \"defualts\""),
        (FILE.replace("gate.wasm", "bad.wasm"), "not WebAssembly"),
    ] {
        site.write("bad.wasm", b"this is no component");
        site.write("plugins.toml", text.as_bytes());
        let error = admin.reload(0).await.expect_err("refused");
        let told = drift().await;
        assert!(told.starts_with("file differs and was refused: ") && told.contains(reason), "{told}, {error}");
        assert_eq!(running.broker.activation.drift().len(), 1);
    }
    // An override beside it is told as well.
    admin.swap("gate", guest(2).into(), 0).await.expect("swapped");
    let told = drift().await;
    assert!(told.starts_with("runs sha256:") && told.contains("; file differs and was refused: "), "{told}");
    assert_eq!(code(admin.reload(99).await.expect_err("refused")), Code::GenerationChanged);
    site.write("plugins.toml", FILE.as_bytes());
    assert!(admin.reload(0).await.expect("taken").unchanged);
    let told = drift().await;
    assert!(told.starts_with("runs sha256:") && !told.contains("refused"), "{told}");
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_without_a_file_is_drift() {
    let site = Site::new();
    let running = site.start().await;
    running.shutdown().await;
    let running = start(&site.dir.path().join("data"), |_| {}).await;
    let connection = Site::operator(&running).await;
    let (runs, source, drift, generation) = Site::state(&connection).await;
    assert_eq!((runs, source.as_str(), generation), (digest(&guest(1)), "file", 1));
    assert_eq!(drift, "no plugins.toml is given: it goes on as it was last activated");
    assert_eq!(code(connection.admin().reload(0).await.expect_err("no file")), Code::ConfigInvalid);
    running.shutdown().await;
}

/// A component that was swapped in may exist nowhere else: starting once in the wrong folder must not cost it.
#[tokio::test(flavor = "multi_thread")]
async fn an_override_that_a_start_ends_leaves_the_disk_one_start_later() {
    let site = Site::new();
    let running = site.start().await;
    Site::operator(&running).await.admin().swap("gate", guest(2).into(), 0).await.expect("swapped");
    running.shutdown().await;
    site.write("plugins.toml", b"version = 1\n");
    site.start().await.shutdown().await;
    assert_eq!(site.stored(), digests(&[1, 2]));
    site.start().await.shutdown().await;
    assert_eq!(site.stored(), digests(&[]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_in_memory_leaves_alone_what_one_on_disk_stored() {
    let site = Site::new();
    site.start().await.shutdown().await;
    site.write("gate.wasm", &guest(7));
    let file = site.dir.path().join("plugins.toml");
    let data = site.dir.path().join("data");
    start(&data, |config| (config.plugins, config.memory) = (Some(file), true)).await.shutdown().await;
    assert_eq!(site.stored(), digests(&[1, 7]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_can_go_back_to_leaves_the_disk_with_the_next_start() {
    let site = Site::new();
    let stored = || site.stored();
    let running = site.start().await;
    let connection = Site::operator(&running).await;
    connection.admin().swap("gate", guest(2).into(), 0).await.expect("swapped");
    connection.admin().swap("gate", guest(3).into(), 0).await.expect("swapped");
    running.shutdown().await;

    let running = site.start().await;
    assert_eq!(stored(), digests(&[1, 2, 3]), "all can be gone back to");
    let connection = Site::operator(&running).await;
    assert_eq!(connection.admin().rollback("gate", 0).await.expect("back").digest, digest(&guest(2)));
    assert_eq!(stored(), digests(&[1, 2, 3]), "nothing is removed while it runs");
    running.shutdown().await;

    let running = site.start().await;
    assert_eq!(stored(), digests(&[1, 2]), "the third version is gone");
    running.shutdown().await;

    // Another tenant has the plugin now, and then nobody can speak for it any more.
    let auth = site.dir.path().join("auth.toml");
    let token: String = crate::auth::hash(b"red").iter().map(|byte| format!("{byte:02x}")).collect();
    let principal = "[[principal]]\nname = \"app\"\ntenant = \"red\"\nallow = [\"produce:>\"]\n";
    std::fs::write(&auth, format!("{principal}token_sha256 = \"{token}\"\n")).expect("written");
    site.write("gate.wasm", &guest(7));
    site.write("plugins.toml", FILE.replace("[[chain]]", "[[chain]]\ntenant = \"red\"").as_bytes());
    let file = site.dir.path().join("plugins.toml");
    let data = site.dir.path().join("data");
    start(&data, |config| (config.plugins, config.auth) = (Some(file.clone()), Some(auth))).await.shutdown().await;
    site.write("plugins.toml", b"version = 1\n");
    site.start().await.shutdown().await;
    site.start().await.shutdown().await;
    assert_eq!(stored(), digests(&[7]), "the log still says that the other tenant runs it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_is_all_or_nothing() {
    let site = Site::new();
    let running = site.start().await;
    let connection = Site::operator(&running).await;
    let admin = connection.admin();
    assert!(admin.reload(1).await.expect("nothing new").unchanged);
    // One entry is fine, the other is not a plugin.
    site.write("bad.wasm", b"bad");
    let both =
        format!("{FILE}[plugin.bad]\nfrom = \"bad.wasm\"\n[[chain]]\ntopics = \"b\"\nproduce = [\"bad\", \"gate\"]\n");
    site.write("plugins.toml", both.as_bytes());
    site.write("gate.wasm", &guest(3));
    assert_eq!(code(admin.reload(0).await.expect_err("refused")), Code::PluginInvalid);
    assert_eq!(Site::state(&connection).await.0, digest(&guest(1)), "nothing of it is live");
    site.write("bad.wasm", &guest(9));
    let reloaded = admin.reload(1).await.expect("reloaded");
    assert_eq!((reloaded.generation, reloaded.unchanged), (2, false));
    let plugins = admin.plugins().await.expect("plugins");
    let told: Vec<_> = plugins.plugins.iter().map(|plugin| (plugin.name.as_str(), plugin.digest.clone())).collect();
    assert_eq!(told, [("gate", digest(&guest(3))), ("bad", digest(&guest(9)))]);
    let chain = admin.explain("b").await.expect("a chain");
    let positions: Vec<_> = chain.positions.iter().map(|at| (at.plugin.as_str(), at.place.as_str())).collect();
    assert_eq!(positions, [("bad", "plugins.toml:9"), ("gate", "plugins.toml:9")]);
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_file_without_a_generation_stops_the_start() {
    let site = Site::new();
    site.write("plugins.toml", b"version = 1\nplugin = 3\n");
    let data_dir = site.dir.path().join("data");
    let config = ServeConfig {
        data_dir,
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        http: None,
        plugins: Some(site.dir.path().join("plugins.toml")),
        ..ServeConfig::default()
    };
    let error = Server::start(prepare(&config).expect("holds")).await.expect_err("refused");
    assert_eq!(error.kind(), StartKind::Config);
    assert!(error.to_string().ends_with("plugins.toml:2: \"plugin\" must be a table, not an integer."), "{error}");
    // Nothing is left behind: the next try starts.
    site.write("plugins.toml", FILE.as_bytes());
    assert!(plugins::load(&site.dir.path().join("plugins.toml")).is_ok());
    let running = site.start().await;
    running.shutdown().await;
}
