//! Tests of one lock through the hub, without connections: typed requests and replies.

mod bounds;
mod ends;
mod hand_over;
mod markers;
mod mint;
mod quorum;
mod shortened;

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::redis::*;
use crate::{
    Acquire, Answer, Backoff, Blocked, CallId, Cause, ClientId, ErrorClass, Event, Expiry, Failure, Fault, Fence,
    Grant, Instant, LockId, Loss, NodeId, Release, Renew, ServerError, Wait,
};

fn ms(n: u64) -> Instant {
    Instant::from_millis(1_000_000 + n)
}

fn for_ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A block of 64 fencing tokens that starts with `first`.
fn fences(first: u64) -> Option<FenceBlock> {
    Some(FenceBlock { first, count: 64, ahead_ms: 0 })
}

/// A hub and its outputs.
struct Hub {
    locks: Locks,
    sent: Vec<(CallId, Request)>,
    events: Vec<(LockId, Event)>,
}

impl Hub {
    fn new(nodes: usize, change: impl FnOnce(Config) -> Config) -> Self {
        Self::seeded(nodes, 42, change)
    }

    fn seeded(nodes: usize, seed: u64, change: impl FnOnce(Config) -> Config) -> Self {
        let endpoints = (0..nodes).map(|n| Endpoint {
            target: crate::Target::Tcp { host: "127.0.0.1".into(), port: 7000 + n as u16 },
            login: crate::Login::default(),
            database: 0,
            client_name: None,
            protocol: Protocol::Resp2,
        });
        let config = change(Config::new(endpoints).wake(Wake::Poll));
        let locks = Locks::new(ms(0), config, ClientId::from_bits(7), seed).unwrap();
        Self { locks, sent: vec![], events: vec![] }
    }

    fn drain(&mut self) {
        while let Some(output) = self.locks.poll_output() {
            match output {
                LocksOutput::Send { call, request, .. } => self.sent.push((call, request)),
                LocksOutput::Event { lock, event } => self.events.push((lock, event)),
                LocksOutput::Operation { .. } | LocksOutput::Listen { .. } | LocksOutput::Unlisten { .. } => {}
                LocksOutput::Stopped { .. } => {}
            }
        }
    }

    fn acquire(&mut self, at: u64, want: Acquire) -> LockId {
        let id = self.locks.acquire(ms(at), &want).unwrap();
        self.drain();
        id
    }

    fn at(&mut self, at: u64) {
        self.locks.handle_timeout(ms(at));
        self.drain();
    }

    fn requests(&mut self) -> Vec<(CallId, Request)> {
        core::mem::take(&mut self.sent)
    }

    fn takes(&mut self) -> Vec<CallId> {
        self.requests().into_iter().filter(|(_, request)| is_take(request)).map(|(call, _)| call).collect()
    }

    fn one(&mut self) -> (CallId, Request) {
        let mut all = self.requests();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    fn reply(&mut self, at: u64, call: CallId, reply: Reply) {
        self.locks.handle_reply(ms(at), call, &reply);
        self.drain();
    }

    fn take_events(&mut self) -> Vec<Event> {
        core::mem::take(&mut self.events).into_iter().map(|(_, event)| event).collect()
    }

    /// Acquires, grants and claims a lock at the same instant.
    fn held(&mut self, at: u64, want: Acquire) -> LockId {
        let id = self.acquire(at, want);
        for (call, _) in self.requests() {
            self.reply(at, call, Reply::Granted { fence: fences(100) });
        }
        self.locks.claim(ms(at), id).unwrap();
        assert!(matches!(self.take_events()[..], [Event::Granted(_)]));
        id
    }

    /// Holds the lock for 10 ms. The reply to its release arrives at `until`: a waiter of another
    /// client was woken.
    fn wake_other(&mut self, at: u64, until: u64, number: u64) {
        let id = self.held(at, want());
        self.locks.release(ms(at + 10), id).unwrap();
        self.drain();
        let (call, _) = self.one();
        self.reply(until, call, Reply::Deleted { number, awaited: true });
    }
}

fn want() -> Acquire {
    Acquire::new("a").ttl(for_ms(9_000))
}

fn is_take(request: &Request) -> bool {
    matches!(request, Request::Take { .. })
}

fn busy() -> Reply {
    Reply::Busy { expires: Expiry::In(for_ms(8_000)) }
}

fn lost_connection() -> Reply {
    Reply::Unknown(Cause::Fault(Fault::Reset))
}

#[test]
fn uncontended_lock_needs_one_take_and_one_release() {
    let mut hub = Hub::new(1, |c| c);
    let id = hub.held(0, want());
    hub.locks.release(ms(5), id).unwrap();
    hub.drain();
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Release { .. }));
    hub.reply(6, call, Reply::Deleted { number: 1, awaited: false });
    assert_eq!(hub.take_events(), [Event::Released(Release::Released)]);
    assert_eq!(hub.locks.next_deadline(), None, "no timer runs when all is over");
    assert_eq!(hub.locks.release(ms(7), id), Err(crate::Misuse::Stale(id)));
}

