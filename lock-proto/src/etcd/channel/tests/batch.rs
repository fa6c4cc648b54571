//! Batching of writes.
// E11

#![allow(clippy::wildcard_enum_match_arm, reason = "what comes unexpected fails the test")]

use super::*;
use crate::etcd::message::{
    Compare, Op, OpResponse, PutResponse, RangeResponse, RequestOp, ResponseOp, TxnRequest, TxnResponse,
};
use crate::etcd::request::{Queue, SeenRevisions};

pub(super) fn create(name: &str) -> Request {
    let (queue, value) = (Queue::new(b"", name.as_bytes()), Bytes::new());
    Request::Create { queue, lease: lease(7), value, alone: false, expects: None, long: false }
}

fn delete(name: &str) -> Request {
    Request::Delete { queue: Queue::new(b"", name.as_bytes()), lease: lease(7), modified: 3 }
}

fn txn(request: &Request) -> TxnRequest {
    match request.rpc() {
        Some(Rpc::Txn(txn)) => txn,
        other => panic!("no transaction: {other:?}"),
    }
}

const HEADER: Option<ResponseHeader> = Some(ResponseHeader { member_id: 1, revision: 9 });

/// The server's reply to a create that put its key.
fn created(header: Option<ResponseHeader>) -> TxnResponse {
    let put = OpResponse::Put(PutResponse { header: None, ..PutResponse::default() });
    let range = OpResponse::Range(RangeResponse::default());
    let responses = [put, range].map(|response| ResponseOp { response: Some(response) }).to_vec();
    TxnResponse { header, succeeded: true, responses }
}

fn together(inner: impl IntoIterator<Item = TxnResponse>) -> Result<RpcReply, Status> {
    let inner = inner.into_iter().map(|inner| ResponseOp { response: Some(OpResponse::Txn(inner)) });
    Ok(RpcReply::Txn(TxnResponse { header: HEADER, succeeded: true, responses: inner.collect() }))
}

/// The server's reply to creates that put their keys, alone or batched.
pub(super) fn done(request: &TxnRequest) -> RpcReply {
    match size(request) {
        1 => RpcReply::Txn(created(HEADER)),
        count => together(inner(count)).unwrap(),
    }
}

fn inner(count: usize) -> impl Iterator<Item = TxnResponse> {
    core::iter::repeat_n(created(Some(ResponseHeader::default())), count)
}

fn taken(call: CallId) -> ChannelOutput {
    let own = Some(SeenRevisions { created: 9, modified: 9 });
    let found = Found::Queue {
        revision: 9,
        done: true,
        own,
        older: None,
        rest: Vec::new(),
        all: true,
        others: false,
        long: false,
    };
    ChannelOutput::Reply { call, reply: Reply::Done(found) }
}

fn size(request: &TxnRequest) -> usize {
    if request.compare.is_empty() { request.success.len() } else { 1 }
}

impl ChannelRig {
    fn answer_all(&mut self) {
        while let Some(output) = self.channel.poll_output() {
            if let ChannelOutput::Do(Output::Call { rpc, request: Rpc::Txn(request), .. }) = output {
                self.answer(rpc, Ok(done(&request)));
            }
        }
    }

    fn write(&mut self, name: &str) -> CallId {
        self.send(create(name))
    }

    fn write_many(&mut self, count: usize) -> Vec<CallId> {
        (0..count).map(|n| self.write(&format!("{n}"))).collect()
    }

    fn txn(&mut self) -> (RpcId, TxnRequest) {
        match self.channel.poll_output() {
            Some(ChannelOutput::Do(Output::Call { rpc, request: Rpc::Txn(txn), .. })) => (rpc, txn),
            other => panic!("no transaction: {other:?}"),
        }
    }

    fn batch(&mut self, requests: &[Request]) -> RpcId {
        let (rpc, outer) = self.txn();
        let all: Vec<_> = requests.iter().map(txn).collect();
        let op = |inner: &TxnRequest| RequestOp { request: Some(Op::Txn(inner.clone())) };
        assert_eq!(outer.success, all.iter().map(op).collect::<Vec<_>>());
        let is_write = |op: &&RequestOp| matches!(op.request, Some(Op::Put(_) | Op::Delete(_)));
        let writes = all.iter().flat_map(|inner| inner.success.iter().filter(is_write).cloned());
        assert_eq!(outer.failure, writes.collect::<Vec<_>>(), "what permissions and space are checked for");
        assert_eq!(outer.compare, Vec::<Compare>::new(), "what is checked only is never done");
        rpc
    }

