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
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use bytes::Bytes;

use cleanup::{EtcdCleanup, EtcdCleanupCall, EtcdCleanupKind};
use context::EtcdWatches;
pub(crate) use context::{EtcdEnv, WatchOwner, WatchedKey};
use enter::{EtcdEntry, EtcdEntryAction};
use hold::HeldKey;
use wait_deletes::EtcdContender;
use watch_cache::CachedWatches;

use super::config::{Config, Settings};
use super::locks_output::{WatchId, WatchOutput};
use super::message::KeyValue;
use super::request::{Queue, Refusal, Reply, Request, SeenRevisions};
use crate::error::{Invalid, Misuse};
use crate::fault::{Breach, Fault};
use crate::lock::{
    self, Answer, Contending, ContentionStage, Loss, MAX_TTL, MIN_TTL, PendingCleanup, QueueProtocol, QueueRemains,
    QueueStore, Queued, SessionEvent, SessionId, SessionState,
};
use crate::time::Instant;

pub use hold::OwnerKey;

/// Polling interval of a waiter or observer while a watch cannot be opened.
const POLL: Duration = Duration::from_secs(1);

/// The machine of one name on etcd.
pub(crate) type Etcd = Queued<EtcdName>;
type EtcdHold = lock::QueueHold<EtcdName>;

/// The state for one name, apart from contention and hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EtcdName {
    cleanups: Vec<EtcdCleanup>,
    /// Watches of the previous wait, for reuse.
    watch_cache: Option<Box<CachedWatches>>,
}

/// Progress of the head of the local queue towards the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum EtcdContention {
    /// Nobody contends.
    #[default]
    Idle,
    /// The lease is not established.
    Opening(SessionId),
    Entering(EtcdEntry),
    /// Behind another key.
    Waiting(Box<EtcdContender>),
}

/// The purpose of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EtcdCall {
    /// Entry into the queue, with this value.
    Enter {
        session: SessionId,
        action: EtcdEntryAction,
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
    CleanUp(EtcdCleanupCall),
}

