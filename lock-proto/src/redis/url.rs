//! Where a server is, and how to log in to it: `redis://` URLs.

use alloc::boxed::Box;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

/// One server, and how to log in to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Where it is.
    pub target: Target,
    /// User for `AUTH`; `None` for the default user.
    pub username: Option<Box<str>>,
    /// Password for `AUTH`.
    pub password: Option<Secret>,
    /// Number for `SELECT`.
    pub database: u32,
    /// Name for `CLIENT SETNAME`.
    pub client_name: Option<Box<str>>,
    /// Version of the protocol.
    pub protocol: Protocol,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// A TCP port.
    Tcp {
        /// Name or address, without brackets.
        host: Box<str>,
        /// Port.
        port: u16,
    },
    /// A unix socket.
    Unix {
        /// Path of the socket.
        path: Box<str>,
    },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix { path } => f.write_str(path),
        }
    }
}

/// A password. Its `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(Box<str>);

impl Secret {
    /// A password.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The password in clear.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Version of the Redis protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// RESP2, understood by every server.
    #[default]
    Resp2,
    /// RESP3, by `HELLO 3`.
    Resp3,
}

/// A URL that cannot be used. Its message never shows a password: what stands where a login may stand is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// No scheme.
    #[error("the URL has no scheme: it must start with redis:// or redis+unix://")]
    NoScheme,
    /// A scheme of something else.
    #[error("the scheme `{given}` is not supported: use redis:// or redis+unix://")]
    Scheme {
        /// The scheme.
        given: Box<str>,
    },
    /// TLS was asked for.
    #[error("rediss:// asks for TLS, which is not supported yet: use redis:// over a network or tunnel that you trust")]
    Tls,
    /// A character that no URL may have.
    #[error("the character at byte {at} of the URL must be percent-encoded: only visible ASCII characters are allowed")]
    Character {
        /// Its place, in bytes from the start.
        at: usize,
    },
    /// A percent sign that encodes nothing.
    #[error("the {part} has a percent sign without two hexadecimal digits: write %25 for the sign itself")]
    Escape {
        /// The part of the URL.
        part: &'static str,
    },
    /// What is percent-encoded is no text.
    #[error("the {part} must be UTF-8 without NUL when its percent-encoding is undone")]
    NotText {
        /// The part of the URL.
        part: &'static str,
    },
    /// A login that cannot be told from the rest.
    #[error(
        "in a user or password the characters / ? # @ : [ ] must be percent-encoded, and @ everywhere else but in a socket's path"
    )]
    Login,
    /// A login without a password.
    #[error("a login needs a password: user:password@ or :password@")]
    NoPassword,
    /// No host.
    #[error("the URL names no host: redis://host, redis://host:port")]
    NoHost,
    /// A host that is neither a name nor an address.
    #[error(
        "the host must be a name of letters, digits, `-`, `.` and `_`, an IPv4 address, or an IPv6 address in brackets"
    )]
    Host,
    /// A port out of range. The value is shown only if it can be nothing but a port.
    #[error("the port{} must be a number from 1 to 65535", Given(.given))]
    Port {
        /// The port, if it is a number.
        given: Option<u32>,
    },
    /// No database number.
    #[error("the database `{given}` must be a number from 0 to {MAX_DATABASE}")]
    Database {
        /// What stands in its place.
        given: Box<str>,
    },
    /// A fragment.
    #[error("a URL of a server has no fragment: write %23 for the character # itself")]
    Fragment,
    /// A parameter that does not exist.
    #[error("the parameter `{name}` is not known: {allowed} are allowed")]
    Parameter {
        /// Its name.
        name: Box<str>,
        /// Those that exist.
        allowed: &'static str,
    },
    /// A parameter that occurs twice.
    #[error("the parameter `{name}` is given twice")]
    Twice {
        /// Its name.
        name: &'static str,
    },
    /// A client name that servers refuse.
    #[error("the client_name must have 1 to {MAX_CLIENT_NAME} visible ASCII characters, and no blank")]
    ClientName,
    /// A protocol that does not exist.
    #[error("the protocol `{given}` is not known: resp2 and resp3 are allowed")]
    Protocol {
        /// What was asked for.
        given: Box<str>,
    },
    /// A unix socket on a host.
    #[error(
        "a unix socket has no host and no port: redis+unix:///path/of.sock, with a login user:password@ before the path"
    )]
    UnixHost,
    /// A unix socket without a path.
    #[error("the URL names no unix socket: redis+unix:///path/of.sock")]
    NoPath,
}

