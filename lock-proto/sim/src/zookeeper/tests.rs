//! Operations, sessions and watches of one member. The ensemble's own tests are in `tests/`.
// S14
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod kit;
mod members;

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::Condition;
use kit::{Kit, check, create, delete, exists, get, list, ms, set};
use lock_proto::zookeeper::codec::{
    Acl, CreateMode, ErrorCode, EventType, MultiOp, MultiResult, Op, ReplyBody, WatchKind,
};

#[test]
fn creates_reads_writes_and_deletes() {
    let mut kit = Kit::new(1);
    let c = kit.client(0);
    let created = kit.stat(c, create("/a", CreateMode::Persistent));
    assert_eq!((created.czxid, created.mzxid, created.pzxid), (created.czxid, created.czxid, created.czxid));
    assert_eq!(kit.fails(c, create("/a", CreateMode::Persistent)), ErrorCode::NODE_EXISTS);
    assert_eq!(kit.fails(c, create("/b/c", CreateMode::Persistent)), ErrorCode::NO_NODE);
    kit.stat(c, create("/a/b", CreateMode::Persistent));
    let stat = kit.stat(c, exists("/a", false));
    assert_eq!((stat.num_children, stat.cversion, stat.version), (1, 1, 0));
    assert!(stat.pzxid > created.pzxid && stat.czxid == created.czxid);
    // Failed requests take a zxid as well.
    kit.fails(c, delete("/a", -1));
    assert_eq!(kit.fails(c, delete("/a", -1)), ErrorCode::NOT_EMPTY);
    let written = kit.stat(c, set("/a", b"x", 0));
    assert_eq!((written.version, written.mzxid, written.data_length), (1, stat.pzxid + 3, 1));
    assert_eq!(kit.fails(c, set("/a", b"x", 0)), ErrorCode::BAD_VERSION);
    assert_eq!(kit.fails(c, delete("/a/b", 7)), ErrorCode::BAD_VERSION);
    kit.ok(c, delete("/a/b", 0));
    let stat = kit.stat(c, get("/a", false));
    assert_eq!((stat.num_children, stat.cversion, stat.version), (0, 2, 1));
    assert_eq!(kit.fails(c, get("/a/b", false)), ErrorCode::NO_NODE);
    assert_eq!(kit.fails(c, delete("/", -1)), ErrorCode::BAD_ARGUMENTS);
    for path in ["a", "/a/", "/a/.", "/a/..", "/\u{1}"] {
        assert_eq!(kit.fails(c, create(path, CreateMode::Persistent)), ErrorCode::BAD_ARGUMENTS, "{path}");
    }
    // The parent is looked for first.
    assert_eq!(kit.fails(c, create("/a//b", CreateMode::Persistent)), ErrorCode::NO_NODE);
}

#[test]
fn sequence_numbers_come_from_the_parent() {
    let mut kit = Kit::new(1);
    let c = kit.client(0);
    kit.stat(c, create("/q", CreateMode::Persistent));
    assert_eq!(kit.path(c, create("/q/a-", CreateMode::EphemeralSequential)), "/q/a-0000000000");
    assert_eq!(kit.path(c, create("/q/b", CreateMode::Ephemeral)), "/q/b");
    assert_eq!(kit.path(c, create("/q/a-", CreateMode::PersistentSequential)), "/q/a-0000000002");
    kit.ok(c, delete("/q/a-0000000002", -1));
    assert_eq!(kit.path(c, create("/q/", CreateMode::PersistentSequential)), "/q/0000000003");
    assert_eq!(kit.fails(c, create("/q/b/x", CreateMode::Persistent)), ErrorCode::NO_CHILDREN_FOR_EPHEMERALS);
    // A new parent begins anew.
    for path in ["/q/a-0000000000", "/q/b", "/q/0000000003", "/q"] {
        kit.ok(c, delete(path, -1));
    }
    kit.stat(c, create("/q", CreateMode::Persistent));
    assert_eq!(kit.path(c, create("/q/", CreateMode::EphemeralSequential)), "/q/0000000000");
}

