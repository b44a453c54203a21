//! tidegate-client.
