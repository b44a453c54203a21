//! The client of Tidegate: produce, consume and administer over one QUIC connection (docs/wire.md).
//!
//! A [`Connection`] is a cheap handle that dials again by itself when the broker was away. A [`Producer`] gathers records
//! into batches, keeps a bounded number of them in flight and never appends one twice; a [`Consumer`] reads from a cursor
//! on and resumes there; an [`Admin`] asks for topics and plugins. What the broker sends is checked like everything from a
//! network: a wrong byte is an [`Error`], never a panic, and no length is believed before its limit was looked at.
//!
//! This crate knows the wire and nothing of files: certificates and tokens come in as bytes.
//!
//! ```no_run
//! # async fn example(certificate: Vec<u8>) -> Result<(), tidegate_client::Error> {
//! use tidegate_client::{ConnectOptions, Connection, ConsumerOptions, ProducerConfig, Record, Trust};
//!
//! let options = ConnectOptions::new("127.0.0.1:4747", Trust::Pinned(certificate.into()));
//! let connection = Connection::connect(options).await?;
//! let producer = connection.producer(ProducerConfig::default()).await?;
//! let delivery = producer.send("orders/eu", Record { value: Some("hello".into()), ..Record::default() }).await?;
//! println!("{:?}", delivery.await?);
//! producer.close().await?;
//!
//! let mut consumer = connection.consumer(ConsumerOptions::new("orders/*"))?;
//! while let Some(batch) = consumer.next().await? {
//!     for record in batch.records() {
//!         println!("{} {} {:?}", record.topic, record.offset, record.value);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod admin;
mod backoff;
mod backup;
mod connection;
mod consumer;
mod error;
mod frames;
mod options;
mod producer;
mod stats;
mod tls;

pub use tidegate_protocol::{
    batch::{BatchBody, BatchBuilder},
    error::Code,
    record::{Headers, Record, RecordView, headers},
    topic::{TopicName, TopicPattern},
    wire::{Activated, Chain, ChainPosition, Condition, Expect, PluginInfo, Plugins, TopicInfo, Topics},
};

pub use self::{
    admin::Admin,
    backoff::Backoff,
    backup::BackupPin,
    connection::{Connection, Identity},
    consumer::{Consumer, ConsumerOptions, Event, FetchedBatch, FetchedRecord, Start},
    error::{Conflict, Error, Failure, Rejection},
    options::{Address, ClientCert, ConnectOptions, Timeouts, Trust},
    producer::{BatchAck, BatchDelivery, Delivery, Outcome, Producer, ProducerConfig, ProducerIdentity},
    stats::Stats,
};
