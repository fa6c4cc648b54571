//! Clients whose driver runs on smol.

use lock_proto::driver::{self, Client, ConnectError, Settings};

use crate::host::Smol;

/// Returns a client of the servers that a URL names, such as `redis://host`. [`Settings::parse`]
/// has all forms of URLs.
///
/// The client connects with its first request, and tries for as long as that request waits.
/// [`Client::ping`] connects at once and reports what is wrong.
///
/// # Errors
///
/// The URL is wrong, needs a feature that is not turned on, or names certificates that cannot be
/// used; or the system has no random numbers.
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
/// A setting is out of range, certificates cannot be used, TLS is not compiled in, or the system
/// has no random numbers.
pub fn connect_with(settings: impl Into<Settings>) -> Result<Client, ConnectError> {
    let (client, driver) = driver::connect(Smol::new(), settings)?;
    // The driver ends once the last handle is dropped.
    smol::spawn(driver).detach();
    Ok(client)
}
