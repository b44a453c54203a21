//! Acked is durable: SIGKILL and power cuts, judged by an outside witness that recorded the acks.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::{fs, time::Duration};

use tidegate_tests::{
    broker::Site,
    forgetful::{Fsync, Loss},
    raw::{Client, Fetched, Login},
    wait::{count, test, within},
    workload::Workload,
};
use tokio::sync::watch;

/// Small WAL files, so that a test fills many: rolling, consolidation, checkpoints and recycling lie in the way of the kills.
const SMALL: &[&str] = &["--wal-file-size", "256KiB", "--tail-size", "1MiB"];
/// From the start of a round to the wanted number of acks.
const ROUND_MAX: Duration = Duration::from_secs(60);

/// A number below `bound` that a round draws (splitmix64), so that a failed run can be repeated.
fn draw(seed: u64, bound: u64) -> u64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % bound
}

/// One life of a broker: what was acked before must be there, then more is produced until it is killed.
async fn round(site: &Site, workload: &mut Workload, kill_after: u64) -> Vec<Fetched> {
    let broker = site.start().await;
    let login = Login::default();
    let client = Client::connect(broker.addr, &login).await.unwrap();
    let read = client.all("crash/*").await;
    client.close();
    let acks = workload.acks.clone();
    let target = acks.count() + kill_after;
    let addr = broker.addr;
    let (stop, stopped) = watch::channel(false);
    let kill = async {
        within(ROUND_MAX, format!("{target} acks"), acks.reached(target)).await;
        broker.kill();
        // A process that is gone sends no word over UDP: the producers would wait for their idle time.
        stop.send_replace(true);
    };
    tokio::join!(workload.run(addr, &login, &stopped), kill);
    read
}

/// The last life: everything unfinished is sent again, and all must be there.
async fn settle(site: &Site, workload: &mut Workload) {
    let broker = site.start().await;
    let client = Client::new(broker.addr).await;
    let read = client.all("crash/*").await;
    workload.ledger.lock().unwrap().check(&read);
    workload.finish(broker.addr, &Login::default()).await;
    let read = client.all("crash/*").await;
    client.close();
    broker.drain().await;
    let ledger = workload.ledger.lock().unwrap();
    ledger.check(&read);
    assert_eq!(ledger.len(), read.len(), "every record that was sent is acked and there, once");
    let files = |path: &str| fs::read_dir(site.data().join(path)).map_or(0, Iterator::count);
    println!("{} records, {} segments, {} WAL files", read.len(), files("objects/seg"), files("wal"));
    assert!(files("objects/seg") > 0, "the kills met consolidation");
}

#[test]
fn sigkill_loses_no_acked_record() {
    test(Duration::from_secs(400), async {
        let mut site = Site::new();
        site.arguments(SMALL);
        let mut workload = Workload::new("crash", 3, 4, 300);
        for at in 0..count(50, 500) {
            let read = round(&site, &mut workload, 1 + draw(at as u64, 400)).await;
            workload.ledger.lock().unwrap().check_before(&read);
            workload.ledger.lock().unwrap().turn();
        }
        settle(&site, &mut workload).await;
    });
}

#[test]
fn a_power_cut_loses_no_acked_record() {
    test(Duration::from_secs(400), async {
        let mut site = Site::forgetful();
        site.arguments(SMALL);
        let mut workload = Workload::new("crash", 3, 4, 300);
        for at in 0..count(24, 300) as u64 {
            let read = round(&site, &mut workload, 1 + draw(at, 300)).await;
            workload.ledger.lock().unwrap().check_before(&read);
            workload.ledger.lock().unwrap().turn();
            site.power_cut(if at % 3 == 0 { Loss::All } else { Loss::Some(at) });
        }
        settle(&site, &mut workload).await;
    });
}

/// The proof that the two tests above can fail: the broker is the same, but its disk says "synced" before it is.
async fn mutant(fsync: Fsync) -> Vec<String> {
    let mut site = Site::forgetful();
    site.disk().lie(fsync, "/wal/");
    let mut workload = Workload::new("crash", 3, 4, 300);
    round(&site, &mut workload, 100).await;
    site.power_cut(Loss::All);
    let broker = site.start().await;
    let client = Client::new(broker.addr).await;
    let read = client.all("crash/*").await;
    client.close();
    broker.kill();
    let ledger = workload.ledger.lock().unwrap();
    assert!(ledger.len() >= 100);
    ledger.problems(&read)
}

#[test]
fn a_broker_that_acks_without_fdatasync_is_found_out() {
    test(Duration::from_secs(120), async {
        let problems = mutant(Fsync::Skip).await;
        assert!(problems.iter().any(|problem| problem.starts_with("lost")), "{problems:?}");
    });
}

#[test]
fn a_broker_that_acks_one_group_before_its_fdatasync_is_found_out() {
    test(Duration::from_secs(120), async {
        // Only a kill between an ack and the next group's sync shows it: most do, not every one.
        for _ in 0..20 {
            if mutant(Fsync::Late).await.iter().any(|problem| problem.starts_with("lost")) {
                return;
            }
        }
        panic!("twenty power cuts lost nothing under a disk that syncs one group late");
    });
}
