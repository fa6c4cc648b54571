//! The hub of an etcd client: typed requests out, typed replies in.

use super::config::Config;
use super::lock::query::EtcdQuery;
use super::lock::{Etcd, EtcdEnv, WatchOwner};
#[cfg(doc)]
use super::locks_output::LocksOutput;
use super::locks_output::WatchId;
use super::message::KeyValue;
use crate::error::ConfigError;
use crate::id::ClientId;
use crate::lock::{self, Context, OpenOperation, QueueShared, ServerError};
use crate::time::Instant;

/// All locks and elections of one client, as typed requests and replies.
///
/// Use this with your own etcd client. Carry out each [`LocksOutput`] (see
/// [`Request::rpc`](super::Request::rpc)), and report results with the `handle_*` methods. After
/// each call, drain `poll_output`. Call [`claim`](Self::claim) on
/// [`Event::Granted`](crate::Event::Granted), and [`handle_timeout`](Self::handle_timeout) at
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
        Ok(Self::with(Context::with(now, config, seed, QueueShared::new(client))))
    }

    /// Starts numbering calls and watches after these numbers, before any request. A search tells
    /// ids apart by their size: see `lock_sim::search::Canon`.
    #[must_use]
    pub const fn count_from(mut self, calls: u64, watches: u64) -> Self {
        self.ctx.env.serial = calls;
        self.ctx.env.shared.own.watch = watches;
        self
    }

    /// Handles an opened or reopened watch: it reports every change after `revision`.
    pub fn handle_watching(&mut self, now: Instant, watch: WatchId, revision: i64) {
        let lock = |queued: &mut Etcd, env: &mut EtcdEnv| queued.watching(env, watch, revision);
        self.watcher_step(now, watch, lock, |query, op, env| query.watching(op, env, revision));
    }

    /// Handles a write or deletion of a watched key at `revision`.
    pub fn handle_changed(&mut self, now: Instant, watch: WatchId, revision: i64, deleted: bool, kv: &KeyValue) {
        let lock = |queued: &mut Etcd, env: &mut EtcdEnv| queued.changed(env, watch, revision, kv, deleted);
        self.watcher_step(now, watch, lock, |query, op, env| query.changed(op, env, revision));
    }

    /// Handles the loss of a watch, which the channel is reopening.
    pub fn handle_unsubscribed(&mut self, now: Instant, watch: WatchId) {
        self.watcher_step(now, watch, |queued, env| queued.unsubscribed(env, watch), EtcdQuery::unsubscribed);
    }

    /// Handles a watch that the server refused, and that the channel has given up. Its owner polls
    /// instead, which may be refused too, and requests another watch later.
    pub fn handle_watch_refused(&mut self, now: Instant, watch: WatchId, _: &ServerError) {
        self.watcher_step(now, watch, |queued, env| queued.watch_refused(env, watch), EtcdQuery::watch_refused);
    }

    /// Routes a watch event to the lock or query that owns the watch.
    fn watcher_step(
        &mut self,
        now: Instant,
        watch: WatchId,
        lock: impl FnOnce(&mut Etcd, &mut EtcdEnv),
        query: impl FnOnce(&mut EtcdQuery, &mut OpenOperation, &mut EtcdEnv),
    ) {
        self.handle_timeout(now);
        match self.ctx.env.shared.own.watchers.get(&watch).copied() {
            Some(WatchOwner::Lock(slot)) => self.input(slot, lock),
            // No event of a watch ends a query.
            Some(WatchOwner::Query(slot)) => self.ctx.env.query_step(slot, |found, op, env| {
                query(found, op, env);
                false
            }),
            None => {}
        }
        self.settle();
    }
}
