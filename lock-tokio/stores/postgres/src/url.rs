//! The servers that a URL names.

use std::time::Duration;

use lock_driver::register::RegisterError;
use lock_proto::url::decoded;
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::tls::Trust;

/// One server of a URL.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// For messages: without user and password.
    pub(crate) name: String,
    pub(crate) config: Config,
    pub(crate) trust: Trust,
}

const ENCODE: &str =
    "an @ after the host; write / and ? in a user or password as %2F and %3F, and @ in a database as %40";

/// Reads a URL. Each server gets a configuration of its own, so that one that accepts connections
/// but does not answer keeps nobody from the next.
pub(crate) fn parse(url: &str, timeout: Duration) -> Result<Vec<Server>, RegisterError> {
    let invalid = |what: String| RegisterError::refused(format!("invalid URL of Postgres: {what}"));
    let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
    if !matches!(scheme, "postgres" | "postgresql") {
        return Err(invalid("expected postgres://[user[:password]@]host[:port][,…]/database[?parameters]".into()));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // Behind such an `@` the host would be a part of the password, which errors must not show.
    if path.contains('@') || query.split('&').any(|parameter| parameter.split('=').next().unwrap_or("").contains('@')) {
        return Err(invalid(ENCODE.into()));
    }
    let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    let (mut trust, mut mode) = (Trust::default(), SslMode::Prefer);
    let mut parameters = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("sslrootcert", file)) => {
                let file = decoded(file, "sslrootcert").map_err(|_| invalid(parameter.into()))?;
                trust.ca = Some(file.into());
            }
            Some(("sslmode", "disable")) => mode = SslMode::Disable,
            Some(("sslmode", "prefer")) => mode = SslMode::Prefer,
            Some(("sslmode", "require")) => mode = SslMode::Require,
            Some(("sslmode", "verify-ca" | "verify-full")) => (mode, trust.verifies) = (SslMode::Require, true),
            Some(("sslmode", _)) => {
                return Err(invalid(format!("{parameter}; expected disable, prefer, require or verify-full")));
            }
            _ => parameters.push(parameter),
        }
    }
    // As libpq does.
    trust.verifies |= trust.ca.is_some();
    let count = hosts.split(',').count();
    let servers = hosts.split(',').map(|host| {
        let url = format!("{scheme}://{login}{host}{path}?{}", parameters.join("&"));
        let mut config: Config = url.parse().map_err(|error| invalid(crate::error::text(&error)))?;
        config.ssl_mode(mode);
        if config.get_application_name().is_none() {
            config.application_name("lock-postgres");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(timeout);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(timeout);
        }
        // One that takes no writes is of no use.
        if count > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        Ok(Server { name: decoded(host, "host").unwrap_or_else(|_| host.into()).into(), config, trust: trust.clone() })
    });
    servers.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tokio_postgres::config::Host;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(3);

    #[test]
    fn servers_of_a_url_are_apart() {
        let url =
            "postgres://app:p%40ss@a:1,b,%2Frun%2Fpg/locks?sslmode=verify-full&sslrootcert=%2Fca.pem&connect_timeout=7";
        let servers = parse(url, TIMEOUT).unwrap();
        let names: Vec<_> = servers.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names, ["a:1", "b", "/run/pg"]);
        assert_eq!(servers[0].config.get_hosts(), [Host::Tcp("a".into())]);
        assert_eq!(servers[0].config.get_ports(), [1]);
        assert_eq!(servers[2].config.get_hosts(), [Host::Unix("/run/pg".into())]);
        for server in servers {
            assert_eq!(server.config.get_password(), Some(&b"p@ss"[..]));
            assert_eq!(server.config.get_dbname(), Some("locks"));
            assert_eq!(server.config.get_ssl_mode(), SslMode::Require);
            assert_eq!(server.config.get_connect_timeout(), Some(&Duration::from_secs(7)));
            assert_eq!(server.config.get_tcp_user_timeout(), Some(&TIMEOUT));
            assert_eq!(server.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
            assert_eq!(server.trust, Trust { verifies: true, ca: Some("/ca.pem".into()) });
        }
    }

    #[test]
    fn certificates_are_verified_as_by_libpq() {
        for (query, mode, verifies) in [
            ("", SslMode::Prefer, false),
            ("?sslmode=disable", SslMode::Disable, false),
            ("?sslmode=require", SslMode::Require, false),
            ("?sslmode=verify-ca", SslMode::Require, true),
            ("?sslmode=require&sslrootcert=ca.pem", SslMode::Require, true),
        ] {
            let servers = parse(&format!("postgresql://a/b{query}"), TIMEOUT).unwrap();
            assert_eq!((servers[0].config.get_ssl_mode(), servers[0].trust.verifies), (mode, verifies), "{query}");
            assert_eq!(servers[0].config.get_target_session_attrs(), TargetSessionAttrs::Any);
        }
    }

    #[test]
    fn part_of_a_password_is_no_host() {
        for url in [
            "postgres://app:hun/ter2@host/db",
            "postgres://app:12/hunter2@host/db",
            "postgres://app:12@hun/ter2@host/db",
            "postgres://app:hun?ter2@host/db",
            "postgres://app:12?hunter2@host/db",
            "postgres://app:12/?hunter2@host:port/db",
        ] {
            let RegisterError::Refused(text) = parse(url, TIMEOUT).unwrap_err() else { panic!("{url}") };
            assert!(text.contains("%2F") && !text.contains("hun") && !text.contains("ter2"), "{url}: {text}");
        }
        let servers = parse("postgres://app:hun%2Fter%3F2@host/a%40b?user=a@b", TIMEOUT).unwrap();
        assert_eq!(servers[0].config.get_password(), Some(&b"hun/ter?2"[..]));
        assert_eq!((&*servers[0].name, servers[0].config.get_dbname()), ("host", Some("a@b")));
    }

    #[test]
    fn other_urls_are_refused() {
        for (url, says) in [
            ("mysql://a/b", "expected postgres://"),
            ("a", "expected postgres://"),
            ("postgres://a/b?sslmode=allow", "sslmode=allow; expected disable"),
            ("postgres://a/b?colour=red", "colour"),
            ("postgres://a:port/b", "port"),
            ("postgres://a/b?sslrootcert=%f", "sslrootcert"),
        ] {
            let error = parse(url, TIMEOUT).unwrap_err();
            assert!(matches!(&error, RegisterError::Refused(text) if text.contains(says)), "{url}: {error}");
        }
    }
}
