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
//!  Driver<H: Host>                                     one task, polled by your executor
//! ```
//!
//! Most people want `lock-tokio` or `lock-smol`, which bring a `Host` and spawn the driver. To port
//! it to another executor, implement [`Host`], call [`connect`], and have the executor poll the
//! [`Driver`]:
//!
//! ```
//! use std::{io, net::SocketAddr, pin::Pin, time::Duration};
//! use lock_proto::driver::{self, Address, BootClock, Host};
//! use lock_proto::redis::Config;
//!
//! type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
//!
//! struct Smol(BootClock);
//!
//! impl Host for Smol {
//!     type Clock = BootClock;
//!     type Stream = smol::net::TcpStream;
//!     type Resolve = Boxed<io::Result<Vec<SocketAddr>>>;
//!     type Connect = Boxed<io::Result<Self::Stream>>;
//!     type Sleep = Boxed<()>;
//!
//!     fn clock(&self) -> BootClock {
//!         self.0
//!     }
//!     fn resolve(&self, host: &str, port: u16) -> Self::Resolve {
//!         let host = host.to_owned();
//!         Box::pin(async move { smol::net::resolve((host, port)).await })
//!     }
//!     fn connect(&self, address: &Address) -> Self::Connect {
//!         let address = address.clone();
//!         Box::pin(async move {
//!             match address {
//!                 Address::Tcp(address) => {
//!                     let stream = smol::net::TcpStream::connect(address).await?;
//!                     stream.set_nodelay(true)?;
//!                     Ok(stream)
//!                 }
//!                 _ => Err(io::ErrorKind::Unsupported.into()),
//!             }
//!         })
//!     }
//!     fn sleep(&self, time: Duration) -> Self::Sleep {
//!         Box::pin(async move {
//!             smol::Timer::after(time).await;
//!         })
//!     }
//! }
//!
//! # fn run(config: Config) -> Result<(), driver::ConnectError> {
//! let (client, driver) = driver::connect(Smol(BootClock::new()), config)?;
//! smol::spawn(driver).detach();
//! # drop(client); Ok(()) }
//! ```

// requirement D4
mod acquire_error;
mod address;
mod backend;
mod blocking;
mod bytes;
mod client;
mod connect;
mod credentials;
mod election;
mod engine;
#[cfg(feature = "grpc")]
mod etcd;
mod event_loop;
mod fault;
mod guard;
mod host;
mod lock;
mod name;
mod observer;
mod outcome;
#[cfg(any(feature = "grpc", feature = "zookeeper"))]
mod owner;
mod ping;
mod query;
mod race;
#[cfg(feature = "redis")]
mod redis;
mod resign;
mod settings;
mod shared;
mod slot;
mod stream;
#[cfg(all(test, feature = "sim"))]
mod tests;
mod ticket;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "zookeeper")]
mod zookeeper;

pub use crate::clock::{BootClock, Clock};
pub use acquire_error::{AcquireError, AcquireErrorKind};
pub use address::Address;
pub use backend::{Driver, StoreSettings, connect};
pub use client::Client;
pub use connect::ConnectError;
pub use election::{Campaigning, Election, Leadership, ProclaimError};
#[cfg(feature = "grpc")]
pub use etcd::{OwnerKeyError, OwnerKeyExt};
pub use guard::{ExtendError, Guard, Protected, Releasing};
pub use host::Host;
pub use lock::{Acquiring, Lock};
pub use observer::Observer;
pub use outcome::Shutdown;
pub use query::Observation;
pub use resign::{LeadError, LeadershipEnd, ResignHandle, StopSignal};
pub use settings::Settings;
#[cfg(feature = "zookeeper")]
pub use zookeeper::{OwnerNodeError, OwnerNodeExt};
