//! Tools and examples for `lock-proto`. This library holds the shared code of the programs.

pub mod cli;
pub mod contention;
pub mod demo;
pub mod explore;
pub mod host;
pub mod leader;
pub mod oversell;
pub mod serving;
pub mod std_net;
mod transcript;
pub mod with_lock;

/// Compiles the code of the porting guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/porting.md")]
mod porting {}

/// Compiles the code of the page on conformance tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/conformance.md")]
mod conformance {}

/// The code in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}
