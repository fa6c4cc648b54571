//! What happens to locks when real servers die, stop, refuse, fill up, change their role, or turn out to be something else.
//!
//! Every test starts servers of its own. Most locks here have a TTL that is longer than the patience of the tests: what ends in
//! time has then ended because somebody ended it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod crowd;
mod disturbance;
mod fencing;
mod hostile;
mod in_the_way;
mod interop;
mod kit;
mod peer;
mod plain;
mod quorum;
mod restart;
mod stopped;
mod together;
mod wake;
