//! `rslock`, used as in its documentation.

use lock_examples::contention::{Contender, Failed, Job};
use rslock::{Lock, LockManager};
use std::time::Duration;

pub struct Client(LockManager);

impl Client {
    pub async fn open(job: &Job) -> Result<Self, Failed> {
        // `LockManager::new` panics if the crate `redis` does not know the URL.
        let clients = job.backends.iter().map(|url| redis::Client::open(url.as_str())).collect::<Result<_, _>>();
        let mut manager = LockManager::from_clients(clients.map_err(Failed::usage)?);
        // When its tries are used up, rslock starts over. So this wait has no limit.
        manager.set_retry(u32::MAX, job.poll);
        Ok(Self(manager))
    }
}

pub struct Task {
    manager: LockManager,
    name: Vec<u8>,
    ttl: Duration,
}

impl Task {
    pub fn new(client: &Client, job: &Job, name: String) -> Self {
        Self { manager: client.0.clone(), name: name.into_bytes(), ttl: job.ttl }
    }

    async fn take(&self, name: &[u8]) -> Result<Lock, String> {
        self.manager.lock(name, self.ttl).await.map_err(|error| error.to_string())
    }
}

impl Contender for Task {
    type Held = Lock;

    async fn ready(&mut self) -> Result<(), Failed> {
        // Connects and loads the script. The name is unique to the task, so that no task waits.
        let name = format!("{}:first:{:p}", String::from_utf8_lossy(&self.name), self.name.as_ptr());
        let lock = self.take(name.as_bytes()).await.map_err(Failed::unreachable)?;
        lock.release().await;
        Ok(())
    }

    async fn acquire(&mut self) -> Result<Lock, String> {
        self.take(&self.name).await
    }

    async fn release(&mut self, held: Lock) -> Result<(), String> {
        held.release().await;
        Ok(())
    }
}
