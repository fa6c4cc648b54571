//! Taking, waiting, handing over, releasing.

use super::*;
use crate::lock::Drift;

#[test]
fn free_lock_takes_one_round_trip_and_its_fence_is_the_transaction() {
    // ZK4
    let mut w = ZooKeeperClients::new(1);
    w.hold(0);
    let (create, list) = (w.server.count(OpCode::Create), w.server.count(OpCode::GetChildren));
    let name = w.queue().pop().unwrap();
    let lock = w.events[0].1;
    w.release(0, lock);
    assert_eq!((w.released(0, lock), w.queue().len()), (Some(Release::Released), 0));
    // The queue exists now: one create, one list, one delete.
    let (lock, fence) = w.hold(0);
    assert_eq!((w.server.count(OpCode::Create) - create, w.server.count(OpCode::GetChildren) - list), (1, 1));
    let again = w.queue().pop().unwrap();
    assert!(name.starts_with("_c_") && name.ends_with("-lock-0000000000") && again.ends_with("-lock-0000000001"));
    let (_, stat) = &w.server.nodes[&alloc::format!("{LOCK}/{again}")];
    assert_eq!(fence, (stat.czxid as u64) << 16);
    w.release(0, lock);
    assert_eq!(w.released(0, lock), Some(Release::Released));
}

#[test]
fn hand_over_costs_one_event_and_no_request() {
    // ZK3
    let mut w = ZooKeeperClients::new(2);
    let (first, fence) = w.hold(0);
    let second = w.acquire(1);
    assert_eq!(w.of_lock(1, second), [&Event::Blocked(Blocked::Held)]);
    let before = w.server.log.len();
    w.release(0, first);
    let after = w.granted(1, second).unwrap();
    assert!(after > fence);
    assert_eq!(w.server.log.len() - before, 1, "the delete: {:?}", &w.server.log[before..]);
    w.release(1, second);
    assert_eq!((w.released(1, second), w.queue().len()), (Some(Release::Released), 0));
}

#[test]
fn waiter_behind_others_reads_queue_and_only_its_predecessor_wakes_it() {
    // ZK3
    let mut w = ZooKeeperClients::new(3);
    let (first, _) = w.hold(0);
    let (second, third) = (w.acquire(1), w.acquire(2));
    let before = w.server.count(OpCode::GetChildren);
    w.release(0, first);
    assert_eq!(w.server.count(OpCode::GetChildren), before, "neither the second nor the third reads");
    w.granted(1, second).unwrap();
    assert!(w.granted(2, third).is_none());
    w.release(1, second);
    w.granted(2, third).unwrap();
    assert_eq!(w.server.count(OpCode::GetChildren), before + 1, "the third knew of two nodes ahead");
    // A waiter in the middle gives up: the next one waits for the holder.
    let (fourth, fifth) = (w.acquire(0), w.acquire(1));
    w.clients[0].abandon(w.now, fourth);
    w.run();
    assert!(w.granted(1, fifth).is_none());
    w.release(2, third);
    w.granted(1, fifth).unwrap();
}

#[test]
fn abandoned_waiter_removes_its_node_and_its_watch() {
    let mut w = ZooKeeperClients::new(2);
    w.hold(0);
    let second = w.acquire(1);
    w.clients[1].abandon(w.now, second);
    w.run();
    assert_eq!((w.queue().len(), w.server.count(OpCode::RemoveWatches)), (1, 1));
}

/// Regression: the watch stayed until the holder's node was deleted.
#[test]
fn waiter_that_leaves_during_reread_removes_its_watch() {
    // ZK3
    let mut w = ZooKeeperClients::new(2);
    w.hold(0);
    let second = w.acquire(1);
    w.now = loop {
        let (at, why) = w.clients[1].next_deadline_reason().unwrap();
        if why == "reread of the queue" {
            break at;
        }
        w.pass(at.since(w.now).as_millis() as u64 + 1);
    };
    w.clients[1].handle_timeout(w.now);
    w.clients[1].abandon(w.now, second);
    w.run();
    assert_eq!((w.queue().len(), w.server.count(OpCode::RemoveWatches)), (1, 1));
}

