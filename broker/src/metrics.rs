//! Names of every metric the broker emits, and the registry they live in.
