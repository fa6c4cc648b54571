//! Clients whose driver runs on smol.

use lock_proto::driver::{self, Client, ConnectError, Settings};

use crate::host::Smol;

/// Returns a client of one Redis server, `redis://user:password@host:port/database` or
/// `redis+unix:///path/to/socket`, or of an etcd cluster,
/// `etcd://user:password@host:port,host:port`. With feature `tls` also `rediss://` and `etcds://`,
/// see [`Tls`](lock_proto::Tls) for their parameters.
///
/// The driver connects in the background for as long as it takes. If a server is down, the first
/// acquisition reports it.
///
/// # Errors
///
/// The URL is wrong.
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

/// Returns a client with the given settings: a `redis::Config` or an `etcd::Config`.
///
/// # Errors
///
/// A setting is out of range.
pub fn connect_with(settings: impl Into<Settings>) -> Result<Client, ConnectError> {
    let (client, driver) = driver::connect(Smol::new(), settings)?;
    // The driver ends once the last handle is dropped.
    smol::spawn(driver).detach();
    Ok(client)
}
