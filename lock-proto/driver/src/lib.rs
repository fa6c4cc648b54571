//! The async driver: runs the machine of a store over real connections, on any executor.
//!
//! There is one driver for all runtimes. A runtime is a [`Host`]: a clock, a way to connect, a
//! timer. The handles ([`Client`], [`Guard`] and the rest) are plain types that do not depend on
//! it, so code that uses them fits every runtime. They do not depend on the store either; what only
//! some stores can do, such as elections, is an error on the others.
//!
//! ```text
//!  Client ─ Lock ─ Acquiring ─ Guard ─ Observer        any task, any thread
//!     │ verbs           ▲ events
//!  ┌──▼─────────────────┴──┐
//!  │ Mutex<machine>        │                           the only shared state
//!  └──▲─────────────────┬──┘
//!     │ facts           ▼ connect, bytes or calls, next deadline
//!  Driver<H: Host>                                     a thread of its own, or one task of your executor
//! ```
//!
//! Most people want `lock-tokio` or `lock-smol`, which bring a `Host` and run the driver on a thread
//! ([`connect_on_thread`]). To port it to another executor, implement [`Host`], call [`connect`], and
//! have the executor poll the [`Driver`]. `docs/porting.md` of the repository has an example, and
//! `examples/port-template` is a port to start from.
//!
//! ```
//! use lock_driver::{Client, ConnectError, Driver, Host, Settings};
//!
//! fn start<H: Host>(host: H, spawn: impl FnOnce(Driver<H>)) -> Result<Client, ConnectError> {
//!     let settings = Settings::parse(["redis://127.0.0.1:6379"])?;
//!     let (client, driver) = lock_driver::connect(host, settings)?;
//!     spawn(driver);
//!     Ok(client)
//! }
//! ```
//!
//! # Guarantees
//!
//! * A lock is valid from the moment at which the granting request left, for its TTL less a margin
//!   for clock drift. The holder learns of the end before a server can grant the lock again, within
//!   the bounds in `docs/guarantees.md` of the repository.
//! * A dropped future or guard leaves nothing behind that is renewed.
//! * Each grant on one Redis server, on etcd and on ZooKeeper has a greater [fencing
//!   token](Guard::fence) than those before. A quorum has none.
//! * One Redis server and a quorum assume that a server keeps what it confirmed. A replica that
//!   takes over may lack the lock: two clients may then hold it.
//! * No lock stops a process that was paused past the end of its lock. The resource can, by
//!   checking the fencing token.
//!
//! On etcd and ZooKeeper there are also [elections](Election). Locks on etcd share one queue with
//! `etcdctl lock` and the Go concurrency package, those on ZooKeeper with Curator or kazoo.

//! # Log
//!
//! The driver logs by `tracing`, with the target `lock_driver`; `RUST_LOG=lock_driver=debug` shows
//! all of it. At INFO: connections. At WARN: a lost connection, a lock at risk or lost, a release
//! that is unconfirmed, a wait that servers prolong. At DEBUG: each grant, wait and release.
//!
//! | field | meaning |
//! |---|---|
//! | `client` | the id of the client, [`Client::id`] |
//! | `conn` | a connection of the client; the second number counts reconnects |
//! | `server`, `address` | what the URL names, and the address it was resolved to |
//! | `wake` | on Redis: true for the second connection, on which waiters hear of releases |
//! | `lock` | the name of the lock or election |
//! | `fence` | the fencing token of a grant |
//! | `reason` | why an acquisition waits |
//! | `remaining` | how long a lock at risk is still held for certain |
//! | `failures` | what went wrong on each server, in its words |
//! | `outcome`, `cause` | of a release, of a loss |

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(any(feature = "redis", feature = "etcd", feature = "zookeeper")),
    allow(dead_code, unreachable_code, unused_variables, reason = "without a server there are no connections")
)]

extern crate alloc;

// D4
mod acquire_error;
mod address;
mod backend;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
mod bytes;
mod client;
mod clock;
pub mod config;
mod connect;
mod credentials;
mod election;
mod engine;
pub mod errors;
#[cfg(feature = "etcd")]
mod etcd;
mod event_loop;
mod fault;
mod file;
mod foreign;
mod guard;
mod host;
mod lock;
mod log;
mod name;
mod observer;
mod operation;
mod outcome;
mod own_wait;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod owner;
mod ping;
mod race;
mod reads;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "register")]
pub mod register;
mod resign;
mod settings;
mod shared;
mod slot;
mod stream;
#[cfg(test)]
mod tests;
mod thread;
mod ticket;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "zookeeper")]
mod zookeeper;

// Last: rustdoc lists the methods of a type in the order of the modules.
mod blocking;

pub use acquire_error::{AcquireError, AcquireErrorKind};
pub use address::Address;
pub use backend::{Driver, StoreSettings, connect};
pub use client::Client;
pub use clock::{BootClock, Clock, random_identity};
pub use connect::ConnectError;
pub use election::{Campaigning, Election, ElectionEvent, Leadership, ProclaimError};
#[cfg(feature = "etcd")]
pub use etcd::{OwnerKeyError, OwnerKeyExt};
pub use file::read_file;
pub use guard::{ExtendError, Guard, Protected, Releasing};
pub use host::Host;
pub use lock::{Acquiring, Lock};
pub use observer::Observer;
pub use operation::Observation;
pub use outcome::Shutdown;
pub use resign::{LeadError, LeadershipEnd, ResignHandle, StopSignal};
pub use settings::Settings;
pub use thread::{call_on_thread, connect_on_thread, start_or_error};
#[cfg(feature = "zookeeper")]
pub use zookeeper::{OwnerNodeError, OwnerNodeExt};
