#![allow(clippy::unwrap_used, reason = "a test may panic")]
use super::*;
use alloc::boxed::Box;
use alloc::string::ToString as _;
use alloc::vec;
use lock_proto::ClientId;
use lock_proto::{Fence, Grant, Loss, Release, Report, Token};

const A: LockId = LockId::new(0, 0);
const B: LockId = LockId::new(1, 0);

const fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn grant(fence: Option<u64>) -> Event {
    Event::Granted(Grant::new(
        Token { client: ClientId::from_bits(1), number: 1 },
        fence.map(Fence::new),
        Duration::from_secs(1),
        Instant::ZERO,
    ))
}

const RENEWED: Event = Event::Renewed { valid_until: Instant::ZERO };

fn rules(checker: &mut Checker) -> Vec<Rule> {
    core::iter::from_fn(|| checker.poll_violation()).map(|violation| violation.rule).collect()
}

fn take(c: &mut Checker, now: u64, client: usize, lock: LockId, key: &[u8], until: u64) {
    c.requested(at(now), client, lock, key, None);
    c.notified(at(now), client, lock, &grant(None), Some(at(until)), None);
    c.claimed(client, lock);
}

#[test]
fn overlapping_holders_are_found_and_successive_are_not() {
    let mut c = Checker::new();
    take(&mut c, 0, 0, A, b"a", 100);
    take(&mut c, 50, 1, A, b"b", 100);
    c.notified(at(100), 0, A, &Event::Lost(Loss::Expired), None, None);
    take(&mut c, 100, 1, B, b"a", 200);
    assert_eq!((rules(&mut c), c.overlaps()), (Vec::new(), 0));
    take(&mut c, 199, 0, B, b"a", 300);
    let found = c.poll_violation().unwrap();
    assert_eq!((found.rule, c.overlaps(), c.grants()), (Rule::MutualExclusion, 1, 4));
    assert!(found.to_string().starts_with("MutualExclusion at 0.199000s: two holders of a: client 1 #1.0"), "{found}");
}

#[test]
fn renewal_after_expiry_or_during_another_hold_is_found() {
    let mut c = Checker::new();
    take(&mut c, 0, 0, A, b"a", 100);
    take(&mut c, 120, 1, B, b"a", 200);
    c.notified(at(130), 0, A, &RENEWED, Some(at(230)), None);
    assert_eq!(rules(&mut c), [Rule::Notified, Rule::MutualExclusion]);
}

#[test]
fn overlap_after_paused_clock_is_found() {
    let mut c = Checker::new();
    take(&mut c, 0, 0, A, b"a", 100);
    take(&mut c, 150, 1, B, b"a", 250);
    c.suspended(at(160), 0, Duration::from_millis(50));
    assert_eq!(rules(&mut c), []);
    c.suspended(at(160), 0, Duration::from_millis(50));
    assert_eq!(rules(&mut c), [Rule::MutualExclusion]);
}

#[test]
fn ended_hold_does_not_overlap_next() {
    let mut c = Checker::new();
    take(&mut c, 0, 0, A, b"a", 100);
    c.release_requested(0, A, None);
    take(&mut c, 10, 1, B, b"a", 100);
    c.killed(1);
    take(&mut c, 20, 0, B, b"a", 100);
    c.abandoned(0, B);
    take(&mut c, 30, 1, A, b"a", 100);
    assert_eq!(rules(&mut c), []);
}

/// A client that was paused reports overdue events first, even if it releases the lock as soon as
/// it resumes. Found by `explore --scenario etcd-elections --seed 20002144`: the checker did not
/// allow for a proclaim that had timed out.
#[test]
fn overdue_event_is_allowed_after_release() {
    let failed = || Event::ProclaimFailed(Report::new(Duration::from_secs(2), Box::default()));
    let notified = |event: &Event| {
        let mut c = Checker::new();
        take(&mut c, 0, 0, A, b"a", 100);
        c.release_requested(0, A, None);
        c.notified(at(50), 0, A, event, None, None);
        rules(&mut c)
    };
    for due in [failed(), Event::AtRisk { valid_until: at(100) }, Event::Lost(Loss::Expired)] {
        assert_eq!(notified(&due), [], "{due:?}");
    }
    for late in [RENEWED, Event::Proclaimed { revision: 7 }] {
        assert_eq!(notified(&late), [Rule::OneOutcome], "{late:?}");
    }
}

