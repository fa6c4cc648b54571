//! Impossible replies: nothing panics, and nothing unproven is accepted.
// M5, M6

use bytes::Bytes;
use lock_proto::etcd::message::{
    KeyValue, LeaseGrantResponse, LeaseRevokeResponse, OpResponse, PutResponse, RangeResponse, ResponseHeader,
    ResponseOp, TxnResponse,
};
use lock_proto::etcd::{Found, LeaseId, Queue, Refusal, Reply, Request, RpcReply, SeenRevisions, WatchId};
use lock_proto::{Acquire, CallId, Cause, ErrorClass, NodeId, Operation, ServerError};

use super::*;
use crate::world::{Kind, Outcome};

const fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { member_id: 1, revision })
}

fn kv(key: &'static str, create_revision: i64, mod_revision: i64) -> KeyValue {
    KeyValue { key: Bytes::from_static(key.as_bytes()), create_revision, mod_revision, ..KeyValue::default() }
}

fn range(kvs: Vec<KeyValue>) -> ResponseOp {
    let count = kvs.len() as i64;
    ResponseOp {
        response: Some(OpResponse::Range(RangeResponse { header: None, kvs, count, ..RangeResponse::default() })),
    }
}

fn put() -> ResponseOp {
    ResponseOp { response: Some(OpResponse::Put(PutResponse { header: None, ..PutResponse::default() })) }
}

fn txn(revision: i64, succeeded: bool, responses: Vec<ResponseOp>) -> RpcReply {
    RpcReply::Txn(TxnResponse { header: header(revision), succeeded, responses })
}

fn requests() -> [Request; 8] {
    let (queue, lease) = (Queue::new(b"", b"a"), LeaseId::from_bits(0x1f));
    let value = Bytes::new();
    [
        Request::Create { queue: queue.clone(), lease, value: value.clone(), alone: false, expects: None, long: false },
        Request::Create { queue: queue.clone(), lease, value: value.clone(), alone: true, expects: None, long: false },
        Request::Look { queue: queue.clone(), lease, before: Some(5), ahead: None },
        Request::Put { queue: queue.clone(), lease, value, modified: 7, before: 5 },
        Request::Delete { queue: queue.clone(), lease, modified: 7 },
        Request::First { queue },
        Request::Grant { lease, ttl: 10 },
        Request::Revoke { lease },
    ]
}

