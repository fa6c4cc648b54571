//! Distributed locks on tokio: Redis and Valkey, one node or a quorum, etcd and ZooKeeper.
//!
//! ```
//! use lock_tokio::Release;
//! use std::time::Duration;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let url = "redis://127.0.0.1:6379";
//! #   let server = lock_sim::TestServer::redis();
//! #   let url = server.url();
//!     let client = lock_tokio::connect(url)?;
//!
//!     // Waits until the lock is free, then keeps it alive for as long as the guard lives.
//!     let guard = client.lock("invoice:42").ttl(Duration::from_secs(5)).acquire().await?;
//!     let fence = guard.fence().expect("one node gives fencing tokens");
//!     println!("held, with fencing token {fence}");
//!
//!     // Runs the work, cancels it if the lock is lost, then releases the lock.
//!     let done = guard.protect(async { "paid" }).await;
//!     assert_eq!(done.output, Ok("paid"));
//!     assert_eq!(done.release, Release::Released);
//!
//!     // The shutdown releases all remaining locks; here there are none.
//!     let end = client.shutdown(Duration::from_secs(1)).await;
//!     assert_eq!(end.unreleased, 0);
//!     Ok(())
//! }
//! ```
//!
//! [`connect`] starts a thread, the driver. It renews the locks and wakes the tasks, so that a task
//! that computes or blocks stops no renewal, and delays no loss and no timeout of the others. Share
//! one client: its clones have one thread. With [`connect_on_runtime`] the driver is a task of the
//! current runtime instead, which is faster, but depends on its tasks. All other types
//! ([`Lock`], [`Guard`], [`Observer`]) are the same on every runtime and may be used and dropped on
//! any thread.
//!
//! The client connects with its first request. [`Client::ping`] connects at once, and reports a wrong
//! password or an unreachable server.
//!
//! What a lock guarantees, on each store: see
//! [`lock_driver`](lock_driver#guarantees).
//!
//! # Testing
//!
//! `lock_sim::TestServer` is a simulated server in the process of a test. A test can take a lock away
//! and stop the server: `docs/testing-your-service.md` of the repository.
//!
//! # Errors
//!
//! [`AcquireError`] says whether a retry helps; [`errors`] has its parts. [`Loss`] says why a lock was
//! lost, [`Release`] what became of a release.
//!
//! # Log
//!
//! The log goes to `tracing`, with the target `lock_driver`: `RUST_LOG=lock_driver=debug` shows all
//! of it. [`lock_driver`](lock_driver#log) explains the fields.
//!
//! # Features
//!
//! Each store is a feature. The URL of a store that is not compiled in gives
//! [`ConnectError::MissingFeature`].
//!
//! * `redis` (default): Redis and Valkey.
//! * `etcd`: etcd. Brings HTTP/2 and gRPC.
//! * `zookeeper`: ZooKeeper, by `zk://host1:2181,host2:2181/chroot`.
//! * `register` (default): a folder, for the processes of one machine, by `file:///path`; and any store
//!   with compare-and-set, by [`connect_register`].
//! * `tls`: TLS by rustls, with ring. `tls-aws-lc-rs`: with aws-lc-rs. `tls-platform-roots`: uses
//!   the platform's trust store if a URL names no `ca`.
//!
//! # Time
//!
//! Validity is measured with [`BootClock`](lock_driver::BootClock), not with tokio's clock,
//! so pausing tokio's time in tests does not keep a lock alive. On Linux that clock advances during
//! suspend, but not while a virtual machine is paused by its host.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
mod connect;
mod host;
#[cfg(feature = "register")]
pub mod register;
mod stream;

pub use connect::{connect, connect_on_runtime, connect_quorum, connect_with};
pub use host::Tokio;
pub use lock_driver;
pub use lock_driver::{
    AcquireError, AcquireErrorKind, Acquiring, Campaigning, Client, ConnectError, Election, ElectionEvent, ExtendError,
    Guard, LeadError, Leadership, LeadershipEnd, Lock, Observation, Observer, ProclaimError, Protected, Releasing,
    ResignHandle, Settings, Shutdown, StopSignal, StoreSettings,
};
#[cfg(feature = "etcd")]
pub use lock_driver::{OwnerKeyError, OwnerKeyExt};
#[cfg(feature = "zookeeper")]
pub use lock_driver::{OwnerNodeError, OwnerNodeExt};
pub use lock_driver::{config, errors};
pub use lock_proto;
pub use lock_proto::{ClientId, Fence, Leader, Loss, Release, Renew, Token};
#[cfg(feature = "register")]
pub use register::{connect_register, connect_register_with};
pub use stream::Stream;

// The same without the name of their module.
#[doc(hidden)]
pub use lock_driver::{config::*, errors::*};

/// Settings of clients on Redis and Valkey.
#[cfg(feature = "redis")]
pub mod redis {
    pub use lock_proto::redis::{
        Config, Endpoint, FENCE_NAME, MAX_FENCE_BLOCK, Protocol, SIGNAL_SUFFIX, UnknownAge, WAITING_SUFFIX, Wake,
        scheme,
    };
}

/// Settings of clients on etcd, and keys for transactions.
#[cfg(feature = "etcd")]
pub mod etcd {
    pub use lock_driver::ElectionEvent;
    pub use lock_proto::etcd::{Config, Endpoint, Leader, MAX_ENDPOINTS, MAX_VALUE, MIN_SESSION_TTL, OwnerKey};
}

/// Settings of clients on ZooKeeper, and nodes for transactions.
#[cfg(feature = "zookeeper")]
pub mod zookeeper {
    pub use lock_proto::zookeeper::{Config, Dialect, MAX_SERVERS, MAX_VALUE, MIN_TICKS, OwnerNode};
}