/// The deadline of a shutdown moves if the client's clock stops. Found by `explore --scenario
/// redis-beyond --seed 7000042`.
#[test]
fn client_that_does_not_stop_in_time_is_found() {
    let mut c = Checker::new();
    c.shut_down(0, at(100));
    c.shut_down(0, at(200));
    c.suspended(at(60), 0, Duration::from_millis(50));
    c.check_overdue(at(149), 0);
    assert!(c.is_stopping(0) && !c.is_stopping(1));
    assert_eq!(rules(&mut c), []);
    c.check_overdue(at(150), 0);
    assert_eq!(rules(&mut c), [Rule::Notified]);
    c.shut_down(1, at(100));
    c.stopped(at(99), 1);
    c.check_overdue(at(100), 1);
    assert!(!c.is_stopping(1));
    c.shut_down(2, at(100));
    c.killed(2);
    c.shut_down(2, at(100));
    c.check_overdue(at(100), 2);
    assert_eq!(rules(&mut c), []);
}

#[test]
fn unresolved_acquisition_of_stopped_client_is_found() {
    let mut c = Checker::new();
    c.requested(at(0), 0, A, b"a", None);
    c.stopped(at(1), 0);
    assert_eq!(rules(&mut c), [Rule::Notified]);
}

#[test]
fn unreported_end_is_found() {
    let mut c = Checker::new();
    take(&mut c, 0, 0, A, b"a", 100);
    c.requested(at(0), 1, A, b"a", Some(at(50)));
    c.check_overdue(at(99), 0);
    c.check_overdue(at(49), 1);
    c.check_overdue(at(99), 2);
    assert_eq!(rules(&mut c), []);
    c.check_overdue(at(100), 0);
    c.check_overdue(at(50), 1);
    assert_eq!(rules(&mut c), [Rule::Notified, Rule::Notified]);
    c.release_requested(0, A, Some(at(120)));
    c.check_overdue(at(119), 0);
    assert_eq!(rules(&mut c), []);
    c.check_overdue(at(120), 0);
    assert_eq!(rules(&mut c), [Rule::Notified]);
}

#[test]
fn fences_must_grow_in_store_order() {
    let mut c = Checker::new();
    let mut fenced = |key: &[u8], slot, fence, order| {
        let id = LockId::new(slot, 0);
        c.requested(at(0), 0, id, key, None);
        c.notified(at(0), 0, id, &grant(Some(fence)), Some(at(1)), order);
        c.abandoned(0, id);
        rules(&mut c).len()
    };
    assert_eq!(fenced(b"a", 1, 5, None), 0);
    assert_eq!(fenced(b"b", 2, 2, None), 0);
    assert_eq!(fenced(b"a", 3, 6, None), 0);
    assert_eq!(fenced(b"a", 4, 6, None), 1, "the same again");
    // Reported late, but granted early.
    assert_eq!(fenced(b"c", 5, 9, Some(4)), 0);
    assert_eq!(fenced(b"c", 6, 7, Some(2)), 0);
    assert_eq!(fenced(b"c", 7, 8, Some(2)), 0, "the next of a hand-over");
    assert_eq!(fenced(b"c", 8, 9, Some(3)), 1);
}

#[test]
fn stale_write_is_refused_with_fence_and_found_without() {
    for (fences, accepted, found) in [([Some(1), Some(2)], false, 0), ([None, None], true, 1)] {
        let mut c = Checker::new();
        for (client, fence) in fences.into_iter().enumerate() {
            c.requested(at(0), client, A, b"a", None);
            c.notified(at(0), client, A, &grant(fence), Some(at(1)), None);
        }
        let (old, new) = (c.permit(0, A).unwrap(), c.permit(1, A).unwrap());
        rules(&mut c);
        assert!(c.write(at(1), b"a", old) && c.write(at(2), b"a", new) && c.write(at(3), b"a", new));
        assert_eq!(c.write(at(4), b"a", old), accepted);
        assert_eq!(rules(&mut c).len(), found);
    }
}

#[test]
fn shortened_key_ttl_is_found() {
    let mut c = Checker::new();
    let x: &[u8] = b"x";
    for (node, value, expires) in [(0, x, 100), (0, x, 150), (1, x, 120), (0, b"y", 120)] {
        c.stored(at(0), node, b"a", Some((value, Some(expires))));
    }
    c.stored(at(0), 0, b"a", None);
    c.stored(at(0), 0, b"a", Some((b"y", Some(110))));
    assert_eq!(rules(&mut c), []);
    c.stored(at(0), 0, b"a", Some((b"y", Some(109))));
    assert_eq!(rules(&mut c), [Rule::ShortenedKey]);
    c.data_changed(0, 0);
    c.stored(at(0), 0, b"a", Some((b"y", Some(1))));
    assert_eq!(rules(&mut c), []);
}

