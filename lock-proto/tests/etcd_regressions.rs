//! Bugs of the etcd hub found by the explorer, each as the shortest sequence that shows it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

extern crate alloc;

#[path = "common/etcd.rs"]
mod etcd;

use core::mem;
use core::time::Duration;

use etcd::Store;
use lock_proto::etcd::{Config, Endpoint, Locks, LocksOutput, Request, WatchId, WatchOutput};
use lock_proto::{
    Acquire, CallId, ClientId, ErrorClass, Event, Instant, LockId, Loss, Operation, Renew, ServerError, Wait,
};

const NOW: Instant = Instant::from_millis(1_000);

struct Hub {
    locks: Locks,
    store: Store,
    sent: Vec<(CallId, Request)>,
    events: Vec<(LockId, Event)>,
    watches: Vec<WatchId>,
}

impl Hub {
    /// Creates a hub with a granted session.
    fn new() -> Self {
        Self::with_ttl(10)
    }

    fn with_ttl(secs: u64) -> Self {
        let config = Config::new([Endpoint::parse("127.0.0.1:2379").unwrap()]).session_ttl(Duration::from_secs(secs));
        let locks = Locks::new(NOW, config, ClientId::from_bits(1), 1).unwrap();
        let mut hub = Self { locks, store: Store::new(), sent: Vec::new(), events: Vec::new(), watches: Vec::new() };
        let first = hub.locks.acquire(NOW, &Acquire::new("other")).unwrap();
        hub.serve();
        hub.locks.abandon(NOW, first);
        hub.serve();
        hub.events.clear();
        hub
    }

    fn drain(&mut self) {
        while let Some(output) = self.locks.poll_output() {
            match output {
                LocksOutput::Send { call, request, .. } => self.sent.push((call, request)),
                LocksOutput::Event { lock, event } => self.events.push((lock, event)),
                LocksOutput::Store(WatchOutput::Watch { watch, .. }) => self.watches.push(watch),
                LocksOutput::Store(WatchOutput::Unwatch { .. })
                | LocksOutput::Operation { .. }
                | LocksOutput::Stopped { .. } => {}
            }
        }
    }

    fn serve_one(&mut self) -> Request {
        self.drain();
        self.serve_at(NOW, 0)
    }

    fn serve_at(&mut self, at: Instant, place: usize) -> Request {
        let (call, request) = self.sent.remove(place);
        let reply = self.store.execute(at, &request);
        self.locks.handle_reply(at, call, &reply);
        self.drain();
        request
    }

    /// Lets the timers run until `end`. Each request is answered at once, unless it `stays`.
    fn run_until(&mut self, end: Instant, stays: fn(&Request) -> bool) {
        let mut now = NOW;
        while now < end {
            now = self.locks.next_deadline().map_or(end, |at| at.clamp(now, end));
            self.timeout(now);
            while let Some(place) = self.sent.iter().position(|(_, request)| !stays(request)) {
                self.serve_at(now, place);
            }
        }
    }

    fn serve(&mut self) {
        self.drain();
        while !self.sent.is_empty() {
            self.serve_one();
        }
    }

    fn occupy(&mut self, key: &'static str) {
        self.store.put(&key.into(), &"".into(), 0);
    }

    /// Others write a lot. Returns a snapshot of the store from near the beginning.
    fn later(&mut self) -> Store {
        self.store.write_elsewhere(5);
        let snapshot = self.store.clone();
        self.store.write_elsewhere(45);
        snapshot
    }

    fn leader(&mut self) -> LockId {
        let leader = self.locks.campaign(NOW, &Acquire::new("board"), "a".into()).unwrap();
        self.serve();
        self.locks.claim(NOW, leader).unwrap();
        leader
    }

    fn proclaim(&mut self, at: Instant, leader: LockId, value: &'static str) {
        self.locks.proclaim(at, leader, value.into()).unwrap();
        self.drain();
    }

    fn timeout(&mut self, at: Instant) {
        self.locks.handle_timeout(at);
        self.drain();
    }

