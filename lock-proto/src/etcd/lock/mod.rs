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
use core::mem;
use core::time::Duration;

use bytes::Bytes;

use cleanup::{Cleanup, CleanupCall, CleanupKind};
use context::Watches;
pub(crate) use context::{Env, Watched, Watcher};
use enter::{Action, Enter};
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
type Contention = lock::Contention<Keys>;
type Hold = lock::Hold<Keys>;

/// What is special about etcd: contenders are keys with a lease. The state for one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Keys {
    /// Watches of the previous wait, for reuse.
    watch_cache: Option<Box<CachedWatches>>,
}

/// The purpose of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EtcdCall {
    /// Entry into the queue, with this value.
    Enter {
        session: SessionId,
        action: Action,
        value: Bytes,
    },
    /// The waiter reads the queue.
    Look,
    /// The holder writes its key,
    Write,
    /// or reads it first,
    Read,
    /// or reads it because its watch may have missed the deletion.
    Check,
    CleanUp(CleanupCall),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Leftover {
    #[default]
    Nothing,
    /// The key, last changed at this revision.
    Key(i64),
    /// A put in flight may change the key; its reply gives the revision to delete.
    Write,
}

impl QueueStore for Keys {
    type Key = Queue;
    type Settings = Settings;
    type Request = Request;
    type Reply = Reply;
    type Call = EtcdCall;
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

    fn enter(queued: &mut Etcd, env: &mut Env, session: SessionId) {
        if env.session(session).is_some_and(|found| matches!(found.state, State::Opening | State::Checking)) {
            queued.contention = Contention::Opening(session);
        } else {
            queued.enter(env, session);
        }
    }

    fn leave(queued: &mut Etcd, env: &mut Env) {
        match mem::take(&mut queued.contention) {
            Contention::Idle | Contention::Opening(_) => {}
            Contention::Entering(entry) => queued.leave_entry(env, entry.session),
            Contention::Waiting(contender) => queued.leave_queue(env, contender),
        }
    }

    fn answered(queued: &mut Etcd, env: &mut Env, call: EtcdCall, reply: &Reply) {
        match call {
            EtcdCall::Enter { session, action, value } => queued.enter_answered(env, session, action, value, reply),
            EtcdCall::Look => queued.look_answered(env, reply),
            EtcdCall::Write | EtcdCall::Read => queued.hold_answered(env, false, reply),
            EtcdCall::Check => queued.hold_answered(env, true, reply),
            EtcdCall::CleanUp(call) => queued.cleanup_answered(env, call, reply),
        }
    }

    fn end(queued: &mut Etcd, env: &mut Env, hold: &Hold, loss: Option<Loss>) -> Leftover {
        if loss.is_none() {
            queued.cache_own_watch(env, hold);
        } else {
            if let Some(own) = hold.watch.own {
                env.close_watch(own.id);
            }
            queued.close_cached_watches(env);
        }
        let writes = loss.is_none() && hold.write.as_ref().is_some_and(lock::Write::is_in_flight);
        queued.calls.forget(|call| match call {
            EtcdCall::Write => !writes,
            EtcdCall::Read | EtcdCall::Check => true,
            EtcdCall::Enter { .. } | EtcdCall::Look | EtcdCall::CleanUp(_) => false,
        });
        match loss {
            Some(Loss::Gone) => Leftover::Nothing,
            None if writes => Leftover::Write,
            Some(_) | None => Leftover::Key(hold.node.modified),
        }
    }

    fn lost(queued: &mut Etcd, env: &mut Env, remains: &Remains<Self>) {
        // The key is gone, but an earlier create may still be executed.
        queued.resume_cleanup(env, remains.session);
    }

    /// After a loss, attempts use a new lease, so none of them has used this key.
    fn clean_up(queued: &mut Etcd, env: &mut Env, remains: &Remains<Self>) {
        let session = remains.session;
        let gone = env.is_gone(session);
        match remains.left {
            Leftover::Write => {
                if let Some((serial, _)) = queued.calls.take(|call| *call == EtcdCall::Write).filter(|_| !gone) {
                    queued.schedule_call(env, session, serial, CleanupKind::Put);
                }
            }
            Leftover::Key(modified) if !gone => queued.schedule_key(env, session, modified),
            Leftover::Key(_) | Leftover::Nothing => {}
        }
    }

