//! tidegate-plugin-filter.
