//! `fsck` and `inspect` on directories that a real broker wrote, was killed on, and that were damaged.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::Value;
use tidegate_tests::{
    broker::{Broker, Ended, Site, binary, run},
    raw::{Client, Send},
    wait::test,
};

const LIMIT: Duration = Duration::from_secs(120);
/// Small WAL files, so that few records make segments and a checkpoint.
const SMALL: &[&str] = &["--wal-file-size", "64KiB", "--tail-size", "1MiB"];

/// Runs `tidegate ARGUMENTS…`, which must end with a code.
async fn ends(code: i32, arguments: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.args(arguments);
    let ended = run(command).await;
    assert_eq!(ended.code, Some(code), "tidegate {arguments:?}: {ended:?}");
    assert!(!ended.stderr.contains("panicked"), "tidegate {arguments:?}: {ended:?}");
    ended
}

fn objects(ended: &Ended) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes until segments are there, to two topics, with keys and without.
async fn fill(site: &Site, broker: &Broker) -> u64 {
    let client = Client::new(broker.addr).await;
    let mut sent = 0;
    while fs::read_dir(site.data().join("objects/seg")).map_or(0, Iterator::count) < 3 {
        let value = format!("{sent} {}", "x".repeat(900));
        client.put(&[Send::keyed("orders/eu", format!("k{}", sent % 5), value.clone()), Send::new("log", value)]).await;
        sent += 2;
        assert!(sent < 10_000, "no segment was made");
    }
    client.close();
    sent
}

#[test]
fn a_directory_is_whole_after_a_kill_and_every_damage_is_found_where_it_is() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.arguments(SMALL);
        let broker = site.start().await;
        let sent = fill(&site, &broker).await;
        let data = site.data();
        let refused = ends(69, &["fsck", text(&data)]).await;
        assert!(refused.stderr.starts_with("IN_USE: "), "{refused:?}");
        broker.kill();
        let told = objects(&ends(0, &["fsck", text(&data), "--output", "json"]).await);
        let sum = told.last().unwrap();
        assert_eq!((&sum["whole"], &sum["complete"]), (&true.into(), &true.into()));
        assert!(sum["records"].as_u64().unwrap() > sent && sum["segments"].as_u64().unwrap() >= 2, "{sum}");
        let told = ends(0, &["fsck", text(&data)]).await.stdout;
        assert!(told.lines().last().unwrap().contains(" · whole · "), "{told}");
        // Two segments are damaged: the first fault ends it, or all are told.
        let segments = files(&data.join("objects/seg"));
        for segment in &segments[..2] {
            let mut bytes = fs::read(segment).unwrap();
            bytes[3_000] ^= 0x20;
            fs::write(segment, bytes).unwrap();
        }
        let first = ends(1, &["fsck", text(&data)]).await.stdout;
        let faults: Vec<_> = first.lines().filter(|line| line.starts_with("fault ")).collect();
        assert!(faults.len() == 1 && faults[0].contains(&format!("{} at byte 8: ", segments[0].display())), "{first}");
        let all = objects(&ends(1, &["fsck", text(&data), "--all", "--output", "json"]).await);
        let faults: Vec<_> = all.iter().filter(|row| row["level"] == "fault").map(|row| &row["file"]).collect();
        assert_eq!(faults, segments[..2].iter().map(|path| text(path)).collect::<Vec<_>>());
        let shown = ends(1, &["inspect", text(&segments[0]), "--records"]).await.stdout;
        assert!(shown.contains("FAULT at byte 8: ") && shown.contains(" orders/eu · "), "{shown}");
    });
}

#[test]
fn files_are_shown_wherever_they_lie() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.arguments(SMALL);
        let broker = site.start().await;
        fill(&site, &broker).await;
        broker.drain().await;
        let data = site.data();
        let copy = site.path("copy");
        let mut kinds = Vec::new();
        for dir in ["objects/seg", "objects/manifest", "objects/checkpoint", "wal"] {
            // A WAL file made ready for later holds nothing yet.
            let used = |path: &PathBuf| !fs::read(path).unwrap().starts_with(&[0; 4]);
            let Some(file) = files(&data.join(dir)).into_iter().find(used) else { continue };
            fs::copy(file, &copy).unwrap();
            let shown =
                objects(&ends(0, &["inspect", text(&copy), "--records", "--limit", "2", "--output", "json"]).await);
            let records = shown.iter().filter(|row| row["item"] == "record").count();
            assert!(records == 2 || !matches!(dir, "objects/seg" | "wal"), "{dir}: {shown:?}");
            kinds.push(shown[0]["item"].as_str().unwrap().to_owned());
        }
        assert!(
            kinds.starts_with(&["segment".into(), "manifest".into()]) && kinds.ends_with(&["wal".into()]),
            "{kinds:?}"
        );
        let topic = |rows: &[Value]| rows.iter().find(|row| row["name"] == "orders/eu").cloned().unwrap();
        let segment = &files(&data.join("objects/seg"))[0];
        let told = topic(&objects(&ends(0, &["inspect", text(segment), "--output", "json"]).await));
        assert_eq!((&told["first_offset"], &told["keys"]), (&0.into(), &5.into()));
        assert_eq!(told["last_offset"].as_u64().unwrap() + 1, told["records"].as_u64().unwrap());
    });
}

#[test]
fn what_is_none_of_ours_is_said_so_and_left_alone() {
    test(LIMIT, async {
        let site = Site::new();
        let (empty, file, newer) = (site.path("empty"), site.path("file"), site.path("newer"));
        fs::create_dir(&empty).unwrap();
        fs::create_dir(&newer).unwrap();
        fs::write(&file, "nothing of ours").unwrap();
        fs::write(newer.join("FORMAT"), "tidegate data 99\n").unwrap();
        for (dir, told) in [
            (site.path("no-such"), "IO: cannot list "),
            (empty.clone(), "is no data directory"),
            (file.clone(), "IO: cannot list "),
            (newer.clone(), "has format \"tidegate data 99\""),
        ] {
            let ended = ends(74, &["fsck", text(&dir)]).await;
            assert!(ended.stderr.contains(told) && ended.stdout.is_empty(), "{}: {ended:?}", dir.display());
        }
        assert_eq!((files(&empty).len(), files(&newer).len()), (0, 1), "nothing was made there");
        for path in [site.path("no-such"), file, empty] {
            ends(74, &["inspect", text(&path)]).await;
        }
    });
}
