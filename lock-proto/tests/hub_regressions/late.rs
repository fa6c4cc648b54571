//! Late requests and their cleanup.

use super::*;

/// A late request of an old attempt may be executed although the name was used again. The client
/// checks the node a TTL after the first delete. (Scenario `redis-late`.)
#[test]
fn late_set_is_deleted_after_name_is_reused() {
    // A4
    let mut hub = Hub::new(1, |c| c);
    let deleted = |number| Reply::Deleted { number, awaited: false };
    let id = hub.acquire(0, &want());
    let (take, _) = hub.one();
    hub.locks.abandon(ms(1), id);
    hub.drain();
    let (delete, _) = hub.one();
    hub.reply(2, take, &broken());
    hub.reply(2, delete, &broken());
    hub.up(3, 0, &server("a", 1_000));
    let (delete, _) = hub.one();
    hub.reply(4, delete, &Reply::Absent);
    let id = hub.held(5, &want());
    hub.locks.release(ms(10), id).unwrap();
    hub.drain();
    let (delete, _) = hub.one();
    hub.reply(11, delete, &deleted(2));
    assert!(matches!(hub.take_events()[..], [Event::Released(Release::Released)]));
    // The SET arrives now, and no acquisition exists.
    hub.at(9_004);
    let (look, request) = hub.one();
    assert!(matches!(request, Request::Release { retired: Some(_), .. }), "{request:?}");
    hub.reply(9_005, look, &deleted(1));
    assert_eq!(hub.locks.next_deadline(), None);
}

/// A recently restarted node grants during a delete of an earlier hold. The reply to the delete
/// must not make the client forget the new token. (Scenario `redis-logins`, seed 42.)
#[test]
fn grant_of_recently_restarted_node_survives_older_delete_reply() {
    // A4
    let mut hub = Hub::new(3, |c| c);
    let first = hub.held(0, &want());
    hub.locks.release(ms(10), first).unwrap();
    hub.drain();
    let deletes = hub.requests();
    for (call, _) in &deletes[..2] {
        hub.reply(11, *call, &Reply::Deleted { number: 1, awaited: false });
    }
    let second = hub.acquire(12, &want());
    let takes = hub.requests();
    hub.up(13, 2, &server("c", 0));
    hub.reply(14, takes[2].0, &granted());
    hub.reply(15, deletes[2].0, &Reply::Taken);
    hub.reply(16, takes[0].0, &granted());
    hub.reply(16, takes[1].0, &granted());
    hub.locks.claim(ms(17), second).unwrap();
    hub.locks.release(ms(18), second).unwrap();
    hub.drain();
    let nodes: Vec<usize> = hub.requests().iter().map(|(call, _)| call.node().index()).collect();
    assert_eq!(nodes, [0, 1, 2], "every node that granted gets a delete");
}