impl QueueProtocol for EtcdName {
    type Key = Queue;
    type Settings = Settings;
    type Request = Request;
    type Reply = Reply;
    type Output = WatchOutput;

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
    fn ping(env: &mut EtcdEnv) -> Request {
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

/// Contenders are keys with a lease.
impl QueueStore for EtcdName {
    type Call = EtcdCall;
    type Contention = EtcdContention;
    type Node = HeldKey;
    type Owner = OwnerKey;
    type Client = EtcdWatches;

    // E8
    const WRITE_PROVES: bool = true;
    const END_RESOLVES: bool = false;
    const RENEWALS_PROVE: bool = false;
    // E1
    const QUERIES_USE_SESSION: bool = false;
    const NODES_SHOW_BIDS: bool = false;

    fn enter(queued: &mut Etcd, env: &mut EtcdEnv, session: SessionId) {
        if env
            .session(session)
            .is_some_and(|found| matches!(found.state, SessionState::Opening | SessionState::Checking))
        {
            queued.contention = EtcdContention::Opening(session);
        } else {
            queued.enter(env, session);
        }
    }

    fn contending(contention: &EtcdContention) -> Option<Contending> {
        let (session, stage) = match contention {
            EtcdContention::Idle => return None,
            EtcdContention::Opening(session) => (*session, ContentionStage::Opening),
            EtcdContention::Entering(entry) => (entry.session, ContentionStage::Entering),
            EtcdContention::Waiting(contender) => (contender.session, ContentionStage::Waiting),
        };
        Some(Contending { session, stage })
    }

    fn leave(queued: &mut Etcd, env: &mut EtcdEnv) {
        match mem::take(&mut queued.contention) {
            EtcdContention::Idle | EtcdContention::Opening(_) => {}
            EtcdContention::Entering(entry) => queued.leave_entry(env, entry.session),
            EtcdContention::Waiting(contender) => queued.leave_queue(env, *contender),
        }
    }

    /// A read shows the result of a put that ended Unknown.
    // E7
    fn write(queued: &mut Etcd, env: &mut EtcdEnv, value: Option<Bytes>) -> bool {
        let Some(hold) = &queued.hold else { return false };
        let Some(lease) = env.lease(hold.session) else { return false };
        let (queue, SeenRevisions { created: before, modified }) = (queued.key.clone(), hold.node.seen);
        let (call, request) = match value {
            Some(value) => (EtcdCall::Write, Request::Put { queue, lease, value, modified, before }),
            None => (EtcdCall::Read, Request::look(queue, lease)),
        };
        queued.calls.put(env.send(hold.session, request), call);
        true
    }

    fn owner(queue: &Queue, hold: &EtcdHold, env: &EtcdEnv) -> Option<OwnerKey> {
        let lease = env.lease(hold.session)?;
        Some(OwnerKey {
            key: queue.key(lease),
            create_revision: hold.node.seen.created,
            mod_revision: hold.node.seen.modified,
            revision: hold.grants.revision,
            lease,
        })
    }

    fn end(queued: &mut Etcd, env: &mut EtcdEnv, hold: EtcdHold, loss: Option<Loss>) -> Option<HeldKey> {
        queued.calls.forget(|call| match call {
            // The reply to a write in flight gives the revision to delete.
            EtcdCall::Write => loss.is_some(),
            EtcdCall::Read | EtcdCall::Check => true,
            EtcdCall::Enter { .. } | EtcdCall::Look | EtcdCall::CleanUp(_) => false,
        });
        if loss.is_none() {
            queued.cache_own_watch(env, &hold);
        } else {
            if let Some(own) = hold.node.watch {
                env.close_watch(own.id);
            }
            queued.close_cached_watches(env);
            if !env.is_lost(hold.session) {
                // The key is gone, but an earlier create may still be executed.
                queued.resume_cleanup(env, hold.session);
            }
        }
        (loss != Some(Loss::Gone)).then(|| HeldKey::new(hold.node.seen, None, 0))
    }

    /// After a loss, attempts use a new lease, so none of them has used this key.
    fn clean_up(queued: &mut Etcd, env: &mut EtcdEnv, remains: &QueueRemains<Self>) {
        let session = remains.session;
        let lives = !env.is_gone(session);
        let write = if remains.writes { queued.calls.take(|call| *call == EtcdCall::Write) } else { None };
        match (write, &remains.node) {
            (Some((serial, _)), _) if lives => queued.schedule_call(env, session, serial, EtcdCleanupKind::Put),
            (None, Some(key)) if lives => queued.schedule_key(env, session, key.seen.modified),
            (_, _) => {}
        }
    }

    fn cleanups(queued: &Etcd) -> impl Iterator<Item = PendingCleanup> {
        queued.own.cleanups.iter().map(EtcdCleanup::pending)
    }

    fn answered(queued: &mut Etcd, env: &mut EtcdEnv, call: EtcdCall, reply: &Reply) {
        match call {
            EtcdCall::Enter { session, action, value } => queued.enter_answered(env, session, action, value, reply),
            EtcdCall::Look => queued.look_answered(env, reply),
            EtcdCall::Write | EtcdCall::Read => queued.hold_answered(env, false, reply),
            EtcdCall::Check => queued.hold_answered(env, true, reply),
            EtcdCall::CleanUp(call) => queued.cleanup_answered(env, call, reply),
        }
    }

    fn session_event(queued: &mut Etcd, env: &mut EtcdEnv, session: SessionId, event: &SessionEvent) {
        match event {
            SessionEvent::Lost(_) | SessionEvent::Refused(_) | SessionEvent::Ended(_) => {
                queued.session_lost(env, session);
            }
            SessionEvent::Alive | SessionEvent::Up if queued.contention == EtcdContention::Opening(session) => {
                Self::enter(queued, env, session);
            }
            SessionEvent::Alive
            | SessionEvent::Up
            | SessionEvent::Shortened
            | SessionEvent::Down(_)
            | SessionEvent::Renewed(_)
            | SessionEvent::Unrenewed(..)
            | SessionEvent::Gone(_)
            | SessionEvent::Leave => {}
        }
    }

    fn timeout(queued: &mut Etcd, env: &mut EtcdEnv) {
        queued.watch_own_key(env);
        match &queued.contention {
            EtcdContention::Entering(entry) if entry.deadline().is_some_and(|at| at <= env.now) => {
                queued.enter(env, entry.session);
            }
            EtcdContention::Waiting(contender) if contender.deadline().is_some_and(|at| at <= env.now) => {
                queued.look(env);
            }
            EtcdContention::Idle
            | EtcdContention::Opening(_)
            | EtcdContention::Entering(_)
            | EtcdContention::Waiting(_) => {}
        }
        queued.work_due(env);
        queued.expire_cached_watches(env);
    }

    fn deadline(queued: &Etcd, _: bool) -> Option<(Instant, &'static str)> {
        let contention = match &queued.contention {
            EtcdContention::Idle | EtcdContention::Opening(_) => None,
            EtcdContention::Entering(entry) => entry.deadline().map(|at| (at, "next attempt")),
            EtcdContention::Waiting(contender) => contender.deadline().map(|at| (at, "reread of the queue")),
        };
        let Self { cleanups, watch_cache } = &queued.own;
        let hold = queued.hold.as_ref().and_then(HeldKey::deadline).map(|at| (at, "a hold"));
        let cleanup = cleanups.iter().filter_map(EtcdCleanup::deadline).min().map(|at| (at, "cleanup"));
        let cache = watch_cache.as_ref().map(|cached| (cached.until, "cached watches"));
        [contention, hold, cleanup, cache].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

impl Etcd {
    /// Handles an opened watch. It reports everything after `revision`.
    pub(crate) fn watching(&mut self, env: &mut EtcdEnv, watch: WatchId, revision: i64) {
        if let Some(watched) = self.watched(watch) {
            watched.open = Some(revision);
        }
        if let Some(session) = self.cleanup_that_watches(watch) {
            return self.read_cleanup(env, session);
        }
        if let Some(hold) = &mut self.hold
            && hold.node.watch.is_some_and(|own| own.id == watch)
        {
            hold.node.reading.opened_at(revision);
        }
        self.recheck_key(env);
        if let EtcdContention::Waiting(contender) = &mut self.contention {
            contender.opened(env.now, watch, revision);
            self.look(env);
        }
    }

    pub(crate) fn changed(&mut self, env: &mut EtcdEnv, watch: WatchId, revision: i64, kv: &KeyValue, gone: bool) {
        if let Some(session) = self.cleanup_that_watches(watch) {
            return self.cleanup_changed(env, session, kv, gone);
        }
        if let Some(cached) = self.own.watch_cache.as_mut().filter(|cached| cached.is(watch)) {
            return cached.record(watch, revision, gone);
        }
        if self.hold.as_ref().is_some_and(|hold| hold.node.watch.is_some_and(|own| own.id == watch)) {
            return self.own_key_changed(env, revision, kv, gone);
        }
        if let EtcdContention::Waiting(contender) = &mut self.contention
            && contender.changed(env.now, watch, revision, kv, gone)
        {
            self.look(env);
        }
    }

    pub(crate) fn unsubscribed(&mut self, env: &mut EtcdEnv, watch: WatchId) {
        if self.own.watch_cache.as_ref().is_some_and(|cached| cached.is(watch)) {
            return self.close_cached_watches(env);
        }
        if let EtcdContention::Waiting(contender) = &mut self.contention
            && contender.is_earlier(watch)
        {
            // This watch is an optimization only.
            return contender.close_earlier(env);
        }
        if let Some(watched) = self.watched(watch) {
            watched.open = None;
        }
        if let EtcdContention::Waiting(contender) = &mut self.contention {
            contender.poll_later(env.now);
        }
    }

    /// The server may have refused a watch for a passing reason, such as a rejected login.
    // E9
    pub(crate) fn watch_refused(&mut self, env: &mut EtcdEnv, watch: WatchId) {
        self.unsubscribed(env, watch);
        env.shared.own.watchers.remove(&watch);
        if let Some(cleanup) = self.own.cleanups.iter_mut().find(|cleanup| cleanup.watches(watch)) {
            cleanup.watch_refused(env);
        }
        if let Some(hold) = &mut self.hold
            && hold.node.watch.is_some_and(|own| own.id == watch)
        {
            (hold.node.watch, hold.watch_at) = (None, env.recheck_at());
        }
    }

    fn watched(&mut self, watch: WatchId) -> Option<&mut WatchedKey> {
        let own = self.hold.as_mut().and_then(|hold| hold.node.watch.as_mut()).filter(|own| own.id == watch);
        match &mut self.contention {
            EtcdContention::Waiting(contender) => contender.watched(watch).or(own),
            EtcdContention::Idle | EtcdContention::Opening(_) | EtcdContention::Entering(_) => own,
        }
    }

    fn fail_foreign_key(&mut self, env: &mut EtcdEnv, key: &[u8]) {
        self.fail_foreign(env, &format_args!("the key \"{}\"", key.escape_ascii()));
    }
}
