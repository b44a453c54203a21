//! Applies a verdict to records as the contract says (`wit/types.wit`), for native tests. What the broker would refuse
//! as bad output panics here with the reason.

use super::{Fate, Record, Run};
use crate::{Headers, bindings::tidegate::plugin::types as wit};

/// String number that stands for null.
const NULL: u32 = u32::MAX;

/// Which hook the verdict came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    Produce,
    Fetch,
}

pub(super) fn apply(records: &[Record], verdict: wit::Verdict, hook: Hook) -> Run {
    let all = |fate: Fate| vec![fate; records.len()];
    let untouched = || records.iter().cloned().map(Fate::Kept).collect();
    match verdict {
        wit::Verdict::Pass => Run { fates: untouched(), emitted: Vec::new(), passed: true },
        wit::Verdict::DropAll => Run { fates: all(Fate::Dropped), emitted: Vec::new(), passed: false },
        wit::Verdict::RejectAll(refusal) => {
            assert_eq!(hook, Hook::Produce, "reject is for produce alone");
            let wit::Refusal { code, retry_after_ms, reason } = refusal;
            Run { fates: all(Fate::Rejected { code, retry_after_ms, reason }), emitted: Vec::new(), passed: false }
        }
        wit::Verdict::Edit(edit) => {
            let mut fates: Vec<Fate> = untouched();
            let strings = Strings { ends: &edit.string_ends, data: &edit.string_data };
            strings.check();
            operate(&mut fates, &edit, &strings, hook);
            assert!(hook == Hook::Produce || edit.emissions.is_empty(), "emit is for produce alone");
            let emitted = edit.emissions.iter().map(|emission| emit(emission, records.len(), &strings)).collect();
            Run { fates, emitted, passed: false }
        }
    }
}

struct Strings<'a> {
    ends: &'a [u32],
    data: &'a [u8],
}

impl Strings<'_> {
    fn check(&self) {
        assert!(self.ends.is_sorted(), "string ends descend");
        let last = self.ends.last().map_or(0, |end| *end as usize);
        assert_eq!(last, self.data.len(), "string data is longer or shorter than its ends");
    }

    fn bytes(&self, number: u32) -> Vec<u8> {
        let number = number as usize;
        let end = *self.ends.get(number).expect("a string number in range") as usize;
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |end| *end as usize);
        self.data.get(start..end).expect("a string within its data").to_vec()
    }

    fn optional(&self, number: u32) -> Option<Vec<u8>> {
        (number != NULL).then(|| self.bytes(number))
    }

    fn text(&self, number: u32) -> String {
        String::from_utf8(self.bytes(number)).expect("UTF-8")
    }
}

fn operate(fates: &mut [Fate], edit: &wit::Edit, strings: &Strings<'_>, hook: Hook) {
    assert!(edit.at.len() == edit.op.len() && edit.op.len() == edit.arg.len(), "at, op and arg differ in length");
    assert!(edit.at.is_sorted(), "positions descend");
    for ((at, op), arg) in edit.at.iter().zip(&edit.op).zip(&edit.arg) {
        let fate = fates.get_mut(*at as usize).expect("a position within the batch");
        let Fate::Kept(record) = fate else { panic!("record {at} was decided and is touched again") };
        assert!(hook == Hook::Produce || matches!(op, 0 | 2..=5), "operation {op} is for produce alone");
        match op {
            0 => *fate = Fate::Dropped,
            1 => *fate = reject(edit.rejections.get(*arg as usize).expect("a rejection in range"), strings),
            2 => record.key = strings.optional(*arg),
            3 => record.value = strings.optional(*arg),
            4 => record.headers.push((strings.text(*arg), Some(strings.bytes(arg + 1)))),
            5 => {
                let name = strings.text(*arg);
                record.headers.retain(|(other, _)| *other != name);
            }
            6 => record.topic = strings.text(*arg),
            op => panic!("no operation {op}"),
        }
    }
    for at in edit.at.chunk_by(|one, other| one == other).filter(|run| run.len() > 1).flatten() {
        let decided = !matches!(fates.get(*at as usize), Some(Fate::Kept(_)));
        assert!(!decided, "record {at} is decided and has another operation");
    }
}

fn reject(rejection: &wit::Rejection, strings: &Strings<'_>) -> Fate {
    let reason = strings.text(rejection.reason);
    Fate::Rejected { code: rejection.code, retry_after_ms: rejection.retry_after_ms, reason }
}

fn emit(emission: &wit::Emission, count: usize, strings: &Strings<'_>) -> (u32, Record) {
    assert!((emission.origin as usize) < count, "an origin within the batch");
    let item = strings.optional(emission.headers).unwrap_or_default();
    let headers = Headers::new(&item).map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec))).collect();
    let record = Record {
        topic: strings.text(emission.topic),
        key: strings.optional(emission.key),
        value: strings.optional(emission.value),
        headers,
        timestamp_ms: 0,
    };
    (emission.origin, record)
}
