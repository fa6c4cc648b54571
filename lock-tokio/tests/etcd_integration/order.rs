//! The order of grants, and wake-ups.
// E4, E5, E7, E8

use lock_testkit::Etcd;
use lock_tokio::Client;
use lock_tokio::OwnerKeyExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::kit::{
    LONG_TTL, assert_clean, calls, client, config, in_time, ms, poll_once, release, shut_down, take, wait_for, watches,
    with,
};

#[derive(Debug)]
struct ServedWaiter {
    client: usize,
    index: usize,
    fence: u64,
    created: i64,
}

/// Each client has one place in the queue for all its waiters, which take turns in FIFO order for a
/// limited time. Between clients the order is that of their keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_waiters_are_served_in_revision_order() {
    const EACH: usize = 50;
    let etcd = Etcd::start();
    let gate = take(&client(&etcd), "a").await;
    let clients = [with(config(&etcd).handover_window(ms(5))), with(config(&etcd).handover_window(ms(5)))];
    let (served_sender, mut served_waiters) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for index in 0..EACH {
        for (client, handle) in clients.iter().enumerate() {
            let mut waiting = handle.lock("a").acquire();
            // The first poll queues it.
            assert!(poll_once(&mut waiting).await.is_pending());
            let served_sender = served_sender.clone();
            tasks.spawn(async move {
                let guard = in_time("a grant", waiting).await.unwrap();
                let (fence, created) = (guard.fence().unwrap().get(), guard.owner_key().unwrap().create_revision);
                served_sender.send(ServedWaiter { client, index, fence, created }).unwrap();
                sleep(ms(1)).await;
                release(guard).await;
            });
        }
    }
    wait_for("both are in the queue", || etcd.keys_of("a/").len() == 3).await;
    assert!(served_waiters.is_empty());
    release(gate).await;
    tasks.join_all().await;
    let mut order = Vec::new();
    while let Ok(waiter) = served_waiters.try_recv() {
        order.push(waiter);
    }
    assert_eq!(order.len(), 2 * EACH);
    assert!(order.is_sorted_by(|a, b| a.fence < b.fence), "{order:#?}");
    assert!(order.is_sorted_by(|a, b| a.created <= b.created), "{order:#?}");
    for client in [0, 1] {
        let indices = order.iter().filter(|waiter| waiter.client == client).map(|waiter| waiter.index);
        assert!(indices.eq(0..EACH), "first in, first out: {order:#?}");
    }
    // Local hand-over is bounded, so the clients alternate.
    let changes = order.windows(2).filter(|pair| pair[0].client != pair[1].client).count();
    assert!(changes >= 8, "{changes}: {order:#?}");
    for client in clients {
        shut_down(client).await;
    }
    assert_clean(&etcd).await;
}

/// Waits until no transactions are sent any more.
async fn wait_for_settled(etcd: &Etcd) -> u64 {
    let settle = async {
        loop {
            let before = calls(etcd, "Txn");
            sleep(ms(150)).await;
            if calls(etcd, "Txn") == before {
                return before;
            }
        }
    };
    in_time("no transactions are sent", settle).await
}

/// Counts transactions. A waiter that is woken reads the queue by a transaction. The only others
/// enter or leave the queue. With no client entering, a release that wakes one waiter needs two:
/// the delete, and the read of the next holder. Each further waiter woken would add one.
// E5
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_wakes_only_next_waiter() {
    const CLIENTS: usize = 10;
    let etcd = Etcd::start();
    let clients: Vec<Client> = (0..CLIENTS).map(|_| with(config(&etcd).session_ttl(LONG_TTL))).collect();
    let mut guard = take(&clients[0], "a").await;
    let mut waiting = Vec::new();
    for client in &clients[1..] {
        waiting.push(tokio::spawn(client.lock("a").acquire()));
        wait_for("it is in the queue", || etcd.keys_of("a/").len() == 1 + waiting.len()).await;
    }
    wait_for("all watch", || watches(&etcd) == 2 * (CLIENTS as u64 - 1)).await;
    let mut before = wait_for_settled(&etcd).await;
    for next in waiting {
        release(guard).await;
        guard = in_time("the next", next).await.unwrap().unwrap();
        let after = wait_for_settled(&etcd).await;
        assert_eq!(after - before, 2, "transactions for one hand-over");
        before = after;
    }
    release(guard).await;
    for client in clients {
        shut_down(client).await;
    }
    assert_clean(&etcd).await;
}

/// The same while all clients keep entering. A cycle needs at most five transactions: one to enter,
/// a read for each of two watches that may have opened late, a read on wake-up, and one to leave.
/// If a release woke all nine, there would be more than ten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_cycle_costs_at_most_five_transactions() {
    const CLIENTS: usize = 10;
    const CYCLES: u64 = 100;
    let etcd = Etcd::start();
    let clients: Vec<Client> = (0..CLIENTS).map(|_| with(config(&etcd).session_ttl(LONG_TTL))).collect();
    let mut tasks = JoinSet::new();
    let before = calls(&etcd, "Txn");
    for client in &clients {
        let lock = client.lock("a");
        tasks.spawn(async move {
            let mut fences = Vec::new();
            for _ in 0..CYCLES {
                let guard = in_time("a grant", lock.acquire()).await.unwrap();
                fences.push(guard.fence().unwrap());
                release(guard).await;
            }
            fences
        });
    }
    let fences = tasks.join_all().await;
    let cycles = CLIENTS as u64 * CYCLES;
    let sent = calls(&etcd, "Txn") - before;
    assert!((3 * cycles - 200..=5 * cycles).contains(&sent), "{sent} transactions for {cycles} cycles");
    assert!(fences.iter().all(|own| own.is_sorted_by(|a, b| a < b)));
    let mut all: Vec<_> = fences.into_iter().flatten().collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len() as u64, cycles, "no two grants have one fence");
    for client in clients {
        shut_down(client).await;
    }
    assert_clean(&etcd).await;
}