#[test]
fn try_finds_lock_held_and_leaves_nothing() {
    let mut w = ZooKeeperClients::new(2);
    w.hold(0);
    let second = w.request(1, &Acquire::new("l").wait(Wait::Try));
    assert!(matches!(w.failure(1, second), Some(Failure::TimedOut(report)) if report.is_busy()));
    assert_eq!(w.queue().len(), 1);
}

#[test]
fn missing_queue_is_created_again() {
    let mut w = ZooKeeperClients::new(1);
    w.hold(0);
    assert!(w.server.nodes.contains_key("/app") && w.server.nodes.contains_key(LOCK));
    // The parent is gone between two attempts.
    let lock = w.events[0].1;
    w.release(0, lock);
    w.server.remove(LOCK);
    w.hold(0);
}

#[test]
fn queue_that_must_not_be_created_is_a_refusal() {
    // A5, ZK2
    // The root is closed, and the chroot missing; or the chroot exists, and is closed.
    for (closed, exists) in [("", false), ("/app", true)] {
        let mut w = ZooKeeperClients::new(1);
        w.server.closed = Some(closed);
        if exists {
            w.server.put("/app", 0);
        }
        for request in [Acquire::new("l").wait(Wait::Try), Acquire::new("a/b/l")] {
            let lock = w.request(0, &request);
            w.pass(10);
            let Some(Failure::Refused(report)) = w.failure(0, lock) else { panic!("{closed:?} {:?}", w.events) };
            assert!(alloc::format!("{report}").contains("NO_AUTH"), "{report}");
        }
    }
    // What exists need not be created.
    let mut w = ZooKeeperClients::new(1);
    w.server.put("/app", 0);
    w.server.closed = Some("");
    w.hold(0);
}

#[test]
fn node_that_must_not_be_created_is_a_refusal() {
    let mut w = ZooKeeperClients::new(1);
    w.make_queue();
    w.server.closed = Some(LOCK);
    let lock = w.acquire(0);
    let Some(Failure::Refused(report)) = w.failure(0, lock) else { panic!("{:?}", w.events) };
    assert!(alloc::format!("{report}").contains("NO_AUTH"), "{report}");
    w.idles_out();
}

#[test]
fn node_whose_transaction_makes_no_token_is_deleted_and_refused() {
    // ZK4
    let mut w = ZooKeeperClients::new(1);
    w.make_queue();
    w.server.zxid = (1 << 47) - 2;
    w.hold(0);
    let mut w = ZooKeeperClients::new(1);
    w.make_queue();
    w.server.zxid = (1 << 47) - 1;
    let lock = w.acquire(0);
    let Some(Failure::Refused(report)) = w.failure(0, lock) else { panic!("{:?}", w.events) };
    assert!(alloc::format!("{report}").contains("too large for fencing tokens"), "{report}");
    assert!(w.queue().is_empty());
    w.idles_out();
}

#[test]
fn each_head_is_told_that_no_server_is_reachable() {
    let mut w = ZooKeeperClients::new(1);
    w.unreachable = true;
    for name in ["l", "another"] {
        let lock = w.request(0, &Acquire::new(name));
        assert_eq!(w.of_lock(0, lock), [&Event::Blocked(Blocked::Unreachable)], "{name}");
    }
    let once = w.request(0, &Acquire::new("third").wait(Wait::Try));
    let Some(Failure::TimedOut(report)) = w.failure(0, once) else { panic!("{:?}", w.events) };
    assert!(matches!(report.nodes[..], [Answer::Unreachable(_)]), "{report}");
}

#[test]
fn single_attempt_without_reply_fails_and_leaves_nothing() {
    // U1, ZK2
    for executed in [true, false] {
        let mut w = ZooKeeperClients::new(1);
        w.make_queue();
        w.server.mute = Some((OpCode::Create, executed));
        let lock = w.request(0, &Acquire::new("l").wait(Wait::Try));
        w.server.mute = None;
        w.cut(0);
        w.run();
        assert!(matches!(w.failure(0, lock), Some(Failure::TimedOut(_))), "{:?}", w.events);
        w.pass(1_000);
        assert!(w.queue().is_empty(), "executed: {executed}");
    }
}

