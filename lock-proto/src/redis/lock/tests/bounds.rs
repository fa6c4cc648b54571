//! What a lock must not do: act too early, twice, or on behalf of another waiter.

use super::*;

/// A waiter on one node, for a lock that another client holds.
fn waiting(change: impl FnOnce(Config) -> Config) -> Hub {
    let mut hub = Hub::new(1, change);
    hub.acquire(0, want());
    let (call, _) = hub.one();
    hub.reply(1, call, busy());
    hub
}

#[test]
fn node_reconnect_triggers_no_attempt_while_lock_is_held() {
    // A5
    let mut hub = waiting(|c| c.poll(Backoff::fixed(for_ms(1_000))));
    hub.locks.handle_node_up(ms(2), NodeId::new(0), None);
    hub.drain();
    assert_eq!(hub.requests(), []);
}

#[test]
fn timeout_of_other_waiter_triggers_no_attempt() {
    // A5
    let mut hub = waiting(|c| c.poll(Backoff::fixed(for_ms(1_000))));
    hub.acquire(2, want().wait(Wait::For(for_ms(10))));
    hub.take_events();
    hub.at(12);
    assert!(matches!(hub.take_events()[..], [Event::Failed(Failure::TimedOut(_))]));
    assert_eq!(hub.requests(), []);
}

/// A waiter that times out during an attempt gets the replies so far, even if it is not the head.
#[test]
fn timeout_during_attempt_reports_replies_so_far() {
    // A5
    let mut hub = Hub::new(3, |c| c.unknown_age(UnknownAge::Trust));
    hub.acquire(0, want());
    hub.acquire(1, want().wait(Wait::For(for_ms(10))));
    let calls = hub.takes();
    hub.reply(2, calls[1], busy());
    hub.take_events();
    hub.at(11);
    let events = hub.take_events();
    let [Event::Failed(Failure::TimedOut(report))] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*report.nodes, [Answer::Silent, Answer::Taken(Expiry::In(for_ms(8_000))), Answer::Silent]);
}

/// The attempt was made with the TTL of another waiter.
#[test]
fn grant_by_attempt_of_other_waiter_gets_requested_ttl() {
    // T1
    for (ttl, at_once) in [(9_000, true), (12_000, false)] {
        let mut hub = Hub::new(1, |c| c);
        let first = hub.acquire(0, want());
        let second = hub.acquire(1, want().ttl(for_ms(ttl)));
        hub.locks.abandon(ms(2), first);
        hub.drain();
        let (call, _) = hub.one();
        hub.take_events();
        hub.reply(3, call, Reply::Granted { fence: None });
        let granted = |hub: &mut Hub| hub.take_events().iter().any(|event| matches!(event, Event::Granted(_)));
        assert_eq!(granted(&mut hub), at_once, "{ttl}");
        if !at_once {
            let (call, request) = hub.one();
            assert!(matches!(request, Request::Extend { ttl_ms: 12_000, .. }), "{request:?}");
            hub.reply(4, call, Reply::Extended);
            assert!(granted(&mut hub));
        }
        assert_eq!(hub.requests(), []);
        hub.locks.claim(ms(4), second).unwrap();
    }
}

/// The same for a local hand-over with more than half of the TTL left.
#[test]
fn hand_over_to_longer_ttl_extends_before_grant() {
    // A8
    for (ttl, at_once) in [(9_000, true), (12_000, false)] {
        let mut hub = Hub::new(1, |c| c);
        let first = hub.held(0, want());
        hub.acquire(1, want().ttl(for_ms(ttl)));
        hub.locks.release(ms(2), first).unwrap();
        hub.drain();
        assert_eq!(hub.take_events().iter().any(|event| matches!(event, Event::Granted(_))), at_once, "{ttl}");
        assert_eq!(hub.requests().len(), usize::from(!at_once), "{ttl}");
    }
}

#[test]
fn local_hand_over_stops_at_time_limit() {
    // A8
    for (at, passed_on) in [(49, true), (50, false)] {
        let mut hub = Hub::new(1, |c| c.handover_window(for_ms(50)));
        let first = hub.held(0, want());
        hub.acquire(1, want());
        hub.locks.release(ms(at), first).unwrap();
        hub.drain();
        assert_eq!(hub.requests().is_empty(), passed_on, "{at}");
    }
}