/// The greatest database number; servers read it as a signed 32-bit integer.
const MAX_DATABASE: u32 = i32::MAX as u32;
/// The longest client name, in bytes. Servers have no limit of their own.
const MAX_CLIENT_NAME: usize = 256;
/// How much of a value an error shows.
const MAX_SHOWN: usize = 40;
const DEFAULT_PORT: u16 = 6379;

struct Given<'a>(&'a Option<u32>);

impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |value| write!(f, " {value}"))
    }
}

impl Endpoint {
    /// Parses a URL: `redis://[[user]:password@]host[:port][/database][?parameters]`, or
    /// `redis+unix://[[user]:password@]/path[?parameters]` (also `unix://`).
    ///
    /// The port is 6379 and the database 0 unless given. An IPv6 address stands in brackets. Parameters are `client_name`, the name
    /// that `CLIENT LIST` shows; `protocol`, `resp2` (default) or `resp3`; and for a unix socket `db`, its database. Whatever is not
    /// understood is refused: a lock that is not where its owner believes is no lock.
    ///
    /// ```
    /// use lock_proto::redis::Endpoint;
    ///
    /// let endpoint = Endpoint::parse("redis://app:s%40crt@cache.example:6380/2?client_name=billing")?;
    /// assert_eq!(endpoint.target.to_string(), "cache.example:6380");
    /// assert_eq!(endpoint.to_string(), "redis://app:***@cache.example:6380/2?client_name=billing");
    /// # Ok::<(), lock_proto::redis::UrlError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UrlError`] names what is wrong, and what is allowed in its place.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        if let Some(at) = url.bytes().position(|b| !b.is_ascii_graphic()) {
            return Err(UrlError::Character { at });
        }
        let (scheme, rest) = url.split_once("://").ok_or(UrlError::NoScheme)?;
        let unix = match scheme.to_ascii_lowercase().as_str() {
            "redis" => false,
            "redis+unix" | "unix" => true,
            "rediss" | "rediss+unix" => return Err(UrlError::Tls),
            other if other.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) && !other.is_empty() => {
                return Err(UrlError::Scheme { given: shown(other) });
            }
            _ => return Err(UrlError::NoScheme),
        };
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (login, place) =
            authority.rsplit_once('@').map_or((None, authority), |(login, place)| (Some(login), place));
        // A password with a raw `/`, `?` or `#` looks like host and path, and must not be shown as such. The path of a socket is
        // never shown, and may have an `@`.
        let may_be_path = unix && place.is_empty();
        let visible = if may_be_path { rest.split_once('?').map_or("", |(_, query)| query) } else { rest };
        if visible.contains('@') {
            return Err(UrlError::Login);
        }
        let (username, password) = login.map_or(Ok((None, None)), parse_login)?;
        if rest.contains('#') {
            return Err(UrlError::Fragment);
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut endpoint = Self {
            target: if unix { parse_socket(place, path)? } else { parse_host(place, DEFAULT_PORT)? },
            username,
            password,
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
        endpoint.read_parameters(query, unix)?;
        Ok(endpoint)
    }

    fn read_parameters(&mut self, query: &str, unix: bool) -> Result<(), UrlError> {
        let allowed = if unix { "db, client_name and protocol" } else { "client_name and protocol" };
        let (mut name_given, mut protocol_given, mut db_given) = (false, false, false);
        let once = |given: &mut bool, name| {
            if core::mem::replace(given, true) { Err(UrlError::Twice { name }) } else { Ok(()) }
        };
        for parameter in query.split('&').filter(|_| !query.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "client_name" => {
                    once(&mut name_given, "client_name")?;
                    let value = decoded(value, "client_name")?;
                    if !(1..=MAX_CLIENT_NAME).contains(&value.len()) || !value.bytes().all(|b| b.is_ascii_graphic()) {
                        return Err(UrlError::ClientName);
                    }
                    self.client_name = Some(value);
                }
                "protocol" => {
                    once(&mut protocol_given, "protocol")?;
                    self.protocol = match value {
                        "resp2" => Protocol::Resp2,
                        "resp3" => Protocol::Resp3,
                        other => return Err(UrlError::Protocol { given: shown(other) }),
                    };
                }
                "db" if unix => {
                    once(&mut db_given, "db")?;
                    self.database = parse_database(value)?;
                }
                other => return Err(UrlError::Parameter { name: shown(other), allowed }),
            }
        }
        Ok(())
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
        f.write_str(if unix { "redis+unix://" } else { "redis://" })?;
        if self.username.is_some() || self.password.is_some() {
            write!(f, "{}:***@", Encoded(self.username.as_deref().unwrap_or_default(), b""))?;
        }
        match &self.target {
            Target::Tcp { .. } => write!(f, "{}/{}", self.target, self.database)?,
            Target::Unix { path } => write!(f, "{}", Encoded(path, b"/"))?,
        }
        let db = (unix && self.database != 0).then_some(self.database);
        let protocol = match self.protocol {
            Protocol::Resp2 => None,
            Protocol::Resp3 => Some("resp3"),
        };
        let mut mark = '?';
        if let Some(db) = db {
            write!(f, "{mark}db={db}")?;
            mark = '&';
        }
        if let Some(name) = &self.client_name {
            write!(f, "{mark}client_name={}", Encoded(name, b""))?;
            mark = '&';
        }
        if let Some(protocol) = protocol {
            write!(f, "{mark}protocol={protocol}")?;
        }
        Ok(())
    }
}

