//! Naive locks, as tutorials describe them, to compare the clients with.
//!
//! They know no failures, batches, wake-ups or tokens of fencing: only who holds the lock by the
//! truth of the server, and what a take, an extension, a release and an expiry do to that.
// S13

mod polling;

pub(super) use polling::{End, Polling, show};
