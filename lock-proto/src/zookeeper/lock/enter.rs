//! Entering the store's queue: a sequential ephemeral node, and the list of the queue in the same
//! round trip.
// ZK2, ZK5

use core::ops::RangeInclusive;

use super::cleanup::CleanupTarget;
use super::wait::ZooKeeperContender;
use super::{OwnerNode, ZooKeeper, ZooKeeperCall, ZooKeeperContention, ZooKeeperEnv};
use crate::fault::Fault;
use crate::lock::{Answer, Blocked, Expiry, Fact, Hopeless, Retry, SessionId, refusal};
use crate::time::Instant;
use crate::zookeeper::codec::{ANY_VERSION, CreateMode, ErrorCode, MultiOp, Op, ReplyBody, Stat};
use crate::zookeeper::path::{Child, Guid, is_exhausted};
use crate::zookeeper::request::Reply;

/// From this transaction id on, a fencing token does not fit into a signed 64-bit number. Reached
/// after 32 768 elections of a leader.
// ZK4
const CZXID_END: i64 = 1 << 47;

/// Attempts to create the queue's node after which the pauses begin.
const FREE_TRIES: u32 = 2;

/// An attempt to enter the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ZooKeeperEntry {
    pub(super) session: SessionId,
    guid: Guid,
    step: ZooKeeperEntryStep,
    /// The last refusal to create the queue's node or one above it. Harmless for one that exists.
    refusal: Option<Answer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ZooKeeperEntryStep {
    /// The node is created, and the queue listed behind it unless the place is probably known.
    Creating,
    /// The outcome of the create is unknown: the queue is listed on the next connection, or after a
    /// pause if the session is up.
    // ZK2
    Searching(Retry),
    /// The node may be ours; its state is read.
    Verifying,
    /// The numbers are used up: the queue's node is deleted once nobody is left in it.
    // ZK5
    Vacating {
        until: Instant,
        retry: Retry,
    },
    Paused(Instant),
}

impl ZooKeeperEntry {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.step {
            ZooKeeperEntryStep::Paused(until) => Some(*until),
            ZooKeeperEntryStep::Searching(retry) | ZooKeeperEntryStep::Vacating { retry, .. } => retry.deadline(),
            ZooKeeperEntryStep::Creating | ZooKeeperEntryStep::Verifying => None,
        }
    }
}

impl ZooKeeper {
    /// Does the work that is due.
    pub(super) fn retry_entry(&mut self, env: &mut ZooKeeperEnv) {
        let ZooKeeperContention::Entering(enter) = &self.contention else { return };
        let session = enter.session;
        match enter.step {
            ZooKeeperEntryStep::Searching(_) => self.search(env),
            ZooKeeperEntryStep::Vacating { .. } => self.vacate(env),
            ZooKeeperEntryStep::Creating | ZooKeeperEntryStep::Verifying | ZooKeeperEntryStep::Paused(_) => {
                self.enter(env, session)
            }
        }
    }

    /// A write of the session was committed, so the outcome of the requests on earlier connections
    /// is decided.
    // ZK6
    pub(super) fn search(&mut self, env: &mut ZooKeeperEnv) {
        let ZooKeeperContention::Entering(ZooKeeperEntry { session, step, .. }) = &mut self.contention else { return };
        if let ZooKeeperEntryStep::Searching(retry) = step {
            retry.set_due(None);
            if let Some(call) = env.send(*session, self.key.list()) {
                self.calls.put(call, ZooKeeperCall::Search);
                retry.sent(());
            }
        }
    }

    /// Nobody waits any more, or the session is lost. Deletes what the entry has created.
    pub(super) fn leave_entry(&mut self, env: &mut ZooKeeperEnv, entry: &ZooKeeperEntry) {
        let ZooKeeperEntry { session, guid, step, .. } = entry;
        let (session, guid) = (*session, *guid);
        match step {
            ZooKeeperEntryStep::Creating => self.schedule_create(env, session, guid),
            ZooKeeperEntryStep::Searching(_) | ZooKeeperEntryStep::Verifying => {
                self.schedule(env, session, CleanupTarget::Search(guid))
            }
            ZooKeeperEntryStep::Vacating { .. } | ZooKeeperEntryStep::Paused(_) => {}
        }
    }

