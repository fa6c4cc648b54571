//! Part 1: one server. Workers take the lock in turn, and one of them stalls while it holds it.

use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use lock_proto::sim::redis::NodeConfig;
use lock_tokio::redis::Loss;

use super::Broken;
use super::resource::Resource;
use crate::serve::Served;
use crate::story::Story;

const NAME: &str = "stock:42";
const WORKERS: u64 = 4;
const ROUNDS: u64 = 25;
const TTL: Duration = Duration::from_millis(600);
/// Longer than any step should take.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn run(story: &Story) -> Result<(), Broken> {
    story.title("Part 1: one server, fencing tokens");
    let server = Served::start(NodeConfig::new(1))?;
    story.tell(&format!("a simulated Redis server listens at {}", server.url()));
    let resource = Arc::new(Resource::default());
    let fences = Arc::new(Mutex::new(Vec::new()));

    story.tell(&format!(
        "{WORKERS} workers with a client each add 1 to a number {ROUNDS} times, under the lock `{NAME}`"
    ));
    let workers: Vec<_> =
        (1..=WORKERS).map(|_| tokio::spawn(work(server.url(), Arc::clone(&resource), Arc::clone(&fences)))).collect();
    for worker in workers {
        worker.await??;
    }
    let summary = resource.summary();
    story.tell(&format!("the number is {} after {} writes", summary.value, summary.writes));
    story.check(summary.value == WORKERS * ROUNDS, "no addition was lost");
    story.check(summary.overlaps == 0, "no two workers were inside at once");
    let grew = {
        let fences = fences.lock().unwrap_or_else(PoisonError::into_inner);
        fences.len() as u64 == WORKERS * ROUNDS && fences.is_sorted_by(|a, b| a < b)
    };
    story.check(grew, "every grant had a greater fencing token than the one before");

    stall(story, &server, &resource).await?;

    let left = server.with_node(|node, now| node.keys(now));
    let left: Vec<_> = left.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    story.check(!left.iter().any(|key| key == NAME), &format!("no lock is left on the server (there are {left:?})"));
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
enum News {
    Holds(u64),
    Woke { believes: bool, loss: Loss, write: Result<(), String> },
}

async fn stall(story: &Story, server: &Served, resource: &Arc<Resource>) -> Result<(), Broken> {
    story.tell(&format!(
        "now a worker takes the lock (TTL {TTL:?}), and its whole process stands still for twice as long"
    ));
    let (tell, mut hear) = tokio::sync::mpsc::unbounded_channel();
    let (wake, woken) = mpsc::channel::<()>();
    // The thread has its own runtime: when it sleeps, its driver sleeps too, and nothing is
    // renewed.
    let sleeper = std::thread::spawn({
        let (url, resource) = (server.url(), Arc::clone(resource));
        move || -> Result<(), Broken> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let client = lock_tokio::connect(&url)?;
                let guard = client.lock(NAME).ttl(TTL).wait(TIMEOUT).acquire().await?;
                let fence = guard.fence().map(|fence| fence.get()).ok_or("a fencing token")?;
                let read = resource.value();
                tell.send(News::Holds(fence))?;
                std::thread::sleep(TTL * 2);
                woken.recv_timeout(TIMEOUT)?;
                let believes = guard.is_held();
                let loss = tokio::time::timeout(TIMEOUT, guard.lost()).await?;
                // A correct program would not write now. One that does not check the guard would.
                let write = resource.write(read + 1_000, Some(fence)).map_err(|stale| stale.to_string());
                tell.send(News::Woke { believes, loss, write })?;
                let _ = guard.release().await;
                client.shutdown(TIMEOUT).await;
                Ok(())
            })
        }
    });
    let Some(News::Holds(old)) = hear.recv().await else { return Err("the sleeper did not get the lock".into()) };
    story.tell(&format!("the sleeper holds the lock with the fencing token {old}, and falls asleep"));

    let client = lock_tokio::connect(&server.url())?;
    let guard = client.lock(NAME).ttl(TTL).wait(TIMEOUT).acquire().await?;
    let fence = guard.fence().map(|fence| fence.get()).ok_or("a fencing token")?;
    story.tell(&format!("another worker got the lock when it ended, with the fencing token {fence}"));
    story.check(fence > old, "the new token is greater than the sleeper's");
    let before = resource.value();
    guard.protect(resource.add_one(Some(fence))).await.output??;
    story.tell("it has done its work and given the lock back; the sleeper wakes up");
    wake.send(())?;
    let Some(News::Woke { believes, loss, write }) = hear.recv().await else {
        return Err("the sleeper has nothing to say".into());
    };
    story.check(!believes, "the sleeper's guard says at once that it is not held any more");
    story.tell(&format!("the sleeper is told: {loss}"));
    let refusal = write.err().unwrap_or_else(|| "nothing".to_owned());
    story.tell(&format!("its late write is answered: {refusal}"));
    let summary = resource.summary();
    story.check(summary.refused == 1 && summary.value == before + 1, "the resource refused the stale write");
    client.shutdown(TIMEOUT).await;
    sleeper.join().map_err(|_| "the sleeper panicked")??;
    Ok(())
}
