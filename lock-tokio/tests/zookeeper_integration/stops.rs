//! A leader that is stopped for longer than a session lives, while its followers stay with it.

use core::time::Duration;

use lock_testkit::{Proxy, ZooKeeper};
use lock_tokio::zookeeper::Config;
use tokio::time::sleep;

use crate::kit::{in_time, ms, release, take, with};

const TTL: Duration = ms(2_500);
const STOP: Duration = ms(3_200);

/// The followers answer pings. When the leader goes on, it handles the request that lies in its
/// socket, and may then end the session, of which it has not heard for longer than the TTL.
// ZK1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_leader_lets_no_second_holder_in() {
    let ensemble = ZooKeeper::builder().tick(ms(500)).sync_limit(20).start_ensemble(3);
    for (trial, stops) in (0..).zip([1, 1, 1, 2, 1, 1, 1, 2]) {
        let leader = ensemble.leader();
        let member = |place: usize| &ensemble.members()[(leader + place) % 3];
        let proxy = Proxy::start(member(1).address());
        let url = member(1).url().replace(&member(1).address().to_string(), &proxy.address().to_string());
        let config = |url: &str| Config::parse(url).unwrap().session_ttl(TTL);
        let (first, second) = (with(config(&url)), with(config(&member(2).url())));
        // Only pings keep the sessions after that.
        for client in [&first, &second] {
            release(take(client, "idle").await).await;
        }
        sleep(ms(1_000)).await;
        member(0).pause();
        let before = ms(350) - ms(30) * trial;
        sleep(STOP - before).await;
        let acquiring = tokio::spawn({
            let lock = first.lock("a");
            async move { lock.acquire().await }
        });
        sleep(before).await;
        member(0).resume();
        for _ in 1..stops {
            sleep(ms(3)).await;
            member(0).pause();
            sleep(STOP).await;
            member(0).resume();
        }
        let guard = in_time("the grant", acquiring).await.unwrap().unwrap();
        // It learns nothing more of its session.
        proxy.pause();
        let next = in_time("the next grant", second.lock("a").acquire()).await.unwrap();
        assert!(!guard.is_held(), "trial {trial}, {stops} stops: two hold it, for {:?} still", guard.remaining());
        assert!(next.fence() > guard.fence());
        release(next).await;
        drop((guard, first));
    }
}
