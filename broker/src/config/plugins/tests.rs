//! A `plugins.toml` that holds, and a table of those that do not with what is said of each.

use std::time::Duration;

use super::*;
use crate::hooks::spec::{Policy, Rejection, Retention};

/// Reads a text as `plugins.toml` of a folder with one component `a.wasm`.
fn read_in(root: &Path, text: &str) -> Result<LoadedConfig, ConfigError> {
    std::fs::write(root.join("a.wasm"), b"component").expect("written");
    parse(&Source { file: "plugins.toml", text, keeps_running: true }, root)
}

fn read(text: &str) -> Result<LoadedConfig, ConfigError> {
    let dir = tempfile::tempdir().expect("dir");
    read_in(dir.path(), text)
}

const WHOLE: &str = r#"
version = 1
[defaults]
budget     = { cpu = "7ms", memory = "16MiB", output = "2x" }
on_failure = { do = "open" }

[plugin.route]
from     = "a.wasm"
grants   = ["log", "route:github/*"]
settings = { to = "github/{header:x-github-event}", depth = 3, deep = { list = [1.5, true, "x"] } }

[plugin.mask]
from       = "a.wasm"
budget     = { cpu = "1ms" }
on_failure = { produce = { do = "open" }, fetch = { do = "closed" } }

[[chain]]
topics  = "github/raw"
produce = ["route"]

[[chain]]
topics    = ["github/>"]
except    = "github/raw"
rejection = "all"
enforced  = true
produce   = ["route", "mask"]
fetch     = [{ use = "mask", unless = "role:auditor" }]

[[chain]]
tenant  = "red"
topics  = ">"
fetch   = ["mask"]
"#;