    /// Creates the node once the session is established, and lists the queue unless the place is
    /// probably known.
    pub(super) fn enter(&mut self, env: &mut ZooKeeperEnv, session: SessionId) {
        let Some(value) = self.head.as_ref().map(|head| head.terms.value.clone()) else {
            self.contention = ZooKeeperContention::Idle;
            return;
        };
        self.calls.forget(ZooKeeperCall::contends);
        let guid = Guid::new(env.shared.client, env.shared.next_id());
        let create = MultiOp::Create {
            path: self.key.child(&self.key.own(guid)),
            data: value,
            acl: env.config.acl(),
            mode: CreateMode::EphemeralSequential,
        };
        let Some(create) = env.send(session, Op::Write(create)) else {
            self.contention = ZooKeeperContention::Opening(session);
            if let Some(answer) = env.session(session).and_then(|found| found.own.down.clone()) {
                self.unreachable(env, answer);
            }
            return;
        };
        self.calls.put(create, ZooKeeperCall::Create { emitted: env.now });
        if !self.own.may_follow() {
            self.send_list(env, session);
        }
        self.contention = ZooKeeperContention::Entering(ZooKeeperEntry {
            session,
            guid,
            step: ZooKeeperEntryStep::Creating,
            refusal: None,
        });
    }

    /// Lists the queue for the contender. Returns false if nothing was sent.
    pub(super) fn send_list(&mut self, env: &mut ZooKeeperEnv, session: SessionId) -> bool {
        let call = env.send(session, self.key.list());
        if let Some(call) = call {
            self.calls.replace(call, ZooKeeperCall::List);
        }
        call.is_some()
    }

    /// Ends the contention, whose calls are of no use.
    fn idle(&mut self) {
        self.contention = ZooKeeperContention::Idle;
        self.calls.forget(ZooKeeperCall::contends);
    }

    fn step(&mut self, step: ZooKeeperEntryStep) {
        if let ZooKeeperContention::Entering(enter) = &mut self.contention {
            enter.step = step;
        }
    }

    /// Schedules the next attempt after a pause. Ends a single attempt.
    fn pause_entry(&mut self, env: &mut ZooKeeperEnv) {
        let until = env.now + env.pause(self.tries.saturating_sub(FREE_TRIES));
        self.tries = self.tries.saturating_add(1);
        self.step(ZooKeeperEntryStep::Paused(until));
        self.end_try(env);
    }

    pub(super) fn create_answered(&mut self, env: &mut ZooKeeperEnv, emitted: Instant, reply: &Reply) {
        let ZooKeeperContention::Entering(ZooKeeperEntry { session, .. }) = self.contention else { return };
        if let Reply::Done(_) = reply {
            // ZK1
            env.session_step(session, |session, env| session.wrote(env, emitted));
        }
        match reply {
            Reply::Done(ReplyBody::Created { path, stat }) => match self.own_node(env, session, path, stat) {
                Some(node) => self.join(env, session, node),
                None => self.search_later(env),
            },
            Reply::Refused(ErrorCode::NO_NODE) => {
                self.answer = reply.answer();
                let building = self.create_queue(env, session);
                if self.tries < FREE_TRIES {
                    self.tries += 1;
                    self.enter(env, session);
                } else {
                    self.pause_entry(env);
                }
                if let ZooKeeperContention::Entering(_) = self.contention {
                    for call in building.clone().into_iter().flatten() {
                        let last = building.as_ref().is_some_and(|calls| *calls.end() == call);
                        self.calls.put(call, ZooKeeperCall::Build { last });
                    }
                }
            }
            Reply::Refused(code) if reply.is_refusal() => {
                self.idle();
                if *code == ErrorCode::NO_CHILDREN_FOR_EPHEMERALS {
                    return self.fail_foreign(env, &format_args!("the ephemeral node {}", self.key.path.clone()));
                }
                self.fail_refused(env, reply.answer());
            }
            Reply::Done(_) | Reply::Refused(_) => {
                self.answer = reply.answer();
                self.pause_entry(env);
            }
            Reply::Unknown(_) => {
                self.answer = reply.answer();
                self.search_later(env);
                self.end_try(env);
            }
            // The session has ended. The attempt goes on in the next one.
            Reply::NotSent(cause) if *cause == Fault::NotNeeded.into() => {
                self.contention = ZooKeeperContention::Opening(session)
            }
            Reply::NotSent(_) if env.is_up(session) => {
                self.answer = reply.answer();
                env.blocked(Blocked::Unreachable);
                self.pause_entry(env);
            }
            Reply::NotSent(_) => {
                self.contention = ZooKeeperContention::Opening(session);
                self.unreachable(env, reply.answer());
            }
        }
    }

