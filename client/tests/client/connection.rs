//! Dialling, credentials, requests, and how a connection ends.

use std::time::Duration;

use bytes::Bytes;
use rustls::RootCertStore;
use rustls_pki_types::PrivateKeyDer;
use tidegate_client::{ClientCert, Code, ConnectOptions, Connection, ConsumerOptions, Error, Trust};
use tidegate_protocol::{
    limits::Limits,
    wire::{Activated, Chain, ClientBody, Failure, Plugins, ServerBody, TopicInfo, Topics},
};

use crate::support::Broker;

#[tokio::test]
async fn the_welcome_tells_who_and_how_much() {
    let broker = Broker::start();
    let options = broker.options().tenant("acme").token("secret").admin_token("root");
    let connection = Connection::connect(options).await.unwrap();
    let identity = connection.identity().await.unwrap();
    assert_eq!((identity.principal.as_str(), identity.tenant.as_str(), identity.admin), ("tester", "acme", true));
    assert_eq!(connection.limits().await.unwrap(), Limits::default());
    let hello = broker.with(|state| state.hellos[0].clone());
    assert_eq!((hello.token.as_str(), hello.admin_token.as_str()), ("secret", "root"));
    assert!(hello.client.starts_with("tidegate-client/"));
    assert!(!format!("{:?}", connection.options()).contains("secret"), "credentials stay out of logs");
    let stats = connection.stats();
    assert_eq!((stats.connects, stats.reconnects, stats.disconnects), (1, 0, 0));
}

#[tokio::test]
async fn only_the_broker_that_is_trusted_is_taken() {
    let (broker, other) = (Broker::start(), Broker::start());
    let pinned = ConnectOptions::new(broker.address, Trust::Pinned(other.certificate.clone()));
    let error = Connection::connect(pinned).await.unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");

    let roots = |broker: &Broker| {
        let mut roots = RootCertStore::empty();
        roots.add(broker.certificate.clone()).unwrap();
        Trust::Roots(roots)
    };
    Connection::connect(ConnectOptions::new(broker.address, roots(&broker))).await.unwrap();
    assert!(Connection::connect(ConnectOptions::new(broker.address, roots(&other))).await.is_err());
    let mut named = ConnectOptions::new(broker.address, roots(&broker));
    named.server_name = Some("elsewhere".to_owned());
    assert!(Connection::connect(named).await.is_err(), "the name is not in the certificate");
}

#[tokio::test]
async fn a_client_certificate_is_shown() {
    let broker = Broker::start();
    let made = rcgen::generate_simple_self_signed(["client".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let cert = ClientCert { chain: vec![made.cert.der().clone()], key };
    Connection::connect(broker.options().client_cert(cert)).await.unwrap();
    assert_eq!(broker.with(|state| state.client_certs), 1);
    Connection::connect(broker.options()).await.unwrap();
    assert_eq!(broker.with(|state| state.client_certs), 1);
}

#[tokio::test]
async fn a_refused_hello_is_typed() {
    let broker = Broker::start();
    broker.with(|state| state.refuse_hello = Some(Failure::new(Code::Unauthenticated, "no such token")));
    let error = Connection::connect(broker.options()).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::Unauthenticated));
    assert_eq!(error.to_string(), "UNAUTHENTICATED: no such token");
    assert!(!error.is_retriable());
    let patient = Connection::connect_within(broker.options(), Duration::from_secs(60)).await.unwrap_err();
    assert_eq!(patient.code(), Some(Code::Unauthenticated), "no patience with a refusal");
}

