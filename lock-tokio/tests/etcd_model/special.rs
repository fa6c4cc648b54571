//! Cases that generated steps do not cover: time, limits and dead members.

use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant as Clock;

use bytes::Bytes;
use lock_proto::Instant;
use lock_proto::etcd::message::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, Op, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCreateRequest, WatchRequest, WatchRequestUnion,
};
use lock_proto::etcd::{Rpc, Status, StreamKind, StreamSend};
use lock_sim::etcd::{Cluster, ClusterConfig, ClusterOutput, Condition};
use lock_testkit::{Etcd, EtcdCluster};
use tokio::runtime::Runtime;

use crate::generate::Step;
use crate::pair::{Pair, normalize_message};
use crate::real::{RealConnection, runtime};

/// The timing of the testkit's servers.
fn quick(members: usize) -> ClusterConfig {
    let election = Duration::from_millis(300);
    let request = Duration::from_secs(5) + election * 2;
    ClusterConfig::new(members, 1).election_timeout(election).request_timeout(request).min_ttl(1)
}

fn txn(ops: Vec<RequestOp>) -> Rpc {
    Rpc::Txn(TxnRequest { success: ops, ..TxnRequest::default() })
}

fn put(key: impl Into<Bytes>, value: impl Into<Bytes>, lease: i64) -> RequestOp {
    RequestOp {
        request: Some(Op::Put(PutRequest { key: key.into(), value: value.into(), lease, ..PutRequest::default() })),
    }
}

fn call(rpc: Rpc) -> Step {
    Step::Call { conn: 0, user: 0, rpc }
}

fn grant(ttl: i64, id: i64) -> Rpc {
    Rpc::Grant(LeaseGrantRequest { ttl, id })
}

fn create(create: WatchCreateRequest) -> Step {
    Step::Watch { stream: 0, request: WatchRequestUnion::Create(create) }
}

#[test]
fn lease_expires_in_model_and_etcd() {
    let mut pair = Pair::new(quick(1), Etcd::start());
    pair.open_streams();
    pair.step(&create(WatchCreateRequest { key: "l".into(), range_end: "m".into(), ..WatchCreateRequest::default() }));
    for id in 1..=3 {
        let granted = Clock::now();
        pair.step(&call(grant(-1, id)));
        pair.step(&call(txn(vec![put("lb", "", id), put("la", "", id), put("lc", "", 0)])));
        // Keep-alives, beyond the initial TTL.
        for _ in 0..if id == 2 { 4 } else { 0 } {
            std::thread::sleep(Duration::from_millis(400));
            pair.now = pair.now + Duration::from_millis(400);
            pair.step(&Step::KeepAlive { lease: id });
        }
        let lived = granted.elapsed();
        // The model expires the lease within half a second after the TTL; then etcd must do so.
        let final_statuses = pair.now + Duration::from_millis(1_500);
        while !pair.model.leases().is_empty() {
            pair.now = pair.model.next_deadline().unwrap();
            assert!(pair.now <= final_statuses, "the model keeps an expired lease");
            pair.model.handle_timeout(pair.now);
        }
        pair.compare_messages();
        let allowed = lived + Duration::from_millis(950)..lived + Duration::from_secs(10);
        assert!(allowed.contains(&granted.elapsed()), "etcd ended the lease after {:?}", granted.elapsed());
        // etcd may send watch events of a revision before it commits it. A read waits for that.
        pair.step(&call(Rpc::Range(RangeRequest { key: "la".into(), ..RangeRequest::default() })));
        // Both report that the lease is gone.
        pair.step(&Step::KeepAlive { lease: id });
    }
    // The lease loses its key to another, and expires without it.
    pair.step(&call(grant(100_000, 8)));
    pair.step(&call(grant(100_000, 9)));
    pair.step(&call(txn(vec![put("la", "", 8)])));
    pair.step(&call(txn(vec![put("la", "", 9)])));
    pair.step(&call(Rpc::Revoke(LeaseRevokeRequest { id: 8 })));
    assert_eq!(pair.model.keys().len(), 2);
}

