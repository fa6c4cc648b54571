//! Elections, in one queue with Curator's `LeaderLatch`.
// ZK7

use lock_testkit::{Chroot, ZooKeeperPeer};
use lock_tokio::{ElectionEvent, Observation};

use crate::kit::{TTL, assert_clean, client, in_time, shut_down, wait_for};

async fn leader_of(observation: &mut Observation) -> Vec<u8> {
    loop {
        match in_time("a leader", observation.next()).await {
            Some(ElectionEvent::Leader(leader)) => return leader.value.to_vec(),
            // Between two leaders.
            Some(ElectionEvent::NoLeader) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_latch_of_curator_shares_queue_with_client() {
    let chroot = Chroot::new();
    let client = client(&chroot);
    let election = client.election("board");
    let mut observation = election.observe().unwrap();
    assert_eq!(in_time("nobody", observation.next()).await, Some(ElectionEvent::NoLeader));
    let mut first = ZooKeeperPeer::curator(&chroot.hosts(), TTL);
    assert_eq!((first.ask("latch /board one"), first.line()), ("latched".into(), "elected one".into()));
    assert_eq!(leader_of(&mut observation).await, b"one");

    let standing = tokio::spawn(election.campaign("two"));
    wait_for("ours is in the queue", || chroot.nodes_of("board").len() == 2).await;
    assert!(!standing.is_finished());
    assert_eq!(first.ask("unlatch /board"), "unlatched");
    let mut leadership = in_time("elected", standing).await.unwrap().unwrap();
    assert_eq!(leader_of(&mut observation).await, b"two");
    in_time("proclaim", leadership.proclaim("zwei")).await.unwrap();
    assert_eq!(leader_of(&mut observation).await, b"zwei");

    // A latch that already waits behind ours ignores the event of a new value, and with it loses
    // its only watch: it would notice nothing more.
    let mut last = ZooKeeperPeer::curator(&chroot.hosts(), TTL);
    assert_eq!(last.ask("latch /board three"), "latched");
    wait_for("both are in the queue", || chroot.nodes_of("board").len() == 2).await;
    assert_eq!(last.ask("leader /board"), "leader zwei");
    assert!(last.is_silent());

    let _ = in_time("resign", leadership.resign()).await;
    assert_eq!(last.line(), "elected three");
    assert_eq!(leader_of(&mut observation).await, b"three");
    last.kill();
    // Its session ends.
    assert_eq!(in_time("nobody", observation.next()).await, Some(ElectionEvent::NoLeader));
    drop(observation);
    shut_down(client).await;
    assert_clean(&chroot).await;
}
