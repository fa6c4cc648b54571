//! Threads and TLS, on real servers with certificates of a private authority.
// N1, N3, N4, N5, N6, N7

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::sync::atomic::{AtomicU32, Ordering};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Instant;
use std::{fs, thread};

use lock_proto::{TlsFault, Wait};
use lock_testkit::{Authority, Proxy, Redis, TIMEOUT, Validity, wait_until};

use super::*;

const SHORT: Duration = Duration::from_millis(200);

fn start(url: &str) -> Client {
    Client::start(Config::parse(url).unwrap()).unwrap()
}

/// A client that gives up a handshake soon.
fn start_hasty(url: &str) -> Client {
    Client::start(Config::parse(url).unwrap().connect_timeout(SHORT)).unwrap()
}

/// The message of an acquisition that fails. Its wait ends only if the failure is definite.
fn refusal(url: &str) -> String {
    let client = start(url);
    let error = client.lock(Acquire::new("job").wait(Wait::Forever)).unwrap_err();
    assert!(matches!(error, LockError::Failed(Failure::Refused(_))), "{error}");
    stop(&client, SHORT);
    error.to_string()
}

/// The message of an acquisition that keeps trying until its wait ends.
fn timeout(url: &str) -> String {
    let client = start_hasty(url);
    let error = client.lock(Acquire::new("job").wait(Wait::For(5 * SHORT))).unwrap_err();
    assert!(matches!(error, LockError::Failed(Failure::TimedOut(_))), "{error}");
    stop(&client, SHORT);
    error.to_string()
}

fn lock_once(client: &Client) {
    let held = client.lock(Acquire::new("job")).unwrap();
    assert!(held.is_held());
    assert_eq!(held.release(), Release::Released);
}

/// Shuts down, and waits until no thread of the client is left. Returns how many releases are
/// unconfirmed.
#[track_caller]
fn stop(client: &Client, within: Duration) -> u32 {
    let unreleased = client.shutdown(within);
    assert!(wait_until(TIMEOUT, || Arc::strong_count(&client.shared) == 1), "a thread is left");
    unreleased
}

/// A server that does this with each connection. Returns its URL.
fn serve(authority: &Authority, behaviour: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rediss://{}?{}", listener.local_addr().unwrap(), authority.query());
    thread::spawn(move || listener.incoming().flatten().for_each(behaviour));
    url
}

/// A verified connection.
fn open(url: &str) -> (Arc<Socket>, Reader) {
    let config = Config::parse(url).unwrap();
    let target = &config.nodes()[0].target;
    let session = Certificates::load(&config).unwrap().session(target).unwrap();
    let socket = Arc::new(Socket::open(target, session).unwrap());
    let mut reader = Reader::new(Arc::clone(&socket));
    reader.verify().unwrap();
    (socket, reader)
}

/// Much more than a record, a session and the buffers of a socket take, both ways at once.
#[test]
fn megabytes_cross_one_session_both_ways() {
    const COUNT: usize = 100;
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server()).start();
    let (socket, mut reader) = open(&redis.tls_url(&authority.query()));
    let text: String = ('a'..='z').cycle().take(100_000).collect();
    let reply = format!("${}\r\n{text}\r\n", text.len());
    let request = format!("*2\r\n$4\r\nECHO\r\n{reply}");
    let (mut received, mut buffer) = (Vec::new(), vec![0; 1000]);
    thread::scope(|scope| {
        scope.spawn(|| (0..COUNT).for_each(|_| socket.write_all(request.as_bytes()).unwrap()));
        while received.len() < COUNT * reply.len() {
            let count = reader.read(&mut buffer).unwrap();
            assert!(count > 0, "the end after {} bytes", received.len());
            received.extend_from_slice(&buffer[..count]);
        }
    });
    assert!(received == reply.repeat(COUNT).as_bytes());
}

