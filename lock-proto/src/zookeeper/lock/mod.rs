//! State machine for one lock name on ZooKeeper, within one client. Each attempt has a node of its
//! own: the head of the local queue creates it ([`enter`]), waits until it is first ([`wait`]), and
//! holds the lock ([`hold`]).

mod cleanup;
mod enter;
mod hold;
mod query;
mod session;
mod tail;
mod wait;

use alloc::boxed::Box;
use core::mem;
use core::time::Duration;

use cleanup::{Cleanup, Target};
use enter::Enter;
use query::LeaderRead;
use session::Connection;
pub(super) use session::Session;
use tail::Tail;
use wait::{Contender, Watch};

use super::codec::{EventType, Op, WatchKind, WatcherEvent};
use super::config::{Config, Settings};
use super::output::SessionOutput;
use super::path::{Kind, Queue};
use super::request::{Reply, Request};
use crate::error::{Invalid, Misuse};
use crate::id::{CallOwner, NodeId};
use crate::lock::{self, Answer, Bid, Loss, MAX_TTL, QueueStore, Queued, Remains, SessionId, SessionStore as _};
use crate::time::Instant;

pub use hold::OwnerNode;

/// The ZooKeeper store.
pub(crate) type ZooKeeper = Queued<Nodes>;
pub(crate) type Env = lock::Env<ZooKeeper>;
type Contention = lock::Contention<Nodes>;
type Hold = lock::Hold<Nodes>;

/// What is special about ZooKeeper: contenders are ephemeral sequential nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nodes {
    /// The end of the queue, during a hold and shortly after it.
    tail: Option<Box<Tail>>,
    /// The last node followed the tail directly.
    followed: bool,
}

impl Env {
    /// Sends a request of a lock, and returns the serial of its call. `None` while the session is
    /// not established: its next event says when it is.
    fn send(&mut self, session: SessionId, op: Op) -> Option<u64> {
        self.send_for(CallOwner::Lock(self.slot), session, op)
    }

    fn send_for(&mut self, owner: CallOwner, session: SessionId, op: Op) -> Option<u64> {
        if !self.is_up(session) {
            return None;
        }
        let timeout = self.config.request_timeout;
        Some(self.call(owner, NodeId(0), Request { session, op }, timeout))
    }

    /// Removes a watch on the server. The reply does not matter.
    fn unwatch(&mut self, session: SessionId, path: Box<str>, kind: WatchKind) {
        self.send_for(CallOwner::Nobody, session, Op::RemoveWatches { path, kind });
    }
}

/// The purpose of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ZooKeeperCall {
    /// Creates the node of an attempt.
    Create {
        emitted: Instant,
    },
    /// Creates the queue's node or, before it, one above it.
    Build {
        last: bool,
    },
    /// Lists the queue, to find the node whose create is undecided,
    Search,
    /// reads its state,
    Verify(Box<str>),
    /// or deletes the queue's node.
    Vacate,
    /// The contender lists the queue,
    List,
    /// watches its own node,
    WatchOwn,
    /// or its predecessor.
    WatchAhead,
    /// The holder watches its node,
    WatchHeld,
    /// writes it, or reads it first.
    Write,
    CleanUp {
        cleanup: Cleanup,
        emitted: Instant,
    },
}

impl ZooKeeperCall {
    /// Returns true if it is of no use after the contention.
    const fn contends(&self) -> bool {
        match self {
            Self::Create { .. }
            | Self::Build { .. }
            | Self::Search
            | Self::Verify(_)
            | Self::Vacate
            | Self::List
            | Self::WatchOwn
            | Self::WatchAhead => true,
            Self::WatchHeld | Self::Write | Self::CleanUp { .. } => false,
        }
    }
}

impl QueueStore for Nodes {
    type Key = Queue;
    type Settings = Settings;
    type Request = Request;
    type Reply = Reply;
    type Call = ZooKeeperCall;
    type Output = SessionOutput;
    type Shared = ();
    type Session = Connection;
    type Enter = Enter;
    type Contender = Contender;
    type Node = OwnerNode;
    type Watch = Watch;
    /// The node of the hold, unless it is gone.
    type Left = Option<Box<str>>;
    type Cleanup = Cleanup;
    type Owner = OwnerNode;
    type Query = LeaderRead;

    /// Fencing tokens begin with the transaction that created the node.
    // ZK4
    const WRITE_PROVES: bool = false;
    const END_RESOLVES: bool = true;
    /// Pings keep a session.
    // ZK1
    const RENEWALS_PROVE: bool = true;

    fn enter(queued: &mut ZooKeeper, env: &mut Env, session: SessionId) {
        env.session_step(session, Session::refresh);
        queued.enter(env, session);
    }

