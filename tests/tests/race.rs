//! Exactly one winner: processes race for the versions of a few keys, brokers and racers are killed meanwhile, and the
//! history they wrote must be linearizable.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::{
    collections::BTreeMap,
    fs,
    process::{Child, Command},
    time::Duration,
};

use tidegate_tests::{
    broker::Site,
    history::{Answer, Attempt, problems},
    profile_dir,
    raw::Client,
    wait::{count, test, until},
};

const LIMIT: Duration = Duration::from_secs(150);
const RACERS: usize = 16;
const KEYS: usize = 3;
/// Of them, to be killed on the way.
const KILLED: usize = 2;

fn told(site: &Site) -> Vec<Attempt> {
    (0..RACERS)
        .flat_map(|at| Attempt::parse(&fs::read_to_string(site.path(&format!("race-{at}"))).unwrap_or_default()))
        .collect()
}

#[test]
fn sixteen_processes_race_on_a_key_and_their_history_is_linearizable() {
    test(LIMIT, async {
        let attempts = count(300, 3_000);
        let site = Site::new();
        let mut broker = site.start().await;
        let addr = broker.addr.to_string();
        let racer = |at: usize| -> Child {
            let mut command = Command::new(profile_dir().join("racer"));
            command.arg(&addr).arg(site.data().join("dev/cert.pem")).arg(site.path(&format!("race-{at}")));
            command.args([format!("r{at}"), attempts.to_string(), KEYS.to_string()]);
            command.spawn().unwrap()
        };
        let mut racers: Vec<Child> = (0..RACERS).map(racer).collect();
        let whole = RACERS * attempts as usize;
        for part in 1..=2 {
            until(LIMIT, "a third of the race", async || (told(&site).len() >= whole * part / 3).then_some(())).await;
            broker.kill();
            racers[part - 1].kill().unwrap();
            broker = site.start_at(&addr).await;
        }
        for (at, mut racer) in racers.into_iter().enumerate() {
            let ended = until(LIMIT, "the end of the race", async || racer.try_wait().unwrap()).await;
            assert!(ended.success() || at < KILLED, "racer {at} failed: {ended}");
        }

        let client = Client::new(broker.addr).await;
        let mut log: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for record in client.all("race").await {
            let ids = log.entry(String::from_utf8(record.key.clone().unwrap().to_vec()).unwrap()).or_default();
            ids.push(record.text().to_owned());
            assert_eq!(record.version, ids.len() as u64, "versions are dense from 1");
        }
        let told = told(&site);
        let won = |attempt: &&Attempt| matches!(attempt.end, Some((_, Answer::Won(_))));
        let lost = |attempt: &&Attempt| matches!(attempt.end, Some((_, Answer::Lost(_))));
        let (won, lost) = (told.iter().filter(won).count(), told.iter().filter(lost).count());
        println!("{} attempts, {won} won, {lost} lost, {} without an answer", told.len(), told.len() - won - lost);
        assert!(won > whole / 20 && lost > whole / 4, "it was no race: {won} won, {lost} lost");
        assert_eq!(problems(&told, &log), Vec::<String>::new());
        client.close();
        broker.drain().await;
    });
}
