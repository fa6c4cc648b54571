//! A hold of a quorum whose validity moves backwards.
// T3, Q4

use super::*;

/// One node missed a renewal, and another one has the key of another client since: the quorum is
/// valid for as long as the earlier grant.
#[test]
fn holder_is_told_that_its_lock_ends_earlier() {
    let mut hub = Hub::new(3, |c| c.unknown_age(UnknownAge::Trust));
    let id = hub.held(0, want());
    let first = hub.locks.valid_until(id).unwrap();
    let renew = |hub: &mut Hub| {
        let due = hub.locks.next_deadline().unwrap();
        hub.locks.handle_timeout(due);
        hub.drain();
        (due, hub.requests())
    };
    let (due, requests) = renew(&mut hub);
    for (call, request) in requests {
        assert!(matches!(request, Request::Extend { .. }));
        let lost = call.node() == NodeId::new(1);
        hub.locks.handle_reply(due, call, &if lost { Reply::Unknown(Fault::Reset.into()) } else { Reply::Extended });
    }
    hub.drain();
    let later = hub.locks.valid_until(id).unwrap();
    assert!(later > first);
    assert_eq!(hub.take_events(), [Event::Renewed { valid_until: later }]);

    let due = due + for_ms(3_200);
    hub.locks.handle_timeout(due);
    hub.drain();
    let (call, _) = hub.requests().into_iter().rev().find(|(call, _)| call.node() == NodeId::new(2)).unwrap();
    hub.locks.handle_reply(due, call, &Reply::Taken);
    hub.drain();
    assert_eq!(hub.locks.valid_until(id), Some(first));
    assert_eq!(hub.take_events()[0], Event::Renewed { valid_until: first });
}