#[derive(Clone, PartialEq, prost::Message)]
struct AlarmRequest {
    /// 1 raises the alarm, 2 ends it.
    #[prost(int32, tag = "1")]
    action: i32,
    #[prost(uint64, tag = "2")]
    member: u64,
    /// 1: no space.
    #[prost(int32, tag = "3")]
    alarm: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AlarmResponse {}

#[test]
fn full_database_rejects_same_requests() {
    let mut pair = Pair::new(quick(1), Etcd::start());
    pair.open_streams();
    let mut generator = pair.generator(77);
    pair.run(&mut generator, 200);
    for (action, on) in [(1, true), (2, false)] {
        let request = AlarmRequest { action, member: 1, alarm: 1 };
        let path = "/etcdserverpb.Maintenance/Alarm";
        pair.real[0].unary::<_, AlarmResponse>(&pair.runtime, None, path, &request).unwrap();
        pair.model.set(pair.now, Condition::NoSpace, on);
        // The test wakes a watch from the past by a put, which is rejected now.
        generator.past = !on;
        pair.run(&mut generator, 300);
    }
}

#[test]
fn limits_match_etcd() {
    let mut pair = Pair::new(quick(1), Etcd::start());
    pair.open_streams();
    let many = |n: usize| txn((0..n).map(|i| put(format!("k{i}"), "v", 0)).collect());
    pair.step(&call(many(128)));
    pair.step(&call(many(129)));
    // The limit counts nested operations with those of the outer transaction.
    for (outer, inner) in [(32, 96), (32, 97), (126, 2), (127, 2), (128, 0), (128, 1)] {
        let op = |n: usize| {
            let ops = (0..inner).map(|i| put(format!("k{n}/{i}"), "v", 0)).collect();
            RequestOp { request: Some(Op::Txn(TxnRequest { success: ops, ..TxnRequest::default() })) }
        };
        pair.step(&call(txn((0..outer).map(op).collect())));
    }
    let large = |bytes: usize| txn(vec![put("large", vec![b'x'; bytes], 0)]);
    pair.step(&call(large(1_400_000)));
    pair.step(&call(large(1_600_000)));
    // Four revisions that do not fit into one message, with and without permission to split them.
    let first = pair.model.revision() + 1;
    for _ in 0..4 {
        pair.step(&call(large(700_000)));
    }
    for (watch_id, fragment) in [(1, true), (2, false)] {
        let before = pair.messages;
        pair.step(&create(WatchCreateRequest {
            key: "large".into(),
            start_revision: first,
            watch_id,
            fragment,
            ..WatchCreateRequest::default()
        }));
        let fragments = if fragment { 2 } else { 1 };
        assert_eq!(pair.messages - before, 1 + fragments);
    }
    // More revisions than a lagging watch gets in one batch.
    for _ in 0..1_200 {
        pair.step(&call(txn(vec![put("often", "", 0)])));
    }
    let before = pair.messages;
    let start_revision = pair.model.revision() - 1_150;
    pair.step(&create(WatchCreateRequest {
        key: "often".into(),
        start_revision,
        watch_id: 3,
        ..WatchCreateRequest::default()
    }));
    while pair.model.parked_count() > 0 {
        pair.now = pair.now + Duration::from_millis(100);
        pair.model.handle_timeout(pair.now);
        pair.compare_messages();
    }
    assert_eq!(pair.messages - before, 3);
}

/// Runs the model to its end. Returns the final status of calls and streams by number.
fn final_statuses(model: &mut Cluster, now: &mut Instant) -> (BTreeMap<u64, Status>, BTreeMap<u64, Status>) {
    let (mut calls, mut streams) = (BTreeMap::new(), BTreeMap::new());
    while let Some(at) = model.next_deadline() {
        *now = at;
        model.handle_timeout(at);
        while let Some(output) = model.poll_output() {
            match output {
                ClusterOutput::Reply { rpc, reply, .. } => drop(calls.insert(rpc, reply.unwrap_err())),
                ClusterOutput::Ended { stream, status, .. } => drop(streams.insert(stream, status)),
                other @ (ClusterOutput::Message { .. } | ClusterOutput::Dropped { .. }) => panic!("{other:?}"),
            }
        }
    }
    (calls, streams)
}

fn calls() -> [Rpc; 3] {
    let range = RangeRequest { key: "a".into(), ..RangeRequest::default() };
    [Rpc::Range(range), txn(vec![put("a", "", 0)]), grant(10, 7)]
}

/// Makes concurrent calls and returns the real member's replies.
fn replies(runtime: &Runtime, real: &RealConnection) -> Vec<Status> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            calls().into_iter().map(|rpc| scope.spawn(move || real.call(runtime, None, &rpc).unwrap_err())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn member_without_quorum_returns_same_errors() {
    let runtime = runtime();
    let mut cluster = EtcdCluster::start(3);
    let leader = cluster.leader();
    let (isolated, others) = ((leader + 1) % 3, [leader, (leader + 2) % 3]);
    let real = RealConnection::open(&runtime, &cluster.members()[isolated]);
    let kinds = [StreamKind::Watch, StreamKind::KeepAlive];
    let mut streams = kinds.map(|kind| real.stream(&runtime, kind, None));
    let create = WatchCreateRequest { key: "a".into(), watch_id: 1, ..WatchCreateRequest::default() };
    let first = [
        StreamSend::Watch(WatchRequest { request: Some(WatchRequestUnion::Create(create)) }),
        StreamSend::KeepAlive(LeaseKeepAliveRequest { id: 5 }),
    ];

    let mut now = Instant::from_millis(1);
    let mut model = Cluster::new(now, quick(3));
    model.handle_connected(now, 1, 1);
    for (stream, (kind, message)) in (0..).zip(kinds.into_iter().zip(&first)) {
        streams[stream].send(message);
        model.handle_open(now, 1, stream as u64, kind, None);
        model.handle_send(now, 1, stream as u64, message);
        let Some(ClusterOutput::Message { message, .. }) = model.poll_output() else { panic!("a message") };
        assert_eq!(normalize_message(streams[stream].next(&runtime).unwrap()), normalize_message(message));
    }

    // Concurrent calls are forwarded to the old leader; later ones have no leader.
    others.into_iter().for_each(|member| cluster.member(member).kill());
    model.lose_quorum(now);
    for round in 0..2 {
        let found = replies(&runtime, &real);
        for (call, rpc) in (0..).zip(calls()) {
            model.handle_call(now, 1, call, None, &rpc);
        }
        let (expected, ended) = final_statuses(&mut model, &mut now);
        assert_eq!(expected.into_values().collect::<Vec<_>>(), found, "round {round}");
        if round == 0 {
            let found = streams.iter_mut().map(|stream| stream.next(&runtime).unwrap_err());
            assert_eq!(ended.into_values().collect::<Vec<_>>(), found.collect::<Vec<_>>());
        }
    }
    let mut late = real.stream(&runtime, StreamKind::Watch, None);
    model.handle_open(now, 1, 2, StreamKind::Watch, None);
    let (_, ended) = final_statuses(&mut model, &mut now);
    assert_eq!(late.next(&runtime).unwrap_err(), ended[&2]);
}
