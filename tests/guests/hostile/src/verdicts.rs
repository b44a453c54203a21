//! Verdicts: right ones from a script, and wrong ones by name.

use serde_json::Value;

use crate::guest::{Edit, Emission, Fields, Frame, Rejection, Verdict, batch, text};

const NONE: u32 = u32::MAX;

/// Strings of a verdict.
#[derive(Default)]
struct Strings {
    ends: Vec<u32>,
    data: Vec<u8>,
}

impl Strings {
    fn push(&mut self, text: &[u8]) -> u32 {
        self.data.extend_from_slice(text);
        self.ends.push(self.data.len() as u32);
        self.ends.len() as u32 - 1
    }
    fn push_or_null(&mut self, value: &Value) -> u32 {
        value.as_str().map_or(NONE, |text| self.push(text.as_bytes()))
    }
}

fn empty() -> Edit {
    Edit {
        at: Vec::new(),
        op: Vec::new(),
        arg: Vec::new(),
        rejections: Vec::new(),
        emissions: Vec::new(),
        string_ends: Vec::new(),
        string_data: Vec::new(),
    }
}

fn with(mut edit: Edit, strings: Strings) -> Edit {
    edit.string_ends = strings.ends;
    edit.string_data = strings.data;
    edit
}

fn one(at: u32, op: u8, arg: u32, strings: Strings) -> Edit {
    with(Edit { at: vec![at], op: vec![op], arg: vec![arg], ..empty() }, strings)
}

/// Keys of a frame whose first column they are.
pub(crate) fn keys(count: u32, records: &Frame) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    records.index.iter().take(count as usize).map(move |end| {
        let end = (end & 0x7fff_ffff) as usize;
        let key = &records.data[start..end];
        start = end;
        key
    })
}

/// Adds one header to every record.
pub(crate) fn stamp(count: u32, name: &str, value: &str) -> Verdict {
    let mut strings = Strings::default();
    let name = strings.push(name.as_bytes());
    strings.push(value.as_bytes());
    let edit =
        Edit { at: (0..count).collect(), op: vec![4; count as usize], arg: vec![name; count as usize], ..empty() };
    Verdict::Edit(with(edit, strings))
}

/// What the host says of the batch through the capability: how many values hold the text, the first of them, and a JSON
/// member of each, put into a header of the first record.
pub(crate) fn by_batch(count: u32, needle: &str) -> Verdict {
    let found = batch::find(Fields::VALUE, needle.as_bytes());
    let all = batch::read(Fields::VALUE | Fields::OFFSET, &[]);
    let first = batch::read(Fields::KEY, found.get(..1).unwrap_or_default());
    let members = batch::json("/a/b", &[]);
    let told = format!(
        "{found:?} {} {} {} {}",
        all.data.len() as u32 - 8 * count,
        String::from_utf8_lossy(&first.data),
        members.index.iter().filter(|end| **end >> 31 == 1).count(),
        String::from_utf8_lossy(&members.data),
    );
    let mut strings = Strings::default();
    let name = strings.push(b"batch");
    strings.push(told.as_bytes());
    Verdict::Edit(one(0, 4, name, strings))
}

/// `edits`: list of `{at, op, arg, value, code, retry}`, `at` a position or "all"; `emits`: list of `{origin, topic, key,
/// value, headers}`. With `only-key`, `at = "all"` means the records with that key.
pub(crate) fn script(settings: &Value, count: u32, records: &Frame) -> Verdict {
    let mut strings = Strings::default();
    let mut ops: Vec<(u32, u8, u32)> = Vec::new();
    let mut edit = empty();
    let only = text(settings, "only-key").as_bytes();
    let all: Vec<u32> = if only.is_empty() {
        (0..count).collect()
    } else {
        (0..).zip(keys(count, records)).filter(|(_, key)| *key == only).map(|(i, _)| i).collect()
    };
    for step in settings["edits"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let at = step["at"].as_u64().map_or_else(|| all.clone(), |at| vec![at as u32]);
        // The smoke run has one record: what is not there is left out.
        let at: Vec<u32> = at.into_iter().filter(|at| *at < count).collect();
        let (op, arg) = operation(step, &mut strings, &mut edit.rejections);
        ops.extend(at.into_iter().map(|at| (at, op, arg)));
    }
    // Stable: several operations on one record stay in the order of the script.
    ops.sort_by_key(|(at, _, _)| *at);
    for (at, op, arg) in ops {
        edit.at.push(at);
        edit.op.push(op);
        edit.arg.push(arg);
    }
    for emit in settings["emits"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let origins = emit["origin"].as_u64().map_or_else(|| all.clone(), |at| vec![at as u32]);
        let topic = strings.push_or_null(&emit["topic"]);
        let (key, value) = (strings.push_or_null(&emit["key"]), strings.push_or_null(&emit["value"]));
        let headers = match emit["header"].as_str() {
            None => NONE,
            Some(name) => {
                let mut item = vec![1, 0, name.len() as u8, 0, 1, 0, 0, 0];
                item.extend_from_slice(name.as_bytes());
                item.push(b'x');
                strings.push(&item)
            }
        };
        let origins = origins.into_iter().filter(|at| *at < count);
        edit.emissions.extend(origins.map(|origin| Emission { origin, topic, key, value, headers }));
    }
    Verdict::Edit(with(edit, strings))
}

