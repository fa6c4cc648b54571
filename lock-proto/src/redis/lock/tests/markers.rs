//! Markers: how waiters ask a node to be woken.
// A7

use super::*;

/// After the first refusal, each attempt sets a marker that outlives the pause to the next one.
#[test]
fn every_attempt_after_first_sets_waiting_marker() {
    // A7
    let mut hub = Hub::new(1, |c| c.wake(Wake::Notify).poll(Backoff::fixed(for_ms(400))));
    hub.acquire(0, want());
    let mut marks = vec![];
    for _ in 0..4 {
        let (call, request) = hub.one();
        let Request::Take { waiting_ms, .. } = request else { panic!("{request:?}") };
        marks.push(waiting_ms);
        let now = hub.locks.now_for_test();
        hub.locks.handle_reply(now, call, &Reply::Busy { expires: Expiry::Never });
        hub.drain();
        let next = hub.locks.next_deadline().unwrap();
        // No node reports releases here. If one did, the pause would be ten times as long.
        assert!(marks.len() < 2 || Duration::from_millis(waiting_ms) >= 20 * next.since(now), "{next}");
        hub.locks.handle_timeout(next);
        hub.drain();
    }
    assert_eq!(marks, [0, 32_000, 32_000, 32_000]);
    let mut hub = Hub::new(1, |c| c.wake(Wake::Poll));
    let id = hub.acquire(0, want());
    let (call, _) = hub.one();
    hub.reply(0, call, Reply::Busy { expires: Expiry::Never });
    hub.at(100);
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Take { waiting_ms: 0, .. }), "{request:?}");
    hub.reply(100, call, Reply::Granted { fence: None });
    hub.locks.release(ms(101), id).unwrap();
    hub.drain();
    let (_, request) = hub.one();
    assert!(matches!(request, Request::Release { announce: false, .. }), "who polls names no side key: {request:?}");
}

/// The user may wait on the signal list, but not write the marker: no release wakes the head.
#[test]
fn head_polls_at_full_rate_where_marker_is_refused() {
    // A7
    let mut hub = Hub::new(1, |c| c.wake(Wake::Notify).poll(Backoff::fixed(for_ms(50))));
    hub.acquire(0, want());
    let (call, _) = hub.one();
    hub.reply(1, call, Reply::Busy { expires: Expiry::Never });
    hub.locks.handle_subscribed(ms(2), NodeId::new(0), &Key::new(b"", b"a"));
    hub.drain();
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Take { waiting_ms: 1.., .. }), "{request:?}");
    hub.reply(3, call, Reply::Rejected(ServerError::classify("NOPERM no permissions to access a key")));
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Take { waiting_ms: 0, .. }), "{request:?}");
    hub.reply(4, call, Reply::Busy { expires: Expiry::Never });
    assert!(hub.locks.next_deadline() <= Some(ms(54)), "{:?}", hub.locks.next_deadline());
}
