//! Clients for programs without async: those of [`connect`], whose driver has a thread of its own and
//! needs no runtime.
//!
//! The clients and their guards are those of async code, with methods that block the calling
//! thread: [`Lock::acquire_blocking`](crate::Lock::acquire_blocking),
//! [`Guard::release_blocking`](crate::Guard::release_blocking),
//! [`Guard::lost_within`](crate::Guard::lost_within),
//! [`Client::shutdown_blocking`](crate::Client::shutdown_blocking) and so on.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = lock_tokio::blocking::connect("redis://127.0.0.1:6379")?;
//!     let guard = client.lock("invoice:42").ttl(Duration::from_secs(5)).acquire_blocking()?;
//!     println!("held, fencing token {:?}", guard.fence());
//!     // Between two steps of the work, before what must not happen twice.
//!     assert!(guard.is_held());
//!     println!("{:?}", guard.release_blocking());
//!     client.shutdown_blocking(Duration::from_secs(1));
//!     Ok(())
//! }
//! ```
//!
//! In async code these methods panic, as tokio's own blocking methods do: they would block a thread
//! that runs other tasks. Call them in `tokio::task::spawn_blocking`, or await
//! [`Lock::acquire`](crate::Lock::acquire).
//!
//! A thread cannot be stopped from outside, so [`Guard::protect`](crate::Guard::protect) has no
//! blocking form. Ask [`Guard::is_held`](crate::Guard::is_held) between the steps of the work, or
//! stop it from another thread, with [`Observer::lost_blocking`](crate::Observer::lost_blocking).

pub use crate::connect::{connect, connect_quorum, connect_with};
#[cfg(feature = "register")]
pub use crate::register::{connect_register, connect_register_with};