    /// With two write calls in flight, so that later writes are batched.
    fn busy() -> (Self, [(RpcId, CallId); 2]) {
        let (mut rig, _) = Self::up(1);
        let two = ["x", "y"].map(|name| {
            let call = rig.write(name);
            let (rpc, request) = rig.txn();
            assert_eq!(request, txn(&create(name)), "alone it is what it always was");
            (rpc, call)
        });
        (rig, two)
    }

    /// With a batch for the names `0`, `1` and so on in flight.
    fn many(count: usize) -> (Self, RpcId, Vec<CallId>) {
        let (mut rig, _) = Self::up(2);
        let calls = rig.write_many(count);
        let requests: Vec<_> = (0..count).map(|n| create(&format!("{n}"))).collect();
        let rpc = rig.batch(&requests);
        (rig, rpc, calls)
    }
}

#[test]
fn batched_writes_are_answered_individually() {
    // E11
    let (mut rig, [(first, x), (second, y)]) = ChannelRig::busy();
    let calls = [create("a"), delete("b"), create("c")].map(|request| rig.send(request));
    assert_eq!(rig.all(), [], "they gather");
    rig.answer(first, Ok(RpcReply::Txn(created(HEADER))));
    assert_eq!(rig.notifications(), [taken(x)]);
    let rpc = rig.batch(&[create("a"), delete("b"), create("c")]);
    assert_eq!(rig.all(), []);
    let gone = TxnResponse { header: Some(ResponseHeader::default()), succeeded: true, responses: Vec::new() };
    let mut answers: Vec<_> = inner(2).collect();
    answers.insert(1, gone);
    rig.answer(rpc, together(answers));
    let deleted = Found::Queue {
        revision: 9,
        done: true,
        own: None,
        older: None,
        rest: Vec::new(),
        all: false,
        others: false,
        long: false,
    };
    let deleted = ChannelOutput::Reply { call: calls[1], reply: Reply::Done(deleted) };
    assert_eq!(rig.all(), [taken(calls[0]), deleted, taken(calls[2])]);
    rig.answer(second, Ok(RpcReply::Txn(created(HEADER))));
    assert_eq!(rig.all(), [taken(y)]);
}

#[test]
fn only_writes_are_delayed_for_batching() {
    // E11
    let (mut rig, _) = ChannelRig::busy();
    rig.write("a");
    let queue = Queue::new(b"", b"b");
    for request in [
        grant(3),
        Request::Revoke { lease: lease(3) },
        Request::First { queue: queue.clone() },
        Request::Look { queue, lease: lease(7), before: None, ahead: None },
    ] {
        rig.send(request.clone());
        match rig.channel.poll_output() {
            Some(ChannelOutput::Do(Output::Call { request: rpc, .. })) => assert_eq!(Some(rpc), request.rpc()),
            other => panic!("no call: {other:?}"),
        }
    }
    assert_eq!(rig.all(), []);
}

#[test]
fn write_waits_for_batch_at_most_two_milliseconds() {
    // E11
    let (mut rig, _) = ChannelRig::busy();
    rig.write("a");
    rig.pass(MS);
    rig.write("b");
    assert_eq!(rig.all(), []);
    assert_eq!(rig.channel.next_deadline_reason(), Some((rig.now + MS, "writes that gather")));
    rig.until_due();
    assert_eq!(rig.channel.next_deadline(), Some(rig.now));
    rig.batch(&[create("a"), create("b")]);
    rig.write("c");
    assert_eq!(rig.all(), [], "the next ones gather anew");
}

/// Reads are in flight, with room for two more requests.
#[test]
fn batch_fits_in_flight_limit() {
    // E11
    let (mut rig, _) = ChannelRig::busy();
    for _ in 0..calls::MAX_IN_FLIGHT - 4 {
        rig.send(Request::First { queue: Queue::new(b"", b"q") });
    }
    assert_eq!(rig.all().len(), calls::MAX_IN_FLIGHT - 4);
    rig.write_many(3);
    rig.until_due();
    rig.batch(&[create("0"), create("1")]);
    assert_eq!(rig.all(), []);
}

