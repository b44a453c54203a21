//! What the tools on data directories and backups have in common: how their errors are told.

use super::Error;
use crate::storage::StorageError;

/// What storage could not do with a directory or file.
pub(super) fn failed(error: &StorageError) -> Error {
    let told = error.to_string();
    match error {
        StorageError::InUse { .. } => Error::in_use(told),
        StorageError::NotOurs { wanted: "data directory", .. } => {
            Error::broken_file(told).then("Give the directory that the broker's --data-dir names.")
        }
        StorageError::Format { .. } => Error::broken_file(told).said(),
        _ => Error::broken_file(told),
    }
}
