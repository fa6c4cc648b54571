//! Scenarios that only etcd has.

use core::time::Duration;
use std::net::TcpListener;

use lock_driver::{Client, OwnerKeyError, OwnerKeyExt as _};
use lock_proto::Loss;
use lock_testkit::{Etcd, EtcdCluster, TIMEOUT};

use crate::kit::MS;
use crate::{Kit, Runtime};

/// Waits until the clients have left nothing in the store.
async fn clean<R: Runtime>(kit: &Kit<R>, etcd: &Etcd) {
    kit.wait_for("all keys and leases are gone", || etcd.keys().is_empty() && etcd.leases().is_empty()).await;
}

pub async fn owner_key_revision_matches_store_and_grows_on_hand_over<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::start();
    let client = kit.client(&etcd.url());
    let guard = kit.take(&client, "a").await;
    let owner = guard.owner_key_guard().unwrap();
    let key = core::str::from_utf8(&owner.key).unwrap();
    assert_eq!(etcd.keys_of("a/"), [key]);
    let fields = etcd.etcdctl(&["get", key, "-w", "fields"]);
    assert!(fields.contains(&format!("\"ModRevision\" : {}", owner.mod_revision)), "{fields}");
    assert!(fields.contains(&format!("\"CreateRevision\" : {}", owner.create_revision)), "{fields}");
    let leadership = kit.in_time("elected", client.election("board").campaign("one")).await.unwrap();
    assert_eq!(etcd.keys_of("board/"), [String::from_utf8_lossy(&leadership.owner_key().unwrap().key)]);
    drop(leadership);
    // A local hand-over changes the key.
    let waiting = client.lock("a").acquire();
    drop(guard);
    let next = kit.in_time("the next holder", waiting).await.unwrap();
    let now = next.owner_key().unwrap();
    assert!((now.create_revision, now.mod_revision) > (owner.create_revision, owner.mod_revision), "{now:?} {owner:?}");
    // There is none after a loss.
    etcd.revoke(&etcd.leases()[0]);
    assert_eq!(kit.in_time("the loss", next.lost()).await, Loss::Gone);
    assert!(next.owner_key().is_none());
    assert_eq!(next.owner_key_guard(), Err(OwnerKeyError::Lost(Loss::Gone)));
    drop((next, client));
    clean(&kit, &etcd).await;
}

pub async fn wrong_login_and_missing_permission_are_refused<R: Runtime>(kit: Kit<R>) {
    let etcd = Etcd::builder().user("worker", "secret", Some("jobs/")).start();
    let client = kit.client(&etcd.url_with("worker", "secret"));
    kit.release(kit.take(&client, "jobs/1").await).await;
    let limited = |client: &Client, name: &str| client.lock(name).wait(Duration::from_secs(3)).acquire();
    let refused = kit.in_time("refused", limited(&client, "other")).await.unwrap_err();
    assert!(refused.is_refused(), "{refused}");
    let stranger = kit.client(&etcd.url_with("worker", "wrong"));
    let refused = kit.in_time("refused", limited(&stranger, "jobs/1")).await.unwrap_err();
    assert!(refused.is_refused(), "{refused}");
    let nobody = kit.client(&format!("etcd://{}", etcd.address()));
    let refused = kit.in_time("refused", limited(&nobody, "jobs/1")).await.unwrap_err();
    assert!(refused.is_refused(), "{refused}");
    drop((client, stranger, nobody));
    clean(&kit, &etcd).await;
}

pub async fn client_fails_over_to_another_member<R: Runtime>(kit: Kit<R>) {
    let mut cluster = EtcdCluster::start(3);
    // The first endpoint is dead.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = cluster.url().replace("etcd://", &format!("etcd://{},", nobody.local_addr().unwrap()));
    drop(nobody);
    let client = kit.client(&url);
    let guard = kit.take(&client, "a").await;
    for member in [0, 1] {
        cluster.member(member).kill();
        kit.sleep(100 * MS).await;
        cluster.member(member).restart_without_waiting();
        assert!(guard.is_held());
        let waited = kit.in_time("another lock", client.lock("b").acquire()).await.unwrap();
        kit.release(waited).await;
        assert!(cluster.leader() < 3);
    }
    assert!(guard.is_held(), "a session outlives a member");
    kit.release(guard).await;
    assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    assert_eq!(cluster.etcdctl(&["get", "--prefix", ""]), "");
}
