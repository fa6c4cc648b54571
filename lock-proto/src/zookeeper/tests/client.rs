//! Shutdown of a client, and checks of its servers.

use super::*;

#[test]
fn shutdown_releases_and_ends_session() {
    // U2
    let mut w = ZooKeeperClients::new(2);
    let (lock, _) = w.hold(0);
    let second = w.acquire(1);
    w.clients[1].shutdown(w.now, Duration::from_secs(2));
    w.run();
    assert!(matches!(w.failure(1, second), Some(Failure::ShuttingDown)));
    assert_eq!(w.stopped.take(), Some(0));
    w.clients[0].shutdown(w.now, Duration::from_secs(2));
    w.run();
    assert_eq!(w.lost(0, lock), Some(Loss::ShutDown));
    assert_eq!((w.stopped, w.server.sessions.len(), w.queue().len()), (Some(0), 0, 0));
    assert!(w.conns.is_empty());
}

#[test]
fn shutdown_leaves_node_of_lost_hold_to_its_guard() {
    // H6, U2
    let mut w = ZooKeeperClients::new(1);
    let lock = w.request(0, &Acquire::new("l").renew(Renew::AtMost(Duration::from_secs(4))));
    w.granted(0, lock).unwrap();
    w.pass(4_000);
    assert_eq!((w.lost(0, lock), w.queue().len()), (Some(Loss::MaxHold), 1));
    w.clients[0].shutdown(w.now, Duration::from_secs(2));
    w.run();
    assert_eq!((w.stopped, w.queue().len()), (Some(1), 1), "the session is left");
}

#[test]
fn shutdown_without_server_ends_in_time() {
    let mut w = ZooKeeperClients::new(1);
    w.hold(0);
    w.unreachable = true;
    w.cut(0);
    w.clients[0].shutdown(w.now, Duration::from_secs(2));
    w.pass(2_000);
    assert_eq!(w.stopped, Some(2), "the node and the session");
}

/// Regression: it was reported as complete.
#[test]
fn shutdown_counts_session_whose_end_is_not_confirmed() {
    // U2
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    w.release(0, lock);
    w.server.mute = Some((OpCode::CloseSession, false));
    w.clients[0].shutdown(w.now, Duration::from_secs(60));
    w.unreachable = true;
    w.cut(0);
    w.pass(60_000);
    assert_eq!(w.stopped, Some(1));
}

#[test]
fn shutdown_counts_session_that_ended_shortly_before_without_confirmation() {
    // U2
    for (ms, left) in [(1_000, 1), (16_000, 0)] {
        let mut w = ZooKeeperClients::new(1);
        let lock = w.request(0, &Acquire::new("l").renew(Renew::Manual));
        w.granted(0, lock).unwrap();
        w.server.mute = Some((OpCode::CloseSession, false));
        w.release(0, lock);
        w.unreachable = true;
        w.cut(0);
        // The client gives up a TTL after its request.
        w.pass(15_000 + ms);
        w.clients[0].shutdown(w.now, Duration::from_secs(60));
        w.run();
        assert_eq!(w.stopped, Some(left), "{ms}");
    }
}

/// A server that refuses a session as expired ends it, now or later. Nothing is left to do.
#[test]
fn shutdown_counts_no_session_that_is_refused() {
    // U2
    let mut w = ZooKeeperClients::new(1);
    let lock = w.expired_hold(10_000);
    w.release(0, lock);
    w.server.expire(1);
    w.unreachable = false;
    w.clients[0].shutdown(w.now, Duration::from_secs(60));
    w.pass(60_000);
    assert_eq!(w.stopped, Some(0));
}

/// The client is suspended while it connects and shuts down: both time out in the same moment.
/// Found by the fuzz target `zk_ops`.
#[test]
fn shutdown_that_ends_late_closes_every_connection() {
    // U2
    let mut w = ZooKeeperClients::new(1);
    w.hold(0);
    w.cut(0);
    let client = &mut w.clients[0];
    let mut open = Vec::new();
    while open.is_empty() {
        client.handle_timeout(client.next_deadline().unwrap());
        while let Some(output) = client.poll_output() {
            if let Output::Connect { conn, .. } = output {
                open.push(conn);
            }
        }
    }
    client.shutdown(client.now(), Duration::from_millis(300));
    client.handle_timeout(client.now() + Duration::from_secs(60));
    let mut stopped = false;
    while let Some(output) = client.poll_output() {
        match output {
            Output::Connect { conn, .. } => open.push(conn),
            Output::Disconnect { conn, .. } => open.retain(|other| *other != conn),
            Output::Stopped { .. } => stopped = true,
            Output::Event { .. } | Output::Operation { .. } | Output::Credentials { .. } => {}
        }
    }
    assert!(stopped && open.is_empty(), "{open:?}");
}

