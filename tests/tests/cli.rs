//! The commands against a real broker: what they print, and how they end.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tidegate_tests::{
    broker::{Broker, Ended, Site, binary},
    wait::test,
};

const LIMIT: Duration = Duration::from_secs(120);

/// Runs a command that ends with a code, and gives what it printed.
async fn ends(site: &Site, broker: &Broker, code: i32, line: &str) -> Ended {
    let arguments: Vec<&str> = line.split(' ').collect();
    let ended = site.tidegate(broker, &arguments).await;
    assert_eq!(ended.code, Some(code), "tidegate {line}: {ended:?}");
    assert!(!ended.stderr.contains("panicked"), "tidegate {line}: {ended:?}");
    ended
}

fn objects(ended: &Ended) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn lines(site: &Site, text: &str) -> String {
    let path = site.path("lines");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn what_is_produced_is_consumed() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let file = lines(&site, "{\"id\":1}\n\n{\"id\":\"b\"}\n");
        let sent = ends(&site, &broker, 0, &format!("produce a/b --file {file} --key-pointer /id --header h=1")).await;
        assert_eq!(sent.stdout, "2 sent · 2 appended\n");
        let read = ends(&site, &broker, 0, "consume a/*").await;
        assert_eq!(read.stdout, "a/b@0 1 {\"id\":1}\na/b@1 b {\"id\":\"b\"}\n");
        let read = objects(&ends(&site, &broker, 0, "consume a/* --output json").await);
        assert_eq!(read[1]["key"], "b");
        assert_eq!(read[1]["headers"][0]["value"], "1");
        let cursor = read[1]["cursor"].as_str().unwrap();
        assert_eq!(ends(&site, &broker, 0, &format!("consume a/* --from {cursor}")).await.stdout, "");
        let results = objects(&ends(&site, &broker, 0, &format!("produce a/b --file {file} --output json")).await);
        assert_eq!((&results[1]["line"], &results[1]["offset"]), (&3.into(), &3.into()));
        let topics = objects(&ends(&site, &broker, 0, "topics --output json").await);
        assert_eq!((&topics[0]["topic"], &topics[0]["next_offset"]), (&"a/b".into(), &4.into()));
        broker.drain().await;
    });
}

/// `tidegate produce TOPIC --output json` with a standard input that stays open.
fn feed(site: &Site, broker: &Broker, topic: &str) -> (Child, BufReader<ChildStdout>) {
    let mut command = Command::new(binary());
    command.args(["produce", topic, "--output", "json", "--addr", &broker.addr.to_string(), "--data-dir"]);
    command.arg(site.data()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

#[test]
fn a_live_feed_is_answered_while_it_pauses() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let (mut child, mut out) = feed(&site, &broker, "live");
        let answer = tokio::task::spawn_blocking(move || {
            child.stdin.as_mut().unwrap().write_all(b"1\n").unwrap();
            let mut line = String::new();
            // Standard input is still open: only an answer that is told as it comes ends this.
            out.read_line(&mut line).unwrap();
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
            line
        });
        let line: Value = serde_json::from_str(&answer.await.unwrap()).unwrap();
        assert_eq!((&line["status"], &line["offset"]), (&"appended".into(), &0.into()));
        broker.drain().await;
    });
}

#[test]
fn a_reader_that_leaves_does_not_cut_the_input() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let (mut child, out) = feed(&site, &broker, "cut");
        let sent = tokio::task::spawn_blocking(move || {
            drop(out);
            let text: String = (0..20_000).map(|n| format!("{n}\n")).collect();
            child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
            drop(child.stdin.take());
            child.wait().unwrap().success()
        });
        assert!(sent.await.unwrap());
        let topics = objects(&ends(&site, &broker, 0, "topics cut --output json").await);
        assert_eq!(topics[0]["next_offset"], 20_000);
        broker.drain().await;
    });
}

#[test]
fn a_condition_that_does_not_hold_appends_nothing() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let file = lines(&site, "{}");
        let produce = format!("produce orders/eu --file {file} --key 4711 --expect 4711@");
        assert_eq!(ends(&site, &broker, 0, &format!("{produce}0")).await.stdout, "orders/eu@0 · 4711@1\n");
        assert_eq!(ends(&site, &broker, 0, &format!("{produce}1")).await.stdout, "orders/eu@1 · 4711@2\n");
        let refused = ends(&site, &broker, 1, &format!("{produce}1")).await;
        let hint = "read it with: tidegate consume orders/eu --key 4711 --latest";
        assert_eq!(refused.stderr, format!("CONFLICT: 4711 is at version 2; {hint}\n"));
        let refused = ends(&site, &broker, 1, &format!("{produce}1 --output json")).await;
        let error: Value = serde_json::from_str(&refused.stderr).unwrap();
        assert_eq!(error["error"]["number"], 400);
        let read = ends(&site, &broker, 0, "consume orders/eu --key 4711 --latest").await;
        assert_eq!(read.stdout, "orders/eu@1 4711 {}\n");
        broker.drain().await;
    });
}

