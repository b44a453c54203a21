//! The single writer: gives numbers to what the chain let through, in one short critical section, and hands it to storage.
//!
//! Must not know guests, connections or files. Called by `produce` (append), `fetch` (read), `server` (activate).
