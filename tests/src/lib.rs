//! tidegate-tests.
