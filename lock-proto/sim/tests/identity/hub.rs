//! The hub alone: its requests and their timing.

use core::time::Duration;

use lock_proto::redis::{Config, Endpoint, Locks, LocksOutput, Reply, Request, ServerInfo, UnknownAge, Wake};
use lock_proto::{
    Acquire, Answer, Backoff, Blocked, CallId, Cause, ClientId, Event, Failure, Fault, Instant, LockId, Loss, NodeId,
    Release, Renew, ServerError, Wait,
};

const HOUR: Duration = Duration::from_secs(3_600);
const GRANTED: Reply = Reply::Granted { fence: None };
const NOT_SENT: Reply = Reply::NotSent(Cause::Fault(Fault::TimedOut));

fn ms(n: u64) -> Instant {
    Instant::from_millis(n)
}

struct Hub {
    locks: Locks,
    sent: Vec<(CallId, Request)>,
    events: Vec<Event>,
}

impl Hub {
    fn new(nodes: usize, change: impl FnOnce(Config) -> Config) -> Self {
        let url = |n| format!("redis://node{n}").parse::<Endpoint>().unwrap();
        let config = change(Config::new((0..nodes).map(url)).wake(Wake::Poll));
        let locks = Locks::new(ms(0), config, ClientId::from_bits(7), 42).unwrap();
        Self { locks, sent: vec![], events: vec![] }
    }

    /// Three nodes, which lead to the servers a, b and c.
    fn quorum(change: impl FnOnce(Config) -> Config) -> Self {
        let mut hub = Self::new(3, change);
        for (node, run_id) in [(0, "a"), (1, "b"), (2, "c")] {
            hub.up(0, node, run_id);
        }
        hub
    }

    fn drain(&mut self) {
        while let Some(output) = self.locks.poll_output() {
            match output {
                LocksOutput::Send { call, request, .. } => self.sent.push((call, request)),
                LocksOutput::Event { event, .. } => self.events.push(event),
                LocksOutput::Operation { .. } | LocksOutput::Listen { .. } | LocksOutput::Unlisten { .. } => {}
                LocksOutput::Stopped { .. } => {}
            }
        }
    }

    /// Reports a node as up with this run id and an uptime of an hour.
    fn up(&mut self, at: u64, node: u16, run_id: &str) {
        self.up_with(at, node, Some(&Ok(ServerInfo::new(run_id, HOUR))));
    }

    fn up_with(&mut self, at: u64, node: u16, server: Option<&Result<ServerInfo, ServerError>>) {
        self.locks.handle_node_up(ms(at), NodeId::new(node), server);
        self.drain();
    }

    fn reply(&mut self, at: u64, call: CallId, reply: &Reply) {
        self.locks.handle_reply(ms(at), call, reply);
        self.drain();
    }

    fn at(&mut self, at: u64) {
        self.locks.handle_timeout(ms(at));
        self.drain();
    }

    /// Releases the lock. The events that follow are those of the release.
    fn release(&mut self, at: u64, lock: LockId) {
        self.events.clear();
        self.locks.release(ms(at), lock).unwrap();
        self.drain();
    }

    fn requests(&mut self) -> Vec<(CallId, Request)> {
        core::mem::take(&mut self.sent)
    }

    /// Answers the requests to these nodes. The others get no reply.
    fn answer(&mut self, at: u64, replies: &[(u16, Reply)]) {
        for (call, _) in self.requests() {
            if let Some((_, reply)) = replies.iter().find(|(node, _)| NodeId::new(*node) == call.node()) {
                self.reply(at, call, reply);
            }
        }
    }

    fn acquire(&mut self, at: u64, want: &Acquire) -> LockId {
        let id = self.locks.acquire(ms(at), want).unwrap();
        self.drain();
        id
    }

    fn held(&mut self, at: u64, want: &Acquire) -> LockId {
        let id = self.acquire(at, want);
        for (call, _) in self.requests() {
            self.reply(at, call, &GRANTED);
        }
        self.locks.claim(ms(at), id).unwrap();
        self.drain();
        id
    }