/// `DataTree.createNode` does not take over a counter that has wrapped; `PrepRequestProcessor` uses
/// it while the creation before is not applied.
#[test]
fn sequence_numbers_end_at_the_greatest_and_wrap_only_under_load() {
    let mut kit = Kit::new(1);
    let c = kit.client(0);
    kit.stat(c, create("/q", CreateMode::Persistent));
    kit.ensemble.set_sequence("/q", i32::MAX - 1);
    let numbered = |kit: &mut Kit, name: &str| kit.path(c, create(name, CreateMode::PersistentSequential));
    assert_eq!(numbered(&mut kit, "/q/a"), "/q/a2147483646");
    assert_eq!(numbered(&mut kit, "/q/b"), "/q/b2147483647");
    assert_eq!(numbered(&mut kit, "/q/c"), "/q/c2147483647");
    assert_eq!(kit.fails(c, create("/q/c", CreateMode::PersistentSequential)), ErrorCode::NODE_EXISTS);

    let mut kit = Kit::new(3);
    let c = kit.client(0);
    kit.stat(c, create("/q", CreateMode::Persistent));
    kit.ensemble.set_sequence("/q", i32::MAX);
    let both = [create("/q/a", CreateMode::PersistentSequential), create("/q/b", CreateMode::PersistentSequential)];
    let both = both.map(|op| kit.send(c, op));
    let paths = both.map(|xid| kit.created(c, xid));
    assert_eq!(paths, ["/q/a2147483647", "/q/b-2147483648"]);
    kit.ensemble.set_sequence("/q", -1);
    assert_eq!(kit.path(c, create("/q/", CreateMode::PersistentSequential)), "/q/-000000001");
}

#[test]
fn transactions_change_all_or_nothing() {
    let mut kit = Kit::new(1);
    let c = kit.client(0);
    let ops = |ops: &[Op]| {
        let write = |op: &Op| if let Op::Write(op) = op { op.clone() } else { panic!("{op:?}") };
        Op::Multi(ops.iter().map(write).collect())
    };
    let create_a = create("/a", CreateMode::Persistent);
    let child = create("/a/b-", CreateMode::EphemeralSequential);
    let results = kit.multi(c, ops(&[create_a, child, check("/a", 0), set("/a", b"1", 0)]));
    let [MultiResult::Created { .. }, MultiResult::Created { path, .. }, MultiResult::Checked, MultiResult::Set(stat)] =
        &results[..]
    else {
        panic!("{results:?}")
    };
    assert_eq!((&**path, stat.version), ("/a/b-0000000000", 1));
    // All have the zxid of the transaction.
    assert_eq!(stat.czxid, stat.mzxid);
    let failed = kit.multi(c, ops(&[delete("/a/b-0000000000", -1), check("/a", 0), set("/a", b"2", -1)]));
    let codes = [ErrorCode::OK, ErrorCode::BAD_VERSION, ErrorCode::RUNTIME_INCONSISTENCY];
    assert_eq!(failed, codes.map(MultiResult::Error));
    kit.stat(c, get("/a/b-0000000000", false));
    // What failed has left no trace in later validations.
    let done = kit.multi(c, ops(&[delete("/a/b-0000000000", -1), delete("/a", 1)]));
    assert_eq!(done, [MultiResult::Deleted, MultiResult::Deleted]);
}

