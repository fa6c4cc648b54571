//! State machine for one lock name on ZooKeeper, within one client. Each attempt has a node of its
//! own: the head of the local queue creates it ([`enter`]), waits until it is first ([`wait`]), and
//! holds the lock ([`hold`]).

mod cleanup;
mod enter;
mod hold;
mod query;
mod session;
mod wait;

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use cleanup::Cleanup;
use enter::Enter;
use query::Query;
pub(super) use session::{Session, SessionEvent};
use wait::{Contender, Watch};

use super::codec::{EventType, Op, WatcherEvent};
use super::config::{Config, Settings};
use super::output::LocksOutput;
use super::path::{Guid, Kind, Queue};
use super::request::{Reply, Request};
use crate::error::{Invalid, Misuse};
use crate::id::{CallId, CallOwner, LockId, NodeId};
use crate::lock::{
    self, Answer, Bid, Blocked, ElectionEvent, ErrorClass, Event, Failure, Loss, MAX_TTL, Progress as _, QueryId,
    QueueStore, Queued, Remains, ServerError, SessionId, printable,
};
use crate::time::Instant;

pub use hold::OwnerNode;

/// The ZooKeeper store.
pub(crate) type ZooKeeper = Queued<Nodes>;
pub(crate) type Context = lock::Context<ZooKeeper>;
pub(crate) type Lock = lock::Lock<ZooKeeper>;
type Contention = lock::Contention<Nodes>;
type Hold = lock::Hold<Nodes>;

/// The longest value of a candidate, in bytes. ZooKeeper accepts requests of 1 MiB by default.
pub const MAX_VALUE: usize = 1_000_000;

/// What is special about ZooKeeper: contenders are ephemeral sequential nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nodes;

/// A node of this client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    path: Box<str>,
    sequence: i32,
    /// The transaction that created it.
    czxid: i64,
    /// The number of changes of its data.
    version: i32,
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

    /// A write of this session that left at `emitted` was committed.
    // ZK1
    fn committed(&mut self, session: SessionId, emitted: Instant) {
        let (seed, now) = (self.seed, self.now);
        self.session_step(session, |session, _| session.wrote(seed, now, emitted));
    }

    fn fresh_guid(&mut self) -> Guid {
        self.shared.ids += 1;
        Guid::new(self.shared.client, self.shared.ids)
    }
}

impl QueueStore for Nodes {
    type Key = Queue;
    type Settings = Settings;
    type Request = Request;
    type Reply = Reply;
    type Output = LocksOutput;
    type Shared = ();
    type Session = Session;
    type Enter = Enter;
    type Contender = Contender;
    type Node = Node;
    type Watch = Watch;
    /// The node of the hold, unless it is gone.
    type Left = Option<Box<str>>;
    type Cleanup = Cleanup;
    type Owner = OwnerNode;
    type Query = Query;

    /// Fencing tokens begin with the transaction that created the node.
    // ZK4
    const WRITE_PROVES: bool = false;
    const END_RESOLVES: bool = true;

    fn enter(lock: &mut Lock, ctx: &mut Context, session: SessionId) {
        lock.enter(ctx, session);
    }

    /// The node of a candidate has its value.
    fn serves(left: &Bid, next: &Bid) -> bool {
        left == next
    }

    fn cleanup_answered(lock: &mut Lock, ctx: &mut Context, place: usize, reply: &Reply) {
        lock.cleanup_answered(ctx, place, reply);
    }

    fn validity(config: &Config, ttl: Duration) -> Duration {
        config.validity(ttl)
    }

    fn watch_hold(lock: &mut Lock, ctx: &mut Context) {
        lock.watch_node(ctx);
    }

    fn watch_deadline(hold: &Hold, _: &Context) -> Option<Instant> {
        Some(hold.watch_at).filter(|_| hold.watch == Watch::None)
    }

    fn watch_awaits(watch: &Watch, serial: u64) -> bool {
        watch.awaits(serial)
    }

    fn write(_: &Queue, ctx: &mut Context, hold: &Hold, value: Option<Bytes>) -> Option<u64> {
        ctx.write_node(hold, value)
    }

    fn hold_answered(lock: &mut Lock, ctx: &mut Context, serial: u64, reply: &Reply) {
        lock.hold_answered(ctx, serial, reply);
    }

    fn owner(_: &Queue, hold: &Hold, _: &Context) -> Option<OwnerNode> {
        let Node { path, czxid, version, .. } = hold.node.clone();
        Some(OwnerNode { path, czxid, version })
    }

    fn end(_: &mut Lock, ctx: &mut Context, hold: &Hold, loss: Option<Loss>) -> Option<Box<str>> {
        if let Some(session) = ctx.shared.sessions.get_mut(hold.session) {
            session.nodes.remove(&ctx.slot);
        }
        (loss != Some(Loss::Gone)).then(|| hold.node.path.clone())
    }

    /// A session of its own ends with its last user.
    fn clean_up(lock: &mut Lock, ctx: &mut Context, remains: &Remains<Self>) {
        if let (Some(path), Some(true)) = (&remains.left, ctx.session(remains.session).map(Session::is_shared)) {
            lock.schedule_delete(ctx, remains.session, path.clone());
        }
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        lock.cleanups_due(ctx);
    }

    fn shared_session(ctx: &mut Context) -> SessionId {
        ctx.shared_session()
    }

    fn own_session(ctx: &mut Context, ttl: Duration) -> SessionId {
        ctx.new_session(false, ttl)
    }

    fn session_event(lock: &mut Lock, ctx: &mut Context, session: SessionId, event: &SessionEvent) {
        lock.session(ctx, session, event);
    }

