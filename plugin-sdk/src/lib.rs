//! Writes Tidegate plugins in Rust: a trait with defaults, one macro, views that copy nothing.
//!
//! ```
//! use tidegate_plugin::{Batch, Failure, Fields, Manifest, Needs, Plugin, Settings, Verdict};
//!
//! struct NoTests;
//!
//! impl Plugin for NoTests {
//!     const MANIFEST: Manifest = Manifest::new("no-tests", "0.1.0").produces().pure().judges_singly();
//!
//!     fn new(_: &Settings) -> Result<Self, Failure> {
//!         Ok(Self)
//!     }
//!     fn needs(&self) -> Needs {
//!         Needs::produce(Fields::KEY)
//!     }
//!     fn on_produce(&mut self, batch: &Batch<'_>, out: &mut Verdict) -> Result<(), Failure> {
//!         for record in batch.records() {
//!             if record.key().is_some_and(|key| key.starts_with(b"test-")) {
//!                 out.drop(record.at());
//!             }
//!         }
//!         Ok(())
//!     }
//! }
//!
//! tidegate_plugin::export!(NoTests);
//! # fn main() {}
//! ```
//!
//! The crate meets the broker at `wit/` and knows nothing of it otherwise. Exports exist on `wasm32` alone; everywhere
//! else a plugin is an ordinary type, and [`testing`] runs it through the same frames and verdicts as the broker does.
//!
//! What a plugin imports is what it calls: [`log`], [`clock`], [`random`], [`counters`] and [`host_batch`] each need
//! the grant of their name. Nothing else of the outside world exists in a guest: `std::time`, `std::fs` and threads have
//! no backend there.

mod batch;
#[allow(
    unsafe_code,
    missing_docs,
    unused_qualifications,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    clippy::too_many_lines,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::use_self,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    reason = "generated from wit/; it alone calls and is called over the raw boundary"
)]
#[doc(hidden)]
pub mod bindings;
mod capabilities;
mod entropy;
mod export;
pub mod kernels;
mod plugin;
mod settings;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
mod verdict;

pub use batch::{Batch, Column, Headers, RecordRef, Records};
pub use bindings::tidegate::plugin::types::Fields;
#[doc(hidden)]
pub use capabilities::native;
pub use capabilities::{clock, counters, host_batch, instance, log, random};
#[doc(hidden)]
pub use export::{Slot, fetch, init, manifest, produce};
pub use plugin::{Failure, Hooks, Manifest, Needs, Plugin, Reader};
pub use settings::Settings;
pub use verdict::{REASON_BYTES_MAX, Verdict};
