//! State machine for one lock name on etcd, within one client. All waiters of a name share one key,
//! and a client has at most one live key per name and lease. The head enters the queue ([`enter`]),
//! waits until its key is the oldest ([`wait_deletes`]), and holds the lock ([`hold`]).
// E7

mod cleanup;
mod context;
mod enter;
mod hold;
pub(crate) mod query;
pub(crate) mod session;
pub(crate) mod sessions;
mod wait_deletes;
mod watch_cache;

use alloc::boxed::Box;
use core::time::Duration;

use cleanup::{Cleanup, CleanupCall};
use context::Watches;
pub(crate) use context::{Context, Watched, Watcher};
use enter::Enter;
use hold::HoldWatch;
use query::LeaderRead;
use session::Lease;
use wait_deletes::Contender;
use watch_cache::CachedWatches;

use super::config::{Config, Settings};
use super::locks_output::{WatchId, WatchOutput};
use super::message::KeyValue;
use super::request::{Queue, Refusal, Reply, Request, Seen};
use crate::error::{Invalid, Misuse};
use crate::fault::{Breach, Fault};
use crate::lock::{self, Answer, Loss, MAX_TTL, MIN_TTL, QueueStore, Queued, Remains, SessionId, State};
use crate::time::Instant;

pub use hold::OwnerKey;

/// Polling interval of a waiter or observer while a watch cannot be opened.
const POLL: Duration = Duration::from_secs(1);

/// The etcd store.
pub(crate) type Etcd = Queued<Keys>;
pub(crate) type Lock = lock::Lock<Etcd>;
type Contention = lock::Contention<Keys>;
type Hold = lock::Hold<Keys>;

/// What is special about etcd: contenders are keys with a lease. The state for one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Keys {
    /// Watches of the previous wait, for reuse.
    watch_cache: Option<Box<CachedWatches>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Leftover {
    #[default]
    Nothing,
    /// The key, last changed at this revision.
    Key(i64),
    /// A put in flight may change the key; its reply gives the revision to delete.
    Write(u64),
}

impl QueueStore for Keys {
    type Key = Queue;
    type Settings = Settings;
    type Request = Request;
    type Reply = Reply;
    type Output = WatchOutput;
    type Shared = Watches;
    type Session = Lease;
    type Enter = Enter;
    type Contender = Contender;
    type Node = Seen;
    type Watch = HoldWatch;
    type Left = Leftover;
    type Cleanup = Cleanup;
    type Owner = OwnerKey;
    type Query = LeaderRead;

    // E8
    const WRITE_PROVES: bool = true;
    const END_RESOLVES: bool = false;
    // E1
    const QUERIES_USE_SESSION: bool = false;

    fn enter(lock: &mut Lock, ctx: &mut Context, session: SessionId) {
        if ctx.session(session).is_some_and(|found| matches!(found.state, State::Opening | State::Checking)) {
            lock.contention = Contention::Opening(session);
        } else {
            lock.enter(ctx, session);
        }
    }

    fn end(lock: &mut Lock, ctx: &mut Context, hold: &Hold, loss: Option<Loss>) -> Leftover {
        if loss.is_none() {
            lock.cache_own_watch(ctx, hold);
        } else {
            if let Some(own) = hold.watch.own {
                ctx.close_watch(own.id);
            }
            lock.close_cached_watches(ctx);
        }
        match (loss, hold.write.as_ref().and_then(lock::Write::in_flight)) {
            (Some(Loss::Gone), _) => Leftover::Nothing,
            (None, Some(serial)) => Leftover::Write(serial),
            (_, _) => Leftover::Key(hold.node.modified),
        }
    }

    fn lost(lock: &mut Lock, ctx: &mut Context, remains: &Remains<Self>) {
        // The key is gone, but an earlier create may still be executed.
        lock.resume_cleanup(ctx, remains.session);
    }

    /// After a loss, attempts use a new lease, so none of them has used this key.
    fn clean_up(lock: &mut Lock, ctx: &mut Context, remains: &Remains<Self>) {
        let session = remains.session;
        match remains.left {
            _ if ctx.is_gone(session) => {}
            Leftover::Nothing => {}
            Leftover::Key(modified) => lock.schedule_key(ctx, session, modified),
            Leftover::Write(serial) => lock.schedule_call(ctx, session, CleanupCall::put(serial)),
        }
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        lock.expire_cached_watches(ctx);
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.watch_cache.as_ref().map(|cached| (cached.until, "cached watches"))
    }

    fn shutdown(lock: &mut Lock, ctx: &mut Context) {
        lock.close_cached_watches(ctx);
    }

