//! The exports, and the behaviours that do not end in a verdict.

use std::cell::RefCell;

use serde_json::Value;

#[allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
mod bindings {
    wit_bindgen::generate!({ world: "filter", path: "../../../wit", pub_export_macro: true });
    use super::Hostile;
    export!(Hostile);
}

pub(crate) use bindings::{
    exports::tidegate::plugin::{
        fetch_hook::{Guest as Fetch, Reader},
        lifecycle::{Guest as Lifecycle, Hooks, Manifest, Needs, Settings},
        produce_hook::Guest as Produce,
    },
    tidegate::plugin::{
        batch, clock, counters, instance, log, random,
        types::{BatchInfo, Edit, Emission, Failure, Fields, Frame, Refusal, Rejection, Verdict},
    },
};

use crate::verdicts;

struct Hostile;

thread_local! {
    static SETTINGS: RefCell<Value> = const { RefCell::new(Value::Null) };
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

impl Lifecycle for Hostile {
    fn describe() -> Manifest {
        Manifest {
            name: "hostile".into(),
            version: "0.1.0".into(),
            hooks: Hooks::PRODUCE | Hooks::FETCH,
            pure: false,
            reads_reader: true,
            judges_singly: true,
            interpreted: false,
            settings_schema: "{}".into(),
        }
    }

    fn init(with: Settings) -> Result<Needs, Failure> {
        std::panic::set_hook(Box::new(|info| instance::fault(&info.to_string())));
        let settings: Value = serde_json::from_str(&with.json).expect("settings are JSON");
        match text(&settings, "init") {
            "" => {}
            "fail" => return Err(Failure::Permanent("the settings are wrong".into())),
            "retry" => return Err(Failure::Retry((250, "not yet".into()))),
            "panic" => panic!("init panics"),
            "spin" => spin(),
            "batch" => drop(batch::read(Fields::KEY, &[])),
            "file" => {
                let file = with.files.first().expect("a bundled file");
                if file.path != text(&settings, "text") || file.content != b"content" {
                    return Err(Failure::Permanent("not the file".into()));
                }
            }
            other => panic!("no init {other}"),
        }
        let needs = fields(&settings);
        SETTINGS.set(settings);
        Ok(Needs { produce: needs, fetch: needs, apply: Fields::empty() })
    }
}

impl Produce for Hostile {
    fn on_produce(info: BatchInfo, records: Frame) -> Result<Verdict, Failure> {
        SETTINGS.with_borrow(|settings| answer(settings, &info, &records))
    }
}

impl Fetch for Hostile {
    fn on_fetch(info: BatchInfo, who: Reader, records: Frame) -> Result<Verdict, Failure> {
        SETTINGS.with_borrow(|settings| {
            if text(settings, "do") == "reader" {
                let told = format!("{} {} {}", who.principal, who.group, who.parameters);
                return Ok(verdicts::stamp(info.count, "reader", &told));
            }
            if text(settings, "hook") == "produce" {
                return Ok(Verdict::Pass);
            }
            answer(settings, &info, &records)
        })
    }
}

fn answer(settings: &Value, info: &BatchInfo, records: &Frame) -> Result<Verdict, Failure> {
    let only = text(settings, "only-key");
    if !only.is_empty() && !verdicts::keys(info.count, records).any(|key| key == only.as_bytes()) {
        return Ok(Verdict::Pass);
    }
    let count = settings["count"].as_u64().unwrap_or(0);
    match text(settings, "do") {
        // "reader" is a behaviour of the other hook.
        "" | "pass" | "reader" => Ok(Verdict::Pass),
        "drop-all" => Ok(Verdict::DropAll),
        "reject-all" => Ok(Verdict::RejectAll(Refusal {
            code: 7,
            retry_after_ms: 50,
            reason: text(settings, "text").repeat(count.max(1) as usize),
        })),
        "panic" => panic!("{}", text(settings, "text")),
        "spin" => spin(),
        "eat-memory" => eat(),
        "leak" => {
            KEPT.with_borrow_mut(|kept| kept.push(vec![1; count as usize]));
            Ok(Verdict::Pass)
        }
        "retry" => Err(Failure::Retry((count as u32, "the database is away".into()))),
        "permanent" => Err(Failure::Permanent("no".into())),
        "log" => {
            (0..count).for_each(|i| log::write(log::Level::Info, &format!("{} {i}", text(settings, "text"))));
            Ok(Verdict::Pass)
        }
        "count" => {
            counters::add(text(settings, "text"), i64::from(info.count));
            Ok(Verdict::Pass)
        }
        "count-names" => {
            for i in 0..count {
                counters::add(&i.to_string(), 1);
            }
            Ok(Verdict::Pass)
        }
        "random" => {
            assert_eq!(random::bytes(count as u32).len() as u64, count);
            assert!(clock::now() > 0 && clock::monotonic() <= clock::monotonic());
            Ok(verdicts::stamp(info.count, "random", &random::next().to_string()))
        }
        "instance" => {
            let told = format!("{} {} {}", instance::tenant(), instance::principal(), instance::settings().len() > 2);
            Ok(verdicts::stamp(info.count, "instance", &told))
        }
        "batch" => Ok(verdicts::by_batch(info.count, text(settings, "text"))),
        "batch-greedy" => {
            // The same position a thousand times: a short list that asks for much.
            drop(batch::read(Fields::VALUE, &vec![0; 1000]));
            Ok(Verdict::Pass)
        }
        "script" => Ok(verdicts::script(settings, info.count, records)),
        other => Ok(Verdict::Edit(verdicts::bad(other, info.count, settings))),
    }
}

fn spin() -> ! {
    let mut turns = 0_u64;
    loop {
        turns = std::hint::black_box(turns.wrapping_add(1));
    }
}

fn eat() -> ! {
    loop {
        KEPT.with_borrow_mut(|kept| kept.push(vec![7; 1 << 20]));
    }
}

/// A member of the settings, or "".
pub(crate) fn text<'a>(settings: &'a Value, name: &str) -> &'a str {
    settings[name].as_str().unwrap_or_default()
}

fn fields(settings: &Value) -> Fields {
    let names = settings["needs"].as_array().map(Vec::as_slice).unwrap_or_default();
    names.iter().fold(Fields::empty(), |fields, name| {
        fields
            | match name.as_str().unwrap_or_default() {
                "key" => Fields::KEY,
                "value" => Fields::VALUE,
                "headers" => Fields::HEADERS,
                "topic" => Fields::TOPIC,
                "timestamp" => Fields::TIMESTAMP,
                "offset" => Fields::OFFSET,
                other => panic!("no field {other}"),
            }
    })
}
