//! Backups of a broker that is written to, restored elsewhere and compared with what was acked.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::Value;
use tidegate_protocol::{
    error::Code,
    wire::{BackupBegin, ClientBody, ServerBody},
};
use tidegate_tests::{
    broker::{Broker, Ended, Site, binary, run},
    raw::{Client, Heard, Login, Refused, Send, code, hear, say},
    wait::{count, test, until, within},
    workload::Workload,
};
use tokio::sync::watch;

const LIMIT: Duration = Duration::from_secs(240);
/// Small WAL files, so that they are filled, moved and taken again while a backup reads them.
const SMALL: &[&str] = &["--wal-file-size", "128KiB", "--tail-size", "1MiB"];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a command without a broker.
async fn offline(arguments: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.args(arguments);
    run(command).await
}

/// `tidegate backup DEST --output json`, which must succeed.
async fn backed_up(site: &Site, broker: &Broker, dest: &Path) -> Value {
    let ended = site.tidegate(broker, &["backup", text(dest), "--output", "json"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Restores into the data directory of a new site; it must be whole.
async fn restored(dest: &Path) -> Site {
    let site = Site::new();
    let ended = offline(&["restore", text(dest), text(&site.data())]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let ended = offline(&["fsck", text(&site.data()), "--all"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    site
}

fn contents(dest: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(dest.join("data")).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_record_acked_before_a_backup_is_in_it_while_the_broker_is_written_to_and_killed() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.arguments(SMALL);
        let mut workload = Workload::new("crash", 3, 4, 300);
        let dest = site.path("backup");
        let (mut copied, mut kept) = (0, 0);
        for round in 0..count(4, 40) as u64 {
            let broker = site.start().await;
            let (stop, stopped) = watch::channel(false);
            let acks = workload.acks.clone();
            let (addr, login) = (broker.addr, Login::default());
            let ledger = workload.ledger.clone();
            let part = async {
                let target = acks.count() + 150;
                within(LIMIT, format!("{target} acks"), acks.reached(target)).await;
                // What is acked from here on may be in the backup or not.
                ledger.lock().unwrap().turn();
                let done = backed_up(&site, &broker, &dest).await;
                copied += done["segments_copied"].as_u64().unwrap();
                kept += done["segments"].as_u64().unwrap() - done["segments_copied"].as_u64().unwrap();
                broker.kill();
                stop.send_replace(true);
            };
            tokio::join!(workload.run(addr, &login, &stopped), part);
            let elsewhere = restored(&dest).await;
            let broker = elsewhere.start().await;
            let client = Client::connect(broker.addr, &Login::default()).await.unwrap();
            let read = client.all("crash/*").await;
            workload.ledger.lock().unwrap().check_before(&read);
            // It takes records, and gives offsets that follow.
            let ack = client.put(&[Send::new("crash/0", format!("new {round}"))]).await;
            let next = read.iter().filter(|record| record.topic == "crash/0").count() as u64;
            assert_eq!(ack.runs[0].first_offset, next);
            client.close();
            broker.drain().await;
        }
        println!("{copied} segments copied, {kept} kept");
        assert!(copied > 0 && kept > 0, "{copied} {kept}");
        assert!(fs::read_dir(dest.join("data")).unwrap().count() > 3);
    });
}

#[test]
fn a_second_backup_copies_new_segments_only_and_secrets_stay_where_they_are() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.arguments(SMALL);
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        let fill = async |segments: usize| {
            while fs::read_dir(site.data().join("objects/seg")).map_or(0, Iterator::count) < segments {
                client.put(&[Send::keyed("orders", "k", "x".repeat(4_000))]).await;
            }
        };
        fill(3).await;
        let dest = site.path("deep/backup");
        let first = backed_up(&site, &broker, &dest).await;
        assert_eq!(first["segments_copied"], first["segments"]);
        let before = contents(&dest);
        let again = backed_up(&site, &broker, &dest).await;
        fill(6).await;
        let second = backed_up(&site, &broker, &dest).await;
        assert!(again["segments_copied"].as_u64() <= Some(1), "one may have come meanwhile: {again}");
        let new = second["segments"].as_u64().unwrap() - again["segments"].as_u64().unwrap();
        assert_eq!(second["segments_copied"], new);
        assert!(new > 0 && contents(&dest).intersection(&before).count() >= 2);
        assert_eq!(fs::metadata(&dest).unwrap().permissions().mode() & 0o777, 0o700);
        // Nothing of dev/ is in it.
        let token = fs::read(site.data().join("dev/admin-token")).unwrap();
        for name in contents(&dest) {
            let bytes = fs::read(dest.join("data").join(name)).unwrap();
            assert!(!bytes.windows(token.len()).any(|window| window == token));
        }
        assert_eq!(broker.metric("tidegate_backup_pins", "").await, 0.0);
        client.close();
        broker.drain().await;
        let elsewhere = restored(&dest).await;
        assert!(!elsewhere.data().join("dev").exists());
        elsewhere.start().await.drain().await;
        assert!(fs::read(elsewhere.data().join("dev/admin-token")).unwrap() != token);
    });
}

#[test]
fn plugins_of_a_restored_broker_run_without_their_files() {
    test(LIMIT, async {
        let site = Site::new();
        site.install("stamp-v1");
        site.plugins("[plugin.stamp]\nfrom = \"stamp-v1.wasm\"\n[[chain]]\ntopics = \"s\"\nproduce = [\"stamp\"]\n");
        let broker = site.start().await;
        let dest = site.path("backup");
        backed_up(&site, &broker, &dest).await;
        broker.drain().await;
        let mut elsewhere = restored(&dest).await;
        elsewhere.plugins_nowhere();
        elsewhere.allow_log("no plugins.toml is given: the last generation goes on");
        let broker = elsewhere.start().await;
        assert_eq!(broker.generation, 1);
        broker.drain().await;
    });
}

#[test]
fn what_cannot_be_backed_up_or_restored_is_said_so_and_changes_nothing() {
    test(LIMIT, async {
        let mut site = Site::new();
        let broker = site.start().await;
        Client::new(broker.addr).await.put(&[Send::new("t", "v")]).await;
        let (data, good) = (site.data(), site.path("good"));
        backed_up(&site, &broker, &good).await;
        let file = site.path("file");
        fs::write(&file, "x").unwrap();
        let full = site.path("full");
        fs::create_dir(&full).unwrap();
        fs::write(full.join("notes.txt"), "x").unwrap();
        let newer = site.path("newer");
        fs::create_dir(&newer).unwrap();
        fs::write(newer.join("FORMAT"), "tidegate backup 9\n").unwrap();
        let cases: [(PathBuf, i32, &str); 7] = [
            (data.join("inside"), 64, "USAGE: "),
            (data.clone(), 64, "lie in one another"),
            (data.parent().unwrap().to_owned(), 64, "lie in one another"),
            (full.clone(), 64, "is neither empty nor a backup"),
            (newer.clone(), 74, "has format \"tidegate backup 9\""),
            (file.clone(), 74, "IO: "),
            (file.join("below"), 74, "IO: "),
        ];
        for (dest, code, told) in &cases {
            let ended = site.tidegate(&broker, &["backup", text(dest)]).await;
            assert_eq!(ended.code, Some(*code), "{}: {ended:?}", dest.display());
            assert!(ended.stderr.contains(told) && ended.stdout.is_empty(), "{}: {ended:?}", dest.display());
        }
        assert!(!data.join("inside").exists());
        // Another directory than the broker's, and none.
        let other = Site::new();
        other.start().await.drain().await;
        let addr = broker.addr.to_string();
        let cert = data.join("dev/cert.pem");
        let token = fs::read_to_string(data.join("dev/admin-token")).unwrap();
        let there = ["--addr", &addr, "--server-cert", text(&cert), "--admin-token", token.trim(), "--data-dir"];
        let (foreign, none, dest) = (other.data(), site.path("none"), site.path("dest"));
        for (dir, code, told) in [(&foreign, 64, "belongs to another one"), (&none, 74, "--data-dir")] {
            let ended = offline(&[&["backup", text(&dest)], &there[..], &[text(dir)]].concat()).await;
            assert_eq!(ended.code, Some(code), "{ended:?}");
            assert!(ended.stderr.contains(told), "{ended:?}");
        }
        assert!(!dest.join("BACKUP").exists());
        // Without the admin token the broker names nothing.
        let wrong = ["backup", text(&dest), "--addr", &addr, "--data-dir", text(&data), "--admin-token", "wrong"];
        let ended = offline(&wrong).await;
        assert_eq!(ended.code, Some(1), "{ended:?}");
        broker.drain().await;
        let ended = offline(&["backup", text(&dest), "--addr", &addr, "--data-dir", text(&data)]).await;
        assert_eq!(ended.code, Some(69), "{ended:?}");
        // A log in memory has nothing to copy.
        site.arguments(&["--memory"]);
        let broker = site.start().await;
        let ended = site.tidegate(&broker, &["backup", text(&dest)]).await;
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.starts_with("BACKUP_UNAVAILABLE: "), "{ended:?}");
        broker.drain().await;
    });
}

