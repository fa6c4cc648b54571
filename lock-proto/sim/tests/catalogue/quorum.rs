//! Cases Q: several nodes.

use lock_proto::redis::{Client, Config, Endpoint, Protocol, script};
use lock_proto::{
    Acquire, Answer, ClientId, ConfigError, Failure, Instant, Invalid, LockClient, Misuse, Release, Renew, Target, Wait,
};
use lock_sim::redis::NodeConfig;
use lock_sim::{Direction, World};

use super::*;

fn rival(w: &mut World, node: usize, ttl: Duration) {
    w.on_node(node, "SET a rival", |node, now| node.insert(now, "a", "rival", Some(ttl)));
}

// Q3
#[test]
fn catalogue_q1_winner_also_takes_missing_nodes() {
    for seed in 0..20 {
        let mut w = World::redis(5).clients(2).seed(seed).build();
        warm(&mut w, 1);
        for node in 3..5 {
            rival(&mut w, node, ms(500));
        }
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        w.run_for(secs(2));
        let own = token(&w, 0, lock);
        assert!((0..5).all(|node| w.get(node, "a") == Some(&own[..])), "seed {seed}\n{}", w.log());
        for node in 0..2 {
            w.on_node(node, "DEL a", |node, now| node.remove(now, "a"));
        }
        let second = w.acquire(1, Acquire::new("a").wait(Wait::Try));
        w.expect(secs(1), "the second has lost its round", |w| w.is_over(1, second));
        assert!(failure(&w, 1, second).is_some());
        w.run_for(secs(20));
        assert!(w.is_held(0, lock), "seed {seed}\n{}", w.log());
    }
}

// Q3, Q6
#[test]
fn catalogue_q2_node_that_lost_data_gets_token_again() {
    for seed in 0..20 {
        let mut w = World::redis(3).clients(2).seed(seed).build();
        warm(&mut w, 1);
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        let own = token(&w, 0, lock);
        for node in [0, 1, 2, 0] {
            w.run_for(secs(1));
            w.restart_node(node, false);
            w.expect(secs(2), "it has the token again", |w| w.get(node, "a") == Some(&own[..]));
            let second = w.acquire(1, Acquire::new("a").wait(Wait::Try));
            w.expect(secs(1), "nobody else gets in", |w| w.is_over(1, second));
            assert!(failure(&w, 1, second).is_some() && w.is_held(0, lock), "seed {seed}\n{}", w.log());
        }
        assert!(lost(&w, 0, lock).is_none());
    }
}

// T1, Q4
#[test]
fn catalogue_q3_slow_replies_do_not_extend_validity() {
    for (seed, nodes) in (0..20).map(|seed| (seed, [1, 3, 5][seed as usize % 3])) {
        let mut w = World::redis(nodes).seed(seed).clock(0, Duration::ZERO, 0).build();
        warm(&mut w, 0);
        for node in 0..nodes {
            w.slow(0, node, Direction::ToClient, ms(200)..ms(300));
        }
        let sent = w.now();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(10)));
        assert!(w.now().since(sent) >= ms(200));
        let grant = w.grant(0, lock).unwrap();
        assert_eq!(grant.valid_until, sent + (secs(10) - ms(102)), "seed {seed}\n{}", w.log());
    }
}

// Q1
#[test]
fn catalogue_q4_round_ends_when_nodes_are_silent() {
    for seed in 0..10 {
        let mut w = World::redis(3).seed(seed).build();
        warm(&mut w, 0);
        (0..3).for_each(|node| w.pause_node(node));
        let start = w.now();
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(4)).wait(Wait::Try));
        w.expect(secs(1), "the round is over", |w| w.is_over(0, lock));
        assert_eq!(w.now().since(start), ms(500), "the request timeout");
    }
    let mut w = World::redis(3).config(|c| c.round_timeout(ms(600))).build();
    let refused = w.try_verb(0, |machine, now| machine.acquire(now, &Acquire::new("a").ttl(secs(2))));
    assert!(matches!(refused, Err(Misuse::Invalid(Invalid::RoundTimeout { .. }))), "{refused:?}");
}

// Q6
#[test]
fn catalogue_q5_equal_nodes_are_refused() {
    let hour = secs(3_600);
    let mut w = World::redis(3).node(2, |_| NodeConfig::new(1).uptime(hour).monitor(true)).build();
    let lock = w.acquire(0, Acquire::new("a"));
    w.expect(secs(1), "it has failed", |w| w.is_over(0, lock));
    assert!(matches!(failure(&w, 0, lock), Some(Failure::EqualNodes(..))), "{:?}", w.events(0, lock));
    w.run_for(secs(20));
    assert_clean(&w);

    let node = |host: &str| Endpoint {
        target: Target::Tcp { host: host.into(), port: 6379 },
        login: lock_proto::Login::default(),
        database: 0,
        client_name: None,
        protocol: Protocol::Resp2,
    };
    let twice = Config::new([node("one"), node("two"), node("one")]);
    let refused = Client::new(Instant::ZERO, twice, ClientId::from_bits(1), 1);
    assert!(matches!(refused, Err(ConfigError::EqualNodes(..))), "{refused:?}");
}

