//! tidegate-plugin.
