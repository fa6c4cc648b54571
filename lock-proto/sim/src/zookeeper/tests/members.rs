//! Leader, followers, elections.

use core::time::Duration;

use super::kit::{Kit, create, delete, exists, get, ms, set};
use lock_proto::zookeeper::codec::{CreateMode, ErrorCode, EventType, Op, ReplyBody};

const SECOND: u64 = 1_000;

fn sync() -> Op {
    Op::Sync { path: "/".into() }
}

#[test]
fn writes_by_a_follower_are_seen_by_all_members() {
    let mut kit = Kit::new(3);
    let (a, b) = (kit.client(1), kit.client(2));
    let stat = kit.stat(a, create("/a", CreateMode::Persistent));
    kit.stat(b, get("/a", true));
    // A read is answered after the writes before it.
    let replies = kit.pipelined(a, &[set("/a", b"1", -1), get("/a", false), sync()]);
    assert!(matches!(&replies[1], ReplyBody::Data { data, .. } if data[..] == *b"1"));
    assert_eq!(kit.events(b), [(EventType::DataChanged, "/a".into())]);
    for member in 0..3 {
        assert_eq!(kit.ensemble.stat(member, "/a").unwrap().czxid, stat.czxid);
    }
}

#[test]
fn slow_follower_answers_from_an_old_tree_until_sync() {
    let mut kit = Kit::new(3);
    let (fast, slow) = (kit.client(0), kit.client(2));
    kit.ensemble.set_lag(kit.now, 2, ms(500));
    kit.stat(fast, create("/a", CreateMode::Persistent));
    assert_eq!(kit.fails(slow, exists("/a", false)), ErrorCode::NO_NODE);
    let synced = kit.send(slow, sync());
    let read = kit.send(slow, exists("/a", false));
    kit.run(ms(300));
    assert!(!kit.has_reply(slow, synced) && !kit.has_reply(slow, read));
    kit.run(ms(300));
    assert_eq!(kit.reply(slow, read).header.code, ErrorCode::OK);
    // It has not seen what the other has.
    kit.stat(fast, create("/b", CreateMode::Persistent));
    let seen = kit.ensemble.zxid(0);
    let late = kit.connect(2, 10_000, 0, seen);
    assert!(kit.is_closed(late));
}

/// The failure of locks that take the answer to a ping for the word of the leader.
#[test]
fn follower_that_is_cut_off_answers_pings_while_its_sessions_end() {
    let mut kit = Kit::new(3);
    let holder = kit.connect(2, 4_000, 0, 0);
    kit.stat(holder, create("/mine", CreateMode::Ephemeral));
    let other = kit.connect(0, 40_000, 0, 0);
    kit.stat(other, get("/mine", true));
    kit.ensemble.isolate(kit.now, 2);
    let began = kit.now;
    while kit.now < began + Duration::from_secs(7) {
        kit.run(ms(500));
        kit.ok(holder, Op::Ping);
        kit.stat(holder, get("/mine", false));
        kit.ok(other, Op::Ping);
    }
    assert_eq!(kit.events(other), [(EventType::Deleted, "/mine".into())]);
    assert_eq!(kit.ensemble.leader(), Some(0));
    // A write is not answered, and so nothing behind it.
    let write = kit.send(holder, set("/mine", b"", -1));
    let ping = kit.send(holder, Op::Ping);
    kit.run(ms(SECOND));
    assert!(!kit.has_reply(holder, write) && !kit.has_reply(holder, ping));
    // After five ticks it gives up.
    assert!(!kit.is_closed(holder));
    kit.run(ms(3 * SECOND));
    assert!(kit.is_closed(holder) && !kit.ensemble.is_serving(2));
    let refused = kit.connect(2, 4_000, 0, 0);
    assert!(kit.is_closed(refused));
    kit.ensemble.heal(kit.now, 2);
    kit.run(ms(SECOND));
    assert!(kit.ensemble.is_serving(2) && kit.ensemble.stat(2, "/mine").is_none());
}

#[test]
fn partition_that_ends_soon_delays_what_was_sent() {
    let mut kit = Kit::new(3);
    let c = kit.client(2);
    kit.ensemble.isolate(kit.now, 2);
    let xid = kit.send(c, create("/a", CreateMode::Persistent));
    kit.run(ms(3 * SECOND));
    assert!(!kit.has_reply(c, xid));
    kit.ensemble.heal(kit.now, 2);
    kit.run(ms(10));
    assert_eq!(kit.reply(c, xid).header.code, ErrorCode::OK);
}

