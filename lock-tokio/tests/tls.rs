//! Locks over TLS, on real servers with certificates of a private authority.
// N1, N3, N4, N5, N6, N7

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use core::time::Duration;
use futures_util::future::{join_all, try_join_all};
use lock_testkit::{Authority, Etcd, Proxy, Redis, Validity};
use lock_tokio::etcd;
use lock_tokio::lock_proto::TlsFault;
use lock_tokio::{Client, ConnectError, Guard, Release, Settings, redis};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::{fs, thread};
use tokio::time::sleep;

use common::in_time;

async fn lock_once(client: &Client) {
    let guard = in_time("acquire", client.lock("job").acquire()).await.unwrap();
    assert!(guard.is_held());
    assert_eq!(in_time("release", guard.release()).await, Release::Released);
}

/// Acquires a lock that must be refused at once, and returns the message.
async fn refusal(url: &str) -> String {
    let client = lock_tokio::connect(url).unwrap();
    let error = in_time("refusal", client.lock("job").acquire()).await.unwrap_err();
    assert!(error.is_refused(), "{error}");
    error.to_string()
}

#[tokio::test]
async fn redis_lock_is_acquired_over_tls() {
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server()).start();
    lock_once(&lock_tokio::connect(&redis.tls_url(&authority.query())).unwrap()).await;
}

#[tokio::test]
async fn client_certificate_is_presented() {
    let authority = Authority::new();
    let client = authority.issue("client", &["app"], Validity::Current);
    let redis = Redis::builder().tls(authority.server().needs_client()).start();
    let query = format!("{}&{}", authority.query(), client.query());
    lock_once(&lock_tokio::connect(&redis.tls_url(&query)).unwrap()).await;
}

#[tokio::test]
async fn etcd_lock_is_acquired_over_tls() {
    let authority = Authority::new();
    let client = authority.issue("client", &["app"], Validity::Current);
    let etcd = Etcd::builder().tls(authority.server().needs_client()).start();
    let query = format!("{}&{}", authority.query(), client.query());
    lock_once(&lock_tokio::connect(&etcd.tls_url(&query)).unwrap()).await;
}

/// `#insecure` in a URL is not enough.
#[tokio::test]
async fn unverified_server_is_used_only_if_code_allows_it() {
    let redis = Redis::builder().tls(Authority::new().server()).start();
    let url = redis.tls_url("") + "#insecure";
    let error = lock_tokio::connect(&url).unwrap_err();
    assert!(matches!(error, ConnectError::Tls(_)) && error.to_string().contains("allow_insecure"), "{error}");
    let settings = Settings::parse([url]).unwrap().allow_insecure();
    lock_once(&lock_tokio::connect_with(settings).unwrap()).await;
}

/// A configuration made by the user replaces the files of the URL.
#[tokio::test]
async fn own_configuration_is_used_and_excludes_files() {
    let authority = Authority::new();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let redis = Redis::builder().tls(authority.server()).start();
    accepts_only_without_files(&redis.tls_url(""), &authority, &config).await;
    let etcd = Etcd::builder().tls(authority.server()).start();
    accepts_only_without_files(&etcd.tls_url(""), &authority, &config).await;
}

async fn accepts_only_without_files(url: &str, authority: &Authority, config: &Arc<ClientConfig>) {
    let connect = |url: String| {
        let settings = Settings::parse([url]).unwrap().tls_config(Arc::clone(config));
        lock_tokio::connect_with(settings)
    };
    lock_once(&connect(url.to_owned()).unwrap()).await;
    let plaintext = if url.starts_with("rediss") { "redis://127.0.0.1" } else { "etcd://127.0.0.1" };
    for (url, words) in [
        (format!("{url}{}", authority.query()), "do not go together with `tls_config`"),
        (format!("{url}#insecure"), "do not go together with `tls_config`"),
        (plaintext.to_owned(), "`tls_config` needs a URL with TLS"),
    ] {
        let error = connect(url).unwrap_err();
        assert!(matches!(error, ConnectError::Tls(_)) && error.to_string().contains(words), "{error}");
    }
    // Without either, the authority is not known.
    let error = refusal(url).await;
    assert!(error.contains(&TlsFault::UnknownIssuer.to_string()), "{error}");
}

