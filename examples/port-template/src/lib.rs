//! A port of lock-proto's driver to start from: it works, on smol's local executor.
//!
//! Replace smol by your runtime, in this order: `connect` and `sleep`, `resolve`, `MyRuntime`. The
//! conformance suite in `tests` stays as it is, but for the four functions of `Runtime`.
//!
//! Nothing is `Send`. If your runtime moves tasks between threads, add `+ Send` to the two types
//! below; the compiler says so in `spawn` if you forget.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use lock_driver::{Address, BootClock, Client, ConnectError, Host, Settings};
use smol::io::{AsyncRead, AsyncWrite};
use smol::net::unix::UnixStream;
use smol::net::{TcpStream, resolve};
use smol::{LocalExecutor, Timer};

/// A connection of any kind. With tokio's traits, wrap it by `tokio_util::compat`.
pub trait Socket: AsyncRead + AsyncWrite {}
impl<S: AsyncRead + AsyncWrite> Socket for S {}

/// `Pin` makes it `Unpin`. Add `+ Send` here ...
pub type Stream = Pin<Box<dyn Socket>>;
/// ... and here if tasks move between threads.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// What the driver needs of the runtime.
#[derive(Default)]
pub struct MyHost(BootClock);

impl Host for MyHost {
    type Clock = BootClock;
    type Stream = Stream;
    type Resolve = BoxFuture<io::Result<Vec<SocketAddr>>>;
    type Connect = BoxFuture<io::Result<Stream>>;
    type Sleep = BoxFuture<()>;

    fn clock(&self) -> BootClock {
        self.0
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolve {
        let host = host.to_owned();
        Box::pin(async move { resolve((host, port)).await })
    }

    fn connect(&self, address: &Address) -> Self::Connect {
        let address = address.clone();
        Box::pin(async move {
            match address {
                Address::Tcp(address) => {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Ok(Box::pin(stream) as Stream)
                }
                Address::Unix(path) => Ok(Box::pin(UnixStream::connect(&*path).await?) as Stream),
                _ => Err(io::ErrorKind::Unsupported.into()),
            }
        })
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        Box::pin(async move {
            Timer::after(time).await;
        })
    }
}

/// The runtime. Dropping it drops its tasks.
#[derive(Default)]
pub struct MyRuntime(LocalExecutor<'static>);

impl MyRuntime {
    /// Runs a future, and the tasks meanwhile.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        smol::block_on(self.0.run(future))
    }

    /// Starts a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.spawn(task).detach();
    }

    /// A client whose driver runs here.
    ///
    /// # Errors
    ///
    /// The settings are out of range.
    pub fn connect(&self, settings: impl Into<Settings>) -> Result<Client, ConnectError> {
        let (client, driver) = lock_driver::connect(MyHost::default(), settings)?;
        self.spawn(driver);
        Ok(client)
    }
}
