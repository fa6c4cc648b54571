//! Entering the store's queue: a sequential ephemeral node, and the list of the queue in the same
//! round trip.
// ZK2, ZK5

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::cleanup::Target;
use super::{Contention, Context, Lock, Node, Nodes};
use crate::lock::{Answer, Blocked, ErrorClass, Failure, Progress, ServerError, SessionId, printable};
use crate::time::Instant;
use crate::zookeeper::codec::{ANY_VERSION, CreateMode, ErrorCode, MultiOp, Op, ReplyBody, Stat};
use crate::zookeeper::path::{Child, Guid, is_exhausted};
use crate::zookeeper::request::{Reply, class};

/// Fencing tokens of nodes that were created at or after this transaction would not fit: epochs of
/// 32 768 elections of a leader.
// ZK4
const CZXID_END: i64 = 1 << 47;

/// Attempts to create the queue's node after which the pauses begin.
const FREE_TRIES: u32 = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Enter {
    pub(super) session: SessionId,
    guid: Guid,
    step: Step,
    /// The call that creates the queue's node.
    queue: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// The node is created, and the queue listed behind it.
    Creating {
        create: u64,
        list: u64,
        emitted: Instant,
    },
    /// The node exists; the list was requested with this call.
    Listing {
        list: u64,
        node: Node,
    },
    /// The outcome of the create is unknown: the queue is listed on the next connection.
    // ZK2
    Searching {
        call: Option<u64>,
    },
    /// The node may be ours; its state is read.
    Verifying {
        call: u64,
        path: Box<str>,
    },
    /// The numbers are used up: the queue's node is deleted once nobody is left in it.
    // ZK5
    Vacating {
        call: Option<u64>,
        until: Instant,
        due: Instant,
        tries: u32,
    },
    Paused(Instant),
}

impl Progress<Nodes> for Enter {
    fn session(&self) -> SessionId {
        self.session
    }

    fn awaits(&self, serial: u64) -> bool {
        let own = match &self.step {
            Step::Creating { create, list, .. } => *create == serial || *list == serial,
            Step::Listing { list, .. } => *list == serial,
            Step::Searching { call } | Step::Vacating { call, .. } => *call == Some(serial),
            Step::Verifying { call, .. } => *call == serial,
            Step::Paused(_) => false,
        };
        own || self.queue == Some(serial)
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.step {
            Step::Paused(until) => Some(*until),
            Step::Vacating { call: None, due, .. } => Some(*due),
            Step::Creating { .. }
            | Step::Listing { .. }
            | Step::Searching { .. }
            | Step::Verifying { .. }
            | Step::Vacating { .. } => None,
        }
    }

    fn answered(lock: &mut Lock, ctx: &mut Context, serial: u64, reply: &Reply) {
        lock.enter_answered(ctx, serial, reply);
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        lock.enter_due(ctx);
    }

    /// A write of the session comes first, so the outcome of the requests on earlier connections is
    /// decided.
    // ZK6
    fn up(lock: &mut Lock, ctx: &mut Context) {
        let Contention::Entering(Self { session, step, .. }) = &mut lock.contention else { return };
        if let Step::Searching { call } = step {
            let list = Op::GetChildren { path: (*lock.key.path).into(), watch: false };
            *call = ctx.send(*session, list);
        }
    }

    /// Deletes what the entry has created.
    fn abandon(self, lock: &mut Lock, ctx: &mut Context) {
        let Self { session, guid, step, .. } = self;
        match step {
            Step::Creating { create, .. } => lock.schedule(ctx, session, Target::Creating { create, guid }),
            Step::Listing { node, .. } => lock.schedule_delete(ctx, session, node.path),
            Step::Searching { .. } | Step::Verifying { .. } => lock.schedule(ctx, session, Target::Search(guid)),
            Step::Vacating { .. } | Step::Paused(_) => {}
        }
    }
}

