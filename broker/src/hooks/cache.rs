//! Compiled code between starts: one file per (component digest, engine settings), checked before it is trusted.
//!
//! ```text
//! DIR/key                         32 random bytes, mode 0600
//! DIR/{sha256 hex}-{compat}.cwasm  32 bytes MAC = blake3 keyed(key, file name | code), then the code
//! ```
//!
//! **Why the `unsafe` here is sound.** wasmtime's `deserialize` trusts its input: bytes that its own compiler did not
//! make may run anything. We hand it only bytes whose MAC holds under a key that this module made, in a directory that
//! only the broker's user can write, with the engine's compatibility hash inside the MAC. Whoever can make such a file can
//! read the user's files, hence could replace the broker as well. A file that fails the check is removed and the component
//! compiled again.

#![allow(unsafe_code, reason = "one call of Component::deserialize, sound as argued above")]

use std::{
    fs,
    hash::{Hash as _, Hasher as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use wasmtime::{Engine, component::Component};

use super::RuntimeError;
use crate::clock::Random;

/// Where a plugin's machine code came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeSource {
    /// From the cache, after its check.
    Cached,
    /// Compiled: it was not in the cache, or there is none.
    Compiled,
    /// Compiled, because what lay in the cache failed its check and was thrown away.
    Refused,
}

#[derive(Debug)]
pub(super) struct Cache {
    dir: PathBuf,
    key: [u8; KEY_BYTES],
    /// Hash of everything that decides what the compiler makes.
    compatibility: u64,
    written: AtomicU64,
}

impl Cache {
    pub(super) fn open(dir: &Path, engine: &Engine, random: &dyn Random) -> Result<Self, RuntimeError> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir, "create"))?;
        let meta = fs::metadata(dir).map_err(failed(dir, "look at"))?;
        if meta.mode() & 0o022 != 0 || meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(RuntimeError::Cache {
                path: dir.to_owned(),
                operation: "check",
                reason: "others can write here, so its code cannot be trusted; chmod 700 it and let the broker's user \
                         own it, or remove it"
                    .to_owned(),
            });
        }
        let key = key(&dir.join("key"), random)?;
        // A fixed hasher: the value goes into file names. Two builds that disagree miss each other's files, no more.
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Ok(Self { dir: dir.to_owned(), key, compatibility: hasher.finish(), written: AtomicU64::new(0) })
    }

    /// The component of this digest (64 hex digits), compiled once per digest and engine.
    pub(super) fn load(
        &self,
        engine: &Engine,
        digest_hex: &str,
        compile: impl FnOnce() -> Result<Component, super::LoadError>,
    ) -> Result<(Component, CodeSource), super::LoadError> {
        let name = format!("{digest_hex}-{:016x}.cwasm", self.compatibility);
        let path = self.dir.join(&name);
        let mut source = CodeSource::Compiled;
        if let Ok(bytes) = fs::read(&path) {
            match self.trusted(&name, &bytes).and_then(|code| deserialize(engine, code)) {
                Some(component) => return Ok((component, CodeSource::Cached)),
                None => {
                    tracing::warn!(path = %path.display(), "compiled code failed its check and is compiled again");
                    source = CodeSource::Refused;
                }
            }
        }
        let component = compile()?;
        if let Err(error) = self.store(&name, &component) {
            // Without the cache the next start compiles again; that is slow, not wrong.
            tracing::warn!(path = %path.display(), %error, "compiled code could not be kept");
        }
        Ok((component, source))
    }

    fn trusted<'a>(&self, name: &str, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (stored, code) = bytes.split_at_checked(MAC_BYTES)?;
        let stored: [u8; MAC_BYTES] = stored.try_into().ok()?;
        // blake3's own type compares in constant time.
        (self.mac(name, code) == blake3::Hash::from_bytes(stored)).then_some(code)
    }

    fn mac(&self, name: &str, code: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.key).update(name.as_bytes()).update(&[0]).update(code).finalize()
    }

    fn store(&self, name: &str, component: &Component) -> Result<(), String> {
        let code = component.serialize().map_err(|error| format!("{error:#}"))?;
        let mut bytes = Vec::with_capacity(MAC_BYTES + code.len());
        bytes.extend_from_slice(self.mac(name, &code).as_bytes());
        bytes.extend_from_slice(&code);
        // Written aside and renamed, so that a second broker or a crash never shows half a file.
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let aside = self.dir.join(format!("{name}.{}-{number}", std::process::id()));
        let written = write_new(&aside, &bytes).and_then(|()| fs::rename(&aside, self.dir.join(name)));
        if written.is_err() {
            drop(fs::remove_file(&aside));
        }
        written.map_err(|error| error.to_string())
    }
}

fn deserialize(engine: &Engine, code: &[u8]) -> Option<Component> {
    // SAFETY: `code` passed `trusted`: this module's `store` wrote it from `Component::serialize` of an engine with the
    // same compatibility hash (see the module's documentation).
    unsafe { Component::deserialize(engine, code) }.ok()
}

fn key(path: &Path, random: &dyn Random) -> Result<[u8; KEY_BYTES], RuntimeError> {
    let mut fresh = [0; KEY_BYTES];
    random.fill(&mut fresh);
    match write_new(path, &fresh) {
        Ok(()) => return Ok(fresh),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(path, "write")(error)),
    }
    if let Ok(key) = <[u8; KEY_BYTES]>::try_from(fs::read(path).map_err(failed(path, "read"))?) {
        return Ok(key);
    }
    // Cut short by a crash: what it signed is worth nothing, and is compiled again.
    fs::remove_file(path).map_err(failed(path, "remove"))?;
    write_new(path, &fresh).map_err(failed(path, "write"))?;
    Ok(fresh)
}

fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

fn failed(path: &Path, operation: &'static str) -> impl Fn(std::io::Error) -> RuntimeError {
    let path = path.to_owned();
    move |error| RuntimeError::Cache { path: path.clone(), operation, reason: error.to_string() }
}

/// FNV-1a: the standard hasher does not promise the same value for the same input in the next release.
struct Fnv(u64);

impl std::hash::Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

const KEY_BYTES: usize = 32;
const MAC_BYTES: usize = 32;
