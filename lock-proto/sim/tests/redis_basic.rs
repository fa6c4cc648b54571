//! Basic scenarios of the Redis client in a simulated world, at the level of bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use core::time::Duration;
use lock_proto::{
    Acquire, Backoff, ByteClient, ClientId, ConnId, Drift, Event, Failure, Instant, LockClient, LockId, Loss, Machine,
    Operation, OperationEvent, Release, Renew, Wait,
};

use lock_proto::redis::{Client, Config, Output, Wake};
use lock_sim::{Direction, World};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn lost(w: &World, client: usize, lock: LockId) -> Option<Loss> {
    w.events(client, lock).iter().find_map(|event| if let Event::Lost(loss) = event { Some(*loss) } else { None })
}

fn released(w: &World, client: usize, lock: LockId) -> Option<Release> {
    w.events(client, lock).iter().find_map(|event| if let Event::Released(how) = event { Some(*how) } else { None })
}

fn failure(w: &World, client: usize, lock: LockId) -> Option<&Failure> {
    w.events(client, lock).iter().find_map(|event| if let Event::Failed(why) = event { Some(why) } else { None })
}

/// Checks that no lock is left and that only fence counters have no TTL.
fn assert_clean(w: &World, nodes: usize) {
    for node in 0..nodes {
        for key in w.keys(node) {
            let lives_on = w.node(node).pttl(w.now(), &key).is_none();
            assert!(!lives_on || key == "lock-proto:fence", "{key} stays on node {node}\n{}", w.log());
            assert!(key.contains("lock-proto:"), "the lock {key} stays on node {node}\n{}", w.log());
        }
    }
}

#[test]
fn acquire_and_release_need_one_command_each() {
    let mut w = World::redis(1).seed(1).build();
    let lock = w.acquire(0, Acquire::new("a"));
    w.expect(ms(50), "the lock is held", |w| w.is_held(0, lock));
    assert_eq!(w.total_calls(0), 1, "{}", w.log());
    let grant = *w.grant(0, lock).unwrap();
    assert_eq!(w.get(0, "a").unwrap(), grant.token.to_string().as_bytes());
    assert!(grant.fence.is_some());
    w.run_for(ms(5));
    w.release(0, lock);
    w.expect(ms(50), "it is released", |w| w.is_over(0, lock));
    assert_eq!(released(&w, 0, lock), Some(Release::Released));
    assert_eq!(w.total_calls(0), 2, "{}", w.log());
    w.run_for(secs(30));
    assert_eq!(w.total_calls(0), 2, "no requests follow\n{}", w.log());
    assert_eq!(w.keys(0), ["lock-proto:fence"]);
}

#[test]
fn lock_without_fencing_uses_plain_set_and_leaves_no_keys() {
    let mut w = World::redis(1).config(|c| c.fencing(false)).build();
    // The first take of a client is a script, to learn whether the server runs scripts (P2).
    for plain in [0, 1, 2] {
        let lock = w.acquire(0, Acquire::new(format!("a{plain}")));
        w.expect(ms(50), "the lock is held", |w| w.is_held(0, lock));
        assert_eq!(w.calls(0, "set"), plain, "{}", w.log());
        w.release(0, lock);
    }
    w.run_for(secs(30));
    assert!(w.keys(0).is_empty(), "{:?}", w.keys(0));
}

#[test]
fn lock_is_renewed_while_held() {
    let mut w = World::redis(1).seed(3).build();
    let lock = w.acquire(0, Acquire::new("a").ttl(secs(3)));
    w.run_for(secs(60));
    assert!(w.is_held(0, lock), "{}", w.log());
    let renewals = w.total_calls(0) - 1;
    assert!((60..=80).contains(&renewals), "{renewals} renewals of a TTL of 3 s in a minute");
    w.release(0, lock);
    w.run_for(secs(10));
    assert_clean(&w, 1);
}