#[test]
fn a_cursor_file_neither_repeats_nor_skips() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let text: String = (0..25).map(|n| format!("{n}\n")).collect();
        let file = lines(&site, &text);
        ends(&site, &broker, 0, &format!("produce t --file {file} --batch-records 7")).await;
        let cursor = site.path("cursor");
        let consume = format!("consume t --max 4 --cursor-file {}", cursor.to_str().unwrap());
        let mut seen = String::new();
        for _ in 0..8 {
            let read = ends(&site, &broker, 0, &consume).await.stdout;
            seen.extend(read.lines().map(|line| format!("{}\n", line.rsplit(' ').next().unwrap())));
        }
        assert_eq!(seen, text);
        broker.drain().await;
    });
}

#[test]
fn plugins_are_swapped_rolled_back_and_checked() {
    test(LIMIT, async {
        let site = Site::new();
        site.install("stamp-v1");
        site.install("stamp-v2");
        // Two changes that must be refused, below.
        site.allow_log("change of plugins refused");
        site.plugins("[plugin.stamp]\nfrom = \"stamp-v1.wasm\"\n[[chain]]\ntopics = \"t/*\"\nproduce = [\"stamp\"]\n");
        let broker = site.start().await;
        let file = lines(&site, "{}");
        ends(&site, &broker, 0, &format!("produce t/a --file {file}")).await;
        // Commands that fail say goodbye as well: their connections do not stay until they time out.
        ends(&site, &broker, 1, &format!("produce t/a --file {file} --key-pointer /id")).await;
        ends(&site, &broker, 1, "topics create t/a").await;
        let new = site.path("stamp-v2.wasm");
        let swap = format!("plugins swap stamp {}", new.to_str().unwrap());
        let swapped = ends(&site, &broker, 0, &swap).await.stdout;
        let undo = "(rollback: tidegate plugins rollback stamp)";
        // That of the command itself.
        assert_eq!(swapped, format!("live from t/a@1 · open connections: 1 · generation 2 {undo}\n"));
        let refused = ends(&site, &broker, 1, &format!("{swap} --based-on 1")).await;
        assert!(refused.stderr.starts_with("GENERATION_CHANGED: "), "{refused:?}");
        let plugins = objects(&ends(&site, &broker, 0, "plugins --output json").await);
        assert_eq!((&plugins[0]["name"], &plugins[0]["version"]), (&"stamp".into(), &"2".into()));
        assert!(plugins[0]["drift"].is_string());
        let back = objects(&ends(&site, &broker, 0, "plugins rollback stamp --output json").await);
        assert_eq!((&back[0]["generation"], &back[0]["topics"][0]["topic"]), (&3.into(), &"t/a".into()));
        // It went forth again, to the version just left.
        let oldest = ends(&site, &broker, 1, "plugins rollback stamp").await;
        assert!(
            oldest.stderr.starts_with("NOTHING_TO_ROLL_BACK: plugin \"stamp\" runs the oldest version"),
            "{oldest:?}"
        );
        let swapped = objects(&ends(&site, &broker, 0, &format!("{swap} --output json")).await);
        let left = ends(&site, &broker, 0, "plugins rollback stamp").await;
        assert_eq!(left.stdout, "live from t/a@1 · open connections: 1 · generation 5\n");
        let digest: String = swapped[0]["digest"].as_str().unwrap().chars().take(19).collect();
        assert!(left.stderr.contains(&digest), "{left:?}");
        let chain = objects(&ends(&site, &broker, 0, "plugins explain t/a --output json").await);
        assert_eq!(chain[0]["positions"][0]["plugin"], "stamp");
        let file = site.path("plugins.toml");
        let check = format!("check {}", file.to_str().unwrap());
        assert!(ends(&site, &broker, 0, &check).await.stdout.ends_with(" 0 errors\n"));
        site.plugins("[plugin.stamp]\nfrom = \"stamp-v1.wasm\"\ngrants = [\"lgo\"]\n");
        let wrong = ends(&site, &broker, 64, &check).await;
        assert!(
            wrong.stderr.contains("plugins.toml:4: ") && wrong.stderr.contains("did you mean \"log\"?"),
            "{wrong:?}"
        );
        assert_eq!(ends(&site, &broker, 1, "plugins reload").await.stdout, "");
        broker.drain().await;
    });
}

#[test]
fn who_is_not_there_is_said() {
    test(LIMIT, async {
        let (site, empty) = (Site::new(), Site::new());
        let broker = site.start().await;
        // Another directory: no certificate to know the broker by.
        let ended = empty.tidegate(&broker, &["topics"]).await;
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(ended.stderr.contains("no certificate to know it by"), "{ended:?}");
        ends(&site, &broker, 64, "topics create t..").await;
        ends(&site, &broker, 0, "topics create t").await;
        let again = ends(&site, &broker, 1, "topics create t").await;
        assert!(again.stderr.starts_with("TOPIC_EXISTS: "), "{again:?}");
        broker.drain().await;
    });
}
