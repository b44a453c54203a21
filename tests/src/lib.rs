//! Harness of the integration tests: the real broker as a child process, judged from outside.
//!
//! Owns: starting, killing and watching brokers (`broker`), the disk that forgets (`forgetful`), deadlines (`wait`), a client
//! that can say anything (`raw`), what racing processes saw (`history`), producers that outlive a broker (`workload`) and the book of what was acked (`ledger`). It links
//! neither the broker nor its storage: what a test knows, it knows as any client would.

// A harness fails a test by panicking, and reads time as any outside observer does.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a harness, not the product"
)]

use std::path::PathBuf;

pub mod broker;
pub mod components;
pub mod forgetful;
pub mod history;
pub mod http;
pub mod ledger;
pub mod raw;
pub mod relay;
pub mod wait;
pub mod workload;

/// The target directory that the running test binary was built into.
///
/// # Panics
/// If the binary does not lie in `TARGET/PROFILE/deps` or `TARGET/PROFILE`.
pub fn target_dir() -> PathBuf {
    profile_dir().parent().expect("a profile directory lies in a target directory").to_owned()
}

/// `TARGET/PROFILE` of the running test binary.
///
/// # Panics
/// If the binary does not lie in `TARGET/PROFILE/deps` or `TARGET/PROFILE`.
pub fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("the path of a test binary is known");
    let parent = exe.parent().expect("a binary lies in a directory");
    let profile =
        if parent.ends_with("deps") { parent.parent().expect("deps lies in a profile directory") } else { parent };
    profile.to_owned()
}
