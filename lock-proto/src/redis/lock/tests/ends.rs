//! Ends of attempts, waits and clients.

use super::*;

/// A late reply to an earlier round arrives while a later one holds the lock on two of three nodes.
/// Its token is no part of the hold, so the third node gets a take, not an extension.
#[test]
fn late_grant_of_earlier_round_is_not_part_of_hold() {
    // Q3
    let mut hub = Hub::new(3, |c| c.unknown_age(UnknownAge::Trust));
    let id = hub.acquire(0, want());
    let first = hub.requests();
    for (call, _) in &first[..2] {
        hub.reply(1, *call, Reply::Busy { expires: Expiry::In(for_ms(50)) });
    }
    let due = hub.locks.next_deadline().unwrap();
    hub.locks.handle_timeout(due);
    hub.drain();
    let second = hub.takes();
    assert_eq!(second.len(), 2, "the third has not answered the first attempt");
    for call in second {
        let granted = call.node() != NodeId::new(2);
        let reply = if granted { Reply::Granted { fence: None } } else { Reply::NotSent(Cause::Fault(Fault::Reset)) };
        hub.locks.handle_reply(due, call, &reply);
        hub.drain();
    }
    hub.locks.claim(due, id).unwrap();
    hub.locks.handle_reply(due, first[2].0, &Reply::Granted { fence: None });
    hub.drain();
    hub.requests();
    hub.locks.handle_timeout(due + for_ms(3_000));
    hub.drain();
    let kinds: BTreeSet<(u16, bool)> =
        hub.requests().iter().map(|(call, request)| (call.node().index() as u16, is_take(request))).collect();
    assert_eq!(kinds, [(0, false), (1, false), (2, true)].into());
}

/// The waiter needs a full TTL on hand-over, but the key is gone. It contends again.
#[test]
fn waiter_contends_again_if_key_is_gone_on_hand_over() {
    // A8
    let mut hub = Hub::new(1, |c| c);
    let first = hub.held(0, want());
    let second = hub.acquire(1, want().renew(Renew::Manual));
    hub.locks.release(ms(2), first).unwrap();
    hub.drain();
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Extend { .. }), "{request:?}");
    hub.take_events();
    hub.reply(3, call, Reply::Absent);
    assert_eq!(hub.take_events(), [], "it has extended nothing");
    hub.at(500);
    let takes = hub.takes();
    assert_eq!(takes.len(), 1);
    hub.reply(501, takes[0], Reply::Granted { fence: fences(200) });
    assert!(hub.events.iter().any(|(id, event)| *id == second && matches!(event, Event::Granted(_))));
}

/// The release of a shutdown wakes another client. The shutdown does not wait to yield to it.
#[test]
fn shutdown_completes_with_last_reply() {
    // U2
    let mut hub = Hub::new(1, |c| c);
    hub.held(0, want());
    hub.locks.shutdown(ms(1), for_ms(1_000));
    hub.drain();
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Release { .. }), "{request:?}");
    assert!(!hub.locks.is_stopped());
    hub.reply(2, call, Reply::Deleted { number: 1, awaited: true });
    assert!(hub.locks.is_stopped());
}

/// A wait that the shutdown ended has no deadline left.
#[test]
fn shutdown_ends_all_waits() {
    // U2
    let mut hub = Hub::new(1, |c| c);
    hub.held(0, want());
    hub.acquire(1, want().wait(Wait::For(for_ms(50))));
    hub.locks.shutdown(ms(2), for_ms(1_000));
    hub.drain();
    assert!(hub.take_events().contains(&Event::Failed(Failure::ShuttingDown)));
    assert!(hub.locks.next_deadline().unwrap() > ms(51), "{:?}", hub.locks.next_deadline_reason());
}

/// The last release woke another client, and a local waiter backed off for it. Once that
/// waiter has had the lock, no later one backs off for the same reason.
#[test]
fn client_yields_to_woken_waiter_only_once() {
    // A7
    let mut hub = Hub::new(1, |c| c);
    let first = hub.acquire(0, want());
    let (call, _) = hub.one();
    hub.reply(20, call, Reply::Granted { fence: fences(100) });
    hub.locks.claim(ms(20), first).unwrap();
    let second = hub.acquire(21, want());
    hub.locks.release(ms(200), first).unwrap();
    hub.drain();
    let (delete, _) = hub.one();
    hub.reply(220, delete, Reply::Deleted { number: 1, awaited: true });
    hub.at(226);
    let (take, request) = hub.one();
    assert!(matches!(request, Request::Take { .. }), "{request:?}");
    hub.reply(228, take, Reply::Granted { fence: fences(200) });
    hub.locks.claim(ms(228), second).unwrap();
    hub.locks.release(ms(229), second).unwrap();
    hub.drain();
    let (delete, _) = hub.one();
    hub.reply(231, delete, Reply::Deleted { number: 2, awaited: false });
    hub.acquire(232, want());
    let (_, request) = hub.one();
    assert!(matches!(request, Request::Take { .. }), "{request:?}");
}

