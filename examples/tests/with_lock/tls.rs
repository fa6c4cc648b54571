//! Backends that speak TLS, and demand a certificate.

use lock_testkit::{Authority, Etcd, Redis, Validity, ZooKeeper};

use crate::harness::runtime;
use crate::kit::Tool;

#[test]
fn command_runs_under_lock_over_tls() {
    let authority = Authority::new();
    let client = authority.issue("client", &["app"], Validity::Current);
    let server = authority.server().needs_client();
    let redis = Redis::builder().tls(server.clone()).start();
    let etcd = Etcd::builder().tls(server.clone()).start();
    let zookeeper = ZooKeeper::builder().tls(server).start();
    let query = format!("{}&{}", authority.query(), client.query());
    let runtime = runtime();
    for url in [redis.tls_url(&query), etcd.tls_url(&query), zookeeper.tls_url(&query)] {
        let ended =
            Tool::start(&["--runtime", runtime, "--backend", &url, "job", "--", "printenv", "LOCK_FENCE"]).end();
        assert!(ended.code == 0 && !ended.out.trim().is_empty(), "{runtime} {url}: {ended:?}");
    }
}

/// Certificates, names and logins, all as the URL says.
#[test]
fn url_parameters_are_used() {
    let authority = Authority::new();
    let client = authority.issue("client", &["app"], Validity::Current);
    let server = authority.server_with(authority.issue("server", &["db.example"], Validity::Current)).needs_client();
    let redis = Redis::builder().tls(server).acl("app", "on >s3cret ~* &* +@all").start();
    let file = client.key.with_file_name("password");
    std::fs::write(&file, "s3cret\n").unwrap();
    let query = format!("{}&{}&server_name=db.example&user=app", authority.query(), client.query());
    let url = redis.tls_url(&query);
    let with_file = format!("{url}&password_file={}", file.display());
    let runtime = runtime();
    for (url, password, code) in [(&with_file, "of another", 0), (&url, "s3cret", 0), (&url, "wrong!", 77)] {
        let args = ["--runtime", runtime, "--backend", url, "job", "--", "true"];
        let ended = Tool::start_with(&args, &[("LOCK_PASSWORD", password)]).end();
        assert_eq!(ended.code, code, "{runtime} {url}: {ended:?}");
        assert!(!ended.err.contains("s3cret") && !ended.err.contains("wrong!"), "{ended:?}");
    }
}

#[test]
fn untrusted_backend_exits_with_77() {
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server()).start();
    let runtime = runtime();
    let url = redis.tls_url(&Authority::new().query());
    // The file is gone with its authority.
    let ended = Tool::start(&["--runtime", runtime, "--backend", &url, "job", "--", "true"]).end();
    assert!(ended.code == 64 && ended.err.contains("ca.pem: No such file"), "{runtime}: {ended:?}");
    let stranger = Authority::new();
    let url = redis.tls_url(&stranger.query());
    let ended = Tool::start(&["--runtime", runtime, "--backend", &url, "job", "--", "true"]).end();
    assert!(ended.code == 77 && ended.err.contains("issuer of the server's certificate"), "{runtime}: {ended:?}");
}
