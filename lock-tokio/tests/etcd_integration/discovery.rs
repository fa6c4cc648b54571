//! Members that are not in the settings.

use lock_testkit::{Etcd, EtcdCluster};
use lock_tokio::etcd::{Config, Endpoint};

use crate::kit::{assert_clean, calls, ms, release, shut_down, take, wait_for, with};

/// Bytes of the requests that the member received, refused ones included.
fn received(member: &Etcd) -> u64 {
    member.metric("etcd_network_client_grpc_received_bytes_total", "")
}

fn endpoint(member: &Etcd, priority: u16) -> Endpoint {
    Endpoint::srv(priority, 0, member.port(), "127.0.0.1").unwrap()
}

/// Only one member is in the settings. The learner refuses what locks need.
// N22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reported_members_replace_killed_one_and_learner_is_not_used() {
    let mut cluster = EtcdCluster::start(3);
    let learner = cluster.start_learner();
    let before = received(&learner);
    let config = Config::new([endpoint(&cluster.members()[0], 0)]).session_ttl(ms(6_000));
    let client = with(config.sync_members(ms(1_000)));
    let lists = calls(&cluster.members()[0], "MemberList");
    let guard = take(&client, "a").await;
    wait_for("the members", || calls(&cluster.members()[0], "MemberList") > lists).await;
    release(take(&client, "b").await).await;
    cluster.member(0).kill();
    let from = guard.valid_until();
    wait_for("renewals past the TTL", || guard.valid_until().duration_since(from) > ms(6_000)).await;
    assert!(guard.is_held());
    release(take(&client, "b").await).await;
    release(guard).await;
    shut_down(client).await;
    assert_clean(&cluster.members()[1]).await;
    assert_eq!(received(&learner), before);
}

/// The learner is preferred, by mistake.
// E9, N22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn learner_in_settings_is_skipped() {
    let cluster = EtcdCluster::start(1);
    let learner = cluster.start_learner();
    let before = received(&learner);
    let client = with(Config::new([endpoint(&learner, 0), endpoint(&cluster.members()[0], 1)]));
    for _ in 0..3 {
        release(take(&client, "a").await).await;
    }
    assert!(received(&learner) > before, "it was tried");
    shut_down(client).await;
    assert_clean(&cluster.members()[0]).await;
}
