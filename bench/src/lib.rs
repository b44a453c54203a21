//! tidegate-bench.
