//! Embedding without the driver, as described in `docs/embedding.md`: each seam with another
//! client, on a real server.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod redis_crate;
mod tonic_channel;
