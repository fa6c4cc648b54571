//! Members, partitions, crashes, slowness. The rest is tested in lock-tokio/tests/etcd_model.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::*;
use lock_proto::etcd::Code;
use lock_proto::etcd::message::{
    AuthenticateRequest, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, Op, OpResponse, PutRequest,
    RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, WatchRequestUnion, WatchResponse,
};

mod defects;

const CALL: u64 = 1_000;
const WATCH: u64 = 1;
const KEEP: u64 = 2;
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A cluster with one client per member, whose connection has the member's index, and the time.
struct Bench {
    cluster: Cluster,
    now: Instant,
    serial: u64,
}

impl Bench {
    fn new(config: ClusterConfig) -> Self {
        let members = config.members;
        let now = Instant::from_millis(5);
        let mut cluster = Cluster::new(now, config);
        for member in 0..members {
            cluster.handle_connected(now, member, member as u64);
        }
        Self { cluster, now, serial: CALL }
    }

    fn three() -> Self {
        Self::new(ClusterConfig::new(3, 7))
    }

    fn pass(&mut self, time: Duration) -> Vec<ClusterOutput> {
        let end = self.now + time;
        let mut outputs = Vec::new();
        while let Some(at) = self.cluster.next_deadline().filter(|at| *at <= end) {
            assert!(at >= self.now, "a deadline in the past");
            self.now = at;
            self.cluster.handle_timeout(at);
            outputs.extend(core::iter::from_fn(|| self.cluster.poll_output()));
        }
        self.now = end;
        outputs
    }

    fn call(&mut self, conn: u64, request: &Rpc) -> u64 {
        self.serial += 1;
        self.cluster.handle_call(self.now, conn, self.serial, None, request);
        self.serial
    }

    fn put(&mut self, conn: u64, key: &'static str, lease: i64) -> u64 {
        self.call(conn, &put(key, lease))
    }

    fn open(&mut self, conn: u64, stream: u64, kind: StreamKind) {
        self.cluster.handle_open(self.now, conn, stream, kind, None);
    }

    fn watch(&mut self, conn: u64, key: &'static str, start_revision: i64) {
        let want = WatchCreateRequest { key: key.into(), start_revision, watch_id: 9, ..WatchCreateRequest::default() };
        let message = StreamSend::Watch(WatchRequest { request: Some(WatchRequestUnion::Create(want)) });
        self.cluster.handle_send(self.now, conn, WATCH, &message);
    }

    fn keep_alive(&mut self, conn: u64, id: i64) {
        let message = StreamSend::KeepAlive(LeaseKeepAliveRequest { id });
        self.cluster.handle_send(self.now, conn, KEEP, &message);
    }

    fn outputs(&mut self) -> Vec<ClusterOutput> {
        core::iter::from_fn(|| self.cluster.poll_output()).collect()
    }
}

fn put(key: &'static str, lease: i64) -> Rpc {
    let put = Op::Put(PutRequest { key: key.into(), value: "v".into(), lease, ..PutRequest::default() });
    Rpc::Txn(TxnRequest { success: vec![RequestOp { request: Some(put) }], ..TxnRequest::default() })
}

fn range(key: &'static str) -> Rpc {
    Rpc::Range(RangeRequest { key: key.into(), ..RangeRequest::default() })
}

fn replies(outputs: &[ClusterOutput]) -> Vec<(u64, Option<(Code, &str)>)> {
    let mut replies = Vec::new();
    for output in outputs {
        if let ClusterOutput::Reply { rpc, reply, .. } = output {
            let error = reply.as_ref().err();
            replies.push((*rpc, error.map(|status| (status.code, status.message.as_str()))));
        }
    }
    replies
}

fn revisions(outputs: &[ClusterOutput]) -> Vec<i64> {
    let mut revisions = Vec::new();
    for output in outputs {
        if let ClusterOutput::Message { message: StreamReceived::Watch(WatchResponse { events, .. }), .. } = output {
            revisions.extend(events.iter().filter_map(|event| Some(event.kv.as_ref()?.mod_revision)));
        }
    }
    revisions
}

