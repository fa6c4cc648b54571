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
pub(crate) type Context = lock::Context<ZooKeeper>;
pub(crate) type Lock = lock::Lock<ZooKeeper>;
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

impl Context {
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

impl QueueStore for Nodes {
    type Key = Queue;
    type Settings = Settings;
    type Request = Request;
    type Reply = Reply;
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

    fn enter(lock: &mut Lock, ctx: &mut Context, session: SessionId) {
        ctx.session_step(session, Session::refresh);
        lock.enter(ctx, session);
    }

    /// The node of a candidate has its value.
    fn serves(left: &Bid, next: &Bid) -> bool {
        left == next
    }

    fn validity(config: &Config, ttl: Duration) -> Duration {
        config.validity(ttl)
    }

    fn end(lock: &mut Lock, ctx: &mut Context, hold: &Hold, loss: Option<Loss>) -> Option<Box<str>> {
        if loss.is_some() {
            lock.store.own.tail = None;
        }
        if let Some(session) = ctx.shared.sessions.get_mut(hold.session) {
            session.own.nodes.remove(&ctx.slot);
        }
        (loss != Some(Loss::Gone)).then(|| hold.node.path.clone())
    }

    /// A session of its own ends with its last user.
    fn clean_up(lock: &mut Lock, ctx: &mut Context, remains: &Remains<Self>) {
        if let (Some(path), Some(true)) = (&remains.left, ctx.session(remains.session).map(|session| session.shared)) {
            lock.schedule(ctx, remains.session, Target::Node(path.clone()));
        }
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        lock.store.own.tail.take_if(|tail| tail.until.is_some_and(|at| at <= ctx.now));
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.tail.as_ref().and_then(|tail| tail.until).map(|at| (at, "end of a queue"))
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
    fn ping(ctx: &mut Context) -> Request {
        let session = ctx.shared_session();
        // Opens a new one before the request.
        ctx.session_step(session, Connection::timeout);
        Request { session, op: Op::Sync { path: "/".into() } }
    }

    fn pong(reply: &Reply) -> Answer {
        reply.answer()
    }
}

impl Lock {
    /// Handles a triggered watch on a child of the queue.
    pub(crate) fn watched(&mut self, ctx: &mut Context, session: SessionId, event: &WatcherEvent) {
        let changed = event.kind == EventType::DataChanged;
        if !changed && event.kind != EventType::Deleted {
            return;
        }
        let own = |hold: &&mut Hold| hold.session == session && hold.node.path == event.path;
        if let Some(hold) = self.hold.as_mut().filter(own) {
            if !changed {
                return self.lose(ctx, Loss::Gone);
            }
            hold.watch.triggered(ctx, session, &event.path);
            return;
        }
        if self.contention.session() == Some(session) {
            self.contender_watched(ctx, &event.path, changed);
        }
    }
}
