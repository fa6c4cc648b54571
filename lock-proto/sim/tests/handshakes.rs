//! TLS handshakes that fail, hang or take long, in simulated worlds of Redis and etcd.
//!
//! The machines see no TLS: only when a connection is open, and why it is not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use core::time::Duration;

use lock_proto::{Acquire, Event, Failure, Release, TlsFault};
use lock_sim::world::Handshake;
use lock_sim::{World, etcd};

const BROKEN: [Handshake; 8] = [
    Handshake::Fails(TlsFault::Expired),
    Handshake::Fails(TlsFault::UnknownIssuer),
    Handshake::Fails(TlsFault::WrongName),
    Handshake::Fails(TlsFault::Closed),
    Handshake::Fails(TlsFault::Handshake),
    Handshake::FailsLater(TlsFault::CertificateRefused),
    Handshake::FailsLater(TlsFault::CertificateRequired),
    Handshake::Silent,
];
/// The longest pause between attempts to connect, by default. An attempt to acquire may have to
/// wait for another one of its own.
const PAUSE: Duration = Duration::from_secs(1);
/// The time after which an attempt to connect is given up, by default.
const CONNECT: Duration = Duration::from_secs(2);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// What is reported as a refusal at once.
const fn trust(handshake: Handshake) -> Option<TlsFault> {
    if let Handshake::Fails(fault) = handshake
        && fault.is_refusal()
    {
        return Some(fault);
    }
    None
}

fn failure(events: &[Event]) -> Option<&Failure> {
    events.iter().find_map(|event| if let Event::Failed(why) = event { Some(why) } else { None })
}

/// While certificates are broken, a lock that is held stays held, and a client that has to connect
/// gets none. Trust failures are reported as refusals. After the repair it gets the lock at the
/// next attempt to connect.
macro_rules! repaired {
    ($w:expr, $nodes:expr, $handshake:expr, $what:expr) => {{
        let (mut w, nodes, handshake, what) = ($w, $nodes, $handshake, $what);
        let kept = w.acquire(0, Acquire::new("kept"));
        let first = w.acquire(1, Acquire::new("a"));
        w.expect(ms(500), "both have a lock", |w| w.is_held(0, kept) && w.is_held(1, first));
        w.release(1, first);
        w.expect(ms(500), "one is released", |w| w.is_over(1, first));
        for client in 0..2 {
            (0..nodes).for_each(|node| w.set_handshake(client, node, handshake));
        }
        (0..nodes).for_each(|node| w.drop_connections(1, node));
        let refused = w.acquire(1, Acquire::new("a"));
        if let Some(fault) = trust(handshake) {
            w.expect(PAUSE, "the refusal is reported", |w| failure(w.events(1, refused)).is_some());
            let text = format!("{}", failure(w.events(1, refused)).unwrap());
            assert!(text.contains(&format!("{fault}")), "{what}: {text}");
        } else {
            w.run_for(secs(5));
            // If the request was already sent when the certificate was refused, its outcome is
            // unknown. Then a refusal is reported only by an attempt that finds no connection.
            let late = matches!(handshake, Handshake::FailsLater(_));
            assert!(late || failure(w.events(1, refused)).is_none(), "{what}");
        }
        w.run_for(secs(30));
        assert!(w.is_held(0, kept), "{what}: the open connection is not affected");
        assert!(w.grant(1, refused).is_none(), "{what}: granted without a connection");
        for client in 0..2 {
            (0..nodes).for_each(|node| w.set_handshake(client, node, Handshake::Trips(1)));
        }
        // An attempt that hangs has to end first.
        let hangs = if handshake == Handshake::Silent { CONNECT } else { Duration::ZERO };
        let until = w.now() + PAUSE * 5 / 2 + hangs;
        // Until the client has connected, it reports what it knows. The application tries again.
        let mut again = refused;
        while !w.is_held(1, again) {
            assert!(w.now() < until, "{what}: not acquired after the repair\n{}", w.log_tail(60));
            if failure(w.events(1, again)).is_some() {
                again = w.acquire(1, Acquire::new("a"));
            }
            w.run_for(ms(20));
        }
        w.release(1, again);
        w.expect(ms(500), "it is released", |w| w.events(1, again).contains(&Event::Released(Release::Released)));
        assert!(w.is_held(0, kept), "{what}");
    }};
}

