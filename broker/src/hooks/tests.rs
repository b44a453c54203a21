//! The runtime with real guests. They are built by `cargo xtask guests`.

mod capabilities;
mod chain;
mod fetch;
mod hostile;
mod loading;
mod runtime;
mod support;