/// An impossible reply leaves the result of its request unknown: neither success nor failure.
#[test]
fn impossible_reply_is_unknown() {
    // M5
    let [create, alone, look, write, delete, first, grant, revoke] = requests();
    let absent = || range(vec![]);
    let own = |created, modified| range(vec![kv("a/1f", created, modified)]);
    let headless = || RpcReply::Txn(TxnResponse { header: None, succeeded: true, responses: vec![put(), absent()] });
    let granted = |id, ttl| RpcReply::Grant(LeaseGrantResponse { header: header(3), id, ttl });
    let range_of = |revision, kvs| {
        RpcReply::Range(RangeResponse { header: header(revision), kvs, count: 1, ..RangeResponse::default() })
    };
    for (request, answer) in [
        // No header, an invalid revision, or responses that are missing or of another kind.
        (&create, headless()),
        (&create, txn(0, true, vec![put(), absent()])),
        (&create, txn(-4, true, vec![put(), absent()])),
        (&create, txn(9, true, vec![])),
        (&create, txn(9, true, vec![put()])),
        (&create, txn(9, true, vec![absent(), absent()])),
        (&create, txn(9, true, vec![put(), put()])),
        (&create, txn(9, true, vec![put(), ResponseOp { response: None }])),
        (&create, txn(9, false, vec![absent()])),
        (&create, range_of(9, vec![])),
        (&alone, txn(9, false, vec![])),
        // Impossible keys: created before the store, modified before creation or after the read.
        (&create, txn(9, false, vec![own(0, 4), absent()])),
        (&create, txn(9, false, vec![own(-1, 4), absent()])),
        (&create, txn(9, false, vec![own(5, 4), absent()])),
        (&look, txn(9, true, vec![own(5, 10), absent()])),
        (&look, txn(9, true, vec![own(5, 7), range(vec![kv("a/2", 5, 5)])])),
        (&look, txn(9, true, vec![own(5, 7), range(vec![kv("a/2", 0, 0)])])),
        (&look, txn(9, true, vec![own(5, 7)])),
        (&look, txn(9, false, vec![own(5, 7), absent()])),
        (&write, txn(9, true, vec![put(), range(vec![kv("a/2", 6, 6)])])),
        (&write, txn(9, false, vec![])),
        (&delete, txn(9, false, vec![absent()])),
        (&delete, txn(0, true, vec![])),
        (&first, range_of(0, vec![])),
        (&first, range_of(9, vec![kv("a/2", 0, 0)])),
        (&first, range_of(9, vec![kv("a/2", 5, 4)])),
        (&first, txn(9, true, vec![absent()])),
        // A lease that was not requested, or one without a positive TTL.
        (&grant, granted(0x2f, 10)),
        (&grant, granted(0x1f, 0)),
        (&grant, granted(0x1f, -1)),
        (&grant, RpcReply::Revoke(LeaseRevokeResponse { header: None })),
        (&revoke, granted(0x1f, 10)),
    ] {
        assert!(matches!(request.read(answer.clone()), Reply::Unknown(Cause::Fault(_))), "{request:?} {answer:?}");
    }
    for (request, answer) in [
        (&create, txn(9, true, vec![put(), absent()])),
        (&look, txn(9, true, vec![own(5, 7), absent()])),
        (&grant, granted(0x1f, 10)),
        (&revoke, RpcReply::Revoke(LeaseRevokeResponse { header: None })),
    ] {
        assert!(matches!(request.read(answer.clone()), Reply::Done(_)), "{request:?} {answer:?}");
    }
}

#[test]
fn unsolicited_inputs_are_dropped() {
    // M5
    let mut w = World::new(2);
    let lock = w.hold(0, Acquire::new("a"));
    w.acquire(1, Acquire::new("a"));
    w.run_for(secs(4));
    let own = kv("a/1f", 1, 1);
    for client in 0..2 {
        w.verb(client, |hub, now| hub.handle_timeout(now));
        let before = w.clients[client].hub.clone();
        for n in 0..200 {
            w.verb(client, |hub, now| {
                let gone = Reply::Done(Found::Queue {
                    revision: 1,
                    done: true,
                    own: None,
                    older: None,
                    rest: Vec::new(),
                    all: false,
                    others: false,
                    long: false,
                });
                hub.handle_reply(now, CallId::new(NodeId::new(0), 1_000_000 + n), &gone);
                let watch = WatchId::new(1_000 + n);
                hub.handle_watching(now, watch, 1);
                hub.handle_changed(now, watch, i64::MAX, true, &own);
                hub.handle_unsubscribed(now, watch);
                let error = ServerError { class: ErrorClass::Refused, text: "no".into() };
                hub.handle_watch_refused(now, watch, &error);
                hub.handle_timeout(now);
            });
        }
        assert!(w.clients[client].hub == before, "nothing has changed");
    }
    assert!(w.is_held(0, lock));
    w.end();
}