const NO_LEADER: (Code, &str) = (Code::Unavailable, "etcdserver: no leader");
const TIMED_OUT: (Code, &str) = (Code::Unavailable, "etcdserver: request timed out");

#[test]
fn members_share_one_store() {
    let mut b = Bench::three();
    b.put(0, "k", 0);
    b.call(2, &range("k"));
    let outputs = b.outputs();
    let Some(ClusterOutput::Reply { reply: Ok(RpcReply::Range(found)), .. }) = outputs.last() else {
        panic!("{outputs:?}")
    };
    assert_eq!(found.kvs.len(), 1);
    let header = found.header.unwrap();
    assert_eq!((header.revision, header.member_id), (2, b.cluster.members[2].id));
}

/// `EtcdServer.Range` asks the leader for the current index unless the request is serializable.
#[test]
fn isolated_member_answers_serializable_reads_from_its_own_state() {
    let mut b = Bench::three();
    let read = |key: &'static str, revision, serializable| {
        Rpc::Range(RangeRequest { key: key.into(), revision, serializable, ..RangeRequest::default() })
    };
    let found = |outputs: &[ClusterOutput]| match outputs {
        [ClusterOutput::Reply { reply: Ok(RpcReply::Range(found)), .. }] => {
            Some((found.header.unwrap().revision, found.kvs.len()))
        }
        _ => None,
    };
    b.put(0, "k", 0);
    b.cluster.isolate(b.now, 2);
    let delete = Op::Delete(DeleteRangeRequest { key: "k".into(), ..DeleteRangeRequest::default() });
    let delete = vec![RequestOp { request: Some(delete) }];
    b.call(0, &Rpc::Txn(TxnRequest { success: delete, ..TxnRequest::default() }));
    b.put(0, "l", 0);
    b.outputs();
    b.call(2, &read("k", 0, false));
    assert_eq!(b.outputs(), []);
    b.call(2, &read("k", 0, true));
    assert_eq!(found(&b.outputs()), Some((2, 1)), "the key was deleted at revision 3");
    b.call(2, &read("l", 0, true));
    assert_eq!(found(&b.outputs()), Some((2, 0)), "it was created at revision 4");
    b.call(2, &read("k", 3, true));
    let future = "etcdserver: mvcc: required revision is a future revision";
    assert!(matches!(&replies(&b.outputs())[..], [(_, Some((Code::OutOfRange, text)))] if *text == future));
    b.cluster.heal(b.now, 2);
    b.outputs();
    b.call(2, &read("k", 0, true));
    assert_eq!(found(&b.outputs()), Some((4, 0)));
}

#[test]
fn isolated_member_ends_streams_and_times_out_calls() {
    let mut b = Bench::three();
    b.open(1, WATCH, StreamKind::Watch);
    b.watch(1, "k", 0);
    b.outputs();
    b.cluster.isolate(b.now, 1);
    let early = b.put(1, "early", 0);
    let outputs = b.pass(SECOND * 3 + MS * 999);
    assert_eq!(outputs, vec![], "it looks three times before it ends streams");
    let outputs = b.pass(MS);
    let ended = ClusterOutput::Ended { conn: 1, stream: WATCH, status: Status::new(NO_LEADER.0, NO_LEADER.1) };
    assert_eq!(outputs, vec![ended]);
    let (late, read) = (b.put(1, "late", 0), b.call(1, &range("k")));
    b.open(1, WATCH, StreamKind::Watch);
    assert!(matches!(&b.outputs()[..], [ClusterOutput::Ended { .. }]));
    let outputs = b.pass(SECOND * 8);
    let late = (late, Some((Code::Unknown, "context deadline exceeded")));
    assert_eq!(replies(&outputs), vec![(early, Some(TIMED_OUT)), late, (read, Some(TIMED_OUT))]);
    let put = b.put(0, "k", 0);
    assert_eq!(replies(&b.outputs()), vec![(put, None)]);
    assert!(b.cluster.get("late").is_none(), "what was never handed on is never applied");
}

