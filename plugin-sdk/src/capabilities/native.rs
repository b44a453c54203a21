//! Doubles of the capabilities for native tests. Each thread has its own, so tests do not meet.

use std::{cell::RefCell, collections::BTreeMap};

use crate::testing::Record;

/// What the doubles answer and what was done to them.
#[derive(Debug, Default)]
pub(crate) struct Double {
    pub(crate) settings: String,
    pub(crate) tenant: String,
    pub(crate) principal: String,
    pub(crate) faults: Vec<String>,
    pub(crate) log: Vec<(crate::log::Level, String)>,
    pub(crate) now_ns: u64,
    pub(crate) random: u64,
    pub(crate) counters: BTreeMap<String, i64>,
    pub(crate) batch: Option<Vec<Record>>,
}

thread_local! {
    static DOUBLE: RefCell<Double> = RefCell::new(Double::default());
}

/// Works on the doubles of this thread.
pub(crate) fn with<T>(work: impl FnOnce(&mut Double) -> T) -> T {
    DOUBLE.with_borrow_mut(work)
}

pub(crate) mod instance {
    use super::with;

    pub(crate) fn settings() -> String {
        with(|double| double.settings.clone())
    }
    pub(crate) fn tenant() -> String {
        with(|double| double.tenant.clone())
    }
    pub(crate) fn principal() -> String {
        with(|double| double.principal.clone())
    }
    pub(crate) fn fault(message: &str) {
        with(|double| double.faults.push(message.to_owned()));
    }
}

pub(crate) mod log {
    use super::with;
    use crate::log::Level;

    pub(crate) fn write(at: Level, message: &str) {
        with(|double| double.log.push((at, message.to_owned())));
    }
    pub(crate) fn enabled() -> Level {
        Level::Trace
    }
}

pub(crate) mod clock {
    use super::with;

    pub(crate) fn now() -> u64 {
        with(|double| double.now_ns)
    }
    pub(crate) fn monotonic() -> u64 {
        now()
    }
}

pub(crate) mod random {
    use super::with;

    pub(crate) fn bytes(count: u32) -> Vec<u8> {
        (0..count).map(|_| next().to_le_bytes()[0]).collect()
    }
    pub(crate) fn next() -> u64 {
        with(|double| {
            double.random =
                double.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            double.random >> 16
        })
    }
}

pub(crate) mod counters {
    use super::with;

    pub(crate) fn add(name: &str, delta: i64) -> i64 {
        with(|double| {
            let value = double.counters.entry(name.to_owned()).or_default();
            *value = value.wrapping_add(delta);
            *value
        })
    }
    pub(crate) fn value(name: &str) -> i64 {
        with(|double| double.counters.get(name).copied().unwrap_or_default())
    }
}

pub(crate) mod batch {
    use super::with;
    use crate::{
        Fields,
        bindings::tidegate::plugin::types::Frame,
        kernels,
        testing::{Record, frame},
    };

    pub(crate) fn read(which: Fields, at: &[u32]) -> Frame {
        frame(which, &chosen(at))
    }

    pub(crate) fn find(which: Fields, needle: &[u8]) -> Vec<u32> {
        let holds = |record: &Record| {
            let field = match which {
                Fields::KEY => record.key.as_deref(),
                Fields::VALUE => record.value.as_deref(),
                Fields::TOPIC => Some(record.topic.as_bytes()),
                _ => panic!("find takes exactly one of key, value and topic"),
            };
            field.is_some_and(|field| kernels::contains(field, needle))
        };
        let records = chosen(&[]);
        (0..).zip(&records).filter(|(_, record)| holds(record)).map(|(at, _)| at).collect()
    }

    pub(crate) fn json(pointer: &str, at: &[u32]) -> Frame {
        let member = |record: &Record| {
            let value: serde_json::Value = serde_json::from_slice(record.value.as_deref()?).ok()?;
            Some(match value.pointer(pointer)? {
                serde_json::Value::String(text) => text.clone().into_bytes(),
                other => other.to_string().into_bytes(),
            })
        };
        let members: Vec<Record> =
            chosen(at).iter().map(|record| Record { value: member(record), ..Record::default() }).collect();
        frame(Fields::VALUE, &members)
    }

    /// The records at some positions of the batch in progress; none means all.
    fn chosen(at: &[u32]) -> Vec<Record> {
        let batch = with(|double| double.batch.clone()).expect("the batch capability works inside a hook alone");
        match at {
            [] => batch,
            at => at.iter().map(|at| batch.get(*at as usize).expect("a position of the batch").clone()).collect(),
        }
    }
}