    /// How long each proclaim that failed had waited, in milliseconds.
    fn failed_proclaims(&self) -> Vec<u128> {
        let waited = |event: &Event| if let Event::ProclaimFailed(report) = event { Some(report.waited) } else { None };
        self.events.iter().filter_map(|(_, event)| Some(waited(event)?.as_millis())).collect()
    }

    /// Takes a lock, and holds it until the watch on its key is open.
    fn watched_hold(&mut self) -> (LockId, Instant, WatchId) {
        let holds = self.locks.acquire(NOW, &Acquire::new("name")).unwrap();
        self.serve();
        self.locks.claim(NOW, holds).unwrap();
        let at = NOW + Duration::from_secs(5);
        self.locks.handle_timeout(at);
        self.serve();
        let [watch] = *self.watches else { panic!("{:?}", self.watches) };
        self.locks.handle_watching(at, watch, self.store.revision());
        self.serve();
        (holds, at, watch)
    }

    /// Leaves a key of this client: a create that is executed, but whose reply is lost.
    fn leave_key(&mut self) {
        let stale = self.locks.acquire(NOW, &Acquire::new("name").wait(Wait::Try)).unwrap();
        self.drain();
        let (call, mut create) = self.sent.remove(0);
        let Request::Create { alone, .. } = &mut create else { panic!("{create:?}") };
        *alone = false;
        self.store.execute(NOW, &create);
        let lost = lock_proto::Cause::Fault(lock_proto::Fault::Reset);
        self.locks.handle_reply(NOW, call, &lock_proto::etcd::Reply::Unknown(lost));
        self.drain();
        assert!(self.events.iter().any(|(id, event)| *id == stale && matches!(event, Event::Failed(_))));
    }

    /// Starts a waiter behind a foreign key.
    fn waiter(&mut self) -> LockId {
        self.occupy("name/7");
        let waits = self.locks.acquire(NOW, &Acquire::new("name")).unwrap();
        self.serve();
        waits
    }
}

/// Seed 47211: a try was abandoned during its request, and nobody handled the busy reply.
#[test]
fn waiter_behind_abandoned_try_contends_after_its_reply() {
    let mut hub = Hub::new();
    hub.occupy("name/7");
    let tries = hub.locks.acquire(NOW, &Acquire::new("name").wait(Wait::Try)).unwrap();
    hub.locks.acquire(NOW, &Acquire::new("name")).unwrap();
    hub.locks.abandon(NOW, tries);
    assert!(matches!(hub.serve_one(), Request::Create { alone: true, .. }));
    assert!(matches!(hub.serve_one(), Request::Create { alone: false, .. }), "the waiter enters the queue");
}

/// Seed 30861: a try adopted a leftover key of its own client behind a foreign predecessor.
#[test]
fn waiter_behind_try_with_adopted_key_contends_after_it() {
    let mut hub = Hub::new();
    hub.occupy("name/7");
    hub.leave_key();
    let tries = hub.locks.acquire(NOW, &Acquire::new("name").wait(Wait::Try)).unwrap();
    let waits = hub.locks.acquire(NOW, &Acquire::new("name")).unwrap();
    hub.serve();
    assert!(hub.events.iter().any(|(id, event)| *id == tries && matches!(event, Event::Failed(_))));
    hub.store.delete(&"name/7".into());
    assert!(
        hub.events.iter().any(|(id, event)| *id == waits && matches!(event, Event::Blocked(lock_proto::Blocked::Held))),
        "the waiter is in the queue: {:?}",
        hub.events
    );
}

/// The reply was reported as none, and ended the try.
#[test]
fn try_whose_leftover_key_changes_meanwhile_goes_on() {
    let mut hub = Hub::new();
    hub.leave_key();
    let tries = hub.locks.acquire(NOW, &Acquire::new("name").wait(Wait::Try)).unwrap();
    hub.drain();
    while !matches!(hub.sent[0], (_, Request::Put { .. })) {
        hub.serve_one();
    }
    for kv in hub.store.keys().into_values() {
        hub.store.put(&kv.key, &kv.value, kv.lease);
    }
    hub.serve();
    hub.run_until(NOW + Duration::from_millis(50), |_| false);
    let of_try: Vec<_> = hub.events.iter().filter(|(id, _)| *id == tries).map(|(_, event)| event).collect();
    assert!(matches!(of_try[..], [Event::Granted(_)]), "{of_try:?}");
}

