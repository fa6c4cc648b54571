//! URL parts that all stores share: hosts, logins, percent-encoding, and errors.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv6Addr;

use crate::fault::Fault;
use crate::tls::{Tls, TlsFault};

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A TCP port.
    Tcp {
        /// Host name or IP address, without brackets.
        host: Box<str>,
        /// Port.
        port: u16,
    },
    /// A TCP port where the server speaks TLS. Never connect to it without: see [`Tls`].
    // N4
    Tls {
        /// Host name or IP address, without brackets.
        host: Box<str>,
        /// Port.
        port: u16,
        /// Which certificates to trust and to show.
        tls: Tls,
    },
    /// A unix socket.
    Unix {
        /// Path of the socket.
        path: Box<str>,
    },
}

impl Target {
    /// Returns the fault of a connection that could not be opened in time.
    pub(crate) const fn fault_of_timeout(&self) -> Fault {
        match self {
            Self::Tls { .. } => Fault::Tls(TlsFault::TimedOut),
            Self::Tcp { .. } | Self::Unix { .. } => Fault::TimedOut,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } | Self::Tls { host, port, .. } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            Self::Tcp { host, port } | Self::Tls { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix { path } => f.write_str(path),
        }
    }
}

/// A password or login token. `Debug` redacts it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a password or token.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the plain text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// How a client logs in to a server. Empty for a server without users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Login {
    /// The user. On Redis, `None` is the default user.
    pub username: Option<Box<str>>,
    /// The password.
    pub password: Option<Secret>,
    /// File that contains the password: a regular file of at most 1 MiB. The host reads it again
    /// for each connection, so that it can be replaced. A newline at its end does not count.
    pub password_file: Option<Box<str>>,
}

impl Login {
    /// A user with a password.
    #[must_use]
    pub fn new(username: &str, password: &str) -> Self {
        Self { username: Some(username.into()), password: Some(Secret::new(password)), password_file: None }
    }

    /// Returns true if there is a user, and nothing to log in with.
    pub(crate) const fn lacks_password(&self) -> bool {
        self.username.is_some() && self.password.is_none() && self.password_file.is_none()
    }

    pub(crate) fn default_password(&mut self, password: &str) {
        if self.password.is_none() && self.password_file.is_none() {
            self.password = Some(Secret::new(password));
        }
    }

    /// A password without a user.
    #[must_use]
    pub fn password(password: &str) -> Self {
        Self { username: None, password: Some(Secret::new(password)), password_file: None }
    }
}

