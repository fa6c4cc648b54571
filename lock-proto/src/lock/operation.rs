//! Operations: what a client asks of the servers besides locks. One table holds all that are open.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;

use bytes::Bytes;

use super::answer::{Answer, refusals_are_undecided};
use super::context::Env;
use super::election::Leader;
use super::event::{Failure, Report};
use super::hub::Locks;
use super::store::{SharedState, Store};
use super::tuning::check_name;
use crate::collections::{Deadlines, Slots};
use crate::error::Misuse;
use crate::id::{CallId, CallOwner, NodeId};
use crate::time::{Instant, soonest};

/// What to ask of the servers. Takes no lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Checks the servers: connects, logs in and sends a request that changes no key. On ZooKeeper
    /// it opens the session that locks use. Each server has the request timeout to accept the
    /// connection.
    ///
    /// Ends with [`OperationEvent::Done`] if enough servers answered, so that a lock could be taken
    /// as far as connections and logins are concerned. The failure is [`Failure::Refused`] if a
    /// retry will not help, such as for a wrong password, and [`Failure::EqualNodes`] if two nodes
    /// turned out to be the same server.
    Ping,
    /// Asks who leads the election of this name. Ends with the first answer.
    Leader(Bytes),
    /// Observes who leads the election of this name, until it is cancelled or has failed.
    Observe(Bytes),
}

/// An operation. Opaque and generational, like a [`LockId`](crate::LockId).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId {
    slot: u32,
    generation: u32,
}

/// Event of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OperationEvent {
    /// The check has succeeded. Last event.
    Done,
    /// This candidate leads, with this value. An observation emits it again when the value changes.
    Leader(Leader),
    /// There is no leader. Also emitted while the oldest key of the election belongs to no
    /// candidate, such as one of the election `name/other`, because no candidate can be elected
    /// behind it.
    NoLeader,
    /// The server is currently unreachable, so what was observed last may be out of date. Emitted
    /// once the connection has ended. A silent connection ends after `ping_after` and `ping_timeout`
    /// (13 s) on etcd, and after two thirds of a tick and the request timeout (4 s) on ZooKeeper.
    Disconnected,
    /// The operation failed, or cannot continue. Last event.
    Failed(Failure),
}

/// An open operation, apart from what only its kind has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpenOperation {
    id: OperationId,
    since: Instant,
    /// When it has failed, if it limits its time itself.
    until: Option<Instant>,
    pub(crate) last_event: Option<OperationEvent>,
    /// The last answer of each server: [`Answer::Silent`] until it replies.
    answers: Vec<Answer>,
}

/// What only the kind of an operation has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work<Q> {
    /// A check: the call to each server.
    Ping(Vec<u64>),
    /// A question for the leader, or an observation.
    Leader(Q),
}

/// How a store reads the leader of an election, for one operation. Those functions that return a
/// `bool` return true if the operation has ended.
pub trait LeaderQuery<S: Store>: Clone + Debug + PartialEq + Eq + Hash {
    /// The reply to a request.
    type Reply;

    /// Returns a query that has sent nothing.
    ///
    /// # Errors
    ///
    /// [`Misuse`] for a name that the store does not allow, or if it has no elections.
    fn new(env: &Env<S>, name: &[u8]) -> Result<Self, Misuse>;
    /// Returns when to read.
    fn read_at(&self) -> Option<Instant>;
    /// Reads the leader if that is due, or it may have changed.
    fn read(&mut self, op: &mut OpenOperation, env: &mut Env<S>) -> bool;
    /// Handles the reply to a request of this or an earlier query.
    fn answered(&mut self, op: &mut OpenOperation, env: &mut Env<S>, serial: u64, reply: &Self::Reply) -> bool;
    /// The operation has ended.
    fn close(&self, env: &mut Env<S>);
}

/// How a store reads the leader of an election.
pub(crate) type QueryOf<S> = <<S as Store>::Shared as SharedState<S>>::Query;

/// Of a store without elections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoElections {}

impl<S: Store> LeaderQuery<S> for NoElections {
    type Reply = Self;

    fn new(_: &Env<S>, _: &[u8]) -> Result<Self, Misuse> {
        Err(Misuse::NoElections)
    }

