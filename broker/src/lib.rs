//! The Tidegate broker. `ARCHITECTURE.md` shows a record's journey and the floors these modules stand on.

// Floor 0: vocabulary.
pub mod clock;
pub mod metrics;
#[cfg(mutants)]
pub mod mutants;
pub mod record;
pub mod threads;
// Floor 1: guests, disk, identity. They never import each other.
pub mod auth;
pub mod hooks;
pub mod storage;
// Floor 2: who exists, and the single writer.
pub mod catalog;
pub mod shard;
// Floor 3: one verb, one hook, one module.
pub mod fetch;
pub mod produce;
// Floor 4.
pub mod server;
// Floor 5.
pub mod cli;
pub mod config;
// Beside the building.
#[cfg(test)]
mod sim;