/// Found in review: the reply to the first put confirmed the second, which was never written.
#[test]
fn proclamation_during_pending_put_is_written_after_it() {
    let mut hub = Hub::new();
    let leader = hub.leader();
    hub.proclaim(NOW, leader, "b");
    hub.proclaim(NOW, leader, "c");
    assert_eq!(hub.sent.len(), 1, "the second one waits for the answer to the first");
    hub.serve();
    let values: Vec<_> = hub.store.keys().values().map(|kv| kv.value.clone()).collect();
    assert_eq!(values, ["c"]);
    let events = hub.events.iter().filter(|(_, event)| matches!(event, Event::Proclaimed { .. })).count();
    assert_eq!(events, 1, "one answer, when the last value stands");
}

/// Regression: the read was not sent, its time stayed in the past, and debug builds panicked.
#[test]
fn proclamation_that_fails_while_its_read_is_due_is_read() {
    // M5
    let mut hub = Hub::new();
    let leader = hub.leader();
    hub.proclaim(NOW, leader, "b");
    for _ in 0..2 {
        let (call, put) = hub.sent.pop().unwrap();
        assert!(matches!(put, Request::Put { .. }), "{put:?}");
        let lost = lock_proto::Cause::Fault(lock_proto::Fault::Reset);
        hub.locks.handle_reply(NOW, call, &lock_proto::etcd::Reply::Unknown(lost));
        hub.drain();
        if let [(_, Request::Look { .. })] = hub.sent[..] {
            hub.serve_one();
        }
    }
    assert!(hub.sent.is_empty(), "the second read waits: {:?}", hub.sent);
    hub.timeout(NOW + Duration::from_secs(3));
    assert_eq!(hub.failed_proclaims(), [3_000]);
    let looks = hub.sent.iter().filter(|(_, request)| matches!(request, Request::Look { .. })).count();
    assert_eq!(looks, 1, "{:?}", hub.sent);
}

/// Regression: the reply to the put that it had replaced caused its first put.
#[test]
fn proclamation_that_failed_before_its_put_is_never_written() {
    let mut hub = Hub::new();
    let leader = hub.leader();
    hub.proclaim(NOW, leader, "b");
    hub.proclaim(NOW + Duration::from_millis(100), leader, "c");
    hub.timeout(NOW + Duration::from_millis(2_100));
    assert_eq!(hub.failed_proclaims(), [2_100]);
    let puts = |hub: &Hub| hub.sent.iter().filter(|(_, request)| matches!(request, Request::Put { .. })).count();
    assert_eq!(puts(&hub), 1);
    let (call, put) = hub.sent.remove(0);
    let reply = hub.store.execute(NOW, &put);
    hub.locks.handle_reply(NOW + Duration::from_secs(3), call, &reply);
    hub.drain();
    assert_eq!(puts(&hub), 0, "{:?}", hub.sent);
}

/// Regression: it counted from the request of one that had failed before.
#[test]
fn proclamation_reports_only_its_own_wait() {
    let mut hub = Hub::new();
    let leader = hub.leader();
    let at = |secs| NOW + Duration::from_secs(secs);
    hub.proclaim(NOW, leader, "b");
    hub.timeout(at(2));
    hub.proclaim(at(3), leader, "c");
    hub.timeout(at(5));
    assert_eq!(hub.failed_proclaims(), [2_000, 2_000]);
}

/// Found by the `leader` play: a change during an older read was never read.
#[test]
fn observer_reads_again_when_change_overtakes_read() {
    let mut hub = Hub::new();
    hub.occupy("board/7");
    hub.locks.start(NOW, Operation::Observe("board".into())).unwrap();
    hub.drain();
    let [watch] = *hub.watches else { panic!("{:?}", hub.watches) };
    hub.locks.handle_watching(NOW, watch, hub.store.revision());
    // The read is executed. Before its reply arrives, the key changes and the watch reports it.
    let (call, request) = hub.sent.remove(0);
    let old = hub.store.execute(NOW, &request);
    hub.occupy("board/7");
    let kv = hub.store.keys()[&b"board/7"[..]].clone();
    hub.locks.handle_changed(NOW, watch, hub.store.revision(), false, &kv);
    hub.drain();
    hub.locks.handle_reply(NOW, call, &old);
    assert!(matches!(hub.serve_one(), Request::First { .. }), "it reads once more");
    hub.drain();
    assert!(hub.sent.is_empty(), "and then knows");
}

