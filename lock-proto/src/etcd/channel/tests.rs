#![allow(clippy::unwrap_used, reason = "tests")]

mod batch;
mod credentials;
mod hostile;
mod idle;
mod late;
mod login;
mod members;
mod random;
mod streams;
mod watch;

use super::*;
use crate::etcd::message::{
    AuthenticateResponse, KeyValue, LeaseGrantResponse, LeaseKeepAliveResponse, RangeResponse, ResponseHeader,
    WatchRequestUnion, WatchResponse,
};
use crate::etcd::request::Reply;
use crate::etcd::request::{Found, LeaseId, Refusal};
use crate::etcd::rpc::{Code, Rpc};
use crate::etcd::url::Endpoint;
use crate::lock::{Backoff, Cause};
use crate::url::Login;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec;
use alloc::vec::Vec;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A channel with its clock and its host.
struct ChannelRig {
    channel: Channel,
    now: Instant,
    serial: u64,
}

fn config(endpoints: u16) -> ChannelConfig {
    ChannelConfig {
        endpoints: (1..=endpoints).map(|n| Endpoint::parse(&format!("h{n}")).unwrap()).collect(),
        sync_members: None,
        login: Login::default(),
        request_credentials: false,
        connect_timeout: 2 * SECOND,
        idle_timeout: None,
        request_timeout: SECOND,
        watch_quiet: 10 * SECOND,
        reconnect: Backoff::exponential(10 * MS, SECOND),
        limit: 1000,
    }
}

fn lease(id: u64) -> LeaseId {
    LeaseId::from_bits(id)
}

fn grant(id: u64) -> Request {
    Request::Grant { lease: lease(id), ttl: 10 }
}

fn granted(id: u64) -> Result<RpcReply, Status> {
    let header = Some(ResponseHeader { member_id: 1, revision: 1 });
    Ok(RpcReply::Grant(LeaseGrantResponse { header, id: lease(id).get(), ttl: 10 }))
}

fn status(code: Code, words: &str) -> Status {
    Status::new(code, words)
}

const LEASE: Reply = Reply::Done(Found::Lease { ttl: 10 });

impl ChannelRig {
    fn new(endpoints: u16) -> Self {
        Self::with(config(endpoints))
    }

    fn with(config: ChannelConfig) -> Self {
        Self { channel: Channel::new(config, 42), now: Instant::from_millis(1000), serial: 0 }
    }

    /// Opens a connection and completes a request on it.
    fn up(endpoints: u16) -> (Self, ConnId) {
        Self::up_with(config(endpoints))
    }

    fn up_with(config: ChannelConfig) -> (Self, ConnId) {
        let mut rig = Self::with(config);
        let call = rig.send(grant(1));
        let conn = rig.connected();
        let rpc = rig.call();
        rig.answer(rpc, granted(1));
        assert_eq!(rig.notifications(), [ChannelOutput::Reply { call, reply: LEASE }]);
        (rig, conn)
    }

    fn send(&mut self, request: Request) -> CallId {
        self.send_for(request, SECOND)
    }

    fn send_for(&mut self, request: Request, timeout: Duration) -> CallId {
        self.serial += 1;
        let call = CallId::new(NodeId::new(0), self.serial);
        self.channel.send(self.now, call, request, timeout);
        call
    }

    /// Makes a call that the server answers after `takes`.
    #[track_caller]
    fn answered_after(&mut self, takes: Duration) {
        let call = self.send(grant(1));
        let rpc = self.call();
        self.pass(takes);
        self.answer(rpc, granted(1));
        assert_eq!(self.all(), [ChannelOutput::Reply { call, reply: LEASE }]);
    }

    fn all(&mut self) -> Vec<ChannelOutput> {
        core::iter::from_fn(|| self.channel.poll_output()).collect()
    }

    fn notifications(&mut self) -> Vec<ChannelOutput> {
        core::iter::from_fn(|| self.channel.poll_notification()).collect()
    }