    fn answers(&mut self, at: u64) -> Vec<Answer> {
        self.events.clear();
        self.acquire(at, &Acquire::new("other").wait(Wait::Try));
        for (call, _) in self.requests().into_iter().rev() {
            self.reply(at, call, &Reply::Rejected(ServerError::classify("LOADING later")));
        }
        let [Event::Failed(Failure::TimedOut(report))] = &self.events[..] else { panic!("{:?}", self.events) };
        report.nodes.to_vec()
    }
}

const fn deleted(number: u64) -> Reply {
    Reply::Deleted { number, awaited: false }
}

fn refused() -> ServerError {
    ServerError::classify("NOPERM this user has no permissions to run the 'info' command")
}

fn broken() -> Reply {
    Reply::Unknown(Cause::Fault(Fault::Reset))
}

fn names(sent: &[(CallId, Request)]) -> Vec<String> {
    let name = |request: &Request| match request {
        Request::Extend { key, .. } | Request::Take { key, .. } => String::from_utf8_lossy(key.lock()).into_owned(),
        other => panic!("{other:?}"),
    };
    sent.iter().map(|(_, request)| name(request)).collect()
}

#[test]
fn holds_are_verified_in_batches_earliest_end_first() {
    // Q7
    let mut hub = Hub::new(1, |c| c);
    hub.up(0, 0, "one");
    // The later a lock was taken, the sooner it ends.
    for n in 0..1_000 {
        let ttl = Duration::from_millis(100_000 - 10 * n);
        hub.held(n, &Acquire::new(format!("lock{n}")).ttl(ttl));
    }
    hub.up(1_000, 0, "one");
    assert_eq!(hub.requests(), [], "it is the same server");
    hub.up(1_000, 0, "two");
    let first = hub.requests();
    let expected = |from: u64, count: u64| (0..count).map(|i| format!("lock{}", from - i)).collect::<Vec<_>>();
    assert_eq!(names(&first), expected(999, 256));
    // Each reply makes room for one more.
    for (call, _) in &first[..10] {
        hub.reply(1_001, *call, &Reply::Extended);
    }
    let more = hub.requests();
    assert_eq!(names(&more), expected(743, 10));
    // Requests without a reply, or not yet sent, are sent once on the next connection.
    for (call, _) in first[10..].iter().chain(&more) {
        hub.reply(1_002, *call, &broken());
    }
    assert_eq!(hub.requests(), []);
    hub.up(1_003, 0, "two");
    let mut requested = Vec::new();
    loop {
        let sent = hub.requests();
        let Some((call, _)) = sent.first() else { break };
        assert!(sent.len() <= 256);
        requested.extend(names(&sent));
        assert_eq!(sent[0].0, *call);
        for (call, _) in &sent {
            hub.reply(1_004, *call, &Reply::Extended);
        }
    }
    assert_eq!(requested, expected(989, 990));
    hub.up(1_005, 0, "two");
    assert_eq!(hub.requests(), []);
}

/// All renewals became due while the server was away. After the reconnect they are sent in batches.
#[test]
fn missed_renewals_are_sent_in_batches_earliest_end_first() {
    // P6
    let mut hub = Hub::new(1, |c| c);
    hub.up(0, 0, "one");
    for n in 0..1_000 {
        let ttl = Duration::from_millis(100_000 - 10 * n);
        hub.held(n, &Acquire::new(format!("lock{n}")).ttl(ttl));
    }
    let quiet = hub.held(1_000, &Acquire::new("quiet").ttl(Duration::from_secs(1_000)));
    hub.at(34_000);
    let renewals = hub.requests();
    assert_eq!(renewals.len(), 1_000);
    for (call, _) in &renewals {
        hub.reply(34_001, *call, &broken());
    }
    // Retries before the reconnect are spread out.
    hub.at(40_000);
    let retries = hub.requests();
    assert!((100..900).contains(&retries.len()), "{} are tried again so far", retries.len());
    for (call, _) in &retries {
        hub.reply(40_000, *call, &broken());
    }
    hub.up(40_001, 0, "one");
    let requested = hub.requests();
    assert_eq!(names(&requested), (744..1_000).rev().map(|n| format!("lock{n}")).collect::<Vec<_>>());
    hub.reply(40_002, requested[0].0, &Reply::Extended);
    assert_eq!(names(&hub.requests()), ["lock743"]);
    assert!(hub.locks.valid_until(quiet).is_some());
}

