//! The hub of an etcd client: typed requests out, typed replies in.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::config::Config;
use super::lock::query::Query;
use super::lock::session::answer;
use super::lock::{Context, Etcd, Lock, OwnerKey, Shared, Watcher};
#[cfg(doc)]
use super::locks_output::LocksOutput;
use super::locks_output::WatchId;
use super::message::KeyValue;
use super::request::{Refusal, Reply};
use crate::error::{ConfigError, Misuse};
use crate::fault::{Breach, Fault};
use crate::id::{CallId, CallOwner, ClientId, LockId};
use crate::lock::{self, Answer, Queries, ServerError, Sessions};
use crate::time::Instant;

/// All locks and elections of one client, as typed requests and replies.
///
/// Use this with your own etcd client. Carry out each [`LocksOutput`] (see
/// [`Request::rpc`](super::Request::rpc)), and report results with the `handle_*` methods. After
/// each call, drain `poll_output`. Call [`handle_timeout`](Self::handle_timeout) at
/// [`next_deadline`](Self::next_deadline).
///
/// Requests may be executed in any order: each one is safe whenever it is executed.
// E6
pub type Locks = lock::Locks<Etcd>;

impl Locks {
    /// Creates a hub for the cluster in `config`. `seed` is 64 bits of entropy for jitter.
    ///
    /// # Errors
    ///
    /// Returns an error for the first setting that is out of range.
    pub fn new(now: Instant, config: Config, client: ClientId, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let (sessions, queries, watchers) = (Sessions::default(), Queries::default(), BTreeMap::new());
        let (leases, retired) = (0, Vec::new());
        let shared = Shared { client, sessions, leases, retired, queries, watchers, watch: 0 };
        Ok(Self::with(Context::with(now, config, seed, shared)))
    }

    /// Starts numbering calls and watches after these numbers, before any request. A search tells
    /// ids apart by their size: see [`Canon`](crate::sim::search::Canon).
    #[cfg(feature = "sim")]
    #[must_use]
    pub const fn count_from(mut self, calls: u64, watches: u64) -> Self {
        self.ctx.serial = calls;
        self.ctx.shared.watch = watches;
        self
    }

    /// Returns the holder's key, for transactions of the application that compare `mod_revision`.
    /// The client then changes that revision before each hand-over.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    // E7
    pub fn owner_guard(&mut self, now: Instant, id: LockId) -> Result<OwnerKey, Misuse> {
        self.verb(now, id, |lock, ctx| lock.owner_guard(ctx, id))
    }

    /// Handles the reply to a request. Replies to unknown calls are dropped.
    pub fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply) {
        self.handle_timeout(now);
        match call.owner {
            CallOwner::Lock(slot) => {
                self.step(slot, |lock, ctx| lock.reply(ctx, call.serial, reply));
            }
            CallOwner::Session(slot) => self.ctx.session_answered(slot, call.serial, reply),
            CallOwner::Query(slot) => self.ctx.query_step(slot, |query, ctx| query.answered(ctx, call.serial, reply)),
            CallOwner::Ping => self.pong(call, answer_to_ping(reply)),
            CallOwner::Nobody => {}
        }
        self.settle();
    }

    /// Handles an opened or reopened watch: it reports every change after `revision`.
    pub fn handle_watching(&mut self, now: Instant, watch: WatchId, revision: i64) {
        let lock = |lock: &mut Lock, ctx: &mut Context| lock.watching(ctx, watch, revision);
        self.watcher_step(now, watch, lock, |query, ctx| query.watching(ctx, revision));
    }

    /// Handles a write or deletion of a watched key at `revision`.
    pub fn handle_changed(&mut self, now: Instant, watch: WatchId, revision: i64, deleted: bool, kv: &KeyValue) {
        let lock = |lock: &mut Lock, ctx: &mut Context| lock.changed(ctx, watch, revision, kv, deleted);
        self.watcher_step(now, watch, lock, |query, ctx| query.changed(ctx, revision));
    }

    /// Handles the loss of a watch, which the channel is reopening.
    pub fn handle_unsubscribed(&mut self, now: Instant, watch: WatchId) {
        self.watcher_step(now, watch, |lock, ctx| lock.unsubscribed(ctx, watch), Query::unsubscribed);
    }

    /// Handles a watch that the server refused. Its owner polls instead, which may be refused too.
    pub fn handle_watch_refused(&mut self, now: Instant, watch: WatchId, _: &ServerError) {
        self.handle_unsubscribed(now, watch);
    }

    /// Returns the key of the holder.
    pub fn owner(&self, id: LockId) -> Option<OwnerKey> {
        self.locks.of(id)?.owner(id, &self.ctx)
    }

    /// Routes a watch event to the lock or query that owns the watch.
    fn watcher_step(
        &mut self,
        now: Instant,
        watch: WatchId,
        lock: impl FnOnce(&mut Lock, &mut Context),
        query: impl FnOnce(&mut Query, &mut Context) -> bool,
    ) {
        self.handle_timeout(now);
        match self.ctx.shared.watchers.get(&watch).copied() {
            Some(Watcher::Lock(slot)) => {
                self.step(slot, lock);
            }
            Some(Watcher::Query(slot)) => self.ctx.query_step(slot, query),
            None => {}
        }
        self.settle();
    }

    /// Drops all locks, and leaves their sessions.
    pub(super) fn drop_locks(&mut self) {
        for (slot, lock) in self.locks.clear() {
            for (session, _) in &lock.store.joined {
                self.ctx.leave_session(*session, slot);
            }
        }
        self.ctx.shared.watchers.clear();
    }
}

/// A user without access to the key that was read is logged in all the same.
#[cold]
fn answer_to_ping(reply: &Reply) -> Answer {
    match reply {
        Reply::Refused(Refusal::Error(error)) if error.text.contains("permission denied") => Answer::Granted,
        // Not a reply to a read.
        Reply::Refused(Refusal::LeaseNotFound | Refusal::LeaseExists) => {
            Answer::Unknown(Fault::Protocol(Breach::WrongReply).into())
        }
        Reply::Done(_) | Reply::Refused(Refusal::Error(_)) | Reply::Unknown(_) | Reply::NotSent(_) => answer(reply),
    }
}