#[test]
fn watches_fire_once_with_the_change_before_the_reply() {
    let mut kit = Kit::new(1);
    let (c, other) = (kit.client(0), kit.client(0));
    kit.stat(c, create("/a", CreateMode::Persistent));
    kit.stat(c, get("/a", true));
    assert_eq!(kit.fails(c, exists("/a/b", true)), ErrorCode::NO_NODE);
    kit.ok(c, list("/a", true));
    assert_eq!(kit.ensemble.watch_count(), 3);
    assert_eq!(kit.fails(c, get("/none", true)), ErrorCode::NO_NODE, "which leaves no watch");
    assert_eq!(kit.ensemble.watch_count(), 3);
    kit.stat(other, create("/a/b", CreateMode::Persistent));
    assert_eq!(kit.events(c), [(EventType::Created, "/a/b".into()), (EventType::ChildrenChanged, "/a".into())]);
    kit.stat(other, set("/a", b"", -1));
    assert_eq!(kit.events(c), [(EventType::DataChanged, "/a".into())]);
    kit.stat(other, set("/a", b"", -1));
    kit.ok(other, delete("/a/b", -1));
    assert_eq!(kit.events(c), []);
    // One event for both watches of a deleted node, and before the reply of the client's own.
    kit.stat(c, get("/a", true));
    kit.ok(c, list("/a", true));
    let xid = kit.send(c, delete("/a", -1));
    kit.run(ms(10));
    assert_eq!(kit.events(c), [(EventType::Deleted, "/a".into())]);
    assert!(kit.order(c).ends_with(&[-1, xid]));
    assert_eq!(kit.ensemble.watch_count(), 0);
}

#[test]
fn watches_are_removed_by_request_and_with_the_connection() {
    let mut kit = Kit::new(1);
    let c = kit.client(0);
    kit.stat(c, create("/a", CreateMode::Persistent));
    let remove = |kind| Op::RemoveWatches { path: "/a".into(), kind };
    assert_eq!(kit.fails(c, remove(WatchKind::Any)), ErrorCode::NO_WATCHER);
    kit.stat(c, get("/a", true));
    kit.ok(c, list("/a", true));
    kit.ok(c, remove(WatchKind::Data));
    assert_eq!(kit.fails(c, remove(WatchKind::Data)), ErrorCode::NO_WATCHER);
    kit.stat(c, set("/a", b"", -1));
    assert_eq!(kit.events(c), []);
    kit.stat(c, get("/a", true));
    assert_eq!(kit.ensemble.watch_count(), 2);
    kit.disconnect(c);
    assert_eq!(kit.ensemble.watch_count(), 0);
}

#[test]
fn sessions_end_with_their_nodes() {
    let mut kit = Kit::new(1);
    let (c, other) = (kit.client(0), kit.client(0));
    kit.stat(c, create("/q", CreateMode::Persistent));
    let mine = kit.stat(c, create("/q/mine", CreateMode::Ephemeral));
    assert_eq!(mine.ephemeral_owner, kit.session(c));
    kit.stat(c, create("/q/kept", CreateMode::Persistent));
    kit.stat(other, get("/q/mine", true));
    kit.ok(c, Op::CloseSession);
    assert!(kit.is_closed(c));
    assert_eq!(kit.events(other), [(EventType::Deleted, "/q/mine".into())]);
    let paths: Vec<_> = kit.ensemble.nodes().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["/q", "/q/kept"]);
    assert_eq!(kit.ensemble.sessions().len(), 1);
}

#[test]
fn session_timeouts_are_negotiated_and_expire_at_a_tick() {
    let mut kit = Kit::new(1);
    for (asked, given) in [(1, 4_000), (10_000, 10_000), (1_000_000, 40_000)] {
        let c = kit.connect(0, asked, 0, 0);
        assert_eq!(kit.timeout(c), given);
    }
    let mut kit = Kit::new(1);
    let c = kit.client(0);
    kit.stat(c, create("/mine", CreateMode::Ephemeral));
    kit.run(ms(9_000));
    kit.ok(c, Op::Ping);
    let session = kit.ensemble.sessions()[0];
    // The timeout is 10 s, and the tick 2 s.
    let expected = lock_proto::Instant::from_millis(20_000);
    assert_eq!(session.expires, Some(expected));
    kit.run(ms(10_900));
    assert_eq!(kit.ensemble.nodes().len(), 1);
    kit.run(ms(200));
    assert!(kit.ensemble.nodes().is_empty() && kit.is_closed(c));
    // Continuing it is refused, and the connection closed.
    let again = kit.connect(0, 10_000, session.id, 0);
    assert_eq!((kit.timeout(again), kit.session(again)), (0, 0));
    assert!(kit.is_closed(again));
}