/// A server with TLS 1.3 refuses a client after the handshake. Writing then fails without a reason.
#[test]
fn alert_is_read_after_writing_has_failed() {
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server().needs_client()).start();
    let (socket, mut reader) = open(&redis.tls_url(&authority.query()));
    assert!(wait_until(TIMEOUT, || socket.write_all(b"PING\r\n").is_err()));
    socket.close();
    let error = reader.read(&mut [0]).unwrap_err();
    assert_eq!(socket::fault(&error, false), TlsFault::CertificateRequired.into());
}

/// Two thousand requests at once, over one connection whose reader and writer share a session.
#[test]
fn threads_hold_many_locks_over_one_tls_connection() {
    const THREADS: usize = 8;
    const LOCKS: usize = 250;
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server().needs_client()).start();
    let pair = authority.issue("client", &["app"], Validity::Current);
    let proxy = Proxy::start(redis.tls_address());
    let client = start(&format!("rediss://{}?{}&{}", proxy.address(), authority.query(), pair.query()));
    thread::scope(|scope| {
        let client = &client;
        for thread in 0..THREADS {
            scope.spawn(move || {
                let names = (0..LOCKS).map(|lock| Acquire::new(format!("job:{thread}:{lock}")));
                let locks: Vec<Lock> = names.map(|name| client.request(name).unwrap()).collect();
                for lock in &locks {
                    let event = lock.next_event(Some(TIMEOUT));
                    assert!(matches!(event, Some(Event::Granted(_))), "{event:?}");
                    lock.claim().unwrap();
                }
                assert!(locks.iter().all(|lock| lock.remaining().is_some()));
                for lock in &locks {
                    lock.release().unwrap();
                }
                for lock in &locks {
                    assert_eq!(lock.next_event(Some(TIMEOUT)), Some(Event::Released(Release::Released)));
                }
            });
        }
    });
    // In turn, under one name.
    let (counter, inside) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..10 {
                    let held = client.lock(Acquire::new("job")).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    counter.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(held.release(), Release::Released);
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), 80);
    assert_eq!(stop(&client, TIMEOUT), 0);
    assert!(proxy.connects() <= 2, "one for commands, one for the wake-up of waiters");
}

#[test]
fn untrusted_server_is_refused_at_once_with_its_reason() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let here = ["127.0.0.1"];
    let current = authority.issue("good", &here, Validity::Current);
    for (pair, trusted, fault) in [
        (authority.issue("expired", &here, Validity::Expired), &authority, TlsFault::Expired),
        (authority.issue("other", &["db.example"], Validity::Current), &authority, TlsFault::WrongName),
        (current.clone(), &stranger, TlsFault::UnknownIssuer),
    ] {
        let redis = Redis::builder().tls(authority.server_with(pair)).start();
        let error = refusal(&redis.tls_url(&trusted.query()));
        assert!(error.contains(&fault.to_string()), "{error}");
        assert!(redis.keys().is_empty(), "nothing was sent");
        if fault == TlsFault::WrongName {
            lock_once(&start(&redis.tls_url(&format!("{}&server_name=db.example", authority.query()))));
        }
    }
    // TLS 1.3 refuses a client after the handshake, by an alert that races with the first request.
    let redis = Redis::builder().tls(authority.server_with(current).needs_client()).start();
    let strange = stranger.issue("client", &["app"], Validity::Current);
    for _ in 0..20 {
        let error = refusal(&redis.tls_url(&authority.query()));
        assert!(error.contains(&TlsFault::CertificateRequired.to_string()), "{error}");
        let error = refusal(&redis.tls_url(&format!("{}&{}", authority.query(), strange.query())));
        assert!(error.contains(&TlsFault::CertificateRefused.to_string()), "{error}");
    }
}

#[test]
fn unusable_settings_are_errors_of_start() {
    let authority = Authority::new();
    let insecure = format!("rediss://127.0.0.1:1?{}#insecure", authority.query());
    for (url, words) in
        [("rediss://127.0.0.1:1?ca=/no/such/file", "/no/such/file: No such file"), (&insecure, "allow_insecure")]
    {
        let result = Client::start(Config::parse(url).unwrap());
        assert!(matches!(&result, Err(ConnectError::Tls(text)) if text.contains(words)), "{url}: {result:?}");
    }
}