    /// Creates the queue's node and those above it. Refusals for nodes that exist are ignored.
    fn create_queue(&self, env: &mut ZooKeeperEnv, session: SessionId) -> Option<RangeInclusive<u64>> {
        let mut calls: Option<RangeInclusive<u64>> = None;
        for path in self.key.ancestors() {
            let (acl, mode) = (env.config.acl(), CreateMode::Container);
            let create = MultiOp::Create { path: path.into(), data: "".into(), acl, mode };
            let call = env.send(session, Op::Write(create))?;
            calls = Some(calls.map_or(call, |calls| *calls.start())..=call);
        }
        calls
    }

    /// A refusal counts if the queue's node was not created. It is harmless for a node that exists.
    pub(super) fn queue_created(&mut self, env: &mut ZooKeeperEnv, last: bool, reply: &Reply) {
        let ZooKeeperContention::Entering(ZooKeeperEntry { refusal, .. }) = &mut self.contention else { return };
        if reply.is_refusal() {
            *refusal = Some(reply.answer());
        }
        if last
            && let (Some(refusal), Reply::Refused(code)) = (refusal.take(), reply)
            && *code != ErrorCode::NODE_EXISTS
        {
            self.fail_refused(env, refusal);
        }
    }

    /// The node that was created. It must be of the live session.
    // ZK2
    fn own_node(&self, env: &ZooKeeperEnv, session: SessionId, path: &str, stat: &Stat) -> Option<OwnerNode> {
        let Child::Contender(sequence) = self.key.classify(self.key.name_of(path)?) else { return None };
        let ours = env.session(session).is_some_and(|found| found.own.owner == stat.ephemeral_owner);
        ours.then(|| OwnerNode { path: path.into(), sequence, czxid: stat.czxid, version: stat.version })
    }

    /// Joins the queue with this node, unless it has a number that must not be used. The list of
    /// the queue was requested with the node, or is requested unless the place is known.
    fn join(&mut self, env: &mut ZooKeeperEnv, session: SessionId, node: OwnerNode) {
        if node.czxid >= CZXID_END {
            self.idle();
            self.schedule(env, session, CleanupTarget::Node(node.path));
            let error = refusal("its transaction ids are too large for fencing tokens");
            self.fail_refused(env, Answer::Rejected(error));
        } else if is_exhausted(node.sequence) {
            self.calls.forget(ZooKeeperCall::contends);
            self.schedule(env, session, CleanupTarget::Node(node.path));
            self.step(ZooKeeperEntryStep::Vacating {
                until: env.now + env.config.store.own.vacate_within,
                retry: Retry::new(None),
            });
            self.answer = Answer::Taken(Expiry::Unknown);
            env.blocked(Blocked::Held);
            self.vacate(env);
        } else {
            self.tries = 0;
            let ahead = self.own.ahead_of(&node);
            let lists = self.calls.iter().any(|call| *call == ZooKeeperCall::List);
            self.contention =
                ZooKeeperContention::Waiting(ZooKeeperContender::new(env, session, node, lists, ahead.is_some()));
            if !lists {
                self.placed(env, ahead);
            }
        }
    }

