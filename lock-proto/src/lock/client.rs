//! A complete client, independent of the store: the hub of its locks, and its connections.

use alloc::collections::VecDeque;
use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;

use super::answer::Answer;
use super::config::Config;
use super::credentials::Credentials;
use super::election::Elections;
use super::hub::Locks;
use super::machine::{ClientInfo, LockClient, Machine};
use super::note::Note;
use super::operation::{Operation, OperationId, Work};
use super::request::Acquire;
use super::store::{SharedState as _, Store};
use crate::error::Misuse;
use crate::fault::Fault;
use crate::id::{ConnId, LockId};
use crate::time::{Instant, soonest};

/// The connections of a store. Carries requests to its servers and replies back.
///
/// [`Store`] is no supertrait: in generic code that requires `Queued<S>: Transport`, it would hide
/// the implementation of `Store` for all `Queued<S>`.
pub trait Transport: Sized {
    /// The connections.
    type Links: Clone + Debug + PartialEq + Eq + Hash;
    /// An output for the host.
    type HostOutput: Clone + Debug + PartialEq + Eq + Hash;

    /// The connection is open.
    fn connected(links: &mut Self::Links, now: Instant, conn: ConnId);
    /// The connection could not be opened, or has ended.
    fn disconnected(links: &mut Self::Links, now: Instant, conn: ConnId, why: Fault);
    /// The host supplies credentials for the connection.
    fn credentials(links: &mut Self::Links, now: Instant, conn: ConnId, credentials: Option<Credentials>);
    /// Does the work of the connections that is due.
    fn links_timeout(links: &mut Self::Links, now: Instant);
    /// Returns the next deadline of the connections and its reason.
    fn links_deadline(links: &Self::Links) -> Option<(Instant, &'static str)>;
    /// Returns the number of requests in flight, or 0 if the store does not count them.
    fn in_flight(_: &Self::Links) -> usize {
        0
    }
    /// Ends the pauses between connections that last longer than until `by`, for somebody who waits.
    // P9
    fn hurry(_client: &mut Client<Self>, _by: Instant)
    where
        Self: Store,
    {
    }
    /// Moves requests, replies and events between the hub and the connections until both are idle.
    /// Runs within the call that caused it, not when the host polls.
    // M3
    fn route(client: &mut Client<Self>)
    where
        Self: Store;
}

/// All locks of one client and its connections, without any I/O.
///
/// Its verbs are the methods of [`LockClient`]. The host owns sockets, clock and entropy. It calls a
/// verb or a `handle_` method, then drains `poll_output` until it is empty, and calls
/// `handle_timeout` at `next_deadline`. Every call takes the time first. The client drops input for
/// connections that are no longer current, so such input may arrive late, twice or never.
///
/// Safety does not depend on the order of the host's calls. The clock decides whether a lock is
/// held: see [`valid_until`](LockClient::valid_until).
///
/// A client is a value: it can be cloned, compared and hashed, and equal histories give equal
/// clients.
// D2
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client<S: Store + Transport> {
    pub(crate) locks: Locks<S>,
    pub(crate) links: S::Links,
    pub(crate) out: VecDeque<S::HostOutput>,
}

impl<S: Store + Transport> Client<S> {
    /// A request of any lock was answered.
    pub(crate) fn answered(&mut self, now: Instant, answer: Answer) {
        self.locks.ctx.notes.answered(now, answer);
    }

    pub(crate) const fn with(locks: Locks<S>, links: S::Links) -> Self {
        Self { locks, links, out: VecDeque::new() }
    }

    /// Returns the time of the last call. It never goes back.
    pub(crate) const fn now(&self) -> Instant {
        self.locks.ctx.env.now
    }

    /// Returns the settings.
    pub const fn config(&self) -> &Config<S::Settings> {
        self.locks.config()
    }

    /// Returns true if no lock is held or waited for, and nothing is left to clean up.
    pub fn is_idle(&self) -> bool {
        self.locks.is_idle()
    }

