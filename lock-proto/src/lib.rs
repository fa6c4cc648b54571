//! Distributed locks as state machines.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(feature = "driver", feature = "sim", test))]
extern crate std;

#[cfg(feature = "driver")]
pub mod driver;
mod error;
mod fault;
mod id;
pub mod redis;
mod retry;
#[cfg(feature = "sim")]
pub mod sim;
mod time;

pub use error::{ConfigError, Invalid, Misuse};
pub use fault::{Breach, Fault};
pub use id::{CallId, ClientId, ConnId, LockId, NodeId, Role};
pub use time::Instant;