    /// Deletes the queue's node, which succeeds once the queue is empty.
    // ZK5
    fn vacate(&mut self, env: &mut ZooKeeperEnv) {
        let ZooKeeperContention::Entering(ZooKeeperEntry {
            session,
            step: ZooKeeperEntryStep::Vacating { retry, .. },
            ..
        }) = &mut self.contention
        else {
            return;
        };
        let delete = MultiOp::Delete { path: (*self.key.path).into(), version: ANY_VERSION };
        match env.send(*session, Op::Write(delete)) {
            Some(call) => {
                self.calls.put(call, ZooKeeperCall::Vacate);
                retry.sent(());
            }
            None => env.back_off(retry),
        }
    }

    pub(super) fn vacated(&mut self, env: &mut ZooKeeperEnv, reply: &Reply) {
        let ZooKeeperContention::Entering(ZooKeeperEntry {
            session,
            step: ZooKeeperEntryStep::Vacating { until, retry },
            ..
        }) = &mut self.contention
        else {
            return;
        };
        let session = *session;
        match reply {
            Reply::Done(_) | Reply::Refused(ErrorCode::NO_NODE) => self.enter(env, session),
            Reply::Refused(ErrorCode::NOT_EMPTY) if *until <= env.now => {
                env.report(Fact::Hopeless(Hopeless::SequenceExhausted));
            }
            Reply::Refused(_) if reply.is_refusal() => self.fail_refused(env, reply.answer()),
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                retry.forget_call();
                env.back_off(retry);
                self.end_try(env);
            }
        }
    }

    /// Searches the node by its name once the session is up again, or after a pause if it is up.
    fn search_later(&mut self, env: &mut ZooKeeperEnv) {
        let ZooKeeperContention::Entering(ZooKeeperEntry { step, .. }) = &mut self.contention else { return };
        self.calls.forget(|call| *call == ZooKeeperCall::List);
        let mut retry = if let ZooKeeperEntryStep::Searching(retry) = step { *retry } else { Retry::new(None) };
        retry.forget_call();
        env.back_off(&mut retry);
        *step = ZooKeeperEntryStep::Searching(retry);
        env.blocked(Blocked::Unreachable);
    }

    /// Handles the list of the queue, or the state of the node at this path.
    pub(super) fn search_answered(&mut self, env: &mut ZooKeeperEnv, path: Option<&str>, reply: &Reply) {
        let ZooKeeperContention::Entering(ZooKeeperEntry { session, guid, .. }) = self.contention else { return };
        match (reply, path) {
            (Reply::Done(ReplyBody::Children(names)), None) => {
                let Some(path) = self.key.find(names, guid) else {
                    env.never_executed(session, guid);
                    return self.enter(env, session);
                };
                match env.send(session, Op::GetData { path: path.clone(), watch: false }) {
                    Some(call) => {
                        self.calls.put(call, ZooKeeperCall::Verify(path));
                        self.step(ZooKeeperEntryStep::Verifying);
                    }
                    None => self.search_later(env),
                }
            }
            (Reply::Done(ReplyBody::Data { stat, .. }), Some(path)) => match self.own_node(env, session, path, stat) {
                Some(node) => self.join(env, session, node),
                // A server that is not to be trusted.
                None => self.pause_entry(env),
            },
            (Reply::Refused(ErrorCode::NO_NODE), _) => {
                env.never_executed(session, guid);
                self.enter(env, session);
            }
            (Reply::Refused(_), _) if reply.is_refusal() => self.fail_refused(env, reply.answer()),
            // The server does not tell whether there is a node: it is deleted when it does.
            (Reply::Done(_) | Reply::Refused(_), _) => {
                self.answer = reply.answer();
                self.schedule(env, session, CleanupTarget::Search(guid));
                self.pause_entry(env);
            }
            (Reply::Unknown(_) | Reply::NotSent(_), _) => self.search_later(env),
        }
    }
}