/// The cluster was restored from a backup: its revisions are smaller than those seen before.
#[test]
fn observer_sees_leaders_of_restored_cluster() {
    let mut hub = Hub::new();
    let snapshot = hub.later();
    hub.locks.start(NOW, Operation::Observe("board".into())).unwrap();
    hub.drain();
    let [watch] = *hub.watches else { panic!("{:?}", hub.watches) };
    hub.locks.handle_watching(NOW, watch, hub.store.revision());
    hub.serve();
    hub.store.restore(&snapshot);
    hub.locks.handle_unsubscribed(NOW, watch);
    hub.locks.handle_watching(NOW, watch, hub.store.revision());
    hub.serve();
    hub.occupy("board/7");
    let kv = hub.store.keys()[&b"board/7"[..]].clone();
    hub.locks.handle_changed(NOW, watch, hub.store.revision(), false, &kv);
    assert!(matches!(hub.serve_one(), Request::First { .. }), "it reads");
}

/// The snapshot has the shared lease, but not the key: both clients held the lock for ever.
#[test]
fn holder_without_key_in_restored_cluster_loses_lock() {
    // E9
    let mut hub = Hub::new();
    let snapshot = hub.later();
    let (holds, at, watch) = hub.watched_hold();
    hub.locks.handle_unsubscribed(at, watch);
    hub.store.restore(&snapshot);
    hub.locks.handle_watching(at, watch, hub.store.revision());
    hub.serve();
    assert!(hub.events.contains(&(holds, Event::Lost(Loss::Gone))), "{:?}", hub.events);
}

/// The waiter waited for the next recheck.
#[test]
fn waiter_without_key_in_restored_cluster_enters_again() {
    // E4
    let mut hub = Hub::new();
    hub.occupy("name/7");
    let snapshot = hub.later();
    hub.waiter();
    let [older, own] = *hub.watches else { panic!("{:?}", hub.watches) };
    for watch in [older, own] {
        hub.locks.handle_watching(NOW, watch, hub.store.revision());
    }
    hub.serve();
    for watch in [older, own] {
        hub.locks.handle_unsubscribed(NOW, watch);
    }
    hub.store.restore(&snapshot);
    for watch in [older, own] {
        hub.locks.handle_watching(NOW, watch, hub.store.revision());
    }
    hub.serve();
    assert_eq!(hub.store.keys().len(), 2, "{:?}", hub.store.keys());
}

/// `etcd grpc-proxy` may attribute an event to another watch.
#[test]
fn event_of_another_key_is_no_loss() {
    let mut hub = Hub::new();
    let (_, at, watch) = hub.watched_hold();
    let other = lock_proto::etcd::message::KeyValue { key: "other/7".into(), ..Default::default() };
    hub.locks.handle_changed(at, watch, hub.store.revision() + 9, true, &other);
    hub.drain();
    assert!(!hub.events.iter().any(|(_, event)| matches!(event, Event::Lost(_))), "{:?}", hub.events);
}

