//! Hand-overs inside a client, and yielding to a waiter of another one.

use super::*;

/// The node has not answered the attempt that follows.
#[test]
fn wait_that_ends_after_yielding_reports_another_client() {
    // A7
    let mut hub = Hub::new(1, |c| c.wake(Wake::Notify));
    hub.wake_other(0, 11, 1);
    hub.take_events();
    hub.acquire(12, want().wait(Wait::For(for_ms(53))));
    assert_eq!(hub.requests(), vec![]);
    hub.at(62);
    assert!(matches!(hub.one().1, Request::Take { .. }));
    hub.at(65);
    let events = hub.take_events();
    let [Event::Blocked(Blocked::Held), Event::Failed(Failure::TimedOut(report))] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(report.nodes[..], [Answer::Taken(Expiry::Unknown)]);
    assert!(report.is_busy());
}

/// Nothing shortens the life of a key, so the next holder would leave it for longer than its TTL.
#[test]
fn lock_is_not_handed_over_to_shorter_ttl() {
    // A8
    for (ttl, handed_over) in [(8_999, false), (9_000, true)] {
        let mut hub = Hub::new(1, |c| c);
        let first = hub.held(0, want());
        let second = hub.acquire(1, want().ttl(for_ms(ttl)));
        hub.take_events();
        hub.locks.release(ms(50), first).unwrap();
        hub.drain();
        if handed_over {
            assert!(matches!(hub.events[..], [_, (id, Event::Granted(_))] if id == second), "{:?}", hub.events);
            continue;
        }
        assert_eq!(hub.take_events(), []);
        let (call, request) = hub.one();
        assert!(matches!(request, Request::Release { number: 1, .. }), "{request:?}");
        hub.reply(51, call, Reply::Deleted { number: 1, awaited: false });
        assert_eq!(hub.take_events(), [Event::Released(Release::Released)]);
        hub.at(110);
        let (_, request) = hub.one();
        assert!(matches!(request, Request::Take { number: 2, ttl_ms: 8_999, .. }), "{request:?}");
    }
}

/// A waiter with a longer TTL left during the extension that it needed. The server may execute it.
#[test]
fn ttl_of_extension_in_flight_counts_for_hand_over() {
    // A8
    let mut hub = Hub::new(1, |c| c);
    let first = hub.held(0, want());
    let second = hub.acquire(1, want().ttl(for_ms(12_000)));
    hub.acquire(2, want());
    hub.locks.release(ms(3), first).unwrap();
    hub.drain();
    let (_, request) = hub.one();
    assert!(matches!(request, Request::Extend { ttl_ms: 12_000, .. }), "{request:?}");
    hub.take_events();
    hub.locks.abandon(ms(4), second);
    hub.drain();
    let (_, request) = hub.one();
    assert!(matches!(request, Request::Release { number: 1, .. }), "{request:?}");
    assert_eq!(hub.take_events(), []);
}

/// The attempt in flight was made with the TTL of the waiter before.
#[test]
fn attempt_with_longer_ttl_is_not_taken_over() {
    // A8
    for nodes in [1, 3] {
        let mut hub = Hub::new(nodes, |c| c.unknown_age(UnknownAge::Trust));
        let first = hub.acquire(0, want());
        let second = hub.acquire(1, want().ttl(for_ms(8_000)));
        let takes = hub.takes();
        hub.locks.abandon(ms(2), first);
        hub.drain();
        let deletes: Vec<CallId> = hub.requests().into_iter().map(|(call, _)| call).collect();
        assert_eq!(deletes.len(), nodes);
        hub.take_events();
        for call in takes {
            hub.reply(3, call, Reply::Granted { fence: fences(100) });
        }
        assert_eq!(hub.take_events(), [], "{nodes}: the key has the longer TTL");
        for call in deletes {
            hub.reply(4, call, Reply::Deleted { number: 1, awaited: false });
        }
        let next = hub.requests();
        let own = |request: &Request| matches!(request, Request::Take { number: 2, ttl_ms: 8_000, .. });
        assert!(next.len() == nodes && next.iter().all(|(_, request)| own(request)), "{next:?}");
        for (call, _) in next {
            hub.reply(5, call, Reply::Granted { fence: fences(200) });
        }
        let granted = |(id, event): &(LockId, Event)| {
            *id == second && matches!(event, Event::Granted(grant) if grant.ttl == for_ms(8_000))
        };
        assert!(hub.events.iter().any(granted), "{:?}", hub.events);
    }
}

/// The renewal of the earlier holder failed. Its retry is due while the offer is unclaimed.
#[test]
fn unclaimed_offer_is_not_renewed_in_place_of_earlier_holder() {
    // H5
    let mut hub = Hub::new(1, |c| c.handover_window(for_ms(60_000)));
    let first = hub.held(0, want());
    let second = hub.acquire(1, want());
    hub.at(3_001);
    let (call, _) = hub.one();
    hub.reply(3_002, call, Reply::Rejected(ServerError::classify("LOADING later")));
    hub.locks.release(ms(3_003), first).unwrap();
    hub.drain();
    assert!(hub.take_events().iter().any(|event| matches!(event, Event::Granted(_))));
    // A twelfth of the TTL after the failure.
    hub.at(3_753);
    assert_eq!(hub.requests(), []);
    assert!(hub.locks.next_deadline() > Some(ms(3_753)), "the timer moves on");
    hub.locks.claim(ms(3_754), second).unwrap();
    hub.at(6_003);
    assert!(matches!(hub.one().1, Request::Extend { .. }), "after the claim it is");
}

/// Regression: the client stayed away for as long as the acquisition had taken.
#[test]
fn client_stays_away_after_window_for_poll_interval_at_most() {
    // A8
    let mut hub = Hub::new(1, |c| c);
    let first = hub.acquire(0, want());
    hub.acquire(1, want());
    hub.acquire(2, want());
    let (take, _) = hub.one();
    hub.reply(3_000, take, Reply::Granted { fence: fences(100) });
    hub.locks.claim(ms(3_000), first).unwrap();
    hub.locks.release(ms(3_200), first).unwrap();
    hub.drain();
    let release = hub.requests().into_iter().find(|(_, request)| matches!(request, Request::Release { .. })).unwrap();
    hub.reply(3_201, release.0, Reply::Deleted { number: 1, awaited: false });
    hub.at(3_204);
    assert_eq!(hub.takes(), []);
    hub.at(3_200 + 5 + 50);
    assert_eq!(hub.takes().len(), 1);
}
