//! `redis://` URLs: address and login of a server.

use alloc::boxed::Box;
use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::parameters::{Parameters, shown_parameters};
use crate::url::{
    Encoded, Login, MAX_CLIENT_NAME, MAX_DATABASE, MAX_SOCKET_PATH, Target, UrlError, decoded, digits, parse_host,
    parse_login, parse_scheme, shown, split_fragment, unsupported_scheme,
};

/// Address and login of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The server's address.
    pub target: Target,
    /// User and password for `AUTH`.
    pub login: Login,
    /// Number for `SELECT`; 0 sends none.
    pub database: u32,
    /// Name for `CLIENT SETNAME`. If the server refuses it, the connection stays.
    pub client_name: Option<Box<str>>,
    /// Version of the protocol.
    pub protocol: Protocol,
}

/// Version of the Redis protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// RESP2, which every server supports.
    #[default]
    Resp2,
    /// RESP3, negotiated by `HELLO 3`.
    Resp3,
}

const DEFAULT_PORT: u16 = 6379;
pub(crate) const SCHEMES: &str = "redis://, rediss://, valkey://, valkeys:// or redis+unix://";

impl Endpoint {
    /// Parses a URL: `redis://[[user]:password@]host[:port][/database][?parameters]` (also
    /// `valkey://`), the same with TLS as `rediss://` (also `valkeys://`), or
    /// `redis+unix://[[user]:password@]/path[?parameters]` (also `unix://`).
    ///
    /// The default port is 6379 and the default database 0. An IPv6 address must be in brackets.
    /// The parameters are `client_name`, the name shown by `CLIENT LIST`; `protocol`, which is
    /// `resp2` (default) or `resp3`; `user`, `password` and `password_file`, see [`Login`]; for a
    /// unix socket `db`, its database; and with TLS `ca`, `cert`, `key` and `server_name`, see
    /// [`Tls`](crate::Tls). The fragment `#insecure` is that of [`Tls`](crate::Tls). Anything else
    /// is rejected, because a lock in the wrong place protects nothing.
    ///
    /// ```
    /// # use lock_proto::redis;
    /// let url = "redis://app:s%40crt@cache.example:6380/2?client_name=billing";
    /// let endpoint = redis::Endpoint::parse(url)?;
    /// assert_eq!(endpoint.target.to_string(), "cache.example:6380");
    /// let shown = "redis://app:***@cache.example:6380/2?client_name=billing";
    /// assert_eq!(endpoint.to_string(), shown);
    /// # Ok::<(), lock_proto::UrlError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`UrlError`] with what is wrong and what is allowed instead.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = parse_scheme(url, SCHEMES)?;
        let (unix, tls) = match scheme.as_str() {
            "redis" | "valkey" => (false, false),
            "rediss" | "valkeys" => (false, true),
            "redis+unix" | "unix" => (true, false),
            "rediss+unix" => return Err(UrlError::TlsUnix),
            other => return Err(unsupported_scheme(other, SCHEMES)),
        };
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (login, place) =
            authority.rsplit_once('@').map_or((None, authority), |(login, place)| (Some(login), place));
        // A password with a raw `/`, `?` or `#` looks like host and path. It must not show in the
        // error.
        let may_be_path = unix && place.is_empty();
        let visible = if may_be_path { rest.split_once('?').map_or("", |(_, query)| query) } else { rest };
        if visible.contains('@') {
            return Err(UrlError::Login);
        }
        if place.contains(',') && !unix {
            return Err(UrlError::SeveralHosts);
        }
        let before_host = login.map(parse_login).transpose()?.unwrap_or_default();
        let (rest, insecure) = split_fragment(rest)?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut endpoint = Self {
            target: if unix {
                parse_socket(place, path)?
            } else {
                parse_host(place, DEFAULT_PORT, "redis://host, redis://host:port")?
            },
            login: Login::default(),
            database: 0,
            client_name: None,
            protocol: Protocol::default(),
        };
        if !unix {
            endpoint.database = match path.strip_prefix('/') {
                None | Some("") => 0,
                Some(text) => parse_database(text)?,
            };
        }
        let parameters = endpoint.read_parameters(query, unix, tls)?;
        if let Some(tls) = parameters.tls(tls, insecure, "rediss:// or valkeys://")? {
            endpoint.target = endpoint.target.with_tls(tls);
        }
        endpoint.login = parameters.login(before_host)?;
        Ok(endpoint)
    }

    fn read_parameters(&mut self, query: &str, unix: bool, tls: bool) -> Result<Parameters, UrlError> {
        let allowed = match (unix, tls) {
            (true, _) => "user, password, password_file, db, client_name and protocol",
            (false, false) => "user, password, password_file, client_name and protocol",
            (false, true) => "user, password, password_file, ca, cert, key, server_name, client_name and protocol",
        };
        let mut parameters = Parameters::default();
        let mut given = Vec::new();
        for parameter in query.split('&').filter(|_| !query.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let known = ["client_name", "protocol", "db"].into_iter().find(|known| *known == name);
            if let Some(name) = known.filter(|name| given.contains(name)) {
                return Err(UrlError::Twice { name });
            }
            given.extend(known);
            match name {
                "client_name" => {
                    let value = decoded(value, "client_name")?;
                    if !(1..=MAX_CLIENT_NAME).contains(&value.len()) || !value.bytes().all(|b| b.is_ascii_graphic()) {
                        return Err(UrlError::ClientName);
                    }
                    self.client_name = Some(value);
                }
                "protocol" => {
                    self.protocol = match value {
                        "resp2" => Protocol::Resp2,
                        "resp3" => Protocol::Resp3,
                        other => return Err(UrlError::Protocol { given: shown(other) }),
                    };
                }
                "db" if unix => {
                    self.database = parse_database(value)?;
                }
                other if parameters.read(other, value)? => {}
                other => return Err(parameters.unknown(other, allowed)),
            }
        }
        Ok(parameters)
    }
}

