//! Embedding without the driver (`docs/embedding.md`), with other clients on real servers.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod redis_crate;
mod tonic_channel;
