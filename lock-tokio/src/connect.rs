//! Clients whose driver runs on tokio: on a thread of its own, or as a task.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::io;
use std::net::UdpSocket;
use std::panic::catch_unwind;

use lock_driver::{Client, ConnectError, Settings, connect_on_thread, start_or_error};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::host::Tokio;

/// Returns a client of the servers that a URL names, such as `redis://host`. [`Settings::parse`]
/// has all forms of URLs.
///
/// Its driver runs on a thread of its own, so this may be called outside of any runtime. The client
/// connects with its first request, and tries for as long as that request waits.
/// [`Client::ping`] connects at once and reports what is wrong.
///
/// # Errors
///
/// The URL is wrong, needs a feature that is not turned on, or names certificates that cannot be
/// used; the system has no random numbers, or no thread or sockets for the driver.
pub fn connect(url: &str) -> Result<Client, ConnectError> {
    connect_quorum([url])
}

/// Returns a client of a quorum: an odd number of independent Redis servers, three or more. One
/// URL means the single server of [`connect`].
///
/// # Errors
///
/// As [`connect`]; also if the number is even, or two URLs name the same server.
pub fn connect_quorum<I>(urls: I) -> Result<Client, ConnectError>
where
    I: IntoIterator<Item: AsRef<str>>,
{
    connect_with(Settings::parse(urls)?)
}

/// Returns a client with the given settings: [`Settings`], or the `Config` of a store, such as
/// `redis::Config`.
///
/// Its driver runs on a thread of its own, with a tokio runtime that nothing else uses. The thread
/// ends soon after the last handle of the client is dropped.
///
/// # Errors
///
/// A setting is out of range, certificates cannot be used, TLS is not compiled in, or the system
/// has no random numbers, no thread or no sockets for the driver.
pub fn connect_with(settings: impl Into<Settings>) -> Result<Client, ConnectError> {
    connect_on_thread(Tokio::new(), settings, own_runtime()?)
}

/// Returns what runs a driver on its thread.
pub(crate) fn own_runtime<F: Future<Output = ()>>() -> Result<impl FnOnce(F) + Send + 'static, ConnectError> {
    // With the feature `signal`, tokio reports a lack of descriptors by a panic.
    let runtime = start_or_error(|| Builder::new_current_thread().enable_all().build()).flatten();
    let own = OwnRuntime(Some(runtime.map_err(ConnectError::Thread)?));
    Ok(move |driver| own.0.as_ref().map_or((), |runtime| runtime.block_on(driver)))
}

/// The runtime of a driver's thread. Its drop does not wait for a name server or a file system that
/// hangs, and is allowed in async code: an error of `connect` drops it there.
struct OwnRuntime(Option<Runtime>);

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// As [`connect_with`], with the driver as a task of the current runtime instead of a thread.
///
/// This saves a thread, and two wake-ups of threads for each request: up to a third of the time of a
/// cycle, as `docs/benchmarks.md` of the repository shows. In return every lock depends on that
/// runtime. **A task that computes or blocks for long can stop all renewals, although other
/// workers are idle**: tokio runs a task that was woken last on the same worker next, which no other
/// worker takes over, and a busy worker may be the one that waits for sockets and timers. Locks are
/// then lost, and a loss or a timeout is noticed late. [`Guard::is_held`](crate::Guard::is_held)
/// stays right. Use it only if no task of the runtime runs longer between two awaits than a fraction
/// of the TTL. If the runtime ends, all locks are lost at once.
///
/// # Errors
///
/// As [`connect_with`], but no thread is needed; also if the caller is not inside a tokio runtime
/// with I/O and timers.
///
/// tokio reports missing I/O or timers only by a panic. This function catches it, but the panic
/// hook runs, and with `panic = "abort"` the process ends.
pub fn connect_on_runtime(settings: impl Into<Settings>) -> Result<Client, ConnectError> {
    let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
    if !has_io_and_timers() {
        return Err(ConnectError::IncompleteRuntime);
    }
    let (client, driver) = lock_driver::connect(Tokio::new(), settings)?;
    // The driver ends once the last handle is dropped.
    drop(runtime.spawn(driver));
    Ok(client)
}

/// Tries both: tokio has no query for them, and panics if they are missing. Better here than in the
/// driver's task.
fn has_io_and_timers() -> bool {
    let register = || -> io::Result<()> {
        drop(tokio::time::sleep(Duration::ZERO));
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        drop(tokio::net::UdpSocket::from_std(socket)?);
        Ok(())
    };
    // An error of the system, such as too many open files, says nothing about the runtime.
    catch_unwind(register).is_ok()
}
