//! `cargo xtask guests`: builds every plugin for wasm32 and puts it into `target/plugins/NAME.wasm`, as a core module with
//! its component type embedded; the broker makes a component of it when it loads it.
//!
//! A file is written only when its content changes, so that whatever watches or caches by time and digest stays quiet.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use crate::{steps, verify};

const TARGET: &str = "wasm32-unknown-unknown";
/// The SDK is a library: it is tested with the plugins, and is none.
const SDK: &str = "tidegate-plugin";
/// What a package's name says besides the plugin's own name.
const PREFIXES: [&str; 3] = ["tidegate-plugin-", "tidegate-guest-", "tidegate-example-"];

/// Builds all plugins and tells sizes and times.
pub(crate) fn run() -> Result<(), String> {
    target_is_there()?;
    let packages: Vec<String> = verify::plugin_packages()?.into_iter().filter(|name| name != SDK).collect();
    let start = now();
    let folder = steps::target().join("guests");
    let mut cargo = steps::cargo();
    // Flags from outside would replace those of .cargo/config.toml, which guests need (SIMD, the source of randomness).
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo.args(["build", "--profile", "guest", "--target", TARGET, "--target-dir"]).arg(&folder);
    for package in &packages {
        cargo.args(["--package", package]);
    }
    steps::must(&mut cargo)?;

    let built = folder.join(TARGET).join("guest");
    // Wherever cargo builds: `plugins.toml` names them by this path.
    let plugins = steps::root().join("target").join("plugins");
    fs::create_dir_all(&plugins).map_err(|error| at(&plugins, &error))?;
    println!("{:>9}  {:8}  plugin", "KiB", "");
    for package in &packages {
        let module = built.join(package.replace('-', "_")).with_extension("wasm");
        let (bytes, news) = place(&module, &plugins.join(plugin_name(package)).with_extension("wasm"))?;
        println!("{:>9.1}  {news:8}  {}", bytes as f64 / 1024.0, plugin_name(package));
    }
    println!("{} plugins in {} after {:.1} s", packages.len(), plugins.display(), start.elapsed().as_secs_f64());
    Ok(())
}

/// `tidegate-plugin-route` is `route`.
fn plugin_name(package: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| package.strip_prefix(prefix)).unwrap_or(package)
}

/// Copies a module if it differs from what lies there; gives its size and what happened.
fn place(module: &Path, to: &Path) -> Result<(usize, &'static str), String> {
    let content = fs::read(module).map_err(|error| at(module, &error))?;
    if fs::read(to).is_ok_and(|old| old == content) {
        return Ok((content.len(), "as before"));
    }
    // Beside the goal first: a broker that reads meanwhile sees the old file or the new one, never half of it.
    let beside = to.with_extension("wasm.new");
    fs::write(&beside, &content).map_err(|error| at(&beside, &error))?;
    fs::rename(&beside, to).map_err(|error| at(to, &error))?;
    Ok((content.len(), "new"))
}

/// Adds the target to the toolchain if its library is missing.
fn target_is_there() -> Result<(), String> {
    if library().is_some_and(|folder| has_library(&folder)) {
        return Ok(());
    }
    println!("the toolchain has no {TARGET}: adding it with rustup");
    let added = Command::new("rustup").args(["target", "add", TARGET]).current_dir(steps::root()).status();
    if library().is_some_and(|folder| has_library(&folder)) {
        return Ok(());
    }
    let reason = match added {
        Ok(status) => format!("`rustup target add {TARGET}` ended with {status}"),
        Err(error) => format!("rustup cannot be started: {error}"),
    };
    Err(format!(
        "plugins are WebAssembly, and this Rust toolchain has no library for {TARGET} ({reason}).\n\
         With rustup and a network: run `rustup target add {TARGET}` in this folder.\n\
         With a toolchain of the system's package manager: install its package of that target (Debian: libstd-rust-dev-wasm32)."
    ))
}

/// Where the compiler of this folder looks for the target's library.
fn library() -> Option<PathBuf> {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler)
        .args(["--print", "target-libdir", "--target", TARGET])
        .current_dir(steps::root())
        .output()
        .ok()?;
    output.status.success().then(|| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()))
}

fn has_library(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("libstd-")))
    })
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[expect(clippy::disallowed_methods, reason = "a build tool measures its own steps")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_prefix() {
        assert_eq!(plugin_name("tidegate-plugin-route"), "route");
        assert_eq!(plugin_name("tidegate-guest-stamp-v1"), "stamp-v1");
        assert_eq!(plugin_name("tidegate-example-first-filter"), "first-filter");
        assert_eq!(plugin_name("other"), "other");
    }

    #[test]
    fn a_module_is_written_only_when_it_changed() {
        let folder = std::env::temp_dir().join(format!("tidegate-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (from, to) = (folder.join("from"), folder.join("to.wasm"));
        fs::write(&from, "one").unwrap();
        assert_eq!(place(&from, &to).unwrap(), (3, "new"));
        assert_eq!(place(&from, &to).unwrap(), (3, "as before"));
        fs::write(&from, "other").unwrap();
        assert_eq!(place(&from, &to).unwrap(), (5, "new"));
        assert_eq!(fs::read(&to).unwrap(), b"other");
        fs::remove_dir_all(&folder).unwrap();
    }
}
