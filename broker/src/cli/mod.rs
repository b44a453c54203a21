//! All commands of `tidegate`.