#[test]
fn three_clients_exclude_each_other_and_all_acquire() {
    for seed in 0..20 {
        let mut w = World::redis(1).clients(3).seed(seed).build();
        let locks: Vec<_> =
            (0..30).map(|i| (i % 3, w.acquire_for(i % 3, Acquire::new("a").ttl(secs(2)), ms(20)))).collect();
        w.expect(secs(20), "all have had it", |w| locks.iter().all(|(client, lock)| w.is_over(*client, *lock)));
        for (client, lock) in locks {
            assert_eq!(released(&w, client, lock), Some(Release::Released), "seed {seed}");
        }
        assert_eq!(w.grants(), 30);
        w.run_for(secs(10));
        assert_clean(&w, 1);
    }
}

#[test]
fn waiter_is_woken_long_before_next_poll() {
    for seed in 0..20 {
        let poll = Backoff::fixed(secs(1));
        let mut w = World::redis(1).clients(2).seed(seed).config(move |c| c.poll(poll)).build();
        let first = w.acquire(0, Acquire::new("a"));
        w.expect(ms(50), "the first holds", |w| w.is_held(0, first));
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(1_700));
        assert!(!w.is_held(1, second));
        w.release(0, first);
        let start = w.now();
        w.expect(ms(900), "the second holds", |w| w.is_held(1, second));
        let took = w.now().since(start);
        assert!(took < ms(5), "seed {seed}: {took:?} from release to grant\n{}", w.log());
        w.release(1, second);
        w.run_for(secs(20));
        assert_clean(&w, 1);
        assert_eq!(w.node(0).blocked_count(), 0, "nobody waits any more");
    }
}

#[test]
fn restart_without_data_loses_lock_and_notifies_holder() {
    for seed in 0..20 {
        let mut w = World::redis(1).seed(seed).build();
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(6)));
        w.run_for(secs(1));
        assert!(w.is_held(0, lock));
        w.restart_node(0, false);
        w.expect(secs(6), "the loss is reported", |w| lost(w, 0, lock).is_some());
        assert_eq!(lost(&w, 0, lock), Some(Loss::Gone), "seed {seed}\n{}", w.log());
        assert!(!w.is_held(0, lock));
        w.release(0, lock);
        w.expect(secs(3), "the release is answered", |w| w.is_over(0, lock));
        assert_eq!(released(&w, 0, lock), Some(Release::Expired));
        w.run_for(secs(20));
        assert_clean(&w, 1);
    }
}

#[test]
fn restart_with_data_preserves_lock() {
    for seed in 0..20 {
        let mut w = World::redis(1).seed(seed).build();
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(6)));
        w.run_for(secs(1));
        w.kill_node(0);
        w.run_for(secs(2));
        w.restart_node(0, true);
        w.run_for(secs(30));
        assert!(w.is_held(0, lock), "seed {seed}\n{}", w.log());
    }
}

#[test]
fn loss_is_first_event_of_paused_holder() {
    for seed in 0..20 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        let first = w.acquire(0, Acquire::new("a").ttl(secs(1)));
        w.expect(ms(50), "the first holds", |w| w.is_held(0, first));
        let second = w.acquire(1, Acquire::new("a").ttl(secs(1)));
        w.run_for(ms(100));
        w.pause_client(0);
        w.expect(secs(3), "the second holds", |w| w.is_held(1, second));
        assert!(w.grant(1, second).unwrap().fence > w.grant(0, first).unwrap().fence);
        let before = w.events(0, first).len();
        w.resume_client(0);
        assert!(matches!(w.events(0, first).get(before), Some(Event::Lost(_))), "seed {seed}\n{}", w.log());
        assert!(!w.is_held(0, first));
        w.release(0, first);
        w.run_for(secs(1));
        assert_eq!(released(&w, 0, first), Some(Release::Taken), "seed {seed}");
        assert!(w.is_held(1, second), "the late release of the first takes nothing from the second");
    }
}