impl Lock {
    /// Creates the node and lists the queue, once the session is established.
    pub(super) fn enter(&mut self, ctx: &mut Context, session: SessionId) {
        let Some(value) = self.waiters.head().map(|head| head.terms.value.clone()) else {
            self.contention = Contention::Idle;
            return;
        };
        let guid = ctx.fresh_guid();
        let create = MultiOp::Create {
            path: self.key.child(&self.key.own(guid)),
            data: value,
            acl: ctx.config.acl(),
            mode: CreateMode::EphemeralSequential,
        };
        let list = Op::GetChildren { path: (*self.key.path).into(), watch: false };
        let sent = ctx.send(session, Op::Write(create)).zip(ctx.send(session, list));
        let Some((create, list)) = sent else {
            self.contention = Contention::Opening(session);
            if let Some(answer) = ctx.session(session).and_then(|found| found.own.down.clone()) {
                self.store.answer = answer;
                self.notify_blocked(ctx, Blocked::Unreachable);
                self.end_try(ctx);
            }
            return;
        };
        let step = Step::Creating { create, list, emitted: ctx.now };
        self.contention = Contention::Entering(Enter { session, guid, step, queue: None });
    }

    pub(super) fn enter_due(&mut self, ctx: &mut Context) {
        let Contention::Entering(Enter { session, step, .. }) = &self.contention else { return };
        let session = *session;
        match step {
            Step::Paused(until) if *until <= ctx.now => self.enter(ctx, session),
            Step::Vacating { call: None, until, due, .. } if *due <= ctx.now => {
                if *until <= ctx.now {
                    self.contention = Contention::Idle;
                    return self.fail_all(ctx, Failure::SequenceExhausted);
                }
                self.vacate(ctx);
            }
            Step::Creating { .. }
            | Step::Listing { .. }
            | Step::Searching { .. }
            | Step::Verifying { .. }
            | Step::Vacating { .. }
            | Step::Paused(_) => {}
        }
    }

    fn pause_entry(&mut self, ctx: &Context) {
        let until = ctx.now + ctx.pause(self.tries.saturating_sub(FREE_TRIES));
        self.tries = self.tries.saturating_add(1);
        if let Contention::Entering(enter) = &mut self.contention {
            enter.step = Step::Paused(until);
        }
    }