/// A node of a quorum was away while all locks were taken on the others.
#[test]
fn missing_keys_are_written_in_batches_earliest_end_first() {
    // P6
    for renew in [Renew::Auto, Renew::Manual] {
        let mut hub = Hub::quorum(|c| c);
        for n in 0..1_000 {
            let ttl = Duration::from_millis(10_000 - n);
            let id = hub.acquire(0, &Acquire::new(format!("lock{n}")).ttl(ttl).renew(renew));
            hub.answer(0, &[(0, GRANTED), (1, GRANTED), (2, NOT_SENT)]);
            hub.locks.claim(ms(0), id).unwrap();
            hub.drain();
        }
        hub.up(100, 2, "c");
        let top_ups = hub.requests();
        assert_eq!(names(&top_ups), (744..1_000).rev().map(|n| format!("lock{n}")).collect::<Vec<_>>());
        hub.reply(101, top_ups[0].0, &GRANTED);
        assert_eq!(names(&hub.requests()), ["lock743"]);
    }
}

/// Until a node that is down is back, each renewal tries it once, even if it had the token before.
#[test]
fn node_that_is_down_is_tried_with_each_renewal() {
    // Q3
    for first in [NOT_SENT, GRANTED] {
        let mut hub = Hub::quorum(|c| c);
        let id = hub.acquire(0, &Acquire::new("x").ttl(Duration::from_secs(9)));
        hub.answer(0, &[(0, GRANTED), (1, GRANTED), (2, first.clone())]);
        hub.locks.claim(ms(0), id).unwrap();
        hub.drain();
        let mut nodes = vec![];
        for at in (0..40_000).step_by(10) {
            hub.at(at);
            if first == NOT_SENT || at > 10_000 {
                nodes.extend(hub.sent.iter().map(|(call, _)| call.node().index()));
            }
            hub.answer(at, &[(0, GRANTED), (1, GRANTED), (2, NOT_SENT)]);
        }
        assert!(nodes.len() > 20 && nodes.chunks(3).all(|renewal| renewal == [0, 1, 2]), "{first:?}: {nodes:?}");
    }
}

/// The node may be another server, and cannot be reached even after the end of its share.
#[test]
fn verification_that_is_not_sent_is_repeated_after_a_pause() {
    // Q7
    let mut hub = Hub::quorum(|c| c);
    hub.held(0, &Acquire::new("x").ttl(Duration::from_secs(9)));
    hub.up(10, 2, "d");
    for at in (10..20_000).step_by(10) {
        hub.at(at);
        hub.answer(at, &[(0, Reply::Extended), (1, Reply::Extended), (2, NOT_SENT)]);
        assert_eq!(hub.requests(), [], "at {at} ms");
    }
}

#[test]
fn reconnect_without_proven_identity_verifies_holds() {
    // Q7
    let info = Ok(ServerInfo::new("one", HOUR));
    for (first, then) in [(None, None), (Some(&info), None), (Some(&info), Some(&Err(refused()))), (None, Some(&info))]
    {
        let mut hub = Hub::new(1, |c| c);
        hub.up_with(0, 0, first);
        hub.held(1, &Acquire::new("a"));
        hub.up_with(2, 0, then);
        let sent = hub.requests();
        assert_eq!(names(&sent), ["a"], "{first:?}, {then:?}");
        hub.events.clear();
        hub.reply(3, sent[0].0, &Reply::Taken);
        assert_eq!(hub.events, [Event::Lost(Loss::Taken)], "in the same call");
    }
}