#[test]
fn quorum_works_with_two_of_five_nodes_dead() {
    for seed in 0..20 {
        let mut w = World::redis(5).clients(2).seed(seed).build();
        w.kill_node(1);
        w.kill_node(3);
        let first = w.acquire(0, Acquire::new("a").ttl(secs(2)));
        w.expect(secs(1), "the first holds", |w| w.is_held(0, first));
        let second = w.acquire(1, Acquire::new("a").ttl(secs(2)));
        w.run_for(secs(8));
        assert!(w.is_held(0, first), "seed {seed}\n{}", w.log());
        assert_eq!(w.grant(0, first).unwrap().fence, None, "a quorum has no fence");
        w.release(0, first);
        w.expect(secs(1), "the second holds", |w| w.is_held(1, second));
        w.release(1, second);
        w.run_for(secs(10));
        assert_clean(&w, 5);
    }
}

#[test]
fn quorum_fails_with_three_of_five_nodes_dead() {
    for seed in 0..20 {
        let mut w = World::redis(5).seed(seed).build();
        for node in [0, 2, 4] {
            w.kill_node(node);
        }
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(2)).wait(Wait::For(secs(3))));
        w.expect(secs(4), "it is over", |w| w.is_over(0, lock));
        let Some(Failure::TimedOut(report)) = failure(&w, 0, lock) else { panic!("{:?}", w.events(0, lock)) };
        assert!(!report.is_busy(), "{report}");
        w.run_for(secs(5));
        assert_clean(&w, 5);
    }
}

#[test]
fn lock_is_lost_when_majority_dies() {
    for seed in 0..20 {
        let mut w = World::redis(5).seed(seed).build();
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(2)));
        w.run_for(secs(1));
        assert!(w.is_held(0, lock));
        for node in [0, 2, 4] {
            w.kill_node(node);
        }
        w.expect(secs(3), "the loss is reported", |w| lost(w, 0, lock).is_some());
        assert_eq!(lost(&w, 0, lock), Some(Loss::Expired), "seed {seed}");
    }
}

/// Without the quarantine there would be two holders, with correct clocks and no paused process.
// Q6
#[test]
fn node_restarted_without_data_does_not_vote_at_once() {
    for seed in 0..20 {
        let mut w = World::redis(5).clients(2).seed(seed).build();
        // The first client reaches a bare majority.
        w.partition(0, 3);
        w.partition(0, 4);
        let first = w.acquire(0, Acquire::new("a").ttl(secs(3)));
        w.expect(secs(1), "the first holds", |w| w.is_held(0, first));
        w.run_for(ms(200));
        for node in 0..3 {
            w.partition(0, node);
        }
        // One of the three loses its data. Now three nodes are free for the second client.
        w.restart_node(2, false);
        let second = w.acquire(1, Acquire::new("a").ttl(secs(3)));
        w.run_for(secs(2));
        assert!(w.is_held(0, first) && !w.is_held(1, second), "seed {seed}\n{}", w.log());
        w.expect(secs(4), "the second holds when the first has ended", |w| w.is_held(1, second));
        assert!(lost(&w, 0, first).is_some());
    }
}

#[test]
fn requests_delayed_by_partition_do_not_affect_next_holder() {
    for seed in 0..40 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        // The reply to the first take is lost. Later requests run into the partition.
        w.run_for(ms(5));
        w.cut(0, 0, Direction::ToClient);
        let first = w.acquire(0, Acquire::new("a").ttl(secs(1)).wait(Wait::For(ms(700))));
        w.run_for(ms(100));
        w.cut(0, 0, Direction::ToNode);
        w.expect(secs(2), "the first gives up", |w| w.is_over(0, first));
        let second = w.acquire(1, Acquire::new("a").ttl(secs(1)));
        w.expect(secs(4), "the second holds", |w| w.is_held(1, second));
        w.heal_all();
        w.run_for(secs(5));
        assert!(w.is_held(1, second), "seed {seed}\n{}", w.log());
        w.release(1, second);
        w.run_for(secs(10));
        assert_clean(&w, 1);
    }
}

#[test]
fn resumed_server_leaves_no_stale_key() {
    for seed in 0..40 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        w.run_for(ms(5));
        w.pause_node(0);
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(2)).wait(Wait::For(secs(1))));
        w.expect(secs(2), "the wait runs out", |w| w.is_over(0, lock));
        w.run_for(secs(10));
        w.resume_node(0);
        // The take of the closed connection is executed now. The client deletes its key.
        w.run_for(ms(1_500));
        let next = w.acquire(1, Acquire::new("a").ttl(secs(2)));
        w.expect(ms(100), "another gets the lock at once", |w| w.is_held(1, next));
        w.release(1, next);
        w.run_for(secs(10));
        assert_clean(&w, 1);
    }
}