/// An invalid URL. The message never shows a password: it does not repeat any part that may contain
/// a login.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// The scheme is missing.
    #[error("the URL has no scheme: it must start with {expected}")]
    NoScheme {
        /// The supported schemes.
        expected: &'static str,
    },
    /// The URL is in quotes. Some readers of files with settings keep them.
    #[error("the URL is in quotes: remove them; `docker --env-file` keeps quotes as a part of the value")]
    Quoted,
    /// The URL of Redis Sentinel.
    #[error(
        "Redis Sentinel is not supported: give the URL of one Redis server, such as that of a proxy which follows the primary"
    )]
    Sentinel,
    /// The URL of a Redis Cluster.
    #[error("Redis Cluster is not supported: give the URL of a Redis server without cluster mode")]
    RedisCluster,
    /// A URL of Redis with several hosts.
    #[error(
        "a URL of Redis names one server; for a quorum give several URLs: `connect_quorum([\"redis://a\", \"redis://b\", \"redis://c\"])`, or `--backend` several times"
    )]
    SeveralHosts,
    /// The scheme is not supported.
    #[error("unsupported scheme `{given}`; expected {expected}")]
    Scheme {
        /// The scheme.
        given: Box<str>,
        /// The supported schemes.
        expected: &'static str,
    },
    /// TLS over a unix socket.
    #[error("TLS over a unix socket is not supported: use redis+unix://, which never leaves the machine")]
    TlsUnix,
    /// A parameter of TLS on a URL without TLS.
    #[error("the parameters ca, cert, key and server_name, and `#insecure`, need a URL with TLS: {expected}")]
    TlsParameter {
        /// The schemes with TLS.
        expected: &'static str,
    },
    /// A certificate without its key, or a key without its certificate.
    #[error("`cert` and `key` go together: the client's certificate and its private key")]
    CertWithoutKey,
    /// A parameter has no value.
    #[error("the parameter `{name}` needs a value")]
    EmptyParameter {
        /// Its name.
        name: &'static str,
    },
    /// A character is not allowed in a URL.
    #[error("the character at byte {at} of the URL must be percent-encoded: only visible ASCII characters are allowed")]
    Character {
        /// Byte offset of the character.
        at: usize,
    },
    /// A percent sign is not followed by two hexadecimal digits.
    #[error("the {part} has a percent sign without two hexadecimal digits: write %25 for the sign itself")]
    Escape {
        /// The part of the URL.
        part: &'static str,
    },
    /// The percent-decoded text is not UTF-8 or contains NUL.
    #[error("the {part} must be UTF-8 without NUL when its percent-encoding is undone")]
    NotText {
        /// The part of the URL.
        part: &'static str,
    },
    /// The login cannot be separated from the rest of the URL.
    #[error(
        "in a user or password the characters / ? # @ : [ ] must be percent-encoded, and @ everywhere else but in a socket's path"
    )]
    Login,
    /// The login has no password.
    #[error(
        "a login needs a password: user:password@, :password@, or the parameter `password` or `password_file`; if the program supplies it, name the user by the parameter `user`"
    )]
    NoPassword,
    /// The login lacks the user or the password, and both are required.
    #[error(
        "a login needs a user and a password: user:password@host, or the parameter `user` with `password` or `password_file`; if the program supplies the password, `user` alone"
    )]
    NoUser,
    /// The host is missing.
    #[error("the URL names no host: {expected}")]
    NoHost {
        /// URLs that have a host.
        expected: &'static str,
    },
    /// The host is neither a name nor an address.
    #[error(
        "the host must be a name of letters, digits, `-`, `.` and `_`, an IPv4 address, or an IPv6 address in brackets"
    )]
    Host,
    /// An IPv6 address with a zone, such as `fe80::1%eth0`.
    #[error(
        "IPv6 addresses with a zone (`%eth0`) are not supported: give an address that is not link-local, or a name"
    )]
    Zone,
    /// The port is out of range. The value is shown only if it is a number, because it could be
    /// part of a password otherwise.
    #[error("the port{} must be a number from 1 to 65535", .given.map(|port| format!(" {port}")).unwrap_or_default())]
    Port {
        /// The port, if it is a number.
        given: Option<u32>,
    },
    /// The database is not a valid number.
    #[error("the database `{given}` must be a number from 0 to {MAX_DATABASE}")]
    Database {
        /// The text in its place.
        given: Box<str>,
    },
    /// The URL of an etcd cluster has a path.
    #[error("the URL of an etcd cluster has no path: put the prefix into the names (in a program: `Config::prefix`)")]
    Path,
    /// The chroot is not a valid path.
    #[error(
        "the chroot must be a path of ZooKeeper: no part of it is empty, `.` or `..`, and it has no control characters"
    )]
    Chroot,
    /// The chroot has a comma: it was given for each server.
    #[error("the chroot comes once, after the last server: zk://a,b,c/app; a comma in it is written %2C")]
    ChrootComma,
    /// The tick is not a number of milliseconds.
    #[error("the parameter `tick_ms` must be a number of milliseconds, as `tickTime` of the servers; it is `{given}`")]
    Tick {
        /// The text in its place.
        given: Box<str>,
    },
    /// A parameter that is true or false has another value.
    #[error("the parameter `{name}` must be `true` or `false`; it is `{given}`")]
    Switch {
        /// The parameter.
        name: &'static str,
        /// The text in its place.
        given: Box<str>,
    },
    /// The URL has a fragment.
    #[error("a URL of a server has no fragment: write %23 for the character # itself")]
    Fragment,
    /// The parameter is unknown. After a password its name is shown as `…`, because it may be a
    /// part of the password: write %26 for the character & itself.
    #[error("the parameter `{name}` is not known: {allowed} are allowed")]
    Parameter {
        /// Its name.
        name: Box<str>,
        /// The supported parameters.
        allowed: &'static str,
    },
    /// The parameter occurs twice.
    #[error("the parameter `{name}` is given twice")]
    Twice {
        /// Its name.
        name: &'static str,
    },
    /// Servers would refuse this client name.
    #[error("the client_name must have 1 to {MAX_CLIENT_NAME} visible ASCII characters, and no blank")]
    ClientName,
    /// The protocol is unknown.
    #[error("the protocol `{given}` is not known: resp2 and resp3 are allowed")]
    Protocol {
        /// The requested protocol.
        given: Box<str>,
    },
    /// The URL of a unix socket has a host.
    #[error(
        "a unix socket has no host and no port: redis+unix:///path/of.sock, with a login user:password@ before the path"
    )]
    UnixHost,
    /// The URL of a unix socket has no path.
    #[error("the URL names no unix socket: redis+unix:///path/of.sock")]
    NoPath,
    /// The URL of a folder is something else than an absolute path.
    #[error("the URL of a folder is file:// and an absolute path, without parameters: file:///var/lib/app/locks")]
    Folder,
    /// The path of the unix socket is too long for the address of a socket.
    #[error(
        "the path of a unix socket must have at most {MAX_SOCKET_PATH} bytes, as the system allows no more; it has {len}"
    )]
    SocketPath {
        /// Its length.
        len: usize,
    },
}

/// The largest database number. Servers read it as a signed 32-bit integer.
pub(crate) const MAX_DATABASE: u32 = i32::MAX as u32;