    fn requests(&mut self) -> Vec<Output> {
        core::iter::from_fn(|| self.channel.poll_request()).collect()
    }

    fn connecting(&mut self) -> ConnId {
        match self.channel.poll_output() {
            Some(ChannelOutput::Do(Output::Connect { node, conn, .. })) if node == conn.node() => conn,
            other => panic!("no connect: {other:?}"),
        }
    }

    fn connected(&mut self) -> ConnId {
        let conn = self.connecting();
        self.channel.handle_connected(self.now, conn);
        conn
    }

    fn call(&mut self) -> RpcId {
        match self.channel.poll_output() {
            Some(ChannelOutput::Do(Output::Call { rpc, .. })) => rpc,
            other => panic!("no call: {other:?}"),
        }
    }

    fn stream(&mut self, kind: StreamKind) -> StreamId {
        match self.channel.poll_output() {
            Some(ChannelOutput::Do(Output::Open { stream, .. })) if stream.kind() == kind => stream,
            other => panic!("no stream: {other:?}"),
        }
    }

    fn answer(&mut self, rpc: RpcId, result: Result<RpcReply, Status>) {
        self.channel.handle_reply(self.now, rpc, result);
    }

    fn fail(&mut self, rpc: RpcId, code: Code, words: &str) {
        self.answer(rpc, Err(status(code, words)));
    }

    fn end(&mut self, stream: StreamId, code: Code, words: &str) {
        self.channel.handle_stream_ended(self.now, stream, status(code, words));
    }

    fn pass(&mut self, by: Duration) {
        self.now = self.now + by;
        self.channel.handle_timeout(self.now);
    }

    fn until_due(&mut self) {
        let due = self.channel.next_deadline().unwrap();
        self.pass(due.since(self.now));
    }
}

fn unknown(call: CallId, fault: Fault) -> ChannelOutput {
    ChannelOutput::Reply { call, reply: Reply::Unknown(fault.into()) }
}

fn not_sent(call: CallId, fault: Fault) -> ChannelOutput {
    ChannelOutput::Reply { call, reply: Reply::NotSent(fault.into()) }
}

/// A connection that failed for this reason is closed.
fn disconnect_for(conn: ConnId, why: impl Into<Cause>) -> ChannelOutput {
    ChannelOutput::Do(Output::Disconnect { conn, why: Some(why.into()) })
}

/// Returns true if this connection is closed because it failed.
fn is_failure(output: &ChannelOutput, conn: ConnId) -> bool {
    matches!(output, ChannelOutput::Do(Output::Disconnect { conn: own, why: Some(_) }) if *own == conn)
}

/// A connection that nothing needs is closed.
fn disconnect(conn: ConnId) -> ChannelOutput {
    ChannelOutput::Do(Output::Disconnect { conn, why: None })
}

#[test]
fn connection_is_opened_on_demand() {
    let mut rig = ChannelRig::new(1);
    assert_eq!((rig.all().len(), rig.channel.next_deadline()), (0, None));
    let (first, second) = (rig.send(grant(1)), rig.send(grant(2)));
    let conn = rig.connecting();
    assert_eq!(rig.all(), []);
    rig.channel.handle_connected(rig.now, conn);
    let (a, b) = (rig.call(), rig.call());
    assert!(a != b && a.conn() == conn && rig.all().is_empty());
    // Answers come in any order.
    rig.answer(b, granted(2));
    rig.answer(a, Err(status(Code::FailedPrecondition, "etcdserver: lease already exists")));
    let exists = Reply::Refused(Refusal::LeaseExists);
    assert_eq!(
        rig.all(),
        [ChannelOutput::Reply { call: second, reply: LEASE }, ChannelOutput::Reply { call: first, reply: exists }]
    );
    assert_eq!(rig.channel.next_deadline(), None, "a quiet connection costs nothing");
}

