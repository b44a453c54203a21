//! tidegate-plugin-route.