#[test]
fn dead_client_blocks_others_no_longer_than_its_ttl() {
    for seed in 0..20 {
        let mut w = World::redis(1).clients(3).seed(seed).build();
        let first = w.acquire(0, Acquire::new("a").ttl(secs(1)));
        w.expect(ms(50), "the first holds", |w| w.is_held(0, first));
        w.acquire(1, Acquire::new("a").ttl(secs(1)));
        w.run_for(ms(100));
        let third = w.acquire(2, Acquire::new("a").ttl(secs(1)));
        w.run_for(ms(100));
        // The holder dies, and so does the waiter before the third.
        w.kill_client(0);
        w.kill_client(1);
        w.expect(ms(1_200), "the third holds", |w| w.is_held(2, third));
    }
}

#[test]
fn clock_drift_within_bounds_preserves_exclusion() {
    for seed in 0..20 {
        let mut w = World::redis(1)
            .clients(3)
            .seed(seed)
            .node(0, |c| c.drift_ppm(4_000))
            .clock(0, secs(9), -4_000)
            .clock(1, secs(1), 4_000)
            .build();
        for i in 0..12 {
            w.acquire_for(i % 3, Acquire::new("a").ttl(ms(500)).renew(Renew::Manual), secs(2));
        }
        w.run_for(secs(40));
        assert_eq!(w.grants(), 12, "seed {seed}\n{}", w.log());
    }
}

#[test]
fn server_clock_jump_breaks_exclusion_and_checker_detects_it() {
    let mut w = World::redis(1).clients(2).seed(5).build();
    w.expect_violation();
    let first = w.acquire(0, Acquire::new("a").ttl(secs(10)));
    w.expect(ms(50), "the first holds", |w| w.is_held(0, first));
    w.jump_node_clock_forward(0, secs(11));
    let second = w.acquire(1, Acquire::new("a").ttl(secs(10)));
    w.expect(secs(1), "the second holds", |w| w.is_held(1, second));
    assert_eq!(w.overlaps(), 1, "{:?}", w.violations());
    assert!(w.grant(1, second).unwrap().fence > w.grant(0, first).unwrap().fence);
}

#[test]
fn excessive_drift_breaks_exclusion_and_checker_detects_it() {
    let tight = Drift { divisor: u32::MAX, margin: Duration::ZERO };
    let mut w = World::redis(1).clients(2).seed(8).config(move |c| c.drift(tight)).clock(0, secs(1), -200_000).build();
    w.expect_violation();
    w.acquire(0, Acquire::new("a").ttl(secs(5)).renew(Renew::Manual));
    w.run_for(ms(100));
    let second = w.acquire(1, Acquire::new("a").ttl(secs(5)));
    w.expect(secs(6), "the second holds", |w| w.is_held(1, second));
    assert!(w.overlaps() > 0);
}

#[test]
fn polling_alone_serves_all_waiters() {
    let mut w = World::redis(1).clients(4).seed(2).config(|c| c.wake(Wake::Poll)).build();
    let locks: Vec<_> = (0..4).map(|i| (i, w.acquire_for(i, Acquire::new("a"), ms(30)))).collect();
    w.expect(secs(5), "all have had it", |w| locks.iter().all(|(client, lock)| w.is_over(*client, *lock)));
    assert_eq!(w.calls(0, "blpop"), 0);
}

#[test]
fn same_seed_gives_same_log() {
    let run = |seed: u64| {
        let settings = |c: Config| c.poll(Backoff::fixed(ms(30)));
        let mut w = World::redis(3).clients(3).seed(seed).config(settings).build();
        for i in 0..9 {
            w.acquire_for(i % 3, Acquire::new("a").ttl(secs(1)), ms(40));
        }
        w.run_for(ms(200));
        w.pause_node(1);
        w.partition(2, 0);
        w.run_for(secs(2));
        w.resume_node(1);
        w.heal_all();
        w.restart_node(0, false);
        w.run_for(secs(3));
        (w.log_digest(), w.log())
    };
    assert_eq!(run(77), run(77));
    assert_ne!(run(77).0, run(78).0);
}

