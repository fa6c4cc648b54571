//! Locks without async: the machine, `std::net` and threads.
//!
//! This is what embedding [`redis::Client`] takes. One mutex guards the machine; whoever has a fact for
//! it (a reader of a socket, the clock, the application) locks it, tells the fact, and carries out what the machine wants. Each
//! connection has a thread that reads and one that writes, so a socket that takes no bytes holds up nobody else.
//!
//! ```no_run
//! use lock_examples::blocking::Client;
//! use lock_proto::redis::{Acquire, Config, Endpoint};
//! use std::time::Duration;
//!
//! let client = Client::start(Config::new([Endpoint::parse("redis://127.0.0.1")?]))?;
//! let lock = client.lock(Acquire::new("invoice:42"))?;
//! println!("held for certain for {:?}", lock.remaining());
//! println!("{:?}", lock.release());
//! client.shutdown(Duration::from_secs(1));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```

mod socket;

use core::fmt;
use core::time::Duration;
use lock_proto::ByteClient;
use lock_proto::Machine;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use lock_proto::driver::BootClock;
use lock_proto::redis::{self, Acquire, Config, Event, Failure, Grant, Loss, Output, Release};
use lock_proto::{ClientId, ConfigError, ConnId, Instant, LockId, Misuse};

use socket::Socket;

/// The longest sleep. The timers of threads may stand still while the machine is suspended (requirement T4).
const NAP: Duration = Duration::from_secs(1);

/// A client that any thread may use. Clones are the same client.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    clock: BootClock,
    state: Mutex<State>,
    /// Notified after each change: of outputs, events and bytes to send.
    changed: Condvar,
}

struct State {
    machine: redis::Client,
    /// The connections that the machine wants; a socket once it is open.
    lines: BTreeMap<ConnId, Option<Arc<Socket>>>,
    /// What each acquisition was told and has not yet read.
    mail: BTreeMap<LockId, VecDeque<Event>>,
    /// Set when the shutdown is over: how many holds were not released for certain.
    stopped: Option<u32>,
}

