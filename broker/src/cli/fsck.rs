//! `tidegate fsck`: is a data directory whole?

use std::{
    fmt::{self, Display},
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;

use super::{Error, Output, exit, output::size, progress::Progress, tools};
use crate::{
    shard::CheckpointRows,
    storage::{
        RealDisk,
        fsck::{self, Event},
    },
};

/// Faults listed by `--all`; then the check ends.
const FAULTS_MAX: u64 = 1_000;
/// Between two lines of progress.
pub(super) const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Arguments of `fsck`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate fsck tidegate-data\n  tidegate fsck /var/lib/tidegate --all --output json\n\n\
                  The broker must not run on it. Nothing is changed or repaired. Exit code 0: whole; 1: something is wrong."
)]
pub(super) struct Args {
    /// The data directory of a broker that does not run.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Go on behind the first fault and list all, at most 1000.
    #[arg(long)]
    all: bool,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<u8, Error> {
    let faults_max = if args.all { FAULTS_MAX } else { 1 };
    let mut progress = Progress::new("checked", PROGRESS_EVERY);
    let (mut faults, mut written) = (0, Ok(()));
    let mut tell = |event: Event<'_>| {
        let done = match event {
            Event::Fault(fault) => {
                faults += 1;
                output.row(&Finding::fault(fault))
            }
            Event::Remark(file, what) => output.row(&Finding::remark(file, what)),
            Event::Progress { bytes, total } => progress.tell(output, bytes, total),
        };
        written = done;
        if written.is_err() || faults >= faults_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let report = fsck::run(&RealDisk, &args.dir, &CheckpointRows, &mut tell).map_err(|error| tools::failed(&error))?;
    written?;
    output.row(&Summary { dir: args.dir.display().to_string(), report })?;
    Ok(if report.faults == 0 { exit::OK } else { exit::REFUSED })
}

/// One thing that the check found.
#[derive(Debug, Serialize)]
struct Finding {
    level: &'static str,
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u64>,
    message: String,
}

impl Finding {
    fn fault(fault: &fsck::Fault) -> Self {
        let file = fault.file.display().to_string();
        Self { level: "fault", file, position: Some(fault.position), message: fault.what.clone() }
    }

    fn remark(file: &Path, what: &str) -> Self {
        Self { level: "remark", file: file.display().to_string(), position: None, message: what.to_owned() }
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, file, message, .. } = self;
        match self.position {
            Some(position) => write!(f, "{level:<6}  {file} at byte {position}: {message}"),
            None => write!(f, "{level:<6}  {file}: {message}"),
        }
    }
}

#[derive(Debug)]
struct Summary {
    dir: String,
    report: fsck::Report,
}

impl Serialize for Summary {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let report = &self.report;
        let object = serde_json::json!({
            "dir": self.dir, "whole": report.faults == 0, "complete": !report.stopped, "faults": report.faults,
            "orphans": report.orphans, "segments": report.segments, "wal_files": report.wal_files, "frames": report.frames,
            "records": report.records, "blobs": report.blobs, "bytes": report.bytes, "first_lsn": report.first_lsn,
            "next_lsn": report.next_lsn, "checkpoint_lsn": report.checkpoint_lsn,
        });
        object.serialize(serializer)
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = &self.report;
        let plural = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        if report.stopped {
            let faults = plural(report.faults, "fault");
            let advice =
                if report.faults < FAULTS_MAX { "--all lists what else is wrong" } else { "there may be more" };
            return write!(f, "{} · {faults} · the check ended there; {advice}", self.dir);
        }
        let verdict = if report.faults == 0 { "whole".to_owned() } else { plural(report.faults, "fault") };
        write!(f, "{} · {verdict} · ", self.dir)?;
        write!(f, "{} · {}", plural(report.records, "record"), size(report.bytes))?;
        write!(f, " · {}", plural(report.segments, "segment"))?;
        write!(f, " · {}", plural(report.wal_files, "WAL file"))?;
        write!(f, " · LSN {} to {}", report.first_lsn, report.next_lsn)?;
        if report.orphans > 0 { write!(f, " · {}", plural(report.orphans, "orphan")) } else { Ok(()) }
    }
}
