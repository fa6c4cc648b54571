//! Bugs of the hub found by review or the explorer, each as the shortest sequence that shows it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

#[path = "hub_regressions/extends.rs"]
mod extends;
#[path = "hub_regressions/late.rs"]
mod late;
#[path = "hub_regressions/refused.rs"]
mod refused;

use core::time::Duration;

use lock_proto::redis::{
    Config, Endpoint, FenceBlock, Key, Locks, LocksOutput, Reply, Request, ServerInfo, UnknownAge, Wake,
};
use lock_proto::{
    Acquire, Blocked, CallId, Cause, ClientId, Event, Expiry, Failure, Fault, Instant, LockId, Loss, NodeId, Release,
    Renew, ServerError, Wait,
};

fn ms(n: u64) -> Instant {
    Instant::from_millis(1_000_000 + n)
}

fn for_ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn endpoint(n: u16) -> Endpoint {
    Endpoint::parse(&format!("redis://127.0.0.1:{}", 7000 + n)).unwrap()
}

fn server(run_id: &str, uptime: u64) -> Result<ServerInfo, ServerError> {
    Ok(ServerInfo::new(run_id, Duration::from_secs(uptime)))
}

struct Hub {
    locks: Locks,
    sent: Vec<(CallId, Request)>,
    events: Vec<(LockId, Event)>,
    outputs: Vec<LocksOutput>,
}

impl Hub {
    fn new(nodes: u16, change: impl FnOnce(Config) -> Config) -> Self {
        let config = change(Config::new((0..nodes).map(endpoint)).wake(Wake::Poll));
        let locks = Locks::new(ms(0), config, ClientId::from_bits(7), 42).unwrap();
        Self { locks, sent: vec![], events: vec![], outputs: vec![] }
    }

    fn drain(&mut self) {
        while let Some(output) = self.locks.poll_output() {
            match output {
                LocksOutput::Send { call, request, .. } => self.sent.push((call, request)),
                LocksOutput::Event { lock, event } => self.events.push((lock, event)),
                other => self.outputs.push(other),
            }
        }
    }

    fn acquire(&mut self, at: u64, want: &Acquire) -> LockId {
        let id = self.locks.acquire(ms(at), want).unwrap();
        self.drain();
        id
    }

    fn at(&mut self, at: u64) {
        self.locks.handle_timeout(ms(at));
        self.drain();
    }

    fn up(&mut self, at: u64, node: u16, server: &Result<ServerInfo, ServerError>) {
        self.locks.handle_node_up(ms(at), NodeId::new(node), Some(server));
        self.drain();
    }

    fn reply(&mut self, at: u64, call: CallId, reply: &Reply) {
        self.locks.handle_reply(ms(at), call, reply);
        self.drain();
    }

    fn requests(&mut self) -> Vec<(CallId, Request)> {
        core::mem::take(&mut self.sent)
    }