/// After a split vote, the clients' next attempts are spread over more than two rounds.
#[test]
fn retries_after_split_vote_spread_over_more_than_two_rounds() {
    // Q2
    let after = |seed: u64| {
        let mut hub = Hub::seeded(3, seed, |c| {
            c.unknown_age(UnknownAge::Trust).poll(Backoff::fixed(for_ms(1_600))).round_timeout(for_ms(1_000))
        });
        hub.acquire(0, want());
        let calls = hub.takes();
        for (call, reply) in calls.into_iter().zip([Reply::Granted { fence: None }, busy(), busy()]) {
            hub.reply(200, call, reply);
        }
        hub.locks.next_deadline().unwrap().since(ms(200)).as_millis()
    };
    let delays: Vec<u128> = (0..400).map(after).collect();
    let (first, last) = (*delays.iter().min().unwrap(), *delays.iter().max().unwrap());
    assert!((200..=220).contains(&first), "{first}");
    // One round, plus two rounds, plus half a polling interval.
    assert!((1_200..=1_400).contains(&last), "{last}");
}

#[test]
fn released_lock_no_longer_counts_towards_max_locks() {
    // M5
    let mut hub = Hub::new(1, |c| c.max_locks(2));
    hub.held(0, want());
    let second = hub.held(0, Acquire::new("b"));
    assert_eq!(hub.locks.acquire(ms(1), &Acquire::new("c")), Err(crate::Misuse::TooMany { limit: 2 }));
    hub.locks.release(ms(2), second).unwrap();
    hub.drain();
    let (call, _) = hub.one();
    hub.reply(3, call, Reply::Deleted { number: 1, awaited: false });
    hub.acquire(4, Acquire::new("c"));
    assert_eq!(hub.locks.acquire(ms(5), &Acquire::new("d")), Err(crate::Misuse::TooMany { limit: 2 }));
}

/// The guard of a lost hold is alive. A token that a later attempt got is deleted at once.
#[test]
fn guard_of_lost_hold_does_not_protect_later_tokens() {
    // H6
    let mut hub = Hub::new(1, |c| c);
    hub.held(0, want());
    hub.at(20_000);
    assert!(hub.take_events().contains(&Event::Lost(Loss::Expired)));
    let second = hub.acquire(20_001, want());
    let (take, request) = hub.one();
    assert!(matches!(request, Request::Take { number: 2, .. }), "{request:?}");
    hub.locks.abandon(ms(20_002), second);
    hub.drain();
    let deletes = |hub: &mut Hub| {
        let (call, request) = hub.one();
        assert!(matches!(request, Request::Release { number: 2, .. }), "{request:?}");
        call
    };
    let call = deletes(&mut hub);
    hub.reply(20_003, call, Reply::Absent);
    assert_eq!(hub.requests(), []);
    hub.reply(20_004, take, Reply::Granted { fence: None });
    deletes(&mut hub);
}

/// The extension fails. What is left of the TTL is too short for a waiter with manual renewal.
#[test]
fn waiter_contends_again_silently_if_hand_over_extend_fails() {
    // A8
    let mut hub = Hub::new(1, |c| c);
    let first = hub.held(0, want());
    hub.acquire(1, want().renew(Renew::Manual));
    hub.locks.release(ms(2), first).unwrap();
    hub.drain();
    hub.take_events();
    let (call, _) = hub.one();
    hub.reply(3, call, lost_connection());
    assert_eq!(hub.take_events(), []);
    let sent = hub.requests();
    assert!(
        matches!(sent[..], [(_, Request::Release { number: 1, .. }), (_, Request::Take { number: 2, .. })]),
        "{sent:?}"
    );
}

/// The third node has not replied at the release, so it may have the token.
#[test]
fn release_is_also_sent_to_nodes_without_reply() {
    // U1
    let granted = || Reply::Granted { fence: None };
    for third in [None, Some(lost_connection())] {
        let mut hub = Hub::new(3, |c| c.unknown_age(UnknownAge::Trust));
        let id = hub.acquire(0, want());
        let calls = hub.takes();
        hub.reply(1, calls[0], granted());
        hub.reply(1, calls[1], granted());
        hub.locks.claim(ms(1), id).unwrap();
        if let Some(reply) = third {
            hub.reply(2, calls[2], reply);
        }
        hub.requests();
        hub.locks.release(ms(3), id).unwrap();
        hub.drain();
        let deletes = hub.requests();
        assert!(
            deletes.iter().all(|(_, request)| matches!(request, Request::Release { number: 1, .. })),
            "{deletes:?}"
        );
        assert_eq!(deletes.len(), 3);
    }
}

