//! Taking a lock again: the place of a node whose number follows directly is known.
// ZK10

use super::*;
use crate::zookeeper::codec::ErrorCode;

impl ZooKeeperClients {
    fn cycle(&mut self) {
        let (lock, _) = self.hold(0);
        self.release(0, lock);
        assert_eq!(self.released(0, lock), Some(Release::Released));
    }

    fn lists(&self) -> usize {
        self.server.count(OpCode::GetChildren)
    }

    /// The nodes of others, which take numbers.
    fn others(&mut self, numbers: core::ops::Range<i32>) {
        self.server.next_number = Some(numbers.end);
        numbers.for_each(|number| self.server.put(&alloc::format!("{LOCK}/_c_x-lock-{number:010}"), 99));
    }
}

#[test]
fn lock_that_nobody_else_takes_is_taken_again_without_list() {
    let mut w = ZooKeeperClients::new(1);
    w.cycle();
    w.cycle();
    let lists = w.lists();
    for _ in 0..5 {
        w.cycle();
    }
    assert_eq!(w.lists(), lists);
    // It is forgotten after a while, and the name with it.
    w.pass(1_100);
    w.cycle();
    assert_eq!(w.lists(), lists + 1);
}

#[test]
fn number_that_does_not_follow_shows_that_others_came() {
    let mut w = ZooKeeperClients::new(1);
    w.cycle();
    w.cycle();
    w.others(2..3);
    let lists = w.lists();
    let lock = w.acquire(0);
    assert_eq!((w.granted(0, lock), w.lists()), (None, lists + 1));
    w.server.remove(&alloc::format!("{LOCK}/_c_x-lock-0000000002"));
    w.run();
    w.granted(0, lock).unwrap();
    // The next list is sent together with the create again.
    w.release(0, lock);
    w.server.mute = Some((OpCode::Create, false));
    let lists = w.lists();
    w.acquire(0);
    assert_eq!(w.lists(), lists + 1);
}

#[test]
fn numbers_of_a_new_queue_are_not_taken_for_those_of_the_old_one() {
    for (writes, follows) in [(3, true), (4, false)] {
        let mut w = ZooKeeperClients::new(1);
        w.cycle();
        w.cycle();
        let lists = w.lists();
        if follows {
            // Less than a new queue takes.
            (0..writes).for_each(|_| w.server.put("/other", 0));
        } else {
            w.server.remove(LOCK);
            w.server.put(LOCK, 0);
            w.others(0..2);
        }
        let lock = w.acquire(0);
        assert_eq!((w.granted(0, lock).is_some(), w.lists() == lists), (follows, follows));
    }
}

#[test]
fn own_node_that_was_not_deleted_is_waited_for() {
    let mut w = ZooKeeperClients::new(1);
    w.cycle();
    w.cycle();
    let (lock, _) = w.hold(0);
    w.server.refused = Some((OpCode::Delete, ErrorCode::BAD_VERSION));
    w.release(0, lock);
    let again = w.acquire(0);
    assert_eq!((w.granted(0, again), w.queue().len()), (None, 2));
    w.server.refused = None;
    w.pass(1_000);
    w.granted(0, again).unwrap();
    assert_eq!(w.queue().len(), 1);
}

/// Three clients take turns: the third one knows of the first, which is behind it.
fn turns() -> (ZooKeeperClients, LockId, LockId) {
    let mut w = ZooKeeperClients::new(3);
    let (first, _) = w.hold(0);
    let (second, third) = (w.acquire(1), w.acquire(2));
    w.release(0, first);
    w.granted(1, second).unwrap();
    let first = w.acquire(0);
    w.release(1, second);
    w.granted(2, third).unwrap();
    (w, first, third)
}

#[test]
fn waiter_follows_the_newest_node_without_list() {
    let (mut w, first, third) = turns();
    w.release(2, third);
    let lists = w.lists();
    let third = w.acquire(2);
    assert_eq!(w.granted(2, third), None);
    w.granted(0, first).unwrap();
    w.release(0, first);
    w.granted(2, third).unwrap();
    assert_eq!(w.lists(), lists, "the holder was the only one ahead");
}

#[test]
fn newest_node_may_be_gone_when_it_is_followed() {
    let (mut w, first, third) = turns();
    w.clients[0].abandon(w.now, first);
    w.run();
    w.release(2, third);
    let third = w.acquire(2);
    w.granted(2, third).unwrap();
}

#[test]
fn single_attempt_does_not_trust_the_newest_node_to_be_there() {
    for gone in [true, false] {
        let (mut w, first, third) = turns();
        if gone {
            w.clients[0].abandon(w.now, first);
            w.run();
        }
        w.release(2, third);
        let third = w.request(2, &Acquire::new("l").wait(Wait::Try));
        assert_eq!(w.granted(2, third).is_some(), gone);
    }
}
