//! The forgetful disk itself: what was not synced vanishes, what was synced stays.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use tidegate_tests::forgetful::{Fault, Forgetful, Fsync, Loss};

/// A directory over the layer and the program that changes it.
struct Disk {
    _temp: tempfile::TempDir,
    root: PathBuf,
    layer: Forgetful,
    victim: Option<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

impl Disk {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("root");
        fs::create_dir(&root).unwrap();
        let layer = Forgetful::new(&root, &temp.path().join("state")).unwrap();
        Self { root: root.canonicalize().unwrap(), _temp: temp, layer, victim: None }
    }

    fn answer(&mut self, command: &str) -> String {
        if self.victim.is_none() {
            let mut child = Command::new(env!("CARGO_BIN_EXE_disk-victim"))
                .arg(&self.root)
                .envs(self.layer.environment().unwrap())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
            self.victim = Some((child, input, output));
        }
        let (_, input, output) = self.victim.as_mut().unwrap();
        writeln!(input, "{command}").unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn run(&mut self, commands: &[&str]) {
        for command in commands {
            assert_eq!(self.answer(command), "ok", "{command}");
        }
    }

    fn kill(&mut self) {
        if let Some((mut child, ..)) = self.victim.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn cut(&mut self, loss: Loss) {
        self.kill();
        self.layer.power_cut(loss).unwrap();
    }

    fn content(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.root.join(name)).ok()
    }

    fn names(&self) -> BTreeSet<String> {
        fs::read_dir(&self.root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn synced_bytes_stay_and_unsynced_bytes_vanish() {
    let mut disk = Disk::new();
    disk.run(&["new a 0123456789", "sync a", "sync ."]);
    disk.run(&["at a 2 XX", "datasync a", "at a 4 YY", "append a tail"]);
    disk.cut(Loss::All);
    assert_eq!(disk.content("a").unwrap(), "01XX456789");
}

#[test]
fn a_new_file_needs_a_sync_of_its_directory() {
    let mut disk = Disk::new();
    disk.run(&["new kept text", "sync kept", "sync .", "new lost text", "sync lost"]);
    disk.cut(Loss::All);
    assert_eq!(disk.names(), BTreeSet::from(["kept".to_owned()]));
    assert_eq!(disk.content("kept").unwrap(), "text");
}

#[test]
fn a_name_that_was_synced_without_its_bytes_is_empty() {
    let mut disk = Disk::new();
    disk.run(&["new t new-content", "rename t a", "sync ."]);
    disk.cut(Loss::All);
    assert_eq!(disk.names(), BTreeSet::from(["a".to_owned()]));
    assert_eq!(disk.content("a").unwrap(), "");
}

#[test]
fn an_unsynced_rename_brings_both_files_back() {
    let mut disk = Disk::new();
    disk.run(&["new a old", "new t new", "sync a", "sync t", "sync ."]);
    disk.run(&["rename t a"]);
    disk.cut(Loss::All);
    assert_eq!((disk.content("a").unwrap(), disk.content("t").unwrap()), ("old".to_owned(), "new".to_owned()));
    disk.run(&["rename t a", "sync ."]);
    disk.cut(Loss::All);
    assert_eq!((disk.content("a").unwrap(), disk.content("t")), ("new".to_owned(), None));
}

#[test]
fn removals_links_and_directories_are_undone_too() {
    let mut disk = Disk::new();
    disk.run(&["new a text", "sync a", "sync ."]);
    disk.run(&["remove a", "mkdir d", "new d/x text", "sync d/x", "sync d", "new a other", "sync a", "link a b"]);
    disk.cut(Loss::All);
    assert_eq!(disk.names(), BTreeSet::from(["a".to_owned()]));
    assert_eq!(disk.content("a").unwrap(), "text");
    disk.run(&["mkdir d", "sync .", "new d/x text", "sync d/x", "sync d", "remove a", "sync ."]);
    disk.cut(Loss::All);
    assert_eq!(disk.names(), BTreeSet::from(["d".to_owned()]));
    assert_eq!(disk.content("d/x").unwrap(), "text");
}

#[test]
fn sizes_truncation_and_copies_are_undone() {
    let mut disk = Disk::new();
    disk.run(&["new a 0123456789", "new b bb", "sync a", "sync b", "sync ."]);
    disk.run(&["size a 4", "append a zz", "put b replaced", "copy a c"]);
    disk.cut(Loss::All);
    assert_eq!((disk.content("a").unwrap(), disk.content("b").unwrap()), ("0123456789".to_owned(), "bb".to_owned()));
    assert_eq!(disk.content("c"), None);
    disk.run(&["size a 4", "append a zz", "sync a", "size a 3", "size a 9"]);
    disk.cut(Loss::All);
    assert_eq!(disk.content("a").unwrap(), "0123zz");
}

#[test]
fn kill_without_a_power_cut_loses_nothing() {
    let mut disk = Disk::new();
    disk.run(&["new a text"]);
    disk.kill();
    assert_eq!(disk.content("a").unwrap(), "text");
    disk.run(&["append a +more"]);
    assert_eq!(disk.content("a").unwrap(), "text+more");
    disk.cut(Loss::All);
    assert!(disk.names().is_empty(), "what an earlier process left unsynced is lost as well");
}

#[test]
fn lies_about_fsync_lose_what_was_promised() {
    let mut disk = Disk::new();
    disk.run(&["new a 0", "sync a", "sync ."]);
    disk.kill();
    disk.layer.lie(Fsync::Skip, "");
    disk.run(&["append a 1", "sync a"]);
    disk.cut(Loss::All);
    assert_eq!(disk.content("a").unwrap(), "0");
    disk.layer.lie(Fsync::Late, "");
    disk.run(&["append a 1", "sync a", "append a 2", "sync a", "append a 3", "sync a"]);
    disk.cut(Loss::All);
    assert_eq!(disk.content("a").unwrap(), "012", "the last sync is the one that does not count");
    disk.layer.lie(Fsync::Skip, "elsewhere");
    disk.run(&["append a 3", "sync a"]);
    disk.cut(Loss::All);
    assert_eq!(disk.content("a").unwrap(), "0123");
}

#[test]
fn faults_come_and_go_and_a_failed_fsync_is_for_ever() {
    let mut disk = Disk::new();
    disk.run(&["new a 0", "sync a", "sync ."]);
    disk.layer.fault(Some(Fault::Full), "").unwrap();
    assert!(disk.answer("append a 1").contains("No space left"));
    disk.layer.fault(Some(Fault::WriteFails), "elsewhere").unwrap();
    disk.run(&["append a 1", "sync a"]);
    disk.layer.fault(Some(Fault::SyncFails), "").unwrap();
    disk.run(&["append a 2"]);
    assert!(disk.answer("sync a").contains("Input/output error"));
    disk.layer.fault(None, "").unwrap();
    disk.run(&["append a 3", "sync a"]);
    disk.cut(Loss::All);
    assert_eq!(disk.content("a").unwrap().get(..2).unwrap(), "01");
    assert_ne!(disk.content("a").unwrap(), "0123", "a sync after a failed one does not bring its bytes back");
}

#[test]
fn some_loss_keeps_whole_pages_in_any_combination() {
    let mut seen = BTreeSet::new();
    for seed in 0..64 {
        let mut disk = Disk::new();
        disk.run(&["fill a 0 12288", "sync a", "sync ."]);
        let ones = "1".repeat(12288);
        disk.run(&[&format!("at a 0 {ones}")]);
        disk.cut(Loss::Some(seed));
        let content = disk.content("a").unwrap().into_bytes();
        assert_eq!(content.len(), 12288);
        let pages: Vec<u8> = content
            .chunks(4096)
            .map(|page| {
                assert!(page.iter().all(|byte| *byte == page[0]), "a page is torn inside");
                page[0]
            })
            .collect();
        seen.insert(pages);
    }
    assert_eq!(seen.len(), 8, "every subset of three pages is found");
}
