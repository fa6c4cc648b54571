//! Ensembles whose members die or are cut off.

use std::time::Instant;

use lock_testkit::{ZooKeeper, ZooKeeperEnsemble};
use lock_tokio::zookeeper::Config;
use lock_tokio::{Blocked, Loss};

use crate::kit::{TTL, ensemble_config, in_time, ms, release, shut_down, take, wait_for, wait_until_blocked, with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_and_waiter_survive_death_of_each_member() {
    let mut ensemble = ZooKeeperEnsemble::start();
    let (holder, waiter) = (with(ensemble_config(&ensemble)), with(ensemble_config(&ensemble)));
    let guard = take(&holder, "a").await;
    let mut waiting = waiter.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    wait_for("both are in the queue", || ensemble.members()[0].children("/a").len() == 2).await;
    let nodes = ensemble.members()[0].children("/a");
    for member in 0..3 {
        ensemble.member(member).kill();
        // The others go on, with a new leader if this one led.
        release(take(&holder, "b").await).await;
        ensemble.member(member).restart();
        assert!(guard.is_held(), "member {member}");
    }
    assert_eq!(ensemble.members()[ensemble.leader()].children("/a"), nodes, "both kept their places");
    release(guard).await;
    release(in_time("the next holder", waiting).await.unwrap()).await;
    for client in [holder, waiter] {
        shut_down(client).await;
    }
    let leader = &ensemble.members()[ensemble.leader()];
    assert_eq!((leader.children("/a"), leader.children("/b")), (vec![], vec![]));
}

/// A cut-off follower answers pings, while the leader ends the session and lets the next one in.
/// The holder knows before.
// ZK1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_on_cut_off_follower_is_lost_before_next_grant() {
    // The follower goes on for ten seconds.
    let ensemble = ZooKeeper::builder().sync_limit(50).links().start_ensemble(3);
    let (leader, follower) = (ensemble.leader(), ensemble.follower());
    let [at_leader, at_follower] = [leader, follower]
        .map(|member| with(Config::parse(&ensemble.members()[member].url()).unwrap().session_ttl(TTL)));
    let guard = take(&at_follower, "a").await;
    let waiting = tokio::spawn({
        let lock = at_leader.lock("a");
        async move {
            let guard = lock.acquire().await.unwrap();
            (Instant::now(), guard)
        }
    });
    wait_for("both are in the queue", || ensemble.members()[leader].children("/a").len() == 2).await;
    ensemble.isolate(follower);
    let isolated = Instant::now();
    let loss = in_time("the loss", guard.lost()).await;
    let lost = Instant::now();
    // The follower still serves reads, and knows nothing.
    assert_eq!(ensemble.members()[follower].mode().as_deref(), Some("follower"));
    assert_eq!(loss, Loss::Expired);
    let (granted, next) = in_time("the next grant", waiting).await.unwrap();
    assert!(lost < granted, "two held it for {:?}", lost - granted);
    println!("lost after {:?}, granted after {:?}", lost - isolated, granted - isolated);
    assert!(next.fence() > guard.fence());
    ensemble.heal(follower);
    drop(guard);
    release(next).await;
    shut_down(at_leader).await;
    shut_down(at_follower).await;
    wait_for("nothing is left", || ensemble.members()[leader].children("/a").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_leader_is_replaced_and_hold_goes_on() {
    let ensemble = ZooKeeper::builder().sync_limit(5).start_ensemble(3);
    let client = with(ensemble_config(&ensemble).request_timeout(ms(1_000)));
    let guard = take(&client, "a").await;
    let paused = ensemble.leader();
    ensemble.members()[paused].pause();
    release(take(&client, "b").await).await;
    assert!(guard.is_held());
    ensemble.members()[paused].resume();
    release(guard).await;
    shut_down(client).await;
}