#[test]
fn what_cannot_be_restored_is_said_so_and_changes_nothing() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let (data, good, full) = (site.data(), site.path("good"), site.path("full"));
        let (file, newer) = (site.path("file"), site.path("newer"));
        backed_up(&site, &broker, &good).await;
        broker.drain().await;
        fs::write(&file, "x").unwrap();
        fs::create_dir(&full).unwrap();
        fs::write(full.join("notes.txt"), "x").unwrap();
        fs::create_dir(&newer).unwrap();
        fs::write(newer.join("FORMAT"), "tidegate backup 9\n").unwrap();
        let cases: [(&Path, PathBuf, i32, &str); 8] = [
            (&good, data.clone(), 64, "is a data directory already"),
            (&good, full.clone(), 64, "is not empty"),
            (&good, good.join("inside"), 64, "lies inside the backup"),
            (&good, file.join("below"), 74, "IO: "),
            (&full, site.path("r"), 74, "is no backup"),
            (&newer, site.path("r"), 74, "has format \"tidegate backup 9\""),
            (&data, site.path("r"), 74, "has format \"tidegate data 2\""),
            (&site.path("nowhere"), site.path("r"), 74, "cannot list"),
        ];
        for (source, dir, code, told) in cases {
            let ended = offline(&["restore", text(source), text(&dir)]).await;
            assert_eq!(ended.code, Some(code), "{told}: {ended:?}");
            assert!(ended.stderr.contains(told) && !ended.stderr.contains("panicked"), "{told}: {ended:?}");
        }
        assert!(!site.path("r").exists(), "nothing was made");
    });
}

