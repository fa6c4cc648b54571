//! Elections and observers.

use super::*;

fn campaign(w: &mut ZooKeeperClients, client: usize, value: &'static str) -> LockId {
    let candidate = w.clients[client].campaign(w.now, &Acquire::new("e"), value.into()).unwrap();
    w.run();
    candidate
}

fn observe(w: &mut ZooKeeperClients, client: usize) -> OperationId {
    let query = w.clients[client].start(w.now, Operation::Observe("e".into())).unwrap();
    w.run();
    query
}

/// What the observer saw: the values of leaders, `-` for none and `?` for unknown.
fn seen(w: &ZooKeeperClients, query: OperationId) -> Vec<String> {
    let of_query = w.elections.iter().filter(|(own, _)| *own == query);
    of_query
        .map(|(_, event)| match event {
            OperationEvent::Leader(leader) => String::from_utf8(leader.value.to_vec()).unwrap(),
            OperationEvent::NoLeader => "-".into(),
            OperationEvent::Done => panic!("no check"),
            OperationEvent::Disconnected => "?".into(),
            OperationEvent::Failed(failure) => alloc::format!("{failure}"),
        })
        .collect()
}

#[test]
fn observers_see_leaders_proclamations_and_resignations() {
    let mut w = ZooKeeperClients::new(3);
    let query = observe(&mut w, 2);
    let first = campaign(&mut w, 0, "a");
    w.granted(0, first).unwrap();
    let second = campaign(&mut w, 1, "b");
    assert!(w.server.children("/app/e").iter().all(|name| name.contains("-latch-")));
    w.clients[0].proclaim(w.now, first, "a2".into()).unwrap();
    w.run();
    assert!(matches!(w.last(0, first), Some(Event::Proclaimed { .. })));
    w.release(0, first);
    w.granted(1, second).unwrap();
    w.release(1, second);
    assert_eq!(seen(&w, query), ["-", "a", "a2", "b", "-"]);
    // Also while the queue's node exists.
    let third = campaign(&mut w, 0, "c");
    w.granted(0, third).unwrap();
    w.cut(2);
    w.pass(500);
    assert_eq!(seen(&w, query)[5..], ["c", "?", "c"]);
    w.clients[2].cancel(w.now, query);
    w.release(0, third);
    assert_eq!(seen(&w, query).len(), 8);
}

#[test]
fn leader_is_told_once() {
    let mut w = ZooKeeperClients::new(2);
    let ask = |w: &mut ZooKeeperClients| {
        let query = w.clients[1].start(w.now, Operation::Leader("e".into())).unwrap();
        w.run();
        query
    };
    let query = ask(&mut w);
    assert_eq!(seen(&w, query), ["-"]);
    let first = campaign(&mut w, 0, "a");
    w.granted(0, first).unwrap();
    let query = ask(&mut w);
    assert_eq!(seen(&w, query), ["a"]);
    w.unreachable = true;
    w.cut(1);
    let query = ask(&mut w);
    w.pass(2_500);
    assert_eq!(seen(&w, query).len(), 1);
    assert!(seen(&w, query)[0].contains("not acquired"), "{:?}", seen(&w, query));
}

#[test]
fn lock_and_election_of_one_name_exclude_each_other_with_an_error() {
    // ZK7
    let mut w = ZooKeeperClients::new(2);
    let lock = w.request(0, &Acquire::new("e"));
    w.granted(0, lock).unwrap();
    let candidate = campaign(&mut w, 1, "a");
    assert!(matches!(w.failure(1, candidate), Some(Failure::KeyInUse(_))));
    let own = campaign(&mut w, 0, "a");
    assert!(matches!(w.failure(0, own), Some(Failure::KeyInUse(_))));
    assert_eq!(w.lost(0, lock), None);
}

