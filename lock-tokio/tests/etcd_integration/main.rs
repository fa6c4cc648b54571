//! What happens to locks and elections on real etcd servers: members that die or stop, operators with `etcdctl`, other clients in the
//! queue, users and rights, and what it all costs.
//!
//! Every test starts servers of its own. (A client whose process is stopped is a matter of `with-lock`'s tests; servers that are none
//! are one of the driver's.)

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod by_hand;
mod cost;
mod interop;
mod kit;
mod leftovers;
mod members;
mod names;
mod order;
mod owner;