    pub(super) fn enter_answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) {
        let Contention::Entering(enter) = &mut self.contention else { return };
        let (session, guid) = (enter.session, enter.guid);
        if enter.queue == Some(serial) {
            return self.queue_created(ctx, reply);
        }
        match &enter.step {
            Step::Creating { create, list, emitted } if *create == serial => {
                let (list, emitted) = (*list, *emitted);
                self.create_answered(ctx, session, list, emitted, reply);
            }
            Step::Creating { .. } => {}
            Step::Listing { node, .. } => {
                let node = node.clone();
                self.judge_answered(ctx, session, node, reply);
            }
            Step::Searching { .. } => self.search_answered(ctx, session, guid, reply),
            Step::Verifying { path, .. } => {
                let path = path.clone();
                match reply {
                    Reply::Done(ReplyBody::Data { stat, .. }) => self.verified(ctx, session, path, stat),
                    Reply::Done(_) | Reply::Failed(_) => self.enter(ctx, session),
                    Reply::Unknown(_) | Reply::NotSent(_) => self.search_later(ctx),
                }
            }
            Step::Vacating { .. } => self.vacate_answered(ctx, session, reply),
            Step::Paused(_) => {}
        }
    }

    fn create_answered(&mut self, ctx: &mut Context, session: SessionId, list: u64, emitted: Instant, reply: &Reply) {
        match reply {
            Reply::Done(ReplyBody::Created { path, stat }) => {
                ctx.committed(session, emitted);
                let Some(node) = self.own_node(ctx, session, path, stat) else {
                    return self.search_later(ctx);
                };
                if self.refuses_node(ctx, session, &node) {
                    return;
                }
                self.tries = 0;
                if let Contention::Entering(enter) = &mut self.contention {
                    enter.step = Step::Listing { list, node };
                }
            }
            Reply::Failed(ErrorCode::NO_NODE) => {
                let queue = self.create_queue(ctx, session);
                if self.tries < FREE_TRIES {
                    self.tries += 1;
                    self.enter(ctx, session);
                } else {
                    self.pause_entry(ctx);
                }
                if let Contention::Entering(enter) = &mut self.contention {
                    enter.queue = queue;
                }
            }
            Reply::Failed(code) if class(*code) == ErrorClass::Refused => self.fail_refused(ctx, reply.answer()),
            Reply::Done(_) | Reply::Failed(_) => self.pause_entry(ctx),
            Reply::Unknown(_) => {
                self.store.answer = reply.answer();
                self.search_later(ctx);
                self.end_try(ctx);
            }
            Reply::NotSent(_) => {
                self.store.answer = reply.answer();
                self.contention = Contention::Opening(session);
                self.notify_blocked(ctx, Blocked::Unreachable);
                self.end_try(ctx);
            }
        }
    }

    /// Creates the queue's node and those above it, those that exist notwithstanding. A server
    /// without containers takes the persistent ones.
    fn create_queue(&self, ctx: &mut Context, session: SessionId) -> Option<u64> {
        let mut last = None;
        for path in self.key.ancestors() {
            for mode in [CreateMode::Container, CreateMode::Persistent] {
                let create = MultiOp::Create { path: path.into(), data: "".into(), acl: ctx.config.acl(), mode };
                // Only the last one shows whether it is possible at all.
                last = ctx.send(session, Op::Write(create));
            }
        }
        last
    }

    fn queue_created(&mut self, ctx: &mut Context, reply: &Reply) {
        if let Contention::Entering(enter) = &mut self.contention {
            enter.queue = None;
        }
        if let Reply::Failed(code) = reply
            && class(*code) == ErrorClass::Refused
        {
            if let Contention::Entering(enter) = mem::take(&mut self.contention) {
                enter.abandon(self, ctx);
            }
            self.fail_refused(ctx, reply.answer());
        }
    }

    /// The node that was created. It must be of the live session.
    // ZK2
    fn own_node(&self, ctx: &Context, session: SessionId, path: &str, stat: &Stat) -> Option<Node> {
        let Child::Contender(sequence) = self.key.classify(self.key.name_of(path)?) else { return None };
        let ours = ctx.session(session).is_some_and(|found| found.own.owner == stat.ephemeral_owner);
        ours.then(|| Node { path: path.into(), sequence, czxid: stat.czxid, version: stat.version })
    }

    /// Leaves the queue again if the node has a number that must not be used.
    fn refuses_node(&mut self, ctx: &mut Context, session: SessionId, node: &Node) -> bool {
        if node.czxid >= CZXID_END {
            self.contention = Contention::Idle;
            self.schedule_delete(ctx, session, node.path.clone());
            let text = printable("its transaction ids are too large for fencing tokens", "");
            self.fail_refused(ctx, Answer::Rejected(ServerError { class: ErrorClass::Refused, text }));
            return true;
        }
        if !is_exhausted(node.sequence) {
            return false;
        }
        self.schedule_delete(ctx, session, node.path.clone());
        if let Contention::Entering(enter) = &mut self.contention {
            let until = ctx.now + ctx.config.store.own.vacate_within;
            enter.step = Step::Vacating { call: None, until, due: ctx.now, tries: 0 };
        }
        self.notify_blocked(ctx, Blocked::Held);
        self.vacate(ctx);
        true
    }

    /// Deletes the queue's node, which succeeds once the queue is empty.
    // ZK5
    fn vacate(&mut self, ctx: &mut Context) {
        let Contention::Entering(Enter { session, step, .. }) = &mut self.contention else { return };
        if let Step::Vacating { call, due, tries, .. } = step {
            let delete = MultiOp::Delete { path: (*self.key.path).into(), version: ANY_VERSION };
            *call = ctx.send(*session, Op::Write(delete));
            *due = ctx.now + ctx.pause(*tries);
            *tries = tries.saturating_add(1);
        }
    }

    fn vacate_answered(&mut self, ctx: &mut Context, session: SessionId, reply: &Reply) {
        match reply {
            Reply::Done(_) | Reply::Failed(ErrorCode::NO_NODE) => self.enter(ctx, session),
            Reply::Failed(code) if class(*code) == ErrorClass::Refused => self.fail_refused(ctx, reply.answer()),
            Reply::Failed(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                if let Contention::Entering(Enter { step: Step::Vacating { call, due, tries, .. }, .. }) =
                    &mut self.contention
                {
                    *call = None;
                    *due = ctx.now + ctx.pause(*tries);
                }
                self.end_try(ctx);
            }
        }
    }

    /// Searches the node by its name once the session is up again.
    fn search_later(&mut self, ctx: &mut Context) {
        if let Contention::Entering(enter) = &mut self.contention {
            enter.step = Step::Searching { call: None };
        }
        self.notify_blocked(ctx, Blocked::Unreachable);
        Enter::up(self, ctx);
    }

    fn search_answered(&mut self, ctx: &mut Context, session: SessionId, guid: Guid, reply: &Reply) {
        match reply {
            Reply::Done(ReplyBody::Children(names)) => {
                let own = self.key.own(guid);
                let Some(name) = names.iter().find(|name| name.starts_with(&own)) else {
                    return self.enter(ctx, session);
                };
                let path = self.key.child(name);
                match ctx.send(session, Op::GetData { path: path.clone(), watch: false }) {
                    Some(call) => {
                        if let Contention::Entering(enter) = &mut self.contention {
                            enter.step = Step::Verifying { call, path };
                        }
                    }
                    None => self.search_later(ctx),
                }
            }
            Reply::Failed(ErrorCode::NO_NODE) => self.enter(ctx, session),
            Reply::Failed(code) if class(*code) == ErrorClass::Refused => {
                self.schedule(ctx, session, Target::Search(guid));
                self.fail_refused(ctx, reply.answer());
            }
            Reply::Done(_) | Reply::Failed(_) => self.pause_entry(ctx),
            Reply::Unknown(_) | Reply::NotSent(_) => self.search_later(ctx),
        }
    }

    fn verified(&mut self, ctx: &mut Context, session: SessionId, path: Box<str>, stat: &Stat) {
        match self.own_node(ctx, session, &path, stat) {
            // A server that is not to be trusted.
            None => self.pause_entry(ctx),
            Some(node) => {
                if !self.refuses_node(ctx, session, &node) {
                    self.join(ctx, session, node);
                }
            }
        }
    }

    /// Decides by a list of the queue that is younger than the node whether it is first.
    pub(super) fn judge_answered(&mut self, ctx: &mut Context, session: SessionId, node: Node, reply: &Reply) {
        match reply {
            Reply::Done(ReplyBody::Children(names)) => self.judge(ctx, session, node, names),
            Reply::Failed(code) if class(*code) == ErrorClass::Refused => {
                self.contention = Contention::Idle;
                self.schedule_delete(ctx, session, node.path);
                self.fail_refused(ctx, reply.answer());
            }
            // The queue is gone, and the node with it.
            Reply::Failed(ErrorCode::NO_NODE) => self.enter(ctx, session),
            Reply::Done(_) | Reply::Failed(_) | Reply::Unknown(_) | Reply::NotSent(_) => self.join(ctx, session, node),
        }
    }

    fn judge(&mut self, ctx: &mut Context, session: SessionId, node: Node, names: &[Box<str>]) {
        let (mut ahead, mut found) = (Vec::new(), false);
        for name in names {
            match self.key.classify(name) {
                Child::Contender(sequence) if sequence < node.sequence => ahead.push((sequence, name)),
                Child::Contender(_) => found |= self.key.name_of(&node.path) == Some(name),
                Child::Foreign(name) => {
                    let name = Box::<str>::from(name);
                    self.contention = Contention::Idle;
                    self.schedule_delete(ctx, session, node.path);
                    return self.fail_foreign(ctx, &name);
                }
            }
        }
        if !found {
            // Somebody has deleted the node.
            return self.enter(ctx, session);
        }
        match ahead.iter().max() {
            None => self.win(ctx, session, node, None),
            Some((_, name)) => {
                let path = self.key.child(name);
                self.wait_behind(ctx, session, node, path, ahead.len() == 1);
            }
        }
    }
}