#[test]
fn next_local_candidate_writes_its_value_first() {
    // E7
    let mut w = ZooKeeperClients::new(2);
    let query = observe(&mut w, 1);
    let first = campaign(&mut w, 0, "a");
    w.granted(0, first).unwrap();
    let second = campaign(&mut w, 0, "b");
    w.release(0, first);
    w.granted(0, second).unwrap();
    assert_eq!(seen(&w, query), ["-", "a", "b"]);
}

#[test]
fn next_local_candidate_whose_value_is_refused_fails() {
    // E7
    let mut w = ZooKeeperClients::new(1);
    let first = campaign(&mut w, 0, "a");
    w.granted(0, first).unwrap();
    let second = campaign(&mut w, 0, "b");
    w.server.refused = Some((OpCode::SetData, ErrorCode::QUOTA_EXCEEDED));
    w.release(0, first);
    assert!(matches!(w.failure(0, second), Some(Failure::Refused(_))), "{:?}", w.events);
    assert!(w.server.children("/app/e").is_empty());
}

/// The observer's `getData` is in flight when a waiter of the same client leaves.
#[test]
fn leaving_waiter_keeps_watch_that_observer_is_setting() {
    let mut w = ZooKeeperClients::new(2);
    let first = campaign(&mut w, 0, "a");
    w.granted(0, first).unwrap();
    let waiter = campaign(&mut w, 1, "b");
    let query = w.clients[1].start(w.now, Operation::Observe("e".into())).unwrap();
    // The list has been answered, and the leader's node was asked for.
    w.outputs(1);
    w.bytes(1);
    w.outputs(1);
    w.clients[1].abandon(w.now, waiter);
    w.run();
    assert_eq!(seen(&w, query), ["a"]);
    w.release(0, first);
    assert_eq!(seen(&w, query), ["a", "-"]);
}

#[test]
fn proclamation_without_reply_fails_in_time() {
    let mut w = ZooKeeperClients::new(1);
    let first = campaign(&mut w, 0, "a");
    w.granted(0, first).unwrap();
    w.unreachable = true;
    w.cut(0);
    w.clients[0].proclaim(w.now, first, "a2".into()).unwrap();
    w.pass(2_000);
    assert!(w.of_lock(0, first).iter().any(|event| matches!(event, Event::ProclaimFailed(_))));
}

#[test]
fn refusals_of_queries_and_proclamations_have_the_words_of_the_server() {
    let mut w = ZooKeeperClients::new(1);
    let leader = campaign(&mut w, 0, "a");
    w.granted(0, leader).unwrap();
    w.server.refused = Some((OpCode::SetData, ErrorCode::NO_AUTH));
    w.clients[0].proclaim(w.now, leader, "a2".into()).unwrap();
    w.run();
    let Some(Event::ProclaimFailed(report)) = w.last(0, leader) else { panic!("{:?}", w.events) };
    assert!(alloc::format!("{report}").contains("NO_AUTH"), "{report}");
    for code in [OpCode::GetChildren, OpCode::GetData] {
        w.server.refused = Some((code, ErrorCode::NO_AUTH));
        let query = observe(&mut w, 0);
        assert!(matches!(&seen(&w, query)[..], [only] if only.contains("NO_AUTH")), "{:?}", seen(&w, query));
    }
}

/// Regression: a transaction with the outdated version failed, although the leader led.
#[test]
fn proclamation_that_was_given_up_leaves_the_true_version() {
    // E7
    let mut w = ZooKeeperClients::new(1);
    let leader = campaign(&mut w, 0, "a");
    w.granted(0, leader).unwrap();
    w.server.mute = Some((OpCode::SetData, true));
    w.clients[0].proclaim(w.now, leader, "a2".into()).unwrap();
    w.pass(1_900);
    w.server.mute = None;
    w.unreachable = true;
    w.cut(0);
    w.pass(100);
    assert!(w.of_lock(0, leader).iter().any(|event| matches!(event, Event::ProclaimFailed(_))));
    w.unreachable = false;
    w.pass(500);
    assert_eq!(w.clients[0].owner(leader).unwrap().version, 1);
}

