//! Entering the store's queue: a sequential ephemeral node, and the list of the queue in the same
//! round trip.
// ZK2, ZK5

use alloc::boxed::Box;
use core::ops::RangeInclusive;

use super::cleanup::Target;
use super::wait::Contender;
use super::{Contention, Context, Lock, Nodes, OwnerNode};
use crate::fault::Fault;
use crate::lock::{Answer, Blocked, Expiry, Failure, Progress, Retry, SessionId, refusal};
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
pub struct Enter {
    pub(super) session: SessionId,
    guid: Guid,
    step: Step,
    /// The calls that create the queue's ancestors and, last, the queue's node.
    building: Option<RangeInclusive<u64>>,
    /// The last refusal of these. Harmless for a node that exists.
    refusal: Option<Answer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// The node is created, and the queue listed behind it unless the place is probably known.
    Creating {
        create: u64,
        list: Option<u64>,
        emitted: Instant,
    },
    /// The outcome of the create is unknown: the queue is listed on the next connection, or after a
    /// pause if the session is up.
    // ZK2
    Searching(Retry<u64>),
    /// The node may be ours; its state is read.
    Verifying {
        call: u64,
        path: Box<str>,
    },
    /// The numbers are used up: the queue's node is deleted once nobody is left in it.
    // ZK5
    Vacating {
        until: Instant,
        retry: Retry<u64>,
    },
    Paused(Instant),
}

impl Enter {
    /// Returns true if the call creates the queue's node or one above it.
    fn builds(&self, serial: u64) -> bool {
        self.building.as_ref().is_some_and(|calls| calls.contains(&serial))
    }
}

impl Progress<Nodes> for Enter {
    fn session(&self) -> SessionId {
        self.session
    }

    fn awaits(&self, serial: u64) -> bool {
        let own = match &self.step {
            Step::Creating { create, .. } => Some(*create),
            Step::Searching(retry) | Step::Vacating { retry, .. } => retry.call(),
            Step::Verifying { call, .. } => Some(*call),
            Step::Paused(_) => None,
        };
        own == Some(serial) || self.builds(serial)
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.step {
            Step::Paused(until) => Some(*until),
            Step::Searching(retry) | Step::Vacating { retry, .. } => retry.deadline(),
            Step::Creating { .. } | Step::Verifying { .. } => None,
        }
    }

    fn answered(lock: &mut Lock, ctx: &mut Context, serial: u64, reply: &Reply) {
        let Contention::Entering(enter) = &mut lock.contention else { return };
        let session = enter.session;
        if enter.builds(serial) {
            return lock.queue_created(ctx, serial, reply);
        }
        match enter.step.clone() {
            Step::Creating { list, emitted, .. } => {
                if let Reply::Done(_) = reply {
                    // ZK1
                    ctx.session_step(session, |session, ctx| session.wrote(ctx, emitted));
                }
                lock.create_answered(ctx, session, list, reply);
            }
            Step::Searching(_) => lock.search_answered(ctx, None, reply),
            Step::Verifying { path, .. } => lock.search_answered(ctx, Some(&path), reply),
            Step::Vacating { .. } => lock.vacated(ctx, session, reply),
            Step::Paused(_) => {}
        }
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        let Contention::Entering(enter) = &lock.contention else { return };
        let session = enter.session;
        match enter.step {
            Step::Searching(_) => Self::up(lock, ctx),
            Step::Vacating { .. } => lock.vacate(ctx),
            Step::Creating { .. } | Step::Verifying { .. } | Step::Paused(_) => lock.enter(ctx, session),
        }
    }

    /// A write of the session was committed, so the outcome of the requests on earlier connections
    /// is decided.
    // ZK6
    fn up(lock: &mut Lock, ctx: &mut Context) {
        let Contention::Entering(Self { session, step, .. }) = &mut lock.contention else { return };
        if let Step::Searching(retry) = step {
            retry.set_due(None);
            if let Some(call) = ctx.send(*session, lock.key.list()) {
                retry.sent(call);
            }
        }
    }

    /// Deletes what the entry has created.
    fn abandon(self, lock: &mut Lock, ctx: &mut Context) {
        let Self { session, guid, step, .. } = self;
        match step {
            Step::Creating { create, .. } => lock.schedule(ctx, session, Target::Creating { create, guid }),
            Step::Searching(_) | Step::Verifying { .. } => lock.schedule(ctx, session, Target::Search(guid)),
            Step::Vacating { .. } | Step::Paused(_) => {}
        }
    }
}

