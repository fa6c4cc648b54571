//! Sessions: validity, loss, reconnects, ends.

use super::*;

/// The session's validity after a write: 15 s less two ticks and the drift.
pub(super) const VALID_MS: u64 = 15_000 - 6_000 - 152;

pub(super) fn ms_until(w: &ZooKeeperClients, from: Instant, lock: LockId) -> u64 {
    w.clients[0].valid_until(lock).unwrap().since(from).as_millis() as u64
}

#[test]
fn validity_counts_from_writes_less_two_ticks_and_drift() {
    // ZK1, T1
    let mut w = ZooKeeperClients::new(1);
    let start = w.now;
    let (lock, _) = w.hold(0);
    assert_eq!(ms_until(&w, start, lock), VALID_MS);
    w.pass(60_000);
    assert_eq!(w.lost(0, lock), None);
    assert!(ms_until(&w, w.now, lock) > VALID_MS / 2);
    assert!(w.server.count(OpCode::Multi) >= 60_000 / (VALID_MS as usize / 3));
}

#[test]
fn session_continues_after_reconnect_and_renews_first() {
    // ZK6
    let mut w = ZooKeeperClients::new(2);
    let (lock, _) = w.hold(0);
    let second = w.acquire(1);
    w.cut(0);
    w.cut(1);
    let from = w.server.log.len();
    w.pass(2_000);
    let first: Vec<OpCode> =
        w.server.log[from..].iter().filter(|(session, _)| *session == 1).map(|(_, code)| *code).collect();
    assert_eq!(first.first(), Some(&OpCode::Multi));
    assert_eq!((w.lost(0, lock), w.server.sessions.len()), (None, 2));
    // The waiter watches again.
    w.release(0, lock);
    w.granted(1, second).unwrap();
}

#[test]
fn waiter_is_granted_only_after_proof_if_all_ahead_leave_at_once() {
    // ZK1
    let mut w = ZooKeeperClients::new(3);
    let (first, _) = w.hold(0);
    let (second, third) = (w.acquire(1), w.acquire(2));
    w.pass(60_000);
    w.server.mute = Some((OpCode::Multi, false));
    w.clients[1].abandon(w.now, second);
    w.release(0, first);
    assert!(w.granted(2, third).is_none());
    w.server.mute = None;
    w.cut(2);
    w.pass(1_000);
    w.granted(2, third).unwrap();
}

#[test]
fn waiter_without_connection_keeps_its_place_until_its_session_would_have_ended() {
    // ZK6
    for (away_ms, same) in [(14_000, true), (16_000, false)] {
        let mut w = ZooKeeperClients::new(3);
        let (first, _) = w.hold(0);
        let (_, third) = (w.acquire(1), w.acquire(2));
        let queue = w.queue();
        w.unreachable = true;
        w.cut(2);
        w.pass(away_ms);
        w.unreachable = false;
        w.pass(2_000);
        assert_eq!(w.queue() == queue, same, "{:?}", w.queue());
        assert!(w.lost(0, first).is_none() && w.failure(2, third).is_none());
    }
}

/// Regression: the session was given up when the validity of the hold would have ended.
#[test]
fn waiter_keeps_session_whose_hold_was_released_without_connection() {
    // ZK6
    let mut w = ZooKeeperClients::new(2);
    w.hold(1);
    let other = w.request(0, &Acquire::new("other"));
    w.granted(0, other).unwrap();
    let waiting = w.acquire(0);
    let queue = w.queue();
    // Later than this the validity has ended, and the session has not.
    w.pass(3_000);
    w.unreachable = true;
    w.cut(0);
    w.release(0, other);
    w.pass(14_000);
    w.unreachable = false;
    w.pass(1_000);
    assert_eq!((w.queue(), w.failure(0, waiting)), (queue, None));
}

#[test]
fn predecessor_deleted_while_disconnected_is_noticed() {
    let mut w = ZooKeeperClients::new(2);
    let (lock, _) = w.hold(0);
    let second = w.acquire(1);
    w.unreachable = true;
    w.cut(1);
    w.release(0, lock);
    w.pass(1_000);
    w.unreachable = false;
    w.pass(1_500);
    w.granted(1, second).unwrap();
}