#[test]
fn leader_without_followers_steps_down_and_its_proposals_are_lost() {
    let mut kit = Kit::new(3);
    let (old, idle) = (kit.client(0), kit.client(0));
    kit.stat(old, create("/a", CreateMode::Persistent));
    kit.ensemble.isolate(kit.now, 0);
    let lost = kit.send(old, create("/lost", CreateMode::Persistent));
    let epoch = kit.ensemble.zxid(0) >> 32;
    kit.run(ms(9 * SECOND));
    kit.ok(idle, Op::Ping);
    kit.run(ms(4 * SECOND));
    assert!(kit.is_closed(old) && kit.is_closed(idle) && !kit.has_reply(old, lost));
    let leader = kit.ensemble.leader().unwrap();
    assert_ne!(leader, 0);
    assert_eq!(kit.ensemble.zxid(leader), (epoch + 1) << 32);
    kit.ensemble.heal(kit.now, 0);
    kit.run(ms(SECOND));
    assert_eq!(kit.ensemble.nodes().len(), 1);
    assert!(kit.ensemble.is_serving(0) && kit.ensemble.stat(0, "/lost").is_none());
    // Sessions have survived: each got its whole timeout of the new leader.
    let again = kit.reconnect(old, 1);
    assert_eq!(kit.session(again), kit.session(old));
}

#[test]
fn what_a_majority_has_logged_survives_the_leader() {
    let mut kit = Kit::with(3, |config| config.hop(ms(10)..ms(11)));
    let c = kit.client(1);
    kit.run(ms(100));
    let xid = kit.send(c, create("/a", CreateMode::Persistent));
    // It has reached the leader and been proposed, but not committed.
    kit.run(ms(25));
    assert!(!kit.has_reply(c, xid) && kit.ensemble.stat(0, "/a").is_none());
    kit.ensemble.crash(kit.now, 0);
    kit.run(ms(SECOND));
    assert!(kit.is_closed(c));
    assert_ne!(kit.ensemble.leader().unwrap(), 0);
    assert!(kit.ensemble.stat(1, "/a").is_some() && kit.ensemble.stat(2, "/a").is_some());
    kit.ensemble.start(kit.now, 0);
    kit.run(ms(SECOND));
    assert!(kit.ensemble.stat(0, "/a").is_some());
}

#[test]
fn change_of_the_leader_elects_another() {
    let mut kit = Kit::new(3);
    let c = kit.client(0);
    kit.stat(c, create("/mine", CreateMode::Ephemeral));
    kit.ensemble.change_leader(kit.now);
    kit.run(ms(SECOND));
    let leader = kit.ensemble.leader().unwrap();
    assert!(leader != 0 && kit.is_closed(c));
    let session = kit.ensemble.sessions()[0];
    assert!(session.expires.unwrap() > kit.now + Duration::from_secs(9));
}

#[test]
fn without_a_majority_nobody_leads() {
    let mut kit = Kit::new(3);
    let c = kit.client(0);
    kit.ensemble.crash(kit.now, 1);
    kit.stat(c, create("/a", CreateMode::Persistent));
    kit.ensemble.crash(kit.now, 2);
    let xid = kit.send(c, create("/b", CreateMode::Persistent));
    kit.run(ms(3 * SECOND));
    assert!(kit.is_closed(c) && !kit.has_reply(c, xid));
    assert_eq!(kit.ensemble.leader(), None);
    kit.run(ms(60 * SECOND));
    // The proposal is in the log of the member that wins.
    kit.ensemble.start(kit.now, 1);
    kit.run(ms(SECOND));
    assert_eq!(kit.ensemble.leader(), Some(0));
    assert_eq!(kit.ensemble.nodes().len(), 2);
}

#[test]
fn moved_session_closes_the_connection_of_an_old_request() {
    let mut kit = Kit::new(3);
    let c = kit.client(1);
    kit.stat(c, create("/mine", CreateMode::Ephemeral));
    let moved = kit.reconnect(c, 2);
    kit.stat(moved, exists("/mine", false));
    // The old server still answers reads and pings.
    kit.stat(c, exists("/mine", false));
    kit.ok(c, Op::Ping);
    let xid = kit.send(c, delete("/mine", -1));
    kit.run(ms(10));
    assert!(kit.is_closed(c) && !kit.has_reply(c, xid));
    assert!(!kit.is_closed(moved) && kit.ensemble.nodes().len() == 1);
}

/// A server matches a commit with its requests by session and number only.
#[test]
fn number_used_again_after_a_reconnect_gets_the_result_of_the_old_request() {
    let mut kit = Kit::with(3, |config| config.hop(ms(5)..ms(6)));
    let c = kit.connect(1, 10_000, 0, 0);
    kit.run(ms(50));
    let old = kit.send(c, create("/old", CreateMode::Persistent));
    kit.run(ms(6));
    let moved = kit.reconnect(c, 2);
    let new = kit.send(moved, create("/new", CreateMode::Persistent));
    assert_eq!(old, new);
    kit.run(ms(100));
    assert_eq!(kit.ensemble.nodes().len(), 2);
    assert!(kit.has_reply(moved, new));
}