    /// Somebody waits for an answer for this long from the current time on. Half of it is left for the
    /// connection.
    // P9
    pub(crate) fn hurry(&mut self, limit: Option<Duration>) {
        if let Some(limit) = limit {
            S::hurry(self, self.now() + limit / 2);
        }
    }

    pub(crate) fn verb<R>(&mut self, now: Instant, f: impl FnOnce(&mut Locks<S>, Instant) -> R) -> R {
        let result = f(&mut self.locks, now);
        S::route(self);
        result
    }

    /// Does the locks' due work before the connections process new input.
    // T2
    pub(crate) fn input<R>(&mut self, now: Instant, f: impl FnOnce(&mut S::Links, Instant) -> R) -> R {
        self.locks.handle_timeout(now);
        let now = self.now();
        let result = f(&mut self.links, now);
        S::route(self);
        result
    }
}

impl<S: Store + Transport> LockClient for Client<S> {
    fn acquire(&mut self, now: Instant, request: &Acquire) -> Result<LockId, Misuse> {
        let id = self.locks.terms_of(now, request).map(|(key, terms)| {
            self.hurry(request.wait.limit());
            self.locks.begin(request, key, terms)
        });
        S::route(self);
        id
    }

    fn claim(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.verb(now, |locks, now| locks.claim(now, lock))
    }

    fn extend(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.verb(now, |locks, now| locks.extend(now, lock))
    }

    fn release(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.verb(now, |locks, now| locks.release(now, lock))
    }

    fn abandon(&mut self, now: Instant, lock: LockId) {
        self.verb(now, |locks, now| locks.abandon(now, lock));
    }

    fn shutdown(&mut self, now: Instant, within: Duration) {
        self.verb(now, |locks, now| locks.shutdown(now, within));
    }

    fn start(&mut self, now: Instant, operation: Operation) -> Result<OperationId, Misuse> {
        let id = self.locks.work_of(now, operation).map(|(work, until)| {
            if matches!(work, Work::Ping(_)) {
                self.hurry(Some(Duration::ZERO));
            }
            self.locks.begin_operation(work, until)
        });
        S::route(self);
        id
    }

    fn cancel(&mut self, now: Instant, operation: OperationId) {
        self.verb(now, |locks, now| locks.cancel(now, operation));
    }

    fn valid_until(&self, lock: LockId) -> Option<Instant> {
        self.locks.valid_until(lock)
    }

    fn info(&self) -> ClientInfo<'_> {
        let config = self.config();
        ClientInfo {
            default_ttl: S::Shared::default_ttl(config),
            release_within: config.release_within,
            drift: config.drift,
            prefix: &config.prefix,
        }
    }

    fn elections(&mut self) -> Option<&mut dyn Elections> {
        S::Shared::elections(self)
    }
}

impl<S: Store + Transport> Machine for Client<S> {
    fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.input(now, |links, now| S::connected(links, now, conn));
    }

    fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.input(now, |links, now| S::disconnected(links, now, conn, why));
    }

    fn handle_credentials(&mut self, now: Instant, conn: ConnId, credentials: Option<Credentials>) {
        self.input(now, |links, now| S::credentials(links, now, conn, credentials));
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.input(now, S::links_timeout);
    }

    fn expire(&mut self, now: Instant) {
        self.input(now, |_, _| ());
    }

    fn next_deadline(&self) -> Option<Instant> {
        if !self.out.is_empty() {
            return Some(self.now());
        }
        soonest([self.locks.next_deadline(), S::links_deadline(&self.links).map(|(at, _)| at)])
    }

    fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        if !self.out.is_empty() {
            return Some((self.now(), "output is queued"));
        }
        [self.locks.next_deadline_reason(), S::links_deadline(&self.links)].into_iter().flatten().min()
    }

    fn keep_notes(&mut self, most: usize) {
        self.locks.keep_notes(most);
    }

    fn poll_note(&mut self) -> Option<Note> {
        self.locks.poll_note()
    }

    fn holds_any(&self) -> bool {
        self.locks.held() > 0
    }

    fn in_flight(&self) -> usize {
        S::in_flight(&self.links)
    }
}
