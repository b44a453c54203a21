//! Guests: loads plugins, runs chains of them over batches, and lets none of them harm anybody else.
//!
//! Owns wasmtime. Must not know storage, topics' ids, connections or files other than its own cache. Called by `produce`
//! and `fetch` (chains), `server` (loading, activation) and `cli` (offline tools). ADR 2 has the contract, ADR 6 the
//! threads.

pub mod spec;