#[test]
fn validity_counts_from_request_not_from_reply() {
    // T1
    let mut hub = Hub::new(1, |c| c);
    let id = hub.acquire(0, want());
    let (call, _) = hub.one();
    hub.reply(4_000, call, Reply::Granted { fence: None });
    hub.locks.claim(ms(4_000), id).unwrap();
    assert_eq!(hub.locks.valid_until(id), Some(ms(9_000 - 92)));
}

#[test]
fn loss_is_first_event_after_pause_despite_late_renewal_reply() {
    // T2
    let mut hub = Hub::new(1, |c| c);
    let id = hub.held(0, want());
    hub.at(3_000);
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Extend { .. }));
    // The process is suspended while the reply is in the socket.
    hub.reply(20_000, call, Reply::Extended);
    assert_eq!(hub.take_events(), [Event::Lost(Loss::Expired)]);
    assert_eq!(hub.locks.valid_until(id), None);
    assert_eq!(hub.requests(), [], "nothing is sent before the guard comes back");
    hub.locks.release(ms(20_001), id).unwrap();
    hub.drain();
    let (call, _) = hub.one();
    hub.reply(20_002, call, Reply::Taken);
    assert_eq!(hub.take_events(), [Event::Released(Release::Taken)]);
}

#[test]
fn renewal_is_due_at_third_of_ttl_and_extends_validity() {
    // H1
    let mut hub = Hub::new(1, |c| c);
    hub.held(0, want());
    let mut at = 0;
    for _ in 0..20 {
        let due = hub.locks.next_deadline().unwrap().since(ms(0)).as_millis() as u64;
        assert!((2_700..=3_001).contains(&(due - at)), "{}", due - at);
        at = due + 1;
        hub.at(at);
        let (call, _) = hub.one();
        hub.reply(at, call, Reply::Extended);
        assert_eq!(hub.take_events(), [Event::Renewed { valid_until: ms(at + 9_000 - 92) }]);
    }
}

/// Renewals due at nearly the same time share a write, because writes cost more than renewals.
#[test]
fn renewals_due_close_together_are_coalesced() {
    // H1
    let mut hub = Hub::new(1, |c| c);
    let locks = 200;
    for at in 0..locks {
        hub.held(at, Acquire::new(format!("lock:{at}")).ttl(for_ms(9_000)));
    }
    let mut wakes = BTreeSet::new();
    let mut left = locks;
    while left > 0 {
        let due = hub.locks.next_deadline().unwrap();
        // The first is due 2.7 s after its take, the last 3.2 s.
        assert!((2_690..=3_200).contains(&due.since(ms(0)).as_millis()), "{due}");
        assert!(wakes.insert(due), "{due} was served");
        hub.locks.handle_timeout(due);
        hub.drain();
        left -= hub.requests().len() as u64;
    }
    assert!(wakes.len() <= 62, "{}", wakes.len());
}