    fn read_at(&self) -> Option<Instant> {
        match *self {}
    }

    fn read(&mut self, _: &mut OpenOperation, _: &mut Env<S>) -> bool {
        match *self {}
    }

    fn answered(&mut self, _: &mut OpenOperation, _: &mut Env<S>, _: u64, _: &Self) -> bool {
        match *self {}
    }

    fn close(&self, _: &mut Env<S>) {
        match *self {}
    }
}

/// All open operations of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Operations<Q> {
    list: BTreeMap<u32, (OpenOperation, Work<Q>)>,
    ids: Slots,
    deadlines: Deadlines,
}

impl<Q> Default for Operations<Q> {
    fn default() -> Self {
        Self { list: BTreeMap::new(), ids: Slots::default(), deadlines: Deadlines::default() }
    }
}

impl<Q> Operations<Q> {
    /// Returns the questions for leaders and the observations, except the one that takes a step.
    pub(crate) fn queries(&self) -> impl Iterator<Item = (&OpenOperation, &Q)> {
        self.list.values().filter_map(|(op, work)| match work {
            Work::Leader(query) => Some((op, query)),
            Work::Ping(_) => None,
        })
    }

    pub(crate) fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.deadlines.first().map(|(at, _)| (at, "an operation"))
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.deadlines.first().is_some_and(|(at, _)| at <= now)
    }

    /// Removes the deadlines that are due. Returns the slots of their operations.
    fn take_due(&mut self, now: Instant) -> Vec<u32> {
        let mut due = Vec::new();
        while let Some((_, slot)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.deadlines.set(slot, None);
            due.push(slot);
        }
        due
    }

    fn slots(&self) -> Vec<u32> {
        self.list.keys().copied().collect()
    }
}

impl OpenOperation {
    pub(crate) const fn slot(&self) -> u32 {
        self.id.slot
    }

    /// Returns true if it goes on after the first answer.
    pub(crate) const fn observes(&self) -> bool {
        self.until.is_none()
    }

    pub(crate) fn emit<S: Store>(&mut self, env: &mut Env<S>, event: OperationEvent) {
        if self.last_event.as_ref() != Some(&event) {
            self.last_event = Some(event.clone());
            env.out.push_back((self.id, event).into());
        }
    }

    /// Ends it.
    fn fail<S: Store>(&mut self, env: &mut Env<S>, failure: impl FnOnce(Report) -> Failure) -> bool {
        let report = Report::new(env.now.since(self.since), self.answers.as_slice());
        self.emit(env, OperationEvent::Failed(failure(report)));
        true
    }

    /// Ends it, because a retry would not help after this answer.
    pub(crate) fn end<S: Store>(&mut self, env: &mut Env<S>, answer: Answer, failure: fn(Report) -> Failure) -> bool {
        self.answers = alloc::vec![answer];
        self.fail(env, failure)
    }

    /// An observer learns of a failure that is not final.
    pub(crate) fn disconnected<S: Store>(&mut self, env: &mut Env<S>, answer: Option<Answer>) {
        if let Some(answer) = answer {
            self.answers = alloc::vec![answer];
        }
        if self.observes() {
            self.emit(env, OperationEvent::Disconnected);
        }
    }

    /// Handles a server's reply to a check; [`Answer::Granted`] if it works. Returns true if the
    /// check has ended.
    #[cold]
    fn pong<S: Store>(&mut self, env: &mut Env<S>, node: usize, answer: Answer) -> bool {
        let Some(known) = self.answers.get_mut(node) else { return false };
        *known = answer;
        if let Some(failure) = env.shared.refuses() {
            return self.fail(env, |_| failure);
        }
        let servers = self.answers.len();
        let quorum = servers / 2 + 1;
        let count = |is: fn(&Answer) -> bool| self.answers.iter().filter(|answer| is(answer)).count();
        let works = count(|answer| *answer == Answer::Granted);
        let silent = count(|answer| *answer == Answer::Silent);
        let refused = count(is_refusal);
        if works >= quorum {
            self.emit(env, OperationEvent::Done);
            return true;
        }
        let is_over = works + silent < quorum && !refusals_are_undecided(refused, silent, servers - quorum);
        is_over && self.fail(env, if servers - refused < quorum { Failure::Refused } else { Failure::TimedOut })
    }
}