/// Servers whose certificate is not acceptable, and what each error says.
#[tokio::test]
async fn untrusted_server_is_refused_with_its_reason() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let here = ["127.0.0.1"];
    for (pair, trusted, fault) in [
        (authority.issue("expired", &here, Validity::Expired), &authority, TlsFault::Expired),
        (authority.issue("early", &here, Validity::NotYet), &authority, TlsFault::NotYetValid),
        (authority.issue("other", &["db.example"], Validity::Current), &authority, TlsFault::WrongName),
        (authority.issue("good", &here, Validity::Current), &stranger, TlsFault::UnknownIssuer),
    ] {
        let tls = authority.server_with(pair);
        let redis = Redis::builder().tls(tls.clone()).start();
        let error = refusal(&redis.tls_url(&trusted.query())).await;
        assert!(error.contains("rediss://") && error.contains(&fault.to_string()), "{error}");
        assert!(redis.keys().is_empty(), "nothing was sent");
        let etcd = Etcd::builder().tls(tls).start();
        let error = refusal(&etcd.tls_url(&trusted.query())).await;
        assert!(error.contains("etcds://") && error.contains(&fault.to_string()), "{error}");
    }
    // The name that the certificate has is accepted.
    let other = authority.issue("other", &["db.example"], Validity::Current);
    let redis = Redis::builder().tls(authority.server_with(other)).start();
    let query = format!("{}&server_name=db.example", authority.query());
    lock_once(&lock_tokio::connect(&redis.tls_url(&query)).unwrap()).await;
}

#[tokio::test]
async fn refused_client_certificate_is_named() {
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server().needs_client()).start();
    let error = refusal(&redis.tls_url(&authority.query())).await;
    assert!(error.contains(&TlsFault::CertificateRequired.to_string()), "{error}");
    let etcd = Etcd::builder().tls(authority.server().needs_client()).start();
    let error = refusal(&etcd.tls_url(&authority.query())).await;
    assert!(error.contains(&TlsFault::CertificateRequired.to_string()), "{error}");
    let stranger = Authority::new();
    let strange = stranger.issue("client", &["app"], Validity::Current);
    let error = refusal(&redis.tls_url(&format!("{}&{}", authority.query(), strange.query()))).await;
    assert!(error.contains(&TlsFault::CertificateRefused.to_string()), "{error}");
}

#[tokio::test]
async fn tls_is_never_replaced_by_plaintext() {
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server()).start();
    let plain_port = redis.url().replace("redis://", "rediss://");
    // It waits for the end of a command.
    let config = redis::Config::parse(&format!("{plain_port}?{}", authority.query())).unwrap();
    let client = lock_tokio::connect_with(config.connect_timeout(Duration::from_millis(200))).unwrap();
    let waiting = client.lock("job").wait(Duration::from_secs(1)).acquire();
    let error = in_time("timeout", waiting).await.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains(&TlsFault::TimedOut.to_string()), "{error}");
    assert!(redis.keys().is_empty());
    // A ping asks once, and for less time than a connection may take.
    let client = lock_tokio::connect(&format!("{plain_port}?{}", authority.query())).unwrap();
    let error = in_time("ping", client.ping()).await.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains(&TlsFault::TimedOut.to_string()), "{error}");
    let etcd = Etcd::start();
    let plain_port = etcd.url().replace("etcd://", "etcds://");
    let client = lock_tokio::connect(&format!("{plain_port}?{}", authority.query())).unwrap();
    let waiting = client.lock("job").wait(Duration::from_millis(2500)).acquire();
    let error = in_time("timeout", waiting).await.unwrap_err().to_string();
    assert!(error.contains(&TlsFault::Closed.to_string()), "{error}");
    // And the other way round there is a hint.
    let tls_port = format!("redis://{}", redis.tls_address());
    let client = lock_tokio::connect(&tls_port).unwrap();
    let waiting = client.lock("job").wait(Duration::from_millis(300)).acquire();
    let error = in_time("timeout", waiting).await.unwrap_err().to_string();
    assert!(error.contains("expect TLS") || error.contains("expects TLS"), "{error}");
}

#[tokio::test]
async fn unusable_file_is_an_error_of_connect() {
    let authority = Authority::new();
    let pair = authority.issue("client", &["app"], Validity::Current);
    let empty = pair.cert.with_file_name("empty.pem");
    fs::write(&empty, "no certificate").unwrap();
    let (ca, cert, key) = (authority.ca(), pair.cert, pair.key);
    let [ca, cert, key, empty] = [ca, cert, key, empty].map(|path| path.display().to_string());
    for (query, words) in [
        ("ca=/no/such/file".to_owned(), "/no/such/file: No such file"),
        (format!("ca={empty}"), "no certificate"),
        (format!("ca={ca}&cert={cert}&key={empty}"), "no private key"),
        (format!("ca={ca}&cert={empty}&key={key}"), "no certificate"),
        (format!("ca={ca}&server_name=-"), "`-` is no name"),
    ] {
        let result = lock_tokio::connect(&format!("rediss://127.0.0.1:1?{query}"));
        assert!(matches!(&result, Err(ConnectError::Tls(text)) if text.contains(words)), "{query}: {result:?}");
    }
}