#[test]
fn unclaimed_grant_is_withdrawn_and_not_renewed() {
    // H5
    let mut hub = Hub::new(1, |c| c);
    let id = hub.acquire(0, want());
    let (call, _) = hub.one();
    hub.reply(1, call, Reply::Granted { fence: None });
    hub.locks.handle_node_up(ms(3_000), NodeId::new(0), None);
    hub.drain();
    assert_eq!(hub.requests(), [], "it is not renewed, whatever happens");
    hub.at(3_001);
    assert!(matches!(hub.take_events()[..], [Event::Granted(_), Event::Withdrawn]));
    assert!(matches!(hub.one().1, Request::Release { .. }));
    assert_eq!(hub.locks.claim(ms(3_002), id), Err(crate::Misuse::Stale(id)));
}

/// A release omits the retired numbers only if no other token of this client can be there.
// A4
#[test]
fn release_omits_retired_numbers_only_if_none_can_remain() {
    let mut hub = Hub::new(1, |c| c);
    let id = hub.held(0, want());
    hub.locks.release(ms(1), id).unwrap();
    hub.drain();
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Release { number: 1, retired: None, .. }), "{request:?}");
    // The repeated delete names all retired numbers.
    hub.reply(2, call, lost_connection());
    hub.locks.handle_node_up(ms(3), NodeId::new(0), None);
    hub.drain();
    let (call, request) = hub.one();
    assert!(
        matches!(request, Request::Release { number: 1, retired: Some(retired), .. } if retired == Retired::all_to(1))
    );
    hub.reply(4, call, Reply::Absent);
    // An attempt in flight may still land after the next one was granted.
    let id = hub.acquire(10, want());
    let (call, _) = hub.one();
    hub.reply(11, call, lost_connection());
    let (call, _) = hub.one();
    hub.reply(11, call, lost_connection());
    hub.take_events();
    hub.at(12_000);
    let (take, request) = hub.one();
    assert!(matches!(request, Request::Take { number: 3, clean: false, .. }), "{request:?}");
    hub.reply(12_001, take, Reply::Granted { fence: None });
    hub.locks.release(ms(12_002), id).unwrap();
    hub.drain();
    let (_, request) = hub.one();
    assert!(
        matches!(request, Request::Release { number: 3, retired: Some(retired), .. } if retired.contains(2)),
        "{request:?}"
    );
}

#[test]
fn local_waiter_gets_lock_without_request() {
    // A8
    let mut hub = Hub::new(1, |c| c);
    let first = hub.held(0, want());
    let second = hub.acquire(1, want());
    assert_eq!(hub.take_events(), [Event::Blocked(Blocked::Local)]);
    hub.locks.release(ms(2), first).unwrap();
    hub.drain();
    assert_eq!(hub.requests(), []);
    let events = hub.take_events();
    assert_eq!(events[0], Event::Released(Release::Released));
    assert!(matches!(&events[1], Event::Granted(grant) if grant.fence == Some(Fence(101))), "{events:?}");
    hub.locks.claim(ms(2), second).unwrap();
}

#[test]
fn client_releases_and_backs_off_after_hand_over_time_limit() {
    // A8
    let mut hub = Hub::new(1, |c| c);
    let first = hub.held(0, want());
    hub.acquire(1, want());
    hub.locks.release(ms(150), first).unwrap();
    hub.drain();
    assert!(matches!(hub.one().1, Request::Release { .. }), "really released");
    let next = hub.locks.next_deadline().unwrap();
    assert!(next >= ms(155), "{next}");
    hub.locks.handle_timeout(next);
    hub.drain();
    assert!(matches!(hub.one().1, Request::Take { .. }));
}