#[test]
fn watch_on_isolated_member_misses_no_event() {
    for compact in [false, true] {
        let mut b = Bench::three();
        b.open(1, WATCH, StreamKind::Watch);
        b.watch(1, "k", 0);
        b.outputs();
        b.cluster.isolate(b.now, 1);
        b.put(0, "k", 0);
        b.put(0, "other", 0);
        b.put(0, "k", 0);
        assert!(revisions(&b.outputs()).is_empty(), "it hears nothing");
        // A watch that opens there starts at the member's revision, not at the cluster's.
        b.watch(1, "k", 0);
        if compact {
            b.cluster.compact(b.now, 4).unwrap();
            b.put(0, "k", 0);
        }
        b.pass(MS * 500);
        b.cluster.heal(b.now, 1);
        let expected = if compact { vec![2, 4, 5] } else { vec![2, 4] };
        assert_eq!(revisions(&b.outputs()), expected, "compacted: {compact}");
    }
}

#[test]
fn healed_member_resolves_pending_requests() {
    let mut b = Bench::three();
    b.open(1, KEEP, StreamKind::KeepAlive);
    b.call(1, &Rpc::Grant(LeaseGrantRequest { ttl: 10, id: 5 }));
    b.outputs();
    b.cluster.isolate(b.now, 1);
    b.pass(SECOND * 2);
    b.keep_alive(1, 5);
    let (write, read) = (b.put(1, "k", 0), b.call(1, &range("k")));
    assert_eq!(b.outputs(), vec![]);
    b.cluster.heal(b.now, 1);
    let outputs = b.outputs();
    let changed = (Code::Unavailable, "etcdserver: leader changed");
    assert_eq!(replies(&outputs), vec![(write, None), (read, Some(changed))]);
    assert!(matches!(outputs.last(), Some(ClusterOutput::Message { conn: 1, stream: KEEP, .. })), "{outputs:?}");
}

#[test]
fn new_leader_renews_leases_and_none_expire_meanwhile() {
    let mut b = Bench::three();
    b.call(1, &Rpc::Grant(LeaseGrantRequest { ttl: 2, id: 5 }));
    b.put(1, "k", 5);
    b.outputs();
    b.pass(MS * 1_900);
    let old = b.cluster.leader().unwrap();
    b.cluster.isolate(b.now, old);
    assert_eq!(b.cluster.leader(), None);
    b.pass(MS * 999);
    assert_eq!(b.cluster.leader(), None);
    b.pass(MS);
    assert!(b.cluster.leader().is_some_and(|new| new != old));
    // The TTL of two seconds and the election timeout; then it is found at the next check.
    let lease = b.cluster.leases().remove(0);
    assert_eq!(lease.expires, b.now + SECOND * 3);
    b.pass(SECOND * 3 - MS);
    assert!(b.cluster.get("k").is_some());
    b.pass(MS * 501);
    assert!(b.cluster.get("k").is_none() && b.cluster.leases().is_empty());
}

#[test]
fn leader_change_renews_leases() {
    let mut b = Bench::three();
    b.call(1, &Rpc::Grant(LeaseGrantRequest { ttl: 2, id: 5 }));
    b.outputs();
    b.pass(SECOND);
    let old = b.cluster.leader();
    assert!(b.cluster.change_leader(b.now));
    assert_ne!(b.cluster.leader(), old);
    assert_eq!(b.cluster.leases()[0].expires, b.now + SECOND * 3);
    assert!(!Bench::new(ClusterConfig::new(1, 1)).cluster.change_leader(b.now), "there is nobody else");
}

#[test]
fn expired_lease_is_revoked_late_and_keep_alive_cannot_save_it() {
    let mut b = Bench::new(ClusterConfig::new(1, 1));
    b.open(0, KEEP, StreamKind::KeepAlive);
    b.pass(MS * 200);
    b.call(0, &Rpc::Grant(LeaseGrantRequest { ttl: 2, id: 5 }));
    b.put(0, "k", 5);
    b.outputs();
    b.pass(MS * 2_299);
    assert!(b.cluster.get("k").is_some(), "it is looked for every half second");
    let mut saved = b.cluster.clone();
    b.pass(MS);
    assert!(b.cluster.get("k").is_none());
    // A keep-alive after the expiry is too late, even before the lease is revoked.
    saved.handle_send(b.now.back(MS), 0, KEEP, &StreamSend::KeepAlive(LeaseKeepAliveRequest { id: 5 }));
    let outputs: Vec<_> = core::iter::from_fn(|| saved.poll_output()).collect();
    let [ClusterOutput::Message { message: StreamReceived::KeepAlive(answer), .. }] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!((answer.ttl, saved.keys().len()), (0, 0));
}

