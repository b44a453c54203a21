//! tidegate-example-first-filter.
