//! Connections and streams.

pub mod activation;
mod config;

pub use config::{Bounds, Certificate, Config};
