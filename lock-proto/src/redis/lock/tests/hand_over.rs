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

#[test]
fn hand_over_after_shorter_ttl_extends_first() {
    // A8
    let mut hub = Hub::new(1, |c| c.handover_window(for_ms(60_000)));
    let first = hub.held(0, want());
    let second = hub.acquire(1, want().ttl(for_ms(6_000)));
    hub.acquire(2, want());
    hub.take_events();
    hub.locks.release(ms(50), first).unwrap();
    hub.drain();
    hub.locks.claim(ms(50), second).unwrap();
    hub.take_events();
    // The renewal gives the key the shorter TTL.
    let at = 2_100;
    hub.at(at);
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Extend { ttl_ms: 6_000, .. }));
    hub.reply(at, call, Reply::Extended);
    hub.take_events();
    hub.locks.release(ms(at), second).unwrap();
    hub.drain();
    let events = hub.take_events();
    assert_eq!(events, [Event::Released(Release::Released)]);
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Extend { ttl_ms: 9_000, .. }));
    hub.reply(at + 1, call, Reply::Extended);
    let events = hub.take_events();
    let [Event::Granted(grant)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((grant.ttl, grant.valid_until), (for_ms(9_000), ms(at + 9_000 - 92)));
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