/// Found by measurement: a watch from the current revision may start in the past if a write happens
/// at the same moment. etcd then reports events up to 100 ms late. The next watch shows whether
/// there was a write; only then does the client poll the queue.
#[test]
fn watch_opened_during_write_is_backed_by_polling() {
    for (written, looks) in [(false, 0), (true, 4)] {
        let mut hub = Hub::new();
        let waits = hub.waiter();
        let [older, own] = *hub.watches else { panic!("{:?}", hub.watches) };
        hub.locks.handle_watching(NOW, older, hub.store.revision());
        hub.store.write_elsewhere(usize::from(written));
        hub.locks.handle_watching(NOW, own, hub.store.revision());
        // A later watch causes this read anyway.
        hub.serve();
        // From here on there are constant writes, and no watch reports any.
        let mut at = Vec::new();
        for ms in 1..1_000 {
            let now = NOW + Duration::from_millis(ms);
            hub.store.write_elsewhere(1);
            hub.locks.handle_timeout(now);
            hub.drain();
            for (call, request) in mem::take(&mut hub.sent) {
                let reply = hub.store.execute(now, &request);
                let looks = matches!(request, Request::Look { .. });
                assert!(looks || matches!(request, Request::KeepAlive { .. }), "{request:?}");
                at.extend(looks.then_some(ms));
                hub.locks.handle_reply(now, call, &reply);
            }
        }
        assert_eq!(at.len(), looks, "readings after {at:?} ms");
        assert!(at.iter().all(|ms| *ms <= 100), "it is reported by then: {at:?}");
        assert!(!hub.events.iter().any(|(id, event)| *id == waits && matches!(event, Event::Granted(_))));
    }
}

/// Such a read finds a release that the watch has not reported.
#[test]
fn release_reported_late_by_watch_is_found_by_read() {
    let mut hub = Hub::new();
    let waits = hub.waiter();
    let [older, own] = *hub.watches else { panic!("{:?}", hub.watches) };
    hub.locks.handle_watching(NOW, older, hub.store.revision());
    hub.store.write_elsewhere(1);
    hub.locks.handle_watching(NOW, own, hub.store.revision());
    hub.serve();
    hub.store.delete(&"name/7".into());
    let due = hub.locks.next_deadline().unwrap();
    assert!(due <= NOW + Duration::from_millis(10), "{due}");
    hub.locks.handle_timeout(due);
    hub.serve();
    assert!(
        hub.events.iter().any(|(id, event)| *id == waits && matches!(event, Event::Granted(_))),
        "{:?}",
        hub.events
    );
}

/// Scenario `etcd-turns`, seed 2814: two waiters timed out in one step. The second one, which
/// needed a separate lease, was briefly at the head. Its lease was granted nevertheless, and kept
/// alive until the shutdown.
#[test]
fn timed_out_waiter_requests_no_lease() {
    let mut hub = Hub::new();
    hub.occupy("name/7");
    let wait = |secs| Wait::For(Duration::from_secs(secs));
    let first = hub.locks.acquire(NOW, &Acquire::new("name").wait(wait(2))).unwrap();
    let own = Acquire::new("name").ttl(Duration::from_secs(4)).renew(Renew::Manual).wait(wait(2));
    let second = hub.locks.acquire(NOW, &own).unwrap();
    hub.serve();
    hub.events.clear();
    // The process is paused for longer than both waits.
    hub.locks.handle_timeout(NOW + Duration::from_secs(3));
    hub.drain();
    let failed = |lock| hub.events.iter().any(|(id, event)| *id == lock && matches!(event, Event::Failed(_)));
    assert!(failed(first) && failed(second), "{:?}", hub.events);
    let requested = hub.sent.iter().any(|(_, request)| matches!(request, Request::Grant { .. }));
    assert!(!requested, "{:?}", hub.sent);
}

/// A rejected watch (for lack of permission, for example) is replaced by periodic reads.
#[test]
fn waiter_with_refused_watch_polls_queue() {
    let mut hub = Hub::new();
    let waits = hub.waiter();
    let error = ServerError { class: ErrorClass::Refused, text: "etcdserver: permission denied".into() };
    let refused = mem::take(&mut hub.watches);
    for watch in &refused {
        hub.locks.handle_watch_refused(NOW, *watch, &error);
    }
    hub.serve();
    hub.store.delete(&"name/7".into());
    hub.locks.handle_timeout(NOW + Duration::from_secs(1));
    hub.serve();
    assert_eq!(hub.watches.len(), refused.len(), "they are requested again");
    assert!(
        hub.events.iter().any(|(id, event)| *id == waits && matches!(event, Event::Granted(_))),
        "{:?}",
        hub.events
    );
}