#[test]
fn call_counts_as_sent_once_polled() {
    // M8
    let (mut rig, conn) = ChannelRig::up(2);
    let (sent, queued) = (rig.send(grant(2)), rig.send(grant(3)));
    rig.call();
    rig.channel.handle_disconnected(rig.now, conn, Fault::Reset);
    assert_eq!(rig.channel.poll_output(), Some(unknown(sent, Fault::Reset)));
    // The second request has not left yet, so it uses the next connection.
    let next = rig.connected();
    assert!(next.node() != conn.node());
    let rpc = rig.call();
    rig.answer(rpc, granted(3));
    assert_eq!(rig.all(), [ChannelOutput::Reply { call: queued, reply: LEASE }]);
}

#[test]
fn silence_closes_connection_and_settles_requests_in_flight() {
    // E9
    let (mut rig, conn) = ChannelRig::up(3);
    let first = rig.send(grant(2));
    assert_eq!(rig.requests().len(), 1);
    rig.pass(400 * MS);
    let second = rig.send_for(grant(3), 100 * MS);
    assert_eq!(rig.requests().len(), 1);
    assert_eq!(rig.channel.next_deadline_reason().map(|(_, why)| why), Some("something in flight"));
    rig.pass(599 * MS);
    assert_eq!(rig.all(), []);
    rig.until_due();
    assert_eq!(
        rig.all(),
        [disconnect_for(conn, Fault::TimedOut), unknown(first, Fault::TimedOut), unknown(second, Fault::TimedOut)]
    );
    assert_eq!(rig.channel.next_deadline(), None, "nobody wants a connection");
    rig.send(grant(4));
    assert!(rig.connecting().node() != conn.node());
}

/// A busy server is not treated as hung: sending everything again would make it busier.
#[test]
fn burst_is_limited_to_max_in_flight() {
    // E9
    const MOST: usize = calls::MAX_IN_FLIGHT;
    let (mut rig, conn) = ChannelRig::up(2);
    let calls: Vec<CallId> = (0..2 * MOST + 10).map(|_| rig.send(grant(2))).collect();
    let mut portion = |calls: &[CallId], due: Vec<ChannelOutput>| {
        let requests = rig.requests();
        assert_eq!(requests.len(), MOST);
        assert!(rig.channel.next_deadline().unwrap() > rig.now, "nothing more to be polled for now");
        // All replies are slow, but within the timeout.
        rig.pass(900 * MS);
        assert_eq!(rig.notifications(), due);
        for request in requests {
            let Output::Call { rpc, .. } = request else { panic!("{request:?}") };
            rig.answer(rpc, granted(2));
        }
        let answered = calls.iter().map(|call| ChannelOutput::Reply { call: *call, reply: LEASE });
        assert_eq!(rig.notifications(), answered.collect::<Vec<_>>());
        assert_eq!(rig.channel.current(), Some(conn));
    };
    let (first, rest) = calls.split_at(MOST);
    let (second, last) = rest.split_at(MOST);
    portion(first, Vec::new());
    portion(second, last.iter().map(|call| not_sent(*call, Fault::TimedOut)).collect());
    assert_eq!((rig.all().len(), rig.channel.next_deadline()), (0, None));
}

#[test]
fn unsent_request_stays_queued_until_its_timeout() {
    let mut rig = ChannelRig::new(1);
    let short = rig.send_for(grant(1), 5 * MS);
    let long = rig.send_for(grant(2), 3 * SECOND);
    let conn = rig.connecting();
    rig.pass(5 * MS);
    assert_eq!(rig.all(), [not_sent(short, Fault::TimedOut)]);
    rig.channel.handle_disconnected(rig.now, conn, Fault::Refused);
    assert_eq!(rig.all(), []);
    let last = rig.send_for(grant(3), 4 * MS);
    rig.pass(4 * MS);
    // The short timeout has shortened the backoff, which left time for an attempt.
    let conn = match rig.all()[..] {
        [ref reply, ChannelOutput::Do(Output::Connect { conn, .. })] if *reply == not_sent(last, Fault::Refused) => {
            conn
        }
        ref other => panic!("{other:?}"),
    };
    rig.channel.handle_connected(rig.now, conn);
    let rpc = rig.call();
    rig.answer(rpc, granted(2));
    assert_eq!(rig.all(), [ChannelOutput::Reply { call: long, reply: LEASE }]);
}

