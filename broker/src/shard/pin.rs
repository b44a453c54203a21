//! What a backup holds on to: the shard hands the question on to its log.

use super::{Shard, ShardError};
use crate::storage::{Cut, Pin};

impl Shard {
    /// What belongs to a copy of the log now, and the pin that keeps it. Blocking, as is dropping the pin.
    ///
    /// # Errors
    /// If the log is kept in memory, or there are too many pins.
    pub fn pin(&self) -> Result<(Cut, Pin), ShardError> {
        Ok(self.core.log.pin()?)
    }
}
