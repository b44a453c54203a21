//! Opening a log that lies on a disk.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{Local, Shared};
use crate::{
    clock::SharedClock,
    storage::{
        Replayed, StorageError,
        directory::Directory,
        disk::{Disk, Lock},
        objects::Objects,
        store::{Consolidation, Store},
        wal::{
            files::WalFiles,
            local::LocalWal,
            recovery::{self, Scope},
            spare::Spares,
        },
    },
};

/// Read from segments at once while they are replayed.
const REPLAY_BYTES: usize = 4 << 20;

/// Takes the directory, reads everything back, and makes the WAL ready to go on.
pub(super) fn open_local(
    shared: &Shared,
    disk: Arc<dyn Disk>,
    clock: SharedClock,
    checkpoint_wanted: &Arc<Notify>,
    replay: &mut dyn FnMut(Replayed),
) -> Result<(LocalWal, Local, Box<dyn Lock>), StorageError> {
    let config = &shared.config;
    let directory = Directory::take(&*disk, &config.dir)?;
    let objects =
        disk.objects(&directory.objects).map_err(StorageError::io("open object store", &directory.objects))?;
    let store = Arc::new(Store::open(
        config.shard,
        Objects::new(objects, &shared.threads)?,
        config.wal_file_bytes,
        &shared.threads,
    )?);
    let replay_from = replay_store(&store, replay)?;
    shared.ring.start_at(replay_from.max(store.consolidated()));
    let scope = Scope {
        dir: &directory.wal,
        shard: config.shard,
        file_bytes: config.wal_file_bytes,
        consolidated: store.consolidated(),
        replay_from: replay_from.max(store.consolidated()),
    };
    let recovered = recovery::recover(&*disk, scope, &mut |frame| {
        shared.ring.publish([Arc::clone(&frame)]);
        replay(Replayed::Frame(frame));
    })?;
    let next_lsn = recovered.resume.next_lsn;
    if next_lsn < replay_from || next_lsn < store.consolidated() {
        let what = format!("the WAL ends at LSN {next_lsn}, behind it more was durable: files are missing");
        return Err(StorageError::Corrupt { file: directory.wal, position: 0, what });
    }
    if recovered.files.is_empty() && store.lacks_manifest()? {
        let what =
            "segments or checkpoints are there, but neither a manifest nor a WAL file: files are missing".to_owned();
        return Err(StorageError::Corrupt { file: directory.objects, position: 0, what });
    }
    // Not before: whoever lost the manifest still has the rest.
    store.tidy()?;
    let files = Arc::new(WalFiles::new(recovered.files));
    let (ready, next_slot) = (recovered.spares, recovered.next_slot);
    let spares = Spares::start(disk, &directory.wal, config.wal_file_bytes, ready, next_slot, &shared.threads)?;
    let spares = Arc::new(spares);
    let consolidation = Consolidation::start(
        Arc::clone(&store),
        Arc::clone(&files),
        Arc::clone(&spares),
        config.wal_files_full_max,
        Arc::clone(checkpoint_wanted),
        &shared.threads,
    )?;
    let local = Local { files, store, spares, consolidation };
    let wal = LocalWal::open(
        config.shard,
        clock,
        Arc::clone(&local.files),
        Arc::clone(&local.spares),
        local.consolidation.on_full(),
        recovered.resume,
    );
    let wal = wal.inspect_err(|_| {
        local.consolidation.close();
        local.spares.close();
    })?;
    shared.ring.start_at(next_lsn);
    shared.lock().next_lsn = next_lsn;
    shared.durable.send_modify(|durable| durable.next_lsn = next_lsn);
    Ok((wal, local, directory.lock))
}

/// Replays the checkpoint and all that segments hold behind it. Gives the LSN from which on the replay goes.
fn replay_store(store: &Store, replay: &mut dyn FnMut(Replayed)) -> Result<u64, StorageError> {
    let mut replay_from = 0;
    if let Some((lsn, state)) = store.checkpoint()? {
        replay_from = lsn;
        replay(Replayed::Checkpoint { lsn, state });
    }
    let mut lsn = replay_from;
    while let Some(run) = store.read(lsn, REPLAY_BYTES, None)? {
        run.frames.into_iter().for_each(|frame| replay(Replayed::Frame(frame)));
        lsn = run.next_lsn;
    }
    Ok(replay_from)
}
