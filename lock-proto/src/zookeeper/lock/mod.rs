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
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use bytes::Bytes;

use cleanup::{CleanupTarget, ZooKeeperCleanup};
use enter::ZooKeeperEntry;
use hold::HeldNode;
use session::ZooKeeperClientState;
pub(super) use session::ZooKeeperSession;
use tail::Tail;
use wait::{NodeWatch, ZooKeeperContender};

use super::codec::{EventType, MultiOp, Op, WatchKind, WatcherEvent};
use super::config::{Config, Settings};
use super::output::SessionOutput;
use super::path::{Queue, QueueKind};
use super::request::{Reply, Request};
use crate::error::{Invalid, Misuse};
use crate::id::{CallOwner, NodeId};
use crate::lock::{
    self, Answer, Contending, ContentionStage, Loss, MAX_TTL, PendingCleanup, QueueClient, QueueProtocol, QueueRemains,
    QueueStore, Queued, SessionEvent, SessionId,
};
use crate::time::Instant;

pub use hold::OwnerNode;

/// The machine of one name on ZooKeeper.
pub(crate) type ZooKeeper = Queued<ZooKeeperName>;
pub(crate) type ZooKeeperEnv = lock::QueueEnv<ZooKeeperName>;
type ZooKeeperHold = lock::QueueHold<ZooKeeperName>;

/// The state for one name, apart from contention and hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ZooKeeperName {
    /// Those that wait for no reply.
    cleanups: Vec<ZooKeeperCleanup>,
    /// The end of the queue, during a hold and shortly after it.
    tail: Option<Box<Tail>>,
}

/// Progress of the head of the local queue towards the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ZooKeeperContention {
    /// Nobody contends.
    #[default]
    Idle,
    /// The session is not established.
    Opening(SessionId),
    Entering(ZooKeeperEntry),
    /// Behind another node, or not known to be first.
    Waiting(ZooKeeperContender),
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
        cleanup: ZooKeeperCleanup,
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

impl ZooKeeperEnv {
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

impl QueueProtocol for ZooKeeperName {
    type Key = Queue;
    type Settings = Settings;
    type Request = Request;
    type Reply = Reply;
    type Output = SessionOutput;

    fn check_ttl(config: &Config, ttl: Duration) -> Result<Duration, Invalid> {
        if ttl > MAX_TTL {
            return Err(Invalid::Ttl { given: ttl, min: config.min_ttl(), max: MAX_TTL });
        }
        config.check_session(ttl).map(|_| ttl)
    }

    fn validity(config: &Config, ttl: Duration) -> Duration {
        config.validity(ttl)
    }

    fn key(config: &Config, name: &[u8]) -> Result<Queue, Misuse> {
        Queue::new(&config.store.own.chroot, &config.prefix, name, QueueKind::Lock(config.store.own.dialect))
    }

    fn election(config: &Config, name: &[u8]) -> Result<Queue, Misuse> {
        Queue::new(&config.store.own.chroot, &config.prefix, name, QueueKind::Latch)
    }

    /// The leader answers a `sync`. It needs no permission.
    fn ping(env: &mut ZooKeeperEnv) -> Request {
        let session = env.shared_session();
        // Opens a new one before the request.
        env.session_step(session, ZooKeeperClientState::session_timeout);
        Request { session, op: Op::Sync { path: "/".into() } }
    }

    fn pong(reply: &Reply) -> Answer {
        reply.answer()
    }
}

/// Contenders are ephemeral sequential nodes.
impl QueueStore for ZooKeeperName {
    type Call = ZooKeeperCall;
    type Contention = ZooKeeperContention;
    type Node = HeldNode;
    type Owner = OwnerNode;
    type Client = ZooKeeperClientState;

    /// Fencing tokens begin with the transaction that created the node.
    // ZK4
    const WRITE_PROVES: bool = false;
    const END_RESOLVES: bool = true;
    /// Pings keep a session.
    // ZK1
    const RENEWALS_PROVE: bool = true;
    const QUERIES_USE_SESSION: bool = true;
    /// The node of a candidate has its value.
    const NODES_SHOW_BIDS: bool = true;

    fn enter(queued: &mut ZooKeeper, env: &mut ZooKeeperEnv, session: SessionId) {
        env.session_step(session, ZooKeeperSession::refresh);
        queued.enter(env, session);
    }

    fn contending(contention: &ZooKeeperContention) -> Option<Contending> {
        let (session, stage) = match contention {
            ZooKeeperContention::Idle => return None,
            ZooKeeperContention::Opening(session) => (*session, ContentionStage::Opening),
            ZooKeeperContention::Entering(entry) => (entry.session, ContentionStage::Entering),
            ZooKeeperContention::Waiting(contender) => (contender.session, contender.stage()),
        };
        Some(Contending { session, stage })
    }

    fn leave(queued: &mut ZooKeeper, env: &mut ZooKeeperEnv) {
        match mem::take(&mut queued.contention) {
            ZooKeeperContention::Idle | ZooKeeperContention::Opening(_) => {}
            ZooKeeperContention::Entering(entry) => queued.leave_entry(env, &entry),
            ZooKeeperContention::Waiting(contender) => queued.leave_queue(env, contender),
        }
        queued.calls.forget(ZooKeeperCall::contends);
    }

    fn write(queued: &mut ZooKeeper, env: &mut ZooKeeperEnv, value: Option<Bytes>) -> bool {
        let Some(hold) = &queued.hold else { return false };
        let path = hold.node.owner.path.clone();
        let op = match value {
            Some(data) => Op::Write(MultiOp::SetData { path, data, version: hold.node.owner.version }),
            None => Op::GetData { path, watch: false },
        };
        let call = env.send(hold.session, op);
        if let Some(call) = call {
            queued.calls.put(call, ZooKeeperCall::Write);
        }
        call.is_some()
    }