#[test]
fn session_without_connection_is_lost_in_time_and_next_lock_has_another() {
    // ZK6, T2
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    w.unreachable = true;
    w.cut(0);
    w.pass(VALID_MS);
    assert_eq!(w.lost(0, lock), Some(Loss::Expired));
    assert!(w.of_lock(0, lock).iter().any(|event| matches!(event, Event::AtRisk { .. })));
    // Nothing is sent for it while the guard is out.
    w.unreachable = false;
    let second = w.acquire(0);
    w.pass(1_000);
    assert_eq!((w.server.sessions.len(), w.queue().len()), (2, 2), "the old node still stands");
    assert!(w.granted(0, second).is_none());
    w.pass(10_000);
    assert_eq!(w.queue().len(), 2, "for as long as the guard is out");
    // H6
    w.release(0, lock);
    w.pass(100);
    assert_eq!(w.released(0, lock), Some(Release::Released));
    w.granted(0, second).unwrap();
    assert_eq!(w.server.sessions.len(), 1);
}

#[test]
fn expired_session_loses_lock_at_once() {
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    w.server.expire(1);
    w.cut(0);
    w.pass(200);
    assert_eq!(w.lost(0, lock), Some(Loss::Gone));
    w.release(0, lock);
    assert_eq!(w.released(0, lock), Some(Release::Expired));
    w.hold(0);
    assert!(w.server.sessions.contains(&2));
}

#[test]
fn waiter_of_expired_session_requeues_with_another() {
    let mut w = ZooKeeperClients::new(2);
    let (lock, _) = w.hold(0);
    let second = w.acquire(1);
    w.server.expire(2);
    w.cut(1);
    w.pass(200);
    w.release(0, lock);
    w.pass(100);
    w.granted(1, second).unwrap();
}

#[test]
fn lock_that_is_never_extended_expires_and_ends_its_session() {
    // H3
    let mut w = ZooKeeperClients::new(1);
    let lock = w.request(0, &Acquire::new("l").renew(Renew::Manual));
    w.granted(0, lock).unwrap();
    assert_eq!(w.server.sessions.len(), 1, "a session of its own");
    w.pass(VALID_MS);
    assert_eq!(w.lost(0, lock), Some(Loss::Expired));
    assert_eq!(w.queue().len(), 1);
    // When the server would have ended it, if nothing else had been sent.
    w.pass(15_000 - VALID_MS);
    assert_eq!((w.queue().len(), w.server.sessions.len()), (0, 0));
}

#[test]
fn reconnect_does_not_extend_lock_that_is_renewed_by_hand() {
    // H3
    let mut w = ZooKeeperClients::new(1);
    let lock = w.request(0, &Acquire::new("l").renew(Renew::Manual));
    w.granted(0, lock).unwrap();
    w.pass(VALID_MS - 1_000);
    w.cut(0);
    w.pass(999);
    assert_eq!((w.lost(0, lock), w.of_client(0).len()), (None, 1));
    assert!(!w.of_lock(0, lock).iter().any(|event| matches!(event, Event::Renewed { .. })));
    w.pass(1);
    assert_eq!(w.lost(0, lock), Some(Loss::Expired));
}

#[test]
fn extend_is_answered_by_write_and_moves_validity() {
    let mut w = ZooKeeperClients::new(1);
    let lock = w.request(0, &Acquire::new("l").renew(Renew::Manual));
    w.granted(0, lock).unwrap();
    w.pass(5_000);
    let now = w.now;
    w.clients[0].extend(now, lock).unwrap();
    w.run();
    assert_eq!((w.last(0, lock), ms_until(&w, now, lock)), (Some(&Event::Extended), VALID_MS));
    // One renewal at a time.
    w.server.mute = Some((OpCode::Multi, false));
    let sent = w.server.count(OpCode::Multi);
    (0..3).for_each(|_| w.clients[0].extend(now, lock).unwrap());
    w.run();
    assert_eq!(w.server.count(OpCode::Multi), sent + 1);
}

#[test]
fn lock_of_own_session_is_released_by_ending_it() {
    // ZK8
    let mut w = ZooKeeperClients::new(1);
    let lock = w.request(0, &Acquire::new("l").ttl(Duration::from_secs(20)));
    w.granted(0, lock).unwrap();
    w.release(0, lock);
    assert_eq!(w.released(0, lock), Some(Release::Released));
    assert_eq!((w.server.count(OpCode::Delete), w.server.sessions.len(), w.queue().len()), (0, 0, 0));
    assert!(w.of_client(0).is_empty());
    // Nothing is left to remember of the name either: it has no node to delete.
    assert!(w.clients[0].is_idle());
}