/// A server that is loading its data, or that is not promoted yet, says nothing about the token. So
/// the verification is repeated after a pause, and at once on the next connection.
#[test]
fn verification_answered_by_error_is_repeated() {
    // Q7
    for (n, text) in ["LOADING later", "READONLY replica"].into_iter().cycle().take(8).enumerate() {
        let (renew, reconnects) = ([Renew::Auto, Renew::Manual][n / 2 % 2], n < 4);
        let mut hub = Hub::new(1, |c| c);
        hub.up(0, 0, "one");
        hub.held(1, &Acquire::new("a").ttl(Duration::from_secs(600)).renew(renew));
        hub.up(2, 0, "two");
        let mut at = 3;
        for _ in 0..2 {
            let sent = hub.requests();
            assert_eq!(names(&sent), ["a"], "{renew:?}, {text}");
            hub.reply(at, sent[0].0, &Reply::Rejected(ServerError::classify(text)));
            assert_eq!(hub.requests(), [], "not at once");
            if reconnects {
                hub.up(at, 0, "two");
            } else {
                // A twelfth of the TTL.
                at += 50_001;
                hub.at(at);
            }
        }
        let sent = hub.requests();
        assert_eq!(names(&sent), ["a"], "{renew:?}, {text}");
        hub.events.clear();
        hub.reply(at, sent[0].0, &Reply::Absent);
        assert_eq!(hub.events, [Event::Lost(Loss::Gone)], "{renew:?}, {text}");
    }
}

/// A voluntary extend was in flight when the identity changed. If it fails, the hold is verified.
#[test]
fn failed_extend_does_not_replace_verification() {
    // Q7
    let mut hub = Hub::new(1, |c| c);
    hub.up(0, 0, "one");
    let id = hub.held(1, &Acquire::new("a").ttl(Duration::from_secs(600)).renew(Renew::Manual));
    let until = hub.locks.valid_until(id).unwrap();
    hub.locks.extend(ms(2), id).unwrap();
    hub.drain();
    let extend = hub.requests();
    hub.up(3, 0, "two");
    assert_eq!(hub.requests(), []);
    hub.reply(4, extend[0].0, &Reply::Rejected(ServerError::classify("LOADING later")));
    hub.at(50_005);
    let sent = hub.requests();
    assert_eq!(names(&sent), ["a"]);
    hub.reply(50_006, sent[0].0, &Reply::Extended);
    assert_eq!(hub.locks.valid_until(id), Some(until), "a verification lengthens nothing");
}

/// One node is topped up, another one restarts without its data and is topped up as well.
#[test]
fn top_ups_lengthen_no_hold_that_is_renewed_by_hand() {
    // Q7
    let mut hub = Hub::quorum(|c| c);
    let id = hub.acquire(0, &Acquire::new("x").ttl(Duration::from_secs(9)).renew(Renew::Manual));
    for (call, _) in hub.requests() {
        let third = call.node() == NodeId::new(2);
        hub.reply(0, call, &if third { NOT_SENT } else { GRANTED });
    }
    hub.locks.claim(ms(0), id).unwrap();
    hub.drain();
    let until = hub.locks.valid_until(id).unwrap();
    hub.events.clear();
    let top_up = |hub: &mut Hub, at: u64, node: u16| {
        hub.at(at);
        let sent = hub.requests();
        let [(call, Request::Take { .. })] = sent[..] else { panic!("{sent:?}") };
        assert_eq!(call.node(), NodeId::new(node));
        hub.reply(at, call, &GRANTED);
    };
    top_up(&mut hub, 3_000, 2);
    hub.up(4_000, 0, "d");
    let sent = hub.requests();
    assert_eq!(names(&sent), ["x"]);
    hub.reply(4_000, sent[0].0, &Reply::Absent);
    // A twelfth of the TTL later.
    top_up(&mut hub, 4_750, 0);
    assert_eq!((hub.locks.valid_until(id), &hub.events[..]), (Some(until), &[][..]));
}

/// A node voted and then became another server: its vote does not count, and its grant is released.
#[test]
fn vote_before_server_change_does_not_count() {
    // Q7
    let mut hub = Hub::quorum(|c| c);
    hub.acquire(1, &Acquire::new("x"));
    let takes = hub.requests();
    hub.reply(2, takes[0].0, &GRANTED);
    hub.up(3, 0, "d");
    hub.reply(4, takes[1].0, &GRANTED);
    assert_eq!(hub.events, [], "one vote is left");
    hub.reply(5, takes[2].0, &GRANTED);
    let [Event::Granted(_)] = hub.events[..] else { panic!("{:?}", hub.events) };
}

