//! From a component to machine code: in this process, or in one of its own.
//!
//! The compiler takes some 300 MB for a large plugin, and an allocator that serves a broker keeps most of them; and what it
//! reads is untrusted. A process of its own gives the memory back, and if a component brings the compiler down, the broker
//! loads everything else. It gets the component on standard input and answers on standard output: one byte, 0 and the code,
//! or 1 and why there is none. Called by `load`;
//! the other side is [`serve_compiler`], which `cli` runs.

use std::{
    io::{self, Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use wasmtime::Engine;

use super::{Config, encode, engine};

/// First byte of an answer.
const CODE: u8 = 0;
const REFUSED: u8 = 1;
/// Longer than any component takes; who takes longer is stopped.
const TIME_MAX: Duration = Duration::from_secs(300);
/// The most that an answer may have. Code is about ten times as large as its component.
const ANSWER_BYTES_MAX: u64 = 1 << 30;
/// Room for the code of a large plugin; address space, until it is filled.
const ANSWER_BYTES_USUAL: usize = 64 << 20;

/// Why there is no machine code.
#[derive(Debug)]
pub(super) enum NoCode {
    /// The compiler's words, or how it ended.
    Refused(String),
    /// No process could be started.
    NoProcess(io::Error),
}

/// Machine code as wasmtime serializes it, straight from our compiler: nothing else makes one, so it may be run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MadeCode(Vec<u8>);

impl MadeCode {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Made by this engine.
    pub(super) fn here(engine: &Engine, component: &[u8]) -> Result<Self, String> {
        let made = encode::on_large_stack(|| engine.precompile_component(component))?;
        made.map(Self).map_err(|error| format!("{error:#}"))
    }

    /// Made by another process, which runs the program that the broker is. Blocking.
    pub(super) fn apart(program: &Path, component: &[u8]) -> Result<Self, NoCode> {
        asked(program, component).map(Self)
    }
}

fn asked(program: &Path, component: &[u8]) -> Result<Vec<u8>, NoCode> {
    let mut command = Command::new(program);
    command.arg(COMPILE_COMMAND).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(NoCode::NoProcess)?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(ended(&mut child, "without its pipes"));
    };
    let (done, answer) = mpsc::sync_channel(1);
    let timely = std::thread::scope(|scope| {
        scope.spawn(move || {
            // Never grown, and so large that the allocator gives it back whole.
            let mut bytes = Vec::with_capacity(ANSWER_BYTES_USUAL);
            let read = stdout.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut bytes);
            // Nobody waits for more than one answer.
            done.send(read.map(|_| bytes)).ok();
        });
        // A child that reads nothing more has its reasons: its answer tells, or its end.
        scope.spawn(move || stdin.write_all(component).ok());
        let timely = answer.recv_timeout(TIME_MAX);
        if timely.is_err() {
            // Ends both threads: their pipes close. It fails only if the child has ended.
            child.kill().ok();
        }
        timely
    });
    let Ok(read) = timely else { return Err(ended(&mut child, "after five minutes without an answer")) };
    let mut bytes = read.map_err(|error| ended(&mut child, &error.to_string()))?;
    if bytes.len() as u64 > ANSWER_BYTES_MAX {
        return Err(ended(&mut child, "with more code than a component may have"));
    }
    let whole = child.wait().is_ok_and(|status| status.success());
    match bytes.first() {
        Some(&CODE) if whole => {
            bytes.remove(0);
            Ok(bytes)
        }
        Some(&REFUSED) if whole => Err(NoCode::Refused(String::from_utf8_lossy(&bytes[1..]).into_owned())),
        _ => Err(ended(&mut child, "before it had answered")),
    }
}

/// Takes the child away and says how it ended.
fn ended(child: &mut Child, when: &str) -> NoCode {
    // It fails only if the child has ended.
    child.kill().ok();
    let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    NoCode::Refused(format!("the process that compiles ended {when}: {how}"))
}

/// The command of the program that compiles; it has no arguments.
pub const COMPILE_COMMAND: &str = "compile-component";

/// What the process that compiles does: a component from `input` to its end, the answer to `output`.
///
/// # Errors
/// If reading or writing fails.
pub fn serve_compiler(mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let mut component = Vec::new();
    input.read_to_end(&mut component)?;
    let engine = engine::compiler(&Config::default());
    let code = engine.and_then(|engine| MadeCode::here(&engine, &component));
    let (kind, bytes) = match &code {
        Ok(code) => (CODE, code.bytes()),
        Err(reason) => (REFUSED, reason.as_bytes()),
    };
    output.write_all(&[kind])?;
    output.write_all(bytes)?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Result<Vec<u8>, NoCode> {
        // `sh compile-component` runs that file in the directory it is started in, so the script goes through a file that is
        // the program itself.
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("compiler");
        std::fs::write(&path, format!("#!/bin/sh\n{script}")).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&path, mode).expect("its mode");
        asked(&path, &vec![7; 1 << 20])
    }

    fn refused(script: &str) -> String {
        match sh(script) {
            Err(NoCode::Refused(reason)) => reason,
            other => panic!("{script}: {other:?}"),
        }
    }

    #[test]
    fn answers_of_the_process_are_taken_for_what_they_are() {
        assert_eq!(sh("cat > /dev/null; printf '\\000code'").expect("code"), b"code");
        assert_eq!(refused("cat > /dev/null; printf '\\001no such thing'"), "no such thing");
        assert!(refused("kill -SEGV $$").contains("signal: 11"));
        assert!(refused("printf '\\000half'; exit 3").contains("exit status: 3"));
        assert!(refused("exit 0").contains("before it had answered"));
        assert!(refused("printf 'what is this'").contains("before it had answered"));
        let none = asked(Path::new("/nowhere/at/all"), b"");
        assert!(matches!(none, Err(NoCode::NoProcess(_))), "{none:?}");
    }

    #[test]
    fn what_the_process_makes_is_what_the_engine_of_a_broker_takes() {
        let component = b"\0asm\x0d\0\x01\0";
        let mut answer = Vec::new();
        serve_compiler(component.as_slice(), &mut answer).expect("memory can be written to");
        let engine = engine::compiler(&Config::default()).expect("an engine");
        assert_eq!(answer[0], CODE);
        assert_eq!(answer[1..], *MadeCode::here(&engine, component).expect("code").bytes());

        let mut answer = Vec::new();
        serve_compiler(&b"\0asm\x0d\0\x01\0nonsense"[..], &mut answer).expect("memory can be written to");
        assert_eq!(answer[0], REFUSED);
        assert!(answer.len() > 10, "it says why");
    }
}