#[test]
fn writes_to_same_or_nested_queue_keep_order_in_separate_batches() {
    // E11
    let (mut rig, [(first, _), (second, _)]) = ChannelRig::busy();
    for request in [create("a"), create("a/b"), delete("a"), create("ab"), create("c"), delete("c/d"), delete("a")] {
        rig.send(request);
    }
    rig.answer(first, Ok(RpcReply::Txn(created(HEADER))));
    rig.notifications();
    rig.batch(&[create("a"), create("ab"), create("c")]);
    assert_eq!(rig.all(), []);
    rig.answer(second, Ok(RpcReply::Txn(created(HEADER))));
    rig.notifications();
    rig.batch(&[create("a/b"), delete("c/d")]);
    for write in 0..2 {
        rig.until_due();
        let (_, request) = rig.txn();
        assert_eq!(request, txn(&delete("a")), "{write}");
    }
}

#[test]
fn batch_is_limited_by_count_and_value_size() {
    // E11
    let (mut rig, _) = ChannelRig::up(1);
    rig.write_many(300);
    let mut sent = Vec::new();
    for output in rig.all() {
        let ChannelOutput::Do(Output::Call { rpc, request: Rpc::Txn(outer), .. }) = output else {
            panic!("{output:?}")
        };
        sent.push((rpc, size(&outer)));
    }
    assert_eq!(sent.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [32; 4], "and 128 in all");
    rig.answer(sent[0].0, together(inner(32)));
    assert_eq!(rig.notifications().len(), 32);
    assert_eq!(size(&rig.txn().1), 32);
    // Large values limit the size of a batch.
    let (mut rig, _) = ChannelRig::up(1);
    for n in 0..8 {
        let (queue, value) = (Queue::new(b"", format!("{n}").as_bytes()), vec![b'v'; 20 << 10].into());
        rig.send(Request::Create { queue, lease: lease(7), value, alone: false, expects: None, long: false });
    }
    assert_eq!([3, 3].map(|_| size(&rig.txn().1)), [3, 3]);
}