    fn owner(_: &Queue, hold: &ZooKeeperHold, _: &ZooKeeperEnv) -> Option<OwnerNode> {
        Some(hold.node.owner.clone())
    }

    fn end(
        queued: &mut ZooKeeper,
        env: &mut ZooKeeperEnv,
        hold: ZooKeeperHold,
        loss: Option<Loss>,
    ) -> Option<HeldNode> {
        if loss.is_some() {
            queued.own.tail = None;
        }
        if let Some(session) = env.shared.sessions.get_mut(hold.session) {
            session.own.nodes.remove(&env.slot);
        }
        queued.calls.forget(|call| matches!(call, ZooKeeperCall::WatchHeld | ZooKeeperCall::Write));
        (loss != Some(Loss::Gone)).then_some(HeldNode { owner: hold.node.owner, watch: NodeWatch::None })
    }

    /// A session of its own ends with its last user.
    fn clean_up(queued: &mut ZooKeeper, env: &mut ZooKeeperEnv, remains: &QueueRemains<Self>) {
        if let (Some(node), Some(true)) = (&remains.node, env.session(remains.session).map(|session| session.shared)) {
            queued.schedule(env, remains.session, CleanupTarget::Node(node.owner.path.clone()));
        }
    }

    fn cleanups(queued: &ZooKeeper) -> impl Iterator<Item = PendingCleanup> {
        let pending = |cleanup: &ZooKeeperCleanup| PendingCleanup {
            session: cleanup.session,
            needs_session: true,
            delays_shutdown: true,
        };
        queued.all_cleanups().map(pending)
    }

    fn answered(queued: &mut ZooKeeper, env: &mut ZooKeeperEnv, call: ZooKeeperCall, reply: &Reply) {
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

    fn session_event(queued: &mut ZooKeeper, env: &mut ZooKeeperEnv, session: SessionId, event: &SessionEvent) {
        let contends = queued.contending_in() == Some(session);
        match event {
            SessionEvent::Lost(_) | SessionEvent::Refused(_) | SessionEvent::Ended(_) => {
                queued.session_lost(env, session, event);
            }
            SessionEvent::Alive if queued.contention == ZooKeeperContention::Opening(session) => {
                Self::enter(queued, env, session);
            }
            SessionEvent::Up => {
                queued.watches_gone(env, session);
                if contends {
                    queued.go_on(env, session);
                }
                // Cleanups that had no connection go on. A write of the session came first.
                queued.work(env);
            }
            SessionEvent::Renewed(_) if contends => queued.take_turn(env),
            SessionEvent::Alive
            | SessionEvent::Shortened
            | SessionEvent::Down(_)
            | SessionEvent::Renewed(_)
            | SessionEvent::Unrenewed(..)
            | SessionEvent::Gone(_)
            | SessionEvent::Leave => {}
        }
    }

    fn timeout(queued: &mut ZooKeeper, env: &mut ZooKeeperEnv) {
        queued.watch_own_node(env);
        match &queued.contention {
            ZooKeeperContention::Entering(entry) if entry.deadline().is_some_and(|at| at <= env.now) => {
                queued.retry_entry(env);
            }
            ZooKeeperContention::Waiting(contender) if contender.deadline().is_some_and(|at| at <= env.now) => {
                queued.reread(env);
            }
            ZooKeeperContention::Idle
            | ZooKeeperContention::Opening(_)
            | ZooKeeperContention::Entering(_)
            | ZooKeeperContention::Waiting(_) => {}
        }
        queued.work(env);
        queued.own.tail.take_if(|tail| tail.until.is_some_and(|at| at <= env.now));
    }

    fn deadline(queued: &ZooKeeper, is_up: bool) -> Option<(Instant, &'static str)> {
        let contention = match &queued.contention {
            ZooKeeperContention::Idle | ZooKeeperContention::Opening(_) => None,
            ZooKeeperContention::Entering(entry) => entry.deadline().map(|at| (at, "next attempt")),
            ZooKeeperContention::Waiting(contender) => contender.deadline().map(|at| (at, "reread of the queue")),
        };
        let Self { cleanups, tail } = &queued.own;
        let hold =
            queued.hold.as_ref().and_then(|hold| hold.watch_deadline().filter(|_| is_up)).map(|at| (at, "a hold"));
        let cleanup = cleanups.iter().filter_map(ZooKeeperCleanup::deadline).min().map(|at| (at, "cleanup"));
        let tail = tail.as_ref().and_then(|tail| tail.until).map(|at| (at, "end of a queue"));
        [contention, hold, cleanup, tail].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

impl ZooKeeper {
    /// Handles a triggered watch on a child of the queue.
    pub(crate) fn watched(&mut self, env: &mut ZooKeeperEnv, session: SessionId, event: &WatcherEvent) {
        let changed = event.kind == EventType::DataChanged;
        if !changed && event.kind != EventType::Deleted {
            return;
        }
        let own = |hold: &&mut ZooKeeperHold| hold.session == session && hold.node.owner.path == event.path;
        if let Some(hold) = self.hold.as_mut().filter(own) {
            if !changed {
                return self.lost(env, Loss::Gone);
            }
            return hold.node.watch.triggered(env, &mut self.calls, session, &event.path, ZooKeeperCall::WatchHeld);
        }
        if self.contending_in() == Some(session) {
            self.contender_watched(env, &event.path, changed);
        }
    }
}
