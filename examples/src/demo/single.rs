//! Part 1: one server. Workers take the lock one after another, and one stalls while holding it.

use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use lock_sim::redis::NodeConfig;
use lock_tokio::Loss;

use super::Broken;
use super::resource::Resource;
use crate::transcript::Transcript;
use lock_sim::test_server::RedisServer;

const NAME: &str = "stock:42";
const WORKERS: u64 = 4;
const ROUNDS: u64 = 25;
const TTL: Duration = Duration::from_millis(600);
/// Longer than any step should take.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn run(transcript: &Transcript) -> Result<(), Broken> {
    transcript.section("Part 1: one server, fencing tokens");
    let server = RedisServer::start(NodeConfig::new(1))?;
    transcript.log(&format!("a simulated Redis server listens at {}", server.url()));
    let resource = Arc::new(Resource::default());
    let fences = Arc::new(Mutex::new(Vec::new()));

    transcript.log(&format!(
        "{WORKERS} workers with a client each add 1 to a number {ROUNDS} times, under the lock `{NAME}`"
    ));
    let workers: Vec<_> =
        (1..=WORKERS).map(|_| tokio::spawn(work(server.url(), Arc::clone(&resource), Arc::clone(&fences)))).collect();
    for worker in workers {
        worker.await??;
    }
    let summary = resource.summary();
    transcript.log(&format!("the number is {} after {} writes", summary.value, summary.writes));
    transcript.check(summary.value == WORKERS * ROUNDS, "no addition was lost");
    transcript.check(summary.overlaps == 0, "no two workers held the lock at once");
    let grew = {
        let fences = fences.lock().unwrap_or_else(PoisonError::into_inner);
        fences.len() as u64 == WORKERS * ROUNDS && fences.is_sorted_by(|a, b| a < b)
    };
    transcript.check(grew, "every grant had a greater fencing token than the one before");

    stall(transcript, &server, &resource).await?;

    let left = server.with_node(|node, now| node.keys(now));
    let left: Vec<_> = left.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    transcript
        .check(!left.iter().any(|key| key == NAME), &format!("no lock is left on the server (there are {left:?})"));
    Ok(())
}

async fn work(url: String, resource: Arc<Resource>, fences: Arc<Mutex<Vec<u64>>>) -> Result<(), Broken> {
    let client = lock_tokio::connect(&url)?;
    for _ in 0..ROUNDS {
        let guard = client.lock(NAME).ttl(TTL).wait(TIMEOUT).acquire().await?;
        let fence = guard.fence().map(|fence| fence.get()).ok_or("a single server gives fencing tokens")?;
        fences.lock().unwrap_or_else(PoisonError::into_inner).push(fence);
        guard.protect(resource.add_one(Some(fence))).await.output??;
    }
    client.shutdown(TIMEOUT).await;
    Ok(())
}

/// Reports of the stalled worker.
enum Report {
    Holding(u64),
    Woke { believes: bool, loss: Loss, write: Result<(), String> },
}

async fn stall(transcript: &Transcript, server: &RedisServer, resource: &Arc<Resource>) -> Result<(), Broken> {
    transcript
        .log(&format!("now a worker takes the lock (TTL {TTL:?}), and its whole process is paused for twice as long"));
    let (reports, mut received) = tokio::sync::mpsc::unbounded_channel();
    let (wake, woken) = mpsc::channel::<()>();
    // The thread has its own runtime, and the driver is a task of it: when the thread sleeps, the
    // driver sleeps too, and nothing is renewed.
    let paused = std::thread::spawn({
        let (url, resource) = (server.url(), Arc::clone(resource));
        move || -> Result<(), Broken> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let client = lock_tokio::connect_on_runtime(lock_tokio::Settings::parse([&url])?)?;
                let guard = client.lock(NAME).ttl(TTL).wait(TIMEOUT).acquire().await?;
                let fence = guard.fence().map(|fence| fence.get()).ok_or("a fencing token")?;
                let read = resource.value();
                reports.send(Report::Holding(fence))?;
                std::thread::sleep(TTL * 2);
                woken.recv_timeout(TIMEOUT)?;
                let believes = guard.is_held();
                let loss = tokio::time::timeout(TIMEOUT, guard.lost()).await?;
                // A correct program would not write now. One that does not check the guard would.
                let write = resource.write(read + 1_000, Some(fence)).map_err(|stale| stale.to_string());
                reports.send(Report::Woke { believes, loss, write })?;
                let _ = guard.release().await;
                client.shutdown(TIMEOUT).await;
                Ok(())
            })
        }
    });
    let Some(Report::Holding(old)) = received.recv().await else {
        return Err("the worker to be paused did not get the lock".into());
    };
    transcript.log(&format!("the paused worker holds the lock with fencing token {old}"));

    let client = lock_tokio::connect(&server.url())?;
    let guard = client.lock(NAME).ttl(TTL).wait(TIMEOUT).acquire().await?;
    let fence = guard.fence().map(|fence| fence.get()).ok_or("a fencing token")?;
    transcript.log(&format!("another worker got the lock when it expired, with fencing token {fence}"));
    transcript.check(fence > old, "the new token is greater than the paused worker's");
    let before = resource.value();
    guard.protect(resource.add_one(Some(fence))).await.output??;
    transcript.log("it has finished and released the lock; the paused worker resumes");
    wake.send(())?;
    let Some(Report::Woke { believes, loss, write }) = received.recv().await else {
        return Err("the paused worker reported nothing".into());
    };
    transcript.check(!believes, "its guard immediately reports that the lock is no longer held");
    transcript.log(&format!("it is notified of the loss: {loss}"));
    let rejection = write.err().unwrap_or_else(|| "no error".to_owned());
    transcript.log(&format!("its stale write is rejected: {rejection}"));
    let summary = resource.summary();
    transcript.check(summary.rejected == 1 && summary.value == before + 1, "the resource rejected the stale write");
    client.shutdown(TIMEOUT).await;
    paused.join().map_err(|_| "the paused worker panicked")??;
    Ok(())
}
