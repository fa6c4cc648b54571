//! Backends that speak TLS, and demand a certificate.

use lock_testkit::{Authority, Etcd, Redis, Validity};

use crate::kit::Tool;

#[test]
fn command_runs_under_lock_over_tls_on_every_runtime() {
    let authority = Authority::new();
    let client = authority.issue("client", &["app"], Validity::Current);
    let server = authority.server().needs_client();
    let redis = Redis::builder().tls(server.clone()).start();
    let etcd = Etcd::builder().tls(server).start();
    let query = format!("{}&{}", authority.query(), client.query());
    for runtime in ["tokio", "smol", "async-std"] {
        for url in [redis.tls_url(&query), etcd.tls_url(&query)] {
            let ended =
                Tool::start(&["--runtime", runtime, "--backend", &url, "job", "--", "printenv", "LOCK_FENCE"]).end();
            assert!(ended.code == 0 && !ended.out.trim().is_empty(), "{runtime} {url}: {ended:?}");
        }
    }
}

#[test]
fn untrusted_backend_exits_with_77() {
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server()).start();
    for runtime in ["tokio", "smol", "async-std"] {
        let url = redis.tls_url(&Authority::new().query());
        // The file is gone with its authority.
        let ended = Tool::start(&["--runtime", runtime, "--backend", &url, "job", "--", "true"]).end();
        assert!(ended.code == 64 && ended.err.contains("ca.pem: No such file"), "{runtime}: {ended:?}");
        let stranger = Authority::new();
        let url = redis.tls_url(&stranger.query());
        let ended = Tool::start(&["--runtime", runtime, "--backend", &url, "job", "--", "true"]).end();
        assert!(ended.code == 77 && ended.err.contains("issuer of the server's certificate"), "{runtime}: {ended:?}");
    }
    let url = redis.tls_url(&authority.query());
    let ended = Tool::start(&["--runtime", "blocking", "--backend", &url, "job", "--", "true"]).end();
    assert!(ended.code == 64 && ended.err.contains("blocking is without TLS"), "{ended:?}");
}