#[test]
fn endpoints_are_tried_round_robin_with_backoff_after_first_round() {
    // E9
    let mut rig = ChannelRig::new(3);
    rig.send_for(grant(1), 3600 * SECOND);
    let (mut nodes, mut pauses) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let before = rig.now;
        if rig.channel.current().is_none() {
            rig.until_due();
        }
        pauses.push(rig.now.since(before));
        let conn = rig.connecting();
        nodes.push(conn.node().index());
        rig.channel.handle_disconnected(rig.now, conn, Fault::Refused);
    }
    assert!(nodes.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 3), "{nodes:?}");
    assert_eq!(pauses[..3], [Duration::ZERO; 3], "the first round has none");
    for (n, pause) in pauses[3..].iter().enumerate() {
        let full = (10 * MS * (1 << n)).min(SECOND);
        assert!(*pause <= full && *pause > full * 3 / 4 - MS, "{n}: {pause:?}");
    }
    // Other seeds start at other endpoints.
    let starts: alloc::collections::BTreeSet<u16> =
        (0..20).map(|seed| Channel::new(config(3), seed).state.members.node().index() as u16).collect();
    assert_eq!(starts.len(), 3);
}

#[test]
fn unavailable_error_switches_endpoint_and_definite_error_does_not() {
    // E9
    let (mut rig, conn) = ChannelRig::up(2);
    let call = rig.send(grant(2));
    let rpc = rig.call();
    rig.fail(rpc, Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
    let error = ServerError { class: ErrorClass::Transient, text: "etcdserver: mvcc: database space exceeded".into() };
    assert_eq!(rig.all(), [ChannelOutput::Reply { call, reply: Reply::Refused(Refusal::Error(error)) }]);
    let call = rig.send(grant(2));
    let rpc = rig.call();
    rig.fail(rpc, Code::Unknown, "something");
    let outputs = rig.all();
    assert!(matches!(outputs[..], [ChannelOutput::Reply { call: c, reply: Reply::Unknown(_) }] if c == call));
    let (call, other) = (rig.send(grant(2)), rig.send(grant(3)));
    let rpc = rig.call();
    rig.call();
    rig.fail(rpc, Code::Unavailable, "etcdserver: no leader");
    let outputs = rig.all();
    assert!(
        matches!(&outputs[..], [
            ChannelOutput::Reply { call: a, reply: Reply::Unknown(_) },
            ChannelOutput::Do(Output::Disconnect { conn: c, why: Some(Cause::Server(_)) }),
            ChannelOutput::Reply { call: b, reply: Reply::Unknown(Cause::Server(_)) },
        ] if *a == call && *b == other && *c == conn),
        "{outputs:?}"
    );
    rig.send(grant(4));
    assert!(rig.connecting().node() != conn.node());
}

#[test]
fn stale_inputs_are_dropped() {
    // M6
    let (mut rig, old) = ChannelRig::up(1);
    let call = rig.send(grant(2));
    let rpc = rig.call();
    rig.channel.handle_disconnected(rig.now, old, Fault::Closed);
    assert_eq!(rig.all(), [unknown(call, Fault::Closed)]);
    let call = rig.send(grant(2));
    rig.until_due();
    let conn = rig.connecting();
    let before = rig.channel.clone();
    let stream = StreamId { conn: old, kind: StreamKind::Watch, serial: 1 };
    rig.channel.handle_connected(rig.now, old);
    rig.channel.handle_disconnected(rig.now, old, Fault::Closed);
    rig.answer(rpc, granted(2));
    rig.end(stream, Code::Unavailable, "etcdserver: no leader");
    rig.channel.handle_message(rig.now, stream, StreamReceived::Watch(WatchResponse::default()));
    assert_eq!(rig.channel, before);
    rig.channel.handle_connected(rig.now, conn);
    let new = rig.call();
    rig.answer(rpc, granted(2));
    rig.channel.handle_connected(rig.now, conn);
    assert_eq!(rig.all(), []);
    rig.answer(new, granted(2));
    rig.answer(new, granted(2));
    assert_eq!(rig.all(), [ChannelOutput::Reply { call, reply: LEASE }], "once");
}

/// For every kind of request.
// M3
#[test]
fn queued_output_is_due_now() {
    // M3
    let queued = |rig: &ChannelRig| rig.channel.next_deadline_reason() == Some((rig.now, "output is queued"));
    let mut rig = ChannelRig::new(1);
    rig.send(grant(1));
    assert!(queued(&rig), "a connection is to be opened");
    let requests: [fn(&mut ChannelRig); 3] = [
        |rig| {
            rig.send(grant(2));
        },
        |rig| {
            rig.send(Request::KeepAlive { lease: lease(1), ttl: 10 * SECOND });
        },
        |rig| rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false),
    ];
    for request in requests {
        let (mut rig, _) = ChannelRig::up(1);
        assert!(!queued(&rig));
        request(&mut rig);
        assert!(queued(&rig));
        rig.all();
        assert!(!queued(&rig));
    }
}

