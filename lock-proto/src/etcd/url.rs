//! `etcd://` URLs: the members of a cluster, and the login.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::cluster_url::{self, Grammar};
use crate::tls::Tls;
use crate::url::{Login, Target, UrlError, parse_host};

const DEFAULT_PORT: u16 = 2379;
const GRAMMAR: Grammar = Grammar {
    schemes: [&["etcd", "http"], &["etcds", "https"]],
    expected: "etcd://, etcds://, http:// or https://",
    with_tls: "etcds:// or https://",
    allowed: ["user, password and password_file", "user, password, password_file, ca, cert, key and server_name"],
};

/// One member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Endpoint {
    /// The TCP address.
    pub target: Target,
    /// The address as text, for `:authority` in HTTP/2.
    pub authority: Box<str>,
    /// See [`with_priority`](Self::with_priority).
    pub priority: u16,
    /// See [`with_weight`](Self::with_weight).
    pub weight: u16,
}

impl Endpoint {
    /// Parses `host` or `host:port`. The default port is 2379; IPv6 addresses need brackets.
    ///
    /// ```
    /// # use lock_proto::etcd;
    /// assert_eq!(&*etcd::Endpoint::parse("etcd-1.example")?.authority, "etcd-1.example:2379");
    /// # Ok::<(), lock_proto::UrlError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UrlError`] names what is wrong and what is allowed instead.
    pub fn parse(place: &str) -> Result<Self, UrlError> {
        let target = parse_host(place, DEFAULT_PORT, "etcd://host, etcd://host1:2379,host2:2379")?;
        let authority = target.to_string().into();
        Ok(Self { target, authority, priority: 0, weight: 0 })
    }

    /// Creates the endpoint of a DNS SRV record (RFC 2782). etcd's records are named
    /// `_etcd-client._tcp.DOMAIN`, and with TLS `_etcd-client-ssl._tcp.DOMAIN`. The lookup is up to
    /// the application's resolver.
    ///
    /// ```
    /// # use lock_proto::etcd;
    /// // Priority, weight, port and target, as the resolver returns them.
    /// let records = [(0, 2, 2379, "etcd-1.example."), (0, 1, 2379, "etcd-2.example."), (1, 0, 2379, "far.example.")];
    /// let endpoint = |(priority, weight, port, target)| etcd::Endpoint::srv(priority, weight, port, target);
    /// let config = etcd::Config::new(records.into_iter().map(endpoint).collect::<Result<Vec<_>, _>>()?);
    /// assert_eq!(config.endpoints()[0].to_string(), "etcd-1.example:2379");
    /// # Ok::<(), lock_proto::UrlError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UrlError`] if the target is not a host name. A target of `.` means that there is no service.
    pub fn srv(priority: u16, weight: u16, port: u16, target: &str) -> Result<Self, UrlError> {
        let host = target.strip_suffix('.').unwrap_or(target);
        Ok(Self::parse(&format!("{host}:{port}"))?.with_priority(priority).with_weight(weight))
    }

    /// Sets the priority: endpoints with a higher number are only tried when all with a lower one
    /// have failed, for example members in another zone. A client goes back to a lower number when
    /// its connection ends or is idle. Default 0.
    #[must_use]
    pub const fn with_priority(mut self, priority: u16) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the weight: the first connection leads to one of the endpoints of the lowest priority
    /// number, at random, with a probability proportional to the weight. If all are 0, which is the
    /// default, all are equal.
    #[must_use]
    pub const fn with_weight(mut self, weight: u16) -> Self {
        self.weight = weight;
        self
    }

    /// Connects with TLS.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self { target: self.target.with_tls(tls), ..self }
    }
}

impl FromStr for Endpoint {
    type Err = UrlError;

    fn from_str(place: &str) -> Result<Self, UrlError> {
        Self::parse(place)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority)
    }
}

pub(super) type ParsedUrl = (Vec<Endpoint>, Login);

/// Parses `etcd://[user:password@]host[:port][,host[:port]…]`, also with `http`, as etcd itself
/// writes its URLs. With TLS the scheme is `etcds` or `https`.
pub(super) fn parse(url: &str) -> Result<ParsedUrl, UrlError> {
    let path = |text: &str| if matches!(text, "" | "/") { Ok(()) } else { Err(UrlError::Path) };
    cluster_url::parse(url, &GRAMMAR, Endpoint::parse, Endpoint::with_tls, path, |_, _| Ok(false))
}

#[cfg(test)]
mod tests;