/// A peer that answers the handshake with another protocol.
#[tokio::test]
async fn server_without_tls_is_refused() {
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rediss://{}?{}", listener.local_addr().unwrap(), authority.query());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"-ERR unknown command\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    let error = refusal(&url).await;
    assert!(error.contains(&TlsFault::NotTls.to_string()), "{error}");
}

/// A proxy that speaks TLS, in front of a server that is down, closes the connection.
#[tokio::test]
async fn server_that_closes_after_handshake_is_not_suspected_of_tls() {
    let authority = Authority::new();
    let pair = authority.issue("proxy", &["127.0.0.1"], Validity::Current);
    let certs = CertificateDer::pem_file_iter(&pair.cert).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(&pair.key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_no_client_auth().with_single_cert(certs, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut session = ServerConnection::new(Arc::clone(&config)).unwrap();
            while session.is_handshaking() && session.complete_io(&mut stream).is_ok() {}
            session.send_close_notify();
            let _ = session.complete_io(&mut stream);
        }
    });
    for scheme in ["rediss", "etcds"] {
        let client = lock_tokio::connect(&format!("{scheme}://{address}?{}", authority.query())).unwrap();
        let error = in_time("failure", client.lock("job").wait(Duration::from_secs(2)).acquire()).await.unwrap_err();
        let text = error.to_string();
        // It is a reset if the server has not read what the client sent.
        let told = text.contains("closed the connection") || text.contains("the connection was reset");
        assert!(told && !text.contains("TLS"), "{text}");
    }
}

/// The server demands certificates of a new authority while a lock is held. The client's files are
/// replaced, the connection is cut, and the lock is not lost.
#[tokio::test]
async fn replaced_certificates_are_used_by_the_next_connection() {
    let authority = Authority::new();
    let client_files = authority.issue("client", &["app"], Validity::Current);
    let redis = Redis::builder().tls(authority.server().needs_client()).start();
    let url = redis.tls_url(&format!("{}&{}", authority.query(), client_files.query()));
    let client = lock_tokio::connect(&url).unwrap();
    let guard = in_time("acquire", client.lock("job").ttl(Duration::from_secs(3)).acquire()).await.unwrap();

    // A broken file keeps the last good one.
    fs::write(&client_files.cert, "").unwrap();
    cut_connections(&redis);
    in_time("extend", extend(&guard)).await;

    // Both sides change to another authority.
    let other = Authority::new();
    let theirs = other.issue("client", &["app"], Validity::Current);
    let server = other.issue("server", &["127.0.0.1"], Validity::Current);
    for (from, to) in
        [(&theirs.cert, &client_files.cert), (&theirs.key, &client_files.key), (&other.ca(), &authority.ca())]
    {
        fs::copy(from, to).unwrap();
    }
    let [ca, cert, key] = [other.ca(), server.cert, server.key].map(|path| path.display().to_string());
    let set = ["CONFIG", "SET", "tls-ca-cert-file", &ca, "tls-cert-file", &cert, "tls-key-file", &key];
    assert_eq!(redis.cli(&set), "OK");
    cut_connections(&redis);
    in_time("extend", extend(&guard)).await;
    assert!(guard.is_held());
    assert_eq!(in_time("release", guard.release()).await, Release::Released);
}

