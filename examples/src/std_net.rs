//! Locks without async: the state machine, `std::net` and threads.
//!
//! Shows how to embed [`redis::Client`]. A mutex guards the machine. A thread with an input (a
//! socket reader, the timer, the application) locks it, passes the input to the machine and carries
//! out the outputs. Each connection has a reader and a writer thread, so a stalled socket blocks
//! nothing else. Servers may speak TLS: `rediss://host?ca=…&cert=…&key=…`.
//!
//! ```no_run
//! use lock_examples::std_net::Client;
//! use lock_proto::redis::Config;
//! use lock_proto::Acquire;
//! use std::time::Duration;
//!
//! let client = Client::start(Config::parse("redis://127.0.0.1")?)?;
//! let lock = client.lock(Acquire::new("invoice:42"))?;
//! println!("held for certain for {:?}", lock.remaining());
//! println!("{:?}", lock.release());
//! client.shutdown(Duration::from_secs(1));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```

mod certificates;
mod socket;
#[cfg(test)]
mod tests;

use core::fmt;
use core::time::Duration;
use lock_proto::{
    Acquire, ByteClient, ConnId, Credentials, CredentialsRequest, Event, Failure, Fault, Grant, Instant, LockClient,
    LockId, Loss, Machine, Misuse, Release,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use lock_driver::{BootClock, ConnectError, read_file};
use lock_proto::redis::{self, Config, Output};

use certificates::Certificates;
use socket::{Reader, Socket};

/// The longest sleep: timers may stop while the computer is suspended.
// T4
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// A client that can be shared between threads. Clones refer to the same client.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    clock: BootClock,
    certificates: Certificates,
    state: Mutex<State>,
    /// Notified after each change of the outputs, events or bytes to send.
    changed: Condvar,
}

struct State {
    machine: redis::Client,
    /// The connections that the machine requested; `None` until there is a socket.
    sockets: BTreeMap<ConnId, Option<Arc<Socket>>>,
    /// Unread events of each acquisition.
    events: BTreeMap<LockId, VecDeque<Event>>,
    /// Set when the shutdown is complete: the number of locks whose release is unconfirmed.
    stopped: Option<u32>,
}