/// The address of one node led to the server of another, which renewed for both. Its confirmation
/// does not count for the next server at that address. (Scenario `redis-names`, seed 97.)
#[test]
fn confirmation_stays_with_server_after_redirect() {
    // Q6
    let mut hub = Hub::quorum(|c| c);
    let lock = hub.held(1, &Acquire::new("x").ttl(Duration::from_secs(9)));
    hub.up(10, 0, "b");
    hub.requests();
    hub.at(3_100);
    let sent = hub.requests();
    let renewed: Vec<_> = sent.iter().map(|(call, _)| *call).filter(|call| call.node() != NodeId::new(2)).collect();
    assert_eq!(renewed.len(), 2, "{sent:?}");
    for call in renewed {
        hub.reply(3_200, call, &Reply::Extended);
    }
    let before = hub.locks.valid_until(lock).unwrap();
    hub.up(3_300, 0, "a");
    let end = hub.locks.valid_until(lock).unwrap();
    assert!(before == end && end < ms(9_001), "{before} was the end, and now {end}");
}

/// Node 0 led to the server of node 1, which renewed for both. Then both left it, and node 1 came
/// back: the server does not count for node 0 as well.
#[test]
fn confirmation_ends_when_last_node_leaves_server() {
    // Q6
    let mut hub = Hub::quorum(|c| c);
    let lock = hub.held(1, &Acquire::new("x").ttl(Duration::from_secs(9)));
    hub.up(10, 0, "b");
    hub.at(3_100);
    hub.answer(3_100, &[(0, GRANTED), (1, GRANTED), (2, broken())]);
    hub.up(3_200, 1, "c");
    hub.up(3_250, 0, "a");
    hub.requests();
    hub.up(3_300, 1, "b");
    hub.at(6_200);
    hub.answer(6_200, &[(1, GRANTED)]);
    let end = hub.locks.valid_until(lock);
    assert!(end.is_none_or(|end| end < ms(9_001)), "{end:?}");
}

/// The address led to the server of another node, and back. The release was not sent to it, and
/// called complete while a quorum had the key. (Scenario `redis-names`, seed 283.)
#[test]
fn release_reaches_server_after_redirect() {
    // Q6
    let mut hub = Hub::quorum(|c| c);
    let lock = hub.held(1, &Acquire::new("x").ttl(Duration::from_secs(9)));
    hub.up(10, 0, "b");
    hub.up(20, 0, "a");
    hub.requests();
    hub.release(30, lock);
    let sent = hub.requests();
    assert_eq!(sent.iter().map(|(call, _)| call.node().index()).collect::<Vec<_>>(), [0, 1, 2]);
}

/// The same, with a top-up in flight at the release. The connection failed with both, and a quorum
/// had the key when the release was called complete.
#[test]
fn release_is_repeated_on_server_after_redirect() {
    // Q6
    let mut hub = Hub::quorum(|c| c);
    let lock = hub.held(1, &Acquire::new("x").ttl(Duration::from_secs(9)));
    hub.up(10, 0, "b");
    hub.up(20, 0, "a");
    hub.at(3_100);
    let (top_up, renewals): (Vec<_>, _) = hub.requests().into_iter().partition(|(call, _)| call.node().index() == 0);
    for (call, _) in renewals {
        hub.reply(3_100, call, &Reply::Extended);
    }
    hub.release(3_200, lock);
    for (call, request) in top_up {
        assert!(matches!(request, Request::Take { .. }), "{request:?}");
        hub.reply(3_200, call, &NOT_SENT);
    }
    hub.answer(3_200, &[(0, NOT_SENT), (1, deleted(1))]);
    assert_eq!(hub.events, []);
    hub.up(3_300, 0, "a");
    hub.answer(3_300, &[(0, deleted(1))]);
    assert_eq!(hub.events, [Event::Released(Release::Released)]);
}

/// The delete is repeated while the address leads to the server of another node. That server counts
/// once, and the repetition does not end the cleanup. (Scenario `redis-names`, seeds 1033 and
/// 1079.)
#[test]
fn delete_on_another_nodes_server_does_not_count() {
    // Q6
    for (redirected, own) in [(deleted(1), Reply::Absent), (Reply::Absent, deleted(1))] {
        let mut hub = Hub::quorum(|c| c);
        let lock = hub.held(1, &Acquire::new("x").ttl(Duration::from_secs(9)));
        hub.release(30, lock);
        hub.answer(30, &[(0, broken()), (1, own)]);
        hub.up(40, 0, "b");
        hub.answer(40, &[(0, redirected)]);
        assert_eq!(hub.events, []);
        hub.up(50, 0, "a");
        hub.answer(50, &[(0, deleted(1))]);
        assert_eq!(hub.events, [Event::Released(Release::Released)]);
    }
}