/// Restored data makes an earlier value appear again. A change that keeps a value does not.
#[test]
fn grant_after_restore_is_newer() {
    let mut c = Checker::new();
    c.requested(at(0), 0, A, b"a", None);
    let store = |c: &mut Checker, value: &str| c.stored(at(0), 0, b"a", Some((value.as_bytes(), None)));
    store(&mut c, "one");
    c.data_changed(0, 10);
    store(&mut c, "one");
    c.data_changed(0, 20);
    store(&mut c, "two");
    c.data_changed(0, 30);
    store(&mut c, "one");
    let order = |value: &str, fence| c.order(b"a", value.as_bytes(), Some(fence));
    assert!(order("one", 29) < order("two", 25) && order("two", 25) < order("one", 30));
    assert_eq!((order("one", 9), order("one", 29)), (Some(1), Some(1)));
}

/// Granted with the value `one`, the first under its key.
fn first_of_all(c: &mut Checker) {
    c.requested(at(0), 0, A, b"a", None);
    c.stored(at(0), 0, b"a", Some((b"one", None)));
    let order = c.order(b"a", b"one", None);
    c.notified(at(0), 0, A, &grant(None), Some(at(100)), order);
    c.claimed(0, A);
}

#[test]
fn loss_reported_as_taken_without_other_owner_is_found() {
    let taken = Event::Lost(Loss::Taken);
    // Another client, a foreign key, another client that left, and the first one after another.
    let others: [fn(&mut Checker); 4] = [
        |c| c.stored(at(150), 0, b"a", Some((b"two", None))),
        |c| c.foreign_key_created(at(150), b"a"),
        |c| {
            c.stored(at(150), 0, b"a", Some((b"two", None)));
            c.stored(at(151), 0, b"a", None);
        },
        |c| ["two", "one"].iter().for_each(|value| c.stored(at(150), 0, b"a", Some((value.as_bytes(), None)))),
    ];
    for other in others {
        let mut c = Checker::new();
        first_of_all(&mut c);
        other(&mut c);
        c.notified(at(160), 0, A, &taken, None, None);
        assert_eq!(rules(&mut c), []);
    }
    for untrue in [taken, Event::Lost(Loss::Gone)] {
        let mut c = Checker::new();
        c.requested(at(0), 1, A, b"a", None);
        c.stored(at(0), 0, b"a", Some((b"before", None)));
        first_of_all(&mut c);
        c.stored(at(50), 0, b"a", None);
        c.stored(at(51), 0, b"a", Some((b"one", None)));
        c.notified(at(60), 0, A, &untrue, None, None);
        let found = if matches!(untrue, Event::Lost(Loss::Taken)) { vec![Rule::TrueLoss] } else { vec![] };
        assert_eq!(rules(&mut c), found, "{untrue:?}");
    }
}

#[test]
fn stranger_occupying_held_key_is_found() {
    for (when, found) in [(99, vec![Rule::MutualExclusion]), (100, vec![])] {
        let mut c = Checker::new();
        first_of_all(&mut c);
        c.foreign_key_created(at(when), b"a");
        assert_eq!(rules(&mut c), found);
    }
}

#[test]
fn store_order_is_order_of_first_appearance() {
    let mut c = Checker::new();
    c.requested(at(0), 0, A, b"a", None);
    for value in [b"one", b"two", b"one"] {
        c.stored(at(0), 0, b"a", Some((value, None)));
    }
    assert!(c.order(b"a", b"one", None) < c.order(b"a", b"two", None));
    assert_eq!(c.order(b"a", b"six", None), None);
}

#[test]
fn overtaking_waiter_of_same_client_is_found() {
    let mut c = Checker::new();
    c.requested(at(0), 0, B, b"a", None);
    take(&mut c, 1, 0, A, b"b", 10);
    take(&mut c, 1, 1, A, b"a", 2);
    assert_eq!(rules(&mut c), []);
    take(&mut c, 3, 0, LockId::new(7, 0), b"a", 10);
    assert_eq!(rules(&mut c), [Rule::Fifo]);
}

#[test]
fn excessive_request_rate_is_found() {
    let mut c = Checker::new();
    for i in 0..5_000 {
        c.count_request(at(i * 20), 0, 0);
    }
    c.requested(at(100_000), 0, A, b"a", None);
    for i in 10_000..15_000 {
        c.count_request(at(i * 10), 0, 0);
    }
    assert_eq!(rules(&mut c), []);
    // Every round trip.
    for i in 0..500 {
        c.count_request(at(150_000 + i * 5), 0, 0);
    }
    assert_eq!(rules(&mut c), [Rule::Bounded]);
}

