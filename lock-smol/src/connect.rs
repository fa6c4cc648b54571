//! Clients whose driver runs on smol: on a thread of its own, or as a task.

use core::pin::Pin;
use core::task::{Context, Waker};

use lock_driver::{Client, ConnectError, Settings, connect_on_thread, start_or_error};
use lock_proto::DEFAULT_TTL;
use smol::Timer;

use crate::host::Smol;

/// Returns a client of the servers that a URL names, such as `redis://host`. [`Settings::parse`]
/// has all forms of URLs.
///
/// Its driver runs on a thread of its own. The client connects with its first request, and tries for
/// as long as that request waits. [`Client::ping`] connects at once and reports what is wrong.
///
/// # Errors
///
/// The URL is wrong, needs a feature that is not turned on, or names certificates that cannot be
/// used; or the system has no random numbers, or no thread or sockets for the driver.
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
/// Its driver runs on a thread of its own, which ends soon after the last handle of the client is
/// dropped. It needs none of the executor's threads.
///
/// # Errors
///
/// A setting is out of range, certificates cannot be used, TLS is not compiled in, or the system
/// has no random numbers, or no thread or sockets for the driver.
///
/// smol reports missing threads and descriptors only by a panic. This function catches it, but the
/// panic hook runs, and with `panic = "abort"` the process ends.
pub fn connect_with(settings: impl Into<Settings>) -> Result<Client, ConnectError> {
    start_reactor()?;
    connect_on_thread(Smol::new(), settings, smol::block_on)
}

/// As [`connect_with`], with the driver as a task of smol's global executor instead of a thread.
///
/// This saves a thread, and wake-ups of threads. In return every lock depends on that executor. It
/// has one thread unless `SMOL_THREADS` is set: **a task on it that computes or blocks for long
/// stops all renewals**. Locks are then lost, and a loss or a timeout is noticed late.
/// [`Guard::is_held`](crate::Guard::is_held) stays right. Use it only if no task of the executor runs
/// longer between two awaits than a fraction of the TTL. For an executor of your own, spawn a
/// [`Driver`](lock_driver::Driver).
///
/// # Errors
///
/// As [`connect_with`]. The first call starts the executor's threads.
pub fn connect_on_runtime(settings: impl Into<Settings>) -> Result<Client, ConnectError> {
    start_reactor()?;
    let (client, driver) = lock_driver::connect(Smol::new(), settings)?;
    // The driver ends once the last handle is dropped.
    start_or_error(|| smol::spawn(driver).detach()).map_err(ConnectError::Thread)?;
    Ok(client)
}

/// Starts the reactor and its thread, by a timer that is dropped before it fires. Otherwise the
/// driver starts them, where a lack of threads or descriptors panics, also in `smol::block_on` while
/// it unwinds, which ends the process.
pub(crate) fn start_reactor() -> Result<(), ConnectError> {
    let start = || Pin::new(&mut Timer::after(DEFAULT_TTL)).poll(&mut Context::from_waker(Waker::noop())).is_ready();
    start_or_error(start).map(drop).map_err(ConnectError::Thread)
}
