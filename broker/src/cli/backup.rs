//! `tidegate backup` and `tidegate restore`: a copy of all that was acked, taken while the broker runs, and a data directory
//! made of one.

use std::{
    fmt::{self, Display},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use tidegate_client::BackupPin;

use super::{ConnectArgs, Error, Output, exit, fsck::PROGRESS_EVERY, output::size, progress::Progress, tools};
use crate::{
    clock::{SystemClock, unix_ms},
    storage::{
        Cut, CutFile, RealDisk,
        backup::{self, Backup, BackupError, Options, Restored},
    },
};

/// The broker's word that it has let go is waited for so long; it lets go in any case.
const RELEASE_TIME: Duration = Duration::from_secs(10);

/// Arguments of `backup`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate backup /backups/tidegate\n  tidegate backup /backups/tidegate --verify --data-dir /var/lib/tidegate\n\n\
                  Run it where the broker's data directory is, as a user who may read it. Segments that DEST has are not copied \
                  again. Certificate, admin token and other secrets of the broker are not in it."
)]
pub(super) struct Args {
    /// Directory of the backup: a new one, an empty one, or that of the backup before, which this one replaces.
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Read back what DEST has from the backup before too, and copy again what is damaged.
    #[arg(long)]
    verify: bool,
}

/// Arguments of `restore`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  tidegate restore /backups/tidegate /var/lib/tidegate-2 && tidegate serve --data-dir /var/lib/tidegate-2\n\n\
                  Every file is checked against its hash. The broker makes a new certificate and admin token on its first start."
)]
pub(super) struct RestoreArgs {
    /// Directory of the backup.
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Data directory to be made: a new one, or an empty one.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) async fn run(args: Args, connect: &ConnectArgs, output: &mut Output) -> Result<u8, Error> {
    let source = &connect.data_dir;
    backup::check_source(&RealDisk, source).map_err(|error| {
        let advice = "Backups read the data directory itself: run it where that is, and name it with --data-dir.";
        tools::failed(&error).then(advice)
    })?;
    apart(&args.dest, source)?;
    let connection = connect.connect_as_admin().await?;
    let copied = match connection.admin().backup().await {
        Ok(pin) => {
            let copied = copy(&args, source, &pin, output);
            pin.release(RELEASE_TIME).await;
            copied
        }
        Err(error) => Err(connect.failed(&error)),
    };
    connection.close().await;
    let (dest, backup) = (args.dest.display().to_string(), copied?);
    output.row(&Done { dest, backup })?;
    Ok(exit::OK)
}

/// Copies what the broker told of. The connection is kept alive by the runtime's threads meanwhile.
fn copy(args: &Args, source: &Path, pin: &BackupPin, output: &mut Output) -> Result<Backup, Error> {
    let told = pin.cut();
    let file = |file: &tidegate_protocol::wire::BackupFile| CutFile {
        name: file.name.clone(),
        generation: file.generation,
        first_lsn: file.first_lsn,
    };
    let cut = Cut {
        shard: u16::try_from(told.shard).map_err(|_| Error::internal("the broker told of a shard that is none"))?,
        next_lsn: told.next_lsn,
        manifest_number: told.manifest_number,
        manifest: told.manifest.clone().into(),
        wal: told.wal.iter().map(file).collect(),
    };
    let options = Options { time_ms: unix_ms(&SystemClock::default()), verify: args.verify };
    let mut progress = Progress::new("copied", PROGRESS_EVERY);
    let mut tell = |bytes, total| drop(progress.tell(output, bytes, total));
    tokio::task::block_in_place(|| backup::backup(&RealDisk, source, &args.dest, &cut, options, &mut tell))
        .map_err(failed)
}

