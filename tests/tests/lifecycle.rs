//! Start, end, and disks that fail: said at once, with the right exit code, and nothing acked is lost.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use tidegate_protocol::{error::Code, wire::ProduceHead};
use tidegate_tests::{
    broker::{Ended, Site},
    forgetful::{Fault, Loss},
    http,
    raw::{self, Client, Login, Refused, Send, code},
    relay::Relay,
    wait::{count, test, until, within},
    workload::{Workload, never},
};

const LIMIT: Duration = Duration::from_secs(120);

/// The start failed by its own decision: a code, one clear message, no panic.
fn refuses(ended: &Ended, exit: i32, texts: &[&str]) {
    assert_eq!(ended.code, Some(exit), "{ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    let all = format!("{}{}", ended.stdout, ended.stderr);
    for text in texts {
        assert!(all.contains(text), "{text:?} is missing in: {all}");
    }
}

#[test]
fn a_port_in_use_is_said_at_once() {
    test(LIMIT, async {
        let (site, other) = (Site::new(), Site::new());
        let mut broker = site.start().await;
        let addr = broker.addr.to_string();
        refuses(&other.start_refused_at(&addr).await, 69, &[&addr, "in use"]);
        assert!(broker.lives());
        Client::new(broker.addr).await.put(&[Send::new("t", "x")]).await;
        broker.drain().await;
        // The port is free again at once.
        other.start_at(&addr).await.drain().await;
    });
}

#[test]
fn a_data_directory_in_use_is_said_at_once() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        client.put(&[Send::new("t", "x")]).await;
        let data = site.data();
        refuses(&site.start_refused().await, 69, &[data.to_str().unwrap(), "in use"]);
        client.put(&[Send::new("t", "y")]).await;
        assert_eq!(client.all("t").await.len(), 2);
        // A lock dies with its process, however that ends.
        broker.kill();
        let broker = site.start().await;
        assert_eq!(Client::new(broker.addr).await.all("t").await.len(), 2);
        broker.drain().await;
    });
}

#[test]
fn a_newer_format_is_refused_by_name() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        Client::new(broker.addr).await.put(&[Send::new("t", "x")]).await;
        broker.drain().await;
        let format = site.data().join("FORMAT");
        let now = fs::read(&format).unwrap();
        assert_eq!(now, b"tidegate data 2\n");
        for other in ["tidegate data 1\n", "tidegate data 3\n", "something else\n", ""] {
            fs::write(&format, other).unwrap();
            refuses(&site.start_refused().await, 74, &[site.data().to_str().unwrap(), "tidegate data 2"]);
            assert_eq!(fs::read_to_string(&format).unwrap(), other, "a refused start changes nothing");
        }
        fs::write(&format, now).unwrap();
        let broker = site.start().await;
        assert_eq!(Client::new(broker.addr).await.all("t").await.len(), 1);
        broker.drain().await;
    });
}

#[test]
fn health_readiness_and_metrics_are_served() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        for path in ["/health", "/ready"] {
            assert_eq!(http::get(broker.http, path).await.unwrap().status, 200, "{path}");
        }
        Client::new(broker.addr).await.put(&[Send::new("t", "x"), Send::new("t", "y")]).await;
        let metrics = http::get(broker.http, "/metrics").await.unwrap();
        assert_eq!(metrics.status, 200);
        assert!(metrics.body.contains("# TYPE tidegate_"), "{}", metrics.body);
        assert_eq!(http::get(broker.http, "/nothing").await.unwrap().status, 404);
        broker.drain().await;
    });
}

#[test]
fn a_broken_configuration_exits_64_and_names_the_line() {
    test(LIMIT, async {
        let site = Site::new();
        site.plugins("\n[defualts]\n");
        refuses(&site.start_refused().await, 64, &["plugins.toml:3", "defualts", "defaults"]);
        site.plugins("[plugin.x]\nfrom = \"nowhere.wasm\"\n");
        refuses(&site.start_refused().await, 64, &["plugins.toml:", "nowhere.wasm"]);
        site.plugins("not toml at all");
        refuses(&site.start_refused().await, 64, &["plugins.toml:2"]);
        fs::remove_file(site.path("plugins.toml")).unwrap();
        refuses(&site.start_refused().await, 64, &["plugins.toml"]);
        site.plugins("");
        let mut site = site;
        site.auth("[[principal]]\nname = \"a\"\nalow = []\n");
        refuses(&site.start_refused().await, 64, &["auth.toml:3", "alow", "allow"]);
    });
}