    fn check_ttl(config: &Config, ttl: Duration) -> Result<Duration, Invalid> {
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            return Err(Invalid::Ttl { given: ttl, min: MIN_TTL, max: MAX_TTL });
        }
        config.lease_ttl(ttl)
    }

    /// An election shares the queue of the lock with its name.
    fn key(config: &Config, name: &[u8]) -> Result<Queue, Misuse> {
        Ok(Queue::new(&config.prefix, name))
    }

    /// Any reply shows that the cluster has a quorum and accepts the login.
    fn ping(ctx: &mut Context) -> Request {
        Request::First { queue: Queue::new(&ctx.config.prefix, b"lock-proto:ping") }
    }

    /// A user without access to the key that was read is logged in all the same.
    #[cold]
    fn pong(reply: &Reply) -> Answer {
        match reply {
            Reply::Refused(Refusal::Error(error)) if error.text.contains("permission denied") => Answer::Granted,
            // Not a reply to a read.
            Reply::Refused(Refusal::LeaseNotFound | Refusal::LeaseExists) => {
                Answer::Unknown(Fault::Protocol(Breach::WrongReply).into())
            }
            Reply::Done(_) | Reply::Refused(Refusal::Error(_)) | Reply::Unknown(_) | Reply::NotSent(_) => {
                reply.answer()
            }
        }
    }
}

impl Lock {
    /// Handles an opened watch. It reports everything after `revision`.
    pub(crate) fn watching(&mut self, ctx: &mut Context, watch: WatchId, revision: i64) {
        if let Some(watched) = self.watched(watch) {
            watched.open = Some(revision);
        }
        if let Some(place) = self.store.cleanups.iter().position(|cleanup| cleanup.watches(watch)) {
            return self.read_cleanup(ctx, place);
        }
        if let Some(hold) = &mut self.hold
            && hold.watch.own.is_some_and(|own| own.id == watch)
        {
            hold.watch.reading.opened_at(revision);
        }
        self.recheck_key(ctx);
        if let Contention::Waiting(contender) = &mut self.contention {
            contender.opened(ctx.now, watch, revision);
            self.look(ctx);
        }
    }

    pub(crate) fn changed(&mut self, ctx: &mut Context, watch: WatchId, revision: i64, kv: &KeyValue, gone: bool) {
        if let Some(place) = self.store.cleanups.iter().position(|cleanup| cleanup.watches(watch)) {
            return self.cleanup_changed(ctx, place, kv, gone);
        }
        if let Some(cached) = self.store.own.watch_cache.as_mut().filter(|cached| cached.is(watch)) {
            return cached.record(watch, revision, gone);
        }
        if self.hold.as_ref().is_some_and(|hold| hold.watch.own.is_some_and(|own| own.id == watch)) {
            return self.own_key_changed(ctx, revision, kv, gone);
        }
        if let Contention::Waiting(contender) = &mut self.contention
            && contender.changed(ctx.now, watch, revision, kv, gone)
        {
            self.look(ctx);
        }
    }

    pub(crate) fn unsubscribed(&mut self, ctx: &mut Context, watch: WatchId) {
        if self.store.own.watch_cache.as_ref().is_some_and(|cached| cached.is(watch)) {
            return self.close_cached_watches(ctx);
        }
        if let Contention::Waiting(contender) = &mut self.contention
            && contender.is_earlier(watch)
        {
            // This watch is an optimization only.
            return contender.close_earlier(ctx);
        }
        if let Some(watched) = self.watched(watch) {
            watched.open = None;
        }
        if let Contention::Waiting(contender) = &mut self.contention {
            contender.poll_later(ctx.now);
        }
    }

    /// The server may have refused a watch for a passing reason, such as a rejected login.
    // E9
    pub(crate) fn watch_refused(&mut self, ctx: &mut Context, watch: WatchId) {
        self.unsubscribed(ctx, watch);
        ctx.shared.own.watchers.remove(&watch);
        if let Some(cleanup) = self.store.cleanups.iter_mut().find(|cleanup| cleanup.watches(watch)) {
            cleanup.watch_refused(ctx);
        }
        if let Some(hold) = &mut self.hold
            && hold.watch.own.is_some_and(|own| own.id == watch)
        {
            (hold.watch.own, hold.watch_at) = (None, ctx.recheck_at());
        }
    }

    fn watched(&mut self, watch: WatchId) -> Option<&mut Watched> {
        let own = self.hold.as_mut().and_then(|hold| hold.watch.own.as_mut()).filter(|own| own.id == watch);
        match &mut self.contention {
            Contention::Waiting(contender) => contender.watched(watch).or(own),
            Contention::Idle | Contention::Opening(_) | Contention::Entering(_) => own,
        }
    }

    fn fail_foreign_key(&mut self, ctx: &mut Context, key: &[u8]) {
        self.fail_foreign(ctx, &format_args!("the key \"{}\"", key.escape_ascii()));
    }
}