#[test]
fn node_that_cannot_be_read_is_deleted_later() {
    // ZK2, U1
    let (mut w, lock) = ZooKeeperClients::with_unanswered_create(true);
    w.server.refused = Some((OpCode::GetData, ErrorCode::NO_AUTH));
    w.cut(0);
    w.pass(1_000);
    assert!(matches!(w.failure(0, lock), Some(Failure::Refused(_))), "{:?}", w.events);
    assert_eq!(w.queue().len(), 0, "the node is left");
}

#[test]
fn executed_create_without_reply_is_found_and_used() {
    // ZK2
    let (mut w, lock) = ZooKeeperClients::with_unanswered_create(true);
    w.cut(0);
    assert_eq!(w.of_lock(0, lock), [&Event::Blocked(Blocked::Unreachable)]);
    w.pass(1_000);
    w.granted(0, lock).unwrap_or_else(|| panic!("{:?} {:?}", w.events, w.server.log));
    assert_eq!(w.queue().len(), 1, "no second node");
    w.release(0, lock);
    assert_eq!(w.queue().len(), 0);
}

#[test]
fn create_that_was_not_executed_is_repeated_with_another_name() {
    // ZK2, ZK6
    let (mut w, lock) = ZooKeeperClients::with_unanswered_create(false);
    w.cut(0);
    w.pass(1_000);
    w.granted(0, lock).unwrap();
    assert_eq!(w.queue().len(), 1);
}

#[test]
fn abandoned_create_without_reply_is_cleaned_up_after_a_write() {
    // ZK6
    for executed in [true, false] {
        let mut w = ZooKeeperClients::new(1);
        let (lock, _) = w.hold(0);
        w.release(0, lock);
        w.server.mute = Some((OpCode::Create, executed));
        let lock = w.acquire(0);
        w.clients[0].abandon(w.now, lock);
        w.server.mute = None;
        w.cut(0);
        let from = w.server.log.len();
        w.pass(1_000);
        assert_eq!(w.queue().len(), 0, "executed: {executed}");
        let codes: Vec<OpCode> = w.server.log[from..].iter().map(|(_, code)| *code).collect();
        assert_eq!(codes[..2], [OpCode::Multi, OpCode::GetChildren], "the write comes first");
    }
}

/// The user may create and delete in the queue but not read it, or do nothing there. In both cases
/// the client knows what is left, and its session lives on.
#[test]
fn abandoned_create_needs_no_list_of_the_queue() {
    // ZK6
    for forbidden in [OpCode::GetChildren, OpCode::Create] {
        let mut w = ZooKeeperClients::new(1);
        w.hold(0);
        w.server.put("/app/b", 0);
        w.server.refused = Some((forbidden, ErrorCode::NO_AUTH));
        let lock = w.clients[0].acquire(w.now, &Acquire::new("b")).unwrap();
        w.clients[0].abandon(w.now, lock);
        w.run();
        assert!(w.server.children("/app/b").is_empty(), "{forbidden:?}");
        w.server.refused = None;
        let next = w.request(0, &Acquire::new("c"));
        w.granted(0, next).unwrap();
        assert_eq!(w.server.sessions.len(), 1, "{forbidden:?}");
    }
}

#[test]
fn foreign_nodes_are_reported() {
    // ZK7
    for name in ["0123__lock__0000000000", "_c_1-__WRIT__0000000009", "data"] {
        let mut w = ZooKeeperClients::new(1);
        w.server.put("/app", 0);
        w.server.put(LOCK, 0);
        w.server.put(&alloc::format!("{LOCK}/{name}"), 0);
        let lock = w.acquire(0);
        let Some(Failure::KeyInUse(report)) = w.failure(0, lock) else { panic!("{name}: {:?}", w.events) };
        assert!(alloc::format!("{report}").contains(name), "{report}");
        assert_eq!(w.queue(), [name]);
    }
    let mut w = ZooKeeperClients::new(1);
    w.server.refused = Some((OpCode::Create, ErrorCode::NO_CHILDREN_FOR_EPHEMERALS));
    let lock = w.acquire(0);
    assert!(matches!(w.failure(0, lock), Some(Failure::KeyInUse(_))), "{:?}", w.events);
}