#[test]
fn crash_sends_no_replies_and_proposals_may_still_apply() {
    for (proposal_outcome, expected) in [(ProposalOutcome::Applied, 1), (ProposalOutcome::Dropped, 0)] {
        let mut b = Bench::new(ClusterConfig::new(3, 7).proposal_outcome(proposal_outcome));
        b.cluster.slow(b.now, 1, MS * 10, Duration::ZERO);
        b.put(1, "k", 0);
        b.pass(MS * 5);
        b.cluster.crash(b.now, 1);
        assert_eq!(b.pass(SECOND), vec![ClusterOutput::Dropped { conn: 1 }]);
        assert_eq!(b.cluster.keys().len(), expected, "{proposal_outcome:?}");
        // Applied without a reply, for each outcome of proposals.
        b.cluster.slow(b.now, 2, Duration::ZERO, MS * 10);
        b.put(2, "answered too late", 0);
        b.cluster.crash(b.now, 2);
        assert_eq!(b.pass(SECOND), vec![ClusterOutput::Dropped { conn: 2 }]);
        assert!(b.cluster.get("answered too late").is_some());
    }
    let applied = (0..40).filter(|seed| {
        let mut b = Bench::new(ClusterConfig::new(3, *seed));
        b.cluster.slow(b.now, 1, MS * 10, Duration::ZERO);
        b.put(1, "k", 0);
        b.cluster.crash(b.now, 1);
        b.cluster.get("k").is_some()
    });
    assert!((8..32).contains(&applied.count()), "chance decides");
}

#[test]
fn timed_out_proposal_may_apply_later() {
    let mut b = Bench::new(ClusterConfig::new(3, 7).proposal_outcome(ProposalOutcome::Applied));
    b.cluster.lose_quorum(b.now);
    let put = b.put(1, "k", 0);
    assert_eq!(replies(&b.pass(SECOND * 8)), vec![(put, Some(TIMED_OUT))]);
    assert!(b.cluster.get("k").is_none());
    b.cluster.restore_quorum(b.now);
    b.pass(SECOND);
    assert!(b.cluster.get("k").is_some());
}

#[test]
fn two_of_three_members_down_leaves_no_leader() {
    let mut b = Bench::three();
    b.cluster.crash(b.now, 1);
    b.pass(SECOND * 2);
    assert!(b.cluster.leader().is_some());
    b.cluster.crash(b.now, 2);
    b.pass(SECOND * 2);
    assert_eq!(b.cluster.leader(), None);
    b.cluster.handle_connected(b.now, 1, 11);
    assert_eq!(b.outputs(), vec![ClusterOutput::Dropped { conn: 11 }]);
    b.cluster.start(b.now, 1);
    b.cluster.handle_connected(b.now, 1, 12);
    b.open(12, WATCH, StreamKind::Watch);
    assert!(matches!(&b.outputs()[..], [ClusterOutput::Ended { .. }]), "a starting member knows that it has no leader");
    b.pass(SECOND);
    assert!(b.cluster.leader().is_some());
    let put = b.put(12, "k", 0);
    assert_eq!(replies(&b.outputs()), vec![(put, None)]);
}

#[test]
fn stopped_member_sends_pending_replies() {
    let mut b = Bench::three();
    b.cluster.slow(b.now, 1, MS * 10, MS * 10);
    let put = b.put(1, "k", 0);
    b.cluster.stop(b.now, 1);
    let outputs = b.outputs();
    assert_eq!(replies(&outputs), vec![(put, None)]);
    assert_eq!(outputs.last(), Some(&ClusterOutput::Dropped { conn: 1 }));
}