impl FromStr for Endpoint {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        Self::parse(url)
    }
}

/// The URL, with `***` for the password.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unix = matches!(self.target, Target::Unix { .. });
        f.write_str(scheme(&self.target))?;
        if self.login.password.is_some() {
            write!(f, "{}:***@", Encoded(self.login.username.as_deref().unwrap_or_default(), b""))?;
        }
        match &self.target {
            Target::Tcp { .. } | Target::Tls { .. } => write!(f, "{}/{}", self.target, self.database)?,
            Target::Unix { path } => write!(f, "{}", Encoded(path, b"/"))?,
        }
        let database = (unix && self.database != 0).then(|| self.database.to_string());
        let name = self.client_name.as_deref().map(|name| Encoded(name, b"").to_string());
        let protocol = (self.protocol == Protocol::Resp3).then(|| "resp3".into());
        let tls = if let Target::Tls { tls, .. } = &self.target { Some(tls) } else { None };
        let shared = shown_parameters(&self.login, tls).into_iter();
        let shared = shared.map(|(name, value)| (name, Encoded(value, b"/").to_string()));
        let parameters = [("db", database), ("client_name", name), ("protocol", protocol)];
        let given = parameters.into_iter().filter_map(|(name, value)| Some((name, value?))).chain(shared);
        for (i, (name, value)) in given.enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { '?' } else { '&' })?;
        }
        f.write_str(if tls.is_some_and(|tls| tls.insecure) { "#insecure" } else { "" })
    }
}

/// Returns the scheme of a server's URL, for messages.
#[must_use]
pub const fn scheme(target: &Target) -> &'static str {
    match target {
        Target::Tcp { .. } => "redis://",
        Target::Tls { .. } => "rediss://",
        Target::Unix { .. } => "redis+unix://",
    }
}

fn parse_socket(place: &str, path: &str) -> Result<Target, UrlError> {
    if !place.is_empty() {
        return Err(UrlError::UnixHost);
    }
    let path = decoded(path, "path")?;
    match path.len() {
        // The authority ends at a slash, so a non-empty path starts with one.
        0..2 => Err(UrlError::NoPath),
        2..=MAX_SOCKET_PATH => Ok(Target::Unix { path }),
        len => Err(UrlError::SocketPath { len }),
    }
}

fn parse_database(text: &str) -> Result<u32, UrlError> {
    digits(text).filter(|number| *number <= MAX_DATABASE).ok_or_else(|| UrlError::Database { given: shown(text) })
}

#[cfg(test)]
mod tests;
