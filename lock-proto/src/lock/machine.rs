//! The interface common to the clients of all stores.

use core::time::Duration;

use super::credentials::Credentials;
use super::election::Elections;
use super::note::Note;
use super::operation::{Operation, OperationId};
use super::request::Acquire;
use super::tuning::{DEFAULT_TTL, Drift};
use crate::error::Misuse;
use crate::fault::Fault;
use crate::id::{ConnId, LockId};
use crate::time::Instant;

/// What an application asks of a client. These are its verbs, which take the current time first.
pub trait LockClient {
    /// Requests a lock. Progress is reported as events for the returned id.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if a value is out of range, the client is shutting down, or it has too many
    /// locks. Nothing has changed then.
    fn acquire(&mut self, now: Instant, request: &Acquire) -> Result<LockId, Misuse>;

    /// Takes the lock offered by [`Event::Granted`](crate::Event::Granted). Renewal starts with the
    /// claim.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotOffered`] or [`Misuse::Stale`] if there is no offer, or it was claimed or
    /// withdrawn.
    fn claim(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse>;

    /// Extends the lock to a full TTL from now. Each call is answered by one
    /// [`Event::Extended`](crate::Event::Extended) or
    /// [`Event::ExtendFailed`](crate::Event::ExtendFailed), in the order of the calls, unless the
    /// lock is lost or released first.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    fn extend(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse>;

    /// Releases the lock. Answered by [`Event::Released`](crate::Event::Released). The lock may be
    /// held, offered or lost.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the acquisition still waits, is already being released, or has ended.
    fn release(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse>;

    /// Cancels the acquisition in whatever state it is in. Cleanup removes what it left. No further
    /// events follow, except those that are queued when this returns: what was due before the call
    /// happens first. Does nothing for an id that has ended.
    fn abandon(&mut self, now: Instant, lock: LockId);

    /// Fails all waiters, releases all held locks, and refuses new acquisitions. The last output
    /// follows when every server has confirmed, or after `within`. Lost locks that were not
    /// released are left to their TTL.
    fn shutdown(&mut self, now: Instant, within: Duration);

    /// Starts an operation, such as a check of the servers. Its events follow as outputs.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the name is invalid, too many operations are open, the store has no elections,
    /// or the client is shutting down. The default implementation returns
    /// [`Misuse::ShuttingDown`].
    fn start(&mut self, _now: Instant, _operation: Operation) -> Result<OperationId, Misuse> {
        Err(Misuse::ShuttingDown)
    }

    /// Cancels an operation. No further events follow, except those that are queued when this
    /// returns. Does nothing for an id that has ended.
    fn cancel(&mut self, _now: Instant, _operation: OperationId) {}

    /// Returns the end of validity of a held lock; `None` if the lock is not held.
    fn valid_until(&self, lock: LockId) -> Option<Instant>;

    /// Returns the settings that a host needs.
    fn info(&self) -> ClientInfo<'_>;

    /// Returns the elections; `None` if the store has none.
    fn elections(&mut self) -> Option<&mut dyn Elections> {
        None
    }
}

/// Settings of a client that its host needs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ClientInfo<'a> {
    /// The TTL of acquisitions that name none.
    pub default_ttl: Duration,
    /// How long a release may take.
    pub release_within: Duration,
    /// How far the clocks of client and server may drift apart.
    pub drift: Drift,
    /// The prefix of every key.
    pub prefix: &'a [u8],
}

impl ClientInfo<'_> {
    /// The settings of a custom client: this much time for a release, and defaults.
    #[must_use]
    pub const fn new(release_within: Duration) -> Self {
        Self { default_ttl: DEFAULT_TTL, release_within, drift: Drift::DEFAULT, prefix: &[] }
    }
}

/// A client without I/O, as its host sees it: connections and timers. The driver and the simulation
/// run any implementation.
///
/// Inputs and outputs depend on the transport: see [`ByteClient`](super::ByteClient) for bytes.
/// Facts take the current time first.
pub trait Machine: LockClient {
    /// The connection is open.
    fn handle_connected(&mut self, now: Instant, conn: ConnId);

    /// The connection could not be opened, or has ended. Optional after `Disconnect`.
    fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault);

    /// The host supplies the credentials that the client requested for this connection; `None` if
    /// it has none, in which case the client requests them again later.
    fn handle_credentials(&mut self, _now: Instant, _conn: ConnId, _credentials: Option<Credentials>) {}

    /// Does the work that is due. Early, late and repeated calls are harmless.
    fn handle_timeout(&mut self, now: Instant);

    /// Does the due work of the locks, and leaves that of the connections to
    /// [`handle_timeout`](Self::handle_timeout).
    ///
    /// A host that was stopped for a while calls this, then passes on what has arrived meanwhile,
    /// then calls `handle_timeout`. Otherwise connections whose replies lie in the sockets count as
    /// silent.
    fn expire(&mut self, now: Instant) {
        self.handle_timeout(now);
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout). This is the current time
    /// while output is queued, and `None` if no timer is pending.
    fn next_deadline(&self) -> Option<Instant>;

    /// Returns [`next_deadline`](Self::next_deadline) and its reason, for debugging.
    fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        self.next_deadline().map(|at| (at, "a timer"))
    }

    /// Keeps [notes](Note) for a log or a metric, at most this many: of more, the oldest are
    /// dropped. 0, the default, makes none. The default implementation ignores it.
    fn keep_notes(&mut self, _most: usize) {}

    /// Returns the next note. A host that keeps notes drains them after each call. The default
    /// implementation has none.
    fn poll_note(&mut self) -> Option<Note> {
        None
    }

    /// Returns true if any lock is held. The driver then wakes up about every second: a suspend may
    /// delay its timer, and the holders must be notified.
    fn holds_any(&self) -> bool;

    /// Returns the number of requests in flight, or 0 if the client does not count them.
    fn in_flight(&self) -> usize {
        0
    }
}