    fn one(&mut self) -> (CallId, Request) {
        let mut all = self.requests();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// Releases this lock. The next waiter must get a full TTL before it is notified.
    fn prepares_next(&mut self, at: u64, held: LockId) {
        self.locks.release(ms(at), held).unwrap();
        self.drain();
        let (_, request) = self.one();
        assert!(matches!(request, Request::Extend { .. }), "{request:?}");
    }

    fn take_events(&mut self) -> Vec<Event> {
        core::mem::take(&mut self.events).into_iter().map(|(_, event)| event).collect()
    }

    fn held(&mut self, at: u64, want: &Acquire) -> LockId {
        let id = self.acquire(at, want);
        for (call, _) in self.requests() {
            self.reply(at + 1, call, &granted());
        }
        self.locks.claim(ms(at + 1), id).unwrap();
        self.drain();
        assert!(matches!(self.take_events()[..], [Event::Granted(_)]));
        id
    }
}

fn granted() -> Reply {
    Reply::Granted { fence: None }
}

fn want() -> Acquire {
    Acquire::new("a").ttl(for_ms(9_000))
}

fn broken() -> Reply {
    Reply::Unknown(Cause::Fault(Fault::Reset))
}

fn not_sent() -> Reply {
    Reply::NotSent(Cause::Fault(Fault::Reset))
}

/// A recently restarted node granted before the others won the round. Its grant is released.
#[test]
fn grant_of_recently_restarted_node_is_released_after_win() {
    // A4
    let mut hub = Hub::new(3, |c| c);
    let id = hub.acquire(0, &want());
    let takes = hub.requests();
    for (node, run_id, uptime) in [(0, "a", 99), (1, "b", 99), (2, "c", 0)] {
        hub.up(1, node, &server(run_id, uptime));
    }
    for node in [2, 0, 1] {
        hub.reply(2, takes[node].0, &granted());
    }
    assert!(matches!(hub.take_events()[..], [Event::Granted(_)]));
    hub.locks.claim(ms(3), id).unwrap();
    hub.locks.release(ms(4), id).unwrap();
    hub.drain();
    let deletes = hub.requests();
    let nodes: Vec<usize> = deletes.iter().map(|(call, _)| call.node().index()).collect();
    for (call, _) in &deletes {
        hub.reply(5, *call, &Reply::Deleted { number: 1, awaited: false });
    }
    hub.locks.shutdown(ms(6), for_ms(60_000));
    assert_eq!(nodes, [0, 1, 2], "every node that granted gets a delete");
    assert!(hub.locks.is_stopped(), "the lock is never dropped");
}

/// Two nodes turn out to be the same server during a round, and their votes count once.
#[test]
fn equal_nodes_found_during_round_do_not_win_it() {
    // Q6
    let mut hub = Hub::new(3, |c| c);
    hub.acquire(0, &want());
    let takes = hub.requests();
    hub.up(1, 0, &server("same", 99));
    hub.up(1, 1, &server("same", 99));
    hub.reply(2, takes[0].0, &granted());
    hub.reply(2, takes[1].0, &granted());
    let events = hub.take_events();
    assert!(matches!(events[..], [Event::Failed(Failure::EqualNodes(..))]), "{events:?}");
}

/// Many waiters that fail at once must not use one stack frame each.
#[test]
fn many_waiters_failing_at_once_do_not_overflow_stack() {
    // M5
    let mut hub = Hub::new(3, |c| c);
    let first = hub.held(0, &want());
    for _ in 0..20_000 {
        hub.acquire(2, &want());
    }
    hub.take_events();
    // A small stack, as a host's tasks and threads have.
    let small = std::thread::Builder::new().stack_size(256 * 1024);
    let run = small.spawn(move || {
        // The nodes turn out to be equal and the lock is lost: every waiter is notified.
        for node in 0..3 {
            hub.up(3, node, &server("same", 99));
        }
        hub
    });
    let mut hub = run.unwrap().join().unwrap();
    let events = hub.take_events();
    let failed = events.iter().filter(|event| matches!(event, Event::Failed(Failure::EqualNodes(..)))).count();
    assert_eq!(events[0], Event::Lost(Loss::EqualNodes));
    assert_eq!(failed, 20_000);
    hub.locks.abandon(ms(4), first);
}

/// The same, where every node refuses to report its uptime.
#[test]
fn many_waiters_refused_at_once_do_not_overflow_stack() {
    // M5
    let mut hub = Hub::new(3, |c| c);
    hub.held(0, &want());
    for _ in 0..20_000 {
        hub.acquire(2, &want());
    }
    hub.take_events();
    for node in 0..3 {
        hub.up(3, node, &Err(ServerError::classify("NOPERM this user has no permissions to run the 'info' command")));
    }
    let small = std::thread::Builder::new().stack_size(256 * 1024);
    let run = small.spawn(move || {
        hub.at(10_000);
        hub
    });
    let events = run.unwrap().join().unwrap().take_events();
    let refused = events.iter().filter(|event| matches!(event, Event::Failed(Failure::Refused(_)))).count();
    assert_eq!(refused, 20_000);
}

#[test]
fn time_may_jump_to_last_instant() {
    // M1
    for nodes in [1, 3] {
        let mut hub = Hub::new(nodes, |c| c);
        hub.held(0, &want());
        hub.acquire(1, &want());
        for _ in 0..10 {
            hub.locks.handle_timeout(Instant::MAX);
            hub.drain();
            for (call, _) in hub.requests() {
                hub.locks.handle_reply(Instant::MAX, call, &Reply::Busy { expires: Expiry::In(for_ms(10)) });
                hub.drain();
            }
        }
        assert_eq!(hub.take_events().iter().filter(|event| matches!(event, Event::Lost(_))).count(), 1);
    }
}

#[test]
fn fencing_token_near_maximum_does_not_overflow() {
    // M5
    let mut hub = Hub::new(1, |c| c);
    hub.acquire(0, &want());
    let (take, _) = hub.one();
    hub.reply(1, take, &Reply::Granted { fence: Some(FenceBlock { first: u64::MAX, count: 2, ahead_ms: u32::MAX }) });
    assert!(matches!(hub.take_events()[..], [Event::Granted(_)]));
}

/// The watchdog saw that the lock was lost to another client. The release reports it.
#[test]
fn release_after_loss_to_another_client_reports_taken() {
    // U1
    let mut hub = Hub::new(1, |c| c);
    let id = hub.held(0, &want());
    hub.at(3_000);
    let (extend, _) = hub.one();
    hub.reply(3_001, extend, &Reply::Taken);
    assert_eq!(hub.take_events(), [Event::Lost(Loss::Taken)]);
    hub.locks.release(ms(3_002), id).unwrap();
    hub.drain();
    for (call, _) in hub.requests() {
        hub.reply(3_003, call, &Reply::Taken);
    }
    assert_eq!(hub.take_events(), [Event::Released(Release::Taken)]);
}

/// Two holds of one client on the same name are lost and released together. The result of the first
/// delete does not resolve the second release. (Scenario `redis-strangers`, seed 107.)
#[test]
fn late_delete_reply_does_not_resolve_later_release() {
    // U1
    let mut hub = Hub::new(1, |c| c);
    let manual = want().renew(Renew::Manual);
    let [first, second] = [0, 20_000].map(|at| {
        let id = hub.held(at, &manual);
        hub.at(at + 19_000);
        assert_eq!(hub.take_events().last(), Some(&Event::Lost(Loss::Expired)));
        id
    });
    hub.locks.release(ms(40_000), first).unwrap();
    hub.locks.release(ms(40_000), second).unwrap();
    hub.drain();
    let (call, _) = hub.one();
    hub.reply(40_001, call, &Reply::Taken);
    assert_eq!(hub.take_events(), [Event::Released(Release::Taken)]);
    let (call, _) = hub.one();
    hub.reply(40_002, call, &Reply::Deleted { number: 2, awaited: false });
    assert_eq!(hub.take_events(), [Event::Released(Release::Released)]);
}

/// An extend at the instant of the last confirmed request is sent and answered.
#[test]
fn extend_while_clock_stands_still_is_answered() {
    // M1
    let mut hub = Hub::new(1, |c| c);
    let id = hub.acquire(0, &want().renew(Renew::Manual));
    let (take, _) = hub.one();
    hub.reply(0, take, &granted());
    hub.take_events();
    hub.locks.claim(ms(0), id).unwrap();
    hub.locks.extend(ms(0), id).unwrap();
    hub.drain();
    for (call, _) in hub.requests() {
        hub.reply(1, call, &Reply::Extended);
    }
    assert!(matches!(hub.take_events()[..], [Event::Renewed { .. }, Event::Extended]));
}

/// The same for a waiter that must get a full TTL before it is notified.
#[test]
fn manual_waiter_is_served_while_clock_stands_still() {
    // A8
    let mut hub = Hub::new(1, |c| c);
    let first = hub.acquire(0, &want());
    let (take, _) = hub.one();
    hub.reply(0, take, &granted());
    hub.locks.claim(ms(0), first).unwrap();
    hub.acquire(0, &want().renew(Renew::Manual));
    hub.take_events();
    hub.locks.release(ms(0), first).unwrap();
    hub.drain();
    for (call, _) in hub.requests() {
        hub.reply(1, call, &Reply::Extended);
    }
    assert!(matches!(hub.take_events()[..], [Event::Released(Release::Released), Event::Granted(_)]));
}

/// A shutdown counts unconfirmed releases, including those answered with `Unknown` before.
#[test]
fn shutdown_counts_releases_reported_unknown() {
    // U2
    let mut hub = Hub::new(1, |c| c.release_within(for_ms(500)));
    hub.held(0, &want());
    hub.locks.shutdown(ms(10), for_ms(5_000));
    hub.drain();
    let (delete, _) = hub.one();
    hub.reply(20, delete, &not_sent());
    hub.at(600);
    assert_eq!(hub.take_events(), [Event::Lost(Loss::ShutDown), Event::Released(Release::Unknown)]);
    hub.at(5_010);
    assert_eq!(hub.outputs, [LocksOutput::Stopped { unreleased: 1 }]);
}

/// At the end of a shutdown every acquisition has its last event, and no timer runs.
#[test]
fn timed_out_shutdown_answers_every_release() {
    // U2
    let mut hub = Hub::new(1, |c| c);
    hub.held(0, &want());
    hub.locks.shutdown(ms(10), for_ms(100));
    hub.drain();
    hub.at(110);
    assert_eq!(hub.outputs, [LocksOutput::Stopped { unreleased: 1 }]);
    assert_eq!(hub.take_events(), [Event::Lost(Loss::ShutDown), Event::Released(Release::Unknown)]);
    assert_eq!(hub.locks.next_deadline(), None);
}

/// A stopped client drops the checks it had scheduled for a TTL later: its connections are closed.
#[test]
fn stopped_hub_sends_nothing() {
    // U2
    let mut hub = Hub::new(1, |c| c);
    let id = hub.acquire(0, &want());
    let (take, _) = hub.one();
    hub.reply(10, take, &broken());
    let (delete, _) = hub.one();
    hub.reply(11, delete, &Reply::Absent);
    hub.locks.abandon(ms(12), id);
    hub.locks.shutdown(ms(13), for_ms(100));
    hub.drain();
    assert!(hub.locks.is_stopped());
    assert_eq!(hub.locks.next_deadline_reason(), None);
    hub.at(60_000);
    hub.up(60_001, 0, &server("a", 99));
    assert_eq!(hub.requests(), []);
}

/// A waiter that took a signal and leaves before its attempt passes the signal on.
#[test]
fn signal_of_cancelled_waiter_is_passed_on() {
    // A7
    let mut hub = Hub::new(3, |c| c.wake(Wake::Notify));
    let id = hub.acquire(0, &want().wait(Wait::Forever));
    for (call, _) in hub.requests() {
        hub.reply(1, call, &Reply::Busy { expires: Expiry::In(for_ms(5_000)) });
    }
    let Some(LocksOutput::Listen { key, .. }) = hub.outputs.pop() else { panic!("{:?}", hub.outputs) };
    // The release reaches the first node. The waiter is cancelled before it reaches the others.
    hub.locks.handle_signal(ms(10), NodeId::new(0), &key);
    hub.locks.abandon(ms(11), id);
    hub.drain();
    let sent = hub.requests();
    assert!(
        sent.iter().any(|(call, request)| call.node() == NodeId::new(0) && matches!(request, Request::Announce { .. })),
        "{sent:?}"
    );
}

/// Each signal for a lock without local waiters is passed on by a separate call.
#[test]
fn unwanted_signals_are_passed_on_by_separate_calls() {
    // A7
    let mut hub = Hub::new(1, |c| c.wake(Wake::Notify));
    for at in [10, 20, 30] {
        hub.locks.handle_signal(ms(at), NodeId::new(0), &Key::new(b"", b"nobody's"));
    }
    hub.drain();
    let calls: Vec<_> = hub
        .requests()
        .into_iter()
        .map(|(call, request)| {
            assert!(matches!(request, Request::Announce { .. }), "{request:?}");
            call
        })
        .collect();
    assert_eq!(calls.len(), 3);
    assert!(calls[0] != calls[1] && calls[1] != calls[2] && calls[0] != calls[2], "{calls:?}");
}

#[test]
fn waiter_cannot_extend_lock_of_another() {
    // M5
    let mut hub = Hub::new(1, |c| c);
    let first = hub.held(0, &want());
    let second = hub.acquire(2, &want().renew(Renew::Manual));
    let not_held = Err(lock_proto::Misuse::NotHeld(second));
    assert_eq!(hub.locks.extend(ms(3), second), not_held);
    hub.prepares_next(3, first);
    assert_eq!(hub.locks.extend(ms(4), second), not_held);
    hub.drain();
    assert_eq!(hub.requests(), []);
}

/// The validity of a quorum grant is that of its majority, even if one node granted for longer.
#[test]
fn reported_validity_is_that_of_majority() {
    // Q3
    let mut hub = Hub::new(3, |c| c);
    let id = hub.held(0, &want());
    let before = hub.locks.valid_until(id).unwrap();
    hub.at(3_000);
    let renewals = hub.requests();
    assert_eq!(renewals.len(), 3);
    hub.reply(3_001, renewals[0].0, &Reply::Extended);
    assert_eq!(hub.locks.valid_until(id), Some(before), "one of three");
    hub.reply(3_001, renewals[1].0, &Reply::Extended);
    assert!(hub.locks.valid_until(id).unwrap() > before, "two of three");
}

#[test]
fn extend_succeeds_despite_late_take_reply() {
    // H3
    let mut hub = Hub::new(3, |c| c);
    let id = hub.acquire(0, &want());
    let takes = hub.requests();
    hub.reply(1, takes[0].0, &granted());
    hub.reply(1, takes[1].0, &granted());
    hub.locks.claim(ms(1), id).unwrap();
    hub.at(3_000);
    // Renewals on two nodes. The third has not yet answered the first attempt.
    let renewals = hub.requests();
    assert_eq!(renewals.len(), 2, "{renewals:?}");
    hub.reply(3_001, takes[2].0, &granted());
    hub.reply(3_002, renewals[0].0, &Reply::Extended);
    hub.reply(3_002, renewals[1].0, &Reply::Extended);
    hub.take_events();
    hub.locks.extend(ms(3_003), id).unwrap();
    hub.drain();
    let extends = hub.requests();
    assert_eq!(extends.len(), 3);
    for (call, request) in extends {
        assert!(matches!(request, Request::Extend { .. }));
        let answer = if call.node() == NodeId::new(1) { not_sent() } else { Reply::Extended };
        hub.reply(3_005, call, &answer);
    }
    let events = hub.take_events();
    let until = ms(3_003 + 9_000 - 92);
    let renewed = events.iter().any(|event| matches!(event, Event::Renewed { valid_until } if *valid_until >= until));
    assert!(renewed, "two of three have extended: {events:?}");
}

/// A node that reports a lost key during an extend can no longer confirm it.
#[test]
fn extend_does_not_wait_for_node_without_key() {
    // H3
    let mut hub = Hub::new(3, |c| c);
    let id = hub.held(0, &want());
    hub.at(3_000);
    let renewals = hub.requests();
    assert_eq!(renewals.len(), 3);
    hub.locks.extend(ms(3_001), id).unwrap();
    hub.reply(3_002, renewals[0].0, &Reply::Absent);
    hub.reply(3_002, renewals[1].0, &Reply::Extended);
    hub.reply(3_002, renewals[2].0, &Reply::Extended);
    let extends = hub.requests();
    assert_eq!(extends.len(), 2, "{extends:?}");
    hub.reply(3_003, extends[0].0, &Reply::Extended);
    hub.reply(3_003, extends[1].0, &not_sent());
    let events = hub.take_events();
    assert!(events.iter().any(|event| matches!(event, Event::ExtendFailed(_))), "{events:?}");
}

/// A waiter that must get a full TTL first has nothing to release. (Explorer, seed 9288.)
#[test]
fn waiter_being_prepared_cannot_release() {
    // A8
    let mut hub = Hub::new(1, |c| c);
    let first = hub.held(0, &want());
    let second = hub.acquire(2, &want().renew(Renew::Manual));
    hub.prepares_next(3, first);
    assert_eq!(hub.locks.release(ms(4), second), Err(lock_proto::Misuse::NotHeld(second)));
    hub.drain();
    assert_eq!(hub.requests(), []);
}

/// The guard is dropped when the shutdown reports the loss. The hold counts as unreleased.
#[test]
fn shutdown_counts_hold_whose_guard_was_dropped() {
    // U2
    let mut hub = Hub::new(1, |c| c);
    let id = hub.held(0, &want());
    hub.locks.shutdown(ms(10), for_ms(100));
    hub.locks.abandon(ms(11), id);
    hub.drain();
    hub.at(110);
    assert_eq!(hub.outputs, [LocksOutput::Stopped { unreleased: 1 }]);
}

/// A waiter that waits for restarted servers to count gets that reason, not a timeout.
// Q6
#[test]
fn wait_for_recently_restarted_nodes_is_reported() {
    // Q6
    let mut hub = Hub::new(3, |c| c);
    for (node, run_id) in [(0, "a"), (1, "b"), (2, "c")] {
        hub.up(0, node, &server(run_id, 3));
    }
    hub.acquire(1, &want());
    assert_eq!(hub.take_events(), [Event::Blocked(Blocked::RecentlyRestarted)]);
    assert_eq!(hub.requests(), [], "nodes without a vote get no request");
}

/// A node that temporarily cannot report its uptime is excluded. One that refuses to report it is
/// excluded, or trusted by configuration.
// Q6
#[test]
fn unknown_uptime_excludes_or_trusts_node() {
    // Q6
    for (text, trust, expected) in
        [("LOADING later", true, 2), ("LOADING later", false, 2), ("NOPERM no", false, 2), ("NOPERM no", true, 3)]
    {
        let age = if trust { UnknownAge::Trust } else { UnknownAge::Refuse };
        for at in [9_999, 10_000] {
            let mut hub = Hub::new(3, |c| c.unknown_age(age));
            hub.up(0, 0, &server("a", 1_000));
            hub.up(0, 1, &server("b", 1_000));
            hub.up(0, 2, &Err(ServerError::classify(text)));
            hub.acquire(at, &want());
            assert_eq!(hub.requests().len(), expected, "{text}, {age:?}, at {at} ms");
        }
    }
}
