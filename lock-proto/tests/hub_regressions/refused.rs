//! Servers that allow access to a lock's own key only.

use lock_proto::{Answer, Note};

use super::*;

fn refused() -> Reply {
    Reply::Rejected(ServerError::classify(
        "NOPERM this user has no permissions to access one of the keys used as arguments",
    ))
}

fn announces(request: &Request) -> bool {
    matches!(request, Request::Release { announce: true, .. })
}

/// The wake-up keys are forbidden or in another cluster slot. The lock's own key is deleted without
/// them, and later releases omit them on that node.
#[test]
fn refused_release_is_retried_without_announcement() {
    // U1
    let mut hub = Hub::new(1, |c| c.wake(Wake::Notify));
    let id = hub.held(0, &want());
    hub.locks.release(ms(10), id).unwrap();
    hub.drain();
    let (call, request) = hub.one();
    assert!(announces(&request));
    hub.reply(11, call, &refused());
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Release { announce: false, .. }), "{request:?}");
    hub.reply(12, call, &Reply::Deleted { number: 1, awaited: false });
    assert_eq!(hub.take_events(), [Event::Released(Release::Released)]);
    for (at, up, announced) in [(20, false, false), (30, true, true)] {
        if up {
            // The permissions may have changed.
            hub.up(at, 0, &server("a", 1_000));
        }
        let id = hub.held(at, &want());
        hub.locks.release(ms(at + 5), id).unwrap();
        hub.drain();
        let (call, request) = hub.one();
        assert_eq!(announces(&request), announced, "at {at} ms");
        hub.reply(at + 6, call, &Reply::Deleted { number: 1, awaited: false });
        hub.take_events();
    }
}

/// A release without permission fails at once, because no other reply will follow.
#[test]
fn permanently_refused_release_is_answered_at_once() {
    // U1
    // N23
    let mut hub = Hub::new(3, |c| c.wake(Wake::Notify));
    hub.locks.keep_notes(2);
    let id = hub.held(0, &want());
    hub.locks.release(ms(10), id).unwrap();
    hub.drain();
    for round in [11, 12] {
        let calls = hub.requests();
        assert_eq!(calls.len(), 3);
        assert_eq!(hub.take_events(), []);
        for (call, _) in calls {
            hub.reply(round, call, &refused());
        }
    }
    let Reply::Rejected(error) = refused() else { panic!() };
    let answers = [0; 3].map(|_| Answer::Rejected(error.clone())).into();
    assert_eq!(hub.locks.poll_note(), Some(Note::NotReleased { lock: id, answers }));
    assert_eq!(hub.take_events(), [Event::Released(Release::Unknown)]);
    assert_eq!(hub.requests(), []);
}

/// A node that confirmed the release and one that has not answered are told apart.
#[test]
fn unconfirmed_release_reports_last_reply_of_each_node() {
    // N23
    let mut hub = Hub::new(3, |c| c.wake(Wake::Poll));
    hub.locks.keep_notes(2);
    let id = hub.held(0, &want());
    hub.locks.release(ms(10), id).unwrap();
    hub.drain();
    let calls = hub.requests();
    hub.reply(11, calls[0].0, &Reply::Absent);
    let lost = Cause::Fault(Fault::Closed);
    hub.reply(12, calls[1].0, &Reply::NotSent(lost.clone()));
    hub.at(2_010);
    let answers = [Answer::Granted, Answer::Unreachable(lost), Answer::Silent].into();
    assert_eq!(hub.locks.poll_note(), Some(Note::NotReleased { lock: id, answers }));
    assert_eq!(hub.take_events(), [Event::Released(Release::Unknown)]);
}

/// A waiter's attempt also sets a marker. Without permission for it, the waiter omits it and polls.
#[test]
fn refused_attempt_is_retried_without_marker() {
    // A7
    let mut hub = Hub::new(1, |c| c.wake(Wake::Notify));
    hub.acquire(0, &want());
    let (call, _) = hub.one();
    hub.reply(1, call, &Reply::Busy { expires: Expiry::In(for_ms(5_000)) });
    hub.at(2_000);
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Take { waiting_ms: 1.., .. }), "{request:?}");
    hub.reply(2_001, call, &refused());
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Take { waiting_ms: 0, .. }), "{request:?}");
    hub.reply(2_002, call, &Reply::Busy { expires: Expiry::In(for_ms(2_000)) });
    assert!(hub.take_events().iter().all(|event| matches!(event, Event::Blocked(_))));
    hub.at(6_000);
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Take { waiting_ms: 0, .. }), "{request:?}");
    // Without the marker a rejection is final.
    hub.reply(6_001, call, &refused());
    assert!(matches!(hub.take_events()[..], [Event::Failed(Failure::Refused(_))]));
}

/// Notes say why a lock is at risk, and change nothing.
#[test]
fn refused_renewal_is_noted_when_the_lock_is_at_risk() {
    // N23
    let run = |notes: usize| {
        let mut hub = Hub::new(1, |c| c.at_risk(for_ms(3_000)));
        hub.locks.keep_notes(notes);
        let id = hub.held(0, &want());
        hub.at(3_100);
        let (call, _) = hub.one();
        hub.reply(3_101, call, &refused());
        hub.at(6_100);
        let Some(Event::AtRisk { valid_until }) = hub.take_events().pop() else { panic!("{:?}", hub.events) };
        let Reply::Rejected(error) = refused() else { panic!() };
        let answers = [Answer::Rejected(error)].into();
        let note = Note::AtRisk { lock: id, valid_until, answers };
        (hub.locks, note)
    };
    let (mut noting, note) = run(2);
    let (mut silent, _) = run(0);
    assert_eq!((silent.poll_note(), noting == silent), (None, true));
    assert_eq!((noting.poll_note(), noting.poll_note()), (Some(note), None));
}
