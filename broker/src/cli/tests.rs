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
