//! `redis::Locks` with the `redis` crate as its client: typed requests, one thread, no async.

use core::time::Duration;
use std::thread;

use lock_proto::driver::BootClock;
use lock_proto::redis::{
    Acquire, Cause, Config, Event, Form, Locks, LocksOutput, Loss, Release, Reply, Request, Value,
};
use lock_proto::{Breach, ClientId, Fault, LockId, NodeId};
use lock_testkit::{Redis, TIMEOUT};
use redis::ConnectionLike as _;

/// The longest sleep: timers may stop while the computer is suspended.
// T4
const MAX_SLEEP: Duration = Duration::from_millis(500);
/// How long a server may be silent.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// The locks, and a connection that is opened on demand.
struct Embedded {
    locks: Locks,
    clock: BootClock,
    client: redis::Client,
    connection: Option<redis::Connection>,
    events: Vec<(LockId, Event)>,
}

impl Embedded {
    fn new(url: &str) -> Self {
        let clock = BootClock::new();
        let mut random = [0; 24];
        getrandom::fill(&mut random).unwrap();
        let (id, seed) = random.split_at(16);
        let id = ClientId::from_bits(u128::from_le_bytes(id.try_into().unwrap()));
        let seed = u64::from_le_bytes(seed.try_into().unwrap());
        let locks = Locks::new(clock.now(), Config::parse(url).unwrap(), id, seed).unwrap();
        Self { locks, clock, client: redis::Client::open(url).unwrap(), connection: None, events: Vec::new() }
    }

    fn run_outputs(&mut self) {
        while let Some(output) = self.locks.poll_output() {
            match output {
                LocksOutput::Send { call, request } => {
                    let reply = self.execute(&request);
                    self.locks.handle_reply(self.clock.now(), call, &reply);
                }
                LocksOutput::Event { lock, event } => self.events.push((lock, event)),
                // A client with a second connection would BLPOP here. Without, waiters poll.
                LocksOutput::Listen { .. } | LocksOutput::Unlisten { .. } | LocksOutput::Stopped { .. } => {}
            }
        }
    }

    fn execute(&mut self, request: &Request) -> Reply {
        if self.connection.is_none() {
            match self.client.get_connection_with_timeout(REQUEST_TIMEOUT) {
                Ok(connection) => self.connection = Some(connection),
                Err(_) => return Reply::NotSent(Cause::Fault(Fault::Unreachable)),
            }
            self.locks.handle_node_up(self.clock.now(), NodeId::new(0), None);
        }
        let connection = self.connection.as_mut().unwrap();
        connection.set_read_timeout(Some(REQUEST_TIMEOUT)).unwrap();
        let command = request.with_args(self.locks.identity(), Form::Source, |args| {
            let mut command = redis::Cmd::new();
            for arg in args {
                command.arg(arg);
            }
            command
        });
        let read = |value: Value<'_>| request.read(value);
        let reply = match connection.req_command(&command) {
            Ok(redis::Value::Nil) => read(Value::Nil),
            Ok(redis::Value::Int(number)) => read(Value::Int(number)),
            Ok(redis::Value::Okay) => read(Value::Text(b"OK")),
            Ok(redis::Value::BulkString(text)) => read(Value::Text(&text)),
            Ok(redis::Value::Array(values)) => {
                let numbers = values.iter().map(|value| match value {
                    redis::Value::Int(number) => Some(*number),
                    _ => None,
                });
                numbers.collect::<Option<Vec<_>>>().and_then(|numbers| read(Value::Ints(&numbers)))
            }
            Ok(_) => None,
            // P2
            Err(error) if error.code().is_some() => read(Value::Error(&format!(
                "{} {}",
                error.code().unwrap_or_default(),
                error.detail().unwrap_or_default()
            ))),
            // No reply will come on this connection, and the request may have been executed.
            // M8
            Err(error) => {
                self.connection = None;
                let fault = if error.is_timeout() { Fault::TimedOut } else { Fault::Closed };
                return Reply::Unknown(Cause::Fault(fault));
            }
        };
        reply.unwrap_or(Reply::Unknown(Cause::Fault(Fault::Protocol(Breach::Malformed))))
    }

    /// Runs until the next event of this lock.
    fn next(&mut self, lock: LockId) -> Event {
        let end = self.clock.now() + TIMEOUT;
        loop {
            self.run_outputs();
            if let Some(index) = self.events.iter().position(|(id, _)| *id == lock) {
                return self.events.remove(index).1;
            }
            let now = self.clock.now();
            assert!(now < end, "no event");
            match self.locks.next_deadline() {
                Some(at) if at <= now => self.locks.handle_timeout(now),
                Some(at) => thread::sleep(at.since(now).min(MAX_SLEEP)),
                None => thread::sleep(MAX_SLEEP),
            }
        }
    }

    fn acquire(&mut self, request: &Acquire) -> LockId {
        let lock = self.locks.acquire(self.clock.now(), request).unwrap();
        loop {
            match self.next(lock) {
                Event::Granted(_) => break,
                Event::Blocked(_) => {}
                other => panic!("{other:?}"),
            }
        }
        self.locks.claim(self.clock.now(), lock).unwrap();
        lock
    }

    fn is_held(&self, lock: LockId) -> bool {
        self.locks.valid_until(lock).is_some_and(|until| self.clock.now() < until)
    }

    fn release(&mut self, lock: LockId) -> Release {
        self.locks.release(self.clock.now(), lock).unwrap();
        loop {
            match self.next(lock) {
                Event::Released(release) => return release,
                Event::Renewed { .. } | Event::AtRisk { .. } | Event::Lost(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn machine_locks_over_redis_crate() {
    let mut redis = Redis::start();
    let mut first = Embedded::new(&redis.url());
    let ttl = Duration::from_millis(600);
    let lock = first.acquire(&Acquire::new("a").ttl(ttl));
    // It outlives its TTL.
    let end = first.clock.now() + 2 * ttl;
    while first.clock.now() < end {
        let event = first.next(lock);
        assert!(matches!(event, Event::Renewed { .. }), "{event:?}");
        assert!(first.is_held(lock) && redis.cli(&["EXISTS", "a"]) == "1");
    }
    assert_eq!(first.release(lock), Release::Released);
    assert_eq!(redis.cli(&["EXISTS", "a"]), "0");

    // Another client holds it for a while.
    redis.cli(&["SET", "a", "somebody", "PX", "300"]);
    let lock = first.acquire(&Acquire::new("a").ttl(ttl));
    assert!(first.is_held(lock));

    // The server dies: the hold is at risk, then lost, and its release unknown.
    redis.kill();
    while first.next(lock) != Event::Lost(Loss::Expired) {}
    assert!(!first.is_held(lock));
    assert_eq!(first.release(lock), Release::Unknown);
}
