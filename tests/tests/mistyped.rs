//! What an operator gets for a command that is typed wrong or meets the wrong broker: a code, what, why, what to do, and the
//! right exit code; nothing half done.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tidegate_tests::{
    broker::{Broker, Ended, Site, binary, run},
    wait::test,
};

const LIMIT: Duration = Duration::from_secs(120);

/// Runs a command against a broker; `{}` in the line stands for the site's directory.
async fn at(site: &Site, broker: &Broker, code: i32, line: &str) -> Ended {
    let line = line.replace("{}", site.path("").to_str().unwrap());
    let arguments: Vec<&str> = line.split(' ').collect();
    ended(site.tidegate(broker, &arguments).await, code, &line)
}

/// Runs a command that must end before it needs a broker: there is none.
async fn alone(code: i32, arguments: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.args(arguments).env("TIDEGATE_ADDR", "127.0.0.1:9").env("TIDEGATE_DATA", "/no/such/folder");
    ended(run(command).await, code, &arguments.join(" "))
}

fn ended(ended: Ended, code: i32, line: &str) -> Ended {
    assert_eq!(ended.code, Some(code), "tidegate {line}: {ended:?}");
    assert!(!ended.stderr.contains("panicked"), "tidegate {line}: {ended:?}");
    ended
}

/// The error object on standard error.
fn error(ended: &Ended) -> Value {
    let object: Value = serde_json::from_str(&ended.stderr).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    assert_eq!(object["error"]["exit"].as_i64(), ended.code.map(i64::from), "{ended:?}");
    object["error"].clone()
}

fn says(ended: &Ended, texts: &[&str]) {
    for text in texts {
        assert!(ended.stderr.contains(text), "{text:?} is missing in: {}", ended.stderr);
    }
}

/// Was NOT_SENT, after the input was read.
#[test]
fn a_topic_that_is_none_is_told_before_anything_is_read() {
    test(LIMIT, async {
        for (topic, code) in [("bad topic!", "TOPIC_INVALID"), ("a/*", "TOPIC_INVALID"), ("$sys/x", "TOPIC_RESERVED")] {
            let mut command = Command::new(binary());
            command.args(["produce", topic]).stdin(Stdio::piped()).stderr(Stdio::piped());
            let told = tokio::task::spawn_blocking(move || {
                let mut child = command.spawn().unwrap();
                // Standard input stays open and empty: a command that reads it does not end.
                let (input, mut told) = (child.stdin.take().unwrap(), String::new());
                child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
                assert_eq!(child.wait().unwrap().code(), Some(64));
                drop(input);
                told
            });
            let told = told.await.unwrap();
            assert!(told.starts_with(&format!("{code}: {topic:?}")) && told.lines().count() == 2, "{told}");
        }
        let invalid = error(&alone(64, &["topics", "create", "a//b", "--output", "json"]).await);
        assert_eq!((&invalid["code"], &invalid["number"]), (&"TOPIC_INVALID".into(), &300.into()));
        for line in [["consume", "a/>/b"], ["topics", "a/>/b"]] {
            says(&alone(64, &line).await, &["PATTERN_INVALID: \"a/>/b\": `>` stands only at the end"]);
        }
        says(
            &alone(64, &["consume", "a/*", "--from-offset", "3"]).await,
            &["PATTERN_INVALID: --from-offset is of one"],
        );
        says(&alone(64, &["consume", "a/*", "--key", "k"]).await, &["PATTERN_INVALID: --key is of one topic"]);
        says(&alone(64, &["keys", "list", "a/*"]).await, &["TOPIC_INVALID: \"a/*\""]);
        says(&alone(64, &["plugins", "explain", "a b"]).await, &["TOPIC_INVALID: \"a b\""]);
        says(
            &alone(64, &["produce", "a", "--header", "tidegate-x=1"]).await,
            &["HEADER_RESERVED: --header tidegate-x"],
        );
    });
}

