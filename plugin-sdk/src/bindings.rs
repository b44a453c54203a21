//! What `wit/` says, as Rust. Generated at compile time for the world `filter`.

wit_bindgen::generate!({
    world: "filter",
    path: "../wit",
    pub_export_macro: true,
    export_macro_name: "export_filter",
    default_bindings_module: "tidegate_plugin::bindings",
    generate_unused_types: true,
});
