//! Part 2: a quorum of five servers. Two die while a lock is held, then a third.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use lock_sim::redis::NodeConfig;

use super::Broken;
use super::resource::Resource;
use crate::transcript::Transcript;
use lock_sim::test_server::RedisServer;

const NAME: &str = "invoice:7";
const WORKERS: u64 = 3;
const ROUNDS: u64 = 10;
const TTL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn run(transcript: &Transcript) -> Result<(), Broken> {
    transcript.section("Part 2: a quorum of five servers");
    // A quorum does not count servers that were just started, because they may have lost data.
    // These report an uptime of one hour.
    let start = |i| RedisServer::start(NodeConfig::new(i).uptime(Duration::from_secs(3600)));
    let servers = (1..=5).map(start).collect::<Result<Vec<_>, _>>()?;
    let urls: Vec<String> = servers.iter().map(RedisServer::url).collect();
    transcript
        .log(&format!("five independent servers listen; {WORKERS} workers add 1 to a number {ROUNDS} times each"));
    let resource = Arc::new(Resource::default());

    let client = lock_tokio::connect_quorum(&urls)?;
    let guard = client.lock(NAME).ttl(TTL).wait(TIMEOUT).acquire().await?;
    transcript.check(guard.fence().is_none(), "a quorum gives no fencing tokens");
    let workers: Vec<_> = (0..WORKERS).map(|_| tokio::spawn(work(urls.clone(), Arc::clone(&resource)))).collect();

    for i in [1, 3] {
        servers[i].kill();
        transcript.log(&format!("server {} is killed while the lock is held", i + 1));
    }
    let lost = tokio::time::timeout(TTL * 2, guard.lost()).await;
    transcript
        .check(lost.is_err() && guard.is_held(), "the lock is still held two TTLs later: three of five still renew it");
    transcript.check(resource.summary().writes == 0, "the workers have waited meanwhile");
    drop(guard);
    transcript.log("the holder drops its guard; the workers continue with three servers");
    for worker in workers {
        worker.await??;
    }
    let summary = resource.summary();
    transcript.log(&format!("the number is {} after {} writes", summary.value, summary.writes));
    transcript.check(summary.value == WORKERS * ROUNDS, "no addition was lost");
    transcript.check(summary.overlaps == 0, "no two workers held the lock at once");

    servers[0].kill();
    transcript.log("a third server is killed: two of five are not a quorum");
    let start = Instant::now();
    let result = client.lock(NAME).ttl(TTL).wait(Duration::from_millis(500)).acquire().await;
    match &result {
        Ok(_) => transcript.fail("two of five granted a lock"),
        Err(error) => transcript.log(&format!("a worker waited for {:?} and got: {error}", start.elapsed())),
    }
    transcript.check(result.is_err(), "a minority grants no lock");

    // The pending cleanup on the dead servers cannot finish, so do not wait for it.
    client.shutdown(Duration::from_millis(300)).await;
    for (i, server) in servers.iter().enumerate().filter(|(i, _)| [2, 4].contains(i)) {
        let held = server.with_node(|node, now| node.exists(now, NAME));
        transcript.check(!held, &format!("no lock is left on server {}", i + 1));
    }
    Ok(())
}

async fn work(urls: Vec<String>, resource: Arc<Resource>) -> Result<(), Broken> {
    let client = lock_tokio::connect_quorum(&urls)?;
    for _ in 0..ROUNDS {
        let guard = client.lock(NAME).ttl(TTL).wait(TIMEOUT).acquire().await?;
        guard.protect(resource.add_one(None)).await.output??;
    }
    client.shutdown(Duration::from_millis(300)).await;
    Ok(())
}