// P1, Q5
#[test]
fn catalogue_q6_resent_script_never_overtakes_delete() {
    let (mut repeated, mut refused) = (0, 0);
    for at in 0..40 {
        let mut w = World::redis(1).seed(at).build();
        warm(&mut w, 0);
        w.on_node(0, "SCRIPT FLUSH", |node, _| node.flush_scripts());
        if at % 4 < 2 {
            // The release script is already loaded: the delete runs while the take is unknown.
            command(&mut w, 0, &["SCRIPT", "LOAD", script::RELEASE.source]);
        }
        w.slow(0, 0, Direction::ToNode, ms(15)..ms(16));
        w.slow(0, 0, Direction::ToClient, ms(15)..ms(16));
        let lock = w.acquire(0, Acquire::new("a"));
        w.run_for(ms(2 * at));
        w.abandon(0, lock);
        w.run_for(ms(150));
        assert!(w.get(0, "a").is_none(), "left after {} ms\n{}", 2 * at, w.log());
        assert_never_back(&mut w, 1, secs(25));
        let log = w.log();
        let of = |kind| log.lines().filter(move |line| is_request(line, 0, kind, "a"));
        repeated += usize::from(of("take").count() == 2);
        refused += usize::from(of("take").count() == 1);
        let deleted = log.lines().skip_while(|line| !is_request(line, 0, "release", "a"));
        assert_eq!(
            deleted.filter(|line| is_request(line, 0, "take", "a")).count(),
            0,
            "left after {} ms\n{log}",
            2 * at
        );
    }
    assert!(repeated > 5 && refused > 5, "the take was repeated in {repeated} runs, and not any more in {refused}");

    for seed in 0..20 {
        let mut w = World::redis(3).seed(seed).build();
        warm(&mut w, 0);
        (0..2).for_each(|node| rival(&mut w, node, secs(60)));
        w.on_node(2, "SCRIPT FLUSH", |node, _| node.flush_scripts());
        w.slow(0, 2, Direction::ToNode, ms(15)..ms(25));
        // The second attempt is a script, because the first has left its node in doubt.
        let lock = w.acquire(0, Acquire::new("a").wait(Wait::For(ms(300))));
        w.expect(ms(301), "the wait is over", |w| w.is_over(0, lock));
        w.run_for(ms(200));
        assert!(w.get(2, "a").is_none(), "seed {seed}\n{}", w.log());
        let back = w.run_until(secs(25), |w| w.get(2, "a").is_some());
        assert!(!back, "seed {seed}\n{}", w.log());
    }
}

// Q1
#[test]
fn catalogue_q7_dead_nodes_do_not_delay_quorum() {
    for (seed, warm_up) in (0..20).map(|seed| (seed, seed % 2 == 0)) {
        let mut w = World::redis(5).seed(seed).build();
        if warm_up {
            warm(&mut w, 0);
        }
        // One node accepts data without replying; the other is partitioned.
        w.pause_node(1);
        w.partition(0, 3);
        for _ in 0..3 {
            let start = w.now();
            let lock = hold(&mut w, 0, Acquire::new("a").renew(Renew::Manual));
            assert!(w.now().since(start) < ms(5), "taken: seed {seed}\n{}", w.log());
            let start = w.now();
            w.extend(0, lock);
            w.expect(ms(5), "it is extended", |w| was_renewed(w, 0, lock));
            assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
            assert!(w.now().since(start) < ms(10), "released: seed {seed}\n{}", w.log());
        }
    }
}

// Q4
#[test]
fn catalogue_q8_timeout_of_slow_round_reports_each_node() {
    let mut w = World::redis(3).config(|c| c.round_timeout(ms(50))).build();
    warm(&mut w, 0);
    for node in 1..3 {
        w.slow(0, node, Direction::ToClient, ms(100)..ms(101));
    }
    let lock = w.acquire(0, Acquire::new("a").wait(Wait::Try));
    w.expect(ms(60), "the round is over", |w| w.is_over(0, lock));
    let Some(Failure::TimedOut(report)) = failure(&w, 0, lock) else { panic!("{:?}", w.events(0, lock)) };
    assert_eq!(*report.nodes, [Answer::Granted, Answer::Silent, Answer::Silent]);
    assert_eq!(report.to_string(), "waited 50ms; node 0: granted, node 1: no answer yet, node 2: no answer yet");
}

// U1
#[test]
fn catalogue_q9_node_without_grant_does_not_affect_release() {
    for (seed, nodes) in (0..20).map(|seed| (seed, [3, 5][seed as usize % 2])) {
        let mut w = World::redis(nodes).seed(seed).build();
        rival(&mut w, nodes - 1, secs(60));
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        w.run_for(ms(seed * 200));
        let start = w.now();
        assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released, "seed {seed}\n{}", w.log());
        assert!(w.now().since(start) < ms(5));
        w.run_for(secs(10));
        assert_eq!(w.get(nodes - 1, "a"), Some(&b"rival"[..]));
        assert!((0..nodes - 1).all(|node| w.get(node, "a").is_none()));
    }
}

// Q2
#[test]
fn catalogue_q10_split_votes_are_resolved() {
    let mut splits = 0;
    for seed in 0..10 {
        let mut w = World::redis(5).clients(5).seed(seed).build();
        (0..5).for_each(|client| warm(&mut w, client));
        let locks: Vec<_> = (0..5).map(|client| (client, w.acquire_for(client, Acquire::new("a"), ms(20)))).collect();
        w.expect(secs(3), "all have had it", |w| locks.iter().all(|(client, lock)| w.is_over(*client, *lock)));
        for (client, lock) in locks {
            assert_eq!(released(&w, client, lock), Some(Release::Released), "seed {seed}");
        }
        // A delete before the first grant releases part of a split vote.
        let log = w.log();
        let (contest, _) = log[log.find(" acquire a\n").unwrap()..].split_once("Granted").unwrap();
        splits += usize::from((0..5).any(|c| contest.lines().any(|line| is_request(line, c, "release", "a"))));
        w.run_for(secs(20));
        assert_clean(&w);
    }
    assert!(splits > 0, "no votes were split in any run");
}
