//! A query for the leader of an election, or an observation of it.

use alloc::boxed::Box;

use super::{ZooKeeper, ZooKeeperEnv, ZooKeeperName};
use crate::error::Misuse;
use crate::id::CallOwner;
use crate::lock::{
    Answer, Failure, Leader, LeaderQuery, OpenOperation, OperationEvent, QueueProtocol as _, SessionEvent, SessionId,
};
use crate::time::Instant;
use crate::zookeeper::codec::{ErrorCode, EventType, Op, ReplyBody, Stat, WatchKind};
use crate::zookeeper::path::{Child, Queue};
use crate::zookeeper::request::Reply;

/// What a query or observation reads and watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ZooKeeperQuery {
    queue: Queue,
    session: Option<SessionId>,
    call: Option<(u64, Asked)>,
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

impl Asked {
    const fn watches_queue(&self) -> bool {
        matches!(self, Self::List { watch: true } | Self::Queue)
    }
}

impl LeaderQuery<ZooKeeper> for ZooKeeperQuery {
    type Reply = Reply;

    fn new(env: &ZooKeeperEnv, name: &[u8]) -> Result<Self, Misuse> {
        let queue = ZooKeeperName::election(&env.config, name)?;
        let (session, call, first, watches_queue, due, tries) = (None, None, None, false, None, 0);
        Ok(Self { queue, session, call, first, watches_queue, due, tries })
    }

    /// Reads the queue, unless a request is in flight. A reply that follows the report of a change
    /// shows that change.
    fn read(&mut self, op: &mut OpenOperation, env: &mut ZooKeeperEnv) -> bool {
        if self.call.is_none() {
            self.ask(op, env, Asked::List { watch: false });
        }
        false
    }

    fn read_at(&self) -> Option<Instant> {
        self.due.filter(|_| self.call.is_none())
    }

    fn answered(&mut self, op: &mut OpenOperation, env: &mut ZooKeeperEnv, serial: u64, reply: &Reply) -> bool {
        let Some((_, asked)) = self.call.take_if(|(call, _)| *call == serial) else { return false };
        match (asked, reply) {
            (_, Reply::Unknown(_) | Reply::NotSent(_)) => {
                self.down(op, env, Some(reply.answer()));
                if self.session.is_some_and(|session| env.is_up(session)) {
                    self.back_off(env);
                }
            }
            (_, Reply::Refused(_)) if reply.is_refusal() => return op.end(env, reply.answer(), Failure::Refused),
            (Asked::List { watch }, Reply::Done(ReplyBody::Children(names))) => {
                let contenders = names.iter().filter_map(|name| match self.queue.classify(name) {
                    Child::Contender(sequence) => Some((sequence, name)),
                    Child::Foreign(_) => None,
                });
                match contenders.min() {
                    Some((_, name)) => {
                        let path = self.queue.child(name);
                        self.ask(op, env, Asked::Leader(path));
                    }
                    None if op.observes() && !watch => self.ask(op, env, Asked::List { watch: true }),
                    None => return self.seen(op, env, OperationEvent::NoLeader, None),
                }
            }
            (Asked::List { .. }, Reply::Refused(ErrorCode::NO_NODE)) if op.observes() => {
                self.ask(op, env, Asked::Queue)
            }
            (Asked::List { .. } | Asked::Queue, Reply::Refused(ErrorCode::NO_NODE)) => {
                return self.seen(op, env, OperationEvent::NoLeader, None);
            }
            (Asked::Leader(path), Reply::Done(ReplyBody::Data { data, stat })) => {
                let Stat { czxid, mzxid, .. } = *stat;
                let (key, value) = (path.as_bytes().to_vec().into(), data.clone());
                let leader = Leader { key, value, create_revision: czxid, mod_revision: mzxid };
                return self.seen(op, env, OperationEvent::Leader(leader), Some(path));
            }
            (Asked::Queue, Reply::Done(_)) | (Asked::Leader(_), Reply::Refused(ErrorCode::NO_NODE)) => {
                return self.read(op, env);
            }
            (_, Reply::Done(_) | Reply::Refused(_)) => self.back_off(env),
        }
        false
    }