/// A new waiter gets its own `Blocked` event, even if an earlier waiter had the same one.
#[test]
fn new_waiter_gets_separate_blocked_event() {
    let mut hub = Hub::new(1, |c| c);
    let busy = Reply::Busy { expires: Expiry::In(for_ms(9_000)) };
    let first = hub.acquire(0, want());
    let (call, _) = hub.one();
    hub.reply(1, call, busy.clone());
    assert_eq!(hub.take_events(), [Event::Blocked(Blocked::Held)]);
    // The first waiter leaves while an attempt is in flight.
    hub.at(100);
    let (call, _) = hub.one();
    hub.locks.abandon(ms(101), first);
    hub.acquire(102, want());
    hub.reply(103, call, busy.clone());
    for (call, _) in hub.requests() {
        hub.reply(104, call, busy.clone());
    }
    assert_eq!(hub.take_events(), [Event::Blocked(Blocked::Held)]);
}

/// A releaser that retook the lock at once would starve the clients it has just woken.
#[test]
fn releaser_that_woke_waiter_queues_behind_it() {
    // A7
    let mut hub = Hub::new(1, |c| c.wake(Wake::Notify));
    hub.wake_other(0, 12, 1);
    hub.take_events();
    // `Wait::Try` makes its one attempt at once.
    let tried = hub.acquire(12, want().wait(Wait::Try));
    let (call, _) = hub.one();
    hub.reply(12, call, Reply::Busy { expires: Expiry::In(for_ms(100)) });
    hub.locks.abandon(ms(12), tried);
    hub.take_events();

    hub.wake_other(20, 32, 3);
    hub.take_events();
    hub.acquire(33, want());
    assert_eq!((hub.take_events(), hub.requests()), (vec![Event::Blocked(Blocked::Held)], vec![]));
    // It queues as a waiter: its attempt comes at the first poll, unless it is woken before.
    assert_eq!(hub.locks.next_deadline(), Some(ms(33 + 50)));
    hub.at(83);
    assert!(matches!(hub.one().1, Request::Take { waiting_ms: 1.., .. }));
}

/// The woken waiter may have been this client's own, which had given up: the lock is free then. A
/// short wait ended without an attempt. (Found by fuzzing `redis_model`.)
#[test]
fn wait_shorter_than_poll_is_not_over_without_attempt() {
    // A7
    let mut hub = Hub::new(1, |c| c.wake(Wake::Notify));
    hub.wake_other(0, 12, 1);
    hub.take_events();
    hub.acquire(12, want().wait(Wait::For(for_ms(50))));
    assert!(matches!(hub.one().1, Request::Take { .. }));
}

#[test]
fn yielding_to_woken_waiter_ends_soon() {
    // A7
    let mut hub = Hub::new(1, |c| c.wake(Wake::Notify));
    hub.wake_other(0, 11, 1);
    let end = hub.locks.next_deadline().unwrap();
    assert_eq!(end, ms(11 + 5 + 1));
    hub.locks.handle_timeout(end);
    assert_eq!(hub.locks.next_deadline(), None);
    hub.acquire(18, want());
    assert!(matches!(hub.one().1, Request::Take { clean: true, waiting_ms: 0, .. }));
}

#[test]
fn manual_waiter_gets_full_ttl_before_grant() {
    // A8
    let mut hub = Hub::new(1, |c| c);
    let first = hub.held(0, want());
    hub.acquire(1, want().renew(Renew::Manual));
    hub.take_events();
    hub.locks.release(ms(50), first).unwrap();
    hub.drain();
    assert_eq!(hub.take_events(), [Event::Released(Release::Released)]);
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Extend { ttl_ms: 9_000, .. }));
    hub.reply(51, call, Reply::Extended);
    assert!(matches!(&hub.take_events()[..], [Event::Granted(grant)] if grant.valid_until == ms(50 + 9_000 - 92)));
}

#[test]
fn hand_over_below_half_ttl_is_not_granted_at_once() {
    // A8
    for (at, at_once) in [(9_000 - 92 - 4_500, true), (9_000 - 92 - 4_499, false)] {
        let mut hub = Hub::new(1, |c| c.handover_window(for_ms(60_000)));
        let first = hub.held(0, want());
        hub.acquire(1, want());
        hub.locks.release(ms(at), first).unwrap();
        hub.drain();
        assert_eq!(hub.take_events().iter().any(|event| matches!(event, Event::Granted(_))), at_once);
    }
}