#[test]
fn server_of_other_protocol_is_named() {
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server()).start();
    // It waits for the end of a command.
    let plain_port = redis.url().replace("redis://", "rediss://");
    let error = timeout(&format!("{plain_port}?{}", authority.query()));
    assert!(error.contains(&TlsFault::TimedOut.to_string()), "{error}");
    assert!(redis.keys().is_empty());
    let replying = serve(&authority, |mut stream| {
        let _ = stream.write_all(b"-ERR unknown command\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = refusal(&replying);
    assert!(error.contains(&TlsFault::NotTls.to_string()), "{error}");
    // The other way round.
    let error = timeout(&format!("redis://{}", redis.tls_address()));
    assert!(error.contains("expect TLS") || error.contains("expects TLS"), "{error}");
}

#[test]
fn connection_cut_in_the_handshake_is_named() {
    let authority = Authority::new();
    let error = timeout(&serve(&authority, |mut stream| {
        let _ = stream.read(&mut [0]);
    }));
    assert!(error.contains(&TlsFault::Closed.to_string()), "{error}");
}

/// The machine gives up after `connect_timeout`. That ends the handshake and its thread, while the
/// client goes on.
#[test]
fn handshake_with_silent_server_ends_in_time() {
    let authority = Authority::new();
    let (send, ends) = channel();
    let url = serve(&authority, move |mut stream| {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut hello = Vec::new();
        let _ = send.send(stream.read_to_end(&mut hello).map(|_| hello));
    });
    let client = start_hasty(&url);
    let lock = client.request(Acquire::new("job").wait(Wait::Forever)).unwrap();
    for _ in 0..2 {
        let hello = ends.recv_timeout(TIMEOUT).unwrap().unwrap();
        assert_eq!(hello[0], 22, "a handshake record");
    }
    drop(lock);
    stop(&client, SHORT);
    let error = timeout(&url);
    assert!(error.contains(&TlsFault::TimedOut.to_string()), "{error}");
}

/// Both sides change to another authority while a lock is held, and the connection is cut.
#[test]
fn held_lock_survives_cut_and_replaced_certificates() {
    const TTL: Duration = Duration::from_secs(3);
    let authority = Authority::new();
    let files = authority.issue("client", &["app"], Validity::Current);
    let redis = Redis::builder().tls(authority.server().needs_client()).start();
    let proxy = Proxy::start(redis.tls_address());
    let client = start(&format!("rediss://{}?{}&{}", proxy.address(), authority.query(), files.query()));
    let held = client.lock(Acquire::new("job").ttl(TTL)).unwrap();
    let token = redis.cli(&["GET", "job"]);

    let other = Authority::new();
    let theirs = other.issue("client", &["app"], Validity::Current);
    let server = other.issue("server", &["127.0.0.1"], Validity::Current);
    for (from, to) in [(&theirs.cert, &files.cert), (&theirs.key, &files.key), (&other.ca(), &authority.ca())] {
        fs::copy(from, to).unwrap();
    }
    let [ca, cert, key] = [other.ca(), server.cert, server.key].map(|path| path.display().to_string());
    let set = ["CONFIG", "SET", "tls-ca-cert-file", &ca, "tls-cert-file", &cert, "tls-key-file", &key];
    assert_eq!(redis.cli(&set), "OK");

    // Renewed beyond its old end, so over a new connection.
    let end = Instant::now() + held.remaining();
    proxy.cut();
    let is_renewed = || {
        assert!(held.is_held());
        Instant::now() + held.remaining() > end + TTL
    };
    assert!(wait_until(TIMEOUT, is_renewed), "not renewed");
    assert!(proxy.connects() > 1);
    assert_eq!(redis.cli(&["GET", "job"]), token);
    assert_eq!(held.release(), Release::Released);
    assert_eq!(stop(&client, TIMEOUT), 0);
}