#[test]
fn nodes_of_curator_and_of_others_with_its_pattern_are_waited_for() {
    // ZK7
    let mut w = ZooKeeperClients::new(1);
    w.server.put("/app", 0);
    w.server.put(LOCK, 0);
    w.server.next_number = Some(8);
    w.server.put("/app/l/kazoo-lock-0000000007", 99);
    let lock = w.acquire(0);
    assert!(w.granted(0, lock).is_none());
    w.server.remove("/app/l/kazoo-lock-0000000007");
    w.run();
    w.granted(0, lock).unwrap();
}

#[test]
fn predecessor_of_another_user_is_a_refusal() {
    let mut w = ZooKeeperClients::new(1);
    w.server.put("/app", 0);
    w.server.put(LOCK, 0);
    w.server.next_number = Some(8);
    w.server.put("/app/l/other-lock-0000000007", 99);
    w.server.unreadable = Some("other");
    let lock = w.acquire(0);
    let Some(Failure::Refused(report)) = w.failure(0, lock) else { panic!("{:?}", w.events) };
    assert!(alloc::format!("{report}").contains("NO_AUTH"), "{report}");
    assert_eq!(w.queue().len(), 1);
}

/// Regression: only the reread of the queue after 30 s did.
#[test]
fn waiter_watches_predecessor_after_overload() {
    let mut w = ZooKeeperClients::new(2);
    let (lock, _) = w.hold(0);
    w.server.refused = Some((OpCode::GetData, ErrorCode::THROTTLED_OP));
    let second = w.acquire(1);
    w.server.refused = None;
    w.pass(1_000);
    w.release(0, lock);
    w.granted(1, second).unwrap();
    assert_eq!(w.server.count(OpCode::Multi), 0, "the connection goes on");
}

/// Regression: it waited behind its own node.
#[test]
fn local_waiter_gets_lock_whose_delete_is_refused() {
    // ZK6
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    let second = w.acquire(0);
    w.server.refused = Some((OpCode::Delete, ErrorCode::NO_AUTH));
    w.pass(1_000);
    w.release(0, lock);
    w.pass(1_000);
    w.granted(0, second).unwrap();
}

/// Regression: each client waited behind the node that the other could not delete, in a session
/// whose end would have deleted it. Found by `zookeeper-refusals`.
#[test]
fn clients_do_not_wait_for_ever_behind_nodes_that_neither_can_delete() {
    // ZK6
    let mut w = ZooKeeperClients::new(2);
    let names = ["b", "c"];
    let held = [0, 1].map(|i| w.request(i, &Acquire::new(names[i])));
    (0..2).for_each(|i| _ = w.granted(i, held[i]).unwrap());
    let waiting = [0, 1].map(|i| w.request(i, &Acquire::new(names[1 - i])));
    w.server.refused = Some((OpCode::Delete, ErrorCode::NO_AUTH));
    w.pass(1_000);
    (0..2).for_each(|i| w.release(i, held[i]));
    w.granted(1, waiting[1]).unwrap();
    w.release(1, waiting[1]);
    w.pass(1_000);
    w.granted(0, waiting[0]).unwrap();
}

/// Regression: `zookeeper-failover` seed 266. Without a majority the servers do not end it.
#[test]
fn release_after_session_ended_by_its_time_only_is_unknown() {
    // U1
    let mut w = ZooKeeperClients::new(1);
    let lock = w.expired_hold(60_000);
    w.release(0, lock);
    assert_eq!(w.released(0, lock), Some(Release::Unknown));
}

/// Regression: `zookeeper-behind` seed 92. A leader refuses the session before its end is committed.
#[test]
fn expiry_of_session_that_is_being_ended_confirms_no_release() {
    // U1
    let mut w = ZooKeeperClients::new(1);
    let lock = w.request(0, &Acquire::new("l").renew(Renew::Manual));
    w.granted(0, lock).unwrap();
    w.server.mute = Some((OpCode::CloseSession, true));
    w.release(0, lock);
    w.cut(0);
    w.pass(1_000);
    assert_eq!(w.released(0, lock), Some(Release::Unknown));
}