#[test]
fn slow_member_preserves_reply_order() {
    let mut b = Bench::three();
    b.cluster.slow(b.now, 1, MS * 10, MS * 20);
    let first = b.put(1, "k", 0);
    b.pass(MS * 2);
    b.cluster.slow(b.now, 1, Duration::ZERO, Duration::ZERO);
    let second = b.call(1, &range("k"));
    assert_eq!(replies(&b.pass(MS * 7)), vec![]);
    assert_eq!(replies(&b.pass(MS)), vec![(first, None), (second, None)]);
}

#[test]
fn watch_from_past_revision_is_parked() {
    let mut b = Bench::new(ClusterConfig::new(1, 1));
    b.pass(MS * 30);
    b.put(0, "k", 0);
    b.open(0, WATCH, StreamKind::Watch);
    b.watch(0, "k", 2);
    b.put(0, "k", 0);
    assert!(revisions(&b.outputs()).is_empty());
    assert_eq!(b.cluster.parked_count(), 1);
    assert!(revisions(&b.pass(MS * 69)).is_empty());
    assert_eq!(revisions(&b.pass(MS)), vec![2, 3], "100 ms after the start, what has come meanwhile too");
    b.put(0, "k", 0);
    assert_eq!((revisions(&b.outputs()), b.cluster.parked_count()), (vec![4], 0), "now it hears at once");
}

#[test]
fn progress_is_sent_to_idle_watches_that_request_it() {
    let mut b = Bench::new(ClusterConfig::new(1, 1).progress_interval(SECOND));
    b.open(0, WATCH, StreamKind::Watch);
    let want = WatchCreateRequest { key: "k".into(), progress_notify: true, watch_id: 1, ..Default::default() };
    b.cluster.handle_send(
        b.now,
        0,
        WATCH,
        &StreamSend::Watch(WatchRequest { request: Some(WatchRequestUnion::Create(want)) }),
    );
    b.put(0, "other", 0);
    b.outputs();
    let outputs = b.pass(SECOND);
    let [ClusterOutput::Message { message: StreamReceived::Watch(response), .. }] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!((response.watch_id, response.header.unwrap().revision, response.events.len()), (1, 2, 0));
    b.put(0, "k", 0);
    b.outputs();
    assert_eq!(b.pass(SECOND), vec![], "something has arrived");
}

#[test]
fn token_ttl_is_extended_per_member_and_lost_on_restart() {
    let user = User::new("app", "pw").read_write("k");
    let config = ClusterConfig::new(2, 1).user(user).token_ttl(SECOND * 10);
    let mut b = Bench::new(config);
    let login = AuthenticateRequest { name: "app".into(), password: "pw".into() };
    b.call(0, &Rpc::Authenticate(login));
    let outputs = b.outputs();
    let [ClusterOutput::Reply { reply: Ok(RpcReply::Authenticate(login)), .. }] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    let token = login.token.clone();
    let ask = |b: &mut Bench, member: usize| {
        b.cluster.handle_call(b.now, member as u64, 1, Some(&token), &put("k", 0));
        replies(&b.outputs())[0].1.map(|(code, text)| (code, String::from(text)))
    };
    for _ in 0..3 {
        b.pass(SECOND * 6);
        assert_eq!(ask(&mut b, 0), None);
    }
    let invalid = Some((Code::Unauthenticated, "etcdserver: invalid auth token".into()));
    assert_eq!(ask(&mut b, 1), invalid, "the other member never saw it used");
    b.cluster.stop(b.now, 0);
    b.cluster.start(b.now, 0);
    b.pass(SECOND * 2);
    b.outputs();
    b.cluster.handle_connected(b.now, 0, 0);
    assert_eq!(ask(&mut b, 0), invalid, "tokens are not on the disk");
}

/// Regression: a cluster that was served for long remembered every token.
#[test]
fn expired_tokens_are_forgotten() {
    let config = ClusterConfig::new(2, 1).user(User::new("app", "pw").read_write("k")).token_ttl(SECOND * 10);
    let mut b = Bench::new(config);
    for _ in 0..100 {
        b.call(0, &Rpc::Authenticate(AuthenticateRequest { name: "app".into(), password: "pw".into() }));
        b.pass(SECOND);
    }
    assert!((5..15).contains(&b.cluster.logins.len()), "{}", b.cluster.logins.len());
}

