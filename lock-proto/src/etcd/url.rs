//! `etcd://` URLs: the members of a cluster, and the login.

use alloc::boxed::Box;
use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::tls;
use crate::url::{Secret, Target, UrlError, bad_fragment, parse_host, parse_login, parse_scheme, shown};

const DEFAULT_PORT: u16 = 2379;
const SCHEMES: &str = "etcd://, etcds://, http:// or https://";

/// One member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Endpoint {
    /// The TCP address.
    pub target: Target,
    /// The address as text, for `:authority` in HTTP/2.
    pub authority: Box<str>,
}

impl Endpoint {
    /// Parses `host` or `host:port`. The default port is 2379; IPv6 addresses need brackets.
    ///
    /// ```
    /// use lock_proto::etcd::Endpoint;
    ///
    /// assert_eq!(&*Endpoint::parse("etcd-1.example")?.authority, "etcd-1.example:2379");
    /// # Ok::<(), lock_proto::UrlError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UrlError`] names what is wrong and what is allowed instead.
    pub fn parse(place: &str) -> Result<Self, UrlError> {
        let target = parse_host(place, DEFAULT_PORT, "etcd://host, etcd://host1:2379,host2:2379")?;
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

pub(super) type Parsed = (Vec<Endpoint>, Option<(Box<str>, Secret)>);

/// Parses `etcd://[user:password@]host[:port][,host[:port]…]`, also with `http`, as etcd itself
/// writes its URLs. With TLS the scheme is `etcds` or `https`, and there may be parameters.
pub(super) fn parse(url: &str) -> Result<Parsed, UrlError> {
    let (scheme, rest) = parse_scheme(url, SCHEMES)?;
    let tls = match scheme.as_str() {
        "etcd" | "http" => false,
        "etcds" | "https" => true,
        other => return Err(UrlError::Scheme { given: shown(other), expected: SCHEMES }),
    };
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (login, places) = authority.rsplit_once('@').map_or((None, authority), |(login, places)| (Some(login), places));
    // A password with a raw `/`, `?` or `#` would be parsed as hosts and a path.
    if rest.contains('@') {
        return Err(UrlError::Login);
    }
    let user = match login.map(parse_login) {
        Some(Ok((Some(user), Some(password)))) if !password.expose().is_empty() => Some((user, password)),
        Some(Ok(_) | Err(UrlError::NoPassword)) => return Err(UrlError::NoUser),
        Some(Err(error)) => return Err(error),
        None => None,
    };
    if rest.contains('#') {
        return Err(bad_fragment(rest));
    }
    let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
    let tls = match (tls, query) {
        (true, query) => Some(tls::Parameters::read_all(query.unwrap_or_default(), "ca, cert, key and server_name")?),
        (false, None) => None,
        (false, Some(_)) => return Err(UrlError::Query),
    };
    if !matches!(path, "" | "/") {
        return Err(UrlError::Path);
    }
    let endpoint = |place| {
        let mut endpoint = Endpoint::parse(place)?;
        if let Some(tls) = &tls {
            endpoint.target = endpoint.target.with_tls(tls.clone());
        }
        Ok(endpoint)
    };
    let endpoints = places.split(',').map(endpoint).collect::<Result<_, _>>()?;
    Ok((endpoints, user))
}

#[cfg(test)]
mod tests;