#[test]
fn wait_times_out_on_time_during_extend_for_hand_over() {
    // A5
    let mut hub = Hub::new(1, |c| c);
    let first = hub.held(0, want());
    hub.acquire(1, want().renew(Renew::Manual).wait(Wait::For(for_ms(60))));
    hub.locks.release(ms(50), first).unwrap();
    hub.drain();
    hub.take_events();
    // The lock is handed over, and the extension has no reply yet.
    assert!(matches!(hub.one().1, Request::Extend { .. }));
    assert_eq!(hub.locks.next_deadline(), Some(ms(61)));
    hub.locks.handle_timeout(ms(61));
    hub.drain();
    assert!(matches!(&hub.take_events()[..], [Event::Failed(Failure::TimedOut(_))]));
    assert!(matches!(hub.one().1, Request::Release { .. }), "and the lock is given back");
}

#[test]
fn waiter_abandoned_during_hand_over_does_not_affect_others() {
    // A5
    let mut hub = Hub::new(1, |c| c.poll(Backoff::fixed(for_ms(10_000))));
    let first = hub.held(0, want());
    let second = hub.acquire(1, want().renew(Renew::Manual).wait(Wait::For(for_ms(300))));
    hub.acquire(2, want().wait(Wait::For(for_ms(400))));
    hub.locks.release(ms(50), first).unwrap();
    hub.drain();
    // The hand-over window has ended when the second waiter leaves.
    hub.locks.abandon(ms(120), second);
    hub.drain();
    hub.take_events();
    for (call, request) in hub.requests() {
        if matches!(request, Request::Release { .. }) {
            hub.reply(121, call, Reply::Deleted { number: 1, awaited: false });
        }
    }
    hub.at(150);
    let (call, _) = hub.one();
    hub.reply(151, call, busy());
    assert_eq!(hub.locks.next_deadline(), Some(ms(402)), "nothing is left of the second");
    hub.at(402);
    assert!(matches!(hub.take_events()[..], [Event::Blocked(_), Event::Failed(Failure::TimedOut(_))]));
}

#[test]
fn next_waiter_tries_at_once_when_head_times_out() {
    // A5
    let mut hub = Hub::new(1, |c| c.poll(Backoff::fixed(for_ms(10_000))));
    hub.acquire(0, want().wait(Wait::For(for_ms(100))));
    hub.acquire(1, want());
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Take { clean: true, .. }));
    hub.reply(2, call, busy());
    hub.at(99);
    assert_eq!(hub.requests(), []);
    hub.at(100);
    assert!(matches!(hub.one().1, Request::Take { clean: false, .. }), "only the first attempt is a plain SET");
}

#[test]
fn retry_may_replace_leftover_token_and_cleanup_outlives_grant() {
    // A3
    let mut hub = Hub::new(1, |c| c);
    let id = hub.acquire(0, want());
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Take { number: 1, .. }));
    hub.reply(10, call, lost_connection());
    // The delete is sent at once and fails on the same connection.
    let (call, request) = hub.one();
    assert!(matches!(request, Request::Release { retired: Some(retired), .. } if retired.contains(1)));
    hub.reply(10, call, Reply::NotSent(Cause::Fault(Fault::Reset)));
    hub.locks.handle_node_up(ms(20), NodeId::new(0), None);
    hub.drain();
    let sent = hub.requests();
    let [(delete, Request::Release { retired: Some(old), .. }), (take, Request::Take { number: 2, retired, .. })] =
        &sent[..]
    else {
        panic!("{sent:?}");
    };
    assert!(old.contains(1) && retired.contains(1) && !retired.contains(2));
    hub.reply(21, *delete, Reply::Absent);
    hub.reply(21, *take, Reply::Granted { fence: None });
    hub.locks.claim(ms(21), id).unwrap();
    // The check a TTL later finds what a stopped server may have executed since.
    hub.at(3_021);
    hub.requests();
    hub.at(9_022);
    let looked = hub.requests();
    let delete = looked.iter().find(|(_, request)| matches!(request, Request::Release { .. }));
    assert!(
        matches!(delete, Some((_, Request::Release { retired: Some(retired), .. })) if retired.contains(1) && !retired.contains(2))
    );
}