#[test]
fn next_deadline_matches_next_deadline_reason() {
    let settings = |c: Config| c.poll(Backoff::fixed(ms(30))).wake(Wake::Notify);
    let mut w = World::redis(3).clients(3).seed(9).config(settings).build();
    for i in 0..9 {
        w.acquire_for(i % 3, Acquire::new("a").ttl(secs(1)), ms(40));
    }
    w.kill_node(1);
    let mut requests = 0;
    w.run_until(secs(5), |w| {
        for client in 0..3 {
            let machine = w.machine(client);
            assert_eq!(machine.next_deadline(), machine.next_deadline_reason().map(|(at, _)| at));
            requests += 1;
        }
        false
    });
    assert!(requests > 100);
}

#[test]
fn silent_connection_is_pinged_while_lock_is_held_and_closed_once_idle() {
    let connects = |w: &World| w.log().matches("connected").count();
    let mut w = World::redis(1).seed(1).config(|config| config.idle_timeout(secs(100)).ping_after(secs(10))).build();
    let lock = w.acquire(0, Acquire::new("a").ttl(secs(90)));
    w.expect(ms(50), "the lock is held", |w| w.is_held(0, lock));
    w.run_for(secs(28));
    assert_eq!(w.calls(0, "ping"), 2, "two pings\n{}", w.log());
    w.run_for(secs(300));
    assert!(w.is_held(0, lock));
    w.release(0, lock);
    w.expect(ms(50), "it is released", |w| w.is_over(0, lock));
    let pings = w.calls(0, "ping");
    w.run_for(secs(111));
    assert_eq!(w.calls(0, "ping"), pings, "an idle connection is not pinged\n{}", w.log());
    let connected = connects(&w);
    let lock = w.acquire(0, Acquire::new("a"));
    w.expect(ms(50), "the lock is held again", |w| w.is_held(0, lock));
    assert_eq!(connects(&w), connected + 1, "it was closed, and is open again\n{}", w.log());
}

/// The client checks for idleness more often than it pings. Regression: with 70 s, it pinged only
/// after 140 s.
#[test]
fn idle_timeout_neither_shortens_nor_prolongs_ping_after() {
    for idle in [10, 70] {
        let config = move |config: Config| config.idle_timeout(secs(idle)).ping_after(secs(100));
        let mut w = World::redis(1).seed(1).config(config).build();
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(900)));
        w.expect(ms(50), "the lock is held", |w| w.is_held(0, lock));
        for (seconds, pings) in [(99, 0), (2, 1), (98, 1), (2, 2)] {
            w.run_for(secs(seconds));
            assert_eq!(w.calls(0, "ping"), pings, "{idle}: {}", w.log());
        }
    }
}

/// Regression: with pings after 70 s, the connection was closed only after 140 s.
#[test]
fn ping_after_does_not_prolong_idle_timeout() {
    let config = |config: Config| config.idle_timeout(secs(100)).ping_after(secs(70));
    let mut w = World::redis(1).seed(1).config(config).build();
    let lock = w.acquire(0, Acquire::new("a"));
    w.expect(ms(50), "the lock is held", |w| w.is_held(0, lock));
    w.release(0, lock);
    w.run_for(secs(99));
    assert_eq!(w.log().matches("disconnect").count(), 0, "{}", w.log());
    w.run_for(secs(2));
    assert_eq!(w.log().matches("disconnect").count(), 1, "{}", w.log());
}