impl<S: Store> Env<S> {
    /// Runs one step of an operation, and removes it if `f` returns true.
    fn operation_step(
        &mut self,
        slot: u32,
        f: impl FnOnce(&mut Work<QueryOf<S>>, &mut OpenOperation, &mut Self) -> bool,
    ) {
        // Removed from the map during the step, so that `f` can borrow the environment.
        let Some((mut op, mut work)) = self.operations.list.remove(&slot) else { return };
        let is_over = f(&mut work, &mut op, self);
        let read_at = if let Work::Leader(query) = &work { query.read_at() } else { None };
        self.operations.deadlines.set(slot, soonest([read_at, op.until]).filter(|_| !is_over));
        if !is_over {
            self.operations.list.insert(slot, (op, work));
            return;
        }
        self.operations.ids.end(slot);
        if let Work::Leader(query) = work {
            query.close(self);
        }
    }

    /// Runs one step of a question for the leader or an observation, and removes it if `f` returns
    /// true.
    pub(crate) fn query_step(
        &mut self,
        slot: u32,
        f: impl FnOnce(&mut QueryOf<S>, &mut OpenOperation, &mut Self) -> bool,
    ) {
        self.operation_step(slot, |work, op, env| match work {
            Work::Leader(query) => f(query, op, env),
            Work::Ping(_) => false,
        });
    }

    /// Passes an input to each question for the leader and each observation.
    pub(crate) fn query_steps(&mut self, mut f: impl FnMut(&mut QueryOf<S>, &mut OpenOperation, &mut Self) -> bool) {
        for slot in self.operations.slots() {
            self.query_step(slot, &mut f);
        }
    }

    /// Handles a server's reply. `pong` is what it means for a check: [`Answer::Granted`] if the
    /// server works, `None` to ask again. A store without elections passes no `reply`.
    pub(crate) fn operation_answered(
        &mut self,
        call: CallId,
        pong: Option<Answer>,
        reply: Option<&<QueryOf<S> as LeaderQuery<S>>::Reply>,
    ) {
        let CallOwner::Operation(slot) = call.owner else { return };
        self.operation_step(slot, |work, op, env| match work {
            Work::Leader(query) => reply.is_some_and(|reply| query.answered(op, env, call.serial, reply)),
            Work::Ping(serials) => {
                let node = call.node.index();
                let Some(serial) = serials.get_mut(node).filter(|serial| **serial == call.serial) else { return false };
                let Some(answer) = pong else {
                    *serial = env.ping(slot, call.node);
                    return false;
                };
                op.pong(env, node, answer)
            }
        });
    }

    /// Does the work of operations that is due.
    pub(crate) fn settle_operations(&mut self) {
        for slot in self.operations.take_due(self.now) {
            self.operation_step(slot, |work, op, env| match work {
                _ if op.until.is_some_and(|until| until <= env.now) => op.fail(env, Failure::TimedOut),
                Work::Leader(query) => query.read(op, env),
                Work::Ping(_) => false,
            });
        }
    }

    /// The client is shutting down.
    pub(crate) fn end_operations(&mut self) {
        for slot in self.operations.slots() {
            self.operation_step(slot, |_, op, env| op.fail(env, |_| Failure::ShuttingDown));
        }
    }

    fn ping(&mut self, slot: u32, node: NodeId) -> u64 {
        let call = self.next_call(CallOwner::Operation(slot), node);
        S::Shared::ping(self, call);
        call.serial
    }
}

impl<S: Store> Locks<S> {
    /// Starts an operation: see [`LockClient::start`](super::LockClient::start).
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the name is invalid, too many operations are open, the store has no elections,
    /// or the client is shutting down.
    pub fn start(&mut self, now: Instant, operation: Operation) -> Result<OperationId, Misuse> {
        let (work, until) = self.work_of(now, operation)?;
        Ok(self.begin_operation(work, until))
    }