#[test]
fn sigterm_under_load_drains_and_loses_nothing() {
    test(LIMIT, async {
        let site = Site::new();
        let mut workload = Workload::new("drain", 3, 3, 200);
        for _ in 0..count(5, 50) {
            let mut broker = site.start().await;
            let (acks, addr) = (workload.acks.clone(), broker.addr);
            let target = acks.count() + 50;
            let (login, stop) = (Login::default(), never());
            let end = async {
                acks.reached(target).await;
                broker.terminate();
                let status = broker.ended().await;
                assert!(status.success(), "{status}");
            };
            tokio::join!(within(LIMIT, "the producers", workload.run(addr, &login, &stop)), end);
        }
        let broker = site.start().await;
        workload.finish(broker.addr, &Login::default()).await;
        let client = Client::new(broker.addr).await;
        let read = client.all("drain/*").await;
        client.close();
        broker.drain().await;
        let ledger = workload.ledger.lock().unwrap();
        ledger.check(&read);
        assert_eq!(ledger.len(), read.len());
    });
}

/// Followers that wait and producers that say nothing do not hold up the end.
#[test]
fn sigterm_ends_idle_connections() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        let client = Client::new(broker.addr).await;
        client.put(&[Send::new("t", "x")]).await;
        let open = tidegate_protocol::wire::OpenFetch { pattern: ">".into(), follow: true, ..Default::default() };
        let mut follower = client.fetch(open).await.unwrap();
        follower.take(1).await.unwrap();
        let _producer = client.producer().await.unwrap();
        let (_unsaid, mut unsaid) = client.open().await.unwrap();
        // Half a first message, and a connection without a hello.
        let (mut half, _answer) = client.open().await.unwrap();
        half.write_all(&[50, 0, 0, 0, 1]).await.unwrap();
        let _mute = raw::dial(broker.addr, &Login::default()).await.unwrap();
        broker.drain().await;
        let end = loop {
            if let Err(end) = follower.next().await {
                break end;
            }
        };
        if let Refused::Failure(failure) = end {
            assert_eq!(code(&failure), Code::ShuttingDown);
        }
        assert!(raw::hear(&mut unsaid).await.is_err());
    });
}

/// A client that vanished without a word is not waited for: what it would have to be told, it cannot hear.
#[test]
fn sigterm_does_not_wait_for_a_client_that_vanished() {
    test(LIMIT, async {
        let mut site = Site::new();
        site.arguments(&["--log", "debug"]);
        let broker = site.start().await;
        let relay = Relay::new(broker.addr).await;
        let client = Client::new(relay.addr).await;
        client.put(&[Send::new("t", "x")]).await;
        let open = tidegate_protocol::wire::OpenFetch { pattern: ">".into(), follow: true, ..Default::default() };
        let mut follower = client.fetch(open).await.unwrap();
        follower.take(1).await.unwrap();
        let _producer = client.producer().await.unwrap();
        relay.cut().await;
        broker.drain().await;
        let log = site.log();
        assert!(log.contains("client is gone"), "the drain took its time for somebody who is gone:\n{log}");
        let broker = site.start().await;
        assert_eq!(Client::new(broker.addr).await.all("t").await.len(), 1);
        broker.drain().await;
    });
}

/// Values `marker-0000 …`, each batch acked before the next is sent, so that each is a group of its own.
async fn markers(client: &Client, count: usize) {
    for at in 0..count {
        client.put(&[Send::keyed("m", "k", format!("marker-{at:04} {}", "x".repeat(40)))]).await;
    }
}

/// The WAL file that holds a text, and where.
fn find(data: &Path, text: &str) -> (PathBuf, u64) {
    for entry in fs::read_dir(data.join("wal")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text.as_bytes()) {
            return (path, at as u64);
        }
    }
    panic!("{text} is in no WAL file");
}

#[test]
fn a_flipped_bit_in_the_middle_refuses_to_start() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        markers(&Client::new(broker.addr).await, 60).await;
        broker.kill();
        let (path, at) = find(&site.data(), "marker-0030");
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        for _ in 0..2 {
            refuses(&site.start_refused().await, 74, &[name]);
        }
        file.write_all_at(&byte, at).unwrap();
        let broker = site.start().await;
        assert_eq!(Client::new(broker.addr).await.all("m").await.len(), 60, "a refused start changed nothing");
        broker.drain().await;
    });
}