#[test]
fn hold_limit_is_told_and_node_stays_until_guard_returns() {
    // H6
    let mut w = ZooKeeperClients::new(1);
    let lock = w.request(0, &Acquire::new("l").renew(Renew::AtMost(Duration::from_secs(4))));
    w.granted(0, lock).unwrap();
    w.pass(4_000);
    assert_eq!((w.lost(0, lock), w.queue().len()), (Some(Loss::MaxHold), 1));
    w.release(0, lock);
    w.pass(100);
    assert_eq!((w.released(0, lock), w.queue().len()), (Some(Release::Released), 0));
}

#[test]
fn session_shorter_than_five_ticks_is_refused() {
    // ZK1
    let mut w = ZooKeeperClients::new(1);
    w.server.granted_ms = 10_000;
    let lock = w.acquire(0);
    let Some(Failure::Refused(report)) = w.failure(0, lock) else { panic!("{:?}", w.events) };
    let text = alloc::format!("{report}");
    assert!(text.contains("10s") && text.contains("tick"), "{text}");
    assert_eq!(w.server.sessions.len(), 0);
}

pub(super) fn told(w: &ZooKeeperClients, lock: LockId) -> Option<Instant> {
    w.of_lock(0, lock).iter().rev().find_map(|event| match event {
        Event::Granted(grant) => Some(grant.valid_until),
        Event::Renewed { valid_until } => Some(*valid_until),
        _ => None,
    })
}

#[test]
fn session_that_becomes_shorter_than_five_ticks_is_lost() {
    // ZK1
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    w.server.granted_ms = 10_000;
    w.cut(0);
    w.pass(1_000);
    assert_eq!(w.lost(0, lock), Some(Loss::Expired));
    w.release(0, lock);
    let lock = w.acquire(0);
    assert!(matches!(w.failure(0, lock), Some(Failure::Refused(_))), "{:?}", w.events);
}

#[test]
fn idle_session_ends_and_next_lock_opens_another() {
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    w.release(0, lock);
    let multis = w.server.count(OpCode::Multi);
    w.pass(5 * 60_000 - 1);
    assert_eq!((w.server.sessions.len(), w.server.count(OpCode::Multi)), (1, multis), "pings keep it");
    w.pass(1);
    assert_eq!(w.server.sessions.len(), 0);
    w.hold(0);
}

/// Regression: only a grant or a renewal showed that the server knows sessions. After some had
/// expired, each attempt that found its lock busy cost a pause, one after the other. Found by seed
/// 2432 of `zookeeper-everything`.
#[test]
fn session_whose_end_is_confirmed_causes_no_pause_for_the_next_one() {
    let mut w = ZooKeeperClients::new(2);
    w.hold(1);
    // Sessions without a lock, that the server does not know afterwards.
    for session in 2..=5 {
        let opens = |w: &mut ZooKeeperClients| w.ping(0, |w| w.pass(5)) == Some(OperationEvent::Done);
        assert!((0..100).any(|_| opens(&mut w)));
        w.server.expire(session);
        w.run();
    }
    let busy = |w: &mut ZooKeeperClients| {
        let once = Acquire::new("l").wait(Wait::Try).renew(Renew::Manual);
        let lock = w.request(0, &once);
        matches!(w.failure(0, lock), Some(Failure::TimedOut(report)) if report.is_busy())
    };
    assert!(!busy(&mut w), "a pause comes first");
    w.pass(200);
    for _ in 0..4 {
        assert!(busy(&mut w), "at once: {:?}", w.events);
    }
}

/// Regression: locks that were held too briefly for a renewal did not count, and after some expired
/// sessions in days, each one cost a pause.
#[test]
fn expired_sessions_that_had_locks_cause_no_pause() {
    let mut w = ZooKeeperClients::new(1);
    for session in 1..=8 {
        let (lock, _) = w.hold(0);
        w.release(0, lock);
        w.server.expire(session);
    }
}

