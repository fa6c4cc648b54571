//! The end of the sequence numbers.
// ZK5

use core::time::Duration;

use lock_testkit::Mode;
use lock_tokio::Blocked;

use crate::kit::{
    alone, assert_clean, client, config, failure, in_time, ms, release, shut_down, take, wait_for, wait_until_blocked,
    with,
};

/// Within 2^16 of the last number.
const LAST: i32 = i32::MAX - 1_000;

fn number(name: &str) -> i64 {
    name.rsplit_once("-lock-").unwrap().1.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_begins_anew_before_numbers_are_used_up() {
    let mut chroot = alone();
    let path = format!("{}/a", chroot.path());
    chroot.server().create(&path, "");
    chroot.server_mut().restart_with_sequence(&path, LAST);
    let client = client(&chroot);
    let first = in_time("the lock", client.lock("a").acquire()).await.unwrap();
    let nodes = chroot.nodes_of("a");
    assert!(nodes.len() == 1 && number(&nodes[0]) < 10, "{nodes:?}");
    let fence = first.fence();
    release(first).await;
    let next = take(&client, "a").await;
    assert!(next.fence() > fence);
    release(next).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
}

/// Those who wait when the numbers run out are all served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_and_waiters_at_the_end_are_served() {
    let mut chroot = alone();
    let path = format!("{}/a", chroot.path());
    chroot.server().create(&path, "");
    // The first ones get numbers before the limit, the others after it.
    chroot.server_mut().restart_with_sequence(&path, i32::MAX - (1 << 16) - 1);
    let clients: Vec<_> = (0..5).map(|_| client(&chroot)).collect();
    let guard = take(&clients[0], "a").await;
    assert!(number(&chroot.nodes_of("a")[0]) > 2_147_000_000);
    let mut waiting = Vec::new();
    for client in &clients[1..] {
        let mut next = client.lock("a").acquire();
        wait_until_blocked(&mut next, Blocked::Held).await;
        waiting.push(tokio::spawn(next));
    }
    let mut fences = vec![guard.fence()];
    release(guard).await;
    let served = async {
        while !waiting.is_empty() {
            let done = futures_util::future::select_all(waiting.drain(..)).await;
            let guard = done.0.unwrap().unwrap();
            waiting.extend(done.2);
            fences.push(guard.fence());
            sleep_a_little().await;
            assert!(guard.is_held());
            release(guard).await;
        }
    };
    in_time("all are served", served).await;
    assert!(fences.len() == 5 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    for client in clients {
        shut_down(client).await;
    }
    assert_clean(&chroot).await;
}

async fn sleep_a_little() {
    tokio::time::sleep(ms(20)).await;
}

/// A contender that never leaves, as other libraries do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_that_does_not_become_empty_is_an_error() {
    let mut chroot = alone();
    let path = format!("{}/a", chroot.path());
    chroot.server().create(&path, "");
    chroot.server_mut().restart_with_sequence(&path, LAST);
    chroot.server().run(|session| session.create(&format!("{path}/x-lock-"), b"", Mode::PersistentSequential));
    let client = with(config(&chroot).vacate_within(ms(500)));
    let failed = failure(in_time("the error", client.lock("a").wait(Duration::from_secs(10)).acquire()).await);
    assert!(failed.to_string().contains("sequence numbers"), "{failed}");
    wait_for("only the stranger is there", || chroot.nodes_of("a").len() == 1).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
}
