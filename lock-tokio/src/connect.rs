//! Clients whose driver runs on tokio.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::io;
use std::net::UdpSocket;
use std::panic::catch_unwind;

use lock_proto::driver::{self, Client, ConnectError, Settings};
use tokio::runtime::Handle;

use crate::host::Tokio;

/// Returns a client of the servers that a URL names, such as `redis://host`. [`Settings::parse`]
/// has all forms of URLs.
///
/// The client connects with its first request, and tries for as long as that request waits.
/// [`Client::ping`] connects at once and reports what is wrong.
///
/// # Errors
///
/// The URL is wrong, needs a feature that is not turned on, or names certificates that cannot be
/// used; the system has no random numbers, or the caller is not inside a tokio runtime.
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
/// # Errors
///
/// A setting is out of range, certificates cannot be used, TLS is not compiled in, the system has
/// no random numbers, or the caller is not inside a tokio runtime with I/O and timers.
///
/// tokio reports missing I/O or timers only by a panic. This function catches it, but the panic
/// hook runs, and with `panic = "abort"` the process ends.
pub fn connect_with(settings: impl Into<Settings>) -> Result<Client, ConnectError> {
    let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
    if !has_io_and_timers() {
        return Err(ConnectError::IncompleteRuntime);
    }
    let (client, driver) = driver::connect(Tokio::new(), settings)?;
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
