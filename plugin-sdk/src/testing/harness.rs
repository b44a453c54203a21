//! One plugin instance in a test, and the doubles around it.

use super::{Fate, Record, apply, frame};
use crate::{
    Failure, Needs, Plugin, Reader, Settings,
    bindings::{
        exports::tidegate::plugin::{fetch_hook, lifecycle},
        tidegate::plugin::types as wit,
    },
    capabilities::native,
    export::{self, Slot},
    log::Level,
};

/// One instance of a plugin.
#[derive(Debug)]
pub struct Harness<P> {
    slot: Slot<P>,
    needs: Needs,
}

/// What one call did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// What became of each record, in order.
    pub fates: Vec<Fate>,
    /// Records that were emitted, with the position of their origin.
    pub emitted: Vec<(u32, Record)>,
    /// The plugin answered `pass`: no list crossed.
    pub passed: bool,
}

impl Run {
    /// The records that go on, in order.
    pub fn kept(&self) -> Vec<&Record> {
        self.fates.iter().filter_map(Fate::kept).collect()
    }
}

impl<P: Plugin> Harness<P> {
    /// An instance under these settings (JSON).
    ///
    /// # Errors
    /// What the plugin's `new` says.
    pub fn new(settings: &str) -> Result<Self, Failure> {
        Self::with(&Settings::new(settings, Vec::new()))
    }

    /// An instance under settings with bundled files.
    ///
    /// # Errors
    /// What the plugin's `new` says.
    pub fn with(settings: &Settings) -> Result<Self, Failure> {
        native::with(|double| settings.json().clone_into(&mut double.settings));
        let files = settings
            .files()
            .map(|(path, content)| wit::BundledFile { path: path.to_owned(), content: content.to_vec() })
            .collect();
        let slot = Slot::new();
        let with = lifecycle::Settings { json: settings.json().to_owned(), files };
        let needs = export::init::<P>(&slot, with).map_err(back)?;
        Ok(Self { slot, needs: Needs { produce: needs.produce, fetch: needs.fetch } })
    }

    /// The fields the hooks read.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Runs `on_produce` over one batch.
    ///
    /// # Errors
    /// What the hook says.
    ///
    /// # Panics
    /// If the verdict is one that the broker would not accept.
    pub fn produce(&mut self, records: &[Record]) -> Result<Run, Failure> {
        let given = frame(self.needs.produce, records);
        let verdict = in_hook(records, || export::produce(&self.slot, info(records), given))?;
        Ok(apply::apply(records, verdict, apply::Hook::Produce))
    }

    /// Runs `on_fetch` over one batch.
    ///
    /// # Errors
    /// What the hook says.
    ///
    /// # Panics
    /// If the verdict is one that the broker would not accept.
    pub fn fetch(&mut self, reader: &Reader, records: &[Record]) -> Result<Run, Failure> {
        let given = frame(self.needs.fetch, records);
        let who = fetch_hook::Reader {
            principal: reader.principal.clone(),
            group: reader.group.clone(),
            parameters: reader.parameters.clone(),
        };
        let verdict = in_hook(records, || export::fetch(&self.slot, info(records), who, given))?;
        Ok(apply::apply(records, verdict, apply::Hook::Fetch))
    }
}

/// The lines logged on this thread since the last call.
pub fn log_lines() -> Vec<(Level, String)> {
    native::with(|double| std::mem::take(&mut double.log))
}

/// What the clock capability says on this thread.
pub fn set_clock(now_ns: u64) {
    native::with(|double| double.now_ns = now_ns);
}

/// Tenant and principal of the batches on this thread.
pub fn set_instance(tenant: &str, principal: &str) {
    native::with(|double| {
        tenant.clone_into(&mut double.tenant);
        principal.clone_into(&mut double.principal);
    });
}

/// A counter as it stands on this thread.
pub fn counter(name: &str) -> i64 {
    crate::counters::value(name)
}

fn info(records: &[Record]) -> wit::BatchInfo {
    wit::BatchInfo { count: u32::try_from(records.len()).expect("a test batch"), generation: 1, now_ms: 0 }
}

fn in_hook(
    records: &[Record],
    call: impl FnOnce() -> Result<wit::Verdict, wit::Failure>,
) -> Result<wit::Verdict, Failure> {
    native::with(|double| double.batch = Some(records.to_vec()));
    let answer = call();
    native::with(|double| double.batch = None);
    answer.map_err(back)
}

fn back(failure: wit::Failure) -> Failure {
    match failure {
        wit::Failure::Retry((after_ms, message)) => Failure::Retry { after_ms, message },
        wit::Failure::Permanent(message) => Failure::Permanent(message),
    }
}