impl Lock {
    /// Creates the node once the session is established, and lists the queue unless the place is
    /// probably known.
    pub(super) fn enter(&mut self, ctx: &mut Context, session: SessionId) {
        let Some(value) = self.waiters.head().map(|head| head.terms.value.clone()) else {
            self.contention = Contention::Idle;
            return;
        };
        let guid = Guid::new(ctx.shared.client, ctx.shared.next_id());
        let create = MultiOp::Create {
            path: self.key.child(&self.key.own(guid)),
            data: value,
            acl: ctx.config.acl(),
            mode: CreateMode::EphemeralSequential,
        };
        let Some(create) = ctx.send(session, Op::Write(create)) else {
            self.contention = Contention::Opening(session);
            if let Some(answer) = ctx.session(session).and_then(|found| found.own.down.clone()) {
                self.unreachable(ctx, answer);
            }
            return;
        };
        let list = if self.store.own.may_follow() { None } else { ctx.send(session, self.key.list()) };
        let step = Step::Creating { create, list, emitted: ctx.now };
        self.contention = Contention::Entering(Enter { session, guid, step, building: None, refusal: None });
    }

    fn step(&mut self, step: Step) {
        if let Contention::Entering(enter) = &mut self.contention {
            enter.step = step;
        }
    }

    /// Schedules the next attempt after a pause. Ends a single attempt.
    fn pause_entry(&mut self, ctx: &mut Context) {
        let until = ctx.now + ctx.pause(self.tries.saturating_sub(FREE_TRIES));
        self.tries = self.tries.saturating_add(1);
        self.step(Step::Paused(until));
        self.end_try(ctx);
    }

    fn create_answered(&mut self, ctx: &mut Context, session: SessionId, list: Option<u64>, reply: &Reply) {
        match reply {
            Reply::Done(ReplyBody::Created { path, stat }) => match self.own_node(ctx, session, path, stat) {
                Some(node) => self.join(ctx, session, node, list),
                None => self.search_later(ctx),
            },
            Reply::Refused(ErrorCode::NO_NODE) => {
                self.store.answer = reply.answer();
                let building = self.create_queue(ctx, session);
                if self.tries < FREE_TRIES {
                    self.tries += 1;
                    self.enter(ctx, session);
                } else {
                    self.pause_entry(ctx);
                }
                if let Contention::Entering(enter) = &mut self.contention {
                    enter.building = building;
                }
            }
            Reply::Refused(code) if reply.is_refusal() => {
                self.contention = Contention::Idle;
                if *code == ErrorCode::NO_CHILDREN_FOR_EPHEMERALS {
                    return self.fail_foreign(ctx, &format_args!("the ephemeral node {}", self.key.path.clone()));
                }
                self.fail_refused(ctx, reply.answer());
            }
            Reply::Done(_) | Reply::Refused(_) => {
                self.store.answer = reply.answer();
                self.pause_entry(ctx);
            }
            Reply::Unknown(_) => {
                self.store.answer = reply.answer();
                self.search_later(ctx);
                self.end_try(ctx);
            }
            // The session has ended. The attempt goes on in the next one.
            Reply::NotSent(cause) if *cause == Fault::NotNeeded.into() => {
                self.contention = Contention::Opening(session)
            }
            Reply::NotSent(_) if ctx.is_up(session) => {
                self.store.answer = reply.answer();
                self.notify_blocked(ctx, Blocked::Unreachable);
                self.pause_entry(ctx);
            }
            Reply::NotSent(_) => {
                self.contention = Contention::Opening(session);
                self.unreachable(ctx, reply.answer());
            }
        }
    }

    /// Creates the queue's node and those above it. Refusals for nodes that exist are ignored.
    fn create_queue(&self, ctx: &mut Context, session: SessionId) -> Option<RangeInclusive<u64>> {
        let mut calls: Option<RangeInclusive<u64>> = None;
        for path in self.key.ancestors() {
            let (acl, mode) = (ctx.config.acl(), CreateMode::Container);
            let create = MultiOp::Create { path: path.into(), data: "".into(), acl, mode };
            let call = ctx.send(session, Op::Write(create))?;
            calls = Some(calls.map_or(call, |calls| *calls.start())..=call);
        }
        calls
    }

    /// A refusal counts if the queue's node was not created. It is harmless for a node that exists.
    fn queue_created(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) {
        let Contention::Entering(Enter { building, refusal, .. }) = &mut self.contention else { return };
        if reply.is_refusal() {
            *refusal = Some(reply.answer());
        }
        if building.take_if(|calls| *calls.end() == serial).is_none() {
            return;
        }
        if let (Some(refusal), Reply::Refused(code)) = (refusal.take(), reply)
            && *code != ErrorCode::NODE_EXISTS
        {
            self.fail_refused(ctx, refusal);
        }
    }

    /// The node that was created. It must be of the live session.
    // ZK2
    fn own_node(&self, ctx: &Context, session: SessionId, path: &str, stat: &Stat) -> Option<OwnerNode> {
        let Child::Contender(sequence) = self.key.classify(self.key.name_of(path)?) else { return None };
        let ours = ctx.session(session).is_some_and(|found| found.own.owner == stat.ephemeral_owner);
        ours.then(|| OwnerNode { path: path.into(), sequence, czxid: stat.czxid, version: stat.version })
    }