#[test]
fn observer_gets_another_session_if_no_server_continues_its_own() {
    // ZK6
    let mut w = ZooKeeperClients::new(1);
    let query = observe(&mut w, 0);
    w.unreachable = true;
    w.cut(0);
    w.pass(20_000);
    assert_eq!(seen(&w, query), ["-", "?"]);
    // Restored from a backup, the servers do not know it.
    w.server.expire(1);
    w.server.refuses_known = true;
    w.unreachable = false;
    w.pass(20_000);
    assert_eq!(seen(&w, query), ["-", "?", "-"]);
}

#[test]
fn observer_of_expired_session_goes_on_in_next_one() {
    // ZK6
    let mut w = ZooKeeperClients::new(1);
    let query = observe(&mut w, 0);
    w.server.expire(1);
    w.cut(0);
    w.pass(1_000);
    assert_eq!(seen(&w, query), ["-", "?", "-"]);
}

#[test]
fn observer_learns_at_once_that_servers_are_unreachable() {
    let mut w = ZooKeeperClients::new(1);
    w.unreachable = true;
    let first = observe(&mut w, 0);
    assert_eq!(seen(&w, first), ["?"]);
    let second = observe(&mut w, 0);
    assert_eq!(seen(&w, second), ["?"]);
}

/// The leader leaves after the list of the queue was answered.
#[test]
fn leader_that_leaves_during_read_is_not_reported() {
    let mut w = ZooKeeperClients::new(3);
    let first = campaign(&mut w, 0, "a");
    w.granted(0, first).unwrap();
    campaign(&mut w, 1, "b");
    w.hold(2);
    let query = w.clients[2].start(w.now, Operation::Observe("e".into())).unwrap();
    w.outputs(2);
    w.bytes(2);
    w.outputs(2);
    w.release(0, first);
    assert_eq!(seen(&w, query), ["b"]);
}

#[test]
fn reply_that_proves_nothing_is_read_again_after_growing_pauses() {
    let mut w = ZooKeeperClients::new(1);
    w.hold(0);
    w.server.refused = Some((OpCode::GetChildren, ErrorCode::BAD_VERSION));
    let query = observe(&mut w, 0);
    for _ in 0..2 {
        w.server.refused = Some((OpCode::GetChildren, ErrorCode::BAD_VERSION));
        let before = w.server.count(OpCode::GetChildren);
        w.server.put("/app/e", 0);
        w.pass(1_000);
        // After 20, 40, 80, 160, 320 and 640 ms at the earliest.
        let reads = w.server.count(OpCode::GetChildren) - before;
        assert!((4..7).contains(&reads), "{reads}");
        w.server.refused = None;
        w.pass(2_000);
        assert_eq!(seen(&w, query), ["-"]);
        w.server.put("/app/e/x", 0);
        w.server.remove("/app/e/x");
    }
}

/// The server sends no event.
#[test]
fn observer_rereads_from_time_to_time() {
    let mut w = ZooKeeperClients::new(2);
    let leader = campaign(&mut w, 0, "a");
    w.granted(0, leader).unwrap();
    let query = observe(&mut w, 1);
    w.server.nodes.retain(|path, _| !path.contains("-latch-"));
    w.pass(60_000);
    assert_eq!(seen(&w, query), ["a", "-"]);
}

#[test]
fn observer_reads_for_events_of_its_election_only() {
    let mut w = ZooKeeperClients::new(2);
    let (lock, _) = w.hold(0);
    let waiter = w.acquire(1);
    let query = observe(&mut w, 1);
    let before = w.server.count(OpCode::GetChildren);
    w.release(0, lock);
    w.granted(1, waiter).unwrap();
    assert_eq!(w.server.count(OpCode::GetChildren), before);
    // The watch on the queue is triggered, and there is none to remove.
    campaign(&mut w, 0, "a");
    assert_eq!(seen(&w, query), ["-", "a"]);
    w.clients[1].cancel(w.now, query);
    w.run();
    assert_eq!(w.server.count(OpCode::RemoveWatches), 0);
}