#[test]
fn tokens_end_with_their_password() {
    // S11
    let mut b = Bench::new(ClusterConfig::new(1, 1).user(User::new("app", "one").read_write("k")));
    b.cluster.set_password(b.now, "app", "two", true);
    let log_in = |b: &mut Bench, password: &str| {
        b.call(0, &Rpc::Authenticate(AuthenticateRequest { name: "app".into(), password: password.into() }));
        match &b.outputs()[..] {
            [ClusterOutput::Reply { reply: Ok(RpcReply::Authenticate(login)), .. }] => Some(login.token.clone()),
            _ => None,
        }
    };
    let tokens = ["one", "two"].map(|password| log_in(&mut b, password).unwrap());
    b.cluster.set_password(b.now, "app", "one", false);
    assert_eq!(log_in(&mut b, "one"), None);
    let results = tokens.map(|token| {
        b.cluster.handle_call(b.now, 0, 1, Some(&token), &put("k", 0));
        replies(&b.outputs())[0].1.is_none()
    });
    assert_eq!(results, [false, true]);
}

#[test]
fn too_many_requests_refuses_only_proposals() {
    let mut b = Bench::three();
    b.cluster.set(b.now, Condition::TooManyRequests, true);
    let (write, read) = (b.put(0, "k", 0), b.call(0, &range("k")));
    let refused = (Code::ResourceExhausted, "etcdserver: too many requests");
    assert_eq!(replies(&b.outputs()), vec![(write, Some(refused)), (read, None)]);
    b.cluster.set(b.now, Condition::TooManyRequests, false);
    let write = b.put(0, "k", 0);
    assert_eq!(replies(&b.outputs()), vec![(write, None)]);
}

#[test]
fn manual_changes_are_applied_and_watched() {
    let mut b = Bench::three();
    b.open(2, WATCH, StreamKind::Watch);
    b.watch(2, "k", 0);
    b.outputs();
    b.call(0, &Rpc::Grant(LeaseGrantRequest { ttl: 10, id: 5 }));
    b.cluster.put(b.now, "k", "v", 5).unwrap();
    assert_eq!(b.cluster.put(b.now, "k", "v", 6).unwrap_err().code, Code::NotFound);
    assert!(b.cluster.delete(b.now, "k") && !b.cluster.delete(b.now, "k"));
    b.cluster.put(b.now, "k", "v", 5).unwrap();
    assert!(b.cluster.revoke(b.now, 5) && !b.cluster.revoke(b.now, 5));
    assert_eq!(revisions(&b.outputs()), vec![2, 3, 4, 5]);
    assert_eq!(b.cluster.calls()["/etcdserverpb.Lease/LeaseGrant"], 1);
}

#[test]
fn input_for_unknown_connections_and_streams_is_ignored() {
    let mut b = Bench::three();
    let before = b.cluster.clone();
    b.cluster.handle_disconnected(b.now, 77);
    b.cluster.handle_send(b.now, 77, 1, &StreamSend::KeepAlive(LeaseKeepAliveRequest { id: 1 }));
    b.cluster.handle_send(b.now, 0, 1, &StreamSend::KeepAlive(LeaseKeepAliveRequest { id: 1 }));
    b.cluster.handle_close(b.now, 0, 1);
    b.cluster.handle_timeout(Instant::ZERO);
    assert_eq!(b.cluster, before);
    let delete =
        Op::Delete(DeleteRangeRequest { key: "k".into(), range_end: "a".into(), ..DeleteRangeRequest::default() });
    let delete = TxnRequest { success: vec![RequestOp { request: Some(delete) }], ..TxnRequest::default() };
    b.call(77, &Rpc::Txn(delete));
    assert_eq!(b.outputs(), vec![]);
}

#[test]
fn request_sent_before_disconnect_may_still_apply() {
    let mut b = Bench::new(ClusterConfig::new(1, 1).proposal_outcome(ProposalOutcome::Applied));
    b.cluster.slow(b.now, 0, MS * 10, Duration::ZERO);
    b.put(0, "k", 0);
    b.cluster.handle_disconnected(b.now, 0);
    assert!(b.cluster.get("k").is_some());
    assert_eq!(b.pass(SECOND), vec![]);
}
