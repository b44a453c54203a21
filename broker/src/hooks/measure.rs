//! What one call of a plugin costs: for benchmarks and for `tidegate plugin bench`.

use std::{cell::Cell, sync::Arc, time::Duration};

use tidegate_protocol::batch::BatchBody;

use super::{
    FaultKind, Hook, HookError, Plugin,
    guest::thread_cpu,
    plugin::{Call, Called, Place, Try},
    topics::Topics,
    work::{Selection, Work},
};

impl Plugin {
    /// Calls a hook `calls` times with all records of a body on this thread, and gives the CPU time of all calls
    /// together: fields gathered, guest called, verdict checked; nothing applied. The calls count in the statistics.
    ///
    /// # Errors
    /// If a call fails, as it would in a chain with policy `closed`.
    pub fn measure(&self, hook: Hook, body: BatchBody, calls: u32) -> Result<Duration, HookError> {
        let failed = |kind: FaultKind, message: String, record: Option<u32>| HookError {
            plugin: self.name.to_string(),
            kind,
            message,
            record,
        };
        let topics = Topics::default();
        let plan = |name| topics.plan(name).map_err(|error| failed(FaultKind::Unavailable, error.to_string(), None));
        let plans = body.topics().map(plan).collect::<Result<_, _>>()?;
        let count = body.len();
        let work = Arc::new(Work::new(body, plans));
        let now_ms = crate::clock::unix_ms(&*self.services.clock);
        let principal = "measure".into();
        let now = Cell::new(self.services.clock.monotonic());
        let call =
            Call { hook, generation: 0, now_ms, now: &now, principal: &principal, reader: None, topics: &topics };
        let start = thread_cpu();
        for _ in 0..calls {
            if let Called::Done(result) = self.call(&work, &Selection::All(count), &call, Place::HookThread(Try::First))
            {
                result.map_err(|fault| failed(fault.kind, fault.message, fault.record))?;
            }
        }
        Ok(thread_cpu().saturating_sub(start))
    }
}