    fn after_session_event(ctx: &mut Context, session: SessionId, event: &SessionEvent) {
        for slot in ctx.shared.queries.iter().map(|(slot, _)| slot).collect::<Vec<_>>() {
            ctx.query_step(slot, |query, ctx| query.session(ctx, session, event));
        }
    }

    fn default_ttl(config: &Config) -> Duration {
        config.store.session_ttl
    }

    fn session_ttl(config: &Config, ttl: Duration) -> Result<Duration, Invalid> {
        let (least, tick) = (config.least_ttl(), config.store.tick);
        match ttl {
            given if given < least => Err(Invalid::TtlUnderTicks { given, least, tick }),
            given if given > MAX_TTL => Err(Invalid::Ttl { given, min: least, max: MAX_TTL }),
            ttl => Ok(ttl),
        }
    }

    fn recheck(config: &Config) -> Duration {
        config.store.recheck
    }

    fn watch_own_after(config: &Config) -> Option<Duration> {
        config.store.watch_own_after
    }

    fn key(config: &Config, name: &[u8]) -> Result<Queue, Misuse> {
        Queue::new(&config.store.chroot, &config.prefix, name, Kind::Lock(config.store.dialect))
    }

    fn election(config: &Config, name: &[u8]) -> Result<Queue, Misuse> {
        Queue::new(&config.store.chroot, &config.prefix, name, Kind::Latch)
    }

    fn check_value(value: &[u8]) -> Result<(), Invalid> {
        let len = value.len();
        if len > MAX_VALUE { Err(Invalid::ValueLength { len, max: MAX_VALUE }) } else { Ok(()) }
    }

    fn request(call: CallId, request: Request, _: Duration) -> LocksOutput {
        LocksOutput::Send { call, request }
    }

    fn event(lock: LockId, event: Event) -> LocksOutput {
        LocksOutput::Event { lock, event }
    }

    fn election_event(query: QueryId, event: ElectionEvent) -> LocksOutput {
        LocksOutput::Election { query, event }
    }

    fn stopped(unreleased: u32) -> LocksOutput {
        LocksOutput::Stopped { unreleased }
    }

    /// The leader answers a `sync`. It needs no permission.
    fn ping(ctx: &mut Context) -> Request {
        let session = ctx.shared_session();
        Request { session, op: Op::Sync { path: "/".into() } }
    }
}

impl Lock {
    /// Handles an event of a session that this lock uses.
    fn session(&mut self, ctx: &mut Context, session: SessionId, event: &SessionEvent) {
        match event {
            SessionEvent::Lost(_) | SessionEvent::Refused(_) | SessionEvent::Ended(_) => {
                self.cleanups_lost(ctx, session, event);
            }
            SessionEvent::Alive
            | SessionEvent::Up
            | SessionEvent::Down(_)
            | SessionEvent::Renewed(_)
            | SessionEvent::Unrenewed(..)
            | SessionEvent::Gone(_) => {}
        }
        if self.hold.as_ref().is_some_and(|hold| hold.session == session) {
            self.hold_session(ctx, event);
        }
        if self.contention.session() == Some(session) {
            self.contend_session(ctx, event);
        }
        if *event == SessionEvent::Up {
            self.cleanups_up(ctx, session);
        }
    }

    fn contend_session(&mut self, ctx: &mut Context, event: &SessionEvent) {
        match event {
            // The nodes of a lost session end with it.
            SessionEvent::Lost(_) | SessionEvent::Ended(_) => self.start(ctx),
            SessionEvent::Refused(answer) => self.fail_refused(ctx, answer.clone()),
            SessionEvent::Down(answer) => {
                if !matches!(self.contention, Contention::Waiting(_)) {
                    self.store.answer = answer.clone();
                }
                self.notify_blocked(ctx, Blocked::Unreachable);
                self.end_try(ctx);
            }
            SessionEvent::Alive | SessionEvent::Up => match &self.contention {
                Contention::Opening(session) => {
                    let session = *session;
                    self.enter(ctx, session);
                }
                Contention::Entering(_) => self.enter_up(ctx),
                Contention::Waiting(_) => {
                    self.notify_blocked(ctx, Blocked::Held);
                    self.forget_watches();
                    self.read_queue(ctx);
                }
                Contention::Idle => {}
            },
            SessionEvent::Renewed(_) => {
                if let Contention::Waiting(_) = self.contention {
                    self.take_turn(ctx);
                }
            }
            SessionEvent::Unrenewed(..) | SessionEvent::Gone(_) => {}
        }
    }

    /// Handles a triggered watch on a child of the queue.
    pub(crate) fn watched(&mut self, ctx: &mut Context, session: SessionId, event: &WatcherEvent) {
        let changed = match event.kind {
            EventType::Deleted => false,
            EventType::DataChanged => true,
            EventType::None
            | EventType::Created
            | EventType::ChildrenChanged
            | EventType::DataWatchRemoved
            | EventType::ChildWatchRemoved => return,
        };
        if self.hold.as_ref().is_some_and(|hold| hold.session == session && hold.node.path == event.path) {
            return self.own_node_changed(ctx, changed);
        }
        if let Contention::Waiting(contender) = &self.contention
            && contender.session() == session
        {
            self.contender_watched(ctx, &event.path, changed);
        }
    }

    /// Fails all waiters because a foreign node occupies the queue.
    // ZK7
    fn fail_foreign(&mut self, ctx: &mut Context, name: &str) {
        let text = printable(&format!("the node {} is in the way, and is not of this lock", self.key.child(name)), "");
        self.store.answer = Answer::Rejected(ServerError { class: ErrorClass::KeyInUse, text });
        self.fail_all(ctx, Failure::KeyInUse);
    }
}
