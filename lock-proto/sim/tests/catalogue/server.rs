//! Cases F and O: failovers, restarts and error reports.

use lock_proto::redis::{Protocol, Wake};
use lock_proto::{Acquire, Answer, Expiry, Failure, Loss, Release, Secret, Wait};
use lock_sim::World;
use lock_sim::redis::{Condition, ServedSlots, User};

use super::*;

// A9
#[test]
fn catalogue_f1_grant_forgotten_by_server_is_fenced() {
    for seed in 0..10 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        w.expect_violation();
        let first = hold(&mut w, 0, Acquire::new("a"));
        w.restart_node(0, false);
        let second = hold(&mut w, 1, Acquire::new("a"));
        assert_eq!(w.overlaps(), 1, "{:?}", w.violations());
        assert!(w.grant(1, second).unwrap().fence > w.grant(0, first).unwrap().fence, "seed {seed}");
        w.expect(secs(4), "the first is notified by its next renewal", |w| lost(w, 0, first) == Some(Loss::Taken));
        assert_eq!(release_and_wait(&mut w, 0, first), Release::Taken);
        assert!(w.is_held(1, second));
    }
}

// P1, P2
#[test]
fn catalogue_f4_unexecuted_commands_are_retried() {
    for (seed, condition) in (0..12).map(|seed| (seed, [Condition::ReadOnly, Condition::Loading][seed as usize % 2])) {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        let held = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        warm(&mut w, 1);
        w.on_node(0, "SCRIPT FLUSH", |node, _| node.flush_scripts());
        w.run_for(secs(5));
        assert!(w.is_held(0, held), "seed {seed}\n{}", w.log());
        w.on_node(0, "SCRIPT FLUSH", |node, _| node.flush_scripts());
        let other = hold(&mut w, 1, Acquire::new("b"));
        w.on_node(0, "SCRIPT FLUSH", |node, _| node.flush_scripts());
        assert_eq!(release_and_wait(&mut w, 1, other), Release::Released);
        // A new server with the data but without the scripts, which is not ready yet.
        w.restart_node(0, true);
        w.set_condition(0, condition, true);
        let waiting = w.acquire(1, Acquire::new("b"));
        w.run_for(secs(1));
        assert!(w.is_held(0, held) && !w.is_over(1, waiting), "seed {seed}\n{}", w.log());
        w.set_condition(0, condition, false);
        w.expect(secs(1), "the waiter has it", |w| w.is_held(1, waiting));
        w.run_for(secs(5));
        assert!(w.is_held(0, held), "seed {seed}\n{}", w.log());
        assert_eq!(release_and_wait(&mut w, 0, held), Release::Released);
    }
}

// H2, A9
#[test]
fn catalogue_f6_evicted_key_is_loss_and_fencing_token_still_grows() {
    for seed in 0..10 {
        let mut w = World::redis(1).seed(seed).build();
        let first = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        w.run_for(secs(2));
        for key in ["a", "lock-proto:fence"] {
            assert!(w.on_node(0, "evicted", |node, now| node.remove(now, key)));
        }
        w.expect(ms(1_100), "the loss is reported", |w| lost(w, 0, first) == Some(Loss::Gone));
        let second = hold(&mut w, 0, Acquire::new("a"));
        assert!(w.grant(0, second).unwrap().fence > w.grant(0, first).unwrap().fence, "seed {seed}");
    }
}

