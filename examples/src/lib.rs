//! Tools and examples for `lock-proto`: what its programs share.

pub mod blocking;
pub mod cli;
pub mod contention;
pub mod demo;
pub mod explore;
pub mod host;
pub mod leader;
pub mod oversell;
pub mod serve;
mod story;
mod svg;
mod waiting;
pub mod with_lock;

/// The code in the guide to porting compiles.
#[cfg(doctest)]
#[doc = include_str!("../../docs/porting.md")]
mod porting {}

/// The code in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}
