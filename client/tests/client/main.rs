//! The client over real QUIC on loopback, against a broker made for these tests.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests; the test broker may panic")]

mod connection;
mod consumer;
mod producer;
mod support;
