//! Hooks as closures, for simulations: everything of a chain but the guest. What a closure answers becomes a guest's verdict
//! and is checked and applied like one.

use std::{fmt::Debug, sync::Arc};

use super::{
    FaultKind, Generation, Hook, Limits, abi,
    grants::Grants,
    instance::Fault,
    topics::Topics,
    verdict::{self, Rules},
    work::{Plan, Selection, Work},
};

/// A hook.
pub(crate) trait Native: Send + Sync + Debug {
    /// Judges the records of one call, one answer each.
    fn judge(&self, hook: Hook, records: &[NativeRecord<'_>]) -> Vec<Judgement>;
}

/// What a hook sees of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NativeRecord<'a> {
    pub(crate) topic: &'a str,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
}

/// What a hook says of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It passes.
    Pass,
    /// It is left out.
    Drop,
    /// It is rejected, with a code of the plugin's own.
    Reject(u16),
    /// It has another value, stands in another topic if one is named, and another record goes with it if one is given: its
    /// topic, key and value.
    Edit { value: Vec<u8>, topic: Option<String>, emit: Option<(String, Vec<u8>, Vec<u8>)> },
}

impl Generation {
    /// Puts closures in the place of plugins, by name.
    pub(crate) fn with_native(mut self: Arc<Self>, native: impl Fn(&str) -> Option<Arc<dyn Native>>) -> Arc<Self> {
        let generation = Arc::get_mut(&mut self).expect("a generation that nobody uses yet");
        for member in &mut generation.members {
            member.native = native(&member.name);
        }
        self
    }
}

/// One call.
pub(super) fn call(
    native: &dyn Native,
    plugin: &Arc<str>,
    hook: Hook,
    work: &Work,
    selection: &Selection,
    topics: &Topics,
) -> Result<Option<Box<Plan>>, Fault> {
    let view = work.view();
    let records: Vec<_> = selection
        .rows()
        .map(|row| NativeRecord { topic: view.topic(row), key: view.key(row), value: view.value(row) })
        .collect();
    let judgements = native.judge(hook, &records);
    let mut edit = abi::Edit::default();
    for (at, judgement) in (0..).zip(judgements) {
        put(&mut edit, at, judgement);
    }
    let grants = Grants::parse(&["route:>".to_owned(), "emit:>".to_owned()]).expect("grants");
    let limits = Limits::default();
    let rules = Rules { hook, plugin, grants: &grants, limits: &limits, topics, output_bytes_max: 64 << 20 };
    let verdict = if edit.at.is_empty() { abi::Verdict::Pass } else { abi::Verdict::Edit(edit) };
    verdict::check(verdict, work, selection, &rules).map_err(|bad| Fault::new(FaultKind::BadOutput, bad))
}

fn put(edit: &mut abi::Edit, at: u32, judgement: Judgement) {
    let op = |edit: &mut abi::Edit, op: u8, arg: u32| {
        edit.at.push(at);
        edit.op.push(op);
        edit.arg.push(arg);
    };
    match judgement {
        Judgement::Pass => {}
        Judgement::Drop => op(edit, 0, 0),
        Judgement::Reject(code) => {
            let reason = string(edit, b"as the simulation wants");
            let number = u32::try_from(edit.rejections.len()).expect("few");
            edit.rejections.push(abi::Rejection { code, retry_after_ms: 0, reason });
            op(edit, 1, number);
        }
        Judgement::Edit { value, topic, emit } => {
            let value = string(edit, &value);
            op(edit, 3, value);
            if let Some(topic) = topic {
                let topic = string(edit, topic.as_bytes());
                op(edit, 6, topic);
            }
            if let Some((topic, key, value)) = emit {
                let [topic, key, value] = [topic.into_bytes(), key, value].map(|text| string(edit, &text));
                edit.emissions.push(abi::Emission { origin: at, topic, key, value, headers: abi::NONE });
            }
        }
    }
}

fn string(edit: &mut abi::Edit, text: &[u8]) -> u32 {
    edit.string_data.extend_from_slice(text);
    edit.string_ends.push(u32::try_from(edit.string_data.len()).expect("short"));
    u32::try_from(edit.string_ends.len() - 1).expect("few")
}
