//! The interface that the clients of all stores implement.

use core::time::Duration;

use super::election::Elections;
use super::request::Acquire;
use super::tuning::Drift;
use crate::error::Misuse;
use crate::fault::Fault;
use crate::id::{ConnId, LockId};
use crate::time::Instant;

/// The verbs, the clock and the questions of a client. The driver and the simulation run any type that implements it.
///
/// Inputs and outputs depend on the transport: see [`ByteClient`](super::ByteClient) for bytes. Every method that changes the machine takes the
/// current time first.
pub trait Machine {
    /// Requests a lock. Progress is reported as events for the returned id.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: a value out of range, a shutdown under way, too many locks. Nothing has changed then.
    fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse>;

    /// Takes the lock that was offered by [`Event::Granted`](crate::Event::Granted). Only from then on is it renewed.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] or [`Misuse::Stale`] if the offer was withdrawn, or nothing was offered.
    fn claim(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse>;

    /// Gives the lock a full TTL from now on. Each call is answered by one
    /// [`Event::Extended`](crate::Event::Extended) or [`Event::ExtendFailed`](crate::Event::ExtendFailed), in the order of
    /// the calls, unless the lock is lost or released first.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    fn extend(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse>;

    /// Releases the lock. Answered by [`Event::Released`](crate::Event::Released). Legal for a lock that is held, offered
    /// or lost.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it has ended, is waited for only, or is being released already.
    fn release(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse>;

    /// Cancels the acquisition in whatever state it is in: none of its events follows, and nothing of it is left behind.
    /// Does nothing for an id that has ended.
    fn abandon(&mut self, now: Instant, lock: LockId);

    /// Releases what is held, answers all waiters, and refuses new acquisitions. The last output follows when every server
    /// has confirmed, or after `within`.
    fn shutdown(&mut self, now: Instant, within: Duration);

    /// The connection is open.
    fn handle_connected(&mut self, now: Instant, conn: ConnId);

    /// The connection could not be opened, or has ended. After `Disconnect` this need not be reported.
    fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault);

    /// Does what is due. Early, late and repeated calls are harmless.
    fn handle_timeout(&mut self, now: Instant);

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; now, while output is queued. `None`: not before
    /// something else happens.
    fn next_deadline(&self) -> Option<Instant>;

    /// [`next_deadline`](Self::next_deadline) and the reason for it, for debugging.
    fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        self.next_deadline().map(|at| (at, "a timer"))
    }

    /// The end of the validity of a lock that is held; `None` if it is not held.
    fn valid_until(&self, lock: LockId) -> Option<Instant>;

    /// Returns true if any lock is held. The driver then wakes up every second or so: after a suspend its timer may be
    /// late, and the holders must be notified.
    fn holds_any(&self) -> bool;

    /// The number of unanswered requests, or 0 if the client does not count them.
    fn in_flight(&self) -> usize {
        0
    }

    /// How long a release may take.
    fn release_within(&self) -> Duration;

    /// How far the clocks of client and server may drift apart.
    fn drift(&self) -> Drift;

    /// The prefix of every key.
    fn prefix(&self) -> &[u8] {
        &[]
    }

    /// Elections; `None` if the store has none.
    fn elections(&mut self) -> Option<&mut dyn Elections> {
        None
    }
}