#[test]
fn a_pin_ends_with_its_stream_or_its_connection_and_is_for_admins_alone() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let begin = || ClientBody::BackupBegin(BackupBegin {});
        let stranger = Client::new(broker.addr).await;
        match stranger.ask(begin()).await {
            Err(Refused::Failure(failure)) => assert_eq!(code(&failure), Code::AdminRequired),
            other => panic!("{other:?}"),
        }
        let client = Client::admin(broker.addr, &site.data()).await;
        let pins = async |wanted: f64| {
            let now = async || (broker.metric("tidegate_backup_pins", "").await == wanted).then_some(());
            until(Duration::from_secs(20), format!("{wanted} pins"), now).await;
        };
        let mut streams = Vec::new();
        for _ in 0..4 {
            let (mut send, mut receive) = client.open().await.unwrap();
            say(&mut send, begin()).await.unwrap();
            match hear(&mut receive).await {
                Ok(Heard::Message(ServerBody::BackupCut(cut))) => {
                    assert_eq!((cut.wal.len(), cut.manifest_number), (1, 0))
                }
                other => panic!("{other:?}"),
            }
            streams.push((send, receive));
        }
        pins(4.0).await;
        match client.ask(begin()).await {
            Err(Refused::Failure(failure)) => assert_eq!(code(&failure), Code::LimitReached),
            other => panic!("{other:?}"),
        }
        let (mut send, _receive) = streams.pop().unwrap();
        send.finish().unwrap();
        pins(3.0).await;
        let (mut send, _receive) = streams.pop().unwrap();
        send.reset(0_u32.into()).unwrap();
        pins(2.0).await;
        client.close();
        pins(0.0).await;
        // A drain does not wait for one.
        let client = Client::admin(broker.addr, &site.data()).await;
        let (mut send, mut receive) = client.open().await.unwrap();
        say(&mut send, begin()).await.unwrap();
        assert!(hear(&mut receive).await.is_ok());
        broker.drain().await;
    });
}

#[test]
fn a_backup_that_is_killed_is_none_and_the_next_one_is_whole() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.arguments(SMALL);
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        for _ in 0..200 {
            client.put(&[Send::keyed("orders", "k", "x".repeat(20_000))]).await;
        }
        let dest = site.path("backup");
        let mut killed = 0;
        for round in 0..12 {
            let mut command = Command::new(binary());
            command.args(["backup", text(&dest), "--addr", &broker.addr.to_string(), "--data-dir", text(&site.data())]);
            let mut child = command.spawn().unwrap();
            // At some instant: that it began, and then so many looks.
            until(LIMIT, "the backup began", async || {
                (dest.join("data").is_dir() || child.try_wait().unwrap().is_some()).then_some(())
            })
            .await;
            for _ in 0..round * 3 {
                tokio::task::yield_now().await;
                fs::read_dir(&dest).unwrap().count();
            }
            child.kill().unwrap();
            killed += usize::from(!child.wait().unwrap().success());
            let code = offline(&["restore", text(&dest), text(&site.path(&format!("r{round}")))]).await.code;
            // Nothing of it counts, or all does.
            let counts = dest.join("BACKUP").exists();
            assert_eq!(code, Some(if counts { 0 } else { 74 }), "round {round}");
        }
        assert!(killed > 0);
        backed_up(&site, &broker, &dest).await;
        assert!(contents(&dest).iter().all(|name| name.len() == 64), "nothing is left over");
        client.close();
        broker.kill();
        let elsewhere = restored(&dest).await;
        let broker = elsewhere.start().await;
        assert_eq!(Client::new(broker.addr).await.all("orders").await.len(), 200);
        broker.drain().await;
    });
}