/// Errors of clap were text whatever --output said, and a malformed address was taken for an unknown host.
#[test]
fn wrong_usage_is_64_and_an_object_where_objects_are_asked_for() {
    test(LIMIT, async {
        for (arguments, text) in [
            (&["topics", "--addr", "broker"][..], "write HOST:PORT"),
            (&["topics", "--addr", "broker:http"], "\"http\" is no port"),
            (&["topics", "--addr", "127.0.0.1:0"], "port 0"),
            (&["serve", "--listen", "4433"], "write HOST:PORT"),
            (&["serve", "--wal-file-size", "5KiB"], "a multiple of 4096"),
            (&["consume", "a", "--folow"], "'--folow' found; tip: a similar argument exists: '--follow'"),
            (&["consume", "a", "--from", "newest"], "neither `earliest` nor `latest`"),
            (&["consume", "a", "--parameters", "[1]"], "no object"),
            (&["produce"], "required arguments were not provided: <TOPIC>"),
            (&["produce", "a", "--null-value"], "<--key <KEY>|--key-pointer <POINTER>>"),
            (&["produce", "a", "--key-pointer", "id"], "--key-pointer \"id\" does not start with `/`"),
            (&["produce", "a", "--expect", "k"], "write KEY@VERSION"),
            (&["no-such-command"], "no-such-command"),
            (&[], "requires a subcommand"),
            (&["explain", "CONFLIT"], "did you mean CONFLICT?"),
        ] {
            let object = error(&alone(64, &[arguments, &["--output", "json"]].concat()).await);
            assert_eq!(object["code"], "USAGE", "{arguments:?}");
            assert!(object["message"].as_str().unwrap().contains(text), "{arguments:?}: {object}");
            assert!(object["next"].is_string(), "{arguments:?}");
            alone(64, arguments).await;
        }
    });
}

#[test]
fn every_code_is_explained_also_those_of_the_command_line() {
    test(LIMIT, async {
        let all = alone(0, &["explain", "--all", "--output", "json"]).await;
        let codes: Vec<Value> = all.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for own in ["USAGE", "NOT_SENT", "UNANSWERED", "UNAVAILABLE", "IN_USE", "IO", "UNKNOWN"] {
            assert!(codes.iter().any(|row| row["code"] == own && row["exit"].is_u64()), "{own}");
            assert!(alone(0, &["explain", own]).await.stdout.starts_with(&format!("{own}: ")));
        }
        assert_eq!(codes.iter().filter(|row| row["number"].is_u64()).count(), codes.len() - 7);
    });
}

/// The advice was to pass a token that was there, whatever was wrong.
#[test]
fn who_is_not_known_is_told_what_was_shown_and_where_it_came_from() {
    test(LIMIT, async {
        let site = Site::new();
        site.allow_log("change of plugins refused");
        let broker = site.start().await;
        let red = at(&site, &broker, 1, "produce a --tenant red").await;
        says(
            &red,
            &["UNAUTHENTICATED: ", "tenant \"red\" (--tenant)", "no token (--token)", "tenant \"default\" only"],
        );
        let given = at(&site, &broker, 1, "topics --admin-token wrong").await;
        says(&given, &["UNAUTHENTICATED: ", "the admin token of --admin-token", "tenant \"default\" (--tenant)"]);
        let file = site.data().join("dev/admin-token");
        let token = fs::read(&file).unwrap();
        fs::write(&file, "a token of another broker, long enough").unwrap();
        let read = at(&site, &broker, 1, "topics").await;
        says(&read, &["UNAUTHENTICATED: ", &format!("read from {} (--data-dir", file.display())]);
        fs::remove_file(&file).unwrap();
        let none = at(&site, &broker, 1, "plugins reload").await;
        says(&none, &["ADMIN_REQUIRED: ", &format!("No admin token was shown: {}: cannot open", file.display())]);
        fs::write(&file, token).unwrap();
        // Another broker's directory.
        let (other, elsewhere) = (Site::new(), broker.addr.to_string());
        let its = other.start().await;
        let pinned = alone(69, &["topics", "--addr", &elsewhere, "--data-dir", other.data().to_str().unwrap()]).await;
        says(&pinned, &["UNAVAILABLE: ", "not the broker whose certificate is", "data/dev/cert.pem", "--server-cert"]);
        its.drain().await;
        broker.drain().await;
    });
}

#[test]
fn data_directories_that_fail_are_no_wrong_usage() {
    test(LIMIT, async {
        let site = Site::new();
        let file = site.path("file");
        fs::write(&file, "").unwrap();
        let below = file.join("data");
        let serve = ["serve", "--listen", "127.0.0.1:0", "--http", "none", "--data-dir", below.to_str().unwrap()];
        let refused = error(&alone(74, &[&serve[..], &["--output", "json"]].concat()).await);
        assert_eq!(refused["code"], "IO");
        assert!(refused["message"].as_str().unwrap().contains("file/data/dev"), "{refused}");
        says(&alone(74, &["topics", "--data-dir", below.to_str().unwrap()]).await, &["IO: cannot read "]);
        says(&site_with_short_token(&site).await, &["IO: ", "dev/admin-token", "remove it"]);
        // A file that a person wrote is a matter of configuration, and flags are one of usage.
        says(
            &alone(64, &["check", "/no/such/plugins.toml"]).await,
            &["CONFIG_INVALID: /no/such/plugins.toml: cannot open"],
        );
        says(&alone(64, &["serve", "--listen", "0.0.0.0:0"]).await, &["USAGE: --listen 0.0.0.0:0", "--auth auth.toml"]);
    });
}