    fn timeout(queued: &mut Etcd, env: &mut Env) {
        queued.expire_cached_watches(env);
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.watch_cache.as_ref().map(|cached| (cached.until, "cached watches"))
    }

    fn shutdown(queued: &mut Etcd, env: &mut Env) {
        queued.close_cached_watches(env);
    }

    fn cleanups(queued: &Etcd) -> impl Iterator<Item = &Cleanup> {
        queued.cleanups.iter()
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
    fn ping(env: &mut Env) -> Request {
        Request::First { queue: Queue::new(&env.config.prefix, b"lock-proto:ping") }
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

impl Etcd {
    /// Handles an opened watch. It reports everything after `revision`.
    pub(crate) fn watching(&mut self, env: &mut Env, watch: WatchId, revision: i64) {
        if let Some(watched) = self.watched(watch) {
            watched.open = Some(revision);
        }
        if let Some(session) = self.cleanup_that_watches(watch) {
            return self.read_cleanup(env, session);
        }
        if let Some(hold) = &mut self.hold
            && hold.watch.own.is_some_and(|own| own.id == watch)
        {
            hold.watch.reading.opened_at(revision);
        }
        self.recheck_key(env);
        if let Contention::Waiting(contender) = &mut self.contention {
            contender.opened(env.now, watch, revision);
            self.look(env);
        }
    }

    pub(crate) fn changed(&mut self, env: &mut Env, watch: WatchId, revision: i64, kv: &KeyValue, gone: bool) {
        if let Some(session) = self.cleanup_that_watches(watch) {
            return self.cleanup_changed(env, session, kv, gone);
        }
        if let Some(cached) = self.own.watch_cache.as_mut().filter(|cached| cached.is(watch)) {
            return cached.record(watch, revision, gone);
        }
        if self.hold.as_ref().is_some_and(|hold| hold.watch.own.is_some_and(|own| own.id == watch)) {
            return self.own_key_changed(env, revision, kv, gone);
        }
        if let Contention::Waiting(contender) = &mut self.contention
            && contender.changed(env.now, watch, revision, kv, gone)
        {
            self.look(env);
        }
    }

    pub(crate) fn unsubscribed(&mut self, env: &mut Env, watch: WatchId) {
        if self.own.watch_cache.as_ref().is_some_and(|cached| cached.is(watch)) {
            return self.close_cached_watches(env);
        }
        if let Contention::Waiting(contender) = &mut self.contention
            && contender.is_earlier(watch)
        {
            // This watch is an optimization only.
            return contender.close_earlier(env);
        }
        if let Some(watched) = self.watched(watch) {
            watched.open = None;
        }
        if let Contention::Waiting(contender) = &mut self.contention {
            contender.poll_later(env.now);
        }
    }

    /// The server may have refused a watch for a passing reason, such as a rejected login.
    // E9
    pub(crate) fn watch_refused(&mut self, env: &mut Env, watch: WatchId) {
        self.unsubscribed(env, watch);
        env.shared.own.watchers.remove(&watch);
        if let Some(cleanup) = self.cleanups.iter_mut().find(|cleanup| cleanup.watches(watch)) {
            cleanup.watch_refused(env);
        }
        if let Some(hold) = &mut self.hold
            && hold.watch.own.is_some_and(|own| own.id == watch)
        {
            (hold.watch.own, hold.watch_at) = (None, env.recheck_at());
        }
    }

    fn watched(&mut self, watch: WatchId) -> Option<&mut Watched> {
        let own = self.hold.as_mut().and_then(|hold| hold.watch.own.as_mut()).filter(|own| own.id == watch);
        match &mut self.contention {
            Contention::Waiting(contender) => contender.watched(watch).or(own),
            Contention::Idle | Contention::Opening(_) | Contention::Entering(_) => own,
        }
    }

    fn fail_foreign_key(&mut self, env: &mut Env, key: &[u8]) {
        self.fail_foreign(env, &format_args!("the key \"{}\"", key.escape_ascii()));
    }
}