#[test]
fn rejected_batch_is_resent_as_single_requests() {
    // E11
    for (code, words) in [
        (Code::InvalidArgument, "etcdserver: too many operations in txn request"),
        (Code::NotFound, "etcdserver: requested lease not found"),
        (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
        (Code::InvalidArgument, "etcdserver: user name is empty"),
        (Code::Unimplemented, "no inner transactions here"),
    ] {
        let (mut rig, rpc, calls) = ChannelRig::many(4);
        rig.fail(rpc, code, words);
        assert_eq!(rig.notifications(), [], "nothing is known yet");
        for (n, call) in calls.into_iter().enumerate() {
            let (rpc, request) = rig.txn();
            assert_eq!(request, txn(&create(&format!("{n}"))));
            if n == 2 {
                rig.fail(rpc, code, words);
                assert!(
                    matches!(rig.notifications()[..], [ChannelOutput::Reply { call: c, reply: Reply::Refused(_) }] if c == call)
                );
            } else {
                rig.answer(rpc, Ok(RpcReply::Txn(created(HEADER))));
                assert_eq!(rig.notifications(), [taken(call)]);
            }
        }
        assert_eq!(rig.all(), [], "each once more only");
    }
}

#[test]
fn too_many_operations_error_halves_batches_until_reconnect() {
    // E11
    let (mut rig, mut rpc, _) = ChannelRig::many(9);
    for most in [4, 2, 1] {
        rig.fail(rpc, Code::InvalidArgument, "etcdserver: too many operations in txn request");
        rig.answer_all();
        rig.write_many(9);
        let (next, request) = rig.txn();
        assert_eq!(size(&request), most);
        rpc = next;
    }
    rig.answer_all();
    rig.channel.handle_disconnected(rig.now, rpc.conn(), Fault::Closed);
    rig.notifications();
    rig.write_many(9);
    rig.connected();
    assert_eq!(size(&rig.txn().1), 9);
}

#[test]
fn lease_not_found_error_does_not_shrink_batches() {
    // E11
    let (mut rig, rpc, _) = ChannelRig::many(9);
    rig.fail(rpc, Code::NotFound, "etcdserver: requested lease not found");
    rig.answer_all();
    rig.write_many(9);
    assert_eq!(size(&rig.txn().1), 9);
}

#[test]
fn unknown_batch_result_applies_to_each_request() {
    // E11
    let is_unknown = |outputs: &[ChannelOutput], calls: &[CallId]| {
        let answered = outputs.iter().filter_map(|output| match output {
            ChannelOutput::Reply { call, reply: Reply::Unknown(_) } => Some(*call),
            ChannelOutput::Do(Output::Disconnect { .. } | Output::Connect { .. }) => None,
            other @ (ChannelOutput::Do(_)
            | ChannelOutput::Reply { .. }
            | ChannelOutput::Watching { .. }
            | ChannelOutput::Changed { .. }
            | ChannelOutput::Unsubscribed { .. }
            | ChannelOutput::WatchRefused { .. }) => panic!("{other:?}"),
        });
        assert_eq!(answered.collect::<Vec<_>>(), calls);
    };
    for (code, words) in [
        (Code::Unavailable, "etcdserver: request timed out"),
        (Code::Cancelled, "context canceled"),
        (Code::Unknown, "anything"),
    ] {
        let (mut rig, rpc, calls) = ChannelRig::many(3);
        rig.fail(rpc, code, words);
        is_unknown(&rig.all(), &calls);
    }
    let (mut rig, rpc, calls) = ChannelRig::many(3);
    rig.channel.handle_disconnected(rig.now, rpc.conn(), Fault::Reset);
    is_unknown(&rig.all(), &calls);
    rig.answer(rpc, together(inner(3)));
    assert_eq!(rig.all(), [], "too late");
}

/// Timeouts for queued requests do not apply once they were sent.
#[test]
fn batched_requests_share_timeout_once_sent() {
    // E11
    let (mut rig, _) = ChannelRig::up(1);
    let calls = [("a", 900), ("b", 300), ("c", 600)].map(|(name, ms)| rig.send_for(create(name), ms * MS));
    rig.batch(&["a", "b", "c"].map(create));
    assert_eq!(rig.channel.next_deadline_reason(), Some((rig.now + SECOND, "something in flight")));
    rig.until_due();
    let outputs = rig.notifications();
    assert!(matches!(outputs[0], ChannelOutput::Do(Output::Disconnect { .. })));
    assert_eq!(outputs[1..4], calls.map(|call| unknown(call, Fault::TimedOut)));
}

#[test]
fn writes_with_login_are_not_batched() {
    // E11
    let mut rig = ChannelRig::with(ChannelConfig { login: Login::new("app", "pw"), ..config(1) });
    rig.write_many(20);
    rig.connected();
    let rpc = rig.call();
    let token = AuthenticateResponse { header: None, token: "t".into() };
    rig.answer(rpc, Ok(RpcReply::Authenticate(token)));
    for n in 0..20 {
        assert_eq!(rig.txn().1, txn(&create(&format!("{n}"))), "old servers check inner transactions for nobody");
    }
}

#[test]
fn malformed_batch_replies_are_unknown_and_close_connection() {
    // E11
    let whole = |responses, header, succeeded| Ok(RpcReply::Txn(TxnResponse { header, succeeded, responses }));
    let range = || ResponseOp { response: Some(OpResponse::Range(RangeResponse::default())) };
    let good = || ResponseOp { response: Some(OpResponse::Txn(created(None))) };
    for (answer, done) in [
        (together(inner(2)), 0),
        (together(inner(4)), 0),
        (granted(1), 0),
        (whole(vec![good(), good(), good()], None, true), 0),
        (whole(vec![good(), good(), good()], HEADER, false), 0),
        (whole(vec![good(), range(), good()], HEADER, true), 0),
        (whole(vec![good(), ResponseOp { response: None }, good()], HEADER, true), 0),
        (together([created(None), TxnResponse::default(), created(None)]), 2),
    ] {
        let (mut rig, rpc, calls) = ChannelRig::many(3);
        rig.answer(rpc, answer.clone());
        let outputs = rig.notifications();
        let count = |what: fn(&Reply) -> bool| {
            outputs.iter().filter(|output| matches!(output, ChannelOutput::Reply { reply, .. } if what(reply))).count()
        };
        assert_eq!(count(|reply| matches!(reply, Reply::Done(_))), done, "{answer:?}");
        assert_eq!(count(|reply| matches!(reply, Reply::Unknown(_))), calls.len() - done, "{answer:?}");
        assert!(
            outputs.iter().any(|output| matches!(output, ChannelOutput::Do(Output::Disconnect { .. }))),
            "{answer:?}"
        );
    }
}

#[test]
fn write_that_times_out_is_removed_from_pending_batch() {
    // E11
    let (mut rig, [(first, _), _]) = ChannelRig::busy();
    let short = rig.send_for(create("a"), MS);
    let long = rig.write("b");
    rig.until_due();
    assert_eq!(rig.all(), [not_sent(short, Fault::TimedOut)]);
    rig.answer(first, Ok(RpcReply::Txn(created(HEADER))));
    rig.notifications();
    let (rpc, request) = rig.txn();
    assert_eq!(request, txn(&create("b")));
    rig.answer(rpc, Ok(RpcReply::Txn(created(HEADER))));
    assert_eq!(rig.all(), [taken(long)]);
    rig.write("c");
    rig.write("d");
    let conn = rpc.conn();
    rig.all();
    rig.channel.close(rig.now);
    let outputs = rig.all();
    assert_eq!(outputs[0], disconnect(conn));
    assert_eq!(outputs.len(), 4, "each is answered: {outputs:?}");
}

#[test]
fn unsent_requests_are_answered_in_request_order() {
    let mut rig = ChannelRig::new(1);
    let calls = [
        rig.write("a"),
        rig.send(grant(1)),
        rig.write("b"),
        rig.write("c"),
        rig.send(grant(2)),
        rig.send(grant(3)),
        rig.write("d"),
    ];
    let conn = rig.connecting();
    rig.channel.close(rig.now);
    let outputs = rig.all();
    assert_eq!(
        (&outputs[0], &outputs[1..]),
        (&disconnect(conn), &calls.map(|call| not_sent(call, Fault::NotNeeded))[..])
    );
}

#[test]
fn batch_byte_limit_is_exact() {
    // E11
    for (over, alone) in [(0, false), (1, true)] {
        let (mut rig, [(first, _), _]) = ChannelRig::busy();
        let half = crate::etcd::channel::batch::MAX_BYTES / 2;
        let all = [("a", half), ("b", half + over)].map(|(name, len)| {
            let (queue, value) = (Queue::new(b"", name.as_bytes()), vec![0; len].into());
            Request::Create { queue, lease: lease(7), value, alone: false, expects: None, long: false }
        });
        for request in &all {
            rig.send(request.clone());
        }
        rig.answer(first, Ok(RpcReply::Txn(created(HEADER))));
        rig.notifications();
        let (_, request) = rig.txn();
        assert_eq!(size(&request), if alone { 1 } else { 2 });
    }
}

#[test]
fn queued_requests_are_sent_in_order() {
    // E11
    for write_first in [true, false] {
        let mut rig = ChannelRig::new(1);
        let requests = if write_first { [create("a"), grant(2)] } else { [grant(2), create("a")] };
        for request in &requests {
            rig.send(request.clone());
        }
        rig.connected();
        let sent: Vec<Rpc> = rig
            .requests()
            .into_iter()
            .map(|output| match output {
                Output::Call { request, .. } => request,
                other => panic!("no call: {other:?}"),
            })
            .collect();
        assert_eq!(sent, requests.map(|request| request.rpc().unwrap()));
    }
}

#[test]
fn write_is_sent_at_once_while_only_grants_are_in_flight() {
    // E11
    let (mut rig, _) = ChannelRig::up(1);
    for n in 2..5 {
        rig.send(grant(n));
        rig.call();
    }
    rig.write("a");
    let (_, request) = rig.txn();
    assert_eq!(request, txn(&create("a")), "it leaves at once");
}
