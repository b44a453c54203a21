//! Loading: what is refused, with which words, and what the code cache trusts.

use std::{os::unix::fs::PermissionsExt as _, sync::Arc};

use bytes::Bytes;
use serde_json::json;

use super::support::*;
use crate::hooks::{CodeSource, Config, LoadError, RuntimeError};

fn refusal(given: &Given) -> String {
    given.load().unwrap_err().to_string()
}

#[test]
fn a_good_plugin_says_who_it_is() {
    let plugin = Given::hostile("good", &json!({})).load().unwrap();
    let manifest = plugin.manifest();
    assert_eq!((manifest.name.as_str(), manifest.version.as_str()), ("hostile", "0.1.0"));
    assert!(manifest.produce && manifest.fetch && manifest.reads_reader && !manifest.pure);
    let stats = plugin.stats();
    assert_eq!((stats.produce.calls, stats.fetch.calls, stats.instances), (0, 0, 1), "the smoke run does not count");
}

#[test]
fn other_bytes_than_configured_are_refused() {
    let mut given = Given::noop("p");
    given.component.push(0);
    assert!(matches!(given.load(), Err(LoadError::Digest { .. })), "{}", refusal(&given));
}

#[test]
fn bytes_that_are_no_plugin_are_refused() {
    let mut given = Given::noop("p");
    for bytes in
        [&b""[..], b"#!/bin/sh\n", b"\0asm\x07\0\0\0", b"\0asm\x01\0\0\0\xff\xff\xff", b"\0asm\x0d\0\x01\0\xff\xff"]
    {
        given.component = bytes.to_vec();
        given.spec.digest = digest(bytes);
        let error = given.load().unwrap_err();
        let told =
            matches!(error, LoadError::NotWasm { .. } | LoadError::Componentise { .. } | LoadError::Compile { .. });
        assert!(told, "{error}");
    }
    // A core module with no component type at all.
    given.component = b"\0asm\x01\0\0\0".to_vec();
    given.spec.digest = digest(&given.component);
    assert!(given.load().is_err());
}

#[test]
fn a_world_of_another_version_is_named() {
    let mut given = Given::noop("p");
    let other = String::from_utf8_lossy(&given.component).contains("@0.1.0");
    assert!(other, "the guest names its version");
    replace(&mut given.component, b"@0.1.0", b"@0.2.0");
    given.spec.digest = digest(&given.component);
    let told = refusal(&given);
    assert!(told.contains("@0.2.0") && told.contains("this broker serves 0.1.0"), "{told}");
}

fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    for at in 0..=bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
}

#[test]
fn an_import_without_its_grant_is_refused_with_the_line_to_add() {
    let mut given = Given::hostile("p", &json!({}));
    for grant in ALL {
        given.spec.grants = ALL.into_iter().filter(|other| *other != grant).map(Into::into).collect();
        let told = refusal(&given);
        assert!(told.contains(&format!("add \"{grant}\" to `grants` of [plugin.p]")), "{told}");
        assert!(told.contains(&format!("tidegate:plugin/{grant}@0.1.0")), "{told}");
    }
}

#[test]
fn wasi_is_refused_by_name() {
    let mut given = Given::noop("p");
    for component in [importing(b"wasi:cli/environment@0.2.3"), wasi_core_module()] {
        given.component = component;
        given.spec.digest = digest(&given.component);
        let told = refusal(&given);
        assert!(told.contains("imports `wasi") && told.contains("build without WASI"), "{told}");
    }
    let mut given = Given::noop("p");
    given.spec.wasi = true;
    assert!(refusal(&given).contains("not served in this version"));
}

#[test]
fn an_unknown_import_is_refused_by_name() {
    let mut given = Given::noop("p");
    for import in ["tidegate:plugin/http@0.1.0", "acme:tools/hammer@1.0.0", "hammer"] {
        given.component = importing(import.as_bytes());
        given.spec.digest = digest(&given.component);
        let told = refusal(&given);
        assert!(told.contains(&format!("imports `{import}`, which this broker does not have")), "{told}");
    }
}

/// A component that imports one empty instance and exports nothing.
fn importing(name: &[u8]) -> Vec<u8> {
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    // Type section: one instance type without declarations.
    bytes.extend([0x07, 3, 1, 0x42, 0]);
    // Import section: one name, an instance of type 0.
    let length = u8::try_from(name.len()).unwrap();
    bytes.extend([0x0a, length + 5, 1, 0, length]);
    bytes.extend(name);
    bytes.extend([0x05, 0]);
    bytes
}

/// A core module as a C compiler for WASI makes it: one import, no component type.
fn wasi_core_module() -> Vec<u8> {
    let (from, name) = (b"wasi_snapshot_preview1", b"proc_exit");
    let mut bytes = b"\0asm\x01\0\0\0".to_vec();
    // Type section: func (i32) -> ().
    bytes.extend([1, 5, 1, 0x60, 1, 0x7f, 0]);
    let length = u8::try_from(from.len() + name.len() + 5).unwrap();
    bytes.extend([2, length, 1, u8::try_from(from.len()).unwrap()]);
    bytes.extend(from);
    bytes.push(u8::try_from(name.len()).unwrap());
    bytes.extend(name);
    bytes.extend([0, 0]);
    bytes
}

#[test]
fn a_component_that_exports_nothing_is_refused() {
    let mut given = Given::noop("p");
    given.component = b"\0asm\x0d\0\x01\0".to_vec();
    given.spec.digest = digest(&given.component);
    let told = refusal(&given);
    assert!(told.contains("does not export `tidegate:plugin/lifecycle@0.1.0`"), "{told}");
}