    fn leave(queued: &mut ZooKeeper, env: &mut Env) {
        match mem::take(&mut queued.contention) {
            Contention::Idle | Contention::Opening(_) => {}
            Contention::Entering(entry) => queued.leave_entry(env, entry),
            Contention::Waiting(contender) => queued.leave_queue(env, contender),
        }
        queued.calls.forget(ZooKeeperCall::contends);
    }

    fn answered(queued: &mut ZooKeeper, env: &mut Env, call: ZooKeeperCall, reply: &Reply) {
        match call {
            ZooKeeperCall::Create { emitted } => queued.create_answered(env, emitted, reply),
            ZooKeeperCall::Build { last } => queued.queue_created(env, last, reply),
            ZooKeeperCall::Search => queued.search_answered(env, None, reply),
            ZooKeeperCall::Verify(path) => queued.search_answered(env, Some(&path), reply),
            ZooKeeperCall::Vacate => queued.vacated(env, reply),
            ZooKeeperCall::List => queued.list_answered(env, reply),
            ZooKeeperCall::WatchOwn => queued.own_watch_answered(env, reply),
            ZooKeeperCall::WatchAhead => queued.watch_ahead_answered(env, reply),
            ZooKeeperCall::WatchHeld => queued.held_watch_answered(env, reply),
            ZooKeeperCall::Write => queued.hold_answered(env, reply),
            ZooKeeperCall::CleanUp { cleanup, emitted } => queued.cleanup_answered(env, cleanup, emitted, reply),
        }
    }

    /// The node of a candidate has its value.
    fn serves(left: &Bid, next: &Bid) -> bool {
        left == next
    }

    fn validity(config: &Config, ttl: Duration) -> Duration {
        config.validity(ttl)
    }

    fn end(queued: &mut ZooKeeper, env: &mut Env, hold: &Hold, loss: Option<Loss>) -> Option<Box<str>> {
        if loss.is_some() {
            queued.own.tail = None;
        }
        if let Some(session) = env.shared.sessions.get_mut(hold.session) {
            session.own.nodes.remove(&env.slot);
        }
        queued.calls.forget(|call| matches!(call, ZooKeeperCall::WatchHeld | ZooKeeperCall::Write));
        (loss != Some(Loss::Gone)).then(|| hold.node.path.clone())
    }

    /// A session of its own ends with its last user.
    fn clean_up(queued: &mut ZooKeeper, env: &mut Env, remains: &Remains<Self>) {
        if let (Some(path), Some(true)) = (&remains.left, env.session(remains.session).map(|session| session.shared)) {
            queued.schedule(env, remains.session, Target::Node(path.clone()));
        }
    }

    fn timeout(queued: &mut ZooKeeper, env: &mut Env) {
        queued.own.tail.take_if(|tail| tail.until.is_some_and(|at| at <= env.now));
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.tail.as_ref().and_then(|tail| tail.until).map(|at| (at, "end of a queue"))
    }

    fn cleanups(queued: &ZooKeeper) -> impl Iterator<Item = &Cleanup> {
        queued.all_cleanups()
    }

    fn check_ttl(config: &Config, ttl: Duration) -> Result<Duration, Invalid> {
        if ttl > MAX_TTL {
            return Err(Invalid::Ttl { given: ttl, min: config.min_ttl(), max: MAX_TTL });
        }
        config.check_session(ttl).map(|_| ttl)
    }

    fn key(config: &Config, name: &[u8]) -> Result<Queue, Misuse> {
        Queue::new(&config.store.own.chroot, &config.prefix, name, Kind::Lock(config.store.own.dialect))
    }

    fn election(config: &Config, name: &[u8]) -> Result<Queue, Misuse> {
        Queue::new(&config.store.own.chroot, &config.prefix, name, Kind::Latch)
    }

    /// The leader answers a `sync`. It needs no permission.
    fn ping(env: &mut Env) -> Request {
        let session = env.shared_session();
        // Opens a new one before the request.
        env.session_step(session, Connection::timeout);
        Request { session, op: Op::Sync { path: "/".into() } }
    }

    fn pong(reply: &Reply) -> Answer {
        reply.answer()
    }
}

impl ZooKeeper {
    /// Handles a triggered watch on a child of the queue.
    pub(crate) fn watched(&mut self, env: &mut Env, session: SessionId, event: &WatcherEvent) {
        let changed = event.kind == EventType::DataChanged;
        if !changed && event.kind != EventType::Deleted {
            return;
        }
        let own = |hold: &&mut Hold| hold.session == session && hold.node.path == event.path;
        if let Some(hold) = self.hold.as_mut().filter(own) {
            if !changed {
                return self.lost(env, Loss::Gone);
            }
            return hold.watch.triggered(env, &mut self.calls, session, &event.path, ZooKeeperCall::WatchHeld);
        }
        if self.contention.session() == Some(session) {
            self.contender_watched(env, &event.path, changed);
        }
    }
}
