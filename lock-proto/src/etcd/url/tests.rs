#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use alloc::format;
use alloc::string::String;

fn places(url: &str) -> String {
    let (endpoints, _) = parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
    endpoints.into_iter().map(|endpoint| format!("{endpoint} ")).collect()
}

#[test]
fn url_parses_to_endpoints_and_login() {
    assert_eq!(places("etcd://localhost"), "localhost:2379 ");
    assert_eq!(places("ETCD://A.Example:1,127.0.0.1,[::1]:7/"), "a.example:1 127.0.0.1:2379 [::1]:7 ");
    let (endpoints, user) = parse("etcd://app:s%40c%2Crt@h:1,i").unwrap();
    assert_eq!(user, Login::new("app", "s@c,rt"));
    assert_eq!(endpoints[1].target, Target::Tcp { host: "i".into(), port: 2379 });
    assert_eq!("h:1".parse(), Ok(endpoints[0].clone()));
}

#[test]
fn errors_name_problem_and_allowed_values() {
    for (url, wrong, allowed) in [
        ("", "no scheme", "etcd://"),
        ("localhost:2379", "no scheme", "etcd://"),
        ("://h", "no scheme", "etcd://"),
        ("ftp://h", "`ftp`", "http://"),
        ("redis://h", "`redis`", "etcd://"),
        ("etcds://h?cert=c", "`cert` and `key`", "together"),
        ("https://h?ttl=1", "parameter `ttl`", "server_name"),
        ("https://h/x?ca=a", "no path", "Config::prefix"),
        ("etcd://h#insecure", "`#insecure`", "etcds://"),
        ("etcd://h?ca=x", "need a URL with TLS", "etcds://"),
        ("etcd://a:b@h?password_file=c", "`password`", "twice"),
        ("etcd://h?password_file=c", "user and a password", "`user`"),
        ("etcd://h ", "byte 8", "visible ASCII"),
        ("etcd://", "no host", "etcd://host"),
        ("etcd://,", "no host", "host1:2379,host2:2379"),
        ("etcd://a,,b", "no host", "host1:2379,host2:2379"),
        ("etcd://a,", "no host", "host1:2379,host2:2379"),
        ("etcd://u:p@", "no host", "etcd://host"),
        ("etcd://:2379", "no host", "etcd://host"),
        ("etcd://u@h", "user and a password", "user:password@"),
        ("etcd://u:@h", "user and a password", "user:password@"),
        ("etcd://:p@h", "user and a password", "user:password@"),
        ("etcd://@h", "user and a password", "user:password@"),
        ("etcd://u:a@b@h", "user or password", "percent-encoded"),
        ("etcd://u:a/b@h", "user or password", "percent-encoded"),
        ("etcd://u:%4@h", "password", "%25"),
        ("etcd://u:%ff@h", "password", "UTF-8"),
        ("etcd://h:0", "port 0 must be", "1 to 65535"),
        ("etcd://h:65536,i", "port 65536 must be", "1 to 65535"),
        ("etcd://h:x", "port must be", "1 to 65535"),
        ("etcd://::1", "host must be", "IPv6 address in brackets"),
        ("etcd://h/locks", "no path", "Config::prefix"),
        ("etcd://h?ttl=1", "parameter `ttl`", "user, password and password_file"),
        ("etcd://h/?ttl=1", "parameter `ttl`", "user, password and password_file"),
        ("etcd://h#1", "fragment", "%23"),
    ] {
        let message = parse(url).expect_err(url).to_string();
        assert!(message.contains(wrong) && message.contains(allowed), "{url}: {message}");
    }
}

#[test]
fn login_may_be_in_parameters() {
    let file = Login { username: Some("app".into()), password_file: Some("/pw".into()), ..Login::default() };
    for (url, login) in [
        ("etcd://a,b?user=app&password=s%40c", Login::new("app", "s@c")),
        ("etcd://app@a,b/?password_file=/pw", file.clone()),
        ("https://a?user=app&password_file=/pw&ca=c#insecure", file),
        ("etcd://a?user=app", Login { username: Some("app".into()), ..Login::default() }),
    ] {
        assert_eq!(parse(url).unwrap().1, login, "{url}");
    }
}

#[test]
fn tls_is_the_same_for_all_members() {
    for scheme in ["etcds", "https"] {
        let (endpoints, _) = parse(&format!("{scheme}://a,b:1/?ca=/ca.pem&cert=c&key=k")).unwrap();
        for endpoint in endpoints {
            let Target::Tls { tls, .. } = &endpoint.target else { panic!("{endpoint:?}") };
            assert_eq!((tls.ca.as_deref(), &tls.identity), (Some("/ca.pem"), &Some(("c".into(), "k".into()))));
        }
    }
}

#[test]
fn errors_and_debug_hide_password() {
    for middle in ["", "/", "?", "#", "@", ":", "%", ",", "\n", "[", "]", "&", "="] {
        let password = format!("zqzq{middle}xkxk");
        for url in [
            format!("etcd://user:{password}@host:badport"),
            format!("etcd://:{password}@host:70000/x"),
            format!("etcd://user:{password}@host?color=1"),
            format!("etcd://user:{password}@host/one"),
            format!("etcd://user:{password}@"),
            format!("etcd://user:{password}"),
            format!("etcd://user:{password}@host,other"),
            format!("https://user:{password}@host"),
            format!("http://user:{password}@host"),
            format!("user:{password}@host"),
        ] {
            let shown = match parse(&url) {
                // A URL's password ends at the last `@` of the authority.
                Ok(parsed) => format!("{parsed:?}").replace("\"xkxk\"", "").replace("\"xkxk:2379\"", ""),
                Err(error) => format!("{error:?} {error}"),
            };
            assert!(!shown.contains("zqzq") && !shown.contains("xkxk"), "{url}: {shown}");
        }
    }
}
