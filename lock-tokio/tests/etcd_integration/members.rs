//! Three members, some of which die or are paused.
// E9

use core::time::Duration;

use lock_testkit::{Etcd, EtcdCluster, Stopwatch};
use lock_tokio::etcd::{Config, Endpoint};
use lock_tokio::{Blocked, Client, Guard, Loss};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::kit::{
    calls, cluster_config, in_time, ms, release, shut_down, take, timed_out, wait_for, wait_until_blocked, watches,
    with,
};

/// Returns the member that the client is connected to, by sending a transaction. No other client
/// may send any meanwhile.
async fn member_of(cluster: &EtcdCluster, client: &Client) -> usize {
    let count = || cluster.members().iter().map(|member| calls(member, "Txn")).collect::<Vec<_>>();
    let before = count();
    release(take(client, "probe").await).await;
    let reached: Vec<_> = (0..).zip(before.iter().zip(count())).filter(|(_, (a, b))| *a < b).collect();
    let [(member, _)] = reached[..] else { panic!("{reached:?}") };
    member
}

fn other_than(cluster: &EtcdCluster, member: usize) -> Client {
    let others = cluster.members().iter().enumerate().filter(|(n, _)| *n != member);
    let others = others.map(|(_, member)| Endpoint::parse(&member.address().to_string()).unwrap());
    with(Config::new(others).session_ttl(ms(6000)).release_within(Duration::from_secs(10)))
}

/// Waits until the lock is renewed beyond what was confirmed before.
async fn stays_held(guard: &Guard) {
    let before = guard.valid_until();
    wait_for("it is renewed", || guard.valid_until().duration_since(before) > guard.ttl() / 2).await;
    assert!(guard.is_held());
}

async fn assert_clean(member: &Etcd) {
    crate::kit::assert_clean(member).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_survives_killed_member() {
    let mut cluster = EtcdCluster::start(3);
    let client = with(cluster_config(&cluster));
    let guard = take(&client, "a").await;
    let at = member_of(&cluster, &client).await;
    cluster.member(at).kill();
    stays_held(&guard).await;
    release(take(&client, "b").await).await;
    release(guard).await;
    shut_down(client).await;
    assert_clean(&cluster.members()[(at + 1) % 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_survives_killed_member() {
    let mut cluster = EtcdCluster::start(3);
    let client = with(cluster_config(&cluster));
    let at = member_of(&cluster, &client).await;
    let holder = other_than(&cluster, at);
    let guard = take(&holder, "a").await;
    let mut waiting = client.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    wait_for("it watches", || watches(&cluster.members()[at]) == 2).await;
    cluster.member(at).kill();
    // The waiter is back in its place, and gets events from another member.
    wait_for("it watches again", || {
        cluster.members().iter().enumerate().any(|(n, member)| n != at && watches(member) >= 2)
    })
    .await;
    let before = guard.fence();
    release(guard).await;
    let guard = in_time("the lock", waiting).await.unwrap();
    assert!(guard.fence() > before);
    release(guard).await;
    shut_down(client).await;
    shut_down(holder).await;
    assert_clean(&cluster.members()[(at + 1) % 3]).await;
}

/// A member stops with requests in flight. Repeated on another member, they count once.
// E3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisition_survives_killed_member() {
    let mut cluster = EtcdCluster::start(3);
    let client = with(cluster_config(&cluster));
    let at = member_of(&cluster, &client).await;
    cluster.member(at).pause();
    let guards = take_many(&client).await;
    cluster.member(at).kill();
    for guard in guards {
        assert!(guard.is_held());
        release(guard).await;
    }
    shut_down(client).await;
    assert_clean(&cluster.members()[(at + 1) % 3]).await;
}

/// The same with a member that resumes. What it executes is undone before the session ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_executed_by_resumed_member_are_undone() {
    let cluster = EtcdCluster::start(3);
    let client = with(cluster_config(&cluster));
    let held = take(&client, "held").await;
    let at = member_of(&cluster, &client).await;
    cluster.members()[at].pause();
    for guard in take_many(&client).await {
        release(guard).await;
    }
    stays_held(&held).await;
    cluster.members()[at].resume();
    let other = &cluster.members()[(at + 1) % 3];
    wait_for("only what is held is left", || other.keys().len() == 1).await;
    stays_held(&held).await;
    assert_eq!(other.keys().len(), 1, "nothing came back");
    release(held).await;
    shut_down(client).await;
    assert_clean(other).await;
}

async fn take_many(client: &Client) -> Vec<Guard> {
    let mut tasks = JoinSet::new();
    for n in 0..5 {
        let lock = client.lock(format!("many{n}"));
        tasks.spawn(async move { in_time("acquire", lock.acquire()).await.unwrap() });
    }
    tasks.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_and_waiter_survive_killed_leader() {
    let mut cluster = EtcdCluster::start(3);
    let leader = cluster.leader();
    // Either one client is connected to the leader, or none is.
    let (holder, waiter) = (with(cluster_config(&cluster)), other_than(&cluster, leader));
    let guard = take(&holder, "a").await;
    let mut waiting = waiter.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    cluster.member(leader).kill();
    stays_held(&guard).await;
    assert_eq!(waiting.blocked(), Some(Blocked::Held));
    release(guard).await;
    release(in_time("the lock", waiting).await.unwrap()).await;
    shut_down(holder).await;
    shut_down(waiter).await;
    assert_clean(&cluster.members()[(leader + 1) % 3]).await;
}

/// Without a majority nothing is confirmed, and the lock is lost in time, whichever member is left.
// T1, T2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_majority_expires_hold_and_waiter_recovers() {
    let mut cluster = EtcdCluster::start(3);
    let ttl = ms(3000);
    let client = with(cluster_config(&cluster).session_ttl(ttl));
    let guard = take(&client, "a").await;
    let at = member_of(&cluster, &client).await;
    // Kill the client's member and another one.
    let killed = [at, (at + 1) % 3];
    for member in killed {
        cluster.member(member).kill();
    }
    let since = Stopwatch::start();
    let waiting = tokio::spawn(client.lock("a").acquire());
    let remaining = guard.remaining();
    assert!(guard.is_held() && remaining <= ttl);
    in_time("the warning", guard.observer().at_risk()).await;
    assert_eq!(in_time("the loss", guard.lost()).await, Loss::Expired);
    since.assert_in(since.elapsed(), remaining.saturating_sub(ms(50))..=ttl + ms(1000), "the loss");
    assert!(!guard.is_held());
    let report = timed_out(in_time("a wait", client.lock("b").wait(ms(500)).acquire()).await);
    assert!(!report.is_busy(), "{report}");
    drop(guard);
    for member in killed {
        cluster.member(member).restart_without_waiting();
    }
    let guard = in_time("the lock", waiting).await.unwrap().unwrap();
    stays_held(&guard).await;
    release(guard).await;
    shut_down(client).await;
    assert_clean(&cluster.members()[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_and_hand_over_survive_paused_member() {
    let cluster = EtcdCluster::start(3);
    let client = with(cluster_config(&cluster));
    let guard = take(&client, "a").await;
    let at = member_of(&cluster, &client).await;
    let other = other_than(&cluster, at);
    let mut waiting = other.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    let member = &cluster.members()[at];
    member.pause();
    stays_held(&guard).await;
    release(guard).await;
    let guard = in_time("the lock", waiting).await.unwrap();
    member.resume();
    sleep(ms(100)).await;
    assert!(guard.is_held());
    release(guard).await;
    shut_down(client).await;
    shut_down(other).await;
    assert_clean(member).await;
}