/// Before the claim, nothing prolongs the token or puts it on more nodes.
#[test]
fn unclaimed_grant_is_not_spread_to_missing_nodes() {
    // H5
    let mut hub = Hub::new(3, |c| c.unknown_age(UnknownAge::Trust));
    let id = hub.acquire(0, want());
    let calls = hub.takes();
    hub.reply(1, calls[2], Reply::NotSent(Cause::Fault(Fault::Unreachable)));
    hub.reply(1, calls[0], Reply::Granted { fence: None });
    hub.reply(1, calls[1], Reply::Granted { fence: None });
    hub.locks.handle_node_up(ms(2), NodeId::new(2), None);
    hub.drain();
    hub.at(2);
    assert_eq!(hub.requests(), []);
    hub.locks.claim(ms(3), id).unwrap();
    hub.drain();
    hub.at(3_001);
    assert_eq!(hub.requests().len(), 3, "after that it is");
}

/// A request sent before the extension does not confirm a full TTL from now on.
#[test]
fn renewal_in_flight_does_not_complete_later_extend() {
    // H3
    let mut hub = Hub::new(1, |c| c);
    let id = hub.held(0, want());
    hub.at(3_001);
    let (renewal, _) = hub.one();
    hub.locks.extend(ms(3_500), id).unwrap();
    hub.drain();
    assert_eq!(hub.requests(), []);
    hub.reply(3_600, renewal, Reply::Extended);
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Extend { .. }), "{request:?}");
    assert_eq!(hub.take_events(), [Event::Renewed { valid_until: ms(3_001 + 9_000 - 92) }]);
    hub.reply(3_700, call, Reply::Extended);
    assert_eq!(hub.take_events(), [Event::Renewed { valid_until: ms(3_600 + 9_000 - 92) }, Event::Extended]);
}

/// A new connection may lead to a server that forbids scripts: the first take on it is one.
#[test]
fn first_take_on_new_server_is_script() {
    // P2
    let mut hub = Hub::new(1, |c| c.fencing(false));
    hub.locks.handle_node_up(ms(0), NodeId::new(0), None);
    let mut at = 1;
    let mut takes_script = |hub: &mut Hub| {
        at += 10;
        let id = hub.acquire(at, want());
        let (call, request) = hub.one();
        hub.reply(at + 1, call, Reply::Granted { fence: None });
        hub.locks.claim(ms(at + 1), id).unwrap();
        hub.locks.release(ms(at + 2), id).unwrap();
        hub.drain();
        let (call, _) = hub.one();
        hub.reply(at + 3, call, Reply::Deleted { number: 1, awaited: false });
        request.script().is_some()
    };
    assert_eq!([0; 3].map(|_| takes_script(&mut hub)), [true, false, false]);
    hub.locks.handle_node_up(ms(40), NodeId::new(0), None);
    hub.drain();
    assert_eq!([0; 3].map(|_| takes_script(&mut hub)), [true, false, false]);
}

/// An attempt ended without a reply. The check a TTL later does not keep a connection open.
#[test]
fn check_after_ttl_needs_no_connection_before() {
    // A4, P7
    let mut hub = Hub::new(1, |c| c);
    let id = hub.acquire(0, want().ttl(crate::MAX_TTL));
    let (take, _) = hub.one();
    assert!(!hub.locks.may_rest());
    hub.reply(1, take, lost_connection());
    hub.locks.abandon(ms(2), id);
    hub.drain();
    let (delete, _) = hub.one();
    assert!(!hub.locks.may_rest(), "the delete is in flight");
    hub.reply(3, delete, Reply::Absent);
    assert!(hub.locks.may_rest() && !hub.locks.is_idle(), "only the check is left");
    hub.locks.handle_timeout(ms(3) + crate::MAX_TTL);
    hub.drain();
    assert!(!hub.locks.may_rest());
    let (check, _) = hub.one();
    hub.locks.handle_reply(ms(4) + crate::MAX_TTL, check, &Reply::Absent);
    assert!(hub.locks.may_rest() && hub.locks.is_idle());
}
