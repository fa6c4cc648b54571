#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::url::Secret;
use alloc::format;

fn parse(url: &str) -> Endpoint {
    Endpoint::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn tcp(host: &str, port: u16) -> Target {
    Target::Tcp { host: host.into(), port }
}

#[test]
fn tcp_urls_are_parsed() {
    let plain = parse("redis://localhost");
    assert_eq!(plain.target, tcp("localhost", 6379));
    assert_eq!((plain.login, plain.database, plain.client_name), (Login::default(), 0, None));
    assert_eq!(plain.protocol, Protocol::Resp2);
    for (url, target) in [
        ("redis://127.0.0.1:7000", tcp("127.0.0.1", 7000)),
        ("REDIS://Cache.Example:1", tcp("cache.example", 1)),
        ("valkey://h:1", tcp("h", 1)),
        ("redis://my_host-1.example.:65535/", tcp("my_host-1.example.", 65535)),
        ("redis://[::1]", tcp("::1", 6379)),
        ("redis://[2001:DB8:0::1]:7000/3", tcp("2001:db8::1", 7000)),
        ("redis://h?", tcp("h", 6379)),
    ] {
        assert_eq!(parse(url).target, target, "{url}");
    }
    assert_eq!(parse("redis://h/15").database, 15);
    assert_eq!(parse("redis://h/2147483647").database, 2_147_483_647);
    let all = parse("redis://app:s%40c%3Art@h:1/2?protocol=resp3&client_name=a%2Bb");
    assert_eq!(all.login, Login::new("app", "s@c:rt"));
    assert_eq!(all.client_name.as_deref(), Some("a+b"));
    assert_eq!((all.database, all.protocol), (2, Protocol::Resp3));
    assert_eq!(parse("redis://:secret@h").login, Login::password("secret"));
    assert_eq!(parse("redis://user:@h").login, Login::new("user", ""));
}

#[test]
fn login_may_be_in_parameters() {
    let file = |user: Option<&str>| Login {
        username: user.map(Into::into),
        password_file: Some("/run/secrets/redis".into()),
        ..Login::default()
    };
    for (url, login) in [
        ("redis://h?user=app&password=s%40c", Login::new("app", "s@c")),
        ("redis://h?password=pw", Login::password("pw")),
        ("redis://app@h?password=pw", Login::new("app", "pw")),
        ("unix:///r?user=app&password=pw", Login::new("app", "pw")),
        ("redis://h?password_file=/run/secrets/redis", file(None)),
        ("redis://app@h?password_file=/run/secrets/redis", file(Some("app"))),
        ("unix:///r?user=app&password_file=/run/secrets/redis", file(Some("app"))),
        ("rediss://h?user=app&ca=c", Login { username: Some("app".into()), ..Login::default() }),
    ] {
        let endpoint = parse(url);
        assert_eq!(endpoint.login, login, "{url}");
        let shown = endpoint.to_string();
        assert_eq!(parse(&shown.replace("***", "pw")).login.username, login.username, "{shown}");
        assert!(!shown.contains("pw") && !shown.contains("s@c"), "{shown}");
    }
}

#[test]
fn tls_urls() {
    let endpoint = parse("rediss://u:p@H/3?ca=/etc/ca%26.pem&cert=c&key=k&server_name=n&client_name=me");
    let Target::Tls { host, port, tls } = &endpoint.target else { panic!("{endpoint:?}") };
    assert_eq!((&**host, *port, endpoint.database), ("h", 6379, 3));
    assert_eq!(tls.ca.as_deref(), Some("/etc/ca&.pem"));
    assert_eq!(tls.identity, Some(("c".into(), "k".into())));
    assert_eq!(tls.server_name.as_deref(), Some("n"));
    let shown = "rediss://u:***@h:6379/3?client_name=me&ca=/etc/ca%26.pem&cert=c&key=k&server_name=n";
    assert_eq!(endpoint.to_string(), shown);
    assert!(matches!(parse("valkeys://h").target, Target::Tls { .. }));
    assert!(parse("valkeys://h:1").target.is_same_server(&parse("redis://h:1").target));
}

#[test]
fn unix_urls_are_parsed() {
    for scheme in ["redis+unix", "unix", "Redis+Unix"] {
        let endpoint = parse(&format!("{scheme}:///run/my%20redis.sock?db=4&client_name=c"));
        assert_eq!(endpoint.target, Target::Unix { path: "/run/my redis.sock".into() });
        assert_eq!((endpoint.database, endpoint.client_name.as_deref()), (4, Some("c")));
    }
    let login = parse("redis+unix://u:p@/run/@r");
    assert_eq!(login.target, Target::Unix { path: "/run/@r".into() });
    assert_eq!(login.login, Login::new("u", "p"));
    assert_eq!(parse("unix:///run/@r").target, Target::Unix { path: "/run/@r".into() });
}

/// Regression: no connection is possible, and the server counted as unreachable.
#[test]
fn path_of_unix_socket_fits_its_address() {
    // An `ä` has two bytes, and three times as many in the URL.
    let url = |bytes: usize| format!("redis+unix:///%C3%A4{}", "a".repeat(bytes - 3));
    assert!(Endpoint::parse(&url(107)).is_ok());
    let error = Endpoint::parse(&url(108)).unwrap_err().to_string();
    assert!(error.contains("107 bytes") && error.contains("108"), "{error}");
}

#[test]
fn errors_name_problem_and_allowed_values() {
    for (url, wrong, allowed) in [
        ("", "no scheme", "redis://"),
        ("localhost:6379", "no scheme", "redis://"),
        ("://h", "no scheme", "redis://"),
        ("red_is://h", "no scheme", "redis://"),
        ("http://h", "`http`", "redis+unix://"),
        ("etcd://h", "`etcd`", "redis://"),
        ("rediss+unix:///r", "TLS", "redis+unix://"),
        ("rediss://h?ca=", "`ca`", "needs a value"),
        ("rediss://h?ca=a&ca=b", "`ca`", "twice"),
        ("rediss://h?cert=c", "`cert` and `key`", "together"),
        ("rediss://h?key=k", "`cert` and `key`", "together"),
        ("rediss://h?ca=%ff", "ca", "UTF-8"),
        ("rediss://h?db=1", "parameter `db`", "server_name"),
        // The tail of a password with a raw `&`.
        ("redis://h?user=app&password=s3&cret", "parameter `…`", "client_name"),
        ("redis://h#insecure", "`#insecure`", "rediss://"),
        ("rediss://h#insecur", "fragment", "%23"),
        ("redis://a:b@h?user=c", "`user`", "twice"),
        ("redis://a:b@h?password=c", "`password`", "twice"),
        ("redis://a:b@h?password_file=c", "`password`", "twice"),
        ("redis://h?password=a&password_file=c", "`password`", "twice"),
        ("redis://h?password=", "`password`", "needs a value"),
        ("redis://a@h?ca=c", "need a URL with TLS", "rediss://"),
        ("redis://h?server_name=n", "need a URL with TLS", "rediss://"),
        ("redis://h\n", "byte 9", "percent-encoded"),
        (" redis://h", "byte 0", "visible ASCII"),
        ("redis://hä", "byte 9", "visible ASCII"),
        ("redis://u:p%4@h", "password", "%25"),
        ("redis://u%zz:p@h", "user", "two hexadecimal digits"),
        ("redis://u:%ff@h", "password", "UTF-8"),
        ("redis://u:%00@h", "password", "NUL"),
        ("unix:///a%00b", "path", "NUL"),
        ("redis://:a/b@h", "user or password", "percent-encoded"),
        ("redis://:a#b@h", "user or password", "percent-encoded"),
        ("redis://:a?b@h", "user or password", "percent-encoded"),
        ("redis://:a@b@h", "user or password", "percent-encoded"),
        ("redis://u:a:b@h", "user or password", "percent-encoded"),
        ("redis://u:[@h", "user or password", "percent-encoded"),
        ("unix://u:a/b@/run/r", "user or password", "percent-encoded"),
        ("redis://u@h", "needs a password", "`password_file`"),
        ("redis://:@h", "needs a password", "user:password@"),
        ("redis://@h", "needs a password", "user:password@"),
        ("redis://", "no host", "redis://host"),
        ("redis://:6379", "no host", "redis://host:port"),
        ("redis:///1", "no host", "redis://host"),
        ("redis://u:p@", "no host", "redis://host"),
        ("redis://::1", "host must be", "IPv6 address in brackets"),
        ("redis://[::1", "host must be", "IPv6 address in brackets"),
        ("redis://[::1]1", "host must be", "IPv6 address in brackets"),
        ("redis://[fe80::1%25eth0]", "zone", "not supported"),
        ("redis://[1.2.3.4]", "host must be", "IPv6 address in brackets"),
        ("redis://a%2eb", "host must be", "letters, digits"),
        ("redis://a,b", "one server", "connect_quorum"),
        ("redis://h:", "port must be", "1 to 65535"),
        ("redis://h:0", "port 0 must be", "1 to 65535"),
        ("redis://h:65536", "port 65536 must be", "1 to 65535"),
        ("redis://h:+1", "port must be", "1 to 65535"),
        ("redis://[::1]:99999", "port 99999 must be", "1 to 65535"),
        ("redis://h/one", "database `one`", "0 to 2147483647"),
        ("redis://h/-1", "database `-1`", "0 to 2147483647"),
        ("redis://h/2147483648", "database `2147483648`", "0 to 2147483647"),
        ("redis://h/1/2", "database `1/2`", "0 to 2147483647"),
        ("unix:///r?db=x", "database `x`", "0 to 2147483647"),
        ("redis://h#1", "fragment", "%23"),
        ("redis://h?timeout=1", "parameter `timeout`", "client_name and protocol"),
        ("redis://h?db=1", "parameter `db`", "client_name and protocol"),
        ("redis://h?protocol=resp2&", "parameter ``", "client_name and protocol"),
        ("unix:///r?x", "parameter `x`", "db, client_name and protocol"),
        ("redis://h?protocol=resp2&protocol=resp2", "`protocol`", "twice"),
        ("redis://h?client_name=a&client_name=b", "`client_name`", "twice"),
        ("unix:///r?db=1&db=1", "`db`", "twice"),
        ("redis://h?client_name=", "client_name must have", "1 to 256"),
        ("redis://h?client_name=a%20b", "client_name must have", "no blank"),
        ("redis://h?protocol=3", "protocol `3`", "resp2 and resp3"),
        ("redis+unix://localhost/run/r", "no host", "redis+unix:///path"),
        ("redis+unix://", "no unix socket", "redis+unix:///path"),
        ("redis+unix:///", "no unix socket", "redis+unix:///path"),
    ] {
        let message = Endpoint::parse(url).expect_err(url).to_string();
        assert!(message.contains(wrong) && message.contains(allowed), "{url}: {message}");
    }
}

#[test]
fn neither_error_nor_endpoint_shows_password() {
    // However the password is broken, and wherever the parser then believes to be.
    for middle in ["", "/", "?", "#", "@", ":", "%", "\n", "[", "]", "&", "="] {
        let password = format!("zqzq{middle}xkxk");
        for url in [
            format!("redis://user:{password}@host:badport"),
            format!("redis://:{password}@host:70000/x"),
            format!("redis://user:{password}@host/1?color=1"),
            format!("redis://user:{password}@host/one"),
            format!("redis://user:{password}@"),
            format!("redis://user:{password}"),
            format!("redis://a@b:{password}@host"),
            format!("redis://a:b@c:{password}@host"),
            format!("redis+unix://user:{password}@host/path"),
            format!("redis+unix://user:{password}@/path?color=1"),
            format!("unix://user:{password}@"),
            format!("http://user:{password}@host"),
            format!("rediss://user:{password}@host"),
            format!("user:{password}@host"),
        ] {
            let shown = match Endpoint::parse(&url) {
                // By the rules of URLs a password ends at the last @ of the authority.
                Ok(endpoint) => {
                    assert!(middle == "@" || endpoint.login.password.is_some(), "{url}");
                    format!("{endpoint:?} {endpoint}").replace("\"xkxk\"", "").replace("@xkxk:6379", "")
                }
                Err(error) => format!("{error:?} {error}"),
            };
            assert!(!shown.contains("zqzq") && !shown.contains("xkxk"), "{url}: {shown}");
        }
    }
}

#[test]
fn display_round_trips_and_hides_password() {
    for url in [
        "redis://h",
        "redis://u:sesame@h:1/2?client_name=a%25b&protocol=resp3",
        "redis://:sesame@[::1]:7",
        "unix://%2F%3A:sesame@/run/%C3%A4%3F%23?db=3&protocol=resp3",
        "redis://h?user=%26&password_file=/a%20b&protocol=resp3",
        "rediss://h?user=u&password=sesame&ca=/x%3F#insecure",
    ] {
        let endpoint = parse(url);
        let text = endpoint.to_string();
        assert!(!text.contains("sesame") && !format!("{endpoint:?}").contains("sesame"), "{text}");
        let mut masked = endpoint;
        masked.login.password = masked.login.password.map(|_| Secret::new("***"));
        assert_eq!(text.parse(), Ok(masked), "{text}");
    }
}

/// The errors were correct, and did not say what to do.
#[test]
fn common_mistakes_have_errors_that_help() {
    for (url, expected) in [
        ("redis://a,b,c", UrlError::SeveralHosts),
        ("rediss://:secret@a:1,b:2/0", UrlError::SeveralHosts),
        ("redis-sentinel://a", UrlError::Sentinel),
        ("rediss+sentinel://a", UrlError::Sentinel),
        ("valkey-sentinel://a", UrlError::Sentinel),
        ("redis+cluster://a", UrlError::RedisCluster),
        ("rediss-cluster://a", UrlError::RedisCluster),
        ("\"redis://a\"", UrlError::Quoted),
        ("'redis://a'", UrlError::Quoted),
        ("redis://[fe80::1%25eth0]:1", UrlError::Zone),
        ("redis://[fe80::1%eth0]", UrlError::Zone),
    ] {
        let error = Endpoint::parse(url).unwrap_err();
        assert_eq!(error, expected, "{url}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    assert!(matches!(Endpoint::parse("my-cluster://a"), Err(UrlError::Scheme { .. })));
    assert_eq!(parse("unix:///run/a,b").target, Target::Unix { path: "/run/a,b".into() });
}
