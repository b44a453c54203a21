//! `cargo xtask guests`: builds the plugins for wasm32.

/// Placeholder until the plugins land.
pub(crate) fn run() -> Result<(), String> {
    Err("plugins cannot be built yet".to_owned())
}
