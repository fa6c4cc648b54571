//! The `redis` client with a common handwritten lock. It repeats `SET NX PX` once per poll interval
//! until it succeeds, with a token per attempt. To release, a script deletes the key if it still
//! has the token.

use std::time::Duration;

use lock_examples::contention::{Contender, Failed, Job};
use redis::Script;
use redis::aio::MultiplexedConnection;

const DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub struct Client(MultiplexedConnection);

impl Client {
    pub async fn open(job: &Job) -> Result<Self, Failed> {
        let client = redis::Client::open(job.backends[0].as_str()).map_err(Failed::usage)?;
        Ok(Self(client.get_multiplexed_async_connection().await.map_err(Failed::unreachable)?))
    }
}

pub struct Task {
    connection: MultiplexedConnection,
    delete: Script,
    name: String,
    ttl: u64,
    poll: Duration,
    tokens: u64,
}

/// The token in the key while the lock is held.
pub struct Held(String);

impl Task {
    pub fn new(client: &Client, job: &Job, name: String) -> Self {
        let ttl = u64::try_from(job.ttl.as_millis()).unwrap_or(u64::MAX);
        let delete = Script::new(DELETE);
        Self { connection: client.0.clone(), delete, name, ttl, poll: job.poll, tokens: 0 }
    }
}

impl Contender for Task {
    type Held = Held;

    async fn ready(&mut self) -> Result<(), Failed> {
        let loaded = self.delete.prepare_invoke().load_async(&mut self.connection).await;
        loaded.map(drop).map_err(Failed::unreachable)
    }

    async fn acquire(&mut self) -> Result<Held, String> {
        self.tokens += 1;
        let token = format!("{}:{:p}:{}", std::process::id(), self.name.as_ptr(), self.tokens);
        loop {
            let mut set = redis::cmd("SET");
            set.arg(&self.name).arg(&token).arg("NX").arg("PX").arg(self.ttl);
            let answer: Option<String> =
                set.query_async(&mut self.connection).await.map_err(|error| error.to_string())?;
            if answer.is_some() {
                return Ok(Held(token));
            }
            tokio::time::sleep(self.poll).await;
        }
    }

    async fn release(&mut self, held: Held) -> Result<(), String> {
        let mut delete = self.delete.key(&self.name);
        let deleted: u32 =
            delete.arg(held.0).invoke_async(&mut self.connection).await.map_err(|error| error.to_string())?;
        if deleted == 1 { Ok(()) } else { Err("the key was not ours any more".to_owned()) }
    }
}
