//! Embedding without the driver, as `docs/embedding.md` describes it: each seam with somebody's own client, against a real server.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod redis_crate;
mod tonic_channel;
