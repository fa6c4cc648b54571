//! The hub alone: the test is the host, and answers the requests itself.

use super::*;
use crate::id::CallId;
use crate::lock::Cause;
use crate::zookeeper::codec::{
    CreateMode, EventType, KeeperState, MultiOp, MultiResult, Names, Op, ReplyBody, Stat, WatcherEvent,
};
use crate::zookeeper::{Locks, LocksOutput, Reply, Request, SessionId, SessionOutput, SessionReport};

/// A host of one hub, on a server on which nobody else contends.
struct HubHost {
    now: Instant,
    locks: Locks,
    session: Option<SessionId>,
    /// How often `Contact` is reported.
    contact_every: Option<Duration>,
    last_contact: Instant,
    /// Requests without a reply.
    waiting: Vec<(CallId, Op)>,
    events: Vec<Event>,
    elections: Vec<OperationEvent>,
    /// The nodes of the queue.
    nodes: Vec<String>,
    requests: usize,
    /// Connections.
    opened: usize,
}

impl HubHost {
    fn new() -> Self {
        let now = Instant::from_millis(1_000);
        let locks = Locks::new(now, Config::parse("zk://h").unwrap(), ClientId::from_bits(1), 7).unwrap();
        Self {
            now,
            locks,
            session: None,
            contact_every: Some(Duration::from_secs(2)),
            last_contact: now,
            waiting: Vec::new(),
            events: Vec::new(),
            elections: Vec::new(),
            nodes: Vec::new(),
            requests: 0,
            opened: 0,
        }
    }