#[test]
fn query_for_leader_sets_no_watch_and_ends() {
    let mut w = ZooKeeperClients::new(2);
    let ask = |w: &mut ZooKeeperClients| {
        let query = w.clients[1].start(w.now, Operation::Leader("e".into())).unwrap();
        w.pass(3_000);
        seen(w, query)
    };
    assert_eq!(ask(&mut w), ["-"]);
    w.server.put("/app/e", 0);
    assert_eq!(ask(&mut w), ["-"]);
    assert!(w.server.watches().is_empty());
    assert_eq!([OpCode::Exists, OpCode::RemoveWatches].map(|code| w.server.count(code)), [0, 0]);
    let leader = campaign(&mut w, 0, "a");
    w.granted(0, leader).unwrap();
    // It watches its node.
    w.pass(3_000);
    let before = w.server.watches().len();
    assert_eq!(ask(&mut w), ["a"]);
    assert_eq!(w.server.watches().len(), before);
}

/// Regression: the server kept them as long as the session, one for each name.
#[test]
fn closed_observers_leave_no_watch_for_queues_without_leader() {
    // The queue's node is missing, or has no children.
    for exists in [false, true] {
        let mut w = ZooKeeperClients::new(1);
        if exists {
            w.server.put("/app", 0);
            w.server.put("/app/e", 0);
        }
        let queries = [observe(&mut w, 0), observe(&mut w, 0)];
        assert!(!w.server.watches().is_empty());
        w.clients[0].cancel(w.now, queries[0]);
        w.run();
        assert!(!w.server.watches().is_empty(), "the other needs it");
        w.clients[0].cancel(w.now, queries[1]);
        w.run();
        assert!(w.server.watches().is_empty(), "{:?}", w.server.watches());
    }
}

/// Found by `zk_ops` (1c49dc89): each removed a watch that it had not set.
#[test]
fn observers_closed_before_reply_remove_no_watch() {
    let mut w = ZooKeeperClients::new(1);
    w.hold(0);
    let before = w.server.count(OpCode::GetChildren);
    for _ in 0..2 {
        let query = w.clients[0].start(w.now, Operation::Observe("e".into())).unwrap();
        w.clients[0].cancel(w.now, query);
    }
    w.run();
    assert_eq!((w.server.count(OpCode::GetChildren) - before, w.server.count(OpCode::RemoveWatches)), (2, 0));
}

/// Regression: an earlier watch was triggered while the observer's own was requested, and the
/// observer forgot that it had one.
#[test]
fn closed_observer_leaves_no_watch_that_it_set_behind_a_report() {
    let mut w = ZooKeeperClients::new(1);
    w.server.put("/app", 0);
    w.server.put("/app/e", 0);
    let first = observe(&mut w, 0);
    let second = w.clients[0].start(w.now, Operation::Observe("e".into())).unwrap();
    // The list was empty, and is requested again with a watch.
    w.outputs(0);
    w.bytes(0);
    w.clients[0].cancel(w.now, first);
    w.server.put("/app/e/x", 0);
    w.server.remove("/app/e/x");
    w.run();
    assert!(!w.server.watches().is_empty());
    w.clients[0].cancel(w.now, second);
    w.run();
    assert!(w.server.watches().is_empty(), "{:?}", w.server.watches());
}

#[test]
fn shutdown_ends_observation() {
    let mut w = ZooKeeperClients::new(1);
    let query = observe(&mut w, 0);
    w.clients[0].shutdown(w.now, Duration::from_secs(2));
    w.run();
    assert_eq!((seen(&w, query)[1].contains("shutting down"), w.stopped), (true, Some(0)));
}
