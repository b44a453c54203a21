//! tidegate-plugin-schema.