#[test]
fn a_torn_tail_is_cut_and_the_rest_is_there() {
    test(LIMIT * 2, async {
        let site = Site::new();
        site.allow_log("torn");
        let broker = site.start().await;
        markers(&Client::new(broker.addr).await, 5).await;
        broker.kill();
        let (path, value_at) = find(&site.data(), "marker-0004");
        let (_, before) = find(&site.data(), "marker-0003");
        let whole = fs::read(&path).unwrap();
        // From the start of the last entry (somewhere behind the value before) to the end of its value.
        let tail = (before + 52)..(value_at + 52);
        let step = usize::try_from((tail.end - tail.start) / count(20, 1_000_000) as u64).unwrap().max(1);
        for cut in tail.step_by(step) {
            let cut = usize::try_from(cut).unwrap();
            let mut torn = whole.clone();
            torn[cut..].fill(0);
            fs::write(&path, &torn).unwrap();
            let broker = site.start().await;
            let client = Client::new(broker.addr).await;
            let read = client.all("m").await;
            assert!(read.len() == 4 || (read.len() == 5 && torn == whole), "cut at {cut}: {} records", read.len());
            let ack = client.put(&[Send::keyed("m", "k", "after")]).await;
            assert_eq!((ack.runs[0].first_offset, ack.runs[0].key_versions[0]), (4, 5), "cut at {cut}");
            broker.kill();
        }
    });
}

/// While the disk fails nothing is acked; what was acked before is there afterwards.
async fn storage_fault(fault: Fault, loss: Option<Loss>) {
    let mut site = Site::forgetful();
    site.allow_log("storage");
    site.allow_log("wal");
    let mut broker = site.start().await;
    let client = Client::new(broker.addr).await;
    markers(&client, 20).await;
    let id = client.producer_id().await;
    site.disk().fault(Some(fault), "/wal/").unwrap();
    let head = |sequence| ProduceHead { producer_id: id, sequence, ..ProduceHead::default() };
    let mut refused = 0;
    for at in 0..3 {
        match client.produce(head(0), &[Send::keyed("m", "k", "in doubt")]).await {
            Ok(ack) => {
                let failure = ack.failure.unwrap_or_else(|| panic!("{fault:?}: try {at} was acked"));
                assert!(matches!(code(&failure), Code::StorageFull | Code::StorageFailed), "{fault:?}: {failure:?}");
                if fault == Fault::Full && at == 0 {
                    assert_eq!(code(&failure), Code::StorageFull);
                }
                refused += 1;
            }
            Err(Refused::Failure(failure)) => {
                assert!(matches!(code(&failure), Code::StorageFull | Code::StorageFailed), "{fault:?}: {failure:?}");
                refused += 1;
            }
            Err(Refused::Closed(why)) => panic!("{fault:?}: no typed error but {why}"),
        }
    }
    assert_eq!(refused, 3);
    // The process lives, says so, and still serves what is durable.
    assert!(broker.lives());
    assert_eq!(client.all("m").await.len(), 20, "{fault:?}: undurable records must not be seen");
    until(LIMIT, "/ready says no", async || {
        let status = http::get(broker.http, "/ready").await.unwrap().status;
        (status != 200).then_some(())
    })
    .await;
    broker.kill();
    site.disk().fault(None, "").unwrap();
    if let Some(loss) = loss {
        site.power_cut(loss);
    }
    let broker = site.start().await;
    let client = Client::new(broker.addr).await;
    let found = client.all("m").await;
    assert!(found.len() == 20 || (found.len() == 21 && found[20].text() == "in doubt"), "{fault:?}: {}", found.len());
    // The retry settles what was in doubt: there once.
    let ack = client.produce(head(0), &[Send::keyed("m", "k", "in doubt")]).await.unwrap();
    assert!(ack.failure.is_none(), "{ack:?}");
    assert_eq!(ack.duplicate, found.len() == 21);
    assert_eq!(client.all("m").await.len(), 21);
    broker.drain().await;
}

#[test]
fn a_full_disk_refuses_and_a_restart_recovers() {
    test(LIMIT, async {
        storage_fault(Fault::Full, None).await;
        storage_fault(Fault::Full, Some(Loss::All)).await;
    });
}

#[test]
fn a_failing_write_refuses_and_a_restart_recovers() {
    test(LIMIT, storage_fault(Fault::WriteFails, Some(Loss::All)));
}

#[test]
fn a_failing_fsync_refuses_and_a_restart_recovers() {
    test(LIMIT, async {
        storage_fault(Fault::SyncFails, None).await;
        storage_fault(Fault::SyncFails, Some(Loss::All)).await;
        storage_fault(Fault::SyncFails, Some(Loss::Some(7))).await;
    });
}

#[test]
fn a_start_on_a_full_disk_says_so() {
    test(LIMIT, async {
        let mut site = Site::forgetful();
        site.disk().fault(Some(Fault::Full), "").unwrap();
        let refused = site.start_refused().await;
        refuses(&refused, refused.code.filter(|code| [64, 74].contains(code)).unwrap(), &["No space left"]);
        site.disk().fault(None, "").unwrap();
        site.start().await.drain().await;
    });
}