#[test]
fn queue_whose_numbers_are_used_up_is_created_anew() {
    // ZK5
    let mut w = ZooKeeperClients::new(2);
    let (first, _) = w.hold(0);
    w.server.next_number = Some(i32::MAX - 10);
    let second = w.acquire(1);
    w.pass(500);
    assert_eq!(w.of_lock(1, second), [&Event::Blocked(Blocked::Held)]);
    assert_eq!(w.queue().len(), 1, "it has left the queue");
    w.release(0, first);
    w.pass(2_000);
    let fence = w.granted(1, second).unwrap();
    assert!(w.queue()[0].ends_with("-lock-0000000000"), "{:?}", w.queue());
    w.release(1, second);
    assert!(w.hold(0).1 > fence, "tokens grow with a new queue");
}

#[test]
fn queue_that_never_empties_is_reported_as_exhausted() {
    // ZK5
    let mut w = ZooKeeperClients::new(2);
    w.hold(0);
    w.server.next_number = Some(i32::MIN);
    let second = w.acquire(1);
    w.pass(9_000);
    assert_eq!(w.failure(1, second), None);
    w.pass(3_000);
    assert!(matches!(w.failure(1, second), Some(Failure::SequenceExhausted(_))), "{:?}", w.events);
    w.clients.remove(0);
    w.idles_out();
}

/// Regression: it was reported although no server could be reached.
#[test]
fn only_a_server_says_that_the_queue_never_empties() {
    // ZK5
    let mut w = ZooKeeperClients::new(2);
    let (first, _) = w.hold(0);
    w.server.next_number = Some(i32::MIN);
    let second = w.acquire(1);
    w.pass(500);
    w.unreachable = true;
    w.cut(1);
    w.pass(12_000);
    assert_eq!(w.failure(1, second), None);
    w.unreachable = false;
    w.pass(5_000);
    assert!(matches!(w.failure(1, second), Some(Failure::SequenceExhausted(_))), "{:?}", w.events);
    assert_eq!(w.lost(0, first), None);
}

#[test]
fn deleted_node_of_holder_is_lost_and_that_of_waiter_requeued() {
    let mut w = ZooKeeperClients::new(2);
    let (first, _) = w.hold(0);
    let second = w.acquire(1);
    let waiting = w.queue().into_iter().find(|name| name.ends_with('1')).unwrap();
    w.server.remove(&alloc::format!("{LOCK}/{waiting}"));
    w.run();
    assert!(w.granted(1, second).is_none());
    assert!(w.queue().iter().any(|name| name.ends_with('2')), "{:?}", w.queue());
    // A hold is watched after a third of its validity.
    w.pass(4_000);
    let held = w.queue().into_iter().find(|name| name.ends_with('0')).unwrap();
    w.server.remove(&alloc::format!("{LOCK}/{held}"));
    w.run();
    assert_eq!(w.lost(0, first), Some(Loss::Gone));
    w.granted(1, second).unwrap();
    w.release(0, first);
    assert_eq!(w.released(0, first), Some(Release::Expired));
}

/// A watch lasts for one event.
#[test]
fn waiter_watches_nodes_again_that_were_written() {
    let mut w = ZooKeeperClients::new(2);
    let (first, _) = w.hold(0);
    let second = w.acquire(1);
    let nodes = w.queue().into_iter().map(|name| alloc::format!("{LOCK}/{name}")).collect::<Vec<_>>();
    nodes.iter().for_each(|node| w.server.touch(node));
    w.run();
    let watched = w.server.watches();
    assert!(nodes.iter().all(|node| watched.contains(&node)), "{watched:?}");
    w.release(0, first);
    w.granted(1, second).unwrap();
}

/// The server loses the report of a deletion.
#[test]
fn waiter_rereads_queue_after_30_seconds() {
    // ZK3
    let mut w = ZooKeeperClients::new(2);
    w.hold(0);
    let second = w.acquire(1);
    let held = w.queue().into_iter().find(|name| name.ends_with('0')).unwrap();
    w.server.nodes.remove(&alloc::format!("{LOCK}/{held}")).unwrap();
    w.pass(20_000);
    let granted = (20..31).find(|_| {
        let granted = w.granted(1, second).is_some();
        w.pass(1_000);
        granted
    });
    assert!(granted.is_some_and(|seconds| seconds > 20), "{granted:?} {:?}", w.events);
}