// A5, Q4
#[test]
fn catalogue_o1_error_reports_every_node() {
    type InjectFault = fn(&mut World);
    type IsExpected = fn(&Answer) -> bool;
    const LAST: [(InjectFault, IsExpected); 3] = [
        (
            |w| w.on_node(4, "SET a other", |node, now| node.insert(now, "a", "other", Some(secs(30)))),
            |answer| matches!(answer, Answer::Taken(Expiry::Unknown | Expiry::In(_))),
        ),
        (|w| w.set_condition(4, Condition::OutOfMemory, true), |answer| matches!(answer, Answer::Rejected(_))),
        (|_| {}, |answer| matches!(answer, Answer::Unknown(_))),
    ];
    for (which, (inject_fault, is_expected)) in LAST.into_iter().enumerate() {
        let mut w = World::redis(5).seed(which as u64).build();
        warm(&mut w, 0);
        // Each node has a different fault. The last one replies last.
        w.pause_node(1);
        w.kill_node(2);
        w.restart_node(3, false);
        w.run_for(ms(50));
        w.slow(0, 4, lock_sim::Direction::ToClient, ms(20)..ms(21));
        inject_fault(&mut w);
        let lock = w.acquire(0, Acquire::new("a").wait(Wait::Try));
        if which == 2 {
            w.expect(ms(5), "it is executed", |w| w.get(4, "a").is_some());
            w.run_for(ms(5));
            w.drop_connections(0, 4);
        }
        w.expect(secs(1), "it has failed", |w| w.is_over(0, lock));
        let Some(Failure::TimedOut(report)) = failure(&w, 0, lock) else { panic!("{:?}", w.events(0, lock)) };
        let [granted, silent, down, recently_restarted, last] = &*report.nodes else { panic!("{report}") };
        assert!(matches!(granted, Answer::Granted), "{report}");
        assert!(matches!(silent, Answer::Silent), "{report}");
        assert!(matches!(down, Answer::Unreachable(_)), "{report}");
        assert!(matches!(recently_restarted, Answer::RecentlyRestarted), "{report}");
        assert!(is_expected(last), "{report}");
        let text = report.to_string();
        assert!((0..5).all(|node| text.contains(&format!("node {node}: "))), "{text}");
        assert_eq!(report.is_busy(), which == 0, "{report}");
    }
}

/// A server in cluster mode is rejected with a clear error before anything is taken.
// P2
#[test]
fn cluster_is_refused_before_any_key_is_written() {
    // P2
    for (nodes, protocol, slots) in [
        (1, Protocol::Resp3, ServedSlots::All),
        (1, Protocol::Resp3, ServedSlots::None),
        (3, Protocol::Resp2, ServedSlots::All),
        (3, Protocol::Resp3, ServedSlots::None),
        (1, Protocol::Resp2, ServedSlots::All),
    ] {
        // A single node rejects the take with its two keys; its mode was not requested.
        let checks_server = nodes > 1 || protocol == Protocol::Resp3;
        let mut builder = World::redis(nodes).config(move |config| config.fencing(!checks_server).quarantine(secs(1)));
        for node in 0..nodes {
            builder = builder.node(node, |config| config.uptime(secs(60)).cluster(slots));
            builder = builder.endpoint(node, |at| at.protocol = protocol);
        }
        let mut w = builder.build();
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(1)));
        w.expect(ms(100), "it is refused", |w| failure(w, 0, lock).is_some());
        let Some(Failure::Refused(report)) = failure(&w, 0, lock) else { panic!("{:?}", w.events(0, lock)) };
        assert!(report.to_string().contains("(Redis Cluster is not supported)"), "{report}");
        for node in 0..nodes {
            assert_eq!((w.keys(node), w.total_calls(node)), (vec![], u64::from(!checks_server)));
        }
    }
}

