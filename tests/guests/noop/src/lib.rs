//! tidegate-guest-noop.