async fn site_with_short_token(site: &Site) -> Ended {
    fs::create_dir_all(site.data().join("dev")).unwrap();
    fs::write(site.data().join("dev/admin-token"), "short\n").unwrap();
    let data = site.data();
    alone(74, &["serve", "--listen", "127.0.0.1:0", "--http", "none", "--data-dir", data.to_str().unwrap()]).await
}

/// The bad line was wrong usage, and machines were not told which it was.
#[test]
fn a_line_that_cannot_be_sent_is_told_with_its_number() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        fs::write(site.path("lines"), "{\"id\":1}\n{\"id\":2}\n{\"no\":3}\n{\"id\":4}\n").unwrap();
        let produce = "produce t --file {}/lines --key-pointer /id";
        let text = at(&site, &broker, 1, produce).await;
        assert_eq!(text.stdout, "2 sent · 2 appended\n");
        says(&text, &["NOT_SENT: line 3: there is nothing at /id\n", "The lines before it were sent"]);
        let json = at(&site, &broker, 1, &format!("{produce} --output json")).await;
        let rows: Vec<Value> = json.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 3, "{json:?}");
        let bad = serde_json::json!(
            { "line": 3, "status": "not_sent", "topic": "t", "code": "NOT_SENT", "reason": "there is nothing at /id" }
        );
        assert_eq!((&rows[1]["status"], &rows[2]), (&"appended".into(), &bad));
        assert_eq!((&error(&json)["code"], &error(&json)["line"]), (&"NOT_SENT".into(), &3.into()));
        let whole = at(&site, &broker, 1, &format!("{produce} --expect 1@2")).await;
        says(&whole, &["NOT_SENT: line 3", "Nothing was sent: with --expect all lines are one batch"]);
        fs::write(site.path("lines"), format!("x\n{}\n", "y".repeat(2 << 20))).unwrap();
        let large = at(&site, &broker, 1, "produce t --file {}/lines --output json").await;
        assert_eq!((&error(&large)["code"], &error(&large)["line"]), (&"RECORD_TOO_LARGE".into(), &2.into()));
        let read = at(&site, &broker, 0, "consume t").await.stdout;
        assert_eq!(read.lines().count(), 5, "{read}");
        broker.drain().await;
    });
}

/// A file, a cursor that goes nowhere, and a name that nobody writes to.
#[test]
fn a_read_that_leads_nowhere_says_so() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        fs::write(site.path("lines"), "x\n").unwrap();
        at(&site, &broker, 0, "produce t/a --file {}/lines").await;
        let unknown = at(&site, &broker, 1, "consume t/b").await;
        says(&unknown, &["TOPIC_UNKNOWN: ", "tidegate topics create t/b", "--no-create-topics"]);
        says(&at(&site, &broker, 0, "consume u/*").await, &["no topic matches \"u/*\" (tidegate topics lists"]);
        assert_eq!(at(&site, &broker, 0, "consume u/* --output json").await.stderr, "");
        // Found only after the record was printed.
        let cursor = at(&site, &broker, 74, "consume t/a --cursor-file {}/no-such-folder/cursor").await;
        assert_eq!(cursor.stdout, "", "nothing was printed that the file should cover");
        says(&cursor, &["IO: cannot write ", "no-such-folder/cursor.new"]);
        fs::write(site.path("cursor"), "half a cur").unwrap();
        says(
            &at(&site, &broker, 64, "consume t/a --cursor-file {}/cursor").await,
            &["CURSOR_INVALID: ", "Remove the file"],
        );
        let mut command = Command::new(binary());
        command.args(["consume", "no/such", "--follow", "--addr", &broker.addr.to_string(), "--data-dir"]);
        command.arg(site.data()).stderr(Stdio::piped());
        let first = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            line
        });
        let first = first.await.unwrap();
        assert_eq!(
            first,
            "no topic matches \"no/such\" yet: waiting for one (tidegate topics lists those there are)\n"
        );
        broker.drain().await;
    });
}