    /// Checks an operation, and returns its kind and its limit of time.
    pub(super) fn work_of(
        &mut self,
        now: Instant,
        operation: Operation,
    ) -> Result<(Work<QueryOf<S>>, Option<Instant>), Misuse> {
        self.handle_timeout(now);
        self.admit(self.ctx.env.operations.ids.len())?;
        let env = &self.ctx.env;
        let until = matches!(operation, Operation::Leader(_)).then(|| env.now + env.config.release_within);
        let work = match operation {
            Operation::Ping => Work::Ping(Vec::new()),
            Operation::Leader(name) | Operation::Observe(name) => {
                check_name(&name)?;
                Work::Leader(LeaderQuery::new(env, &name)?)
            }
        };
        Ok((work, until))
    }

    pub(super) fn begin_operation(&mut self, work: Work<QueryOf<S>>, until: Option<Instant>) -> OperationId {
        let env = &mut self.ctx.env;
        let (slot, generation) = env.operations.ids.take(0);
        let id = OperationId { slot, generation };
        let servers = env.shared.servers();
        let answers = alloc::vec![Answer::Silent; usize::from(servers)];
        let op = OpenOperation { id, since: env.now, until, last_event: None, answers };
        env.operations.list.insert(slot, (op, work));
        env.operation_step(slot, |work, op, env| match work {
            Work::Leader(query) => query.read(op, env),
            Work::Ping(serials) => {
                serials.extend((0..servers).map(|node| env.ping(slot, NodeId::new(node))));
                false
            }
        });
        self.settle();
        id
    }

    /// Cancels an operation: see [`LockClient::cancel`](super::LockClient::cancel).
    pub fn cancel(&mut self, now: Instant, id: OperationId) {
        self.handle_timeout(now);
        if self.ctx.env.operations.ids.owner(id.slot, id.generation).is_some() {
            self.ctx.env.operation_step(id.slot, |_, _, _| true);
        }
    }
}