#[test]
fn a_grant_that_does_not_exist_is_refused_with_the_nearest() {
    for (grant, told) in [
        ("lug", "did you mean `log`?"),
        ("rute:a", "did you mean `route:PATTERN`?"),
        ("route:a//b", "grant `route:a//b`"),
        ("header:", "1 to 256 bytes"),
    ] {
        let refused = refusal(&Given::noop("p").grant(grant));
        assert!(refused.contains(told), "{refused}");
    }
    let mut many = Given::noop("p");
    many.spec.grants = vec!["log".into(); 257];
    assert!(refusal(&many).contains("257 grants"));
}

#[test]
fn a_failing_init_is_told_with_its_own_words() {
    for (init, told) in [
        ("fail", "cannot handle the batch: the settings are wrong; fix its `settings`"),
        ("retry", "asks to retry after 250 ms: not yet"),
        ("panic", "the guest said: panicked at"),
        ("batch", "batch.read called outside a hook"),
    ] {
        let refused = refusal(&Given::hostile("p", &json!({"init": init})));
        assert!(refused.contains("init failed") && refused.contains(told), "{refused}");
    }
    let spin = Given::hostile("p", &json!({"init": "spin"})).budget(|b| b.init = std::time::Duration::from_millis(30));
    assert!(refusal(&spin).contains("raise `budget.init`"), "{}", refusal(&spin));
}

#[test]
fn a_failing_smoke_run_is_told() {
    for (settings, told) in [
        (json!({"do": "panic", "text": "boom"}), "boom"),
        (json!({"do": "out-of-range"}), "position 1 in a frame of 1 records"),
        (json!({"do": "eat-memory"}), "raise `budget.memory`"),
        (json!({"do": "spin"}), "used up its budget"),
    ] {
        let cpu = std::time::Duration::from_millis(if settings["do"] == "eat-memory" { 2_000 } else { 5 });
        let refused = refusal(&Given::hostile("p", &settings).budget(|b| b.cpu = cpu));
        assert!(
            refused.contains("smoke run of on-produce with one record failed") && refused.contains(told),
            "{refused}"
        );
    }
}

#[test]
fn budgets_have_bounds() {
    let refused = |change: fn(&mut crate::hooks::spec::Budget)| refusal(&Given::noop("p").budget(change));
    assert!(refused(|b| b.memory_bytes = 1 << 40).contains("`budget.memory`"));
    assert!(refused(|b| b.memory_bytes = 100).contains("`budget.memory`"));
    assert!(refused(|b| b.cpu = std::time::Duration::ZERO).contains("`budget.cpu`"));
    // Enough for a page, not for this guest.
    assert!(refused(|b| b.memory_bytes = 64 << 10).contains("raise `budget.memory`"));
}

#[test]
fn bundled_files_reach_init() {
    let given = Given::hostile("p", &json!({"init": "file", "text": "schema.json"}));
    let load = |content: &'static [u8]| {
        let files = vec![("schema.json".to_owned(), Bytes::from_static(content))];
        RUNTIME.load("acme", "p", &given.spec, &given.component, files)
    };
    load(b"content").unwrap();
    assert!(load(b"other").is_err());
}

#[test]
fn code_is_cached_and_a_tampered_cache_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("code");
    let config = || Config { cache_dir: Some(cache.clone()), instances_max: 8, ..Config::default() };
    let given = Given::noop("p");
    let load = |runtime: &crate::hooks::Runtime| {
        runtime.load("acme", "p", &given.spec, &given.component, Vec::new()).unwrap().code_source()
    };
    assert_eq!(load(&runtime(config())), CodeSource::Compiled);
    assert_eq!(load(&runtime(config())), CodeSource::Cached, "also by another runtime");

    let code = || {
        let files = std::fs::read_dir(&cache).unwrap().map(|file| file.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|extension| extension == "cwasm")).collect::<Vec<_>>()
    };
    let path = code().pop().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0);
    let good = std::fs::read(&path).unwrap();
    for at in [0, 31, 32, 100, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        assert_eq!(load(&runtime(config())), CodeSource::Refused, "byte {at}");
        assert_eq!(load(&runtime(config())), CodeSource::Cached, "written anew");
    }
    for cut in [0, 20, 32, good.len() - 1] {
        std::fs::write(&path, &good[..cut]).unwrap();
        assert_eq!(load(&runtime(config())), CodeSource::Refused, "cut to {cut}");
    }
    // Code of one component under the name of another: the name is part of what is signed.
    let other = Given::hostile("q", &json!({}));
    runtime(config()).load("acme", "q", &other.spec, &other.component, Vec::new()).unwrap();
    let others = code().into_iter().find(|file| *file != path).unwrap();
    std::fs::copy(&others, &path).unwrap();
    assert_eq!(load(&runtime(config())), CodeSource::Refused);
    // A key cut short by a crash.
    std::fs::write(cache.join("key"), b"short").unwrap();
    assert_eq!(load(&runtime(config())), CodeSource::Refused);
    assert_eq!(load(&runtime(config())), CodeSource::Cached);
}

#[test]
fn a_cache_that_others_can_write_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let config = Config { cache_dir: Some(dir.path().to_owned()), ..Config::default() };
    let host: Arc<Log> = Arc::default();
    let clock = Arc::new(crate::clock::SystemClock::default());
    let refused = crate::hooks::Runtime::new(config, host, clock, Arc::new(crate::clock::SystemRandom::default()));
    assert!(matches!(refused, Err(RuntimeError::Cache { .. })));
}