/// The host logs both.
#[test]
fn output_tells_why_connection_failed_and_client_which_one_works() {
    let mut w = ZooKeeperClients::new(1);
    w.hold(0);
    let (_, conn) = *w.conns.keys().next().unwrap();
    let client = &mut w.clients[0];
    assert!(client.is_up(conn));
    client.handle_received(w.now, conn, b"HTTP/1.1 400 Bad Request");
    assert!(!client.is_up(conn));
    let why = Some(Fault::Protocol(Breach::Http1).into());
    assert_eq!(client.poll_output(), Some(Output::Disconnect { conn, why }));
    let next = loop {
        client.handle_timeout(client.next_deadline().unwrap());
        if let Some(Output::Connect { conn, .. }) = client.poll_output() {
            break conn;
        }
    };
    client.handle_connected(client.now(), next);
    assert!(!client.is_up(next), "the server has not answered");
    client.shutdown(client.now(), Duration::ZERO);
    client.handle_timeout(client.now());
    assert!(
        core::iter::from_fn(|| client.poll_output())
            .any(|output| output == Output::Disconnect { conn: next, why: None })
    );
}

#[test]
fn ping_is_answered_and_unreachable_server_reported() {
    let mut w = ZooKeeperClients::new(1);
    assert_eq!(w.ping(0, ZooKeeperClients::run), Some(OperationEvent::Done));
    let mut w = ZooKeeperClients::new(1);
    w.unreachable = true;
    let failed = w.ping(0, ZooKeeperClients::run);
    assert!(matches!(failed, Some(OperationEvent::Failed(Failure::TimedOut(_)))), "{failed:?}");
    let lock = w.request(0, &Acquire::new("l").wait(Wait::Try));
    assert!(matches!(w.failure(0, lock), Some(Failure::TimedOut(report)) if !report.is_busy()), "{:?}", w.events);
}

/// Regression: the ping failed, and the next one succeeded.
#[test]
fn ping_on_expired_session_opens_the_next_one() {
    fn ping(w: &mut ZooKeeperClients) -> Option<OperationEvent> {
        w.ping(0, ZooKeeperClients::run)
    }
    // The server says so on the connection, or refuses to continue the session on another one.
    for cut in [false, true] {
        let mut w = ZooKeeperClients::new(1);
        assert_eq!(ping(&mut w), Some(OperationEvent::Done));
        w.server.expire(1);
        if cut {
            w.cut(0);
            w.now = w.clients[0].next_deadline().unwrap();
            w.clients[0].handle_timeout(w.now);
        }
        assert_eq!((ping(&mut w), w.server.sessions.contains(&2)), (Some(OperationEvent::Done), true), "{cut}");
        // After several such sessions the client pauses first. The check does not wait for that.
        w.server.expire(2);
        assert!(matches!(ping(&mut w), Some(OperationEvent::Failed(Failure::TimedOut(_)))));
        w.pass(100);
        assert_eq!(ping(&mut w), Some(OperationEvent::Done));
    }
}

/// Regression: a ping failed if the first server that the client tried was down.
#[test]
fn dead_server_fails_no_ping_while_another_is_up() {
    // P5
    let mut w = ZooKeeperClients::with(6, |_| Config::parse("zk://dead,h/app").unwrap());
    for client in 0..6 {
        w.clients[client].start(w.now, Operation::Ping).unwrap();
    }
    w.pass(100);
    assert_eq!(w.elections.iter().filter(|(_, event)| *event == OperationEvent::Done).count(), 6);
}