/// Error of a lock request.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The request is invalid.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The servers failed, or the wait timed out.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl Client {
    /// Creates a client for these nodes. It connects when the first lock is requested.
    ///
    /// TLS and logins are as the URLs say, password files included. What
    /// [`Settings`](lock_driver::Settings) adds in code is not supported: a source of
    /// credentials, a rustls configuration, and the permission for `#insecure`, which is an error.
    ///
    /// # Errors
    ///
    /// A setting is out of range, certificates cannot be used, or the system has no entropy for a
    /// unique client ID.
    pub fn start(config: Config) -> Result<Self, ConnectError> {
        let (id, seed) = lock_driver::random_identity().map_err(ConnectError::Entropy)?;
        let clock = BootClock::new();
        let certificates = Certificates::load(&config)?;
        let machine = redis::Client::new(clock.now(), config, id, seed)?;
        let state = State { machine, sockets: BTreeMap::new(), events: BTreeMap::new(), stopped: None };
        let shared = Arc::new(Shared { clock, certificates, state: Mutex::new(state), changed: Condvar::new() });
        shared.with_state(|_, _| ());
        let timer = Arc::clone(&shared);
        thread::spawn(move || timer.run_timer());
        Ok(Self { shared })
    }

    /// Requests a lock without waiting, see [`Lock::next_event`].
    ///
    /// # Errors
    ///
    /// Returns [`Misuse`] if the request is invalid.
    pub fn request(&self, request: Acquire) -> Result<Lock, Misuse> {
        let id = self.shared.with_state(|state, now| {
            let id = state.machine.acquire(now, &request)?;
            state.events.insert(id, VecDeque::new());
            Ok::<_, Misuse>(id)
        })?;
        Ok(Lock { shared: Arc::clone(&self.shared), id })
    }

    /// Waits for a lock.
    ///
    /// # Errors
    ///
    /// Returns why the lock was not acquired. What it left on the servers is removed in the
    /// background.
    pub fn lock(&self, request: Acquire) -> Result<Held, LockError> {
        loop {
            let lock = self.request(request.clone())?;
            loop {
                match lock.next_event(None) {
                    Some(Event::Granted(grant)) => {
                        lock.claim()?;
                        return Ok(Held { lock, grant });
                    }
                    Some(Event::Failed(failure)) => return Err(failure.into()),
                    // This thread was not scheduled before the offer expired.
                    Some(Event::Withdrawn) | None => break,
                    Some(_) => {}
                }
            }
        }
    }

    /// Releases all locks, within the limit. Returns the number of locks whose release is
    /// unconfirmed; these expire with their TTL.
    pub fn shutdown(&self, within: Duration) -> u32 {
        self.shared.with_state(|state, now| state.machine.shutdown(now, within));
        let mut state = self.shared.locked();
        loop {
            match state.stopped {
                Some(unreleased) => return unreleased,
                None => state = self.shared.wait(state, MAX_SLEEP),
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// An acquisition, with its events. Dropping it releases the lock in the background.
pub struct Lock {
    shared: Arc<Shared>,
    id: LockId,
}

impl Lock {
    /// Waits for the next event. Returns `None` after `limit`, or if no more events will come.
    #[must_use]
    pub fn next_event(&self, limit: Option<Duration>) -> Option<Event> {
        let end = limit.map(|limit| self.shared.clock.now() + limit);
        let mut state = self.shared.locked();
        loop {
            let stopped = state.stopped.is_some();
            if let Some(event) = state.events.get_mut(&self.id)?.pop_front() {
                return Some(event);
            }
            let left = end.map_or(MAX_SLEEP, |end| end.since(self.shared.clock.now()));
            if stopped || left.is_zero() {
                return None;
            }
            state = self.shared.wait(state, left.min(MAX_SLEEP));
        }
    }

    /// Claims a lock that was granted.
    ///
    /// # Errors
    ///
    /// Returns [`Misuse`] if the lock was not granted or the offer was withdrawn.
    pub fn claim(&self) -> Result<(), Misuse> {
        self.shared.with_state(|state, now| state.machine.claim(now, self.id))
    }

    /// Releases the lock. The reply arrives as [`Event::Released`].
    ///
    /// # Errors
    ///
    /// Returns [`Misuse`] if there is nothing to release.
    pub fn release(&self) -> Result<(), Misuse> {
        self.shared.with_state(|state, now| state.machine.release(now, self.id))
    }

    /// Cancels the acquisition in whatever state it is in. It reports no further events.
    pub fn abandon(&self) {
        self.shared.with_state(|state, now| {
            state.events.remove(&self.id);
            state.machine.abandon(now, self.id);
        });
    }

    /// Returns how long the lock is certainly held from now on; `None` if it is not held. Reads the
    /// clock itself, so that a delayed thread cannot make it stale.
    // T3
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

/// A lock that is held and renewed. Dropping it releases the lock in the background.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct Held {
    lock: Lock,
    grant: Grant,
}

impl Held {
    /// Returns the token, the fencing token and the TTL.
    #[must_use]
    pub const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Returns true if the lock is certainly held now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.remaining() > Duration::ZERO
    }

    /// Returns how long the lock is certainly held from now on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lock.remaining().unwrap_or_default()
    }

    /// Waits for the loss of the lock. Returns `None` if it is still held after `limit`.
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

    /// Releases the lock and waits for the reply.
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

/// The content of the password file. Editors end it with a newline.
fn password(request: &CredentialsRequest) -> Option<Credentials> {
    let text = String::from_utf8(read_file(&**request.login.password_file.as_ref()?).ok()?).ok()?;
    let line = text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    (!line.is_empty()).then(|| Credentials::new(line))
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Passes an input to the machine and carries out its outputs. Reads the clock under the mutex,
    /// so that the machine sees time move forward.
    fn with_state<R>(self: &Arc<Self>, input: impl FnOnce(&mut State, Instant) -> R) -> R {
        let mut state = self.locked();
        let result = input(&mut state, self.clock.now());
        self.carry_out(&mut state);
        drop(state);
        self.changed.notify_all();
        result
    }

    fn carry_out(self: &Arc<Self>, state: &mut State) {
        while let Some(output) = state.machine.poll_output() {
            match output {
                Output::Connect { conn, target, .. } => {
                    state.sockets.insert(conn, None);
                    let shared = Arc::clone(self);
                    thread::spawn(move || shared.serve(conn, &target));
                }
                Output::Credentials { conn, request } => {
                    let shared = Arc::clone(self);
                    thread::spawn(move || {
                        let credentials = password(&request);
                        shared.with_state(|state, now| state.machine.handle_credentials(now, conn, credentials));
                    });
                }
                Output::Disconnect { conn, .. } => {
                    if let Some(Some(socket)) = state.sockets.remove(&conn) {
                        socket.close();
                    }
                }
                Output::Event { lock, event } => {
                    if let Some(events) = state.events.get_mut(&lock) {
                        events.push_back(event);
                    }
                }
                // None is started.
                Output::Operation { .. } => {}
                Output::Stopped { unreleased } => state.stopped = Some(unreleased),
            }
        }
    }

    /// Timer thread: calls the machine at each deadline.
    fn run_timer(self: Arc<Self>) {
        let mut state = self.locked();
        while state.stopped.is_none() {
            let now = self.clock.now();
            match state.machine.next_deadline() {
                Some(deadline) if deadline <= now => {
                    state.machine.handle_timeout(now);
                    self.carry_out(&mut state);
                    self.changed.notify_all();
                }
                Some(deadline) => state = self.wait(state, deadline.since(now).min(MAX_SLEEP)),
                None => state = self.wait(state, MAX_SLEEP),
            }
        }
    }

    /// Reader thread of a connection: connects, starts the writer, and reads until the end.
    fn serve(self: Arc<Self>, conn: ConnId, target: &lock_proto::Target) {
        let fault = match self.connect(conn, target) {
            Ok(reader) => self.read(conn, reader),
            Err(fault) => fault,
        };
        self.with_state(|state, now| {
            if let Some(Some(socket)) = state.sockets.remove(&conn) {
                socket.close();
            }
            state.machine.handle_disconnected(now, conn, fault);
        });
    }

    fn connect(self: &Arc<Self>, conn: ConnId, target: &lock_proto::Target) -> Result<Reader, Fault> {
        let session = self.certificates.session(target)?;
        let socket = Arc::new(Socket::open(target, session)?);
        // The machine may have given up this connection meanwhile. From now on that closes the
        // socket, which ends the handshake.
        let mut state = self.locked();
        *state.sockets.get_mut(&conn).ok_or(Fault::NotNeeded)? = Some(Arc::clone(&socket));
        drop(state);
        let mut reader = Reader::new(Arc::clone(&socket));
        reader.verify()?;
        self.with_state(|state, now| state.machine.handle_connected(now, conn));
        let shared = Arc::clone(self);
        thread::spawn(move || shared.write(conn, &socket));
        Ok(reader)
    }

    /// Reads until the connection ends.
    fn read(self: &Arc<Self>, conn: ConnId, mut reader: Reader) -> Fault {
        let mut buffer = vec![0; 16 * 1024];
        // A server with TLS has sent its part of the handshake.
        let mut received = reader.is_tls();
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return socket::fault(&std::io::ErrorKind::UnexpectedEof.into(), received),
                Ok(n) => self.with_state(|state, now| state.machine.handle_received(now, conn, &buffer[..n])),
                Err(error) => return socket::fault(&error, received),
            }
            received = true;
        }
    }

    /// Writer thread of a connection. Reports bytes as sent before it writes them, because the
    /// server's reply may arrive before `write` returns.
    fn write(self: Arc<Self>, conn: ConnId, socket: &Socket) {
        let mut bytes = Vec::new();
        loop {
            let mut state = self.locked();
            loop {
                if !state.sockets.contains_key(&conn) {
                    return;
                }
                bytes.clear();
                bytes.extend_from_slice(state.machine.outgoing(conn));
                if !bytes.is_empty() {
                    state.machine.consume(conn, bytes.len());
                    break;
                }
                state = self.wait(state, MAX_SLEEP);
            }
            drop(state);
            if socket.write_all(&bytes).is_err() {
                // The reader then finds the end, and the alert before it that says why.
                // N7
                return socket.close();
            }
        }
    }
}
