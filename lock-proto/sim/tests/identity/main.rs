//! Addresses that come to lead to another server.
// Q6, Q7
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod hub;
mod worlds;