#[test]
fn sessions_of_a_follower_live_on_by_the_pings_it_reports() {
    let mut kit = Kit::new(3);
    let c = kit.connect(1, 4_000, 0, 0);
    for _ in 0..30 {
        kit.run(ms(SECOND));
        kit.ok(c, Op::Ping);
    }
    assert_eq!(kit.ensemble.sessions().len(), 1);
    kit.disconnect(c);
    kit.run(ms(8 * SECOND));
    assert!(kit.ensemble.sessions().is_empty());
    assert!(kit.ensemble.next_deadline().is_none(), "an idle ensemble has nothing to do");
}

#[test]
fn frozen_leader_is_replaced_and_learns_of_it() {
    let mut kit = Kit::new(3);
    let c = kit.client(0);
    kit.ensemble.freeze(kit.now, 0);
    kit.run(ms(11 * SECOND));
    assert_ne!(kit.ensemble.leader(), Some(0));
    kit.ensemble.thaw(kit.now, 0);
    kit.run(ms(4 * SECOND));
    assert!(kit.is_closed(c) && kit.ensemble.is_serving(0));
    assert_ne!(kit.ensemble.leader(), Some(0));
}

#[test]
fn frozen_follower_catches_up_with_what_waits_in_its_kernel() {
    let mut kit = Kit::new(3);
    let (a, b) = (kit.client(0), kit.client(1));
    kit.ensemble.freeze(kit.now, 1);
    kit.stat(a, create("/a", CreateMode::Persistent));
    kit.run(ms(5 * SECOND));
    kit.ensemble.thaw(kit.now, 1);
    kit.run(ms(10));
    assert!(!kit.is_closed(b) && kit.ensemble.stat(1, "/a").is_some());
    // The leader gives it up after five ticks.
    kit.ensemble.freeze(kit.now, 1);
    kit.run(ms(12 * SECOND));
    kit.ensemble.thaw(kit.now, 1);
    kit.run(ms(10));
    assert!(kit.is_closed(b));
    kit.run(ms(SECOND));
    assert!(kit.ensemble.is_serving(1));
}

#[test]
fn equal_histories_give_equal_ensembles() {
    let play = || {
        let mut kit = Kit::new(3);
        let c = kit.client(1);
        kit.stat(c, create("/a", CreateMode::Persistent));
        assert!(kit.names(c, "/").contains("a"));
        kit.ensemble.crash(kit.now, 2);
        kit.run(ms(20 * SECOND));
        kit.ensemble
    };
    assert_eq!(play(), play());
}

/// Regression: a member joined a leader that had been stopped since before the last election, and
/// whose other follower could not tell it that it had left. The member forgot what was committed.
#[test]
fn leader_that_was_replaced_gets_no_followers() {
    let mut kit = Kit::new(3);
    kit.ensemble.freeze(kit.now, 0);
    kit.run(ms(13 * SECOND));
    let leader = kit.ensemble.leader().unwrap();
    let other = 3 - leader;
    kit.ensemble.create(kit.now, "/new", b"");
    kit.run(ms(SECOND));
    kit.ensemble.isolate(kit.now, leader);
    kit.ensemble.crash(kit.now, other);
    kit.ensemble.start(kit.now, other);
    kit.ensemble.thaw(kit.now, 0);
    for _ in 0..20 {
        kit.run(ms(SECOND));
        assert!(kit.ensemble.stat(other, "/new").is_some());
    }
    kit.ensemble.heal(kit.now, leader);
    kit.run(ms(15 * SECOND));
    assert!((0..3).all(|member| kit.ensemble.is_serving(member) && kit.ensemble.stat(member, "/new").is_some()));
}

#[test]
fn new_leader_gives_a_session_the_timeout_of_its_creation() {
    let mut kit = Kit::with(3, |config| config.session_timeouts(1, ms(20_000)..=ms(30_000)));
    let created = kit.connect(0, 4_000, 0, 0);
    let moved = kit.reconnect(created, 1);
    let expires = |kit: &Kit| kit.ensemble.sessions()[0].expires.unwrap().since(kit.now);
    assert!((ms(19_000)..ms(22_000)).contains(&expires(&kit)), "{:?}", expires(&kit));
    kit.ok(moved, Op::Ping);
    kit.ensemble.change_leader(kit.now);
    kit.run(ms(SECOND));
    assert!((ms(3_000)..ms(6_000)).contains(&expires(&kit)), "{:?}", expires(&kit));
}