#[test]
fn a_tombstone_goes_in_and_comes_out() {
    test(LIMIT, async {
        let site = Site::new();
        let broker = site.start().await;
        fs::write(site.path("lines"), "{\"id\":\"a\"}\n{\"id\":\"b\"}\n").unwrap();
        at(&site, &broker, 0, "produce t --file {}/lines --key-pointer /id").await;
        assert_eq!(at(&site, &broker, 0, "produce t --key a --null-value --expect a@1").await.stdout, "t@2 · a@2\n");
        at(&site, &broker, 0, "produce t --file {}/lines --key-pointer /id --null-value").await;
        let text = at(&site, &broker, 0, "consume t --from-offset 2").await.stdout;
        assert_eq!(text, "t@2 a (tombstone)\nt@3 a (tombstone)\nt@4 b (tombstone)\n");
        let json = at(&site, &broker, 0, "consume t --from-offset 4 --output json").await.stdout;
        let row: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&row["key"], &row["value"], &row["key_version"]), (&"b".into(), &Value::Null, &2.into()));
        says(
            &at(&site, &broker, 64, "produce t --key a --null-value --file {}/lines").await,
            &["USAGE: --null-value with --key"],
        );
        broker.drain().await;
    });
}

#[test]
fn a_file_that_is_no_component_is_named_by_how_it_starts() {
    test(LIMIT, async {
        let site = Site::new();
        fs::write(site.path("text.wasm"), "hello, I am a text").unwrap();
        let (file, out) = (site.path("text.wasm"), site.path("out.wasm"));
        let refused = alone(1, &["plugin", "component", file.to_str().unwrap(), out.to_str().unwrap()]).await;
        says(&refused, &["PLUGIN_INVALID: ", "text.wasm: not WebAssembly: it starts with \"hello, I am a text\""]);
        assert!(!out.exists());
    });
}

fn check(path: &Path) -> Vec<&str> {
    vec!["check", path.to_str().unwrap()]
}

#[test]
fn check_names_each_place_once_and_speaks_of_no_broker() {
    test(LIMIT, async {
        let site = Site::new();
        site.install("route");
        let file = site.path("plugins.toml");
        // A hook that the plugin has not.
        site.plugins(
            "[plugin.r]\nfrom = \"route.wasm\"\nsettings = { to = \"b\" }\n[[chain]]\ntopics = \"a\"\nfetch = [\"r\"]\n",
        );
        let found = alone(64, &check(&file)).await.stdout;
        let line = found.lines().find(|line| line.starts_with("error")).unwrap();
        assert_eq!(line.matches("plugins.toml:").count(), 1, "{line}");
        assert!(line.contains(&format!("{}:5: plugin r has no on-fetch", file.display())), "{line}");
        assert!(line.ends_with("(CONFIG_INVALID)"), "{line}");
        site.plugins("[plugin.r]\nform = \"route.wasm\"\n");
        let wrong = alone(64, &check(&file)).await;
        says(&wrong, &["CONFIG_INVALID: ", "plugins.toml:3: unknown key \"form\"", "did you mean \"from\"?"]);
        assert!(!wrong.stderr.contains("running configuration"), "none is running here: {wrong:?}");
    });
}

/// `route` and `header` are no imports: a plugin without its grant loaded, passed the check, and failed with the first record.
#[test]
fn check_warns_of_a_grant_that_settings_need() {
    test(LIMIT, async {
        let site = Site::new();
        site.install("route");
        let file = site.path("plugins.toml");
        let chain = "[[chain]]\ntopics = \"a\"\nproduce = [\"r\"]\n";
        let plugin = "[plugin.r]\nfrom = \"route.wasm\"\nsettings = { to = \"b/{key}\" }\n";
        site.plugins(&format!("{plugin}{chain}"));
        let found = alone(0, &check(&file)).await.stdout;
        let warning = found.lines().find(|line| line.starts_with("warning")).unwrap_or_else(|| panic!("{found}"));
        assert!(warning.contains("plugins.toml:2: plugin r needs the grant \"route:PATTERN\""), "{warning}");
        assert!(found.ends_with("1 plugins · 1 warnings · 0 errors\n"), "{found}");
        site.plugins(&format!("{plugin}grants = [\"route:b/*\"]\n{chain}"));
        assert!(alone(0, &check(&file)).await.stdout.ends_with("0 warnings · 0 errors\n"));
    });
}
