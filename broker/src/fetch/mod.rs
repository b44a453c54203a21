//! The way out: scan, match, chain, send. One subscription, one stream.
