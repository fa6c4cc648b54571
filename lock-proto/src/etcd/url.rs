//! `etcd://` URLs: the members of a cluster, and the login.

use alloc::boxed::Box;
use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::parameters::Parameters;
use crate::url::{Login, Target, UrlError, parse_host, parse_login, parse_scheme, shown, split_fragment};

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

pub(super) type Parsed = (Vec<Endpoint>, Login);

/// Parses `etcd://[user:password@]host[:port][,host[:port]…]`, also with `http`, as etcd itself
/// writes its URLs. With TLS the scheme is `etcds` or `https`.
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
    let no_user = |error| if error == UrlError::NoPassword { UrlError::NoUser } else { error };
    let before_hosts = login.map(parse_login).transpose().map_err(no_user)?.unwrap_or_default();
    let (rest, insecure) = split_fragment(rest)?;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    // First, because a password with a raw `?` would be parsed as parameters.
    let mut endpoints = places.split(',').map(Endpoint::parse).collect::<Result<Vec<_>, _>>()?;
    if !matches!(path, "" | "/") {
        return Err(UrlError::Path);
    }
    let allowed = match tls {
        true => "user, password, password_file, ca, cert, key and server_name",
        false => "user, password and password_file",
    };
    let parameters = Parameters::read_all(query, allowed)?;
    if let Some(tls) = parameters.tls(tls, insecure, "etcds:// or https://")? {
        for Endpoint { target, .. } in &mut endpoints {
            *target = target.clone().with_tls(tls.clone());
        }
    }
    let login = parameters.login(before_hosts).map_err(no_user)?;
    let empty = login.password.as_ref().is_some_and(|password| password.expose().is_empty());
    if empty || (login.username.is_none() && login != Login::default()) {
        return Err(UrlError::NoUser);
    }
    Ok((endpoints, login))
}

#[cfg(test)]
mod tests;
