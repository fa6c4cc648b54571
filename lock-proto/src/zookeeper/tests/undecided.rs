//! Requests of earlier connections whose outcome is unknown, and servers that refuse the first write
//! of the next one.

use super::*;

/// A client whose create got no reply, on a connection whose first write the server refuses.
fn refused_first_write(abandon: bool) -> (ZooKeeperClients, LockId) {
    let (mut w, lock) = ZooKeeperClients::with_unanswered_create(false);
    if abandon {
        w.clients[0].abandon(w.now, lock);
    }
    w.server.refused = Some((OpCode::Multi, ErrorCode::THROTTLED_OP));
    w.cut(0);
    let from = w.server.log.len();
    w.pass(1_000);
    let codes: Vec<OpCode> = w.server.log[from..].iter().map(|(_, code)| *code).collect();
    assert!(codes.len() > 2 && codes.len() < 40, "{codes:?}");
    assert!(codes.iter().all(|code| *code == OpCode::Multi), "{codes:?}");
    (w, lock)
}

/// Regression: the list behind a first write that was refused did not show the node, and counted.
/// The client then waited for its own node, for ever.
#[test]
fn create_that_is_executed_behind_refused_first_write_is_found() {
    // ZK6
    let (mut w, lock) = refused_first_write(false);
    assert_eq!(w.last(0, lock), Some(&Event::Blocked(Blocked::Unreachable)));
    w.server.execute_late();
    w.server.refused = None;
    w.pass(3_000);
    w.granted(0, lock).unwrap_or_else(|| panic!("{:?}", w.events));
    assert_eq!(w.queue().len(), 1, "no second node");
    w.release(0, lock);
    assert_eq!(w.queue().len(), 0);
}

#[test]
fn abandoned_create_that_is_executed_behind_refused_first_write_is_deleted() {
    // ZK6
    let (mut w, _) = refused_first_write(true);
    w.server.execute_late();
    w.server.refused = None;
    w.pass(3_000);
    assert_eq!(w.queue().len(), 0);
    w.idles_out();
}

#[test]
fn single_attempt_fails_with_the_words_of_a_server_that_refuses_the_first_write() {
    // ZK6
    let (mut w, _) = refused_first_write(true);
    let lock = w.request(0, &Acquire::new("m").wait(Wait::Try));
    let Some(Failure::TimedOut(report)) = w.failure(0, lock) else { panic!("{:?}", w.events) };
    assert!(alloc::format!("{report}").contains("overloaded"), "{report}");
}

/// Holds and waits go on without loss once the server commits again.
#[test]
fn refused_first_write_costs_no_lock() {
    // ZK6
    let mut w = ZooKeeperClients::new(2);
    let (lock, first) = w.hold(0);
    let next = w.acquire(1);
    w.server.refused = Some((OpCode::Multi, ErrorCode::THROTTLED_OP));
    w.cut(0);
    w.cut(1);
    w.pass(1_000);
    w.server.refused = None;
    w.pass(3_000);
    assert_eq!(w.lost(0, lock), None);
    w.release(0, lock);
    assert!(w.granted(1, next).unwrap() > first);
}

/// A server that executes a request of an earlier connection behind the first write of the next one
/// breaks a promise. What it leaves does not block the queue for as long as the client uses it.
#[test]
fn node_that_appears_after_its_create_was_given_up_is_deleted() {
    // ZK6
    for abandon in [false, true] {
        let (mut w, mut lock) = ZooKeeperClients::with_unanswered_create(false);
        if abandon {
            w.clients[0].abandon(w.now, lock);
        }
        w.cut(0);
        w.pass(1_000);
        if !abandon {
            w.granted(0, lock).unwrap();
            w.release(0, lock);
        }
        assert_eq!(w.queue().len(), 0);
        w.server.execute_late();
        w.pass(2_000);
        assert_eq!(w.queue().len(), 1, "nobody has looked yet");
        lock = w.acquire(0);
        w.granted(0, lock).unwrap_or_else(|| panic!("{abandon}: {:?}", w.events));
        assert_eq!(w.queue().len(), 1);
        w.release(0, lock);
        assert_eq!(w.queue().len(), 0);
    }
}

/// The node of a lock with a session of its own is deleted as well.
#[test]
fn late_node_of_own_session_is_deleted() {
    // ZK6
    let mut w = ZooKeeperClients::new(2);
    let (held, _) = w.hold(1);
    w.server.mute = Some((OpCode::Create, false));
    let lock = w.request(0, &Acquire::new("l").renew(Renew::Manual));
    w.server.mute = None;
    w.cut(0);
    w.pass(1_000);
    assert_eq!(w.queue().len(), 2);
    w.server.execute_late();
    w.pass(31_000);
    assert_eq!(w.queue().len(), 2, "the list from time to time shows it");
    w.release(1, held);
    w.granted(0, lock).unwrap();
}