#[test]
fn write_that_the_session_fails_proves_nothing() {
    // ZK1
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    w.server.failed_multi = Some(ErrorCode::SESSION_EXPIRED);
    w.pass(VALID_MS / 2);
    assert_eq!((w.lost(0, lock), w.conns.len()), (Some(Loss::Gone), 0));
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    w.server.failed_multi = Some(ErrorCode::SESSION_MOVED);
    w.pass(VALID_MS);
    assert_eq!(w.lost(0, lock), Some(Loss::Expired));
}

/// Regression: the end of validity moved, and only the lock whose node was gone was notified.
#[test]
fn renewal_that_finds_a_node_gone_moves_no_validity_of_others() {
    // ZK1
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    let other = w.request(0, &Acquire::new("other"));
    w.granted(0, other).unwrap();
    w.server.remove(&alloc::format!("{LOCK}/{}", w.queue()[0]));
    while w.lost(0, lock).is_none() {
        w.now = w.clients[0].next_deadline().unwrap().max(w.now);
        w.clients[0].handle_timeout(w.now);
        w.bytes(0);
        w.outputs(0);
    }
    assert_eq!(w.lost(0, lock), Some(Loss::Gone));
    assert_eq!(told(&w, other), w.clients[0].valid_until(other));
    w.run();
    assert!(told(&w, other).unwrap() > w.now + Duration::from_millis(VALID_MS / 3 * 2));
    assert_eq!(told(&w, other), w.clients[0].valid_until(other));
}

/// All servers are behind the session's last transaction, for example: they close the connection.
#[test]
fn short_waits_do_not_keep_session_that_cannot_continue() {
    // ZK6
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    w.release(0, lock);
    w.server.refuses_known = true;
    w.cut(0);
    let mut granted = false;
    for _ in 0..20 {
        let lock = w.request(0, &Acquire::new("l").wait(Wait::For(Duration::from_secs(2))));
        w.pass(2_100);
        granted |= w.granted(0, lock).is_some();
    }
    assert!(granted, "{:?}", w.events);
}

/// Regression: the session of a single attempt had expired, and the attempt failed.
#[test]
fn single_attempt_on_expired_session_uses_the_next_one() {
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    w.release(0, lock);
    w.server.expire(1);
    let second = w.request(0, &Acquire::new("l").wait(Wait::Try));
    assert!(w.granted(0, second).is_some(), "{:?}", w.events);
}

/// Regression: a single attempt failed if the first server that the client tried was down.
#[test]
fn dead_server_costs_no_attempt_while_another_is_up() {
    // P5, ZK6
    let mut w = ZooKeeperClients::with(6, |_| Config::parse("zk://dead,h/app").unwrap());
    for client in 0..6 {
        let lock = w.request(client, &Acquire::new("l").wait(Wait::Try));
        w.pass(100);
        assert!(w.granted(client, lock).is_some(), "{client}: {:?}", w.events);
        w.release(client, lock);
        w.pass(100);
    }
}

/// Regression: it was reported as released.
#[test]
fn release_that_finds_its_session_ended_reports_expiry() {
    // ZK6
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    w.server.expire(1);
    w.release(0, lock);
    w.pass(100);
    assert_eq!(w.released(0, lock), Some(Release::Expired));
}

#[test]
fn session_that_never_opened_idles_out() {
    // ZK8
    let mut w = ZooKeeperClients::with(1, |config| config.idle_timeout(Duration::from_secs(20)));
    w.unreachable = true;
    let lock = w.request(0, &Acquire::new("l").wait(Wait::For(Duration::from_secs(1))));
    w.pass(1_100);
    assert!(matches!(w.failure(0, lock), Some(Failure::TimedOut(_))), "{:?}", w.events);
    w.pass(30_000);
    assert_eq!(w.clients[0].next_deadline(), None, "it tries to connect for ever");
}

#[test]
fn rejected_login_refuses_the_lock() {
    let mut w = ZooKeeperClients::with(1, |config| config.user("app", "sesame"));
    w.server.login_fails = true;
    let lock = w.acquire(0);
    w.pass(1_000);
    assert!(matches!(w.failure(0, lock), Some(Failure::Refused(_))), "{:?}", w.events);
    w.pass(5_000);
    assert!(w.server.sessions.is_empty(), "the session that the server created has ended");
}