/// Unlike an acquisition, a check is not retried: an alert after the handshake is a refusal, too.
fn is_refusal(answer: &Answer) -> bool {
    answer.is_refusal() || matches!(answer, Answer::Unknown(cause) if cause.is_refusal())
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::fault::Fault;
    use crate::id::ClientId;
    use crate::lock::{ErrorClass, ServerError};
    use crate::redis::{Config, Endpoint, Locks, LocksOutput, Reply, Request, ServerInfo};
    use core::time::Duration;

    const NOW: Instant = Instant::from_millis(5);

    fn locks(nodes: usize) -> Locks {
        let endpoints = (0..nodes).map(|n| Endpoint::parse(&alloc::format!("redis://h{n}")).unwrap());
        Locks::new(NOW, Config::new(endpoints), ClientId::from_bits(1), 7).unwrap()
    }

    /// Returns the calls that were sent, and the event.
    fn drain(locks: &mut Locks) -> (Vec<CallId>, Option<(OperationId, OperationEvent)>) {
        let (mut calls, mut result) = (Vec::new(), None);
        while let Some(output) = locks.poll_output() {
            match output {
                LocksOutput::Send { call, request: Request::Extend { number: 0, fence_block: 0, .. } } => {
                    calls.push(call);
                }
                LocksOutput::Operation { id, event } => assert_eq!(result.replace((id, event)), None),
                other @ (LocksOutput::Send { .. }
                | LocksOutput::Event { .. }
                | LocksOutput::Listen { .. }
                | LocksOutput::Unlisten { .. }
                | LocksOutput::Stopped { .. }) => panic!("{other:?}"),
            }
        }
        (calls, result)
    }

    fn event(locks: &mut Locks) -> Option<OperationEvent> {
        drain(locks).1.map(|(_, event)| event)
    }

    /// Answers each node's request, in order, and returns the result after each answer.
    fn answered(replies: &[Reply]) -> Vec<Option<OperationEvent>> {
        let mut locks = locks(replies.len());
        locks.start(NOW, Operation::Ping).unwrap();
        let calls = drain(&mut locks).0;
        let answer = |(call, reply): (&CallId, &Reply)| {
            locks.handle_reply(NOW, *call, reply);
            event(&mut locks)
        };
        calls.iter().zip(replies).map(answer).collect()
    }

    fn refused() -> Reply {
        Reply::Rejected(ServerError { class: ErrorClass::Refused, text: "WRONGPASS".into() })
    }

    fn down() -> Reply {
        Reply::NotSent(Fault::Refused.into())
    }

    #[test]
    fn majority_decides_as_early_as_possible() {
        assert_eq!(answered(&[Reply::Absent]), [Some(OperationEvent::Done)]);
        assert_eq!(answered(&[Reply::Taken, down(), Reply::Absent]), [None, None, Some(OperationEvent::Done)]);
        assert_eq!(answered(&[Reply::Absent, Reply::Absent, down()]), [None, Some(OperationEvent::Done), None]);
        let failed = answered(&[down(), Reply::Absent, refused()]);
        assert!(
            matches!(&failed[..], [None, None, Some(OperationEvent::Failed(Failure::TimedOut(report)))] if report.nodes.len() == 3)
        );
        let failed = answered(&[down(), refused(), refused()]);
        assert!(matches!(&failed[..], [None, None, Some(OperationEvent::Failed(Failure::Refused(_)))]), "{failed:?}");
        let failed = answered(&[refused(), down(), Reply::Absent]);
        assert!(matches!(&failed[..], [None, None, Some(OperationEvent::Failed(Failure::TimedOut(_)))]), "{failed:?}");
        let failed = answered(&[refused(), refused(), Reply::Absent]);
        assert!(matches!(&failed[..], [None, Some(OperationEvent::Failed(Failure::Refused(_))), None]));
        assert!(
            matches!(&answered(&[Reply::Announced])[..], [Some(OperationEvent::Failed(Failure::TimedOut(_)))]),
            "a wrong reply"
        );
    }

    /// The check succeeded, and each acquisition failed.
    #[test]
    fn equal_nodes_fail_ping() {
        // Q6
        let mut locks = locks(3);
        locks.start(NOW, Operation::Ping).unwrap();
        let server = Ok(ServerInfo { run_id: "same".into(), uptime: Duration::from_secs(99) });
        for node in [0, 2] {
            locks.handle_node_up(NOW, NodeId::new(node), Some(&server));
        }
        for call in drain(&mut locks).0 {
            locks.handle_reply(NOW, call, &Reply::Absent);
        }
        assert!(matches!(event(&mut locks), Some(OperationEvent::Failed(Failure::EqualNodes(..)))));
    }

    #[test]
    fn each_ping_has_its_own_calls_and_one_result() {
        let mut locks = locks(1);
        let [first, second] = [(); 2].map(|()| locks.start(NOW, Operation::Ping).unwrap());
        let (calls, result) = drain(&mut locks);
        assert_eq!((calls.len(), result), (2, None));
        locks.handle_reply(NOW, calls[1], &Reply::Absent);
        assert_eq!(drain(&mut locks).1, Some((second, OperationEvent::Done)));
        locks.handle_reply(NOW, calls[0], &Reply::Absent);
        assert_eq!(drain(&mut locks).1, Some((first, OperationEvent::Done)));
        // A late reply to an earlier check, or to a cancelled one, does not count.
        let third = locks.start(NOW, Operation::Ping).unwrap();
        locks.handle_reply(NOW, calls[0], &Reply::Absent);
        locks.cancel(NOW, first);
        let (calls, result) = drain(&mut locks);
        assert_eq!((calls.len(), result), (1, None));
        locks.cancel(NOW, third);
        locks.handle_reply(NOW, calls[0], &Reply::Absent);
        assert_eq!(drain(&mut locks), (Vec::new(), None));
    }

    #[test]
    fn shutdown_ends_ping() {
        let mut locks = locks(1);
        locks.start(NOW, Operation::Ping).unwrap();
        drain(&mut locks);
        locks.shutdown(NOW, Duration::from_secs(1));
        let failed = LocksOutput::Operation {
            id: OperationId { slot: 0, generation: 0 },
            event: OperationEvent::Failed(Failure::ShuttingDown),
        };
        assert_eq!(locks.poll_output(), Some(failed));
        assert_eq!(locks.start(NOW, Operation::Ping), Err(Misuse::ShuttingDown));
    }

    #[test]
    fn redis_has_no_elections() {
        let name = Bytes::from_static(b"scheduler");
        for operation in [Operation::Leader(name.clone()), Operation::Observe(name)] {
            assert_eq!(locks(1).start(NOW, operation), Err(Misuse::NoElections));
        }
    }
}