/// The longest path of a unix socket, in bytes: that of Linux, without the NUL at its end. Other
/// systems have less.
pub(crate) const MAX_SOCKET_PATH: usize = 107;

/// The longest client name, in bytes. Servers have no limit.
pub(crate) const MAX_CLIENT_NAME: usize = 256;

/// How much of a value an error message shows.
const MAX_SHOWN: usize = 40;

/// Splits a URL into its scheme, in lower case, and the text after `://`.
///
/// # Errors
///
/// The text is no URL. `expected` shows schemes that would be.
pub fn parse_scheme<'a>(url: &'a str, expected: &'static str) -> Result<(String, &'a str), UrlError> {
    if url.starts_with(['"', '\'', '`']) {
        return Err(UrlError::Quoted);
    }
    if let Some(at) = url.bytes().position(|b| !b.is_ascii_graphic()) {
        return Err(UrlError::Character { at });
    }
    let (scheme, rest) = url.split_once("://").ok_or(UrlError::NoScheme { expected })?;
    if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) {
        return Err(UrlError::NoScheme { expected });
    }
    Ok((scheme.to_ascii_lowercase(), rest))
}

/// Returns the error of a scheme that is not among `expected`.
#[must_use]
pub fn unsupported_scheme(scheme: &str, expected: &'static str) -> UrlError {
    let redis = scheme.starts_with("redis") || scheme.starts_with("valkey");
    match scheme {
        _ if redis && scheme.ends_with("sentinel") => UrlError::Sentinel,
        _ if redis && scheme.ends_with("cluster") => UrlError::RedisCluster,
        "sentinel" => UrlError::Sentinel,
        other => UrlError::Scheme { given: shown(other), expected },
    }
}

pub(crate) fn parse_login(login: &str) -> Result<Login, UrlError> {
    let (user, password) = login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
    if password.unwrap_or_default().contains([':', '@', '[', ']']) || user.contains(['@', '[', ']']) {
        return Err(UrlError::Login);
    }
    if user.is_empty() && password.is_none_or(str::is_empty) {
        return Err(UrlError::NoPassword);
    }
    let user = decoded(user, "user")?;
    let password = password.map(|text| decoded(text, "password")).transpose()?.map(|text| Secret(text.into()));
    Ok(Login { username: (!user.is_empty()).then_some(user), password, password_file: None })
}

/// Parses a host and a port, which is `default` if missing. `expected` shows URLs that have a host.
pub(crate) fn parse_host(place: &str, default: u16, expected: &'static str) -> Result<Target, UrlError> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(UrlError::Host)?;
            if address.contains('%') {
                return Err(UrlError::Zone);
            }
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
                return Err(UrlError::NoHost { expected });
            }
            if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
                return Err(UrlError::Host);
            }
            // Host names are case-insensitive, and two nodes must not be the same server.
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

impl Target {
    /// Returns true if both name the same host and port, with TLS or without, or the same socket.
    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Tcp { host, port } | Self::Tls { host, port, .. },
                Self::Tcp { host: other, port: other_port } | Self::Tls { host: other, port: other_port, .. },
            ) => (host, port) == (other, other_port),
            (Self::Unix { path }, Self::Unix { path: other }) => path == other,
            (Self::Tcp { .. } | Self::Tls { .. }, Self::Unix { .. })
            | (Self::Unix { .. }, Self::Tcp { .. } | Self::Tls { .. }) => false,
        }
    }

    /// The same TCP port with TLS.
    pub(crate) fn with_tls(self, tls: Tls) -> Self {
        match self {
            Self::Tcp { host, port } | Self::Tls { host, port, .. } => Self::Tls { host, port, tls },
            unix @ Self::Unix { .. } => unix,
        }
    }
}

/// Splits off the fragment, and returns true if it is `#insecure`. There is no other.
pub(crate) fn split_fragment(rest: &str) -> Result<(&str, bool), UrlError> {
    match rest.split_once('#') {
        None => Ok((rest, false)),
        Some((rest, "insecure")) => Ok((rest, true)),
        Some(_) => Err(UrlError::Fragment),
    }
}

pub(crate) fn digits(text: &str) -> Option<u32> {
    // `parse` alone would accept a sign.
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Decodes percent-encoding (RFC 3986, section 2.1). `part` names the part of the URL, for the error.
///
/// # Errors
///
/// [`UrlError`] if an escape is incomplete, or the result is no UTF-8 or contains NUL.
pub fn decoded(text: &str, part: &'static str) -> Result<Box<str>, UrlError> {
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

/// Returns the first 40 bytes of a text, for an error message.
pub fn shown(text: &str) -> Box<str> {
    text.get(..MAX_SHOWN).unwrap_or(text).into()
}

/// Percent-encodes everything except unreserved characters and those listed.
pub(crate) struct Encoded<'a>(pub(crate) &'a str, pub(crate) &'static [u8]);

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
