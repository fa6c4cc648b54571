//! Server URLs.

use lock_proto::redis::Endpoint;
use lock_proto::{Secret, UrlError, etcd, zookeeper};

/// Parses `data` as a URL of each store. An accepted URL is displayed as an equivalent URL without
/// the password, and a rejected one gives an error message.
pub fn url(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    redis(text);
    cluster(text, "etcd://", |url| Ok(etcd::Config::parse(url)?.endpoints().iter().map(ToString::to_string).collect()));
    cluster(text, "zk://", |url| {
        Ok(zookeeper::Config::parse(url)?.servers().iter().map(ToString::to_string).collect())
    });
}

fn accepted<T>(parsed: Result<T, UrlError>) -> Option<T> {
    parsed.map_err(|error| assert!(!error.to_string().is_empty())).ok()
}

fn redis(text: &str) {
    let Some(endpoint) = accepted(Endpoint::parse(text)) else { return };
    let shown = endpoint.to_string();
    let debug = format!("{endpoint:?}");
    let mut masked = endpoint;
    masked.login.password = masked.login.password.map(|_| Secret::new("***"));
    // Whatever does not change with the password does not reveal it.
    assert_eq!((masked.to_string(), format!("{masked:?}")), (shown.clone(), debug));
    assert_eq!(Endpoint::parse(&shown).as_ref(), Ok(&masked), "{shown}");
}

/// The servers of a cluster are displayed as a URL's list of the same servers.
fn cluster(text: &str, scheme: &str, servers: impl Fn(&str) -> Result<Vec<String>, UrlError>) {
    let Some(shown) = accepted(servers(text)) else { return };
    let again = format!("{scheme}{}", shown.join(","));
    assert_eq!(servers(&again).as_ref(), Ok(&shown), "{again}");
}
