//! The test that holds the floors of `ARCHITECTURE.md`: imports of the broker point down, and some rights are exclusive.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::steps;

/// Modules of `broker/src`, lowest floor first. A module may import its own floor's list and the floors below as told here.
const FLOORS: &[(&str, &[&str])] = &[
    ("threads", &[]),
    ("mutants", &[]),
    ("clock", &["threads"]),
    ("metrics", &["clock"]),
    ("record", &[]),
    ("auth", &["clock", "metrics", "mutants", "record", "threads"]),
    ("hooks", &["clock", "metrics", "mutants", "record", "threads"]),
    ("storage", &["clock", "metrics", "mutants", "record", "threads"]),
    ("catalog", &["clock", "metrics", "mutants", "record", "threads", "storage"]),
    ("shard", &["clock", "metrics", "mutants", "record", "threads", "storage", "catalog"]),
    ("produce", &["clock", "metrics", "mutants", "record", "threads", "storage", "catalog", "shard", "hooks", "auth"]),
    ("fetch", &["clock", "metrics", "mutants", "record", "threads", "storage", "catalog", "shard", "hooks", "auth"]),
    (
        "server",
        &[
            "clock", "metrics", "mutants", "record", "threads", "storage", "catalog", "shard", "hooks", "auth",
            "produce", "fetch",
        ],
    ),
    (
        "config",
        &[
            "clock", "metrics", "mutants", "record", "threads", "storage", "catalog", "shard", "hooks", "auth",
            "produce", "fetch", "server",
        ],
    ),
    (
        "cli",
        &[
            "clock", "metrics", "mutants", "record", "threads", "storage", "catalog", "shard", "hooks", "auth",
            "produce", "fetch", "server", "config",
        ],
    ),
];

/// What only some modules may name.
const RIGHTS: &[(&str, &[&str])] = &[
    ("quinn::", &["server"]),
    ("wasmtime::", &["hooks"]),
    ("object_store::", &["storage"]),
    ("std::fs", &["storage", "config", "cli", "hooks"]),
    ("anyhow::", &["main", "cli"]),
];

/// Crates that the broker itself must never need: judgement lives in guests.
const NEVER: &[&str] = &["jsonschema", "apache-avro", "arrow", "parquet", "iceberg", "cel", "aws-lc-rs"];

/// Files under a folder, sorted.
fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// A file named `tests.rs`, or in a folder of that name, or of the simulation, which looks at every floor.
fn is_test(file: &Path, source: &Path) -> bool {
    let below = file.strip_prefix(source).expect("below");
    below.starts_with("sim") || below.iter().any(|part| part == "tests.rs" || part == "tests")
}

/// Module of a file: the first part of its path below `broker/src`.
fn module_of(file: &Path, source: &Path) -> String {
    let below = file.strip_prefix(source).expect("below");
    let first = below.components().next().expect("first").as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// Modules that a line names by `crate::NAME`, also in a group `crate::{a, b::c}`.
fn named(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for part in text.split("crate::").skip(1) {
        let word =
            |text: &str| text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        let Some(group) = part.strip_prefix('{') else {
            names.insert(word(part));
            continue;
        };
        let mut depth = 0_i32;
        let mut start = true;
        for (at, c) in group.char_indices() {
            if start && !c.is_whitespace() {
                names.insert(word(&group[at..]));
                start = false;
            }
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                _ => {}
            }
        }
    }
    names
}

/// Source without comments and without the tests at its end.
fn code(text: &str) -> String {
    let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    production.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn imports_of_the_broker_point_down() {
    let source = steps::root().join("broker/src");
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    assert!(!files.is_empty());
    let mut wrong = Vec::new();
    for file in &files {
        let module = module_of(file, &source);
        if module == "lib" || module == "main" || is_test(file, &source) {
            continue;
        }
        let Some((_, allowed)) = FLOORS.iter().find(|(name, _)| *name == module) else {
            wrong.push(format!("{}: module {module} stands on no floor", file.display()));
            continue;
        };
        for name in named(&code(&fs::read_to_string(file).expect("source"))) {
            let known = FLOORS.iter().any(|(other, _)| *other == name);
            if known && name != module && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{}: {module} must not import {name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn exclusive_rights_are_kept() {
    let source = steps::root().join("broker/src");
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| !is_test(file, &source)) {
        let module = module_of(file, &source);
        let text = code(&fs::read_to_string(file).expect("source"));
        for (right, owners) in RIGHTS {
            let used = text
                .match_indices(right)
                .any(|(at, _)| !text[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_'));
            if used && !owners.contains(&module.as_str()) {
                wrong.push(format!("{}: {right} belongs to {owners:?}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_broker_needs_no_judge() {
    let output = steps::cargo()
        .args(["tree", "--package", "tidegate", "--edges", "normal", "--prefix", "none"])
        .output()
        .expect("cargo tree");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in NEVER {
        assert!(!tree.lines().any(|line| line.split(' ').next() == Some(name)), "the broker depends on {name}");
    }
}

#[test]
fn guests_never_depend_on_the_broker() {
    for package in crate::verify::plugin_packages().expect("packages") {
        let output = steps::cargo()
            .args(["tree", "--package", &package, "--edges", "normal", "--prefix", "none"])
            .output()
            .expect("cargo tree");
        let tree = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!tree.lines().any(|line| line.starts_with("tidegate ")), "{package} depends on the broker");
    }
}

#[test]
fn the_reader_of_imports_reads_them() {
    let names = named("use crate::{clock::{Clock, Random}, storage};\nlet x = crate::hooks::spec();");
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["clock", "hooks", "storage"]);
}
