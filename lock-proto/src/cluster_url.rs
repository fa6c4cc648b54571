//! URLs of a cluster: `scheme://[user:password@]server[,server…][/path][?parameters]`.

use alloc::vec::Vec;

use crate::parameters::Parameters;
use crate::tls::Tls;
use crate::url::{Login, UrlError, parse_login, parse_scheme, split_fragment, unsupported_scheme};

/// What the URLs of a store may contain.
pub(crate) struct Grammar {
    /// The schemes without TLS, and with it.
    pub(crate) schemes: [&'static [&'static str]; 2],
    /// All schemes, for errors.
    pub(crate) expected: &'static str,
    /// The schemes with TLS, for errors.
    pub(crate) with_tls: &'static str,
    /// The parameters that are allowed without TLS, and with it, for errors.
    pub(crate) allowed: [&'static str; 2],
}

/// Parses a URL. `server` parses a server, `with_tls` sets its TLS, `path` checks the path, and
/// `own` reads a parameter of the store, or returns false for any other.
pub(crate) fn parse<T>(
    url: &str,
    grammar: &Grammar,
    server: impl Fn(&str) -> Result<T, UrlError>,
    with_tls: impl Fn(T, Tls) -> T,
    path: impl FnOnce(&str) -> Result<(), UrlError>,
    mut own: impl FnMut(&str, &str) -> Result<bool, UrlError>,
) -> Result<(Vec<T>, Login), UrlError> {
    let (scheme, rest) = parse_scheme(url, grammar.expected)?;
    let Some(tls) = grammar.schemes.iter().position(|schemes| schemes.contains(&scheme.as_str())) else {
        return Err(unsupported_scheme(&scheme, grammar.expected));
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
    let (path_text, query) = rest.split_once('?').unwrap_or((rest, ""));
    // First, because a password with a raw `?` would be parsed as parameters.
    let mut servers = places.split(',').map(server).collect::<Result<Vec<_>, _>>()?;
    path(path_text)?;
    let mut parameters = Parameters::default();
    for parameter in query.split('&').filter(|_| !query.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if !own(name, value)? && !parameters.read(name, value)? {
            return Err(parameters.unknown(name, grammar.allowed[tls]));
        }
    }
    let tls = parameters.tls(tls == 1, insecure, grammar.with_tls)?;
    let login = parameters.login(before_hosts).map_err(no_user)?;
    let empty = login.password.as_ref().is_some_and(|password| password.expose().is_empty());
    if empty || (login.username.is_none() && login != Login::default()) {
        return Err(UrlError::NoUser);
    }
    if let Some(tls) = tls {
        servers = servers.into_iter().map(|server| with_tls(server, tls.clone())).collect();
    }
    Ok((servers, login))
}
