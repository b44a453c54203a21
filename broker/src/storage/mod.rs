//! Disk and bucket: keeps stored frames in LSN order, durable before anybody is told, and gives them back.
//!
//! Owns `std::fs` and `object_store`. Must not know what a topic is called, what a key means, hooks or connections. Called
//! by `shard` (append, checkpoint), `fetch` (read, through `shard`), `cli` (offline tools). ADR 4 has the formats.