    /// Takes the outputs. Sessions are opened at once.
    fn outputs(&mut self) {
        while let Some(output) = self.locks.poll_output() {
            match output {
                LocksOutput::Store(SessionOutput::Open { session, timeout }) => {
                    self.session = Some(session);
                    self.opened += 1;
                    let up = SessionReport::Up { emitted: self.now, timeout, owner: 1 };
                    self.locks.handle_session(self.now, session, &up);
                }
                LocksOutput::Send { call, request: Request { op, .. }, .. } => {
                    self.requests += 1;
                    assert!(self.requests < 10_000, "requests without a pause: {op:?}");
                    self.waiting.push((call, op));
                }
                LocksOutput::Event { event, .. } => self.events.push(event),
                LocksOutput::Operation { event, .. } => self.elections.push(event),
                LocksOutput::Store(SessionOutput::Quiet { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Answers all requests, also those that follow.
    fn answer(&mut self, reply: impl Fn(&mut Vec<String>, &Op) -> Reply) {
        self.outputs();
        while !self.waiting.is_empty() {
            let (call, op) = self.waiting.remove(0);
            let reply = reply(&mut self.nodes, &op);
            self.locks.handle_reply(self.now, call, &reply);
            self.outputs();
        }
    }

    /// Lets time pass, timer by timer, and answers requests.
    fn pass(&mut self, span: Duration, reply: impl Fn(&mut Vec<String>, &Op) -> Reply) {
        let end = self.now + span;
        self.answer(&reply);
        loop {
            let contact = self.contact_every.map(|every| self.last_contact + every);
            let next = [self.locks.next_deadline(), contact].into_iter().flatten().min();
            let Some(at) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            self.locks.handle_timeout(self.now);
            if let (Some(session), true) = (self.session, contact.is_some_and(|at| at <= self.now)) {
                self.last_contact = self.now;
                self.locks.handle_session(self.now, session, &SessionReport::Contact(self.now));
            }
            self.answer(&reply);
        }
        self.now = end;
    }

    fn acquire(&mut self) -> LockId {
        self.locks.acquire(self.now, &Acquire::new("l")).unwrap()
    }

    fn hold(&mut self) -> LockId {
        let lock = self.acquire();
        self.answer(executed);
        self.locks.claim(self.now, lock).unwrap();
        lock
    }

    fn granted(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Granted(_)))
    }
}

/// The reply of a server that executes the request.
fn executed(nodes: &mut Vec<String>, op: &Op) -> Reply {
    let stat = Stat { czxid: 9, ephemeral_owner: 1, ..Stat::default() };
    Reply::Done(match op {
        Op::Write(MultiOp::Create { path, mode: CreateMode::EphemeralSequential, .. }) => {
            let path = alloc::format!("{path}0000000000");
            nodes.push(path.rsplit_once('/').unwrap().1.into());
            ReplyBody::Created { path: path.into(), stat }
        }
        Op::Write(MultiOp::Delete { path, .. }) => {
            nodes.retain(|name| !path.ends_with(name.as_str()));
            ReplyBody::Empty
        }
        Op::GetChildren { .. } => ReplyBody::Children(nodes.iter().map(String::as_str).collect::<Names>()),
        Op::GetData { .. } => ReplyBody::Data { data: "".into(), stat },
        Op::Multi(checks) => ReplyBody::Multi(checks.iter().map(|_| MultiResult::Checked).collect()),
        other => panic!("{other:?}"),
    })
}

const NOT_SENT: Reply = Reply::NotSent(Cause::Fault(Fault::TimedOut));
const UNKNOWN: Reply = Reply::Unknown(Cause::Fault(Fault::TimedOut));

#[test]
fn requests_that_fail_on_an_open_session_are_repeated_after_pauses() {
    // A host may find that a request has waited for too long, although the session is up.
    let second = Duration::from_secs(1);
    for (name, unsure) in [("not sent", 0), ("unknown", usize::MAX), ("unknown, then not sent", 1)] {
        let mut host = HubHost::new();
        host.acquire();
        let before = core::cell::Cell::new(0);
        let fails = |_: &mut Vec<String>, _: &Op| {
            before.set(before.get() + 1);
            if before.get() <= unsure { UNKNOWN } else { NOT_SENT }
        };
        host.pass(10 * second, fails);
        assert!((10..100).contains(&host.requests) && !host.granted(), "{name}: {}", host.requests);
        host.pass(3 * second, executed);
        assert!(host.granted() && host.nodes.len() == 1, "{name}");
    }
}

#[test]
fn watches_and_deletions_that_fail_on_an_open_session_are_repeated_after_pauses() {
    let second = Duration::from_secs(1);
    for failure in [NOT_SENT, UNKNOWN] {
        let fails = |nodes: &mut Vec<String>, op: &Op| {
            if let Op::Multi(_) = op { executed(nodes, op) } else { failure.clone() }
        };
        let mut host = HubHost::new();
        let lock = host.hold();
        host.requests = 0;
        host.pass(10 * second, fails);
        assert!(host.requests < 10, "{}", host.requests);
        host.locks.release(host.now, lock).unwrap();
        host.requests = 0;
        host.pass(second, fails);
        assert!((2..30).contains(&host.requests) && host.nodes.len() == 1, "{}", host.requests);
        host.pass(3 * second, executed);
        assert_eq!((host.events.last(), host.nodes.len()), (Some(&Event::Released(Release::Released)), 0));
    }
}

#[test]
fn observer_whose_reads_fail_on_an_open_session_reads_again() {
    let second = Duration::from_secs(1);
    let mut host = HubHost::new();
    host.locks.start(host.now, Operation::Observe("l".into())).unwrap();
    host.pass(10 * second, |_, _| NOT_SENT);
    assert!((5..100).contains(&host.requests), "{}", host.requests);
    host.pass(3 * second, executed);
    assert_eq!(host.elections.last(), Some(&OperationEvent::NoLeader));
}

#[test]
fn any_number_of_contacts_keeps_a_lock_and_none_costs_connections() {
    // ZK1
    let minute = Duration::from_secs(60);
    for (ms, least) in [(Some(1), 0), (Some(10), 0), (Some(300), 0), (Some(2_000), 0), (None, 4)] {
        let mut host = HubHost::new();
        host.contact_every = ms.map(Duration::from_millis);
        host.hold();
        let before = host.opened;
        host.pass(minute, executed);
        assert!(!host.events.iter().any(|event| matches!(event, Event::Lost(_))), "{ms:?}");
        let opened = host.opened - before;
        assert!((least..=least * 5).contains(&opened), "{ms:?}: {opened}");
    }
}

/// Regression: each of these events caused a read, though the one in flight would show the change.
#[test]
fn reports_of_changes_cause_one_read_at_a_time() {
    // ZK9
    let mut host = HubHost::new();
    host.nodes.push("other-lock--000000001".into());
    host.acquire();
    host.answer(executed);
    let watched = ["/l/other-lock--000000001".to_string(), alloc::format!("/l/{}", host.nodes[1])];
    host.requests = 0;
    for _ in 0..1_000 {
        for path in &watched {
            let (kind, state) = (EventType::DataChanged, KeeperState::SyncConnected);
            let event = WatcherEvent { kind, state, path: path.as_str().into() };
            host.locks.handle_event(host.now, host.session.unwrap(), &event);
            host.outputs();
        }
    }
    assert_eq!(host.requests, 2);
    // So does the holder.
    host.nodes.remove(0);
    let gone =
        WatcherEvent { kind: EventType::Deleted, state: KeeperState::SyncConnected, path: watched[0].as_str().into() };
    host.locks.handle_event(host.now, host.session.unwrap(), &gone);
    host.answer(executed);
    assert!(host.granted());
    host.requests = 0;
    for _ in 0..1_000 {
        let (kind, state) = (EventType::DataChanged, KeeperState::SyncConnected);
        let event = WatcherEvent { kind, state, path: watched[1].as_str().into() };
        host.locks.handle_event(host.now, host.session.unwrap(), &event);
        host.outputs();
    }
    assert_eq!(host.requests, 1);
}
