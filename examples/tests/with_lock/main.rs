//! `with-lock` from outside: real processes, real servers.
#![allow(clippy::unwrap_used, reason = "tests")]

mod command;
mod exclusion;
mod harness;
mod loss;
mod quorum;
mod refusals;
mod wire;
