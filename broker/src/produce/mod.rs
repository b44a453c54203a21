//! The way in, in the order of ADR 3.