#[test]
fn try_makes_one_attempt_and_none_if_held_locally() {
    // A5
    let mut hub = Hub::new(1, |c| c);
    hub.acquire(0, want().wait(Wait::Try));
    let (call, _) = hub.one();
    hub.reply(1, call, Reply::Busy { expires: Expiry::In(for_ms(500)) });
    let events = hub.take_events();
    assert!(matches!(&events[..], [Event::Failed(Failure::TimedOut(report))] if report.is_busy()), "{events:?}");
    assert_eq!(hub.locks.next_deadline(), None);
    hub.held(2, want());
    hub.acquire(3, want().wait(Wait::Try));
    assert_eq!(hub.requests(), []);
    assert!(matches!(&hub.take_events()[..], [Event::Failed(Failure::TimedOut(report))] if report.is_busy()));
}

#[test]
fn acquisition_cancelled_in_flight_is_deleted_without_events() {
    let mut hub = Hub::new(1, |c| c.wake(Wake::Notify));
    let id = hub.acquire(0, want());
    let (take, _) = hub.one();
    hub.locks.abandon(ms(1), id);
    hub.drain();
    let (delete, request) = hub.one();
    assert!(matches!(request, Request::Release { retired: Some(retired), announce: true, .. } if retired.contains(1)));
    hub.reply(2, take, Reply::Granted { fence: None });
    hub.reply(2, delete, Reply::Deleted { number: 1, awaited: false });
    assert_eq!(hub.take_events(), []);
    assert_eq!(hub.requests(), []);
    assert_eq!(hub.locks.next_deadline(), None);
}

#[test]
fn token_of_lost_holder_is_not_replaceable() {
    // H6
    let mut hub = Hub::new(1, |c| c);
    let first = hub.held(0, want());
    hub.acquire(1, want());
    hub.at(20_000);
    let (_, request) = hub.one();
    assert!(matches!(request, Request::Take { number: 2, retired, .. } if !retired.contains(1)), "{request:?}");
    hub.locks.release(ms(20_001), first).unwrap();
    hub.drain();
    let (_, request) = hub.one();
    assert!(matches!(request, Request::Release { number: 1, retired: None, .. }), "{request:?}");
}

#[test]
fn transient_renewal_failures_are_retried_and_taken_reply_is_loss() {
    // H2
    let mut hub = Hub::new(1, |c| c);
    hub.held(0, want());
    hub.at(3_000);
    let mut tries = 0;
    while tries < 5 {
        let (call, _) = hub.one();
        let next = hub.locks.now_for_test();
        hub.locks.handle_reply(next, call, &Reply::Rejected(ServerError::classify("MISCONF no")));
        hub.drain();
        let at = hub.locks.next_deadline().unwrap();
        hub.locks.handle_timeout(at);
        hub.drain();
        tries += 1;
    }
    let events = hub.take_events();
    assert!(events.iter().all(|event| matches!(event, Event::AtRisk { .. })), "{events:?}");
    let (call, _) = hub.one();
    let now = hub.locks.now_for_test();
    hub.locks.handle_reply(now, call, &Reply::Taken);
    hub.drain();
    assert_eq!(hub.take_events(), [Event::Lost(Loss::Taken)]);
}

#[test]
fn failed_renewal_is_retried_when_node_reconnects() {
    // H2
    let mut hub = Hub::new(1, |c| c);
    hub.held(0, want());
    hub.at(3_000);
    let (call, _) = hub.one();
    hub.reply(3_001, call, Reply::NotSent(Cause::Fault(Fault::Reset)));
    assert_eq!(hub.requests(), []);
    hub.locks.handle_node_up(ms(3_010), NodeId::new(0), None);
    hub.drain();
    assert!(matches!(hub.one().1, Request::Extend { .. }));
}