/// Node 1 led to the server of node 0 until the release, and node 0 then to that of node 1.
#[test]
fn nodes_that_swapped_servers_are_cleaned_up_when_they_are_back() {
    // Q6
    let mut hub = Hub::quorum(|c| c);
    let lock = hub.held(1, &Acquire::new("x").ttl(Duration::from_secs(9)));
    hub.up(10, 1, "a");
    hub.requests();
    hub.release(30, lock);
    hub.answer(30, &[(0, broken()), (1, broken())]);
    hub.up(40, 0, "b");
    hub.answer(40, &[(0, deleted(1))]);
    hub.up(50, 1, "b");
    hub.answer(50, &[(1, Reply::Absent)]);
    assert_eq!(hub.events, []);
    hub.up(60, 0, "a");
    hub.answer(60, &[(0, deleted(1))]);
    assert_eq!(hub.events, [Event::Released(Release::Released)]);
}

/// Two addresses were swapped when the client first connected. Each node's own server then counted
/// as that of the other one, and a delete there was repeated on the next connection only: the
/// cleanup never ended. (Scenario `redis-names`, seed 1100252.)
#[test]
fn delete_is_repeated_when_swapped_addresses_have_become_those_of_their_nodes() {
    // Q6
    let quarantine = Duration::from_secs(10);
    let mut hub = Hub::quorum(|c| c.quarantine(quarantine));
    let lock = hub.held(1, &Acquire::new("x").ttl(Duration::from_secs(9)));
    hub.release(30, lock);
    hub.answer(30, &[(0, broken()), (1, broken()), (2, deleted(1))]);
    for (at, node, server) in [(40, 0, "b"), (50, 1, "a")] {
        hub.up(at, node, server);
        hub.answer(at, &[(node, deleted(1))]);
    }
    assert_eq!((hub.requests(), &*hub.events), (Vec::new(), &[][..]));
    let end = 50 + quarantine.as_millis() as u64;
    hub.at(end);
    for (node, (call, _)) in hub.requests().into_iter().enumerate() {
        assert_eq!(call.node().index(), node, "{call:?}");
        hub.reply(end, call, &Reply::Absent);
    }
    hub.locks.shutdown(ms(end), Duration::from_secs(30));
    assert!(hub.locks.is_stopped());
}

#[test]
fn three_changes_within_quarantine_are_unstable_identity() {
    // Q7
    let mut hub = Hub::quorum(|c| c.quarantine(Duration::from_secs(10)));
    let loading = Answer::Rejected(ServerError::classify("LOADING later"));
    assert_eq!(hub.answers(1)[2], loading);
    for (at, run_id, answer) in [
        (1_000, "d", Answer::RecentlyRestarted),
        (2_000, "e", Answer::RecentlyRestarted),
        (11_000, "f", Answer::UnstableIdentity),
        // Two within ten seconds; the third is older.
        (21_001, "g", Answer::RecentlyRestarted),
    ] {
        hub.up(at, 2, run_id);
        assert_eq!(hub.answers(at + 1)[2], answer, "{run_id}");
    }
    // The quarantine ends, counted from the last change.
    assert_eq!(hub.answers(31_000)[2], Answer::RecentlyRestarted);
    assert_eq!(hub.answers(31_001)[2], loading);
    // A waiter for such nodes gets that reason.
    for (at, run_id) in [(40_000, "h"), (40_001, "i"), (40_002, "j")] {
        hub.up(at, 1, &format!("1{run_id}"));
        hub.up(at, 2, &format!("2{run_id}"));
    }
    hub.events.clear();
    hub.acquire(40_003, &Acquire::new("x"));
    for (call, _) in hub.requests() {
        hub.reply(40_003, call, &GRANTED);
    }
    assert_eq!(hub.events, [Event::Blocked(Blocked::UnstableIdentity)]);
}

