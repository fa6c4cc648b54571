//! Where an etcd cluster is, and how to log in to it: `etcd://` URLs.

use alloc::boxed::Box;
use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::redis::{Secret, Target, UrlError as PartError, parse_host, parse_login, shown};

const DEFAULT_PORT: u16 = 2379;

/// One member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Endpoint {
    /// Where it is: a TCP port.
    pub target: Target,
    /// The same as text: what goes into `:authority` of HTTP/2.
    pub authority: Box<str>,
}

impl Endpoint {
    /// Parses `host` or `host:port`. The port is 2379 unless given; an IPv6 address stands in brackets.
    ///
    /// ```
    /// use lock_proto::etcd::Endpoint;
    ///
    /// assert_eq!(&*Endpoint::parse("etcd-1.example")?.authority, "etcd-1.example:2379");
    /// # Ok::<(), lock_proto::etcd::UrlError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UrlError`] names what is wrong, and what is allowed in its place.
    pub fn parse(place: &str) -> Result<Self, UrlError> {
        let target = parse_host(place, DEFAULT_PORT).map_err(UrlError::of_part)?;
        let authority = target.to_string().into();
        Ok(Self { target, authority })
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

/// A URL that cannot be used. Its message never shows a password: what stands where a login may stand is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// No scheme.
    #[error("the URL has no scheme: it must start with etcd://")]
    NoScheme,
    /// A scheme of something else.
    #[error("the scheme `{given}` is not supported: use etcd://")]
    Scheme {
        /// The scheme.
        given: Box<str>,
    },
    /// TLS was asked for.
    #[error("`{given}://` asks for TLS; TLS is not supported yet: use etcd:// over a network or tunnel that you trust")]
    Tls {
        /// The scheme.
        given: Box<str>,
    },
    /// A login without a user or without a password.
    #[error("a login needs a user and a password: etcd://user:password@host")]
    Login,
    /// No host, or none between two commas.
    #[error("the URL names no host, or none beside a comma: etcd://host, etcd://host1:2379,host2:2379")]
    NoHost,
    /// A path.
    #[error("the URL of a cluster has no path: a prefix for all names is a setting, `Config::prefix`")]
    Path,
    /// A query.
    #[error("the URL of a cluster has no parameters (`?…`): they are settings of `Config`")]
    Query,
    /// A part that is written as in any other URL.
    #[error(transparent)]
    Part(PartError),
}

impl UrlError {
    /// An error of the parts that both kinds of URLs have, with an example of the right kind.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all the others say the same for both")]
    fn of_part(error: PartError) -> Self {
        match error {
            PartError::NoHost => Self::NoHost,
            PartError::NoPassword => Self::Login,
            other => Self::Part(other),
        }
    }
}

/// What a URL names: the members, and the login.
pub(super) type Parsed = (Vec<Endpoint>, Option<(Box<str>, Secret)>);

/// Parses `etcd://[user:password@]host[:port][,host[:port]…]`.
pub(super) fn parse(url: &str) -> Result<Parsed, UrlError> {
    if let Some(at) = url.bytes().position(|b| !b.is_ascii_graphic()) {
        return Err(UrlError::Part(PartError::Character { at }));
    }
    let (scheme, rest) = url.split_once("://").ok_or(UrlError::NoScheme)?;
    let scheme = scheme.to_ascii_lowercase();
    match scheme.as_str() {
        "etcd" => {}
        "etcds" | "https" => return Err(UrlError::Tls { given: scheme.into() }),
        other if other.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) && !other.is_empty() => {
            return Err(UrlError::Scheme { given: shown(other) });
        }
        _ => return Err(UrlError::NoScheme),
    }
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (login, places) = authority.rsplit_once('@').map_or((None, authority), |(login, places)| (Some(login), places));
    // A password with a raw `/`, `?` or `#` looks like hosts and a path.
    if rest.contains('@') {
        return Err(UrlError::Part(PartError::Login));
    }
    let user = match login.map(parse_login).transpose().map_err(UrlError::of_part)? {
        Some((Some(user), Some(password))) if !password.expose().is_empty() => Some((user, password)),
        Some(_) => return Err(UrlError::Login),
        None => None,
    };
    match rest {
        "" | "/" => {}
        rest if rest.contains('#') => return Err(UrlError::Part(PartError::Fragment)),
        rest if rest.contains('?') => return Err(UrlError::Query),
        _ => return Err(UrlError::Path),
    }
    let endpoints = places.split(',').map(Endpoint::parse).collect::<Result<_, _>>()?;
    Ok((endpoints, user))
}

#[cfg(test)]
mod tests;
