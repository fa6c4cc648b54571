//! A lock under the crate `redis`, blocking: `redis-sync URL NAME SECONDS`.
//!
//! One thread does everything. Between the steps of its work it runs the machine, which renews the
//! lock.

use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use lock_driver::{BootClock, random_identity};
use lock_proto::redis::{Config, Form, Locks, LocksOutput, Reply, Request, ServerInfo, Value};
use lock_proto::{Acquire, Breach, Cause, Event, Fault, Instant, LockId, NodeId};
use redis::ConnectionLike as _;

/// How long a server may be silent. Much less than the TTL.
const SILENCE: Duration = Duration::from_millis(500);
/// One step of the work, and the longest sleep: timers may stop while the computer is suspended.
const STEP: Duration = Duration::from_millis(100);

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(name), Some(seconds)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: redis-sync URL NAME SECONDS".into());
    };
    let seconds = Duration::from_secs(seconds.parse()?);
    let mut client = Client::new(&url)?;

    // Acquire. The lock is held once the grant has been claimed.
    let lock = client.locks.acquire(client.clock.now(), &Acquire::new(&name).ttl(Duration::from_secs(3)))?;
    let grant = loop {
        match client.step() {
            Some((_, Event::Granted(grant))) => break grant,
            Some((_, Event::Failed(failure))) => return Err(failure.into()),
            Some((_, Event::Blocked(why))) => eprintln!("waiting: {why}"),
            Some(_) | None => {}
        }
    };
    client.locks.claim(client.clock.now(), lock)?;
    println!("held, fencing token {:?}", grant.fence);

    // Work in steps, while the lock is held. Compare the clock before what must not happen twice.
    let end = client.clock.now() + seconds;
    while client.is_held(lock) && client.clock.now() < end {
        if let Some((_, event)) = client.step() {
            println!("{event:?}");
        }
    }
    let lost = !client.is_held(lock);

    // Release in both cases: it deletes the key if it is still there.
    client.locks.release(client.clock.now(), lock)?;
    let released = loop {
        if let Some((_, Event::Released(released))) = client.step() {
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
    connection: Option<redis::Connection>,
}

impl Client {
    fn new(url: &str) -> Result<Self, Box<dyn Error>> {
        let clock = BootClock::new();
        let (id, seed) = random_identity()?;
        let locks = Locks::new(clock.now(), Config::parse(url)?, id, seed)?;
        Ok(Self { locks, clock, redis: redis::Client::open(url)?, connection: None })
    }

    fn is_held(&self, lock: LockId) -> bool {
        self.locks.valid_until(lock) > Some(self.clock.now())
    }

    /// Runs the machine until the next event, for [`STEP`] at most.
    fn step(&mut self) -> Option<(LockId, Event)> {
        let end: Instant = self.clock.now() + STEP;
        loop {
            while let Some(output) = self.locks.poll_output() {
                match output {
                    LocksOutput::Send { call, request } => {
                        let reply = self.execute(&request);
                        self.locks.handle_reply(self.clock.now(), call, &reply);
                    }
                    LocksOutput::Event { lock, event } => return Some((lock, event)),
                    // Waiters poll. To be woken by a release, run BLPOP on a second connection
                    // here.
                    LocksOutput::Listen { .. } | LocksOutput::Unlisten { .. } => {}
                    LocksOutput::Operation { .. } | LocksOutput::Stopped { .. } => {}
                }
            }
            let now = self.clock.now();
            if now >= end {
                return None;
            }
            let next = self.locks.next_deadline().map_or(end, |next| next.min(end));
            thread::sleep(next.since(now));
            self.locks.handle_timeout(self.clock.now());
        }
    }

    fn execute(&mut self, request: &Request) -> Reply {
        if self.connection.is_none() {
            let Ok(mut connection) = self.connect() else {
                return Reply::NotSent(Cause::Fault(Fault::Unreachable));
            };
            // With the server's identity, held locks are verified only if the server restarted.
            let info: Option<String> = redis::cmd("INFO").arg("server").query(&mut connection).ok();
            let info = info.map(|info| ServerInfo::parse(info.as_bytes()));
            self.connection = Some(connection);
            self.locks.handle_node_up(self.clock.now(), NodeId::new(0), info.as_ref());
        }
        let command = request.with_args(self.locks.identity(), Form::Source, |args| {
            let mut command = redis::Cmd::new();
            for arg in args {
                command.arg(*arg);
            }
            command
        });
        let Some(connection) = &mut self.connection else { return Reply::NotSent(Cause::Fault(Fault::Unreachable)) };
        let answer = connection.req_command(&command);
        let reply = match &answer {
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
            // Errors of the server have a code.
            Err(error) if error.code().is_some() => request.read(Value::Error(&format!(
                "{} {}",
                error.code().unwrap_or_default(),
                error.detail().unwrap_or_default()
            ))),
            // Anything else ends the connection: the request may have been executed.
            Err(error) => {
                self.connection = None;
                let fault = if error.is_timeout() { Fault::TimedOut } else { Fault::Closed };
                return Reply::Unknown(Cause::Fault(fault));
            }
        };
        reply.unwrap_or(Reply::Unknown(Cause::Fault(Fault::Protocol(Breach::Malformed))))
    }

    fn connect(&self) -> redis::RedisResult<redis::Connection> {
        let connection = self.redis.get_connection_with_timeout(SILENCE)?;
        connection.set_read_timeout(Some(SILENCE))?;
        connection.set_write_timeout(Some(SILENCE))?;
        Ok(connection)
    }
}