#[test]
fn a_file_that_holds() {
    let loaded = read(WHOLE).expect("holds");
    assert_eq!(loaded.order, ["route", "mask"]);
    assert_eq!(loaded.tenants.keys().collect::<Vec<_>>(), ["default", "red"]);
    assert_eq!(loaded.warnings, Vec::<String>::new());
    let default = loaded.tenants.get("default").expect("there");
    let route = default.plugins.get("route").expect("there");
    assert_eq!(route.settings, r#"{"deep":{"list":[1.5,true,"x"]},"depth":3,"to":"github/{header:x-github-event}"}"#);
    assert_eq!(route.place, "plugins.toml:7");
    assert_eq!(route.budget.cpu, Duration::from_millis(7));
    assert_eq!((route.budget.memory_bytes, route.budget.output_times), (16 << 20, 2));
    assert_eq!((route.on_produce_failure, route.on_fetch_failure), (Policy::Open, Policy::Open));
    assert_eq!(loaded.component(route).expect("kept").as_ref(), b"component");
    let mask = default.plugins.get("mask").expect("there");
    assert_eq!((mask.budget.cpu, mask.budget.memory_bytes), (Duration::from_millis(1), 16 << 20));
    assert_eq!((mask.on_produce_failure, mask.on_fetch_failure), (Policy::Open, Policy::Closed));
    let [raw, rest] = default.chain.as_slice() else { panic!("two entries") };
    assert_eq!((raw.topics.as_slice(), raw.rejection), (["github/raw".to_owned()].as_slice(), Rejection::PerRecord));
    assert_eq!((rest.rejection, rest.enforced, rest.place.as_str()), (Rejection::All, true, "plugins.toml:21"));
    assert_eq!(rest.fetch.first().map(|at| at.unless.as_str()), Some("role:auditor"));
    let red = loaded.tenants.get("red").expect("there");
    assert_eq!(red.plugins.keys().collect::<Vec<_>>(), ["mask"], "a tenant holds what its own chains use");
}

/// A line in a file that holds otherwise, the message of it.
const WRONG: &[(&str, &str)] = &[
    // The file as a whole.
    ("", "plugins.toml:1: needs \"version\", for example version = 1."),
    ("version = 2", "plugins.toml:1: this build reads version = 1 of the file only."),
    ("version = \"1\"", "plugins.toml:1: this build reads version = 1 of the file only."),
    ("version = 1\nplugins = 3", "plugins.toml:2: unknown key \"plugins\"; did you mean \"plugin\"?"),
    ("version = 1\n[[chains]]\ntopics = \"a\"", "plugins.toml:2: unknown key \"chains\"; did you mean \"chain\"?"),
    ("version = 1\nchain = 3", "plugins.toml:2: \"chain\" must be an array of tables ([[chain]]), not an integer."),
    ("version = 1\n[plugin]\nx = 1", "plugins.toml:3: \"plugin.x\" must be a table, not an integer."),
    // A plugin.
    (
        "version = 1\n[plugin.a]",
        "plugins.toml:2: [plugin.a] needs \"from\", for example from = \"plugins/filter.wasm\".",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nsetings = {}",
        "plugins.toml:4: unknown key \"setings\" in [plugin.a]; did you mean \"settings\"?",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\ngrants = [\"schema\"]",
        "plugins.toml:4: unknown grant \"schema\"; did you mean \"schemas\"?",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\ngrants = [\"schemas\"]",
        "plugins.toml:4: grant \"schemas\" is not served in this version.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\ngrants = [\n  \"log\",\n  \"crypto:seal:a\",\n]",
        "plugins.toml:6: grant \"crypto:seal:a\" is not served in this version.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\ngrants = [\"route\"]",
        "plugins.toml:4: grant \"route\" needs a target, as in \"route:orders/>\".",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\ngrants = [\"log:debug\"]",
        "plugins.toml:4: grant \"log\" takes no target, \"log:debug\" gives one.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\ngrants = [\"header:x-mine\"]",
        "plugins.toml:4: grant \"header:x-mine\": only names that start with \"tidegate-\" need a grant.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\ngrants = [\"log\", \"log\"]",
        "plugins.toml:4: grant \"log\" stands twice.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\ngrants = \"log\"",
        "plugins.toml:4: \"plugin.a.grants\" must be an array, not a string.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nbudget = { cpu = 5 }",
        "plugins.toml:4: \"plugin.a.budget.cpu\" must be a string, not an integer.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nbudget = { memory = \"32\" }",
        "plugins.toml:4: \"32\" is no size: write a whole number and KiB, MiB or GiB, as in \"32MiB\".",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nbudget = { memory = \"8GiB\" }",
        "plugins.toml:4: memory \"8GiB\" must be 64KiB to 4GiB.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nbudget = { ouput = \"4x\" }",
        "plugins.toml:4: unknown key \"ouput\" in [plugin.a.budget]; did you mean \"output\"?",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\non_failure = { do = \"dead-letter\" }",
        "plugins.toml:4: the policy \"dead-letter\" is not served in this version.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\non_failure = { do = \"close\" }",
        "plugins.toml:4: unknown policy \"close\"; did you mean \"closed\"?",
    ),
    (
        "version = 1\n[defaults]\non_failure = { do = \"closed\", attempts = 3 }",
        "plugins.toml:3: \"attempts\" in [defaults.on_failure] is not served in this version.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nwasi = \"sandbox\"",
        "plugins.toml:4: \"wasi\" is not served in this version: build the guest without it.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nsettings = { salt = \"secret:salt\" }",
        "plugins.toml:4: settings values \"secret:…\" are not served in this version.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nsettings = { day = 2026-11-30 }",
        "plugins.toml:4: \"plugin.a.settings.day\" is a date, which JSON does not have: write it as a string.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nsettings = { x = \"file:/etc/passwd\" }",
        "plugins.toml:4: \"file:/etc/passwd\": the path must be relative to plugins.toml.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\ndigest = \"sha256:12\"",
        "plugins.toml:4: digest \"sha256:12\" must be \"sha256:\" and 64 hex digits in lower case.",
    ),
    (
        "version = 1\n[plugin.\"a b\"]\nfrom = \"a.wasm\"",
        "plugins.toml:2: plugin name \"a b\" must be 1 to 64 of letters, digits, `_` and `-`.",
    ),
    // A chain entry.
    (
        "version = 1\n[plugin.mask]\nfrom = \"a.wasm\"\n[[chain]]\ntopics = \"a\"\nproduce = [\"maks\"]",
        "plugins.toml:6: unknown plugin \"maks\"; did you mean \"mask\"?",
    ),
    (
        "version = 1\n[[chain]]\nproduce = []",
        "plugins.toml:2: [chain] needs \"topics\", for example topics = \"orders/>\".",
    ),
    (
        "version = 1\n[[chain]]\ntopics = []\nproduce = []",
        "plugins.toml:3: \"topics\" is empty: this entry would match nothing.",
    ),
    (
        "version = 1\n[[chain]]\ntopics = \"a\"",
        "plugins.toml:2: this chain entry says nothing: give it a \"produce\" or \"fetch\" list, or \"retention\".",
    ),
    (
        "version = 1\n[[chain]]\ntopics = \"a\"\nretention = {}",
        "plugins.toml:4: \"retention\" says nothing: give it an \"age\", a \"size\" or both.",
    ),
    (
        "version = 1\n[[chain]]\ntopics = \"a\"\nretention = { agee = \"7d\" }",
        "plugins.toml:4: unknown key \"agee\" in [chain.retention]; did you mean \"age\"?",
    ),
    (
        "version = 1\n[[chain]]\ntopics = \"a\"\nretention = { age = \"7ms\" }",
        "plugins.toml:4: an age of 7ms is under the least, 1s.",
    ),
    (
        "version = 1\n[[chain]]\ntopics = \"a\"\nretention = { size = \"10\" }",
        "plugins.toml:4: \"10\" is no size: write a whole number and KiB, MiB or GiB, as in \"32MiB\".",
    ),
    (
        "version = 1\n[[chain]]\ntopics = \"a\"\nretention = { size = \"10KiB\" }",
        "plugins.toml:4: a size of 10KiB is under the least, 64 KiB.",
    ),
    (
        "version = 1\n[[chain]]\ntopics = \"a\"\nproduce = []",
        "plugins.toml:4: \"produce\" is empty: leave it out, or name a plugin.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\n[[chain]]\ntopics = \"a\"\nproduce = [\"a\", \"a\"]",
        "plugins.toml:6: plugin \"a\" stands twice in \"produce\".",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\n[[chain]]\ntopics = \"a\"\nproduce = [{ use = \"a\" }]",
        "plugins.toml:6: \"produce\" takes names only; \"unless\" is for \"fetch\".",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\n[[chain]]\ntopics = \"a\"\nfetch = [{ use = \"a\", unless = \"auditor\" }]",
        "plugins.toml:6: \"unless\" must be a role, as in \"role:auditor\", not \"auditor\".",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\n[[chain]]\ntopics = \"a\"\nproduce = [\"a\"]\nencrypted = true",
        "plugins.toml:7: \"encrypted\" in [chain] is not served in this version.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\n[[chain]]\ntopics = \"a\"\nproduce = [\"a\"]\napply = [\"lake\"]",
        "plugins.toml:7: \"apply\" in [chain] is not served in this version.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\n[[chain]]\ntopics = \"a\"\nproduce = [\"a\"]\nrejection = \"none\"",
        "plugins.toml:7: unknown rejection \"none\"; known are per-record, all.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\n[[chain]]\ntopics = [\"a\", \"a\"]\nproduce = [\"a\"]",
        "plugins.toml:5: pattern \"a\" stands twice in \"topics\".",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\n[[chain]]\ntopics = \"a\"\nfetch = [\"a\"]\nenforced = true",
        "plugins.toml:7: \"enforced\" needs a \"produce\" list to enforce.",
    ),
    (
        "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\n[[chain]]\ntenant = \"a/b\"\ntopics = \"a\"\nfetch = [\"a\"]",
        "plugins.toml:5: tenant \"a/b\" must be 1 to 64 of letters, digits, `_` and `-`.",
    ),
];

#[test]
fn lines_that_do_not_hold() {
    for (text, message) in WRONG {
        let error = read(text).expect_err(text);
        assert_eq!(error.short(), *message, "{text}");
        assert_eq!(error.to_string(), format!("{message} The running configuration is unchanged."));
    }
}

#[test]
fn text_that_is_not_toml_is_told_with_its_line() {
    let error = read("version = 1\n[plugin.a\n").expect_err("refused");
    assert!(error.short().starts_with("plugins.toml:2: not TOML: "), "{error}");
}

#[test]
fn errors_name_key_and_value() {
    let error = read("version = 1\n[plugin.a]\nfrom = \"a.wasm\"\ngrants = [\"lgo\"]").expect_err("refused");
    assert_eq!((error.key.as_str(), error.value.as_str()), ("plugin.a.grants", "\"lgo\""));
    assert_eq!((error.line, error.suggestion.as_deref()), (Some(4), Some("log")));
}

#[test]
fn a_component_that_is_not_there_or_not_the_one_meant() {
    let error = read("version = 1\n[plugin.a]\nfrom = \"b.wasm\"").expect_err("refused").short();
    assert!(error.starts_with("plugins.toml:3: ") && error.contains("b.wasm: cannot open: "), "{error}");
    let other = format!("version = 1\n[plugin.a]\nfrom = \"a.wasm\"\ndigest = \"sha256:{}\"", "0".repeat(64));
    let error = read(&other).expect_err("refused").short();
    assert!(error.contains("\"a.wasm\" has digest sha256:") && error.contains("not the one that was meant"), "{error}");
}

#[test]
fn retention_is_read_without_a_plugin_and_one_that_never_counts_is_warned_about() {
    let text = "version = 1\n[[chain]]\ntopics = \"a/>\"\nretention = { age = \"7d\" }\n\
                [[chain]]\ntopics = [\"a/b\", \"a/c\"]\nretention = { size = \"10GiB\" }\n\
                [[chain]]\ntopics = [\"a/b\", \"b\"]\nretention = { age = \"1h\", size = \"1MiB\" }";
    let held = read(text).expect("holds");
    let warning = "plugins.toml:5: its retention never counts: plugins.toml:2 speaks of all its topics before";
    assert_eq!(held.warnings, [warning]);
    let kept: Vec<_> = held.tenants["default"].chain.iter().filter_map(|entry| entry.retention.clone()).collect();
    let (week, hour) = (Duration::from_secs(7 * 86_400), Duration::from_secs(3_600));
    let retention = |age, bytes| Retention { age, bytes };
    assert_eq!(
        kept,
        [retention(Some(week), None), retention(None, Some(10 << 30)), retention(Some(hour), Some(1 << 20))]
    );
}

#[test]
fn what_never_runs_is_warned_about() {
    let text = "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\n[plugin.b]\nfrom = \"a.wasm\"\n[[chain]]\n\
                topics = \"a/*\"\nexcept = \"a/>\"\nproduce = [\"a\"]";
    assert_eq!(
        read(text).expect("holds").warnings,
        [
            "plugins.toml:6: topics \"a/*\" never match: except \"a/>\" covers all of them",
            "plugins.toml:4: plugin \"b\" stands in no chain",
        ]
    );
}

#[test]
fn files_in_settings_come_with_those_they_refer_to() {
    let dir = tempfile::tempdir().expect("dir");
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
    std::fs::create_dir(dir.path().join("docs")).expect("made");
    write("docs/api.json", r##"{ "a": [{ "$ref": "../schema.json#/definitions/x" }, { "$ref": "#/here" }] }"##);
    write(
        "schema.json",
        r#"{ "$id": "https://example.com/s", "$ref": "docs/part.json", "b": { "$ref": "https://example.com/s#/x" } }"#,
    );
    write("docs/part.json", r#"{ "$ref": "http://json-schema.org/draft-07/schema#" }"#);
    let text = "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nsettings = { deep = [{ api = \"file:docs/api.json\" }] }";
    let loaded = read_in(dir.path(), text).expect("holds");
    let plugin = loaded.tenants.get("default").and_then(|spec| spec.plugins.get("a")).expect("there");
    assert_eq!(plugin.files.keys().collect::<Vec<_>>(), ["docs/api.json", "docs/part.json", "schema.json"]);
    assert_eq!(loaded.files(plugin).len(), 3);
    let before = plugin.applied.clone();
    write("docs/part.json", "{}");
    let again = read_in(dir.path(), text).expect("holds");
    let after = &again.tenants.get("default").and_then(|spec| spec.plugins.get("a")).expect("there").applied;
    assert_ne!(before, *after, "a file of a file counts");
    let comment = read_in(dir.path(), &format!("# words\n{text} # more")).expect("holds");
    let same = &comment.tenants.get("default").and_then(|spec| spec.plugins.get("a")).expect("there").applied;
    assert_eq!(after, same, "a comment does not count");
}

#[test]
fn references_that_lead_out_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("dir");
    let root = dir.path().join("in");
    std::fs::create_dir(&root).expect("made");
    std::fs::write(dir.path().join("secret.json"), "{}").expect("written");
    std::os::unix::fs::symlink(dir.path().join("secret.json"), root.join("link.json")).expect("linked");
    let text = "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nsettings = { api = \"file:api.json\" }";
    let table = [
        (
            r#"{ "$ref": "https://example.com/s.json" }"#,
            "refers to \"https://example.com/s.json\": nothing is fetched from the network",
        ),
        (r#"{ "$ref": "../secret.json" }"#, "lies outside the folder of plugins.toml"),
        (r#"{ "$ref": "link.json" }"#, "lies outside the folder of plugins.toml"),
        (r#"{ "$ref": "gone.json" }"#, "\"file:gone.json\" (referred to by \"api.json\"): cannot open: "),
        ("{", "\"file:api.json\": not JSON: "),
    ];
    for (document, message) in table {
        std::fs::write(root.join("api.json"), document).expect("written");
        let error = read_in(&root, text).expect_err("refused").short();
        assert!(error.starts_with("plugins.toml:4: ") && error.contains(message), "{error}");
    }
}

#[test]
fn a_bundle_has_a_bound() {
    let dir = tempfile::tempdir().expect("dir");
    for at in 0..70 {
        let text = format!(r#"{{ "$ref": "{}.json" }}"#, at + 1);
        std::fs::write(dir.path().join(format!("{at}.json")), text).expect("written");
    }
    let text = "version = 1\n[plugin.a]\nfrom = \"a.wasm\"\nsettings = { api = \"file:0.json\" }";
    let error = read_in(dir.path(), text).expect_err("refused").short();
    assert!(error.contains("more than 64 files in one plugin's settings"), "{error}");
}
