//! A thousand waiters.

use core::time::Duration;
use std::time::Instant;

use lock_tokio::{Client, Release};
use tokio::task::JoinSet;

use crate::kit::{alone, assert_clean, config, ms, shut_down, take, wait_for, with};

const WAITERS: usize = 1_000;

/// Each has a session of its own. They are served in the order of their nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_clients_are_served_in_order() {
    let chroot = alone();
    let server = chroot.server();
    let holder = with(config(&chroot));
    let guard = take(&holder, "a").await;
    let before = server.zxid();
    let mut clients = Vec::new();
    let mut waiting = JoinSet::new();
    for n in 0..WAITERS {
        // All at once would take longer than a connect may.
        if n % 50 == 0 {
            wait_for("those before are in the queue", || chroot.nodes_of("a").len() > n).await;
        }
        // A thousand threads would be too many.
        let settings = config(&chroot).connect_timeout(Duration::from_secs(20));
        let client = lock_tokio::connect_on_runtime(settings).unwrap();
        waiting.spawn(contend(client.clone()));
        clients.push(client);
    }
    wait_for("all are in the queue", || chroot.nodes_of("a").len() == WAITERS + 1).await;
    // A session and a node each.
    assert_eq!(server.zxid() - before, 2 * WAITERS as u64);
    let (released, before) = (Instant::now(), server.zxid());
    assert_eq!(guard.release().await, Release::Released);
    let mut fences = Vec::new();
    while let Some(fence) = waiting.join_next().await {
        fences.push(fence.unwrap());
    }
    let took = released.elapsed();
    // The tasks end in the order of their turns, or nearly so.
    let mut sorted = fences.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), WAITERS);
    let late = fences.iter().zip(&sorted).filter(|(a, b)| a != b).count();
    assert!(late < WAITERS / 10, "{late} out of order");
    let writes = server.zxid() - before;
    println!("{WAITERS} hand-overs in {took:?}, {writes} writes");
    // ZK1: those that hold or wait renew their validity by a write, about every third of a minute.
    let renewals = WAITERS as u64 * took.as_millis() as u64 / 15_000;
    let deletes = WAITERS as u64 + 1;
    assert!((deletes..=deletes + WAITERS as u64 / 20 + renewals).contains(&writes), "{writes}");
    for client in clients.into_iter().chain([holder]) {
        shut_down(client).await;
    }
    assert_clean(&chroot).await;
}

async fn contend(client: Client) -> u64 {
    let guard = client.lock("a").acquire().await.unwrap();
    assert!(guard.is_held());
    let fence = guard.fence().unwrap().get();
    tokio::time::sleep(ms(1)).await;
    assert_eq!(guard.release().await, Release::Released);
    fence
}
