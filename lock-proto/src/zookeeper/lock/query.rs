//! A query for the leader of an election, or an observation of it.

use alloc::boxed::Box;

use super::{Context, Nodes};
use crate::id::CallOwner;
use crate::lock::{self, Asking, ElectionEvent, Failure, Leader, SessionEvent, SessionId, pause};
use crate::time::Instant;
use crate::zookeeper::codec::{ErrorCode, EventType, Op, ReplyBody, Stat, WatchKind};
use crate::zookeeper::path::{Child, Queue};
use crate::zookeeper::request::Reply;

/// An open query or observation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Query {
    asking: Asking,
    queue: Queue,
    session: Option<SessionId>,
    call: Option<(u64, Asked)>,
    /// Something changed since the request in flight was made.
    is_behind: bool,
    /// The node of the leader.
    first: Option<Box<str>>,
    /// A watch on the queue was requested, and has not been triggered.
    watches_queue: bool,
    due: Option<Instant>,
    tries: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Asked {
    /// The list of the queue; with a watch after it was empty.
    List {
        watch: bool,
    },
    /// A watch for the queue's node, which does not exist.
    Queue,
    Leader(Box<str>),
}

impl lock::Query<Nodes> for Query {
    fn new(asking: Asking, queue: Queue) -> Self {
        let (session, call, first, due) = (None, None, None, None);
        Self { asking, queue, session, call, is_behind: false, first, watches_queue: false, due, tries: 0 }
    }

    fn asking(&self) -> &Asking {
        &self.asking
    }

    fn asking_mut(&mut self) -> &mut Asking {
        &mut self.asking
    }

    fn start(&mut self, ctx: &mut Context) -> bool {
        self.read(ctx);
        false
    }

    fn work(&mut self, ctx: &mut Context) -> bool {
        if self.work_at().is_some_and(|at| at <= ctx.now) {
            self.read(ctx);
        }
        false
    }

    fn work_at(&self) -> Option<Instant> {
        self.due.filter(|_| self.call.is_none())
    }

    fn answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) -> bool {
        let Some((_, asked)) = self.call.take_if(|(call, _)| *call == serial) else { return false };
        match (asked, reply) {
            (_, Reply::Unknown(_) | Reply::NotSent(_)) => {
                self.asking.answer = reply.answer();
                self.disconnected(ctx);
                return false;
            }
            (_, Reply::Failed(_)) if reply.is_refusal() => {
                self.asking.answer = reply.answer();
                self.asking.fail(ctx, Failure::Refused);
                return true;
            }
            (Asked::List { watch }, Reply::Done(ReplyBody::Children(names))) => {
                let contenders = names.iter().filter_map(|name| match self.queue.classify(name) {
                    Child::Contender(sequence) => Some((sequence, name)),
                    Child::Foreign(_) => None,
                });
                match contenders.min() {
                    Some((_, name)) => {
                        let path = self.queue.child(name);
                        self.ask(ctx, Asked::Leader(path));
                    }
                    None if self.observes() && !watch => self.ask(ctx, Asked::List { watch: true }),
                    None => return self.seen(ctx, ElectionEvent::NoLeader, None),
                }
            }
            (Asked::List { .. }, Reply::Failed(ErrorCode::NO_NODE)) if self.observes() => self.ask(ctx, Asked::Queue),
            (Asked::List { .. } | Asked::Queue, Reply::Failed(ErrorCode::NO_NODE)) => {
                return self.seen(ctx, ElectionEvent::NoLeader, None);
            }
            (Asked::Leader(path), Reply::Done(ReplyBody::Data { data, stat })) => {
                let Stat { czxid, mzxid, .. } = *stat;
                let (key, value) = (path.as_bytes().to_vec().into(), data.clone());
                let leader = Leader { key, value, create_revision: czxid, mod_revision: mzxid };
                return self.seen(ctx, ElectionEvent::Leader(leader), Some(path));
            }
            (Asked::Queue, Reply::Done(_)) | (Asked::Leader(_), Reply::Failed(ErrorCode::NO_NODE)) => {
                self.is_behind = false;
                self.read(ctx);
            }
            (_, Reply::Done(_) | Reply::Failed(_)) => {
                self.due = Some(ctx.now + pause(ctx.seed, ctx.now.as_nanos(), self.tries));
                self.tries = self.tries.saturating_add(1);
            }
        }
        false
    }

    fn session_event(&mut self, ctx: &mut Context, session: SessionId, event: &SessionEvent) -> bool {
        if self.session != Some(session) {
            return false;
        }
        match event {
            SessionEvent::Alive | SessionEvent::Up => self.read(ctx),
            SessionEvent::Down(answer) => {
                self.asking.answer = answer.clone();
                self.disconnected(ctx);
            }
            SessionEvent::Refused(answer) => {
                self.asking.answer = answer.clone();
                self.asking.fail(ctx, Failure::Refused);
                return true;
            }
            // The next request opens another session.
            SessionEvent::Lost(_) | SessionEvent::Ended(_) => {
                self.call = None;
                self.disconnected(ctx);
                self.read(ctx);
            }
            SessionEvent::Renewed(_) | SessionEvent::Unrenewed(..) | SessionEvent::Gone(_) => {}
        }
        false
    }

    /// Removes the watch on the queue, which may never be triggered, unless another observer needs
    /// it. That on the leader's node ends with the node.
    fn close(&mut self, ctx: &mut Context) {
        let shares = |other: &Self| other.watches_queue && other.queue == self.queue;
        if self.watches_queue
            && let Some(session) = self.session
            && !ctx.shared.queries.iter().any(|(_, other)| shares(other))
        {
            ctx.unwatch(session, (*self.queue.path).into(), WatchKind::Any);
        }
    }
}

