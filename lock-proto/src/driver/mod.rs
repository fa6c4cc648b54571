//! The async driver: runs a machine over real connections, on any executor: a [`redis::Client`], or with the feature `etcd` an
//! [`etcd::Client`](crate::etcd::Client).
//!
//! It is written once for all runtimes (requirement D4). What differs between them is a [`Host`]: a clock, a way to connect, a timer. The handles
//! ([`Client`], [`Guard`] and the rest) are plain types that know nothing of it, so code that uses them fits every runtime.
//!
//! ```text
//!  Client ─ Lock ─ Acquiring ─ Guard ─ Observer        any task, any thread
//!     │ verbs           ▲ events
//!  ┌──▼─────────────────┴──┐
//!  │ Mutex<Engine>         │                           nothing but this is shared
//!  └──▲─────────────────┬──┘
//!     │ facts           ▼ connect, bytes or calls, next deadline
//!  Driver<H: Host>                                     one task, polled by your executor
//! ```
//!
//! Most people want `lock-tokio` or `lock-smol`, which bring a `Host` and spawn the driver. To port it to another executor,
//! implement [`Host`], call [`client`], and have the executor poll the [`Driver`]:
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
//!                 Address::Tcp(address) => smol::net::TcpStream::connect(address).await,
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
//! let (client, driver) = driver::client(Smol(BootClock::new()), config)?;
//! smol::spawn(driver).detach();
//! # drop(client); Ok(()) }
//! ```

mod address;
mod clock;
mod engine;
#[cfg(feature = "grpc")]
pub mod etcd;
mod fault;
mod guard;
mod handle;
mod race;
mod run;
mod settings;
mod shared;
#[cfg(all(test, feature = "sim"))]
mod tests;
mod ticket;
mod turns;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;
use std::io;

use futures_io::{AsyncRead, AsyncWrite};

pub use address::Address;
pub use clock::{BootClock, Clock};
#[cfg(feature = "grpc")]
pub use guard::OwnerError;
pub use guard::{ExtendError, Guard, Observer, Protected, Releasing};
pub use handle::{AcquireError, Acquiring, Client, Lock, Shutdown};
pub use run::Driver;
pub use settings::{AnyDriver, Settings, connect};

use crate::error::ConfigError;
use crate::id::ClientId;
use crate::redis::{self};
use crate::url::UrlError;
use shared::Shared;

/// What the driver needs of a runtime.
///
/// Nothing here has to be [`Send`] but the clock: a runtime of one thread implements it with what it has. The driver is `Send` if the
/// host, its streams and its futures are, which is what an executor asks for that moves tasks between threads.
///
/// The futures have names so that the driver can hold them without a box of its own; where they are `async` blocks, they are boxed.
pub trait Host: 'static {
    /// The clock.
    type Clock: Clock;
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;
    /// The future of [`resolve`](Self::resolve).
    type Resolve: Future<Output = io::Result<Vec<SocketAddr>>> + Unpin + 'static;
    /// The future of [`connect`](Self::connect).
    type Connect: Future<Output = io::Result<Self::Stream>> + Unpin + 'static;
    /// The future of [`sleep`](Self::sleep).
    type Sleep: Future<Output = ()> + Unpin + 'static;

    /// The clock. It is asked for once or twice, and shared by the driver and all handles.
    fn clock(&self) -> Self::Clock;

    /// The addresses of a name, in the resolver's order. Without a cache of its own: the driver asks before each attempt to connect, so that a
    /// failover is followed. All of them must lead to one server. Called while the driver is polled; not called for addresses.
    fn resolve(&self, host: &str, port: u16) -> Self::Resolve;

    /// Connects to one address. It needs no timeout: the driver tries the next address meanwhile, and drops the future when another one
    /// was faster or when it has taken too long. Called while the driver is polled.
    fn connect(&self, address: &Address) -> Self::Connect;

    /// Ends after `time`, or a little later. Ending early does no harm; the clock is compared. Called while the driver is polled.
    fn sleep(&self, time: Duration) -> Self::Sleep;
}

/// A client of the servers in `config`, and the driver that does its work.
///
/// The driver must be polled, normally by spawning it. Its id and seed are taken from the system's entropy.
///
/// # Errors
///
/// The settings are out of range, or the system has no entropy.
pub fn client<H: Host>(host: H, config: redis::Config) -> Result<(Client, Driver<H>), ConnectError> {
    let (id, seed) = identity()?;
    with_identity(host, config, id, seed)
}

/// An id that is unique in the world, and a seed for jitter.
fn identity() -> Result<(ClientId, u64), ConnectError> {
    let mut random = [0; 24];
    getrandom::fill(&mut random).map_err(|error| ConnectError::Entropy(error.into()))?;
    let (id, seed) = random.split_at(16);
    let id = ClientId::from_bits(id.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte)));
    Ok((id, seed.iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte))))
}

fn with_identity<H: Host>(
    host: H,
    config: redis::Config,
    id: ClientId,
    seed: u64,
) -> Result<(Client, Driver<H>), ConnectError> {
    let targets: Vec<_> = config.nodes().iter().map(|node| node.target.clone()).collect();
    let clock = host.clock();
    let machine = redis::Client::new(clock.now(), config, id, seed)?;
    let shared = Shared::new(id, Box::new(move || clock.now()), run::Redis::new(machine));
    let handle = Client::new(shared.clone());
    Ok((handle, Driver::new(host, shared, targets)))
}

/// A client could not be set up. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A setting or a URL is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system gave no random bytes for the client's id.
    #[error("no entropy for the client's id")]
    Entropy(#[source] io::Error),
    /// An etcd cluster has one URL.
    #[cfg(feature = "grpc")]
    #[error(
        "an etcd cluster has one URL with all its members, and none of another kind beside it: etcd://host1,host2,host3"
    )]
    SeveralUrls,
    /// There is no runtime to spawn the driver on.
    #[error("no runtime to spawn the driver on: call this inside one")]
    NoRuntime,
}

impl From<UrlError> for ConnectError {
    fn from(error: UrlError) -> Self {
        Self::Config(error.into())
    }
}
