//! Tools and examples for `lock-proto`: what its programs share.

pub mod blocking;
pub mod demo;
pub mod oversell;
pub mod serve;
pub mod with_lock;