/// Both sides change to another authority while a thousand locks are held, and every connection is
/// cut. No lock is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_locks_survive_replaced_certificates() {
    const COUNT: usize = 1000;
    const TTL: Duration = Duration::from_secs(3);
    let authority = Authority::new();
    let files = authority.issue("client", &["app"], Validity::Current);
    let redis = Redis::builder().tls(authority.server().needs_client()).start();
    let url = redis.tls_url(&format!("{}&{}", authority.query(), files.query()));
    let client = lock_tokio::connect(&url).unwrap();
    let names = (0..COUNT).map(|n| client.lock(format!("job:{n}")).ttl(TTL).acquire());
    let guards = in_time("acquire", try_join_all(names)).await.unwrap();
    let tokens: Vec<String> = guards.iter().map(|guard| guard.token().to_string()).collect();
    let until: Vec<_> = guards.iter().map(Guard::valid_until).collect();

    let other = Authority::new();
    let theirs = other.issue("client", &["app"], Validity::Current);
    let server = other.issue("server", &["127.0.0.1"], Validity::Current);
    // The server first: until the client has its files, each of its new connections is refused.
    let [ca, cert, key] = [other.ca(), server.cert, server.key].map(|path| path.display().to_string());
    let set = ["CONFIG", "SET", "tls-ca-cert-file", &ca, "tls-cert-file", &cert, "tls-key-file", &key];
    assert_eq!(redis.cli(&set), "OK");
    cut_connections(&redis);
    let old = Authority::new();
    fs::copy(authority.ca(), old.ca()).unwrap();
    assert!(refusal(&redis.tls_url(&old.query())).await.contains(&TlsFault::UnknownIssuer.to_string()));
    for (from, to) in [(&theirs.cert, &files.cert), (&theirs.key, &files.key), (&other.ca(), &authority.ca())] {
        fs::copy(from, to).unwrap();
    }

    // Each lock is renewed beyond its old end, so over a new connection.
    for (guard, until) in guards.iter().zip(until) {
        let renewed = async {
            while guard.is_held() && guard.valid_until() < until + TTL {
                sleep(Duration::from_millis(5)).await;
            }
        };
        in_time("a renewal", renewed).await;
    }
    assert!(guards.iter().all(Guard::is_held));
    let held: Vec<String> = (0..COUNT).map(|n| format!("job:{n}")).collect();
    let get: Vec<&str> = ["MGET"].into_iter().chain(held.iter().map(String::as_str)).collect();
    assert_eq!(redis.cli(&get), tokens.join("\n"), "nobody else took one");
    let released = in_time("release", join_all(guards.into_iter().map(Guard::release))).await;
    assert!(released.iter().all(|outcome| *outcome == Release::Released), "{released:?}");
}

/// etcd reads a replaced certificate by itself. Its locks live as long as one session, whose
/// connection is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_session_with_hundred_locks_survives_replaced_certificate() {
    const COUNT: usize = 100;
    const TTL: Duration = Duration::from_secs(3);
    let authority = Authority::new();
    let pair = authority.issue("server", &["127.0.0.1"], Validity::Current);
    let etcd = Etcd::builder().tls(authority.server_with(pair.clone())).start();
    let address = etcd.tls_url("").split_once("://").unwrap().1.trim_end_matches('?').parse().unwrap();
    let proxy = Proxy::start(address);
    let url = format!("etcds://{}?{}", proxy.address(), authority.query());
    let client = lock_tokio::connect_with(etcd::Config::parse(&url).unwrap().session_ttl(TTL)).unwrap();
    let names = (0..COUNT).map(|n| client.lock(format!("job:{n}")).acquire());
    let guards = in_time("acquire", try_join_all(names)).await.unwrap();
    let until: Vec<_> = guards.iter().map(Guard::valid_until).collect();
    let (keys, leases) = (etcd.keys(), etcd.leases());
    assert_eq!((keys.len(), leases.len()), (COUNT, 1));

    let other = Authority::new();
    let server = other.issue("server", &["127.0.0.1"], Validity::Current);
    for (from, to) in [(&server.cert, &pair.cert), (&server.key, &pair.key)] {
        fs::copy(from, to).unwrap();
    }
    let before = proxy.connects();
    proxy.cut();
    let reconnects = async {
        while proxy.connects() == before {
            sleep(Duration::from_millis(5)).await;
        }
    };
    in_time("a connection that is refused", reconnects).await;
    fs::copy(other.ca(), authority.ca()).unwrap();

    for (guard, until) in guards.iter().zip(until) {
        let renewed = async {
            while guard.is_held() && guard.valid_until() < until + TTL {
                sleep(Duration::from_millis(5)).await;
            }
        };
        in_time("a renewal", renewed).await;
    }
    assert!(guards.iter().all(Guard::is_held));
    assert_eq!((etcd.keys(), etcd.leases()), (keys, leases), "the same session");
    let released = in_time("release", join_all(guards.into_iter().map(Guard::release))).await;
    assert!(released.iter().all(|outcome| *outcome == Release::Released), "{released:?}");
    assert_eq!(etcd.keys(), [""; 0]);
}

/// Extends the lock, over a new connection if the request was on its way over the old one.
async fn extend(guard: &Guard) {
    while guard.extend().await.is_err() {
        assert!(guard.is_held());
        sleep(Duration::from_millis(5)).await;
    }
}

fn cut_connections(redis: &Redis) {
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
}
