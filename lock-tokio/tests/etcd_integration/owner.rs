//! External transactions guarded by the holder's key.
// E7, E8

use lock_tokio::OwnerKeyExt as _;
use std::io::Write as _;
use std::process::Stdio;

use lock_testkit::Etcd;
use lock_tokio::Loss;
use lock_tokio::etcd::OwnerKey;

use crate::kit::{LONG_TTL, assert_clean, client, config, in_time, poll_once, release, shut_down, take, with};

/// Tries to write `value` by an `etcdctl` transaction that compares the holder's key.
fn guarded_put(etcd: &Etcd, owner: &OwnerKey, value: &str) -> bool {
    let key = core::str::from_utf8(&owner.key).unwrap();
    let mut command = etcd.etcdctl_command(&["txn"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let text = format!("mod(\"{key}\") = \"{}\"\n\nput resource {value}\n\n\n", owner.mod_revision);
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    match said.lines().next() {
        Some("SUCCESS") => true,
        Some("FAILURE") => false,
        _ => panic!("{said}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_guard_is_valid_only_while_lock_is_held() {
    let etcd = Etcd::start();
    let (ours, other) = (client(&etcd), client(&etcd));
    // After a release.
    let guard = take(&ours, "a").await;
    let owner = guard.owner_key_guard().unwrap();
    assert!(guarded_put(&etcd, &owner, "1"));
    release(guard).await;
    assert!(!guarded_put(&etcd, &owner, "2"));
    // After a loss to another client.
    let guard = take(&ours, "a").await;
    let owner = guard.owner_key_guard().unwrap();
    assert!(guarded_put(&etcd, &owner, "3"));
    etcd.revoke(&owner.lease.to_string());
    assert!(!guarded_put(&etcd, &owner, "4"), "the loss need not have been noticed");
    let next = take(&other, "a").await;
    let owner_of_next = next.owner_key_guard().unwrap();
    assert!(!guarded_put(&etcd, &owner, "5") && guarded_put(&etcd, &owner_of_next, "6"));
    assert_eq!(etcd.get("resource"), "6");
    assert_eq!(in_time("the loss", guard.lost()).await, Loss::Gone);
    assert!(guard.owner_key_guard().is_err());
    drop(guard);
    release(next).await;
    etcd.delete("resource");
    shut_down(ours).await;
    shut_down(other).await;
    assert_clean(&etcd).await;
}

/// A local hand-over may keep the key, but not if an owner guard was requested.
// E7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_guard_fails_after_local_hand_over() {
    let etcd = Etcd::start();
    let client = with(config(&etcd).session_ttl(LONG_TTL).handover_window(LONG_TTL));
    let mut guard = take(&client, "a").await;
    for n in 0..3 {
        let owner = guard.owner_key_guard().unwrap();
        assert!(guarded_put(&etcd, &owner, "old"));
        let mut next = client.lock("a").acquire();
        assert!(poll_once(&mut next).await.is_pending());
        let before = guard.fence();
        release(guard).await;
        guard = in_time("the next", next).await.unwrap();
        assert!(!guarded_put(&etcd, &owner, "late"), "round {n}");
        let own = guard.owner_key_guard().unwrap();
        assert_eq!((&own.key, own.create_revision), (&owner.key, owner.create_revision), "it was passed on");
        assert!(guarded_put(&etcd, &own, "new") && guard.fence() > before);
    }
    release(guard).await;
    etcd.delete("resource");
    shut_down(client).await;
    assert_clean(&etcd).await;
}