fn operation(step: &Value, strings: &mut Strings, rejections: &mut Vec<Rejection>) -> (u8, u32) {
    match text(step, "op") {
        "drop" => (0, 0),
        "reject" => {
            let reason = strings.push(text(step, "arg").as_bytes());
            let code = step["code"].as_u64().unwrap_or(0) as u16;
            let retry_after_ms = step["retry"].as_u64().unwrap_or(0) as u32;
            rejections.push(Rejection { code, retry_after_ms, reason });
            (1, rejections.len() as u32 - 1)
        }
        "set-key" => (2, strings.push_or_null(&step["arg"])),
        "set-value" => (3, strings.push_or_null(&step["arg"])),
        "add-header" => {
            let name = strings.push(text(step, "arg").as_bytes());
            strings.push(text(step, "value").as_bytes());
            (4, name)
        }
        "remove-header" => (5, strings.push_or_null(&step["arg"])),
        "route" => (6, strings.push_or_null(&step["arg"])),
        other => panic!("no operation {other}"),
    }
}

/// Answers that break one rule each.
pub(crate) fn bad(what: &str, count: u32, settings: &Value) -> Edit {
    let mut strings = Strings::default();
    let given = strings.push(text(settings, "text").as_bytes());
    let plain = || Edit { at: vec![0], op: vec![0], arg: vec![0], ..empty() };
    match what {
        "unequal" => Edit { op: vec![0, 0], ..plain() },
        "descending" => Edit { at: vec![1, 0], op: vec![0, 0], arg: vec![0, 0], ..empty() },
        "out-of-range" => Edit { at: vec![count], ..plain() },
        "bad-op" => Edit { op: vec![7], ..plain() },
        "exclusive" => Edit { at: vec![0, 0], op: vec![0, 3], arg: vec![0, NONE], ..empty() },
        "no-rejection" => Edit { op: vec![1], ..plain() },
        "no-string" => one(0, 3, 17, strings),
        "no-header-value" => one(0, 4, given, strings),
        "string-ends-descend" => Edit { string_ends: vec![2, 1], string_data: vec![0; 4], ..plain() },
        "string-end-outside" => Edit { string_ends: vec![2], string_data: vec![0; 1], ..plain() },
        "topic" => one(0, 6, given, strings),
        "header" => {
            strings.push(b"value");
            one(0, 4, given, strings)
        }
        "not-utf8" => {
            let name = strings.push(&[0xff, 0xfe]);
            strings.push(b"value");
            one(0, 4, name, strings)
        }
        "huge-value" => {
            let value = strings.push(&vec![b'x'; (1 << 20) + 1]);
            one(0, 3, value, strings)
        }
        "huge-key" => {
            let key = strings.push(&vec![b'x'; (4 << 10) + 1]);
            one(0, 2, key, strings)
        }
        "many-headers" => {
            strings.push(b"value");
            Edit { at: vec![0; 65], op: vec![4; 65], arg: vec![given; 65], ..with(empty(), strings) }
        }
        "output-bomb" => {
            strings.push(&vec![b'x'; settings["count"].as_u64().unwrap_or(0) as usize]);
            with(plain(), strings)
        }
        "emit-origin" => {
            emission(Emission { origin: count, topic: given, key: NONE, value: NONE, headers: NONE }, strings)
        }
        "emit-headers" => {
            emission(Emission { origin: 0, topic: given, key: NONE, value: NONE, headers: given }, strings)
        }
        "emit-bomb" => {
            let one = Emission { origin: 0, topic: given, key: NONE, value: NONE, headers: NONE };
            let count = settings["count"].as_u64().unwrap_or(0) as usize;
            with(Edit { emissions: vec![one; count], ..empty() }, strings)
        }
        other => panic!("no behaviour {other}"),
    }
}

fn emission(emission: Emission, strings: Strings) -> Edit {
    with(Edit { emissions: vec![emission], ..empty() }, strings)
}
