//! Local hand-over when the fencing tokens have run out.

use super::*;

/// A hub with a holder that has one fencing token and two waiters. The holder releases at 10 ms.
fn out_of_fences(change: impl FnOnce(Config) -> Config) -> (Hub, [LockId; 2], CallId) {
    let mut hub = Hub::new(1, change);
    let first = hub.acquire(0, want());
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Take { fence_block: 1_000, .. }), "{request:?}");
    hub.reply(1, call, Reply::Granted { fence: Some(FenceBlock { first: 100, count: 1, ahead_ms: 0 }) });
    hub.locks.claim(ms(1), first).unwrap();
    let waiters = [hub.acquire(2, want()), hub.acquire(3, want())];
    hub.take_events();
    hub.locks.release(ms(10), first).unwrap();
    hub.drain();
    assert_eq!(hub.take_events(), [Event::Released(Release::Released)], "the next one has no token yet");
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Extend { number: 1, fence_block: 1_000, .. }), "{request:?}");
    (hub, waiters, call)
}

#[test]
fn hand_over_without_fencing_tokens_left_extends_and_mints() {
    // A9
    let (mut hub, [second, third], call) = out_of_fences(|c| c);
    hub.reply(12, call, Reply::Granted { fence: Some(FenceBlock { first: 500, count: 2, ahead_ms: 7 }) });
    for (id, fence) in [(second, 500), (third, 501)] {
        let events = hub.take_events();
        let Some(Event::Granted(grant)) = events.last() else { panic!("{events:?}") };
        assert_eq!((grant.token.number, grant.fence), (1, Some(Fence(fence))));
        assert_eq!(grant.fence_ahead_ms, 7, "the application hears of the clock");
        // The script extended the key, so the TTL counts from its request.
        assert_eq!(grant.valid_until, ms(10) + for_ms(9_000 - 92));
        hub.locks.claim(ms(20), id).unwrap();
        hub.locks.release(ms(20), id).unwrap();
        hub.drain();
    }
    // No waiters are left.
    assert!(matches!(hub.one().1, Request::Release { .. }));
}

/// Neither minting nor extending is certain. The lock is released, and the waiters contend again.
#[test]
fn hand_over_releases_lock_if_minting_fails() {
    // A9
    for reply in [
        Reply::Unknown(Cause::Fault(Fault::TimedOut)),
        Reply::NotSent(Cause::Fault(Fault::Closed)),
        Reply::Rejected(ServerError { class: ErrorClass::KeyInUse, text: "LOCKFENCE no".into() }),
        // Not a reply to this request.
        Reply::Extended,
        Reply::Granted { fence: None },
        Reply::Granted { fence: Some(FenceBlock { first: 500, count: 0, ahead_ms: 0 }) },
    ] {
        let (mut hub, [second, _], call) = out_of_fences(|c| c);
        hub.reply(12, call, reply.clone());
        assert_eq!(hub.take_events(), [], "{reply:?}: nobody is granted anything");
        let (call, request) = hub.one();
        assert!(matches!(request, Request::Release { number: 1, .. }), "{reply:?}: {request:?}");
        hub.reply(14, call, Reply::Deleted { number: 1, awaited: false });
        hub.at(40);
        let (call, request) = hub.one();
        assert!(matches!(request, Request::Take { number: 2, .. }), "{reply:?}: {request:?}");
        hub.reply(41, call, Reply::Granted { fence: fences(600) });
        assert!(matches!(hub.events[..], [(id, Event::Granted(_))] if id == second), "{reply:?}: {:?}", hub.events);
    }
}

/// The key is gone, so the hand-over grants nothing.
#[test]
fn hand_over_of_lost_key_grants_nothing() {
    // A9
    for reply in [Reply::Absent, Reply::Taken] {
        let (mut hub, [second, _], call) = out_of_fences(|c| c);
        hub.reply(12, call, reply);
        assert_eq!(hub.take_events(), []);
        hub.at(40);
        let call = hub.takes()[0];
        hub.reply(41, call, Reply::Granted { fence: fences(600) });
        assert!(matches!(hub.events[..], [(id, Event::Granted(_))] if id == second), "{:?}", hub.events);
    }
}

/// The waiter for which tokens are minted leaves. The next one gets them.
#[test]
fn tokens_minted_for_abandoned_waiter_go_to_next_waiter() {
    // A9
    let (mut hub, [second, third], call) = out_of_fences(|c| c);
    hub.locks.abandon(ms(11), second);
    hub.drain();
    hub.reply(12, call, Reply::Granted { fence: fences(500) });
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Extend { fence_block: 0, .. }), "{request:?}");
    hub.reply(14, call, Reply::Extended);
    let granted = |(id, event): &(LockId, Event)| {
        *id == third && matches!(event, Event::Granted(Grant { fence: Some(Fence(500)), .. }))
    };
    assert!(hub.events.iter().any(granted), "{:?}", hub.events);
}