    /// Joins the queue with this node, unless it has a number that must not be used. The list of
    /// the queue was requested with the call `list`, or is requested unless the place is known.
    fn join(&mut self, ctx: &mut Context, session: SessionId, node: OwnerNode, list: Option<u64>) {
        if node.czxid >= CZXID_END {
            self.contention = Contention::Idle;
            self.schedule(ctx, session, Target::Node(node.path));
            let error = refusal("its transaction ids are too large for fencing tokens");
            self.fail_refused(ctx, Answer::Rejected(error));
        } else if is_exhausted(node.sequence) {
            self.schedule(ctx, session, Target::Node(node.path));
            self.step(Step::Vacating { until: ctx.now + ctx.config.store.own.vacate_within, retry: Retry::new(None) });
            self.store.answer = Answer::Taken(Expiry::Unknown);
            self.notify_blocked(ctx, Blocked::Held);
            self.vacate(ctx);
        } else {
            self.tries = 0;
            let ahead = self.store.own.ahead_of(&node);
            self.contention = Contention::Waiting(Contender::new(ctx, session, node, list));
            if list.is_none() {
                self.placed(ctx, ahead);
            }
        }
    }

    /// Deletes the queue's node, which succeeds once the queue is empty.
    // ZK5
    fn vacate(&mut self, ctx: &mut Context) {
        let Contention::Entering(Enter { session, step: Step::Vacating { retry, .. }, .. }) = &mut self.contention
        else {
            return;
        };
        let delete = MultiOp::Delete { path: (*self.key.path).into(), version: ANY_VERSION };
        match ctx.send(*session, Op::Write(delete)) {
            Some(call) => retry.sent(call),
            None => ctx.back_off(retry),
        }
    }

    fn vacated(&mut self, ctx: &mut Context, session: SessionId, reply: &Reply) {
        let Contention::Entering(Enter { step: Step::Vacating { until, retry }, .. }) = &mut self.contention else {
            return;
        };
        match reply {
            Reply::Done(_) | Reply::Refused(ErrorCode::NO_NODE) => self.enter(ctx, session),
            Reply::Refused(ErrorCode::NOT_EMPTY) if *until <= ctx.now => {
                self.fail_all(ctx, Failure::SequenceExhausted);
            }
            Reply::Refused(_) if reply.is_refusal() => self.fail_refused(ctx, reply.answer()),
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                retry.forget_call();
                ctx.back_off(retry);
                self.end_try(ctx);
            }
        }
    }

    /// Searches the node by its name once the session is up again, or after a pause if it is up.
    fn search_later(&mut self, ctx: &mut Context) {
        let Contention::Entering(Enter { step, .. }) = &mut self.contention else { return };
        let mut retry = if let Step::Searching(retry) = step { *retry } else { Retry::new(None) };
        retry.forget_call();
        ctx.back_off(&mut retry);
        *step = Step::Searching(retry);
        self.notify_blocked(ctx, Blocked::Unreachable);
    }

    /// Handles the list of the queue, or the state of the node at this path.
    fn search_answered(&mut self, ctx: &mut Context, path: Option<&str>, reply: &Reply) {
        let Contention::Entering(Enter { session, guid, .. }) = self.contention else { return };
        match (reply, path) {
            (Reply::Done(ReplyBody::Children(names)), None) => {
                let Some(path) = self.key.find(names, guid) else {
                    ctx.never_executed(session, guid);
                    return self.enter(ctx, session);
                };
                match ctx.send(session, Op::GetData { path: path.clone(), watch: false }) {
                    Some(call) => self.step(Step::Verifying { call, path }),
                    None => self.search_later(ctx),
                }
            }
            (Reply::Done(ReplyBody::Data { stat, .. }), Some(path)) => match self.own_node(ctx, session, path, stat) {
                Some(node) => self.join(ctx, session, node, None),
                // A server that is not to be trusted.
                None => self.pause_entry(ctx),
            },
            (Reply::Refused(ErrorCode::NO_NODE), _) => {
                ctx.never_executed(session, guid);
                self.enter(ctx, session);
            }
            (Reply::Refused(_), _) if reply.is_refusal() => self.fail_refused(ctx, reply.answer()),
            // The server does not tell whether there is a node: it is deleted when it does.
            (Reply::Done(_) | Reply::Refused(_), _) => {
                self.store.answer = reply.answer();
                self.schedule(ctx, session, Target::Search(guid));
                self.pause_entry(ctx);
            }
            (Reply::Unknown(_) | Reply::NotSent(_), _) => self.search_later(ctx),
        }
    }
}