#[test]
fn timeout_during_attempt_reports_silent_node() {
    // A5
    let mut hub = Hub::new(1, |c| c);
    hub.acquire(0, want().wait(Wait::For(for_ms(100))));
    hub.at(100);
    let [Event::Failed(Failure::TimedOut(report))] = &hub.take_events()[..] else { panic!("no timeout") };
    assert_eq!((report.waited, &report.nodes[..]), (for_ms(100), &[Answer::Silent][..]));
}

#[test]
fn lost_round_is_released_only_on_nodes_that_granted() {
    // Q2
    let mut hub = Hub::new(5, |c| c.unknown_age(UnknownAge::Trust));
    hub.acquire(0, want());
    let takes = hub.requests();
    assert_eq!(takes.len(), 5);
    for (call, _) in &takes[..2] {
        hub.reply(1, *call, Reply::Granted { fence: None });
    }
    for (call, _) in &takes[2..] {
        hub.reply(1, *call, Reply::Busy { expires: Expiry::In(for_ms(900)) });
    }
    let deletes = hub.requests();
    assert_eq!(deletes.len(), 2, "only where something was granted: {deletes:?}");
    assert!(deletes.iter().all(|(_, request)| matches!(request, Request::Release { .. })));
}

/// One node granted, and two are held by others. The next round comes after a random delay longer
/// than this round, before the poll interval ends.
#[test]
fn split_vote_is_retried_before_poll_interval() {
    // Q2
    for votes in [1, 0] {
        let mut hub = Hub::new(3, |c| c.unknown_age(UnknownAge::Trust).poll(Backoff::fixed(for_ms(1_000))));
        hub.acquire(0, want());
        let takes = hub.requests();
        for (place, (call, _)) in takes.iter().enumerate() {
            let busy = Reply::Busy { expires: Expiry::In(for_ms(8_000)) };
            hub.reply(10, *call, if place < votes { Reply::Granted { fence: None } } else { busy });
        }
        let next = hub.locks.next_deadline().unwrap();
        // After a split vote: the round trip, plus jitter of twice that and half the poll interval.
        // Otherwise the poll interval less up to a quarter.
        let expected = if votes == 1 { ms(20)..ms(20 + 20 + 500) } else { ms(10 + 750)..ms(10 + 1_001) };
        assert!(expected.contains(&next), "{votes} granted: {next}");
    }
}

#[test]
fn held_returns_number_of_held_locks() {
    let mut hub = Hub::new(1, |c| c);
    let ids = ["a", "b", "c"].map(|name| hub.held(0, Acquire::new(name)));
    assert_eq!(hub.locks.held(), 3);
    for (place, id) in ids.into_iter().enumerate() {
        hub.locks.release(ms(1), id).unwrap();
        assert_eq!(hub.locks.held(), 2 - place as u32);
    }
}

#[test]
fn round_is_decided_at_quorum_and_late_grant_joins_hold() {
    // Q1
    let mut hub = Hub::new(5, |c| c.unknown_age(UnknownAge::Trust));
    let id = hub.acquire(0, want());
    let takes = hub.requests();
    for (call, _) in &takes[..3] {
        hub.reply(1, *call, Reply::Granted { fence: None });
    }
    assert!(matches!(hub.take_events()[..], [Event::Granted(Grant { fence: None, .. })]));
    hub.locks.claim(ms(1), id).unwrap();
    hub.reply(500, takes[3].0, Reply::Granted { fence: None });
    // One of the first three nodes loses the key, so three of four remain: still a quorum.
    hub.at(3_000);
    let extends = hub.requests();
    let on_first = extends.iter().find(|(call, _)| call.node() == NodeId::new(0)).unwrap();
    hub.reply(3_001, on_first.0, Reply::Absent);
    assert_eq!(hub.take_events(), []);
    assert!(hub.locks.valid_until(id).is_some());
}