/// Polling is slow while a quorum is missing, but two of three nodes vote again at a known time.
#[test]
fn waiter_attempts_at_end_of_quarantine() {
    // A6, Q6
    let slow = Backoff::fixed(Duration::from_secs(60));
    let mut hub = Hub::new(3, |c| c.quarantine(Duration::from_secs(10)).poll(slow));
    for (node, run_id) in [(0, "a"), (1, "b"), (2, "c"), (1, "d"), (2, "e")] {
        hub.up(0, node, run_id);
    }
    hub.acquire(1, &Acquire::new("x").ttl(Duration::from_secs(9)));
    assert_eq!(hub.events, [Event::Blocked(Blocked::RecentlyRestarted)]);
    hub.requests();
    hub.at(9_999);
    assert_eq!(hub.requests(), []);
    hub.at(10_010);
    let sent = hub.requests();
    assert!(matches!(sent[..], [(_, Request::Take { .. }), (_, Request::Take { .. })]), "{sent:?}");
}

/// The setting decides, also about `INFO` without a run id, as of Dragonfly. An error that may pass
/// is never trusted.
#[test]
fn setting_decides_about_unknown_identity() {
    // Q6
    let incomplete = ServerInfo::parse(b"uptime_in_seconds:9\r\n");
    for (unknown, trusted) in [(incomplete, 3), (Err(refused()), 3), (Err(ServerError::classify("BUSY later")), 0)] {
        let mut hub = Hub::quorum(|c| c);
        hub.up_with(1, 2, Some(&unknown));
        assert_eq!(hub.answers(HOUR.as_millis() as u64)[2], Answer::Rejected(unknown.clone().unwrap_err()));
        let mut hub = Hub::new(3, |c| c.unknown_age(UnknownAge::Trust));
        (0..3).for_each(|node| hub.up_with(0, node, Some(&unknown)));
        hub.acquire(1, &Acquire::new("x"));
        assert_eq!(hub.requests().len(), trusted, "{unknown:?}");
    }
}

/// A server of unknown identity is trusted only as long as no identity was ever known.
#[test]
fn server_with_lost_identity_is_not_trusted() {
    // Q7
    for (known, votes) in [(false, 3), (true, 2)] {
        let mut hub = Hub::new(3, |c| c.unknown_age(UnknownAge::Trust));
        hub.up(0, 0, "a");
        hub.up(0, 1, "b");
        hub.up_with(0, 2, Some(&if known { Ok(ServerInfo::new("c", HOUR)) } else { Err(refused()) }));
        hub.up_with(1, 2, Some(&Err(refused())));
        hub.acquire(2, &Acquire::new("x"));
        assert_eq!(hub.requests().len(), votes);
    }
}

/// Each later connection without an identity may lead to a server that has just restarted.
#[test]
fn each_reconnect_without_lost_identity_counts_as_restart() {
    // Q7
    let mut hub = Hub::quorum(|c| c.unknown_age(UnknownAge::Trust).quarantine(Duration::from_secs(10)));
    hub.up_with(1_000, 2, Some(&Err(refused())));
    hub.up_with(9_000, 2, Some(&Err(refused())));
    for (at, recently_restarted) in [(11_001, true), (18_999, true), (19_000, false)] {
        assert_eq!(hub.answers(at)[2] == Answer::RecentlyRestarted, recently_restarted, "at {at} ms");
    }
}

/// The server's clock jumps during a reconnect. The quarantine follows the client's clock.
#[test]
fn quarantine_of_known_server_uses_client_clock() {
    // Q7
    for uptime in [0, 2, 3_600] {
        let mut hub = Hub::new(3, |c| c.quarantine(Duration::from_secs(10)));
        hub.up(0, 0, "a");
        hub.up(0, 1, "b");
        hub.up_with(0, 2, Some(&Ok(ServerInfo::new("c", Duration::from_secs(2)))));
        hub.up_with(5, 2, Some(&Ok(ServerInfo::new("c", Duration::from_secs(uptime)))));
        for (at, recently_restarted) in [(8_999, true), (9_000, false)] {
            assert_eq!(hub.answers(at)[2] == Answer::RecentlyRestarted, recently_restarted, "{uptime} s, at {at} ms");
        }
    }
}
