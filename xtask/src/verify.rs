//! `cargo verify`: every test; `cargo xtask ci`: the same behind formatting, lints and documentation.

use crate::{demo, guests, sim, steps};

/// What is built for wasm32 and tested natively: a set of its own, so that its dependencies' features do not mix with the
/// broker's (see `default-members`).
pub(crate) fn plugin_packages() -> Result<Vec<String>, String> {
    let mut packages = Vec::new();
    for folder in ["plugin-sdk", "plugins", "tests/guests", "examples/first-filter"] {
        let path = steps::root().join(folder);
        if path.join("Cargo.toml").exists() {
            packages.push(package_name(&path)?);
            continue;
        }
        let entries = std::fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for entry in entries {
            let path = entry.map_err(|error| error.to_string())?.path();
            if path.join("Cargo.toml").exists() {
                packages.push(package_name(&path)?);
            }
        }
    }
    packages.sort();
    Ok(packages)
}

fn package_name(folder: &std::path::Path) -> Result<String, String> {
    let manifest = folder.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).map_err(|error| format!("{}: {error}", manifest.display()))?;
    text.lines()
        .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .map(str::to_owned)
        .ok_or_else(|| format!("{}: no package name", manifest.display()))
}

fn with_packages(command: &mut std::process::Command) -> Result<&mut std::process::Command, String> {
    for package in plugin_packages()? {
        command.args(["--package", &package]);
    }
    Ok(command)
}

/// Runs all tests.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let mut steps = steps::Steps::new();
    let result = all(&mut steps, full(arguments)?);
    steps.table();
    result
}

/// Whether the long tiers are wanted.
fn full(arguments: &[String]) -> Result<Tier, String> {
    match arguments {
        [] => Ok(Tier::Short),
        [only] if only == "--full" => Ok(Tier::Full),
        other => Err(format!("cargo verify takes --full and nothing else, not {other:?}")),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tier {
    Short,
    Full,
}

fn all(steps: &mut steps::Steps, tier: Tier) -> Result<(), String> {
    steps.run("prerequisites", steps::prerequisites)?;
    steps.run("build broker, client, demo and tests", || {
        steps::must(steps::cargo().args(["build", "--tests", "--bins"]))
    })?;
    steps.run("build plugins", guests::run)?;
    steps.run("test broker, client, formats, end to end", || {
        let mut command = steps::cargo();
        command.args(["test", "--no-fail-fast"]);
        if tier == Tier::Full {
            command.env("TIDEGATE_FULL", "1");
        }
        steps::must(&mut command)
    })?;
    steps.run("simulation", || sim::simulate(0, if tier == Tier::Full { sim::SEEDS_FULL } else { sim::SEEDS }))?;
    steps.run("simulation of mistakes", sim::mutants)?;
    steps.run("test plugins natively", || {
        steps::must(with_packages(steps::cargo().args(["test", "--no-fail-fast"]))?)
    })?;
    steps.run("demo", || demo::execute(&[]))
}

/// What CI runs.
pub(crate) fn ci() -> Result<(), String> {
    let mut steps = steps::Steps::new();
    let result = steps
        .run("formatting", || steps::must(steps::cargo().args(["fmt", "--all", "--check"])))
        .and_then(|()| all(&mut steps, Tier::Short))
        .and_then(|()| lints(&mut steps));
    steps.table();
    result
}

fn lints(steps: &mut steps::Steps) -> Result<(), String> {
    steps.run("lints", || steps::must(steps::cargo().args(["clippy", "--all-targets", "--", "-D", "warnings"])))?;
    steps.run("lints of plugins", || {
        steps::must(with_packages(steps::cargo().args(["clippy", "--all-targets"]))?.args(["--", "-D", "warnings"]))
    })?;
    steps.run("documentation", || {
        // Module docs name the private parts of their module: for a reader of the source that link is the point.
        let flags = "-D warnings -A rustdoc::private_intra_doc_links";
        steps::must(steps::cargo().args(["doc", "--no-deps", "--lib"]).env("RUSTDOCFLAGS", flags))
    })
}
