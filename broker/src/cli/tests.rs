//! The command line as a whole.

use clap::CommandFactory as _;

use super::*;

#[test]
fn clap_finds_no_fault() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_has_help_with_an_example() {
    fn check(command: &clap::Command, path: &str) {
        for sub in command.get_subcommands() {
            let path = format!("{path} {}", sub.get_name());
            assert!(sub.get_about().is_some(), "{path} says nothing of itself");
            let leaf = sub.get_subcommands().next().is_none();
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(!leaf || help.contains("Example"), "{path} --help shows no example");
            assert!(!leaf || help.contains(path.trim_start()), "{path} --help shows an example of something else");
            check(sub, &path);
        }
    }
    check(&Cli::command(), "tidegate");
}

#[test]
fn every_command_takes_its_own_and_the_common_flags() {
    let with = "--addr h:1 --data-dir d --tenant t --token t --admin-token a --server-cert f --cert f --cert-key f --output json";
    for line in [
        "serve --listen 127.0.0.1:0 --http none --plugins p --auth a --tls-cert f --tls-key f --log debug --log-format json",
        "serve --memory --no-create-topics",
        "produce t --file f --key k --header a=b --header c=d --expect k@1 --expect l@0 --batch-records 10 --linger 0 --quiet",
        "produce t --key-pointer /id --null-value",
        "consume t/* --from latest --follow --max 3 --cursor-file f",
        "consume t --from-offset 3",
        "consume t --key k --latest --follow",
        "keys list t --prefix p --max 3",
        "topics",
        "topics t/* --reserved",
        "topics create t",
        "plugins",
        "plugins list",
        "plugins swap n f --based-on 3",
        "plugins rollback n",
        "plugins reload",
        "plugins explain t",
        "plugin component a b",
        "check",
        "check f",
        "fsck d",
        "fsck d --all",
        "inspect f",
        "backup d",
        "backup d --verify",
        "restore s d",
        "inspect f --records --limit 3",
        "explain X",
        "explain --all",
        "version",
    ] {
        for line in [format!("tidegate {line}"), format!("tidegate {line} {with}"), format!("tidegate {with} {line}")] {
            if let Err(error) = Cli::try_parse_from(line.split(' ')) {
                panic!("{line}: {error}");
            }
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    for line in [
        "produce",
        "produce t --key k --key-pointer /id",
        "produce t --expect k",
        "produce t --header x",
        "produce t --batch-records 0",
        "produce t --null-value",
        "consume t --parameters [1]",
        "topics --addr h",
        "consume t --from newest",
        "consume t --from latest --from-offset 3",
        "consume t --max 0",
        "explain",
        "explain X --all",
        "topics --cert f",
        "serve --tls-cert f",
        "plugins swap n",
        "fsck",
        "backup",
        "restore s",
        "inspect f --limit 3",
        "inspect f --records --limit 0",
    ] {
        assert_eq!(code(&format!("tidegate {line}")), exit::USAGE, "{line}");
    }
}

fn code(line: &str) -> u8 {
    match Cli::try_parse_from(line.split(' ')) {
        Ok(cli) => execute(cli, &mut Output::to(Format::Text, Box::new(std::io::sink()), Box::new(std::io::sink()))),
        Err(error) => usage_code(&error),
    }
}

#[test]
fn wrong_usage_is_64_and_help_is_0() {
    assert_eq!(code("tidegate explain NO_SUCH_CODE"), exit::USAGE);
    assert_eq!(code("tidegate no-such-command"), exit::USAGE);
    assert_eq!(code("tidegate explain --help"), exit::OK);
    assert_eq!(code("tidegate explain CONFLICT"), exit::OK);
    assert_eq!(code("tidegate plugin component /no/such/file /no/such/out"), exit::IO);
}