/// A reply of the wrong kind, or a store that contradicts itself, in any order. Once the server is
/// correct again, everything completes and nothing is left.
#[test]
fn nonsense_replies_do_no_lasting_harm() {
    // M5
    let kinds =
        [Kind::Create, Kind::Look, Kind::Put, Kind::Delete, Kind::First, Kind::Grant, Kind::Revoke, Kind::KeepAlive];
    let seen = |created, modified| Some(SeenRevisions { created, modified });
    let queue = |revision, done, own, older| Found::Queue {
        revision,
        done,
        own,
        older,
        rest: Vec::new(),
        all: false,
        others: true,
        long: false,
    };
    let nonsense = [
        Reply::Done(Found::Revoked),
        Reply::Done(Found::Lease { ttl: i64::MAX }),
        Reply::Done(Found::Lease { ttl: -1 }),
        Reply::Done(queue(0, false, None, None)),
        Reply::Done(queue(i64::MAX, false, None, None)),
        Reply::Done(queue(-1, false, seen(-1, -1), None)),
        Reply::Done(queue(1, true, None, Some(kv("", 0, 0)))),
        Reply::Done(queue(1, false, seen(i64::MAX, i64::MAX), Some(kv("a/5", 1, 1)))),
        Reply::Refused(Refusal::LeaseNotFound),
        Reply::Refused(Refusal::LeaseExists),
        Reply::Refused(Refusal::Error(ServerError { class: ErrorClass::Transient, text: "busy".into() })),
        Reply::Refused(Refusal::Error(ServerError { class: ErrorClass::Refused, text: "no".into() })),
    ];
    for kind in kinds {
        for reply in &nonsense {
            // A missing key is possible, and must be accepted.
            let gone = matches!(reply, Reply::Done(Found::Queue { own: None, .. }));
            if gone && matches!(kind, Kind::Look | Kind::Put | Kind::Delete) {
                continue;
            }
            let mut w = World::new(2);
            w.every(0, kind, Some(Outcome::Answer(reply.clone())));
            let locks = [
                w.acquire(0, Acquire::new("a")),
                w.acquire(0, Acquire::new("a")),
                w.campaign(0, "b", "x"),
                w.acquire(0, Acquire::new("c").ttl(secs(3))),
            ];
            let query = w.verb(0, |hub, now| hub.start(now, Operation::Observe("b".into()))).unwrap();
            let other = w.acquire(1, Acquire::new("a"));
            for step in 0..6 {
                w.run_for(ms(1_700));
                let lock = locks[step % 4];
                let _ = w.verb(0, |hub, now| hub.owner_guard(now, lock));
                let _ = w.verb(0, |hub, now| hub.proclaim(now, lock, "y".into()));
                let _ = w.verb(0, |hub, now| hub.release(now, lock));
            }
            assert!(w.requests(0) < 3_000, "{} requests after {kind:?} {reply:?}", w.requests(0));
            w.every(0, kind, None);
            w.verb(0, |hub, now| hub.cancel(now, query));
            w.run_for(secs(15));
            for lock in locks {
                w.abandon(0, lock);
            }
            w.expect(secs(40), "others are served", |w| w.is_held(1, other) || released(w, 1, other).is_some());
            w.abandon(1, other);
            w.run_for(secs(5));
            w.end();
        }
    }
}

/// An event with a revision beyond that of every read does not cause endless reads.
#[test]
fn event_with_impossible_revision_causes_no_read_loop() {
    // M5
    let mut w = World::new(2);
    w.hold(0, Acquire::new("a"));
    let lock = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    let predecessor = w.queue("a")[0].clone();
    for n in 1..20 {
        w.verb(1, |hub, now| hub.handle_changed(now, WatchId::new(n), i64::MAX, true, &predecessor));
        w.verb(1, |hub, now| hub.handle_watching(now, WatchId::new(n), i64::MAX));
    }
    w.run_for(secs(10));
    assert!(w.count(1, Kind::Look) < 40, "{}", w.count(1, Kind::Look));
    assert!(!was_granted(&w, 1, lock));
    w.end();
}

/// A holder takes the impossible revision for another client's write, and writes the key again. The
/// reply shows the real one.
#[test]
fn event_with_impossible_revision_causes_no_write_loop() {
    // M5, E7
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    w.run_for(secs(4));
    let key = w.queue("a")[0].clone();
    let watch = w.watch_on(0, &key.key);
    let event = KeyValue { mod_revision: i64::MAX, ..key };
    w.verb(0, |hub, now| hub.handle_changed(now, watch, i64::MAX, false, &event));
    w.run_for(secs(10));
    assert!(w.count(0, Kind::Put) < 10, "{}", w.count(0, Kind::Put));
    assert!(w.is_held(0, lock));
    w.end();
}
