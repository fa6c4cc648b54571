//! `zookeeper-client` with its lock, whose nodes are named as Curator's.

use std::mem;

use lock_examples::contention::{Contender, Failed, Job};
use zookeeper_client::{Acls, Client as ZooKeeper, CreateMode, LockOptions, LockPrefix};

pub struct Client(ZooKeeper);

impl Client {
    pub async fn open(job: &Job) -> Result<Self, Failed> {
        let hosts = hosts_of(job);
        let connector = ZooKeeper::connector().with_session_timeout(job.ttl);
        Ok(Self(connector.connect(hosts).await.map_err(Failed::unreachable)?))
    }
}

/// The URL's part that ZooKeeper's own clients understand.
pub fn hosts_of(job: &Job) -> &str {
    let url = job.backends[0].strip_prefix("zk://").unwrap_or(&job.backends[0]);
    url.split('?').next().unwrap_or(url)
}

pub struct Task {
    client: ZooKeeper,
    path: String,
}

impl Task {
    pub fn new(client: &Client, _: &Job, name: String) -> Self {
        Self { client: client.0.clone(), path: format!("/{name}") }
    }
}

impl Contender for Task {
    /// The node.
    type Held = String;

    async fn ready(&mut self) -> Result<(), Failed> {
        // The first lock makes the parent, which stays.
        let node = self.acquire().await.map_err(Failed::unreachable)?;
        self.release(node).await.map_err(Failed::unreachable)
    }

    async fn acquire(&mut self) -> Result<String, String> {
        let acls = Acls::anyone_all();
        let parent = CreateMode::Persistent.with_acls(acls);
        let options = LockOptions::new(acls).with_ancestor_options(parent).map_err(|error| error.to_string())?;
        let prefix = LockPrefix::new_curator(&self.path, "lock-").map_err(|error| error.to_string())?;
        let lock = self.client.lock(prefix, b"", options).await.map_err(|error| error.to_string())?;
        let node = lock.lock_path().to_owned();
        // It would delete the node in the background, and not say when that is done.
        mem::forget(lock);
        Ok(node)
    }

    async fn release(&mut self, node: String) -> Result<(), String> {
        self.client.delete(&node, None).await.map_err(|error| error.to_string())
    }
}