/// Regression: the client waited for the silent server until the lock was lost.
#[test]
fn lock_with_short_ticks_survives_silent_server() {
    // ZK6
    for ticks in ["?tick_ms=50", "?tick_ms=500", ""] {
        let url = alloc::format!("zk://a,b,c/app{ticks}");
        let mut w = ZooKeeperClients::with(1, |_| Config::parse(&url).unwrap());
        w.server.granted_ms = 0;
        let (lock, _) = w.hold(0);
        w.silence();
        w.pass(20_000);
        assert_eq!(w.lost(0, lock), None, "{ticks}");
    }
}

/// Regression: the client waited as long as for its first connection, and the lock was lost.
#[test]
fn lock_with_short_ticks_survives_server_that_answers_no_handshake() {
    // ZK6
    let mut w = ZooKeeperClients::with(1, |_| Config::parse("zk://a,b,c/app?tick_ms=500").unwrap());
    w.server.granted_ms = 0;
    let (lock, _) = w.hold(0);
    w.cut(0);
    w.clients[0].handle_timeout(w.now);
    w.outputs(0);
    assert_eq!(w.conns.len(), 1);
    w.silence();
    w.pass(20_000);
    assert_eq!(w.lost(0, lock), None);
}

/// Regression: the limit on silence was half of the validity that had been requested.
#[test]
fn lock_survives_silent_server_that_granted_a_shorter_session() {
    // ZK6
    let mut w = ZooKeeperClients::with(1, |_| {
        let config = Config::parse("zk://a,b/app").unwrap();
        config.session_ttl(Duration::from_secs(60)).request_timeout(Duration::from_secs(10))
    });
    let (lock, _) = w.hold(0);
    w.silence();
    w.pass(20_000);
    assert_eq!(w.lost(0, lock), None);
}

/// Connecting may take longer than the limit on silence.
#[test]
fn ping_with_short_ticks_waits_for_request_timeout() {
    // ZK6
    let mut w = ZooKeeperClients::with(1, |_| Config::parse("zk://h/app?tick_ms=500").unwrap());
    let ping = w.clients[0].start(w.now, Operation::Ping).unwrap();
    let Some(Output::Connect { conn, .. }) = w.clients[0].poll_output() else { panic!("no connection") };
    w.now = w.now + Duration::from_millis(1_500);
    w.clients[0].handle_timeout(w.now);
    w.server.connect(ZooKeeperClients::of(0, conn));
    w.conns.insert((0, conn), ());
    w.clients[0].handle_connected(w.now, conn);
    w.run();
    assert_eq!(w.elections, [(ping, OperationEvent::Done)]);
}

/// Regression: the session that was requested was too short for the client's own check.
#[test]
fn tick_of_fractions_of_a_millisecond_is_rounded_up() {
    let mut w = ZooKeeperClients::with(1, |config| config.tick(Duration::from_secs(1) / 3));
    w.server.granted_ms = 0;
    w.hold(0);
}

/// `tick_ms` says 500, and servers whose ticks have 3 s grant at least two of them.
#[test]
fn session_that_servers_raise_is_refused_unless_as_much_is_requested() {
    // ZK1
    let config = |config: Config| config.tick(Duration::from_millis(500));
    let mut w = ZooKeeperClients::with(1, config);
    w.server.granted_ms = 6_000;
    let lock = w.acquire(0);
    let Some(Failure::Refused(report)) = w.failure(0, lock) else { panic!("{:?}", w.events) };
    let text = alloc::format!("{report}");
    assert!(
        ["2.5s to 6s", "tick_ms=3000", "minSessionTimeout", "TTL of 6s"].iter().all(|part| text.contains(part)),
        "{text}"
    );
    assert_eq!(w.server.sessions.len(), 0);
    // Also on a later connection.
    let mut w = ZooKeeperClients::with(1, config);
    w.server.granted_ms = 0;
    let (lock, _) = w.hold(0);
    w.server.granted_ms = 6_000;
    w.cut(0);
    w.pass(100);
    assert_eq!(w.lost(0, lock), Some(Loss::Expired));
    // With `minSessionTimeout` the ticks may be short all the same.
    let mut w = ZooKeeperClients::with(1, |from| config(from).session_ttl(Duration::from_secs(6)));
    w.server.granted_ms = 6_000;
    w.hold(0);
}