    /// Removes the watch on the queue, which may never be triggered, unless another observer needs
    /// it. That on the leader's node ends with the node.
    fn close(&self, env: &mut ZooKeeperEnv) {
        let shares = |other: &Self| other.watches_queue && other.queue == self.queue;
        if self.watches_queue
            && let Some(session) = self.session
            && !env.operations.queries().any(|(_, other)| shares(other))
        {
            env.unwatch(session, (*self.queue.path).into(), WatchKind::Any);
        }
    }
}

impl ZooKeeperQuery {
    pub(super) fn session_event(
        &mut self,
        op: &mut OpenOperation,
        env: &mut ZooKeeperEnv,
        session: SessionId,
        event: &SessionEvent,
    ) -> bool {
        if self.session != Some(session) {
            return false;
        }
        match event {
            SessionEvent::Alive | SessionEvent::Up => return self.read(op, env),
            SessionEvent::Down(answer) => self.down(op, env, Some(answer.clone())),
            SessionEvent::Refused(answer) => return op.end(env, answer.clone(), Failure::Refused),
            // The next request opens another session.
            SessionEvent::Lost(_) | SessionEvent::Ended(_) => {
                self.call = None;
                self.down(op, env, None);
                return self.read(op, env);
            }
            SessionEvent::Shortened
            | SessionEvent::Renewed(_)
            | SessionEvent::Unrenewed(..)
            | SessionEvent::Gone(_)
            | SessionEvent::Leave => {}
        }
        false
    }

    /// Returns true if the observer needs the watch on this node.
    pub(super) fn watches(&self, op: &OpenOperation, path: &str) -> bool {
        let asks = matches!(&self.call, Some((_, Asked::Leader(asked))) if **asked == *path);
        op.observes() && (asks || self.first.as_deref() == Some(path))
    }

    fn ask(&mut self, op: &mut OpenOperation, env: &mut ZooKeeperEnv, asked: Asked) {
        let path: Box<str> = (*self.queue.path).into();
        let request = match &asked {
            Asked::List { watch } => Op::GetChildren { path, watch: *watch },
            Asked::Queue => Op::Exists { path, watch: true },
            Asked::Leader(path) => Op::GetData { path: path.clone(), watch: op.observes() },
        };
        self.watches_queue |= asked.watches_queue();
        let session = env.shared_session();
        (self.session, self.due) = (Some(session), None);
        self.call = env.send_for(CallOwner::Operation(op.slot()), session, request).map(|call| (call, asked));
        if self.call.is_none()
            && let Some(answer) = env.session(session).and_then(|found| found.own.down.clone())
        {
            self.down(op, env, Some(answer));
        }
    }

    fn back_off(&mut self, env: &ZooKeeperEnv) {
        self.due = Some(env.now + env.pause(self.tries));
        self.tries = self.tries.saturating_add(1);
    }

    /// The watches end with the connection.
    fn down(&mut self, op: &mut OpenOperation, env: &mut ZooKeeperEnv, answer: Option<Answer>) {
        self.watches_queue = false;
        op.disconnected(env, answer);
    }

    /// Reports the state. An observer goes on.
    fn seen(
        &mut self,
        op: &mut OpenOperation,
        env: &mut ZooKeeperEnv,
        event: OperationEvent,
        first: Option<Box<str>>,
    ) -> bool {
        op.emit(env, event);
        self.first = first;
        self.tries = 0;
        if !op.observes() {
            return true;
        }
        self.due = Some(env.recheck_of(op.slot()));
        false
    }

    /// Handles a triggered watch.
    pub(crate) fn watched(
        &mut self,
        op: &mut OpenOperation,
        env: &mut ZooKeeperEnv,
        path: &str,
        kind: EventType,
    ) -> bool {
        let changed = !matches!(kind, EventType::None | EventType::DataWatchRemoved | EventType::ChildWatchRemoved);
        // The report of an earlier watch does not end one whose request is in flight.
        let is_new = self.call.as_ref().is_some_and(|(_, asked)| asked.watches_queue());
        self.watches_queue &= is_new || *self.queue.path != *path;
        if changed && op.observes() && (*self.queue.path == *path || self.first.as_deref() == Some(path)) {
            return self.read(op, env);
        }
        false
    }
}