pub(super) fn restore(args: &RestoreArgs, output: &mut Output) -> Result<u8, Error> {
    if resolved(&args.dir)?.starts_with(resolved(&args.source)?) {
        let what = format!("{} lies inside the backup {}", args.dir.display(), args.source.display());
        return Err(Error::usage(what).then("Give a directory elsewhere. Nothing was written."));
    }
    let mut progress = Progress::new("restored", PROGRESS_EVERY);
    let mut tell = |bytes, total| drop(progress.tell(output, bytes, total));
    let restored = backup::restore(&RealDisk, &args.source, &args.dir, &mut tell).map_err(failed)?;
    output.row(&Made { dir: args.dir.display().to_string(), restored })?;
    Ok(exit::OK)
}

/// A backup inside of what it copies would copy itself, and go with it.
fn apart(dest: &Path, source: &Path) -> Result<(), Error> {
    let (dest_at, source_at) = (resolved(dest)?, resolved(source)?);
    if dest_at.starts_with(&source_at) || source_at.starts_with(&dest_at) {
        let what = format!("{} and the data directory {} lie in one another", dest.display(), source.display());
        return Err(Error::usage(what).then("Give a directory elsewhere, best on another disk. Nothing was written."));
    }
    Ok(())
}

/// The path without links, as far as it exists.
fn resolved(path: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(path).map_err(|source| Error::file("look at", path, source))?;
    let mut rest = Vec::new();
    let mut there = absolute.as_path();
    loop {
        match there.canonicalize() {
            Ok(there) => return Ok(rest.iter().rev().fold(there, |path, part| path.join(part))),
            Err(source) => match there.parent().zip(there.file_name()) {
                Some((parent, name)) if source.kind() == std::io::ErrorKind::NotFound => {
                    rest.push(name.to_owned());
                    there = parent;
                }
                _ => return Err(Error::file("look at", path, source)),
            },
        }
    }
}

fn failed(error: BackupError) -> Error {
    let told = error.to_string();
    match error {
        BackupError::Storage(error) => tools::failed(&error),
        BackupError::Taken { .. } => {
            Error::usage(told).then("Give a new or empty directory. Nothing was written there.")
        }
        BackupError::OlderCut { .. } => {
            Error::usage(told).then("Give another directory. The backup there is unchanged.")
        }
        BackupError::OtherBroker { .. } => {
            Error::usage(told).then("Give the --addr and --data-dir of one and the same broker. Nothing was copied.")
        }
        BackupError::InUse { .. } => {
            Error::in_use(told).then("Wait until that one has ended, or give another directory.")
        }
        BackupError::Unfinished { .. } => Error::broken_file(told)
            .then("A backup counts once its BACKUP file is there: let one end, or take another."),
    }
}

/// A backup that counts.
#[derive(Debug)]
struct Done {
    dest: String,
    backup: Backup,
}

impl Serialize for Done {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Backup { next_lsn, segments, segments_copied, bytes, bytes_copied, removed } = self.backup;
        serde_json::json!({
            "dest": self.dest, "next_lsn": next_lsn, "segments": segments, "segments_copied": segments_copied,
            "bytes": bytes, "bytes_copied": bytes_copied, "removed": removed,
        })
        .serialize(serializer)
    }
}

impl Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Backup { next_lsn, segments, segments_copied, bytes, bytes_copied, .. } = self.backup;
        write!(f, "{} · up to LSN {next_lsn} · {}", self.dest, size(bytes))?;
        write!(f, " · {} copied · {segments_copied} of {segments} segments new", size(bytes_copied))
    }
}

/// A data directory that was made.
#[derive(Debug)]
struct Made {
    dir: String,
    restored: Restored,
}

impl Serialize for Made {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Restored { next_lsn, time_ms, files, bytes } = self.restored;
        serde_json::json!({ "dir": self.dir, "next_lsn": next_lsn, "time_ms": time_ms, "files": files, "bytes": bytes })
            .serialize(serializer)
    }
}

impl Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Restored { next_lsn, files, bytes, .. } = self.restored;
        write!(f, "{} · up to LSN {next_lsn} · {files} files · {}", self.dir, size(bytes))
    }
}
