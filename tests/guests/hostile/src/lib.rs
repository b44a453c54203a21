//! A guest that misbehaves as its settings say. Written against the raw interface: a second proof of the contract beside
//! the SDK, and free to answer what the SDK would not let through.
//!
//! Settings: `init` and `do` name a behaviour, `needs` the fields both hooks read, `only-key` limits the behaviour to
//! calls in which a record has that key (then `needs` must begin with `key`), `edits` and `emits` are a script for
//! `do = "script"`, `text` and `count` are arguments. `hook = "produce"` lets all pass on fetch.

#![allow(clippy::cast_possible_truncation, reason = "counts of a test: they are small where the answer matters")]

// The interface of wasm32 guests: elsewhere there is nothing to export to.
#[cfg(target_arch = "wasm32")]
mod guest;
#[cfg(target_arch = "wasm32")]
mod verdicts;
