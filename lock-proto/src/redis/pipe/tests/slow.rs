//! Slow servers: late replies, and limits on what is sent at once.

use super::*;

/// The lock with the short TTL gets no reply for ten times its TTL, and delays no other lock.
#[test]
fn connection_times_out_on_silence_not_on_slow_reply() {
    // P6
    let (mut rig, conn) = PipeRig::up();
    let first = rig.send(short("a"));
    let others: Vec<CallId> = (0..4).map(|_| rig.send(take("b"))).collect();
    rig.written(conn);
    rig.pass(TIMEOUT - MS);
    rig.receive(conn, b"+OK\r\n");
    assert_eq!(rig.outputs(), [granted(first)]);
    for call in others {
        assert_eq!(rig.pipe.next_deadline(), Some(rig.now + TIMEOUT));
        rig.pass(TIMEOUT - MS);
        // A partial reply also counts as activity.
        rig.receive(conn, b"+O");
        rig.pass(TIMEOUT - MS);
        rig.receive(conn, b"K\r\n");
        assert_eq!(rig.outputs(), [granted(call)]);
    }
    assert_eq!(rig.pipe.next_deadline(), None, "nothing is outstanding");
    // Silence does not count while nothing is in flight.
    rig.pass(10 * TIMEOUT);
    rig.send(take("c"));
    assert_eq!(rig.pipe.next_deadline(), Some(rig.now + TIMEOUT));
    rig.pass(TIMEOUT);
    assert_eq!(rig.outputs()[0], PipeOutput::Disconnect(conn, Some(fault(Fault::TimedOut))));
}

#[test]
fn number_of_requests_in_flight_is_limited() {
    // P6
    let (mut rig, conn) = PipeRig::up();
    let most = Limits::default().in_flight;
    let calls: Vec<CallId> = (0..most + 10).map(|_| rig.send(extend("a"))).collect();
    rig.written(conn);
    assert_eq!((rig.pipe.in_flight(), rig.pipe.has_outgoing(conn)), (most, false));
    rig.receive(conn, b":1\r\n:1\r\n");
    assert!(rig.pipe.has_outgoing(conn));
    rig.written(conn);
    assert_eq!((rig.pipe.in_flight(), rig.pipe.has_outgoing(conn)), (most, false));
    assert_eq!(rig.outputs(), [0, 1].map(|n| reply(calls[n], Reply::Extended)));
}

/// A take is not sent after half of its TTL. An extension is.
#[test]
fn take_queued_for_half_its_ttl_is_not_sent() {
    // P6
    let (mut rig, conn) = PipeRig::up();
    let full: Vec<CallId> = (0..Limits::default().in_flight).map(|_| rig.send(extend("a"))).collect();
    rig.written(conn);
    let (late, other, extended) = (rig.send(short("b")), rig.send(take("c")), rig.send(extend("d")));
    rig.pass(50 * MS);
    rig.receive(conn, &b":1\r\n".repeat(full.len()));
    rig.outputs();
    assert_eq!(commands(&rig.written(conn)).len(), 2);
    assert_eq!(rig.outputs(), [reply(late, Reply::NotSent(fault(Fault::TimedOut)))]);
    rig.receive(conn, b":1\r\n+OK\r\n");
    assert_eq!(rig.outputs(), [reply(extended, Reply::Extended), granted(other)]);
}

/// Regression: behind a burst of attempts it came too late, and the lock was lost.
#[test]
fn renewal_overtakes_requests_that_have_not_left() {
    // P4
    let (mut rig, conn) = PipeRig::up();
    rig.pipe.state.config.limits.in_flight = 1;
    let calls = ["a", "b", "c"].map(|name| rig.send(take(name)));
    assert_eq!(rig.commands(conn), ["SET"]);
    let renewals = ["d", "e"].map(|name| rig.send(extend(name)));
    rig.receive(conn, b"+OK\r\n");
    assert_eq!(rig.outputs(), [granted(calls[0])]);
    for renewal in renewals {
        assert!(rig.commands(conn)[0].starts_with("EVAL"));
        rig.receive(conn, b":1\r\n");
        assert_eq!(rig.outputs(), [reply(renewal, Reply::Extended)]);
    }
    assert_eq!(rig.commands(conn), ["SET"]);
    rig.receive(conn, b"+OK\r\n");
    assert_eq!(rig.outputs(), [granted(calls[1])]);
}

/// The plaintext port of Redis waits for the end of a command, so the handshake never ends.
#[test]
fn request_that_times_out_during_handshake_names_tls() {
    for (url, why) in [("rediss://h", Fault::Tls(crate::TlsFault::TimedOut)), ("redis://h", Fault::TimedOut)] {
        let mut rig = PipeRig::with(url, Role::Commands, false);
        rig.pipe.open(rig.now);
        let call = rig.send(short("a"));
        rig.outputs();
        rig.pass(50 * MS);
        assert_eq!(rig.outputs(), [reply(call, Reply::NotSent(fault(why)))], "{url}");
    }
}