pub(crate) type Login = (Option<Box<str>>, Option<Secret>);

pub(crate) fn parse_login(login: &str) -> Result<Login, UrlError> {
    let (user, password) = login.split_once(':').ok_or(UrlError::NoPassword)?;
    if password.contains([':', '@', '[', ']']) || user.contains(['@', '[', ']']) {
        return Err(UrlError::Login);
    }
    if user.is_empty() && password.is_empty() {
        return Err(UrlError::NoPassword);
    }
    let user = decoded(user, "user")?;
    let password = decoded(password, "password")?;
    Ok(((!user.is_empty()).then_some(user), Some(Secret(password))))
}

/// A host and a port, `default` if it has none.
pub(crate) fn parse_host(place: &str, default: u16) -> Result<Target, UrlError> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(UrlError::Host)?;
            let address: Ipv6Addr = address.parse().map_err(|_| UrlError::Host)?;
            let port = if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or(UrlError::Host)?) };
            (address.to_string(), port)
        }
        None => {
            let (name, port) = place.split_once(':').map_or((place, None), |(name, port)| (name, Some(port)));
            if port.is_some_and(|port| port.contains(':')) {
                return Err(UrlError::Host);
            }
            if name.is_empty() {
                return Err(UrlError::NoHost);
            }
            if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
                return Err(UrlError::Host);
            }
            // Names are the same in either case, and two nodes must not be one server.
            (name.to_ascii_lowercase(), port)
        }
    };
    let port = match port {
        None => default,
        Some(text) => {
            let number = digits(text).filter(|_| text.len() <= 6);
            match number.and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0) {
                Some(port) => port,
                None => return Err(UrlError::Port { given: number }),
            }
        }
    };
    Ok(Target::Tcp { host: host.into(), port })
}

fn parse_socket(place: &str, path: &str) -> Result<Target, UrlError> {
    if !place.is_empty() {
        return Err(UrlError::UnixHost);
    }
    let path = decoded(path, "path")?;
    // An authority ends at a slash, so a path that is there starts with one.
    if path.len() < 2 { Err(UrlError::NoPath) } else { Ok(Target::Unix { path }) }
}

fn parse_database(text: &str) -> Result<u32, UrlError> {
    digits(text).filter(|number| *number <= MAX_DATABASE).ok_or_else(|| UrlError::Database { given: shown(text) })
}

fn digits(text: &str) -> Option<u32> {
    // `parse` alone would allow a sign.
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Undoes percent-encoding (RFC 3986, section 2.1).
fn decoded(text: &str, part: &'static str) -> Result<Box<str>, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        if b != b'%' {
            bytes.push(b);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(UrlError::Escape { part }) };
        bytes.push((high * 16 + low) as u8);
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text.into()),
        Ok(_) | Err(_) => Err(UrlError::NotText { part }),
    }
}

/// The start of a value, for an error message. It is visible ASCII.
pub(crate) fn shown(text: &str) -> Box<str> {
    text.get(..MAX_SHOWN).unwrap_or(text).into()
}

/// Text with everything percent-encoded but what is plain in every part of a URL, and the characters given.
struct Encoded<'a>(&'a str, &'static [u8]);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for b in self.0.bytes() {
            if b.is_ascii_alphanumeric() || b"-._~".contains(&b) || self.1.contains(&b) {
                write!(f, "{}", char::from(b))?;
            } else {
                write!(f, "%{b:02X}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
