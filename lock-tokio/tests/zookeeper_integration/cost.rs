//! The cost of locks on the server, by its counts: a write is a transaction, a packet a request.

use lock_testkit::ZooKeeper;

use crate::kit::{
    LONG_TTL, alone, assert_clean, client, config, in_time, poll_once, release, shut_down, take, wait_for,
    wait_until_blocked, with,
};
use lock_tokio::Blocked;

fn packets(server: &ZooKeeper) -> u64 {
    server.metric("zk_packets_received") as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncontended_lock_cycle_costs_two_writes() {
    // ZK10
    const CYCLES: u64 = 50;
    let chroot = alone();
    let server = chroot.server();
    let client = client(&chroot);
    release(take(&client, "a").await).await;
    release(take(&client, "b").await).await;
    let (writes, requests) = (server.zxid(), packets(server));
    for n in 0..CYCLES {
        release(take(&client, if n % 2 == 0 { "a" } else { "b" }).await).await;
    }
    assert_eq!(server.zxid() - writes, 2 * CYCLES);
    // Beside them, one more list for each name, the question for the number, and pings.
    let sent = packets(server) - requests;
    assert!((2 * CYCLES + 2..=2 * CYCLES + 14).contains(&sent), "{sent}");
    // Nothing is sent for a try while this client holds the lock.
    let guard = take(&client, "a").await;
    let writes = server.zxid();
    assert!(in_time("a try", client.lock("a").try_acquire()).await.is_err());
    assert_eq!(server.zxid() - writes, 0);
    release(guard).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
    assert!(server.sessions().is_empty(), "the session was closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_hand_over_costs_no_write() {
    let chroot = alone();
    let client = with(config(&chroot).handover_window(LONG_TTL));
    let mut guard = take(&client, "a").await;
    let writes = chroot.server().zxid();
    for _ in 0..100 {
        let mut next = client.lock("a").acquire();
        assert!(poll_once(&mut next).await.is_pending());
        let before = guard.fence();
        release(guard).await;
        guard = in_time("the next", next).await.unwrap();
        assert!(guard.fence() > before);
    }
    assert_eq!(chroot.server().zxid() - writes, 0);
    release(guard).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
}

/// The watch on the predecessor is proof enough if that was the first.
// ZK3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_over_wakes_one_waiter_and_costs_one_write() {
    const WAITERS: usize = 20;
    let chroot = alone();
    let server = chroot.server();
    let holder = client(&chroot);
    let guard = take(&holder, "a").await;
    let mut waiting = Vec::new();
    let clients: Vec<_> = (0..WAITERS).map(|_| client(&chroot)).collect();
    for (n, client) in clients.iter().enumerate() {
        let mut next = client.lock("a").acquire();
        wait_until_blocked(&mut next, Blocked::Held).await;
        wait_for("it is in the queue", || chroot.nodes_of("a").len() == n + 2).await;
        waiting.push(next);
    }
    // The last of them has its watch.
    wait_for("all watch", || server.metric("zk_watch_count") as usize >= WAITERS).await;
    let events = || server.metric("zk_sum_node_deleted_watch_count") as u64;
    let (writes, fired) = (server.zxid(), events());
    release(guard).await;
    for next in waiting {
        let guard = in_time("the next", next).await.unwrap();
        release(guard).await;
    }
    let hand_overs = WAITERS as u64 + 1;
    // Pings may be writes; the test takes less than a third of the TTL.
    assert_eq!(server.zxid() - writes, hand_overs);
    let fired = events() - fired;
    // Nobody watches the last node. The next waiter watches its own node as well.
    assert!((WAITERS as u64..=WAITERS as u64 + 2).contains(&fired), "{fired} events for {hand_overs} deletions");
    for client in clients.into_iter().chain([holder]) {
        shut_down(client).await;
    }
    assert_clean(&chroot).await;
}
