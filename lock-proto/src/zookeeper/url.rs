//! `zk://` URLs: the servers of an ensemble, the login, and the chroot.

use alloc::boxed::Box;
use core::time::Duration;

use super::config::Config;
use super::path::is_path;
use crate::cluster_url::{self, Grammar};
use crate::url::{Target, UrlError, decoded, digits, parse_host, shown};

const DEFAULT_PORT: u16 = 2181;
const TICK: &str = "tick_ms";
const REVALIDATE: &str = "revalidate";
const GRAMMAR: Grammar = Grammar {
    schemes: [&["zk"], &["zks"]],
    expected: "zk:// or zks://",
    with_tls: "zks://",
    allowed: [
        "user, password, password_file, tick_ms and revalidate",
        "user, password, password_file, tick_ms, revalidate, ca, cert, key and server_name",
    ],
};

/// Parses `host` or `host:port`.
pub(super) fn parse_server(place: &str) -> Result<Target, UrlError> {
    parse_host(place, DEFAULT_PORT, "zk://host, zk://host1:2181,host2:2181")
}

/// Parses `zk://[user:password@]host[:port][,host[:port]…][/chroot][?parameters]`, with TLS `zks`.
pub(super) fn parse(url: &str) -> Result<Config, UrlError> {
    let (mut chroot, mut tick, mut revalidate) = (Box::<str>::default(), None, None);
    let path = |text: &str| {
        if text.contains(',') {
            return Err(UrlError::ChrootComma);
        }
        let path = decoded(text, "chroot")?;
        chroot = path.trim_end_matches('/').into();
        let is_valid = chroot.is_empty() || is_path(chroot.strip_prefix('/').unwrap_or(&chroot));
        if is_valid { Ok(()) } else { Err(UrlError::Chroot) }
    };
    let own = |name: &str, value: &str| {
        let (name, twice) = match name {
            TICK => {
                let ms = digits(value).filter(|ms| *ms > 0).ok_or_else(|| UrlError::Tick { given: shown(value) })?;
                (TICK, tick.replace(Duration::from_millis(ms.into())).is_some())
            }
            REVALIDATE => {
                let always = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(UrlError::Switch { name: REVALIDATE, given: shown(value) }),
                };
                (REVALIDATE, revalidate.replace(always).is_some())
            }
            _ => return Ok(false),
        };
        if twice { Err(UrlError::Twice { name }) } else { Ok(true) }
    };
    let (servers, login) = cluster_url::parse(url, &GRAMMAR, parse_server, Target::with_tls, path, own)?;
    let config = Config::of(servers, login, chroot).revalidate(revalidate.unwrap_or(false));
    Ok(if let Some(tick) = tick { config.tick(tick) } else { config })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use alloc::string::ToString as _;

    use super::*;
    use crate::url::Login;

    fn servers(url: &str) -> alloc::vec::Vec<alloc::string::String> {
        parse(url).unwrap().servers().iter().map(|server| server.to_string()).collect()
    }

    #[test]
    fn servers_login_chroot_and_tick_are_parsed() {
        assert_eq!(servers("zk://a"), ["a:2181"]);
        assert_eq!(servers("ZK://a:1,B,[::1]:3/app"), ["a:1", "b:2181", "[::1]:3"]);
        let parsed = parse("zk://app:s%2Fe@a,b/x/%C3%A4/?tick_ms=500").unwrap().store;
        assert_eq!((&*parsed.own.chroot, parsed.own.tick), ("/x/ä", Duration::from_millis(500)));
        assert_eq!(parsed.login, Login::new("app", "s/e"));
        let revalidates = |query: &str| parse(&alloc::format!("zk://a?{query}")).unwrap().store.own.revalidate;
        assert_eq!(["tick_ms=9", "revalidate=false", "revalidate=true"].map(revalidates), [false, false, true]);
        assert_eq!(&*parse("zk://a/x%2cy").unwrap().store.own.chroot, "/x,y");
        for url in ["zk://a", "zk://a/", "zk://a//"] {
            assert_eq!(&*parse(url).unwrap().store.own.chroot, "", "{url}");
        }
    }

    #[test]
    fn tls_has_parameters_of_other_stores() {
        let parsed = parse("zks://a:2281,b?ca=/ca.pem&server_name=zoo").unwrap();
        for server in parsed.servers() {
            assert!(matches!(server, Target::Tls { tls, .. } if tls.ca.as_deref() == Some("/ca.pem")));
        }
        assert!(matches!(&parse("zks://a#insecure").unwrap().servers()[0], Target::Tls { tls, .. } if tls.insecure));
    }

    #[test]
    fn errors_name_what_is_allowed_and_no_secret() {
        for (url, words) in [
            ("zookeeper://a", ["zookeeper", "zk:// or zks://"]),
            ("zk://", ["names no host", "zk://host1:2181"]),
            ("zk://a:0", ["port 0", "65535"]),
            ("zk://a/x/../y", ["chroot", "`.`"]),
            ("zk://a/x//y", ["chroot", "empty"]),
            ("zk://a:2181/app,b:2181/app", ["chroot comes once", "zk://a,b,c/app"]),
            ("zk://a,b/app,c/app?tick_ms=1", ["chroot comes once", "%2C"]),
            ("zk://a?tick_ms=0", ["tick_ms", "`0`"]),
            ("zk://a?tick_ms=1&tick_ms=2", ["tick_ms", "twice"]),
            ("zk://a?revalidate=yes", ["revalidate", "`true` or `false`; it is `yes`"]),
            ("zk://a?revalidate=true&revalidate=true", ["revalidate", "twice"]),
            ("zk://a?timeout=3", ["timeout", "tick_ms"]),
            ("zk://a?ca=x", ["TLS", "zks://"]),
            ("zk://:secret@a", ["user", "password"]),
            ("zk://app:secret/x@a", ["percent-encoded", "@"]),
            ("zk://app@a", ["user", "password"]),
            ("zk://a?user=app&password=s3&secret", ["parameter `…`", "tick_ms"]),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
