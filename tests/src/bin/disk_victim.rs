//! Changes a directory as told on standard input and answers `ok` to each line, until it is killed: what the tests of the
//! forgetful disk run over it. Words are split by blanks; paths are relative to the directory given as argument.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it may only succeed")]

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, Write},
    os::unix::fs::FileExt,
    path::Path,
};

fn main() {
    let root = std::env::args_os().nth(1).expect("usage: disk-victim DIRECTORY");
    let root = Path::new(&root);
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = act(root, &words).map_or_else(|error| error.to_string(), |()| "ok".to_owned());
        println!("{answer}");
        std::io::stdout().flush().unwrap();
    }
}

fn act(root: &Path, words: &[&str]) -> std::io::Result<()> {
    let path = |word: &str| root.join(word);
    match words {
        ["new", name, text] => File::create_new(path(name))?.write_all(text.as_bytes()),
        ["put", name, text] => fs::write(path(name), text),
        ["append", name, text] => OpenOptions::new().append(true).open(path(name))?.write_all(text.as_bytes()),
        ["at", name, offset, text] => {
            OpenOptions::new().write(true).open(path(name))?.write_all_at(text.as_bytes(), offset.parse().unwrap())
        }
        ["fill", name, byte, count] => fs::write(path(name), vec![byte.as_bytes()[0]; count.parse().unwrap()]),
        ["size", name, bytes] => OpenOptions::new().write(true).open(path(name))?.set_len(bytes.parse().unwrap()),
        ["sync", name] => File::open(path(name))?.sync_all(),
        ["datasync", name] => File::open(path(name))?.sync_data(),
        ["rename", from, to] => fs::rename(path(from), path(to)),
        ["link", from, to] => fs::hard_link(path(from), path(to)),
        ["remove", name] => fs::remove_file(path(name)),
        ["mkdir", name] => fs::create_dir(path(name)),
        ["copy", from, to] => fs::copy(path(from), path(to)).map(|_| ()),
        _ => panic!("no such command: {words:?}"),
    }
}