/// Why there is no lock.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The request cannot be carried out.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The servers, or the wait.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl Client {
    /// A client for these nodes. It connects by itself.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    ///
    /// # Panics
    ///
    /// If the system has no entropy, which tells this client's locks from all others.
    pub fn start(config: Config) -> Result<Self, ConfigError> {
        let mut entropy = [0; 24];
        getrandom::fill(&mut entropy).expect("the system's entropy");
        let (id, seed) = entropy.split_at(16);
        let id = id.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte));
        let seed = seed.iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
        let clock = BootClock::new();
        let machine = redis::Client::new(clock.now(), config, ClientId::from_bits(id), seed)?;
        let state = State { machine, lines: BTreeMap::new(), mail: BTreeMap::new(), stopped: None };
        let shared = Arc::new(Shared { clock, state: Mutex::new(state), changed: Condvar::new() });
        shared.work(|_, _| ());
        let ticking = Arc::clone(&shared);
        thread::spawn(move || ticking.tick());
        Ok(Self { shared })
    }

    /// Asks for a lock, and does not wait: see [`Lock::next_event`].
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the request cannot be carried out.
    pub fn request(&self, want: Acquire) -> Result<Lock, Misuse> {
        let id = self.shared.work(|state, now| {
            let id = state.machine.acquire(now, &want)?;
            state.mail.insert(id, VecDeque::new());
            Ok::<_, Misuse>(id)
        })?;
        Ok(Lock { shared: Arc::clone(&self.shared), id })
    }

    /// Waits for a lock.
    ///
    /// # Errors
    ///
    /// Why it was not acquired; nothing is left behind then.
    pub fn lock(&self, want: Acquire) -> Result<Held, LockError> {
        loop {
            let lock = self.request(want.clone())?;
            loop {
                match lock.next_event(None) {
                    Some(Event::Granted(grant)) => {
                        lock.claim()?;
                        return Ok(Held { lock, grant });
                    }
                    Some(Event::Failed(failure)) => return Err(failure.into()),
                    // This thread slept through the offer.
                    Some(Event::Withdrawn) | None => break,
                    Some(_) => {}
                }
            }
        }
    }

    /// Gives back what is held, within the limit; says how many locks were not given back for certain. They end at their TTL.
    pub fn shutdown(&self, within: Duration) -> u32 {
        self.shared.work(|state, now| state.machine.shutdown(now, within));
        let mut state = self.shared.locked();
        loop {
            match state.stopped {
                Some(unreleased) => return unreleased,
                None => state = self.shared.wait(state, NAP),
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// One acquisition, as the machine tells of it. Dropping it gives the lock back in the background.
pub struct Lock {
    shared: Arc<Shared>,
    id: LockId,
}

impl Lock {
    /// What happened next; `None` if nothing did within `limit`, or nothing will any more.
    #[must_use]
    pub fn next_event(&self, limit: Option<Duration>) -> Option<Event> {
        let end = limit.map(|limit| self.shared.clock.now() + limit);
        let mut state = self.shared.locked();
        loop {
            let stopped = state.stopped.is_some();
            if let Some(event) = state.mail.get_mut(&self.id)?.pop_front() {
                return Some(event);
            }
            let left = end.map_or(NAP, |end| end.since(self.shared.clock.now()));
            if stopped || left.is_zero() {
                return None;
            }
            state = self.shared.wait(state, left.min(NAP));
        }
    }

    /// Takes a lock that was granted.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it was not, or the offer was withdrawn.
    pub fn claim(&self) -> Result<(), Misuse> {
        self.shared.work(|state, now| state.machine.claim(now, self.id))
    }

    /// Gives the lock back; the answer is [`Event::Released`].
    ///
    /// # Errors
    ///
    /// [`Misuse`] if there is nothing to give back.
    pub fn release(&self) -> Result<(), Misuse> {
        self.shared.work(|state, now| state.machine.release(now, self.id))
    }

    /// Gives the acquisition up, in whatever state it is; nothing more is told of it.
    pub fn abandon(&self) {
        self.shared.work(|state, now| {
            state.mail.remove(&self.id);
            state.machine.abandon(now, self.id);
        });
    }

    /// For how long it is held for certain from now on; `None` if it is not held. Compares the clock now, whatever the threads
    /// have noticed (requirement T3).
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let until = self.shared.locked().machine.valid_until(self.id)?;
        let left = until.since(self.shared.clock.now());
        (!left.is_zero()).then_some(left)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A lock that is held and kept alive. Dropping it gives it back in the background.
#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
pub struct Held {
    lock: Lock,
    grant: Grant,
}

impl Held {
    /// What was granted: token, fencing token, TTL.
    #[must_use]
    pub const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Whether it is held for certain at this moment.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.remaining() > Duration::ZERO
    }

    /// For how long it is held for certain from now on, whatever else happens.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lock.remaining().unwrap_or_default()
    }

    /// Waits for the loss of the lock; `None` if it is still held after `limit`.
    #[must_use]
    pub fn lost_within(&self, limit: Duration) -> Option<Loss> {
        let end = self.lock.shared.clock.now() + limit;
        loop {
            let left = end.since(self.lock.shared.clock.now());
            match self.lock.next_event(Some(left)) {
                Some(Event::Lost(loss)) => return Some(loss),
                Some(_) => {}
                None => return None,
            }
        }
    }

    /// Gives the lock back, and waits for the answer.
    pub fn release(self) -> Release {
        if self.lock.release().is_err() {
            return Release::Unknown;
        }
        loop {
            match self.lock.next_event(None) {
                Some(Event::Released(release)) => return release,
                Some(_) => {}
                None => return Release::Unknown,
            }
        }
    }
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Tells the machine something, and carries out what it wants. The time is read under the mutex, so that the machine sees it
    /// go forward.
    fn work<R>(self: &Arc<Self>, tell: impl FnOnce(&mut State, Instant) -> R) -> R {
        let mut state = self.locked();
        let result = tell(&mut state, self.clock.now());
        self.carry_out(&mut state);
        drop(state);
        self.changed.notify_all();
        result
    }

    fn carry_out(self: &Arc<Self>, state: &mut State) {
        while let Some(output) = state.machine.poll_output() {
            match output {
                Output::Connect { node, conn } => {
                    let Some(endpoint) = state.machine.endpoint(node) else { continue };
                    let target = endpoint.target.clone();
                    state.lines.insert(conn, None);
                    let shared = Arc::clone(self);
                    thread::spawn(move || shared.serve(conn, &target));
                }
                Output::Disconnect { conn } => {
                    if let Some(Some(socket)) = state.lines.remove(&conn) {
                        socket.close();
                    }
                }
                Output::Event { lock, event } => {
                    if let Some(mail) = state.mail.get_mut(&lock) {
                        mail.push_back(event);
                    }
                }
                Output::Stopped { unreleased } => state.stopped = Some(unreleased),
            }
        }
    }

    /// The clock's thread: wakes at each deadline of the machine.
    fn tick(self: Arc<Self>) {
        let mut state = self.locked();
        while state.stopped.is_none() {
            let now = self.clock.now();
            match state.machine.next_deadline() {
                Some(deadline) if deadline <= now => {
                    state.machine.handle_timeout(now);
                    self.carry_out(&mut state);
                    self.changed.notify_all();
                }
                Some(deadline) => state = self.wait(state, deadline.since(now).min(NAP)),
                None => state = self.wait(state, NAP),
            }
        }
    }

    /// A connection's thread: opens it, starts its writer, reads until its end.
    fn serve(self: Arc<Self>, conn: ConnId, target: &redis::Target) {
        let socket = match Socket::open(target) {
            Ok(socket) => Arc::new(socket),
            Err(error) => return self.end(conn, &error),
        };
        let wanted = self.work(|state, now| {
            // It may have taken so long that the machine wants another one by now.
            let wanted = state.lines.get_mut(&conn).map(|line| *line = Some(Arc::clone(&socket))).is_some();
            if wanted {
                state.machine.handle_connected(now, conn);
            }
            wanted
        });
        if !wanted {
            return;
        }
        let (shared, writing) = (Arc::clone(&self), Arc::clone(&socket));
        thread::spawn(move || shared.write(conn, &writing));
        let mut buffer = vec![0; 16 * 1024];
        let error = loop {
            match socket.read(&mut buffer) {
                Ok(0) => break std::io::ErrorKind::UnexpectedEof.into(),
                Ok(n) => self.work(|state, now| state.machine.handle_received(now, conn, &buffer[..n])),
                Err(error) => break error,
            }
        };
        self.end(conn, &error);
    }

    /// A connection's other thread: sends what the machine has for it. The bytes count as sent before the socket has them: nobody can
    /// tell when the server sees them, and its answer may come before `write` returns.
    fn write(self: Arc<Self>, conn: ConnId, socket: &Socket) {
        let mut bytes = Vec::new();
        loop {
            let mut state = self.locked();
            loop {
                if !state.lines.contains_key(&conn) {
                    return;
                }
                bytes.clear();
                bytes.extend_from_slice(state.machine.outgoing(conn));
                if !bytes.is_empty() {
                    state.machine.consume(conn, bytes.len());
                    break;
                }
                state = self.wait(state, NAP);
            }
            drop(state);
            if let Err(error) = socket.write_all(&bytes) {
                return self.end(conn, &error);
            }
        }
    }

    fn end(self: &Arc<Self>, conn: ConnId, error: &std::io::Error) {
        self.work(|state, now| {
            if let Some(Some(socket)) = state.lines.remove(&conn) {
                socket.close();
            }
            state.machine.handle_disconnected(now, conn, socket::fault(error));
        });
    }
}