impl Query {
    const fn observes(&self) -> bool {
        self.asking.until.is_none()
    }

    /// Returns true if the observer needs the watch on this node.
    pub(super) fn watches(&self, path: &str) -> bool {
        let asks = matches!(&self.call, Some((_, Asked::Leader(asked))) if **asked == *path);
        self.observes() && (asks || self.first.as_deref() == Some(path))
    }

    /// Reads the queue, or does so behind the request in flight.
    fn read(&mut self, ctx: &mut Context) {
        if self.call.is_some() {
            self.is_behind = true;
            return;
        }
        self.ask(ctx, Asked::List { watch: false });
    }

    fn ask(&mut self, ctx: &mut Context, asked: Asked) {
        let path: Box<str> = (*self.queue.path).into();
        let op = match &asked {
            Asked::List { watch } => Op::GetChildren { path, watch: *watch },
            Asked::Queue => Op::Exists { path, watch: true },
            Asked::Leader(path) => Op::GetData { path: path.clone(), watch: self.observes() },
        };
        self.watches_queue |= matches!(asked, Asked::List { watch: true } | Asked::Queue);
        let session = ctx.shared_session();
        (self.session, self.due) = (Some(session), None);
        self.call = ctx.send_for(CallOwner::Query(self.asking.id.slot), session, op).map(|call| (call, asked));
        if self.call.is_none()
            && let Some(answer) = ctx.session(session).and_then(|found| found.own.down.clone())
        {
            self.asking.answer = answer;
            self.disconnected(ctx);
        }
    }

    /// The watches end with the connection.
    fn disconnected(&mut self, ctx: &mut Context) {
        self.watches_queue = false;
        if self.observes() {
            self.asking.emit(ctx, ElectionEvent::Disconnected);
        }
    }

    /// Reports the state. An observer goes on.
    fn seen(&mut self, ctx: &mut Context, event: ElectionEvent, first: Option<Box<str>>) -> bool {
        self.asking.emit(ctx, event);
        self.first = first;
        self.tries = 0;
        if !self.observes() {
            return true;
        }
        if core::mem::take(&mut self.is_behind) {
            self.read(ctx);
        } else {
            self.due = Some(ctx.recheck_of(self.asking.id.slot));
        }
        false
    }

    /// Handles a triggered watch.
    pub(crate) fn watched(&mut self, ctx: &mut Context, path: &str, kind: EventType) -> bool {
        let changed = match kind {
            EventType::Created | EventType::Deleted | EventType::DataChanged | EventType::ChildrenChanged => true,
            EventType::None | EventType::DataWatchRemoved | EventType::ChildWatchRemoved => false,
        };
        self.watches_queue &= *self.queue.path != *path;
        if changed && self.observes() && (*self.queue.path == *path || self.first.as_deref() == Some(path)) {
            self.read(ctx);
        }
        false
    }
}
