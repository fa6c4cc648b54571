//! Locks and elections on ZooKeeper 3.5 or later, and servers that speak its protocol.

pub mod codec;