/// The refusal may have a passing reason, such as a login that was rejected once.
#[test]
fn holder_with_refused_watch_requests_another_and_learns_of_loss() {
    let mut hub = Hub::new();
    let holds = hub.locks.acquire(NOW, &Acquire::new("name")).unwrap();
    hub.serve();
    hub.locks.claim(NOW, holds).unwrap();
    let at = NOW + Duration::from_secs(5);
    hub.run_until(at, |_| false);
    let [watch] = *hub.watches else { panic!("{:?}", hub.watches) };
    hub.locks.handle_watching(at, watch, hub.store.revision());
    let error = ServerError { class: ErrorClass::Refused, text: "authentication failed".into() };
    hub.locks.handle_watch_refused(at, watch, &error);
    let own = hub.store.changes.last().unwrap().kv.key.clone();
    hub.store.delete(&own);
    hub.run_until(NOW + Duration::from_secs(40), |_| false);
    assert!(!hub.events.iter().any(|(_, event)| matches!(event, Event::Lost(_))), "{:?}", hub.events);
    let [_, again] = *hub.watches else { panic!("{:?}", hub.watches) };
    hub.locks.handle_watching(NOW + Duration::from_secs(40), again, hub.store.revision());
    hub.drain();
    hub.serve();
    let lost = hub.events.iter().any(|(id, event)| *id == holds && matches!(event, Event::Lost(_)));
    assert!(lost, "{:?}", hub.events);
}