#[test]
fn reconnect_continues_the_session_and_needs_its_password() {
    let mut kit = Kit::new(1);
    let c = kit.client(0);
    kit.stat(c, create("/mine", CreateMode::Ephemeral));
    let session = kit.session(c);
    // Half-open: the member closes the older connection.
    let again = kit.reconnect(c, 0);
    assert!(kit.is_closed(c));
    assert_eq!((kit.session(again), kit.timeout(again)), (session, 10_000));
    kit.stat(again, exists("/mine", false));
    let thief = kit.connect(0, 10_000, session, 0);
    assert_eq!(kit.timeout(thief), 0);
    assert!(kit.is_closed(thief) && kit.is_closed(again));
}

#[test]
fn client_that_has_seen_more_is_turned_away() {
    let mut kit = Kit::new(1);
    let zxid = kit.ensemble.zxid(0);
    let c = kit.connect(0, 10_000, 0, zxid);
    assert_eq!(kit.timeout(c), 10_000);
    let ahead = kit.connect(0, 10_000, 0, kit.ensemble.zxid(0) + 1);
    assert!(kit.is_closed(ahead));
}

#[test]
fn only_the_creator_may_change_its_nodes() {
    let mut kit = Kit::new(1);
    let (ann, bob) = (kit.client(0), kit.client(0));
    let own = |path: &str| {
        let mode = CreateMode::Persistent;
        Op::Write(MultiOp::Create { path: path.into(), data: vec![].into(), acl: Acl::creator(), mode })
    };
    let login = |text: &str| Op::Auth { scheme: "digest".into(), auth: text.as_bytes().to_vec().into() };
    assert_eq!(kit.fails(ann, own("/a")), ErrorCode::INVALID_ACL);
    kit.ok(ann, login("ann:secret"));
    kit.ok(bob, login("bob:secret"));
    kit.stat(ann, own("/a"));
    for op in [get("/a", false), list("/a", false), set("/a", b"", -1), create("/a/b", CreateMode::Persistent)] {
        assert_eq!(kit.fails(bob, op), ErrorCode::NO_AUTH);
    }
    // Its existence is no secret, its changes are.
    kit.stat(bob, exists("/a", true));
    kit.stat(ann, set("/a", b"", -1));
    assert_eq!((kit.events(bob), kit.ensemble.watch_count()), (vec![], 0));
    kit.stat(ann, own("/a/b"));
    assert_eq!(kit.fails(bob, delete("/a/b", -1)), ErrorCode::NO_AUTH);
    kit.ok(ann, delete("/a/b", -1));
    let refused = kit.send(bob, Op::Auth { scheme: "sasl".into(), auth: vec![].into() });
    kit.run(ms(10));
    assert_eq!(kit.reply(bob, refused).header.code, ErrorCode::AUTH_FAILED);
    assert!(kit.is_closed(bob));
}

#[test]
fn containers_are_deleted_some_time_after_their_last_child() {
    let mut kit = Kit::new(1);
    let c = kit.connect(0, 40_000, 0, 0);
    let stat = kit.stat(c, create("/c", CreateMode::Container));
    assert_eq!(stat.ephemeral_owner, 0, "clients do not see the kind");
    kit.stat(c, create("/c/x", CreateMode::Persistent));
    kit.stat(c, create("/unused", CreateMode::Container));
    for _ in 0..7 {
        kit.run(ms(10_000));
        kit.ok(c, Op::Ping);
    }
    kit.ok(c, delete("/c/x", -1));
    kit.stat(c, exists("/c", true));
    for _ in 0..6 {
        kit.run(ms(10_000));
        kit.ok(c, Op::Ping);
    }
    assert_eq!(kit.events(c), [(EventType::Deleted, "/c".into())]);
    kit.stat(c, exists("/unused", false));
    for _ in 0..30 {
        kit.run(ms(10_000));
        kit.ok(c, Op::Ping);
    }
    assert_eq!(kit.fails(c, exists("/unused", false)), ErrorCode::NO_NODE);
}

