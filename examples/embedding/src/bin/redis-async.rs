//! A lock under the crate `redis`, async on tokio: `redis-async URL NAME SECONDS`.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use lock_driver::{BootClock, random_identity};
use lock_proto::redis::{Config, Form, Locks, LocksOutput, Reply, Request, ServerInfo, Value};
use lock_proto::{Acquire, Breach, CallId, Cause, Event, Fault, LockId, NodeId};
use redis::AsyncConnectionConfig;
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use std::collections::VecDeque;

/// How long a server may be silent. Much less than the TTL.
const SILENCE: Duration = Duration::from_millis(500);
/// The longest sleep: timers may stop while the computer is suspended.
const MAX_SLEEP: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(name), Some(seconds)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: redis-async URL NAME SECONDS".into());
    };
    let seconds = Duration::from_secs(seconds.parse()?);
    let mut client = Client::new(&url)?;

    // Acquire. The lock is held once the grant has been claimed.
    let lock = client.locks.acquire(client.clock.now(), &Acquire::new(&name).ttl(Duration::from_secs(3)))?;
    let grant = loop {
        match client.next().await {
            (_, Event::Granted(grant)) => break grant,
            (_, Event::Failed(failure)) => return Err(failure.into()),
            (_, Event::Blocked(why)) => eprintln!("waiting: {why}"),
            _ => {}
        }
    };
    client.locks.claim(client.clock.now(), lock)?;
    println!("held, fencing token {:?}", grant.fence);

    // Work, and cancel it if the lock is lost. `lost` renews the lock meanwhile.
    let work = tokio::time::sleep(seconds);
    let lost = tokio::select! {
        () = work => !client.is_held(lock),
        loss = client.lost() => {
            println!("lost: {loss}");
            true
        }
    };

    // Release in both cases: it deletes the key if it is still there.
    client.locks.release(client.clock.now(), lock)?;
    let released = loop {
        if let (_, Event::Released(released)) = client.next().await {
            break released;
        }
    };
    println!("released: {released:?}");
    Ok(if lost { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Client {
    locks: Locks,
    clock: BootClock,
    redis: redis::Client,
    connection: Option<MultiplexedConnection>,
    /// One at a time, because requests must run in order.
    waiting: VecDeque<(CallId, Request)>,
    running: Option<BoxFuture<'static, Ran>>,
}

/// What came of one request.
struct Ran {
    call: CallId,
    reply: Reply,
    /// The connection, unless it is broken.
    connection: Option<MultiplexedConnection>,
    /// The connection is new: the reply to `INFO server`.
    opened: Option<Option<String>>,
}

impl Client {
    fn new(url: &str) -> Result<Self, Box<dyn Error>> {
        let clock = BootClock::new();
        let (id, seed) = random_identity()?;
        let locks = Locks::new(clock.now(), Config::parse(url)?, id, seed)?;
        let redis = redis::Client::open(url)?;
        Ok(Self { locks, clock, redis, connection: None, waiting: VecDeque::new(), running: None })
    }

    fn is_held(&self, lock: LockId) -> bool {
        self.locks.valid_until(lock) > Some(self.clock.now())
    }

    async fn lost(&mut self) -> lock_proto::Loss {
        loop {
            if let (_, Event::Lost(loss)) = self.next().await {
                return loss;
            }
        }
    }

    /// Runs the machine until the next event. Cancel safe: nothing is lost if this is dropped.
    async fn next(&mut self) -> (LockId, Event) {
        loop {
            while let Some(output) = self.locks.poll_output() {
                match output {
                    LocksOutput::Send { call, request } => self.waiting.push_back((call, request)),
                    LocksOutput::Event { lock, event } => return (lock, event),
                    // Waiters poll. To be woken by a release, run BLPOP on a second connection
                    // here.
                    LocksOutput::Listen { .. } | LocksOutput::Unlisten { .. } => {}
                    LocksOutput::Operation { .. } | LocksOutput::Stopped { .. } => {}
                }
            }
            if self.running.is_none()
                && let Some((call, request)) = self.waiting.pop_front()
            {
                let command = request.with_args(self.locks.identity(), Form::Source, |args| {
                    let mut command = redis::Cmd::new();
                    for arg in args {
                        command.arg(*arg);
                    }
                    command
                });
                let connection = self.connection.take();
                self.running = Some(run(self.redis.clone(), connection, call, request, command).boxed());
            }
            let now = self.clock.now();
            let until = self.locks.next_deadline().map_or(MAX_SLEEP, |next| next.since(now).min(MAX_SLEEP));
            let running = async {
                match &mut self.running {
                    Some(running) => running.await,
                    None => std::future::pending().await,
                }
            };
            match tokio::time::timeout(until, running).await {
                Ok(ran) => {
                    self.running = None;
                    self.connection = ran.connection;
                    let now = self.clock.now();
                    if let Some(info) = ran.opened {
                        // With the server's identity, held locks are verified only if it restarted.
                        let info = info.map(|info| ServerInfo::parse(info.as_bytes()));
                        self.locks.handle_node_up(now, NodeId::new(0), info.as_ref());
                    }
                    self.locks.handle_reply(now, ran.call, &ran.reply);
                }
                Err(_) => self.locks.handle_timeout(self.clock.now()),
            }
        }
    }
}

async fn run(
    client: redis::Client,
    connection: Option<MultiplexedConnection>,
    call: CallId,
    request: Request,
    command: redis::Cmd,
) -> Ran {
    let mut opened = None;
    let mut connection = match connection {
        Some(connection) => connection,
        None => {
            let config =
                AsyncConnectionConfig::new().set_connection_timeout(Some(SILENCE)).set_response_timeout(Some(SILENCE));
            let Ok(mut connection) = client.get_multiplexed_async_connection_with_config(&config).await else {
                let reply = Reply::NotSent(Cause::Fault(Fault::Unreachable));
                return Ran { call, reply, connection: None, opened };
            };
            opened = Some(redis::cmd("INFO").arg("server").query_async(&mut connection).await.ok());
            connection
        }
    };
    match connection.req_packed_command(&command).await {
        // Errors of the server have a code. Any other ends the connection: the request may have
        // been executed.
        Err(error) if error.code().is_none() => {
            let fault = if error.is_timeout() { Fault::TimedOut } else { Fault::Closed };
            Ran { call, reply: Reply::Unknown(Cause::Fault(fault)), connection: None, opened }
        }
        answer => Ran { call, reply: read(&request, &answer), connection: Some(connection), opened },
    }
}

fn read(request: &Request, answer: &redis::RedisResult<redis::Value>) -> Reply {
    let reply = match answer {
        Ok(redis::Value::Nil) => request.read(Value::Nil),
        Ok(redis::Value::Int(number)) => request.read(Value::Int(*number)),
        Ok(redis::Value::Okay) => request.read(Value::Text(b"OK")),
        Ok(redis::Value::BulkString(text)) => request.read(Value::Text(text)),
        Ok(redis::Value::Array(values)) => {
            let numbers = values.iter().map(|value| match value {
                redis::Value::Int(number) => Some(*number),
                _ => None,
            });
            numbers.collect::<Option<Vec<_>>>().and_then(|numbers| request.read(Value::Ints(&numbers)))
        }
        Ok(_) => None,
        Err(error) => request.read(Value::Error(&format!(
            "{} {}",
            error.code().unwrap_or_default(),
            error.detail().unwrap_or_default()
        ))),
    };
    reply.unwrap_or(Reply::Unknown(Cause::Fault(Fault::Protocol(Breach::Malformed))))
}