#[test]
fn deleted_node_further_behind_is_noticed_before_a_grant() {
    // ZK3
    let mut w = ZooKeeperClients::new(4);
    let (first, _) = w.hold(0);
    let (second, third, fourth) = (w.acquire(1), w.acquire(2), w.acquire(3));
    let deleted = w.queue().into_iter().find(|name| name.ends_with('2')).unwrap();
    w.server.remove(&alloc::format!("{LOCK}/{deleted}"));
    w.run();
    w.release(0, first);
    w.granted(1, second).unwrap();
    w.release(1, second);
    assert!(w.granted(2, third).is_none(), "both were behind the second");
    w.granted(3, fourth).unwrap();
    w.release(3, fourth);
    w.granted(2, third).unwrap();
}

#[test]
fn renewal_finds_deleted_node_without_its_watch() {
    // ZK1
    let mut w = ZooKeeperClients::with(1, |config| config.watch_own_after(Duration::from_secs(60)));
    let (lock, _) = w.hold(0);
    let name = w.queue().pop().unwrap();
    w.server.remove(&alloc::format!("{LOCK}/{name}"));
    w.pass(3_500);
    assert_eq!(w.lost(0, lock), Some(Loss::Gone));
}

/// A renewal compares at most 64 nodes. The nodes are deleted without a report of their watches.
#[test]
fn renewals_compare_all_nodes_in_turn() {
    let mut w = ZooKeeperClients::new(1);
    let name = |n: usize| alloc::format!("l{n:02}");
    let held = |w: &mut ZooKeeperClients, n| {
        let lock = w.request(0, &Acquire::new(name(n)));
        w.granted(0, lock).unwrap();
        lock
    };
    let locks: Vec<LockId> = (0..66).map(|n| held(&mut w, n)).collect();
    w.pass(3_000);
    assert_eq!(w.server.watches().len(), 66);
    for n in [65, 0] {
        let node = w.clients[0].owner(locks[n]).unwrap().path;
        w.server.nodes.remove(&*node).unwrap();
    }
    w.pass(10_000);
    let lost: Vec<usize> = (0..66).filter(|n| w.lost(0, locks[*n]).is_some()).collect();
    assert_eq!(lost, [0, 65]);
}

#[test]
fn local_waiter_takes_over_node_with_next_fence() {
    // A8
    let mut w = ZooKeeperClients::new(1);
    let (first, fence) = w.hold(0);
    let second = w.acquire(0);
    let before = w.server.log.len();
    w.release(0, first);
    assert_eq!(w.granted(0, second), Some(fence + 1));
    assert_eq!((w.server.log.len(), w.queue().len()), (before, 1));
}

#[test]
fn guarded_node_changes_version_before_next_local_holder() {
    // E7
    let mut w = ZooKeeperClients::new(1);
    let (first, fence) = w.hold(0);
    let own = w.clients[0].owner_guard(w.now, first).unwrap();
    let second = w.acquire(0);
    w.release(0, first);
    let next = w.granted(0, second).unwrap();
    let now = w.clients[0].owner(second).unwrap();
    assert_eq!((&now.path, now.czxid, now.version), (&own.path, own.czxid, own.version + 1));
    assert_eq!((next, w.clients[0].owner(first)), (fence + 1, None));
}

#[test]
fn lost_reply_to_take_over_write_is_read_and_written_again() {
    let mut w = ZooKeeperClients::new(1);
    let (first, _) = w.hold(0);
    w.clients[0].owner_guard(w.now, first).unwrap();
    let second = w.acquire(0);
    w.server.mute = Some((OpCode::SetData, true));
    w.release(0, first);
    assert!(w.granted(0, second).is_none());
    w.server.mute = None;
    w.cut(0);
    w.pass(1_000);
    w.granted(0, second).unwrap();
    assert_eq!(w.clients[0].owner(second).unwrap().version, 2);
}

#[test]
fn unanswered_delete_is_repeated_and_reported_as_released() {
    // U1
    for executed in [true, false] {
        let mut w = ZooKeeperClients::new(1);
        let (lock, _) = w.hold(0);
        w.server.mute = Some((OpCode::Delete, executed));
        w.release(0, lock);
        assert_eq!(w.released(0, lock), None);
        w.server.mute = None;
        w.cut(0);
        w.pass(1_000);
        assert_eq!((w.released(0, lock), w.queue().len()), (Some(Release::Released), 0), "executed: {executed}");
    }
}