/// Regression: it gave a connection 2 s to be opened.
#[test]
fn ping_waits_for_request_timeout() {
    let start = Instant::from_millis(1_000);
    let config = Config::parse("redis://127.0.0.1:1").unwrap().request_timeout(secs(5)).connect_timeout(secs(5));
    let mut client = Client::new(start, config, ClientId::from_bits(1), 2).unwrap();
    let id = client.start(start, Operation::Ping).unwrap();
    let Some(Output::Connect { conn, .. }) = client.poll_output() else { panic!("no connection") };
    let late = start + ms(4_999);
    client.handle_timeout(late);
    assert_eq!(client.poll_output(), None);
    client.handle_connected(late, conn);
    let written = client.outgoing(conn).len();
    client.consume(conn, written);
    client.handle_received(late, conn, b":0\r\n");
    assert_eq!(client.poll_output(), Some(Output::Operation { id, event: OperationEvent::Done }));
}

/// Regression: the connection was closed instead, and the name kept for ever.
#[test]
fn last_check_of_attempt_without_reply_precedes_close_of_idle_connection() {
    // A4
    let mut w = World::redis(1).seed(1).config(|config| config.idle_timeout(secs(10))).build();
    w.acquire_for(0, Acquire::new("a"), ms(1));
    w.run_for(secs(1));
    w.cut(0, 0, Direction::ToClient);
    w.acquire(0, Acquire::new("a").wait(Wait::Try));
    w.run_for(secs(3));
    w.heal(0, 0);
    w.run_for(secs(2));
    // Both are due when it goes on.
    w.pause_client(0);
    w.run_for(secs(60));
    w.resume_client(0);
    w.run_for(secs(2));
    w.shutdown(0, secs(5));
    w.expect(ms(50), "nothing is left to delete", |w| w.stopped(0) == Some(0));
}

/// The login of the connection for wake-ups has ended. That concerns no other connection.
#[test]
fn logged_out_wake_connection_leaves_command_connection_alone() {
    // P5
    let now = Instant::from_millis(1_000);
    let config = Config::parse("redis://:secret@127.0.0.1:1").unwrap();
    let mut client = Client::new(now, config, ClientId::from_bits(1), 2).unwrap();
    client.acquire(now, &Acquire::new("a")).unwrap();
    let connect = |client: &mut Client| loop {
        if let Output::Connect { conn, .. } = client.poll_output().unwrap() {
            client.handle_connected(now, conn);
            return conn;
        }
    };
    let answer = |client: &mut Client, conn: ConnId, replies: &str| {
        let written = client.outgoing(conn).len();
        client.consume(conn, written);
        client.handle_received(now, conn, replies.as_bytes());
    };
    let commands = connect(&mut client);
    answer(&mut client, commands, "+OK\r\n");
    answer(&mut client, commands, "*2\r\n:0\r\n:8000\r\n");
    let wake = connect(&mut client);
    answer(&mut client, wake, "+OK\r\n:7\r\n");
    answer(&mut client, wake, "-NOAUTH Authentication required.\r\n");
    let outputs: Vec<Output> = core::iter::from_fn(|| client.poll_output()).collect();
    let left = outputs.iter().filter_map(|output| {
        if let Output::Disconnect { conn, why } = output { Some((*conn, why.is_some())) } else { None }
    });
    assert_eq!(left.collect::<Vec<_>>(), [(wake, true)], "{outputs:?}");
}

/// The server's host is gone without a word, and the command connection comes up on the next one.
/// The wait follows it at once: by itself it would take seconds to notice.
#[test]
fn wait_follows_command_connection() {
    // A7, P5
    for seed in 0..10 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        let first = w.acquire(0, Acquire::new("a"));
        w.expect(ms(50), "it is held", |w| w.is_held(0, first));
        w.acquire(1, Acquire::new("a"));
        w.run_for(ms(500));
        assert_eq!(w.calls(0, "blpop"), 1, "{}", w.log());
        for direction in [Direction::ToNode, Direction::ToClient] {
            w.stall(1, 0, direction, secs(20));
        }
        let other = w.acquire(1, Acquire::new("b"));
        w.expect(secs(1), "the command connection is replaced", |w| w.is_held(1, other));
        w.run_for(ms(50));
        assert_eq!((w.calls(0, "blpop"), w.calls(0, "client|unblock")), (2, 0), "seed {seed}\n{}", w.log());
    }
}
