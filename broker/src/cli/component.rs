//! `tidegate plugin component`: a core module with an embedded component type becomes a component.

use std::{
    fmt::{self, Display},
    path::PathBuf,
};

use serde::Serialize;

use super::{Error, Output, exit};
use crate::hooks::component_of;

/// Arguments of `plugin component`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo build --release --target wasm32-unknown-unknown\n  \
                  tidegate plugin component target/wasm32-unknown-unknown/release/mask.wasm mask.wasm")]
pub(super) struct Args {
    /// The core module, as `cargo build --target wasm32-unknown-unknown` leaves it.
    input: PathBuf,
    /// Where the component goes. It is replaced whole or not at all.
    out: PathBuf,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<u8, Error> {
    let module = std::fs::read(&args.input).map_err(|source| Error::file("read", &args.input, source))?;
    if is_component(&module) {
        return Err(Error::Usage(format!("{} is a component already: use it as it is", args.input.display())));
    }
    let component = component_of(&module)
        .map_err(|reason| Error::Usage(format!("{} does not become a component: {reason}", args.input.display())))?;
    replace(&args.out, &component)?;
    output.row(&Made {
        out: args.out.display().to_string(),
        digest: sha256(&component),
        module_bytes: module.len(),
        component_bytes: component.len(),
    })?;
    Ok(exit::OK)
}

/// Bytes 4 to 8 of a component: version 13, layer 1. A core module has version 1, layer 0 there.
const COMPONENT_PREFIX: [u8; 8] = *b"\0asm\x0d\0\x01\0";

fn is_component(bytes: &[u8]) -> bool {
    bytes.starts_with(&COMPONENT_PREFIX)
}

/// Writes beside the target and renames, so that nobody ever reads half a file.
pub(super) fn replace(path: &std::path::Path, bytes: &[u8]) -> Result<(), Error> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    std::fs::write(&beside, bytes).map_err(|source| Error::file("write", &beside, source))?;
    std::fs::rename(&beside, path).map_err(|source| Error::file("replace", path, source))
}

/// `sha256:HEX`, as plugin digests are written everywhere.
pub(super) fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[derive(Debug, Serialize)]
struct Made {
    out: String,
    digest: String,
    module_bytes: usize,
    component_bytes: usize,
}

impl Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} · {} bytes · {}", self.out, self.component_bytes, self.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_sha256_in_hex() {
        assert_eq!(sha256(b"abc"), "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn what_is_no_module_is_refused() {
        assert!(component_of(b"hello").is_err());
        assert!(is_component(b"\0asm\x0d\0\x01\0rest"));
        assert!(!is_component(b"\0asm\x01\0\0\0rest"));
    }
}