/// As if somebody deleted the queue's node again and again.
#[test]
fn entry_that_fails_is_repeated_after_a_pause() {
    let mut w = ZooKeeperClients::new(1);
    w.server.refused = Some((OpCode::Create, ErrorCode::NO_NODE));
    let lock = w.acquire(0);
    let creates = w.server.count(OpCode::Create);
    w.pass(10_000);
    assert!((5..100).contains(&(w.server.count(OpCode::Create) - creates)), "not without a pause");
    w.server.refused = None;
    w.pass(2_000);
    w.granted(0, lock).unwrap();
}

/// Such replies come only from a server that is not to be trusted.
#[test]
fn error_that_proves_nothing_ends_single_attempt_and_is_retried_after_pause() {
    for code in [OpCode::Create, OpCode::GetChildren] {
        let mut w = ZooKeeperClients::new(1);
        w.make_queue();
        w.server.refused = Some((code, ErrorCode::NOT_EMPTY));
        let lock = w.acquire(0);
        let sent = w.server.log.len();
        w.pass(10_000);
        assert!((3..100).contains(&(w.server.log.len() - sent)), "{code:?}: {}", w.server.log.len() - sent);
        w.clients[0].abandon(w.now, lock);
        w.run();
        let once = w.request(0, &Acquire::new("l").wait(Wait::Try));
        w.pass(5_000);
        assert!(matches!(w.failure(0, once), Some(Failure::TimedOut(_))), "{code:?}: {:?}", w.events);
    }
}

#[test]
fn invalid_names_and_short_ttls_are_refused() {
    // ZK1
    let mut w = ZooKeeperClients::new(1);
    for (request, words) in [
        (Acquire::new("a//b"), "path"),
        (Acquire::new([0xff]), "path"),
        (Acquire::new("l").ttl(Duration::from_secs(14)), "five ticks"),
        (Acquire::new("l").ttl(Duration::from_secs(1 << 32)), "between"),
        (Acquire::new("l").renew(Renew::AtMost(Duration::ZERO)), "longer than zero"),
    ] {
        let error = w.clients[0].acquire(w.now, &request).unwrap_err();
        assert!(alloc::format!("{error}").contains(words), "{error}");
        assert!(matches!(error, Misuse::Invalid(_)));
    }
    let margin = Drift { margin: Duration::from_secs(6), ..Drift::default() };
    let mut short = ZooKeeperClients::with(1, |config| config.session_ttl(Duration::from_secs(30)).drift(margin));
    let error = short.clients[0].acquire(short.now, &Acquire::new("l").ttl(Duration::from_secs(15))).unwrap_err();
    assert!(alloc::format!("{error}").contains("drift"), "{error}");
    let long = alloc::vec![0; super::super::MAX_VALUE + 1];
    let error = w.clients[0].campaign(w.now, &Acquire::new("e"), long.into()).unwrap_err();
    assert!(alloc::format!("{error}").contains("1000000"), "{error}");
}

/// A transaction of the application checks the version.
#[test]
fn holder_learns_version_that_another_client_has_written() {
    // H2
    let mut w = ZooKeeperClients::new(1);
    let (lock, _) = w.hold(0);
    w.pass(3_000);
    let path = w.clients[0].owner(lock).unwrap().path;
    for version in [1, 2] {
        w.server.touch(&path);
        w.run();
        assert_eq!(w.clients[0].owner(lock).unwrap().version, version);
    }
}

#[test]
fn holder_watches_its_node_again_after_reconnect_and_after_error() {
    // H2, ZK6
    let mut w = ZooKeeperClients::new(1);
    w.hold(0);
    w.pass(3_000);
    assert_eq!(w.server.watches().len(), 1);
    w.cut(0);
    assert_eq!(w.server.watches().len(), 0);
    w.pass(100);
    assert_eq!(w.server.watches().len(), 1);
    w.server.refused = Some((OpCode::GetData, ErrorCode::BAD_VERSION));
    w.cut(0);
    w.pass(100);
    w.server.refused = None;
    assert_eq!(w.server.watches().len(), 0);
    w.pass(60_000);
    assert_eq!(w.server.watches().len(), 1);
}