/// The permission was withdrawn. The key ends with its lease, which nothing else needs.
#[test]
fn key_whose_delete_is_refused_ends_with_its_lease() {
    let mut hub = Hub::new();
    let holds = hub.locks.acquire(NOW, &Acquire::new("name")).unwrap();
    hub.serve();
    hub.locks.claim(NOW, holds).unwrap();
    hub.locks.abandon(NOW, holds);
    hub.drain();
    let error = ServerError { class: ErrorClass::Refused, text: "etcdserver: permission denied".into() };
    let refused = lock_proto::etcd::Reply::Refused(lock_proto::etcd::Refusal::Error(error));
    let mut deletes = 0;
    for step in 0..20 {
        let now = NOW + Duration::from_millis(step * 500);
        hub.locks.handle_timeout(now);
        hub.drain();
        for (call, request) in mem::take(&mut hub.sent) {
            match request {
                Request::Revoke { .. } => return,
                Request::KeepAlive { .. } => {
                    hub.locks.handle_reply(now, call, &hub.store.execute(now, &request));
                }
                Request::Delete { .. } | Request::Look { .. } => {
                    deletes += 1;
                    hub.locks.handle_reply(now, call, &refused);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    panic!("the lease is kept alive after {deletes} requests");
}

/// The lease that all locks share was given up as well.
#[test]
fn refused_put_of_released_key_does_not_cost_the_lease() {
    // E3
    let mut hub = Hub::new();
    let leader = hub.leader();
    hub.proclaim(NOW, leader, "b");
    hub.locks.release(NOW, leader).unwrap();
    hub.drain();
    let (call, put) = hub.sent.remove(0);
    assert!(matches!(put, Request::Put { .. }), "{put:?}");
    let error = ServerError { class: ErrorClass::Refused, text: "etcdserver: permission denied".into() };
    let refused = lock_proto::etcd::Reply::Refused(lock_proto::etcd::Refusal::Error(error));
    hub.locks.handle_reply(NOW, call, &refused);
    hub.run_until(NOW + Duration::from_secs(1), |_| false);
    assert!(hub.store.keys().is_empty(), "{:?}", hub.store.keys());
    hub.locks.acquire(NOW, &Acquire::new("name")).unwrap();
    hub.drain();
    assert!(matches!(hub.sent[..], [(_, Request::Create { .. })]), "{:?}", hub.sent);
}

/// The reply to the delete was lost. The next key of the client shows that it was executed.
#[test]
fn release_is_answered_when_next_attempt_creates_key() {
    // U1
    let mut hub = Hub::new();
    let holds = hub.locks.acquire(NOW, &Acquire::new("name")).unwrap();
    hub.serve();
    hub.locks.claim(NOW, holds).unwrap();
    hub.locks.release(NOW, holds).unwrap();
    hub.drain();
    let (call, request) = hub.sent.remove(0);
    assert!(matches!(request, Request::Delete { .. }));
    hub.store.execute(NOW, &request);
    let lost = lock_proto::Cause::Fault(lock_proto::Fault::Reset);
    hub.locks.handle_reply(NOW, call, &lock_proto::etcd::Reply::Unknown(lost));
    let next = hub.locks.acquire(NOW, &Acquire::new("name")).unwrap();
    hub.serve();
    let answered = Event::Released(lock_proto::Release::Released);
    assert!(hub.events.contains(&(holds, answered)), "{:?}", hub.events);
    assert!(hub.events.iter().any(|(id, event)| *id == next && matches!(event, Event::Granted(_))));
}

/// A watch that starts in the past reports the waiter's own put, which is ignored.
#[test]
fn own_put_does_not_cause_queue_read() {
    let mut hub = Hub::new();
    hub.waiter();
    let [older, own] = *hub.watches else { panic!("{:?}", hub.watches) };
    let put = hub.store.changes.last().unwrap().clone();
    assert!(!put.deleted && put.kv.key != "name/7");
    hub.locks.handle_watching(NOW, older, put.revision - 1);
    hub.locks.handle_watching(NOW, own, put.revision - 1);
    // For all it knows, the cluster was restored to an earlier revision, so it reads once.
    hub.serve();
    hub.locks.handle_changed(NOW, own, put.revision, false, &put.kv);
    hub.drain();
    assert!(hub.sent.is_empty(), "{:?}", hub.sent);
    // A foreign put is not ignored.
    hub.locks.handle_changed(
        NOW,
        own,
        put.revision + 1,
        false,
        &lock_proto::etcd::message::KeyValue { mod_revision: put.revision + 1, ..put.kv },
    );
    hub.drain();
    assert!(matches!(hub.sent[..], [(_, Request::Look { .. })]), "{:?}", hub.sent);
}

/// A failed read is repeated after its backoff, whatever else happens in between.
#[test]
fn failed_read_is_not_repeated_before_backoff_ends() {
    let mut hub = Hub::new();
    hub.waiter();
    hub.locks.handle_watching(NOW, hub.watches[0], hub.store.revision() + 1);
    hub.drain();
    let (call, request) = hub.sent.remove(0);
    assert!(matches!(request, Request::Look { .. }), "{request:?}");
    let lost = lock_proto::Cause::Fault(lock_proto::Fault::Reset);
    hub.locks.handle_reply(NOW, call, &lock_proto::etcd::Reply::NotSent(lost));
    hub.locks.handle_watching(NOW, hub.watches[1], hub.store.revision() + 1);
    hub.drain();
    assert!(hub.sent.is_empty(), "{:?}", hub.sent);
    hub.locks.handle_timeout(NOW + Duration::from_millis(50));
    hub.drain();
    assert!(matches!(hub.sent[..], [(_, Request::Look { .. })]), "{:?}", hub.sent);
}

/// etcd's gRPC proxy replies to a keep-alive when it renews the lease itself: a third of the TTL
/// after the last reply, rounded up to its ticks of 500 ms. Each keep-alive left a little later
/// before that.
#[test]
fn third_of_ttl_is_left_when_grpc_proxy_replies() {
    // E1
    for (ttl, period) in [(5, 2_000), (6, 2_500), (10, 3_500), (15, 5_500)] {
        let mut hub = Hub::with_ttl(ttl);
        let holds = hub.locks.acquire(NOW, &Acquire::new("name")).unwrap();
        hub.serve();
        hub.locks.claim(NOW, holds).unwrap();
        let mut least = Duration::MAX;
        for n in 1..=100 {
            let tick = NOW + Duration::from_millis(170 + n * period);
            hub.run_until(tick, |request| matches!(request, Request::KeepAlive { .. }));
            least = least.min(hub.locks.valid_until(holds).unwrap().since(tick));
            while !hub.sent.is_empty() {
                hub.serve_at(tick, 0);
            }
        }
        assert!(least > Duration::from_secs(ttl) / 3, "TTL {ttl} s: {least:?}");
    }
}
