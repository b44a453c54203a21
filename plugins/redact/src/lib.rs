//! tidegate-plugin-redact.
