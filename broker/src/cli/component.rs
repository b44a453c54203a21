//! `tidegate plugin component`: a core module with an embedded component type becomes a component.

use std::{
    fmt::{self, Display},
    path::{Path, PathBuf},
};

use serde::Serialize;
use tidegate_protocol::error::Code;

use super::{Error, Output, exit, output::Bytes};
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
    let refused = |why: String| Error::refused(Code::PluginInvalid, format!("{}: {why}", args.input.display()));
    if is_component(&module) {
        return Err(refused("is a component already".to_owned()).then("Use it as it is."));
    }
    if let Some(what) = not_wasm(&module) {
        return Err(refused(format!("not WebAssembly: {what}"))
            .then("Give the .wasm file that `cargo build --target wasm32-unknown-unknown` leaves."));
    }
    let component = component_of(&module).map_err(|reason| {
        refused(format!("does not become a component: {reason}"))
            .then("Build it with the plugin SDK, or with wit-bindgen against tidegate:plugin@0.1.0.")
    })?;
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

/// What a file is that is no WebAssembly, by how it starts; `None` if it starts as WebAssembly does.
fn not_wasm(bytes: &[u8]) -> Option<String> {
    if bytes.starts_with(b"\0asm") {
        return None;
    }
    if bytes.is_empty() {
        return Some("the file is empty".to_owned());
    }
    let text = bytes.trim_ascii_start();
    if text.starts_with(b"(module") || text.starts_with(b"(component") {
        return Some("it is the text format, which a tool such as `wat2wasm` makes binary".to_owned());
    }
    let head = bytes.get(..HEAD_BYTES).unwrap_or(bytes);
    // As far as it is text; cut where a character ends.
    let text = head.utf8_chunks().next().map(|chunk| chunk.valid().as_bytes()).unwrap_or_default();
    if text.len() > HEAD_BYTES / 2 || text.len() == bytes.len() {
        return Some(format!("it starts with \"{}\"", Bytes(text)));
    }
    let hex: Vec<String> = head.iter().take(HEX_BYTES).map(|byte| format!("{byte:02x}")).collect();
    Some(format!("it starts with the bytes {}", hex.join(" ")))
}

/// Bytes shown of a file that is something else.
const HEAD_BYTES: usize = 24;
/// Bytes shown of one that is no text: formats are known by their first four to eight.
const HEX_BYTES: usize = 8;

/// Where a file is written before it takes its place.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    beside.into()
}

/// Makes sure that [`replace`] can write beside the target.
pub(super) fn check_replaceable(path: &Path) -> Result<(), Error> {
    let beside = beside(path);
    std::fs::File::create(&beside)
        .and_then(|_| std::fs::remove_file(&beside))
        .map_err(|source| Error::file("write", &beside, source))
}

/// Writes beside the target and renames, so that nobody ever reads half a file.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let beside = beside(path);
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
    fn what_is_no_webassembly_is_named_by_how_it_starts() {
        let told = |bytes: &[u8]| not_wasm(bytes).unwrap();
        assert_eq!(told(b"hello world, this is a text"), "it starts with \"hello world, this is a t\"");
        assert_eq!(told("ä".repeat(30).as_bytes()), format!("it starts with \"{}\"", "ä".repeat(12)));
        assert_eq!(told(b"ELF"), "it starts with \"ELF\"");
        assert_eq!(told(b"\x1f\x8b\x08\x00"), "it starts with the bytes 1f 8b 08 00");
        assert!(told(b"").contains("empty") && told(b"\n(module)").contains("text format"));
        assert_eq!(not_wasm(b"\0asm\x01\0\0\0"), None);
    }

    #[test]
    fn what_is_no_module_is_refused() {
        assert!(component_of(b"hello").is_err());
        assert!(is_component(b"\0asm\x0d\0\x01\0rest"));
        assert!(!is_component(b"\0asm\x01\0\0\0rest"));
    }
}
