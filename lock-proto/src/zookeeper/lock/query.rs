//! A query for the leader of an election, or an observation of it.

use alloc::boxed::Box;

use super::{ZooKeeperEnv, ZooKeeperName};
use crate::id::CallOwner;
use crate::lock::{self, Answer, ElectionEvent, Leader, SessionEvent, SessionId};
use crate::time::Instant;
use crate::zookeeper::codec::{ErrorCode, EventType, Op, ReplyBody, Stat, WatchKind};
use crate::zookeeper::path::Child;
use crate::zookeeper::request::Reply;

pub(super) type ZooKeeperQuery = lock::LeaderQuery<ZooKeeperName>;

/// What a query or observation reads and watches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ZooKeeperLeaderRead {
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

impl ZooKeeperQuery {
    /// Reads the queue, unless a request is in flight. A reply that follows the report of a change
    /// shows that change.
    pub(super) fn read_leader(&mut self, env: &mut ZooKeeperEnv) {
        if self.own.call.is_none() {
            self.ask(env, Asked::List { watch: false });
        }
    }

    pub(super) fn read_at(&self) -> Option<Instant> {
        self.own.due.filter(|_| self.own.call.is_none())
    }

    pub(super) fn answered(&mut self, env: &mut ZooKeeperEnv, serial: u64, reply: &Reply) -> bool {
        let Some((_, asked)) = self.own.call.take_if(|(call, _)| *call == serial) else { return false };
        match (asked, reply) {
            (_, Reply::Unknown(_) | Reply::NotSent(_)) => {
                self.down(env, reply.answer());
                if self.own.session.is_some_and(|session| env.is_up(session)) {
                    self.back_off(env);
                }
            }
            (_, Reply::Refused(_)) if reply.is_refusal() => return self.refused(env, reply.answer()),
            (Asked::List { watch }, Reply::Done(ReplyBody::Children(names))) => {
                let contenders = names.iter().filter_map(|name| match self.queue.classify(name) {
                    Child::Contender(sequence) => Some((sequence, name)),
                    Child::Foreign(_) => None,
                });
                match contenders.min() {
                    Some((_, name)) => {
                        let path = self.queue.child(name);
                        self.ask(env, Asked::Leader(path));
                    }
                    None if self.observes() && !watch => self.ask(env, Asked::List { watch: true }),
                    None => return self.seen(env, ElectionEvent::NoLeader, None),
                }
            }
            (Asked::List { .. }, Reply::Refused(ErrorCode::NO_NODE)) if self.observes() => self.ask(env, Asked::Queue),
            (Asked::List { .. } | Asked::Queue, Reply::Refused(ErrorCode::NO_NODE)) => {
                return self.seen(env, ElectionEvent::NoLeader, None);
            }
            (Asked::Leader(path), Reply::Done(ReplyBody::Data { data, stat })) => {
                let Stat { czxid, mzxid, .. } = *stat;
                let (key, value) = (path.as_bytes().to_vec().into(), data.clone());
                let leader = Leader { key, value, create_revision: czxid, mod_revision: mzxid };
                return self.seen(env, ElectionEvent::Leader(leader), Some(path));
            }
            (Asked::Queue, Reply::Done(_)) | (Asked::Leader(_), Reply::Refused(ErrorCode::NO_NODE)) => {
                self.read_leader(env)
            }
            (_, Reply::Done(_) | Reply::Refused(_)) => self.back_off(env),
        }
        false
    }

    pub(super) fn session_event(&mut self, env: &mut ZooKeeperEnv, session: SessionId, event: &SessionEvent) -> bool {
        if self.own.session != Some(session) {
            return false;
        }
        match event {
            SessionEvent::Alive | SessionEvent::Up => self.read_leader(env),
            SessionEvent::Down(answer) => self.down(env, answer.clone()),
            SessionEvent::Refused(answer) => return self.refused(env, answer.clone()),
            // The next request opens another session.
            SessionEvent::Lost(_) | SessionEvent::Ended(_) => {
                self.own.call = None;
                self.down(env, self.answer.clone());
                self.read_leader(env);
            }
            SessionEvent::Shortened
            | SessionEvent::Renewed(_)
            | SessionEvent::Unrenewed(..)
            | SessionEvent::Gone(_)
            | SessionEvent::Leave => {}
        }
        false
    }

    /// Removes the watch on the queue, which may never be triggered, unless another observer needs
    /// it. That on the leader's node ends with the node.
    pub(super) fn close(&self, env: &mut ZooKeeperEnv) {
        let shares = |other: &Self| other.own.watches_queue && other.queue == self.queue;
        if self.own.watches_queue
            && let Some(session) = self.own.session
            && !env.shared.queries.iter().any(shares)
        {
            env.unwatch(session, (*self.queue.path).into(), WatchKind::Any);
        }
    }

    /// Returns true if the observer needs the watch on this node.
    pub(super) fn watches(&self, path: &str) -> bool {
        let asks = matches!(&self.own.call, Some((_, Asked::Leader(asked))) if **asked == *path);
        self.observes() && (asks || self.own.first.as_deref() == Some(path))
    }

    fn ask(&mut self, env: &mut ZooKeeperEnv, asked: Asked) {
        let path: Box<str> = (*self.queue.path).into();
        let op = match &asked {
            Asked::List { watch } => Op::GetChildren { path, watch: *watch },
            Asked::Queue => Op::Exists { path, watch: true },
            Asked::Leader(path) => Op::GetData { path: path.clone(), watch: self.observes() },
        };
        self.own.watches_queue |= asked.watches_queue();
        let session = env.shared_session();
        (self.own.session, self.own.due) = (Some(session), None);
        self.own.call = env.send_for(CallOwner::Query(self.id.slot), session, op).map(|call| (call, asked));
        if self.own.call.is_none()
            && let Some(answer) = env.session(session).and_then(|found| found.own.down.clone())
        {
            self.down(env, answer);
        }
    }

    fn back_off(&mut self, env: &ZooKeeperEnv) {
        self.own.due = Some(env.now + env.pause(self.own.tries));
        self.own.tries = self.own.tries.saturating_add(1);
    }

    /// The watches end with the connection.
    fn down(&mut self, env: &mut ZooKeeperEnv, answer: Answer) {
        self.own.watches_queue = false;
        self.disconnected(env, answer);
    }

    /// Reports the state. An observer goes on.
    fn seen(&mut self, env: &mut ZooKeeperEnv, event: ElectionEvent, first: Option<Box<str>>) -> bool {
        self.emit(env, event);
        self.own.first = first;
        self.own.tries = 0;
        if !self.observes() {
            return true;
        }
        self.own.due = Some(env.recheck_of(self.id.slot));
        false
    }

    /// Handles a triggered watch.
    pub(crate) fn watched(&mut self, env: &mut ZooKeeperEnv, path: &str, kind: EventType) -> bool {
        let changed = !matches!(kind, EventType::None | EventType::DataWatchRemoved | EventType::ChildWatchRemoved);
        // The report of an earlier watch does not end one whose request is in flight.
        let is_new = self.own.call.as_ref().is_some_and(|(_, asked)| asked.watches_queue());
        self.own.watches_queue &= is_new || *self.queue.path != *path;
        if changed && self.observes() && (*self.queue.path == *path || self.own.first.as_deref() == Some(path)) {
            self.read_leader(env);
        }
        false
    }
}
