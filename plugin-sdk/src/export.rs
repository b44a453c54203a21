//! Between the raw boundary and the trait: holds the one plugin of an instance, turns wire types into the SDK's and
//! back. [`export!`](crate::export!) and [`crate::testing`] call it; it knows no transport.

use std::cell::RefCell;

use crate::{
    Batch, Failure, Manifest, Needs, Plugin, Reader, Settings, Verdict,
    bindings::{
        exports::tidegate::plugin::{fetch_hook, lifecycle},
        tidegate::plugin::types as wit,
    },
};

/// Makes a type the plugin of this crate. Exports exist on `wasm32` alone; elsewhere the macro checks the type.
#[macro_export]
macro_rules! export {
    ($plugin:ty) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(
            unsafe_code,
            missing_docs,
            unused_qualifications,
            clippy::all,
            clippy::undocumented_unsafe_blocks,
            reason = "generated: the raw boundary"
        )]
        const _: () = {
            ::std::thread_local! {
                static SLOT: $crate::Slot<$plugin> = const { $crate::Slot::new() };
            }

            struct Exported;

            impl $crate::bindings::exports::tidegate::plugin::lifecycle::Guest for Exported {
                fn describe() -> $crate::bindings::exports::tidegate::plugin::lifecycle::Manifest {
                    $crate::manifest::<$plugin>()
                }
                fn init(
                    with: $crate::bindings::exports::tidegate::plugin::lifecycle::Settings,
                ) -> ::std::result::Result<
                    $crate::bindings::exports::tidegate::plugin::lifecycle::Needs,
                    $crate::bindings::tidegate::plugin::types::Failure,
                > {
                    SLOT.with(|slot| $crate::init(slot, with))
                }
            }

            impl $crate::bindings::exports::tidegate::plugin::produce_hook::Guest for Exported {
                fn on_produce(
                    info: $crate::bindings::tidegate::plugin::types::BatchInfo,
                    records: $crate::bindings::tidegate::plugin::types::Frame,
                ) -> ::std::result::Result<
                    $crate::bindings::tidegate::plugin::types::Verdict,
                    $crate::bindings::tidegate::plugin::types::Failure,
                > {
                    SLOT.with(|slot| $crate::produce(slot, info, records))
                }
            }

            impl $crate::bindings::exports::tidegate::plugin::fetch_hook::Guest for Exported {
                fn on_fetch(
                    info: $crate::bindings::tidegate::plugin::types::BatchInfo,
                    who: $crate::bindings::exports::tidegate::plugin::fetch_hook::Reader,
                    records: $crate::bindings::tidegate::plugin::types::Frame,
                ) -> ::std::result::Result<
                    $crate::bindings::tidegate::plugin::types::Verdict,
                    $crate::bindings::tidegate::plugin::types::Failure,
                > {
                    SLOT.with(|slot| $crate::fetch(slot, info, who, records))
                }
            }

    $crate::bindings::export_filter!(Exported with_types_in $crate::bindings);
        };

        #[cfg(not(target_arch = "wasm32"))]
        const _: fn() = || {
            fn is_a_plugin<P: $crate::Plugin>() {}
            is_a_plugin::<$plugin>();
        };
    };
}

/// Where an instance keeps its plugin between calls.
#[derive(Debug)]
pub struct Slot<P>(RefCell<Option<(P, Needs)>>);

impl<P> Slot<P> {
    /// Before `init`.
    #[allow(clippy::new_without_default, reason = "a const constructor for a static")]
    pub const fn new() -> Self {
        Self(RefCell::new(None))
    }
}

/// `describe`.
pub fn manifest<P: Plugin>() -> lifecycle::Manifest {
    let Manifest { name, version, hooks, pure, reads_reader, judges_singly, settings_schema } = P::MANIFEST;
    let mut flags = lifecycle::Hooks::empty();
    flags.set(lifecycle::Hooks::PRODUCE, hooks.produce);
    flags.set(lifecycle::Hooks::FETCH, hooks.fetch);
    lifecycle::Manifest {
        name: name.to_owned(),
        version: version.to_owned(),
        hooks: flags,
        pure,
        reads_reader,
        judges_singly,
        interpreted: false,
        settings_schema: settings_schema.to_owned(),
    }
}

/// `init`.
///
/// # Errors
/// What [`Plugin::new`] says.
pub fn init<P: Plugin>(slot: &Slot<P>, with: lifecycle::Settings) -> Result<lifecycle::Needs, wit::Failure> {
    report_panics();
    let files = with.files.into_iter().map(|file| (file.path, file.content)).collect();
    let plugin = P::new(&Settings::new(with.json, files)).map_err(failure)?;
    let needs = plugin.needs();
    *slot.0.borrow_mut() = Some((plugin, needs));
    Ok(lifecycle::Needs { produce: needs.produce, fetch: needs.fetch, apply: wit::Fields::empty() })
}

/// `on-produce`.
///
/// # Errors
/// What [`Plugin::on_produce`] says.
pub fn produce<P: Plugin>(
    slot: &Slot<P>,
    info: wit::BatchInfo,
    records: wit::Frame,
) -> Result<wit::Verdict, wit::Failure> {
    call(slot, info, &records, |needs| needs.produce, |plugin, batch, out| plugin.on_produce(batch, out))
}

/// `on-fetch`.
///
/// # Errors
/// What [`Plugin::on_fetch`] says.
pub fn fetch<P: Plugin>(
    slot: &Slot<P>,
    info: wit::BatchInfo,
    who: fetch_hook::Reader,
    records: wit::Frame,
) -> Result<wit::Verdict, wit::Failure> {
    let reader = Reader { principal: who.principal, group: who.group, parameters: who.parameters };
    call(slot, info, &records, |needs| needs.fetch, |plugin, batch, out| plugin.on_fetch(batch, &reader, out))
}

fn call<P: Plugin>(
    slot: &Slot<P>,
    info: wit::BatchInfo,
    records: &wit::Frame,
    fields: impl Fn(&Needs) -> wit::Fields,
    hook: impl FnOnce(&mut P, &Batch<'_>, &mut Verdict) -> Result<(), Failure>,
) -> Result<wit::Verdict, wit::Failure> {
    let mut slot = slot.0.borrow_mut();
    let Some((plugin, needs)) = slot.as_mut() else {
        return Err(failure(Failure::permanent("a hook was called before init")));
    };
    let batch = Batch::new(info.count, fields(needs), &records.index, &records.data).map_err(failure)?;
    let mut out = Verdict::default();
    hook(plugin, &batch.at(info.generation, info.now_ms), &mut out).map_err(failure)?;
    Ok(out.encode())
}

fn failure(failure: Failure) -> wit::Failure {
    match failure {
        Failure::Retry { after_ms, message } => wit::Failure::Retry((after_ms, message)),
        Failure::Permanent(message) => wit::Failure::Permanent(message),
    }
}

/// A panic becomes the instance's last words before the trap: message and place. Natively the test runner reports it.
fn report_panics() {
    #[cfg(target_arch = "wasm32")]
    std::panic::set_hook(Box::new(|panic| crate::instance::fault(&panic.to_string())));
}
