//! Requirements of elections.
// E10

use lock_proto::{Acquire, Misuse, Operation, OperationEvent};

use super::*;
use crate::election::leader;
use crate::world::{Kind, Outcome};

fn value(event: Option<&OperationEvent>) -> Option<&[u8]> {
    event.and_then(leader).map(|leader| &leader.value[..])
}

/// Returns the first revision of a confirmed proclamation.
fn proclaimed(w: &World, client: usize, lock: LockId) -> Option<i64> {
    let revision = |event: &Event| if let Event::Proclaimed { revision } = event { Some(*revision) } else { None };
    w.events(client, lock).iter().find_map(revision)
}

#[test]
fn observers_see_proclaimed_value() {
    // E10
    let mut w = World::new(2);
    let query = w.verb(1, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    let lock = w.campaign(0, "a", "one");
    w.run_for(ms(10));
    let before = w.queue("a")[0].clone();
    w.verb(0, |hub, now| hub.proclaim(now, lock, "two".into())).unwrap();
    w.run_for(ms(5));
    let after = w.queue("a")[0].clone();
    assert_eq!(proclaimed(&w, 0, lock), Some(after.mod_revision));
    assert_eq!(
        (after.create_revision, after.lease, &after.value[..]),
        (before.create_revision, before.lease, &b"two"[..])
    );
    let seen: Vec<_> =
        w.election_events(1, query).iter().map(|event| value(Some(event)).unwrap_or(b"nobody")).collect();
    assert_eq!(seen, [&b"nobody"[..], b"one", b"two"]);
    let reported = leader(w.election_events(1, query).last().unwrap()).unwrap();
    assert_eq!((reported.create_revision, reported.mod_revision), (after.create_revision, after.mod_revision));
    w.end();
}

/// A proclamation without a reply is checked by a read and repeated. It gets one correct result.
#[test]
fn unanswered_proclamation_is_repeated() {
    // E10
    for outcome in [Outcome::Reset, Outcome::Unanswered, Outcome::Lost] {
        let mut w = World::new(1);
        let lock = w.campaign(0, "a", "one");
        w.run_for(ms(10));
        w.set_outcome(0, Kind::Put, outcome);
        w.verb(0, |hub, now| hub.proclaim(now, lock, "two".into())).unwrap();
        w.expect(ms(1_100), "the answer", |w| proclaimed(w, 0, lock).is_some());
        let key = w.queue("a")[0].clone();
        assert_eq!((proclaimed(&w, 0, lock), &key.value[..]), (Some(key.mod_revision), &b"two"[..]));
        w.end();
    }
}

#[test]
fn unconfirmed_proclamation_fails_and_leader_stays() {
    // E10
    let mut w = World::new(1);
    let lock = w.campaign(0, "a", "one");
    w.run_for(ms(10));
    w.every(0, Kind::Put, Some(Outcome::Lost));
    w.verb(0, |hub, now| hub.proclaim(now, lock, "two".into())).unwrap();
    let requested = w.now;
    w.expect(secs(3), "the answer", |w| w.events(0, lock).iter().any(|e| matches!(e, Event::ProclaimFailed(_))));
    assert_eq!(w.now.since(requested), secs(2));
    assert!(w.is_held(0, lock), "it still leads");
    w.every(0, Kind::Put, None);
    w.verb(0, |hub, now| hub.proclaim(now, lock, "three".into())).unwrap();
    w.expect(secs(2), "the next one", |w| proclaimed(w, 0, lock).is_some());
    assert_eq!(&w.queue("a")[0].value[..], b"three");
    assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
    w.end();
}

#[test]
fn refusal_of_replaced_value_does_not_fail_next_proclaim() {
    // E10
    let mut w = World::new(1);
    let lock = w.campaign(0, "a", "one");
    w.run_for(ms(10));
    w.set_outcome(0, Kind::Put, Outcome::Answer(denied()));
    w.verb(0, |hub, now| hub.proclaim(now, lock, "two".into())).unwrap();
    w.verb(0, |hub, now| hub.proclaim(now, lock, "three".into())).unwrap();
    w.expect(secs(2), "the answer", |w| proclaimed(w, 0, lock).is_some());
    assert!(!w.events(0, lock).iter().any(|e| matches!(e, Event::ProclaimFailed(_))), "{}", w.describe());
    assert_eq!(&w.queue("a")[0].value[..], b"three");
    w.release(0, lock);
    w.end();
}

#[test]
fn only_leader_can_proclaim() {
    // E10
    let mut w = World::new(2);
    let first = w.campaign(0, "a", "one");
    w.run_for(ms(10));
    let second = w.campaign(1, "a", "two");
    w.run_for(ms(10));
    let attempt = w.verb(1, |hub, now| hub.proclaim(now, second, "me".into()));
    assert_eq!(attempt, Err(Misuse::NotHeld(second)));
    let _ = release_and_wait(&mut w, 0, first);
    let attempt = w.verb(0, |hub, now| hub.proclaim(now, first, "me".into()));
    assert_eq!(attempt, Err(Misuse::Stale(first)));
    w.run_for(ms(10));
    assert_eq!(&w.queue("a")[0].value[..], b"two");
    w.end();
}

#[test]
fn local_hand_over_is_visible_to_observers() {
    // E10
    let mut w = World::new(2);
    let query = w.verb(1, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    let first = w.campaign(0, "a", "one");
    let second = w.campaign(0, "a", "two");
    let third = w.campaign(0, "a", "two");
    w.run_for(ms(10));
    w.release(0, first);
    w.run_for(ms(10));
    assert!(w.is_held(0, second));
    let before = w.queue("a")[0].clone();
    w.release(0, second);
    w.run_for(ms(10));
    assert!(w.is_held(0, third));
    assert!(w.queue("a")[0].mod_revision > before.mod_revision, "another leader, if of the same value");
    assert_eq!(w.election_events(1, query).iter().filter_map(leader).count(), 3);
    w.end();
}

#[test]
fn leader_query_gets_exactly_one_reply() {
    // E10
    let mut w = World::new(2);
    let nobody = w.verb(1, |hub, now| hub.start(now, Operation::Leader("a".into()))).unwrap();
    w.run_for(ms(5));
    assert_eq!(w.election_events(1, nobody), [OperationEvent::NoLeader]);
    w.campaign(0, "a", "one");
    w.run_for(ms(10));
    w.set_outcome(1, Kind::First, Outcome::Reset);
    let somebody = w.verb(1, |hub, now| hub.start(now, Operation::Leader("a".into()))).unwrap();
    w.run_for(secs(1));
    assert_eq!(w.election_events(1, somebody).len(), 1);
    assert_eq!(value(w.election_events(1, somebody).last()), Some(&b"one"[..]));
    w.cut(1);
    let unanswered = w.verb(1, |hub, now| hub.start(now, Operation::Leader("a".into()))).unwrap();
    w.run_for(secs(2));
    assert!(
        matches!(w.election_events(1, unanswered), [OperationEvent::Failed(Failure::TimedOut(_))]),
        "{:?}",
        w.election_events(1, unanswered)
    );
    w.heal(1);
    w.set_outcome(1, Kind::First, Outcome::Answer(denied()));
    let refused = w.verb(1, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    w.run_for(ms(10));
    assert!(
        matches!(w.election_events(1, refused), [OperationEvent::Failed(Failure::Refused(_))]),
        "{:?}",
        w.election_events(1, refused)
    );
    w.end();
}

#[test]
fn closed_observation_emits_nothing() {
    // E10
    let mut w = World::new(2);
    let query = w.verb(1, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    w.run_for(ms(10));
    w.verb(1, |hub, now| hub.cancel(now, query));
    w.campaign(0, "a", "one");
    w.run_for(secs(5));
    assert_eq!(w.election_events(1, query).len(), 1);
    assert_eq!(w.verb(1, |hub, _| hub.next_deadline()), None);
    w.end();
}

/// The first read may complete before the watch is open. The watch, not a poll, reports later
/// changes.
#[test]
fn watch_opened_after_read_reports_changes_at_once() {
    // E10
    let mut w = World::new(2);
    w.set_outcome(1, Kind::First, Outcome::Slow(Duration::ZERO, Duration::ZERO));
    let query = w.verb(1, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    w.run_for(ms(5));
    assert_eq!(w.election_events(1, query), [OperationEvent::NoLeader]);
    w.campaign(0, "a", "one");
    w.run_for(ms(10));
    assert_eq!(value(w.election_events(1, query).last()), Some(&b"one"[..]));
    w.end();
}

#[test]
fn observer_without_watch_polls_leader() {
    // E10
    let mut w = World::new(2);
    let query = w.verb(1, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    w.block_watches(1);
    let lock = w.verb(0, |hub, now| hub.campaign(now, &Acquire::new("a"), "one".into())).unwrap();
    w.run_for(ms(1_100));
    assert!(w.is_held(0, lock));
    w.run_for(ms(1_100));
    assert_eq!(value(w.election_events(1, query).last()), Some(&b"one"[..]), "{:?}", w.election_events(1, query));
    let reads = w.count(1, Kind::First);
    w.run_for(secs(10));
    assert!((9..=11).contains(&(w.count(1, Kind::First) - reads)));
    w.end();
}

/// Regression: a foreign key in the election's range was reported as the leader. It does not lead,
/// and blocks candidates behind it.
#[test]
fn foreign_key_is_never_leader() {
    // E10
    for key in ["a/x/7f", "a/", "a/7F", "a/0x7f", "a/7f/", "a/00000000000000001"] {
        let mut w = World::new(2);
        w.put_by_hand(key, 0);
        let requested = w.verb(0, |hub, now| hub.start(now, Operation::Leader("a".into()))).unwrap();
        let observed = w.verb(0, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
        w.run_for(ms(10));
        assert_eq!(w.election_events(0, requested), [OperationEvent::NoLeader], "{key}");
        assert_eq!(w.election_events(0, observed), [OperationEvent::NoLeader], "{key}");
        let candidate = w.campaign(1, "a", "one");
        w.run_for(ms(10));
        assert!(matches!(failure(&w, 1, candidate), Some(Failure::KeyInUse(_))), "{key}");
        w.delete_by_hand(&key.into());
        // A newer foreign key changes nothing until the leader has left.
        let leads = w.campaign(1, "a", "one");
        w.run_for(ms(10));
        w.put_by_hand(key, 0);
        w.run_for(ms(10));
        assert_eq!(value(w.election_events(0, observed).last()), Some(&b"one"[..]), "{key}");
        let _ = release_and_wait(&mut w, 1, leads);
        w.run_for(ms(10));
        assert_eq!(w.election_events(0, observed).last(), Some(&OperationEvent::NoLeader), "{key}");
        w.delete_by_hand(&key.into());
        w.end();
    }
}

/// The server lost the event of an election or resignation. Without polling, the observer would
/// learn of it with the next change, if at all.
#[test]
fn observer_recovers_from_lost_event() {
    // E10
    let mut w = World::new(2);
    let query = w.verb(1, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    w.run_for(ms(10));
    w.lose_events(1, true);
    let leads = w.campaign(0, "a", "one");
    w.run_for(secs(20));
    assert_eq!(w.election_events(1, query), [OperationEvent::NoLeader]);
    w.expect(secs(11), "the leader is seen", |w| value(w.election_events(1, query).last()) == Some(b"one"));
    let _ = release_and_wait(&mut w, 0, leads);
    w.expect(secs(31), "nobody leads", |w| w.election_events(1, query).last() == Some(&OperationEvent::NoLeader));
    let reads = w.count(1, Kind::First);
    w.run_for(secs(600));
    assert!((20..=27).contains(&(w.count(1, Kind::First) - reads)), "{}", w.count(1, Kind::First) - reads);
    w.end();
}
