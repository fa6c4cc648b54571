//! The check of the cluster.

use lock_testkit::{Etcd, EtcdCluster};
use lock_tokio::etcd::Config;

use crate::kit::{client, cluster_config, in_time, with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_connects_and_changes_nothing() {
    let etcd = Etcd::start();
    let revision = etcd.revision();
    let client = client(&etcd);
    for _ in 0..2 {
        in_time("ping", client.ping()).await.unwrap();
    }
    assert_eq!((etcd.revision(), etcd.leases()), (revision, Vec::new()));
}

/// A user without access to any key is logged in all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_checks_login() {
    let etcd = Etcd::builder().user("app", "secret", None).start();
    let ping = async |url: &str| in_time("ping", with(Config::parse(url).unwrap()).ping()).await;
    ping(&etcd.url_with("app", "secret")).await.unwrap();
    let error = ping(&etcd.url_with("app", "wrong")).await.unwrap_err();
    assert!(error.is_refused() && error.to_string().contains("authentication failed"), "{error}");
    let error = ping(&format!("etcd://{}", etcd.address())).await.unwrap_err();
    assert!(error.is_refused() && error.to_string().contains("user name is empty"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_needs_majority_of_members() {
    let mut cluster = EtcdCluster::start(3);
    in_time("ping", with(cluster_config(&cluster)).ping()).await.unwrap();
    cluster.member(0).kill();
    // A change of the leader fails a ping.
    let retry = async { while with(cluster_config(&cluster)).ping().await.is_err() {} };
    in_time("ping", retry).await;
    cluster.member(1).kill();
    let error = in_time("ping", with(cluster_config(&cluster)).ping()).await.unwrap_err();
    assert!(error.is_unreachable() && !error.is_refused(), "{error}");
}