#[test]
fn delete_that_is_refused_ends_the_session_instead() {
    // ZK6
    let mut w = ZooKeeperClients::new(2);
    let (lock, _) = w.hold(0);
    let second = w.acquire(1);
    w.server.refused = Some((OpCode::Delete, ErrorCode::NO_AUTH));
    w.release(0, lock);
    w.pass(100);
    assert_eq!(w.released(0, lock), Some(Release::Released));
    w.granted(1, second).unwrap();
    // Another lock of the same session keeps it. Its delete is refused too.
    let mut w = ZooKeeperClients::new(1);
    let (first, _) = w.hold(0);
    let other = w.request(0, &Acquire::new("other"));
    w.granted(0, other).unwrap();
    w.server.refused = Some((OpCode::Delete, ErrorCode::NO_AUTH));
    w.release(0, first);
    w.pass(100);
    assert_eq!((w.released(0, first), w.lost(0, other), w.queue().len()), (None, None, 1));
    w.release(0, other);
    w.pass(100);
    assert_eq!((w.released(0, other), w.queue().len()), (Some(Release::Released), 0));
}

/// Regression: the result was that the lock had expired.
#[test]
fn end_of_session_without_reply_leaves_release_unknown() {
    // U1
    let mut w = ZooKeeperClients::with(1, |config| config.tick(Duration::from_millis(100)));
    w.server.granted_ms = 500;
    let lock = w.request(0, &Acquire::new("l").renew(Renew::Manual));
    w.granted(0, lock).unwrap();
    w.server.mute = Some((OpCode::CloseSession, true));
    w.release(0, lock);
    w.unreachable = true;
    w.cut(0);
    w.pass(1_000);
    assert_eq!(w.released(0, lock), Some(Release::Unknown));
}

/// Regression: `zookeeper-followers` seed 968. The result was that the lock had expired. A leader
/// without a majority refuses a session that it has ended by itself, after its validity.
#[test]
fn expiry_of_lost_session_confirms_no_release() {
    // U1
    let mut w = ZooKeeperClients::new(1);
    let lock = w.expired_hold(VALID_MS);
    w.unreachable = false;
    w.server.expire(1);
    w.release(0, lock);
    w.pass(1_000);
    assert_eq!(w.released(0, lock), Some(Release::Unknown));
}

/// Regression: it was reported as expired, or as released if a delete had been sent.
#[test]
fn release_whose_session_is_refused_after_its_validity_is_unknown() {
    // U1
    for delete_was_sent in [false, true] {
        let mut w = ZooKeeperClients::with(1, |config| config.release_within(Duration::from_secs(60)));
        let (lock, _) = w.hold(0);
        w.unreachable = true;
        if delete_was_sent {
            w.server.mute = Some((OpCode::Delete, false));
            w.release(0, lock);
            w.cut(0);
        } else {
            w.cut(0);
            w.release(0, lock);
        }
        w.pass(VALID_MS);
        w.server.expire(1);
        w.unreachable = false;
        w.pass(2_000);
        assert_eq!(w.released(0, lock), Some(Release::Unknown), "{delete_was_sent}");
    }
}

/// Locks with their own sessions, one after the other, leave nothing behind in the client.
#[test]
fn past_sessions_use_no_memory() {
    let mut w = ZooKeeperClients::new(1);
    let mut sizes = Vec::new();
    for _ in 0..100 {
        let lock = w.request(0, &Acquire::new("l").renew(Renew::Manual));
        w.granted(0, lock).unwrap();
        w.release(0, lock);
        w.pass(10);
        sizes.push(alloc::format!("{:?}", w.clients[0]).len());
    }
    assert!(sizes[99] < sizes[1] + 100, "{sizes:?}");
}

#[test]
fn long_session_uses_no_more_memory_than_short_one() {
    let mut w = ZooKeeperClients::new(1);
    w.hold(0);
    let mut size = |ms| {
        w.pass(ms);
        alloc::format!("{:?}", w.clients[0]).len()
    };
    let (hours, days) = (size(4 * 3_600_000), size(20 * 3_600_000));
    assert!(days < hours + 100, "{hours} {days}");
}

#[test]
fn equal_histories_give_equal_clients() {
    // D2
    let run = || {
        let mut w = ZooKeeperClients::new(2);
        let (lock, _) = w.hold(0);
        w.acquire(1);
        w.cut(0);
        w.pass(3_000);
        w.release(0, lock);
        w.clients
    };
    assert_eq!(run(), run());
}
