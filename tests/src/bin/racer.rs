//! One of many processes that race for the versions of a few keys: reads what stands, tries to set the next version, and
//! writes down what it tried and what it was told before it goes on. `racer ADDRESS CERTIFICATE HISTORY NAME ATTEMPTS KEYS`.

#![allow(clippy::unwrap_used, reason = "a test program: it may only succeed")]

use std::{fs::File, io::Write, net::SocketAddr, time::Duration};

use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use tidegate_client::{
    BatchBuilder, Condition, ConnectOptions, Connection, Expect, Outcome, ProducerConfig, Record, Timeouts, TopicName,
    Trust,
};
use tidegate_protocol::limits::Limits;

const TOPIC: &str = "race";

/// Of a clock that all processes of the machine share.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [addr, certificate, history, name, attempts, keys] = arguments.as_slice() else {
        panic!("usage: racer ADDRESS CERTIFICATE HISTORY NAME ATTEMPTS KEYS")
    };
    let (attempts, keys): (u64, usize) = (attempts.parse().unwrap(), keys.parse().unwrap());
    let certificate = CertificateDer::from_pem_file(certificate).unwrap();
    let mut options = ConnectOptions::new(addr.parse::<SocketAddr>().unwrap(), Trust::Pinned(certificate));
    // A broker that was killed sends no word.
    options.timeouts =
        Timeouts { keep_alive: Duration::from_millis(200), idle: Duration::from_millis(800), ..Timeouts::default() };
    let connection = Connection::connect(options).await.unwrap();
    let config = ProducerConfig { retry_for: Duration::from_secs(30), ..ProducerConfig::default() };
    let producer = connection.producer(config).await.unwrap();
    let mut history = File::create(history).unwrap();
    let topic = TopicName::parse(TOPIC).unwrap();
    let mut stands = vec![0; keys];
    let mut builder = BatchBuilder::new();
    for number in 0..attempts {
        let at = usize::try_from(number).unwrap() % keys;
        let (key, id, expected) = (format!("key-{at}"), format!("{name}-{number}"), stands[at]);
        let record = Record { key: Some(key.clone().into()), value: Some(id.clone().into()), ..Record::default() };
        builder.push_record(TOPIC, &record).unwrap();
        let body = builder.finish_body(&Limits::default()).unwrap();
        // One write: what a kill leaves is whole lines and the beginning of one.
        history.write_all(format!("try {key} {id} {expected} {}\n", now_ns()).as_bytes()).unwrap();
        let condition = Condition::new(&topic, key, Expect::Version(expected));
        let answer = producer.send_batch(body, vec![condition]).await;
        let end = now_ns();
        let (word, version) = match answer {
            Ok(ack) => match ack.outcome(0).unwrap() {
                Outcome::Appended { key_version, .. } => ("won", key_version),
                other => panic!("{other:?}"),
            },
            Err(error) => match error.failure().and_then(|failure| failure.conflict.as_ref()) {
                Some(conflict) => ("lost", conflict.version),
                // What became of it shows in the log.
                None => continue,
            },
        };
        stands[at] = version;
        history.write_all(format!("{word} {id} {version} {end}\n").as_bytes()).unwrap();
    }
}
