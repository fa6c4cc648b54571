//! kazoo, in a process of Python for each task. A pipe tells it when to lock and to release, which
//! costs some 50 µs each time.

use std::mem;
use std::time::Duration;

use lock_examples::contention::{Contender, Failed, Job};
use lock_testkit::ZooKeeperPeer;
use tokio::task::spawn_blocking;

use crate::zookeeper_client::hosts_of;

/// Each takes 35 MB and half a second to start.
pub const MAX_CLIENTS: usize = 100;
/// Longer than any wait.
const WAIT: Duration = Duration::from_secs(600);
const NODE_NAME: &str = "__lock__";

pub struct Client;

impl Client {
    pub async fn open(_: &Job) -> Result<Self, Failed> {
        Ok(Self)
    }
}

pub struct Task {
    peer: Peer,
    path: String,
}

enum Peer {
    Starting(Box<dyn FnOnce() -> ZooKeeperPeer + Send>),
    Running(ZooKeeperPeer),
    /// A thread waits for its answer.
    Asked,
}

impl Task {
    pub fn new(_: &Client, job: &Job, name: String) -> Self {
        let (hosts, session) = (hosts_of(job).to_owned(), job.ttl);
        let start = move || ZooKeeperPeer::kazoo(&hosts, session, NODE_NAME);
        Self { peer: Peer::Starting(Box::new(start)), path: format!("/{name}") }
    }

    async fn ask(&mut self, command: String, expected: &'static str) -> Result<(), String> {
        let peer = mem::replace(&mut self.peer, Peer::Asked);
        let asked = spawn_blocking(move || {
            let mut peer = match peer {
                Peer::Starting(start) => start(),
                Peer::Running(peer) => peer,
                Peer::Asked => panic!("one question at a time"),
            };
            peer.send(&command);
            let answer = peer.line_within(WAIT);
            (peer, answer)
        });
        let (peer, answer) = asked.await.map_err(|error| error.to_string())?;
        self.peer = Peer::Running(peer);
        if answer.starts_with(expected) { Ok(()) } else { Err(answer) }
    }
}

impl Contender for Task {
    type Held = ();

    async fn ready(&mut self) -> Result<(), Failed> {
        // Makes the parent.
        self.ask(format!("acquire {} -", self.path), "held").await.map_err(Failed::unreachable)?;
        self.release(()).await.map_err(Failed::unreachable)
    }

    async fn acquire(&mut self) -> Result<(), String> {
        self.ask(format!("lock {}", self.path), "held").await
    }

    async fn release(&mut self, (): ()) -> Result<(), String> {
        self.ask(format!("release {}", self.path), "released").await
    }
}