#[test]
fn servers_without_containers_say_so_and_close_the_connection() {
    let mut kit = Kit::with(1, |config| config.containers(false));
    let c = kit.client(0);
    assert_eq!(kit.fails(c, create("/c", CreateMode::Container)), ErrorCode::UNIMPLEMENTED);
    assert!(kit.is_closed(c));
}

/// `RequestThrottler` marks requests that waited for long, and `FinalRequestProcessor` rejects them.
#[test]
fn throttled_requests_are_rejected_in_order_and_not_executed() {
    for members in [1, 3] {
        let mut kit = Kit::new(members);
        let c = kit.client(0);
        kit.stat(c, create("/q", CreateMode::Persistent));
        kit.ensemble.set(kit.now, Condition::Throttled, true);
        let ops: Vec<Op> = (0..40).map(|i| create(&alloc::format!("/q/{i}"), CreateMode::Persistent)).collect();
        let xids: Vec<i32> = ops.into_iter().map(|op| kit.send(c, op)).collect();
        kit.ok(c, Op::Ping);
        assert!(kit.order(c)[1..].starts_with(&xids));
        let codes = xids.iter().map(|xid| kit.reply(c, *xid).header.code).collect::<Vec<_>>();
        let done = codes.iter().filter(|code| **code == ErrorCode::OK).count();
        assert!(codes.iter().all(|code| [ErrorCode::OK, ErrorCode::THROTTLED_OP].contains(code)) && done < 40);
        kit.ensemble.set(kit.now, Condition::Throttled, false);
        assert_eq!(kit.names(c, "/q").len(), done);
    }
}

#[test]
fn nodes_that_nobody_may_delete_end_with_their_session() {
    let mut kit = Kit::new(3);
    let c = kit.client(1);
    kit.stat(c, create("/a", CreateMode::Ephemeral));
    kit.stat(c, create("/b", CreateMode::Ephemeral));
    kit.ensemble.set(kit.now, Condition::NoDelete, true);
    assert_eq!(kit.fails(c, delete("/a", -1)), ErrorCode::NO_AUTH);
    kit.ensemble.delete(kit.now, "/a");
    kit.run(ms(10));
    assert_eq!(kit.fails(c, exists("/a", false)), ErrorCode::NO_NODE, "other programs may");
    kit.ok(c, Op::CloseSession);
    assert!(kit.ensemble.nodes().is_empty());
}

#[test]
fn requests_arrive_in_any_fragmentation_and_nonsense_closes_the_connection() {
    let mut kit = Kit::new(1);
    let c = kit.client(0);
    kit.chop = true;
    kit.stat(c, create("/a", CreateMode::Persistent));
    let replies = kit.pipelined(c, &[set("/a", b"1", -1), get("/a", false), set("/a", b"2", -1), get("/a", false)]);
    let data = |body: &ReplyBody| if let ReplyBody::Data { data, .. } = body { data.to_vec() } else { vec![] };
    assert_eq!((data(&replies[1]), data(&replies[3])), (b"1".to_vec(), b"2".to_vec()));
    kit.raw(c, &[0, 0, 0, 2, 1, 2]);
    assert!(kit.is_closed(c));
    let c = kit.client(0);
    kit.raw(c, &[0x7f, 0xff, 0xff, 0xff]);
    assert!(kit.is_closed(c));
    assert_eq!(kit.ensemble.connection_count(), 0);
    kit.run(Duration::from_secs(30));
    assert!(kit.ensemble.sessions().is_empty() && kit.ensemble.next_deadline().is_none());
}