/// The server cannot be reached: neither the attempt nor the delete of the abandoned wait is sent.
#[test]
fn wait_abandoned_on_dead_server_leaves_nothing_behind() {
    // A4, M8
    let mut hub = Hub::new(1, |c| c);
    let id = hub.acquire(0, want());
    hub.locks.abandon(ms(10), id);
    hub.drain();
    let calls = hub.requests();
    assert_eq!(calls.len(), 2);
    calls.into_iter().for_each(|(call, _)| hub.reply(500, call, Reply::NotSent(Fault::TimedOut.into())));
    assert!(hub.locks.is_idle());
}

/// The hold was lost before, and its work goes on. The shutdown leaves the key to the guard.
#[test]
fn shutdown_leaves_key_of_lost_hold_to_its_guard() {
    // H6, U2
    let most = Renew::AtMost(for_ms(1_000));
    for (renew, end, loss) in [(most, 1_000, Loss::MaxHold), (Renew::Manual, 9_000, Loss::Expired)] {
        let mut hub = Hub::new(1, |c| c);
        let id = hub.held(0, want().renew(renew));
        hub.at(end);
        assert!(hub.take_events().contains(&Event::Lost(loss)));
        hub.requests();
        hub.locks.shutdown(ms(end + 1), for_ms(1_000));
        hub.drain();
        assert_eq!(hub.requests(), [], "{loss:?}");
        assert!(hub.locks.is_stopped(), "it does not wait for the guard");
        assert_eq!(hub.take_events(), [Event::Released(Release::Unknown)]);
        assert_eq!(hub.locks.release(ms(end + 2), id), Err(crate::Misuse::Stale(id)));
    }
}

/// The guard of a lost hold comes back while the shutdown waits for another lock.
#[test]
fn guard_returned_during_shutdown_releases_its_key() {
    // H6, U2
    let mut hub = Hub::new(1, |c| c);
    let lost = hub.held(0, want().renew(Renew::AtMost(for_ms(1_000))));
    hub.held(0, Acquire::new("b"));
    hub.at(1_000);
    hub.requests();
    hub.locks.shutdown(ms(1_001), for_ms(1_000));
    hub.drain();
    let (other, request) = hub.one();
    assert!(matches!(&request, Request::Release { key, .. } if key.lock() == b"b"), "{request:?}");
    hub.take_events();
    hub.locks.release(ms(1_002), lost).unwrap();
    hub.drain();
    let (own, request) = hub.one();
    assert!(matches!(&request, Request::Release { key, .. } if key.lock() == b"a"), "{request:?}");
    hub.reply(1_003, other, Reply::Deleted { number: 2, awaited: false });
    assert!(!hub.locks.is_stopped(), "this release has no reply yet");
    hub.reply(1_004, own, Reply::Deleted { number: 1, awaited: false });
    assert!(hub.locks.is_stopped());
    assert_eq!(hub.take_events(), [Event::Released(Release::Released), Event::Released(Release::Released)]);
}

/// The key expired, and a waiter of the same client took it. That is no other client.
#[test]
fn lock_that_own_waiter_took_is_released_as_expired() {
    // U1
    let taken = |until: u64| {
        let mut hub = Hub::new(1, |c| c);
        let first = hub.held(0, want().renew(Renew::Manual));
        let second = hub.acquire(1, want());
        hub.at(9_000);
        let call = hub.takes()[0];
        hub.reply(9_001, call, Reply::Granted { fence: fences(200) });
        hub.locks.claim(ms(9_001), second).unwrap();
        hub.requests();
        hub.take_events();
        hub.locks.release(ms(9_002), first).unwrap();
        hub.drain();
        let (delete, request) = hub.one();
        assert!(matches!(request, Request::Release { number: 1, .. }), "{request:?}");
        if until > 9_003 {
            hub.locks.abandon(ms(9_004), second);
            hub.drain();
        }
        hub.reply(until, delete, Reply::Taken);
        let released = |(id, event): &(LockId, Event)| match event {
            Event::Released(release) if *id == first => Some(*release),
            _ => None,
        };
        hub.events.iter().find_map(released)
    };
    assert_eq!(taken(9_003), Some(Release::Expired));
    // Its second hold has been given back meanwhile.
    assert_eq!(taken(9_005), Some(Release::Expired));
}
