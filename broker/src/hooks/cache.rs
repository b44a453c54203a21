//! Compiled code between starts: one file per (component digest, engine settings), checked before it is trusted.
//!
//! ```text
//! DIR/key                         32 random bytes, mode 0600
//! DIR/{sha256 hex}-{compat}.cwasm  the code, as wasmtime serializes it
//! DIR/{sha256 hex}-{compat}.mac    32 bytes: blake3 keyed(key, name of the code's file | 0 | code)
//! ```
//!
//! The code is mapped, not copied: pages that no call touches cost no memory, and loading costs little more than the
//! check. So a file is never written in place: it is written aside and renamed, and replaced or removed as a whole.
//!
//! **Why the `unsafe` here is sound.** wasmtime's `deserialize_file` trusts its input: bytes that its own compiler did not
//! make may run anything. We hand it only files whose MAC holds under a key that this module made, in a directory that
//! only the broker's user can write, with the engine's compatibility hash inside the MAC. Whoever can make such a file, or
//! change one after the check, can write the user's files, hence could replace the broker as well. A file that fails the
//! check is replaced: the component is compiled again.

#![allow(unsafe_code, reason = "Component::deserialize_file and deserialize, sound as argued above")]

use std::{
    fs,
    hash::{Hash as _, Hasher as _},
    io::Read as _,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use wasmtime::{Engine, component::Component};

use super::{RuntimeError, compile::MadeCode};
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

/// What the cache has of a component.
pub(super) enum Found {
    Code(Component),
    /// Something that failed its check.
    Refused,
    Nothing,
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

    /// The component of this digest (64 hex digits), if its code is here and can be trusted.
    pub(super) fn find(&self, engine: &Engine, digest_hex: &str) -> Found {
        let name = self.name(digest_hex);
        let path = self.dir.join(&name);
        // The MAC is written last: without it nothing was ever kept.
        if !path.exists() || !path.with_extension(MAC).exists() {
            return Found::Nothing;
        }
        if self.trusted(&name, &path).is_none() {
            tracing::warn!(path = %path.display(), "compiled code failed its check and is compiled again");
            return Found::Refused;
        }
        match deserialize(engine, &path) {
            Ok(component) => Found::Code(component),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(path = %path.display(), error, "compiled code cannot be loaded and is compiled again");
                Found::Nothing
            }
        }
    }

    /// Keeps the code of a component that has this digest, and gives the component: mapped, if it could be kept.
    pub(super) fn keep(&self, engine: &Engine, digest_hex: &str, code: &MadeCode) -> wasmtime::Result<Component> {
        let name = self.name(digest_hex);
        let path = self.dir.join(&name);
        if let Err(error) = self.store(&name, code.bytes()) {
            // Without the cache the next start compiles again; that is slow, not wrong.
            tracing::warn!(path = %path.display(), %error, "compiled code could not be kept");
            return in_memory(engine, code);
        }
        deserialize(engine, &path)
    }

    fn name(&self, digest_hex: &str) -> String {
        format!("{digest_hex}-{:016x}.cwasm", self.compatibility)
    }

    /// Whether the MAC beside a file holds.
    fn trusted(&self, name: &str, path: &Path) -> Option<()> {
        let stored = <[u8; MAC_BYTES]>::try_from(fs::read(path.with_extension(MAC)).ok()?).ok()?;
        let mut hasher = self.hasher(name);
        let mut file = fs::File::open(path).ok()?;
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match file.read(&mut buffer).ok()? {
                0 => break,
                read => hasher.update(buffer.get(..read)?),
            };
        }
        // blake3's own type compares in constant time.
        (hasher.finalize() == blake3::Hash::from_bytes(stored)).then_some(())
    }

    fn hasher(&self, name: &str) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(name.as_bytes()).update(&[0]);
        hasher
    }

    fn store(&self, name: &str, code: &[u8]) -> std::io::Result<()> {
        let mac = self.hasher(name).update(code).finalize();
        // The MAC goes first and comes last: between the two renames no pair holds.
        let path = self.dir.join(name);
        match fs::remove_file(path.with_extension(MAC)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => self.place(&path, code).and_then(|()| self.place(&path.with_extension(MAC), mac.as_bytes())),
        }
    }

    /// Written aside and renamed, so that a second broker or a crash never shows half a file.
    fn place(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let aside = path.with_extension(format!("{}-{number}", std::process::id()));
        let placed = write_new(&aside, bytes).and_then(|()| fs::rename(&aside, path));
        if placed.is_err() {
            drop(fs::remove_file(&aside));
        }
        placed
    }
}

/// A component out of code that was just made.
pub(super) fn in_memory(engine: &Engine, code: &MadeCode) -> wasmtime::Result<Component> {
    // SAFETY: a `MadeCode` comes out of the compiler of this process, or of one that runs the same program.
    unsafe { Component::deserialize(engine, code.bytes()) }
}

fn deserialize(engine: &Engine, path: &Path) -> wasmtime::Result<Component> {
    // SAFETY: this module's `store` has just written the file from a `MadeCode`, or it passed `trusted` and was written so by
    // an earlier run with the same compatibility hash; and nothing writes it in place (see the module's documentation).
    let mapped = unsafe { Component::deserialize_file(engine, path) };
    mapped.or_else(|refused| {
        // Where files cannot be mapped as code (a file system mounted `noexec`), a copy in memory can.
        let Ok(code) = fs::read(path) else { return Err(refused) };
        // SAFETY: as above.
        unsafe { Component::deserialize(engine, code) }
    })
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
/// Extension of the file beside the code's.
const MAC: &str = "mac";
/// Stays in the cache of a core while it is hashed.
const READ_BYTES: usize = 256 << 10;
