//! A leader that is stopped for longer than a session lives, while its followers stay with it.

use core::time::Duration;

use lock_testkit::{Proxy, ZooKeeper};
use lock_tokio::zookeeper::Config;
use tokio::time::sleep;

use crate::kit::{in_time, ms, release, take, with};

const TTL: Duration = ms(2_500);
const STOP: Duration = ms(3_200);
/// Pairs of clients that want the same lock.
const PAIRS: u32 = 5;

/// The followers answer pings. When the leader goes on, it handles the request that lies in its
/// socket, and may then end the session, of which it has not heard for longer than the TTL.
// ZK1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_leader_lets_no_second_holder_in() {
    let ensemble = ZooKeeper::builder().tick(ms(500)).sync_limit(20).start_ensemble(3);
    for stops in [1, 2, 1, 1] {
        let leader = ensemble.leader();
        let member = |place: usize| &ensemble.members()[(leader + place) % 3];
        let config = |url: &str| Config::parse(url).unwrap().session_ttl(TTL);
        let second = with(config(&member(2).url()));
        release(take(&second, "idle").await).await;
        let mut firsts = Vec::new();
        for n in 0..PAIRS {
            let proxy = Proxy::start(member(1).address());
            let url = member(1).url().replace(&member(1).address().to_string(), &proxy.address().to_string());
            let first = with(config(&url));
            release(take(&first, &format!("idle-{n}")).await).await;
            firsts.push((n, first, proxy));
        }
        // Only pings keep the sessions.
        sleep(ms(1_000)).await;
        member(0).pause();
        let pairs: Vec<_> = firsts
            .into_iter()
            .map(|(n, first, proxy)| {
                let name = format!("lock-{n}");
                let next = second.lock(&name);
                tokio::spawn(async move {
                    // Within its last 350 ms.
                    sleep(STOP - ms(350) / PAIRS * (n + 1)).await;
                    let guard = in_time("the grant", first.lock(&name).acquire()).await.unwrap();
                    // It learns nothing more of its session.
                    proxy.pause();
                    let next = in_time("the next grant", next.acquire()).await.unwrap();
                    assert!(!guard.is_held(), "{stops} stops: two hold it, for {:?} still", guard.remaining());
                    assert!(next.fence() > guard.fence());
                    release(next).await;
                })
            })
            .collect();
        sleep(STOP).await;
        member(0).resume();
        for _ in 1..stops {
            sleep(ms(3)).await;
            member(0).pause();
            sleep(STOP).await;
            member(0).resume();
        }
        for pair in pairs {
            pair.await.unwrap();
        }
    }
}