#[test]
fn event_after_end_or_out_of_order_is_found() {
    let (lost, released) = (Event::Lost(Loss::Gone), Event::Released(Release::Released));
    let mut c = Checker::new();
    take(&mut c, 0, 0, A, b"a", 100);
    c.notified(at(1), 0, A, &lost, None, None);
    assert_eq!(c.stage(0, A), Some(Stage::Lost));
    c.release_requested(0, A, None);
    c.notified(at(2), 0, A, &released, None, None);
    assert_eq!((c.stage(0, A), c.live(0).count(), rules(&mut c)), (Some(Stage::Over), 0, Vec::new()));
    // After the end, without a request, and out of order.
    c.notified(at(3), 0, A, &released, None, None);
    c.notified(at(3), 0, B, &released, None, None);
    c.requested(at(3), 0, B, b"a", None);
    for event in [&lost, &released, &Event::Withdrawn, &RENEWED] {
        c.notified(at(3), 0, B, event, None, None);
    }
    c.requested(at(3), 0, A, b"a", None);
    assert_eq!(rules(&mut c), [Rule::OneOutcome; 7]);
}

/// One client releases at 100; another has been waiting since 50.
fn given_back(within: u64) -> Checker {
    let mut c = Checker::new();
    c.expect_prompt(Duration::from_millis(within), Duration::ZERO);
    take(&mut c, 0, 0, A, b"a", 1_000);
    c.requested(at(50), 1, A, b"a", None);
    c.advance(at(100));
    c.release_requested(0, A, None);
    c
}

#[test]
fn lock_left_free_while_waiter_is_pending_is_found() {
    // S8
    for (granted, found) in [(120, vec![]), (121, vec![Rule::Prompt])] {
        let mut c = given_back(20);
        assert!(c.is_hand_over(1, A));
        c.notified(at(granted), 1, A, &grant(None), Some(at(1_000)), None);
        assert_eq!(rules(&mut c), found);
    }
    let report = || Report::new(Duration::from_millis(70), []);
    let mut c = given_back(20);
    c.notified(at(121), 1, A, &Event::Failed(Failure::TimedOut(report())), None, None);
    assert_eq!(rules(&mut c), [Rule::Prompt]);
    // A lost hold notifies nobody, and promptness is waived once something has gone wrong.
    let mut c = given_back(20);
    take(&mut c, 100, 2, A, b"a", 1_000);
    c.notified(at(200), 2, A, &Event::Lost(Loss::Gone), None, None);
    c.notified(at(900), 1, A, &grant(None), Some(at(1_900)), None);
    let mut waived = given_back(20);
    waived.waive_prompt();
    waived.notified(at(900), 1, A, &grant(None), Some(at(1_900)), None);
    assert_eq!((rules(&mut c), rules(&mut waived)), (vec![], vec![]));
}

#[test]
fn repeated_or_abandoned_unanswered_request_is_found() {
    // S9
    let mut c = Checker::new();
    c.request_sent(at(0), 0, 7, 1, TAKE, b"a".to_vec());
    c.request_sent(at(0), 0, 7, 2, TAKE, b"a".to_vec());
    assert_eq!(rules(&mut c), [], "nobody has asked for it");
    c.expect_once();
    c.request_sent(at(0), 0, 7, 3, TAKE, b"a".to_vec());
    c.request_sent(at(0), 0, 7, 4, TAKE, b"b".to_vec());
    c.request_sent(at(0), 0, 8, 5, TAKE, b"a".to_vec());
    c.reply_received(7, 3);
    c.request_sent(at(0), 0, 7, 6, TAKE, b"a".to_vec());
    assert_eq!(rules(&mut c), [], "another lock, another connection, or answered");
    c.request_sent(at(0), 0, 7, 7, TAKE, b"a".to_vec());
    assert_eq!(rules(&mut c), [Rule::Twice]);
    // Nothing has arrived for a long time.
    c.closed(at(0), 7, Some(&[6]), false);
    assert_eq!(rules(&mut c), []);
    c.closed(at(0), 7, None, true);
    assert_eq!(rules(&mut c), [Rule::Twice]);
    // One request for two locks has one reply.
    for (number, lock) in [(9, b"a"), (9, b"b"), (10, b"b")] {
        c.request_sent(at(0), 0, 7, number, TAKE, lock.to_vec());
    }
    assert_eq!(rules(&mut c), [Rule::Twice]);
    c.reply_received(7, 9);
    c.reply_received(7, 10);
    c.request_sent(at(0), 0, 7, 11, TAKE, b"a".to_vec());
    c.request_sent(at(0), 0, 7, 12, TAKE, b"b".to_vec());
    assert_eq!(rules(&mut c), []);
    c.waive_once();
    assert!(!c.checks_requests());
}