#[test]
fn close_settles_all_requests_and_next_request_reconnects() {
    let (mut rig, conn) = ChannelRig::up(1);
    let (sent, queued) = (rig.send(grant(2)), rig.send(grant(3)));
    rig.call();
    rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
    rig.channel.close(rig.now);
    assert_eq!(rig.all(), [disconnect(conn), unknown(sent, Fault::NotNeeded), not_sent(queued, Fault::NotNeeded)]);
    assert_eq!((rig.channel.next_deadline(), rig.channel.current()), (None, None));
    rig.send(grant(4));
    assert!(rig.connecting() != conn);
}

#[test]
fn requests_and_watches_beyond_limit_are_rejected() {
    let mut rig = ChannelRig::with(ChannelConfig { limit: 4, ..config(1) });
    rig.send(grant(1));
    rig.connected();
    rig.call();
    // Requests in flight count too.
    rig.send(grant(2));
    rig.send(Request::KeepAlive { lease: lease(1), ttl: 10 * SECOND });
    rig.send(Request::KeepAlive { lease: lease(2), ttl: 10 * SECOND });
    let fifth = rig.send(grant(3));
    assert_eq!(rig.notifications(), [not_sent(fifth, Fault::Backlog)]);
    for n in 1..=5 {
        rig.channel.watch(rig.now, WatchId::new(n), "k".into(), Bytes::new(), false);
    }
    let outputs = rig.notifications();
    assert!(matches!(&outputs[..], [ChannelOutput::WatchRefused { watch, error }]
        if *watch == WatchId::new(5) && error.class == ErrorClass::Transient));
}

#[test]
fn equal_inputs_give_equal_channels_and_debug_hides_password() {
    let run = || {
        let login = Login::new("app", "sesame");
        let mut rig = ChannelRig::with(ChannelConfig { login, ..config(3) });
        rig.send(grant(1));
        rig.channel.watch(rig.now, WatchId::new(1), "k".into(), Bytes::new(), false);
        let conn = rig.connected();
        let shown = format!("{:?}", rig.channel);
        assert!(shown.contains("Authenticate") && !shown.contains("sesame"), "{shown}");
        rig.channel.handle_disconnected(rig.now, conn, Fault::Reset);
        rig.channel
    };
    assert_eq!(run(), run());
}