/// A user with access to the lock's key alone can acquire, poll and release without delay.
#[test]
fn permission_for_lock_key_alone_is_sufficient() {
    // U1
    let user = || User::new("app").password("secret").keys(["a"]).channels([]);
    let mut w = World::redis(1)
        .clients(2)
        .config(|config| config.fencing(false))
        .node(0, |config| config.user(user()))
        .endpoint(0, |at| {
            at.login.username = Some("app".into());
            at.login.password = Some(Secret::new("secret"));
        })
        .build();
    let first = hold(&mut w, 0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(secs(2));
    assert!(!w.is_over(1, second), "{:?}", w.events(1, second));
    w.release(0, first);
    w.expect(ms(20), "the release", |w| released(w, 0, first) == Some(Release::Released));
    w.expect(secs(2), "the other has it", |w| w.is_held(1, second));
    assert_eq!(release_and_wait(&mut w, 1, second), Release::Released);
    w.run_for(secs(1));
    assert_eq!(w.keys(0), [""; 0]);
}

/// A server logs out connected clients. They log in again, holders keep their locks and waiters
/// continue. A changed password is an error, and is not retried in a tight loop.
// P2
#[test]
fn logged_out_clients_log_in_again() {
    // P2
    for seed in 0..10 {
        let mut w = World::redis(1)
            .clients(2)
            .seed(seed)
            .node(0, |config| config.password("secret"))
            .endpoint(0, |at| at.login.password = Some(Secret::new("secret")))
            .build();
        let held = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        let waiting = w.acquire(1, Acquire::new("a").ttl(secs(3)));
        for _ in 0..5 {
            w.run_for(secs(2));
            w.on_node(0, "wants everybody to log in again", |node, now| node.log_out(now));
        }
        w.run_for(secs(3));
        assert!(w.is_held(0, held) && !w.is_over(1, waiting), "seed {seed}\n{}", w.log());
        assert_eq!(release_and_wait(&mut w, 0, held), Release::Released);
        w.expect(secs(2), "the waiter has it", |w| w.is_held(1, waiting));
        // Now with a password that the clients do not know.
        w.on_node(0, "has another password", |node, now| {
            node.set_user(now, User::new("default").password("other"));
            node.log_out(now);
        });
        let before = w.calls(0, "auth");
        w.run_for(secs(60));
        assert_eq!(lost(&w, 1, waiting), Some(Loss::Expired));
        let refused = w.acquire(0, Acquire::new("b"));
        w.expect(secs(2), "it is refused", |w| failure(w, 0, refused).is_some());
        let Some(Failure::Refused(report)) = failure(&w, 0, refused) else { panic!("{:?}", w.events(0, refused)) };
        assert!(report.to_string().contains("WRONGPASS"), "{report}");
        let tries = w.calls(0, "auth") - before;
        assert!((10..300).contains(&tries), "{tries} logins in a minute");
    }
}

/// A server that runs no scripts could neither renew nor release a lock.
#[test]
fn server_without_scripts_refuses_every_lock() {
    // P2
    for (nodes, fencing) in [(1, true), (1, false), (3, false)] {
        for error in [
            "ERR Could not find scripting engine 'lua'",
            "ERR This instance has Lua scripting support disabled",
            "ERR unknown command 'EVAL', with args beginning with: 'return 1' ",
        ] {
            let mut builder = World::redis(nodes).config(move |config| config.fencing(fencing));
            for node in 0..nodes {
                // The module was unloaded: the cache of scripts is empty.
                builder = builder.node(node, |config| config.refuse("eval", error));
            }
            let mut w = builder.build();
            let lock = w.acquire(0, Acquire::new("a"));
            w.expect(secs(1), "it is refused", |w| failure(w, 0, lock).is_some());
            let Some(Failure::Refused(report)) = failure(&w, 0, lock) else { panic!("{:?}", w.events(0, lock)) };
            assert!(report.to_string().contains("allow EVAL and EVALSHA"), "{report}");
            w.run_for(secs(60));
            let calls: u64 = (0..nodes).map(|node| w.total_calls(node)).sum();
            assert!(calls < 30, "{nodes} nodes: {calls} commands in a minute");
            assert!((0..nodes).all(|node| w.keys(node).is_empty()));
        }
    }
}

/// The server has become a replica. A client that only polls for a lock writes nothing while it is
/// held, and would stay there.
#[test]
fn polling_waiter_leaves_replica() {
    // P2, P5
    for seed in 0..5 {
        let mut w = World::redis(1).clients(2).seed(seed).config(|config| config.wake(Wake::Poll)).build();
        hold(&mut w, 0, Acquire::new("a").ttl(secs(60)));
        let waiting = w.acquire(1, Acquire::new("a"));
        w.expect(secs(1), "it waits", |w| was_blocked(w, 1, waiting, Blocked::Held));
        w.set_condition(0, Condition::ReadOnly, true);
        w.expect(secs(1), "it looks for another server", |w| was_blocked(w, 1, waiting, Blocked::Unreachable));
        w.set_condition(0, Condition::ReadOnly, false);
    }
}
