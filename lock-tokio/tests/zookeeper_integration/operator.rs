//! Operators who end sessions, delete nodes, and put things where locks are.

use lock_tokio::{Blocked, Loss, Release};

use crate::kit::{
    TTL, alone, assert_clean, client, config, in_time, ms, release, session_of_holder, shut_down, take, wait_for,
    wait_until_blocked, with,
};
use lock_testkit::{Chroot, Stopwatch};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_ended_by_server_is_loss_and_next_one_replaces_it() {
    let chroot = Chroot::new();
    let client = client(&chroot);
    let guard = take(&client, "a").await;
    let session = session_of_holder(&chroot);
    chroot.server().expire(session);
    let ended = Stopwatch::start();
    assert_eq!(in_time("the loss", guard.lost()).await, Loss::Gone);
    ended.assert_within(TTL, "noticed by the end of the connection, long before the TTL of a minute");
    assert_eq!(in_time("release", guard.release()).await, Release::Expired);
    let guard = take(&client, "a").await;
    assert_ne!(session_of_holder(&chroot), session);
    release(guard).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_queues_again_after_its_session_ended() {
    let chroot = Chroot::new();
    let (holder, waiter) = (client(&chroot), client(&chroot));
    let guard = take(&holder, "a").await;
    let own = session_of_holder(&chroot);
    let mut waiting = waiter.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    wait_for("both are in the queue", || chroot.nodes_of("a").len() == 2).await;
    let sessions = || -> Vec<i64> {
        let nodes = chroot.nodes_of("a");
        let stat = |node: &String| chroot.server().stat(&format!("{}/a/{node}", chroot.path()));
        nodes.iter().filter_map(|node| Some(stat(node)?.ephemeral_owner)).filter(|session| *session != own).collect()
    };
    let [session] = sessions()[..] else { panic!("one waits") };
    chroot.server().expire(session);
    wait_for("it queues again", || matches!(sessions()[..], [other] if other != session)).await;
    assert!(guard.is_held());
    release(guard).await;
    release(in_time("the next holder", waiting).await.unwrap()).await;
    for client in [holder, waiter] {
        shut_down(client).await;
    }
    assert_clean(&chroot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_own_node_is_loss_and_deleted_waiting_node_is_replaced() {
    let chroot = Chroot::new();
    let (holder, waiter) = (with(config(&chroot).watch_own_after(ms(0))), client(&chroot));
    let guard = take(&holder, "a").await;
    let first = chroot.nodes_of("a").pop().unwrap();
    let mut waiting = waiter.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    wait_for("both are in the queue", || chroot.nodes_of("a").len() == 2).await;
    let second = chroot.nodes_of("a").into_iter().find(|node| *node != first).unwrap();
    assert!(chroot.delete("a", &second));
    wait_for("it queues again", || chroot.nodes_of("a").len() == 2).await;
    assert!(guard.is_held());
    assert!(chroot.delete("a", &first));
    assert_eq!(in_time("the loss", guard.lost()).await, Loss::Gone);
    let next = in_time("the next holder", waiting).await.unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(in_time("release", guard.release()).await, Release::Expired);
    assert!(next.is_held(), "it is not hurt by a stranger's release");
    release(next).await;
    for client in [holder, waiter] {
        shut_down(client).await;
    }
    assert_clean(&chroot).await;
}

/// The server deletes empty containers, which may happen between any two requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_parent_is_created_again() {
    let chroot = alone();
    let client = client(&chroot);
    let mut fence = None;
    for _ in 0..20 {
        let guard = take(&client, "deep/er/a").await;
        assert!(guard.fence() > fence, "{:?} after {fence:?}", guard.fence());
        fence = guard.fence();
        release(guard).await;
        for path in ["deep/er/a", "deep/er", "deep"] {
            assert!(chroot.server().delete(&format!("{}/{path}", chroot.path())), "{path}");
        }
    }
    shut_down(client).await;
    assert_eq!(chroot.nodes(), Vec::<String>::new());
}

/// Stale nodes of a former session of the same client are waited for, as any other's.
// ZK2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_of_another_session_with_same_name_is_not_own() {
    let chroot = Chroot::new();
    let client = client(&chroot);
    let guard = take(&client, "a").await;
    let node = chroot.nodes_of("a").pop().unwrap();
    release(guard).await;
    // An operator's node, whose name is that of ours.
    chroot.server().create(&format!("{}/a/{node}", chroot.path()), "");
    let mut waiting = client.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    assert!(chroot.delete("a", &node));
    release(in_time("the grant", waiting).await.unwrap()).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
}
