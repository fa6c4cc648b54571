//! The settings of a client of whichever back end, so that an adapter need not know them apart.

use alloc::vec::Vec;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::connect::ConnectError;
use super::handle::Client;
use super::host::Host;
#[cfg(feature = "grpc")]
use crate::etcd;
use crate::redis::{self, Endpoint};

/// The settings of a client: of Redis or of etcd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "settings do nothing until they are given to `connect`"]
pub enum Settings {
    /// One Redis server, or a quorum of them.
    Redis(redis::Config),
    /// An etcd cluster.
    #[cfg(feature = "grpc")]
    Etcd(etcd::Config),
}

impl Settings {
    /// The default settings for the servers that the URLs name: `redis://…` once or an odd number of times, or `etcd://…` once.
    ///
    /// # Errors
    ///
    /// A URL is wrong, or they do not go together.
    pub fn parse<I>(urls: I) -> Result<Self, ConnectError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let urls: Vec<_> = urls.into_iter().collect();
        #[cfg(feature = "grpc")]
        if urls.iter().any(|url| is_etcd(url.as_ref())) {
            let [url] = &*urls else { return Err(ConnectError::SeveralUrls) };
            return Ok(Self::Etcd(etcd::Config::parse(url.as_ref())?));
        }
        let nodes = urls.iter().map(|url| Endpoint::parse(url.as_ref())).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::Redis(redis::Config::new(nodes)))
    }
}

/// Also if it asks for TLS: etcd's own message says more about that.
#[cfg(feature = "grpc")]
fn is_etcd(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.eq_ignore_ascii_case("etcd") || scheme.eq_ignore_ascii_case("etcds")
}

impl From<redis::Config> for Settings {
    fn from(config: redis::Config) -> Self {
        Self::Redis(config)
    }
}

#[cfg(feature = "grpc")]
impl From<etcd::Config> for Settings {
    fn from(config: etcd::Config) -> Self {
        Self::Etcd(config)
    }
}

/// The driver of a client of whichever back end: see [`connect`].
#[must_use = "without its driver being polled, no lock is taken, renewed or given back"]
pub struct AnyDriver<H: Host>(Kind<H>);

enum Kind<H: Host> {
    Redis(super::Driver<H>),
    #[cfg(feature = "grpc")]
    Etcd(super::etcd::Driver<H>),
}

// As the drivers are.
impl<H: Host> Unpin for AnyDriver<H> {}

impl<H: Host> Future for AnyDriver<H> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Kind::Redis(driver) => Pin::new(driver).poll(cx),
            #[cfg(feature = "grpc")]
            Kind::Etcd(driver) => Pin::new(driver).poll(cx),
        }
    }
}

impl<H: Host> fmt::Debug for AnyDriver<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Redis(driver) => driver.fmt(f),
            #[cfg(feature = "grpc")]
            Kind::Etcd(driver) => driver.fmt(f),
        }
    }
}

/// A client with these settings, and the driver that does its work, to be spawned: [`client`](super::client) or
/// `etcd::client`, whichever it takes.
///
/// # Errors
///
/// The settings are out of range, or the system has no entropy.
pub fn connect<H: Host>(host: H, settings: impl Into<Settings>) -> Result<(Client, AnyDriver<H>), ConnectError> {
    match settings.into() {
        Settings::Redis(config) => {
            let (client, driver) = super::client(host, config)?;
            Ok((client, AnyDriver(Kind::Redis(driver))))
        }
        #[cfg(feature = "grpc")]
        Settings::Etcd(config) => {
            let (client, driver) = super::etcd::client(host, config)?;
            Ok((client, AnyDriver(Kind::Etcd(driver))))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use alloc::string::ToString as _;

    use super::*;

    #[test]
    fn the_scheme_tells_the_back_end() {
        let Settings::Redis(config) = Settings::parse(["redis://a", "redis://b", "redis://c"]).unwrap() else {
            panic!("no Redis")
        };
        assert!(config.is_quorum());
        #[cfg(feature = "grpc")]
        {
            let Settings::Etcd(config) = Settings::parse(["etcd://a,b:1"]).unwrap() else { panic!("no etcd") };
            assert_eq!(config.endpoints().len(), 2);
            for (urls, word) in [
                (&["etcd://a", "etcd://b"][..], "one URL"),
                (&["redis://a", "etcd://b"], "one URL"),
                (&["etcds://a"], "TLS"),
                (&["http://a"], "http"),
            ] {
                let error = Settings::parse(urls).unwrap_err().to_string();
                assert!(error.contains(word), "{error}");
            }
        }
    }
}
