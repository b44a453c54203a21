//! Backups: names a cut of the log and keeps it as long as the client's stream stands (ADR 10). Gives no record away and
//! writes nothing: whoever may read the data directory copies.

use quinn::{RecvStream, SendStream, WriteError};
use tidegate_protocol::{
    error::Code,
    wire::{self, BackupCut, BackupFile, Failure, ServerBody, ServerMessage},
};
use tracing::{info, warn};

use super::{
    Broker,
    connection::{Peer, Stopping},
    request::admin,
};
use crate::{
    produce::stopped,
    storage::{Cut, Pin},
};

/// Serves a stream whose first message was `BackupBegin`. The pin is dropped when the client ends its side, when the
/// connection is lost, or the broker stops.
pub(super) async fn serve(
    broker: &Broker,
    peer: &Peer,
    send: &mut SendStream,
    recv: &mut RecvStream,
    mut stopping: Stopping,
) -> Result<(), Failure> {
    admin(peer, "backup")?;
    let (cut, pin) = pin(broker).await?;
    let _counted = broker.metrics.backup_pins.hold();
    let next_lsn = cut.next_lsn;
    info!(next_lsn, wal_files = cut.wal.len(), "a backup has begun");
    if tell(send, cut).await.is_ok() {
        tokio::select! {
            biased;
            () = stopped(&mut stopping) => {}
            // Nothing more is to come: whatever this is, the client's part is over.
            _ = recv.read_chunk(1, true) => {}
        }
    }
    // Removes what was replaced meanwhile.
    if tokio::task::spawn_blocking(move || drop(pin)).await.is_err() {
        warn!(next_lsn, "what a backup held is left until the next start");
    }
    info!(next_lsn, "the backup has ended");
    Ok(())
}

async fn pin(broker: &Broker) -> Result<(Cut, Pin), Failure> {
    let shard = broker.shard.clone();
    let pinned = tokio::task::spawn_blocking(move || shard.pin()).await;
    let pinned = pinned.map_err(|_| Failure::new(Code::Internal, "the cut could not be taken"))?;
    pinned.map_err(|error| Failure::new(error.code(), error.to_string()))
}

async fn tell(send: &mut SendStream, cut: Cut) -> Result<(), WriteError> {
    let file = |file: crate::storage::CutFile| BackupFile {
        name: file.name,
        generation: file.generation,
        first_lsn: file.first_lsn,
    };
    let cut = BackupCut {
        shard: u32::from(cut.shard),
        next_lsn: cut.next_lsn,
        manifest_number: cut.manifest_number,
        manifest: cut.manifest.to_vec(),
        wal: cut.wal.into_iter().map(file).collect(),
    };
    send.write_chunk(wire::encode_control(&ServerMessage::from(ServerBody::BackupCut(cut)))).await
}
