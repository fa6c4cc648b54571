//! `etcd-client` with the server's Lock call (v3lock), which waits on the server. Calls with the
//! same lease share a place in the queue, so each task has its own lease.

use std::time::Duration;

use etcd_client::{Client as Etcd, LockOptions};
use lock_examples::contention::{Contender, Failed, Job};
use tokio::task::JoinHandle;

pub struct Client(Etcd);

impl Client {
    pub async fn open(job: &Job) -> Result<Self, Failed> {
        let url = job.backends[0].strip_prefix("etcd://").unwrap_or(&job.backends[0]);
        let members: Vec<&str> = url.split(',').collect();
        Ok(Self(Etcd::connect(members, None).await.map_err(Failed::unreachable)?))
    }
}

pub struct Task {
    client: Etcd,
    name: String,
    ttl: Duration,
    lease: i64,
    alive: Option<JoinHandle<()>>,
}

impl Task {
    pub fn new(client: &Client, job: &Job, name: String) -> Self {
        Self { client: client.0.clone(), name, ttl: job.ttl, lease: 0, alive: None }
    }
}

impl Contender for Task {
    /// The key.
    type Held = Vec<u8>;

    async fn ready(&mut self) -> Result<(), Failed> {
        let ttl = i64::try_from(self.ttl.as_secs().max(1)).unwrap_or(i64::MAX);
        let granted = self.client.lease_grant(ttl, None).await.map_err(Failed::unreachable)?;
        self.lease = granted.id();
        let stream = self.client.lease_keep_alive(self.lease).await;
        let (mut keeper, mut answers) = stream.map_err(Failed::unreachable)?;
        let pause = self.ttl / 3;
        self.alive = Some(tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                // Without a reply the lease expires, and the locks fail. The failures are counted
                // there.
                if keeper.keep_alive().await.is_err() || answers.message().await.is_err() {
                    return;
                }
            }
        }));
        Ok(())
    }

    async fn acquire(&mut self) -> Result<Vec<u8>, String> {
        let options = LockOptions::new().with_lease(self.lease);
        let answer = self.client.lock(self.name.as_str(), Some(options)).await;
        Ok(answer.map_err(|error| error.to_string())?.key().to_vec())
    }

    async fn release(&mut self, held: Vec<u8>) -> Result<(), String> {
        self.client.unlock(held).await.map(drop).map_err(|error| error.to_string())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(alive) = self.alive.take() {
            alive.abort();
        }
    }
}