#[test]
fn locks_are_acquired_promptly_after_certificates_are_repaired() {
    // S10
    for handshake in BROKEN {
        for seed in 0..4 {
            for nodes in [1, 3] {
                let what = format!("{handshake}, seed {seed}, {nodes} servers");
                repaired!(World::redis(nodes).clients(2).seed(seed).tls(Some(1)).build(), nodes, handshake, &what);
                let w = etcd::World::cluster(nodes).clients(2).seed(seed).tls(Some(1)).build();
                repaired!(w, nodes, handshake, &what);
            }
        }
    }
}

#[test]
fn one_node_with_broken_certificate_does_not_stop_quorum_or_cluster() {
    // S10
    for handshake in BROKEN {
        let mut w = World::redis(3).tls(Some(1)).build();
        w.set_handshake(0, 0, handshake);
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(secs(3), "two of three nodes grant", |w| w.is_held(0, lock));
        let mut w = etcd::World::cluster(3).tls(Some(1)).build();
        w.set_handshake(0, 0, handshake);
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(secs(3), "another member grants", |w| w.is_held(0, lock));
    }
}

#[test]
fn handshake_takes_its_round_trips() {
    // S10
    let latency = ms(10)..ms(10);
    let took = |tls| {
        let mut w = World::redis(1).latency(latency.clone()).tls(tls).build();
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(secs(1), "held", |w| w.is_held(0, lock));
        w.now()
    };
    let plain = took(None);
    assert_eq!([took(Some(1)), took(Some(3))], [plain + ms(20), plain + ms(60)]);
    let took = |tls| {
        let mut w = etcd::World::cluster(1).latency(latency.clone()).late(Duration::ZERO).tls(tls).build();
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(secs(1), "held", |w| w.is_held(0, lock));
        w.now()
    };
    let plain = took(None);
    assert_eq!([took(Some(1)), took(Some(3))], [plain + ms(20), plain + ms(60)]);
}

/// TLS 1.3: the client takes the connection for open and sends its request.
#[test]
fn server_that_refuses_certificate_late_executes_nothing() {
    // S10
    let mut w = World::redis(1).tls(Some(1)).build();
    w.set_handshake(0, 0, Handshake::FailsLater(TlsFault::CertificateRefused));
    let lock = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(500));
    assert!(w.log().contains("c0.3 connected"), "{}", w.log());
    assert!(w.log().contains(&format!("{}", TlsFault::CertificateRefused)), "{}", w.log());
    assert_eq!(w.total_calls(0), 0, "{}", w.log());
    assert!(w.grant(0, lock).is_none());
    assert_eq!(w.node(0).get(w.now(), b"a"), None);
}

#[test]
fn reset_in_handshake_is_failure_of_tls() {
    // S10
    let mut w = World::redis(1).latency(ms(10)..ms(10)).tls(Some(2)).build();
    let lock = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(35));
    w.drop_connections(0, 0);
    let text = format!("{}", TlsFault::Closed);
    assert!(w.log().contains(&text), "{}", w.log());
    w.expect(secs(1), "it connects again", |w| w.is_held(0, lock));
    w.drop_connections(0, 0);
    assert_eq!(w.log().matches(&text).count(), 1, "not once the connection is open: {}", w.log());
}

#[test]
fn paused_server_takes_no_part_in_handshake() {
    // S10
    let mut w = World::redis(1).tls(Some(1)).build();
    w.pause_node(0);
    let lock = w.acquire(0, Acquire::new("a"));
    w.run_for(secs(1));
    assert!(!w.log().contains("connected"), "{}", w.log());
    w.resume_node(0);
    w.expect(ms(100), "held", |w| w.is_held(0, lock));
}