#[tokio::test]
async fn nobody_there_and_no_such_name_are_told_apart() {
    let broker = Broker::start();
    let mut options = broker.options();
    options.address = "127.0.0.1:9".into();
    // Told at once, whatever patience there is.
    options.timeouts.connect = Duration::from_secs(3_600);
    let error = Connection::connect(options.clone()).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }) && error.is_retriable(), "{error}");
    assert_eq!(error.to_string(), "nobody listens at 127.0.0.1:9");
    // Somebody who says nothing is waited for.
    let mute = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    options.address = mute.local_addr().unwrap().into();
    options.timeouts.connect = Duration::from_millis(200);
    let error = Connection::connect(options.clone()).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }) && error.is_retriable(), "{error}");
    options.address = "no-port".into();
    let error = Connection::connect(options).await.unwrap_err();
    assert!(matches!(error, Error::Address { .. }), "{error}");
}

#[tokio::test]
async fn a_broker_that_drains_says_so_and_is_counted() {
    let broker = Broker::start();
    let connection = Connection::connect(broker.options()).await.unwrap();
    let mut consumer =
        connection.consumer(ConsumerOptions { resume: false, ..ConsumerOptions::new("a").follow() }).unwrap();
    broker.with(|state| state.scripts.push_back(vec![crate::support::Step::Hold]));
    let waiting = tokio::spawn(async move { consumer.next().await });
    broker.until(|state| state.opened.len() == 1).await;
    broker.stop();
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(Code::ShuttingDown));
    assert!(error.is_loss() && error.is_retriable());
    while connection.stats().disconnects == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(connection.stats().disconnects, 1);
}

#[tokio::test]
async fn requests_have_their_answers() {
    let broker = Broker::start();
    let connection = Connection::connect(broker.options()).await.unwrap();
    let admin = connection.admin();
    let live = Activated { generation: 9, ..Activated::default() };
    let topic = TopicInfo { name: "a".to_owned(), ..TopicInfo::default() };
    broker.with(|state| {
        state.answers = [
            ServerBody::Topics(Topics { topics: vec![topic.clone()], truncated: true }),
            ServerBody::TopicCreated(topic.clone()),
            ServerBody::Plugins(Plugins { generation: 8, ..Plugins::default() }),
            ServerBody::Activated(live.clone()),
            ServerBody::Activated(live.clone()),
            ServerBody::Activated(live.clone()),
            ServerBody::Chain(Chain { generation: 8, ..Chain::default() }),
            ServerBody::Failure(Failure::new(Code::GenerationChanged, "9 is live")),
            ServerBody::Chain(Chain::default()),
        ]
        .into();
    });
    assert!(admin.topics("a/*").await.unwrap().truncated);
    assert_eq!(admin.create_topic("a").await.unwrap(), topic);
    assert_eq!(admin.plugins().await.unwrap().generation, 8);
    let component = Bytes::from(vec![1; 3 << 20]);
    assert_eq!(admin.swap("redact", component.clone(), 8).await.unwrap(), live);
    assert_eq!(admin.rollback("redact", 8).await.unwrap(), live);
    assert_eq!(admin.reload(8).await.unwrap(), live);
    assert_eq!(admin.explain("a").await.unwrap().generation, 8);
    assert_eq!(admin.reload(8).await.unwrap_err().code(), Some(Code::GenerationChanged));
    let error = admin.plugins().await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "an answer to another request: {error}");
    assert_eq!(admin.producer_id().await.unwrap(), 77);
    let requests = broker.with(|state| state.requests.clone());
    assert!(matches!(&requests[3], ClientBody::PluginSwap(swap) if swap.component == component && swap.based_on == 8));
    assert!(matches!(&requests[0], ClientBody::TopicList(list) if list.pattern == "a/*" && !list.reserved));
    assert!(matches!(&requests[6], ClientBody::ChainExplain(explain) if explain.topic == "a"));
}

#[tokio::test]
async fn a_closed_connection_stays_closed_and_counts_no_loss() {
    let broker = Broker::start();
    let connection = Connection::connect(broker.options()).await.unwrap();
    let clone = connection.clone();
    connection.close().await;
    assert!(matches!(clone.admin().plugins().await, Err(Error::Closed)));
    assert!(matches!(clone.consumer(ConsumerOptions::new("a")), Err(Error::Closed)));
    assert_eq!(clone.stats().disconnects, 0);
}
